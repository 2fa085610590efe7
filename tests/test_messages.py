"""What Python's own messages say: what was found, what there is, and what to write instead."""

from __future__ import annotations

import functools
import re
import shutil

import dali_zarr
import numpy as np
import pytest
import zarr
from dali_zarr import _hints
from dali_zarr._statistics import compute
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline
from support.stores import Layout, write_array


def write(path, latitudes=(40.0, 30.0, 20.0, 10.0), levels=(1000, 850, 500)):
    values = np.arange(24 * 3 * 4 * 5, dtype="float32").reshape(24, 3, 4, 5)
    write_array(path, "z", values, layout=Layout((1, 3, 4, 5)), dims=("time", "level", "lat", "lon"))
    write_array(path, "t2m", values[:, 0], layout=Layout((1, 4, 5)), dims=("time", "lat", "lon"))
    write_array(path, "level", np.array(levels), dims=("level",))
    write_array(path, "lat", np.array(latitudes), dims=("lat",))
    write_array(path, "time", np.arange(24), dims=("time",), attributes={"units": "hours since 2020-01-01"})
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("messages"))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"sel": {"level": "500"}}, ValueError, "'500' isn't among the coordinates: 1000, 850, 500; they are numbers: write 500"),
        ({"sel": {"level": "low"}}, ValueError, "'low' isn't among the coordinates: 1000, 850, 500; they are numbers, and"),
        ({"sel": {"lat": slice(10, 30)}}, ValueError,
         "sel: 'lat': expected at least one element, but slice(10, 30, None) selects none: the coordinates go from 40.0 to 10.0; "
         "write slice(30, 10)"),
        ({"sel": {"time": slice("2021", "2022")}}, ValueError, "the coordinates go from 2020-01-01T00:00"),
        ({"isel": {"time": slice(9, 3)}}, ValueError, "slice(9, 3, None) selects none: there are 24; write slice(3, 9)"),
        ({"isel": {"level": slice(7, 9)}}, ValueError, "slice(7, 9, None) selects none: there are 3"),
        ({"sel": {"level": []}}, ValueError, "[] selects none: the coordinates go from 1000 to 500"),
        ({"isel": {"time": slice(None, None, -1)}}, ValueError,
         "isel: 'time': the selection goes backwards along a dimension that samples are cut along; select it in the order of the"),
        ({"batch_size": "16"}, TypeError, "batch_size: expected a"),
        ({"offsets": {}}, ValueError, "offsets: expected at least one, but found {}"),
        ({"offsets": {"now": 0, "later": []}}, ValueError, "offsets: expected at least one, but found {'now': 0, 'later': []}"),
        ({"offsets": {"now": "6h"}}, TypeError, "offsets: expected integers, or a dictionary of them by name, but found '6h'"),
        ({"sel": {"level": [850, 501]}}, ValueError, "501 isn't among the coordinates: 1000, 850, 500"),
        ({"sel": {"level": np.array([850, 501])}}, ValueError, "sel: 'level': 501 isn't among"),
        ({"sel": {"time": "2021-01-01"}}, ValueError, "'2021-01-01' isn't among the coordinates: 2020-01-01T00:00, 2020-01-01T01"),
        ({"sel": {"time": slice("2020-13-01", None)}}, ValueError, "sel: 'time': '2020-13-01' isn't a date; write '2020', "),
        ({"sel": {"lev": 500}}, ValueError, "the dimensions are time, level, lat, lon; did you mean level?"),
        ({"sel": {"time": "soon"}}, ValueError, "sel: 'time': 'soon' isn't a date; write '2020', '2020-01', "),
        ({"sel": {"time": 5}}, ValueError, "sel: 'time': 5 isn't among the coordinates: 2020-01-01T00:00, "),
        ({"sel": {"time": [5]}}, ValueError, "sel: 'time': 5 isn't among the coordinates: 2020-01-01T00:00, "),
        ({"sel": {"time": slice(5, 9)}}, ValueError, "2020-01-01T23:00; a number is a year here, and positions are for isel"),
        ({"sel": {"level": {850, 500}}}, TypeError,
         "sel: 'level': expected a label, a list or a slice, but found a set, which isn't a list; write [500, 850]"),
        ({"isel": {"level": {0: 1}.keys()}}, TypeError, "'level': expected a label, a list or a slice, but found a dict_keys"),
        ({"sel": {"level": {0: 500}.values()}}, TypeError, "but found a dict_values, which isn't a list; write list(...)"),
        ({"batchsize": 3}, TypeError, "batchsize: there is no such argument; did you mean batch_size?"),
        ({"batch": 3}, TypeError, "batch: there is no such argument; did you mean batch_size?"),
        ({"std": 3}, TypeError, "std: there is no such argument; did you mean stddev?"),
        ({"drop_lst": True}, TypeError, "drop_lst: there is no such argument; did you mean drop_last?"),
        ({"lat": 3}, TypeError, "lat: there is no such argument; see help(dali_zarr.zarr_reader) for the arguments that there are"),
        ({"mean": {"z": "stats.json"}}, TypeError,
         "mean: expected numbers by output, found the file 'stats.json': a file is for all outputs; write mean='stats.json', or"),
        ({"stddev": {"z": ["high.zarr"]}}, TypeError, "stddev: expected numbers by output, found the file 'high.zarr'"),
        ({"num_workers": 4}, TypeError, "num_workers: it is an argument of torch's DataLoader; leave it out: the reader"),
    ],
    ids=str,
)
def test_messages(path, arguments, kind, message):
    """The same by explain and by the loader."""
    loader = pytest.importorskip("dali_zarr.torch").Loader
    with pytest.raises(kind, match=re.escape(message)):
        dali_zarr.explain(path=path, arrays=["z"], **arguments)
    with pytest.raises(kind, match=re.escape(message)):
        loader(path, arrays=["z"], device="cpu", **arguments)


@pytest.mark.parametrize(
    ("store", "name", "meant"),
    [
        ("s3://bucket/x", "aws_reigon", "; did you mean aws_region?"),
        ("s3://bucket/x", "AWS_Skip_Signatur", "; did you mean aws_skip_signature?"),
        ("s3://bucket/x", "max_retry", "; did you mean max_retries?"),
        ("gs://bucket/x", "gogle_skip_signature", "; did you mean google_skip_signature?"),
        ("az://container/x", "azure_storage_acount_name", "; did you mean azure_storage_account_name?"),
        ("http://127.0.0.1:1/x", "user-agent", "; did you mean user_agent?"),
        # Of another kind of store, and like nothing.
        ("http://127.0.0.1:1/x", "aws_region", ""),
        ("s3://bucket/x", "nonsense", ""),
    ],
)
def test_misspelt_options_of_stores(store, name, meant):
    loader = pytest.importorskip("dali_zarr.torch").Loader
    message = f"^zarr_reader: storage_options: {name.lower()} isn't an option of .* virtual_chunks{re.escape(meant)}$"
    for call in (dali_zarr.explain, functools.partial(loader, device="cpu")):
        with pytest.raises(ValueError, match=message):
            call(path=store, arrays=["z"], storage_options={name: "1"})


def test_a_misspelt_secret_is_one():
    with pytest.raises(ValueError, match="aws_acces_key_id is a secret, .* set it in the environment") as told:
        dali_zarr.explain(path="s3://bucket/x", arrays=["z"], storage_options={"aws_acces_key_id": "hunter2"})
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize("name", ["collate", "process_group", "transform", "num_threads"])
def test_arguments_of_loaders(path, name):
    with pytest.raises(TypeError, match=f"{name}: it is an argument of the loaders, and not of the reader; leave it out here"):
        dali_zarr.explain(path=path, arrays=["z"], **{name: None})


@pytest.mark.parametrize(
    ("arguments", "meant"), [({"batchsize": 4}, "batch_size"), ({"outptu": "s.json"}, "output"), ({"devcie": "cpu"}, "device")],
)
def test_arguments_of_statistics(path, arguments, meant):
    with pytest.raises(TypeError, match=f"statistics: .*: there is no such argument; did you mean {meant}\\?"):
        dali_zarr.statistics(path, arrays=["z"], **arguments)


@pytest.mark.parametrize("name", ["s.nc", "s.npy", "s.txt", "s.json.gz", "S.CSV"])
def test_statistics_say_what_they_write_before_the_pass(path, tmp_path, name, monkeypatch):
    target = tmp_path / name
    message = f"expected a name that ends in .json or .zarr, but found {re.escape(str(target))}: statistics are written as"
    found = dali_zarr.statistics(path, arrays=["t2m"], output=tmp_path / "s.json")
    with pytest.raises(ValueError, match=message):
        found.save(target)
    monkeypatch.setattr(compute, "_read", None)
    with pytest.raises(ValueError, match=f"dali_zarr: statistics: output: {message}"):
        dali_zarr.statistics(path, arrays=["t2m"], output=target)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["s.json"]


def test_dates_of_other_calendars(path, tmp_path):
    """cftime's among NumPy's, and text among cftime's where xarray compares them."""
    cftime = pytest.importorskip("cftime")
    date = cftime.DatetimeProlepticGregorian(2020, 1, 1, 3)
    message = r"expected dates as text or numpy.datetime64, .* but found .*; write '2020-01-01T03:00:00'"
    for label in (date, [date], slice(date, None)):
        with pytest.raises(TypeError, match=message):
            dali_zarr.explain(path, arrays=["z"], sel={"time": label})
    write_array(tmp_path, "a", np.arange(9, dtype="float32"), dims=("time",))
    units = {"units": "days since 2020-02-26", "calendar": "noleap"}
    write_array(tmp_path, "time", np.arange(9) * 2, dims=("time",), attributes=units)
    given = {"path": tmp_path, "arrays": ["a"]}
    message = "in lists and with a method dates of this calendar aren't text: write cftime.DatetimeNoLeap(2020, 2, 26, 0)"
    for label in ("2020-03-02", ["2020-03-02"]):
        for tolerance in (None, "2D"):
            with pytest.raises(ValueError, match=re.escape(message)):
                dali_zarr.explain(**given, sel={"time": label}, method="nearest", tolerance=tolerance)
    near = {"sel": {"time": cftime.DatetimeNoLeap(2020, 3, 2, 3)}, "method": "nearest"}
    assert dali_zarr.explain(**given, **near, tolerance="4h")["samples"] == 1
    with pytest.raises(ValueError, match="isn't among the coordinates"):
        dali_zarr.explain(**given, **near, tolerance="2h")
    with pytest.raises(ValueError, match="tolerance: expected a duration such as '6h' or '2D', but found 'near'"):
        dali_zarr.explain(**given, **near, tolerance="near")


def test_explain_takes_its_store_by_position(path):
    assert dali_zarr.explain(path, arrays=["z"]) == dali_zarr.explain(path=path, arrays=["z"])


@pytest.mark.parametrize(("name", "value"), [("RANK", "x"), ("RANK", ""), ("WORLD_SIZE", "-1"), ("WORLD_SIZE", "1.5")])
def test_the_environment_of_torchrun(path, monkeypatch, name, value):
    loader = pytest.importorskip("dali_zarr.torch").Loader
    for variable, text in {"RANK": "0", "WORLD_SIZE": "1", name: value}.items():
        monkeypatch.setenv(variable, text)
    message = f"expected a whole number in the environment variable {name}, .* but found '{value}'; unset it"
    with pytest.raises(ValueError, match=message):
        loader(path, arrays=["z"], device="cpu")
    assert len(loader(path, arrays=["z"], device="cpu", batch_size=24, shard_id=0, num_shards=1)) == 1


def test_explain_takes_what_loaders_take(path):
    given = {"path": path, "arrays": ["z"], "batch_size": 4}
    as_reader = dali_zarr.explain(**given, device="gpu", offsets=[0, 6])
    assert dali_zarr.explain(**given, device="cuda", offsets={"input": 0, "target": 6}) == as_reader


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("how", [{}, {"num_samples": 21, "weights": np.ones(24)}], ids=["", "weights"])
def test_explain_drops_the_last_batch_as_loaders_do(path, world, how):
    loader = pytest.importorskip("dali_zarr.torch").Loader
    given = {"path": path, "arrays": ["z"], "batch_size": 5, "drop_last": True, "shard_id": world - 1, "num_shards": world, **how}
    made = loader(**given, device="cpu")
    assert dali_zarr.explain(**given)["batches_per_epoch"] == len(made) == (21 if how else 24) // world // 5
    assert dali_zarr.explain(**given | {"drop_last": False})["batches_per_epoch"] > len(made)
    for wrong, kind, message in (
        ({"batch_size": 25}, ValueError, "drop_last: expected at least one whole batch, but the 2. samples on . ranks are less"),
        ({"drop_last": "no"}, TypeError, "drop_last: expected True or False, but found 'no'"),
        ({"pad_last_batch": True}, ValueError, "expected drop_last or pad_last_batch, but found both"),
    ):
        for call in (dali_zarr.explain, loader):
            with pytest.raises(kind, match=message):
                call(**{**given, **wrong})


def test_loaders_say_the_message_alone(path, tmp_path):
    """Without DALI's account of a pipeline that the user didn't write: when it is built, and when a batch can't be read."""
    loader = pytest.importorskip("dali_zarr.torch").Loader
    message = r"^zarr_reader: store .*: expected an array 't3m', but found the arrays .*; did you mean t2m\?$"
    with pytest.raises(ValueError, match=message):
        loader(path, arrays=["t3m"], device="cpu")
    damaged = shutil.copytree(path, tmp_path / "damaged")
    chunk = damaged / "t2m/c/1/0/0"
    chunk.write_bytes(chunk.read_bytes()[:20])
    with pytest.raises(RuntimeError, match=r"^zarr_reader: store .*, chunk t2m/c/1/0/0: [^\n]+$"):
        list(loader(damaged, arrays=["t2m"], device="cpu"))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"device": "gpu0"}, ValueError, "device: expected 'cuda' or 'cpu', but found 'gpu0'"),
        ({"device": "meta"}, ValueError, "device: expected 'cuda' or 'cpu', but found 'meta'"),
        ({"shard_id": 1}, ValueError, "expected both shard_id and num_shards, or neither"),
        ({"shard_id": 3, "num_shards": 2}, ValueError, "shard_id: expected a number from 0 to num_shards - 1 = 1, found 3"),
        ({"shard_id": -1, "num_shards": 2}, ValueError, "shard_id: expected a number from 0 to num_shards - 1 = 1, found -1"),
        ({"shard_id": "1", "num_shards": 2}, TypeError, "shard_id: expected integers, found '1'"),
        ({"drop_last": "no"}, TypeError, "drop_last: expected True or False, but found 'no'"),
        ({"pad_last_batch": 1}, TypeError, "pad_last_batch: expected True or False, but found 1"),
        ({"return_index": "no"}, TypeError, "return_index: expected True or False, but found 'no'"),
        ({"num_threads": "2"}, TypeError, "num_threads: expected an integer, but found '2'"),
        ({"num_threads": 0}, ValueError, "num_threads: expected at least 1, but found 0"),
        ({"transform": 3}, TypeError, "transform: expected a function of the outputs, but found 3"),
        ({"transform": lambda outputs: outputs["z"]}, TypeError, "transform: expected a dictionary from names to outputs"),
        ({"drop_last": True, "pad_last_batch": True}, ValueError, "expected drop_last or pad_last_batch, but found both"),
        ({"offsets": [0, 0]}, ValueError, "arrays, offsets: expected each output once, but found 'z' twice"),
    ],
)
def test_arguments_of_the_loader_itself(path, arguments, kind, message):
    loader = pytest.importorskip("dali_zarr.torch").Loader
    with pytest.raises(kind, match=re.escape(message)):
        loader(path, arrays=["z"], **{"device": "cpu", **arguments})


@pytest.mark.parametrize(("count", "there"), [(0, "no CUDA device here"), (2, "2 CUDA devices here")])
def test_gpus_that_are_not_there(path, monkeypatch, count, there):
    torch = pytest.importorskip("torch")
    loader = pytest.importorskip("dali_zarr.torch").Loader
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for device in (["cuda", "gpu", "cuda:0", torch.device("cuda")] if count == 0 else []) + ["cuda:2"]:
        instead = "cuda:0" if count else "cpu"
        with pytest.raises(ValueError, match=f"device: PyTorch finds {there}, but found '{device}'; write '{instead}'"):
            loader(path, arrays=["z"], device=device)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_around_the_loader(path, workers):
    data = pytest.importorskip("torch").utils.data
    loader = pytest.importorskip("dali_zarr.torch").Loader(path, arrays=["z"], device="cpu", host_memory_limit="64MB")
    with pytest.raises(TypeError, match="threads of its own; iterate over it itself, without a DataLoader around it"):
        next(iter(data.DataLoader(loader, num_workers=workers)))


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_entries_that_batches_lack(path, framework):
    loader = pytest.importorskip(f"dali_zarr.{framework}").Loader
    given = {"path": path, "arrays": ["t2m"], "device": "cpu", "host_memory_limit": "64MB"}
    batch = next(iter(loader(**given)))
    with pytest.raises(KeyError, match="the batch has no entry 'T2'; did you mean t2m?"):
        batch["T2"]
    with pytest.raises(KeyError, match="the batch has no entry 'x'; there are 't2m'"):
        batch["x"]
    assert batch.get("x") is None and "x" not in batch and list(batch) == ["t2m"]
    batch = next(iter(loader(**given, offsets={"input": 0, "target": 6})))
    with pytest.raises(KeyError, match=re.escape("""no entry 't2m'; write batch['input']['t2m']""")):
        batch["t2m"]


@pytest.mark.parametrize(
    ("parts", "kind", "message"),
    [
        ({"train": "2020", "val": "2021"}, TypeError, "val: there is no such argument; did you mean validation?"),
        ({"train": "2020", "batchsize": 4}, TypeError, "batchsize: there is no such argument; did you mean batch_size?"),
        ({"train": slice(None, "2020-01-01T06"), "validation": slice("2020-01-01T06", None)}, ValueError,
         "along 'time', but train and validation share 1; slices of labels include both ends"),
    ],
)
def test_splits(path, parts, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        dali_zarr.splits(path=path, arrays=["t2m"], **parts)


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("T2M", ["t2m", "z"], "t2m"),
        ("lon", ["longitude", "latitude"], "longitude"), ("img", ["data/img", "data/action"], "data/img"),
        ("shuffle", ["random_shuffle", "shuffle_after_epoch"], "random_shuffle"),
        ("lat", ["latitude", "latitude_bounds"], None), ("q", ["z"], None),
    ],
)
def test_the_name_that_was_meant(name, known, meant):
    assert _hints.nearest(name, known) == meant


def test_what_is_no_dataset(path):
    with pytest.raises(TypeError, match="from_xarray: expected an xarray.Dataset, but found str; open it with xarray.open_zarr"):
        dali_zarr.from_xarray(str(path))
    with pytest.raises(TypeError, match=r"but found DataArray; write array.to_dataset\(\)"):
        dali_zarr.from_xarray(pytest.importorskip("xarray").open_zarr(path, consolidated=False)["z"])


def test_datasets_that_are_not_as_they_were_opened(path, tmp_path):
    xarray = pytest.importorskip("xarray")
    opened = xarray.open_zarr(path, consolidated=False)[["t2m"]]
    later = opened.assign_coords(time=opened.time + np.timedelta64(7, "D"))
    message = (
        r"the dataset's 'time' has 2020-01-08, which isn't a coordinate of the store .* \(from 2020-01-01T00:00 to "
        r"2020-01-01T23:00\): .*; if it joins several stores, give path=\[...\] with all of them"
    )
    with pytest.raises(ValueError, match=message):
        dali_zarr.from_xarray(later)
    other = write(tmp_path / "other")
    zarr.open_array(other / "time")[:] = np.arange(24, 48)
    joined = xarray.concat([opened, xarray.open_zarr(other, consolidated=False)[["t2m"]]], "time")
    for given in ({}, {"path": [str(path), str(other)]}):
        assert dali_zarr.from_xarray(joined, **given)["path"] == [str(path), str(other)]
    with pytest.raises(ValueError, match=r"the dataset has no dimension 'lat', .* dropped\?\); .* dimensions are time, lon"):
        dali_zarr.from_xarray(opened.isel(lat=0, drop=True))


def test_the_loader_for_jax_checks_its_batch_size(path):
    loader = pytest.importorskip("dali_zarr.jax").Loader
    for size, kind in (("16", TypeError), (0, ValueError)):
        with pytest.raises(kind, match="dali_zarr: batch_size: expected"):
            loader(path, arrays=["z"], batch_size=size)


def test_stores_that_do_not_agree(path, tmp_path):
    """One position would mean two latitudes: refused wherever coordinates are read, unless a selection looks them up."""
    other = write(tmp_path / "other", latitudes=(10.0, 20.0, 30.0, 40.0))
    given = {"path": [path, other], "arrays": ["t2m"]}
    message = "expected stores with the same coordinates along 'lat', but element 0 is 40.0 in"

    def typed(**arguments):
        with Pipeline(batch_size=2, num_threads=1, device_id=None):
            return dali_zarr.zarr_reader(**arguments)

    for refuses in (dali_zarr.explain, typed):
        with pytest.raises(ValueError, match=message):
            refuses(**given)
        refuses(**given, sel={"lat": [30, 20]})
        refuses(path=[path, path], arrays=["t2m"])
    with Pipeline(batch_size=2, num_threads=1, device_id=None):
        fn.zarr_reader(**given)


def test_stores_of_other_lengths(path, tmp_path):
    """Each has other levels, and a selection looks them up: by explain, the loader and the operator."""
    other = tmp_path / "other"
    values = np.arange(24 * 2 * 4 * 5, dtype="float32").reshape(24, 2, 4, 5)
    write_array(other, "z", values, layout=Layout((1, 2, 4, 5)), dims=("time", "level", "lat", "lon"))
    write_array(other, "level", np.array([500, 1000]), dims=("level",))
    write_array(other, "lat", np.array([40.0, 30.0, 20.0, 10.0]), dims=("lat",))
    given = {"path": [path, other], "arrays": ["z"], "sel": {"level": [1000, 500]}}
    assert dali_zarr.explain(**given)["outputs"][0]["shape"] == [2, 4, 5]
    loader = pytest.importorskip("dali_zarr.torch").Loader(**given, batch_size=48, device="cpu", host_memory_limit="64MB")
    (batch,) = loader
    first = zarr.open_array(path / "z")[:]
    assert np.array_equal(batch["z"], np.concatenate([first[:, [0, 2]], values[:, [1, 0]]]))
    with pytest.raises(ValueError, match="array 'z' has length 3 along \"level\" in .* and 2 in"):
        dali_zarr.explain(path=[path, other], arrays=["z"])


def test_the_typed_reader_of_several_stores_selects(path, tmp_path):
    """What it resolves itself is what the operator would."""
    other = write(tmp_path / "other", levels=(500, 850, 1000))
    given = {"path": [path, other], "arrays": ["z"], "sel": {"level": [850, 500]}, "mean": 1 / 3, "dtype": "float64"}
    found = []
    for reader in (fn.zarr_reader, dali_zarr.zarr_reader):
        pipe = Pipeline(batch_size=48, num_threads=1, device_id=None)
        with pipe:
            pipe.set_outputs(reader(**given, host_memory_limit=64 << 20))
        pipe.build()
        found.append(np.array(pipe.run()[0].as_array()))
    assert np.array_equal(*found)
    stored = zarr.open_array(path / "z")[:].astype("float64")
    assert np.array_equal(found[0][:24], stored[:, [1, 2]] - 1 / 3) and np.array_equal(found[0][24:], stored[:, [1, 0]] - 1 / 3)
