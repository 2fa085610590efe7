"""``rechunk`` and what others read in its target: coordinates as xarray has them, groups and keys as their writers made them; and
arguments that would have no effect, or a silent one."""

from __future__ import annotations

import functools
import json
import warnings

import numpy as np
import pytest
import xarray
import zarr
from support.command_line import command
from support.server import Server
from support.stores import Layout, write_array

pytest.importorskip("dask")
# zarr-python warns of consolidated metadata in Zarr v3.
pytestmark = pytest.mark.filterwarnings("ignore")

FORMATS = [(2, 2), (2, 3), (3, 2), (3, 3)]


@pytest.fixture
def run(monkeypatch, capsys):
    return functools.partial(command, monkeypatch, capsys, "rechunk")


def done(run, *words):
    """Runs the command, which must succeed; gives its report."""
    status, out, err = run(*words, "--json", "--quiet")
    assert status == 0, err
    return json.loads(out)


def forecasts(path, zarr_format=3):
    """A forecast as cfgrib and xarray have it: coordinates without a dimension and of two, bounds, a grid mapping."""
    hours = xarray.date_range("2020-01-01", periods=6, freq="6h", use_cftime=False)
    grid = (("y", "x"), np.arange(12.0).reshape(3, 4))
    found = xarray.Dataset(
        {"t2m": (("time", "y", "x"), np.arange(72.0).reshape(6, 3, 4).astype("f4") * 2000, {"grid_mapping": "crs"}),
         "z": (("time", "level", "y", "x"), np.arange(144).reshape(6, 2, 3, 4)),
         "time_bnds": (("time", "nv"), np.arange(12).reshape(6, 2)), "crs": ((), np.int32(1))},
        {"time": hours, "level": [500, 850], "number": 3, "step": np.timedelta64(6, "h").astype("m8[ns]"), "lat": grid, "lon": grid,
         "valid_time": ("time", hours + np.timedelta64(6, "h")), "unused": ("other", np.arange(3.0))},
    )
    found["time"].attrs["bounds"] = "time_bnds"
    seconds = {"units": "seconds since 1970-01-01", "dtype": "int64"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        encoding = {"valid_time": seconds, "time": seconds, "t2m": {"chunks": (4, 3, 4)}}
        found.to_zarr(path, zarr_format=zarr_format, encoding=encoding)
    return xarray.open_zarr(path).load()


@pytest.mark.parametrize("formats", FORMATS, ids=str)
def test_coordinates_without_a_dimension(tmp_path, run, formats):
    """xarray opens no store of Zarr v2 in which an array doesn't tell its dimensions, though it has none."""
    before = forecasts(tmp_path / "s", formats[0])
    done(run, tmp_path / "s", tmp_path / "t", "--chunks", "time=1", "--format", formats[1], "--verify")
    xarray.testing.assert_identical(xarray.open_zarr(tmp_path / "t").load(), before)


@pytest.mark.parametrize("formats", FORMATS, ids=str)
def test_labels_of_dropped_dimensions_stay_coordinates(tmp_path, run, formats):
    before = forecasts(tmp_path / "s", formats[0])
    words = ("--sel", "time=2020-01-02T00", "--isel", "level=1", "--format", formats[1])
    done(run, tmp_path / "s", tmp_path / "t", *words)
    xarray.testing.assert_identical(xarray.open_zarr(tmp_path / "t").load(), before.sel(time="2020-01-02T00").isel(level=1))


def test_some_arrays_have_all_their_coordinates(tmp_path, run):
    """Those of other dimensions than their own, which attributes name, too; and the bounds of these."""
    before = forecasts(tmp_path / "s")
    done(run, tmp_path / "s", tmp_path / "t", "--arrays", "t2m")
    found = xarray.open_zarr(tmp_path / "t").load()
    xarray.testing.assert_identical(found[["t2m"]], before[["t2m"]])
    assert set(found.data_vars) == {"t2m", "crs", "time_bnds"}


def test_types_of_coordinates_and_times_stay(tmp_path, run):
    before = forecasts(tmp_path / "s")
    done(run, tmp_path / "s", tmp_path / "t", "--dtype", "float32")
    found = xarray.open_zarr(tmp_path / "t").load()
    assert {name: str(found[name].dtype) for name in ("t2m", "z", "lat", "number")} == {
        "t2m": "float32", "z": "float32", "lat": "float64", "number": "int64",
    }
    # Seconds in float32 are minutes off.
    for name in before.coords:
        assert found[name].identical(before[name]), name


def test_types_of_indices_stay(tmp_path, run):
    """AnnData's matrices and categories are no more without them."""
    group = zarr.open_group(str(tmp_path / "s"))
    for name, kind, parts in (("X", "csr_matrix", ("data", "indices", "indptr")), ("obs/cell", "categorical", ("codes",))):
        made = group.create_group(name, attributes={"encoding-type": kind})
        for part in parts:
            made.create_array(part, data=np.arange(5))
    done(run, tmp_path / "s", tmp_path / "t", "--dtype", "float32")
    found = {name: str(m.dtype) for name, m in zarr.open_group(str(tmp_path / "t")).members(max_depth=None) if hasattr(m, "dtype")}
    assert found == {"X/data": "float32", "X/indices": "int64", "X/indptr": "int64", "obs/cell/codes": "int64"}


@pytest.mark.parametrize("dtype", ["f4", "i4"])
def test_values_too_large_for_the_type_are_an_error(tmp_path, run, dtype):
    """As infinite numbers they would train a model."""
    values = np.full((8, 4), 65504, dtype)
    values[5, 2] = 70000
    write_array(tmp_path / "s", "a", values, dims=("time", "x"))
    status, out, err = run(tmp_path / "s", tmp_path / "t", "--dtype", "float16")
    # On a line of its own, below the bar.
    last = err.splitlines()[-1]
    assert status == 1 and last.startswith("python -m dali_zarr rechunk: --dtype: array 'a': it has values too large for float16")
    assert not out
    if dtype == "f4":
        # Those of the source are no mistake.
        values[5, 2] = np.inf
        write_array(tmp_path / "other", "a", values, dims=("time", "x"))
        done(run, tmp_path / "other", tmp_path / "u", "--dtype", "float16", "--verify")


@pytest.mark.parametrize("formats", FORMATS, ids=str)
@pytest.mark.parametrize("before, after, missing", [("i2", "f4", -999), ("f8", "f4", -999.5), ("u1", "i2", 255)])
def test_missing_values_in_another_type(tmp_path, run, formats, before, after, missing):
    values = np.arange(24).reshape(4, 6).astype(before)
    values[1, 2] = missing
    array = xarray.DataArray(values, dims=("t", "x"), attrs={"_FillValue": np.dtype(before).type(missing)})
    array.to_dataset(name="a").to_zarr(tmp_path / "s", zarr_format=formats[0])
    done(run, tmp_path / "s", tmp_path / "t", "--dtype", after, "--format", formats[1])
    wanted, found = (xarray.open_zarr(tmp_path / path)["a"].load() for path in "st")
    assert np.isnan(wanted).sum() == 1 and np.array_equal(wanted, found, equal_nan=True)
    assert xarray.open_zarr(tmp_path / "t", decode_cf=False)["a"].dtype == after


def test_an_element_of_a_sharded_array(tmp_path, run):
    group = zarr.open_group(str(tmp_path / "s"))
    group.create_array("a", data=np.arange(24), chunks=(3,), shards=(6,), dimension_names=["time"])
    done(run, tmp_path / "s", tmp_path / "t", "--isel", "time=7", "--verify")
    assert zarr.open_group(str(tmp_path / "t"))["a"][()] == 7


def test_blosc_is_told_the_size_of_elements(tmp_path, run):
    values = np.arange(24.0)
    blosc = zarr.codecs.BloscCodec(cname="lz4", clevel=7, typesize=8, shuffle="bitshuffle")
    zarr.open_group(str(tmp_path / "s")).create_array("a", data=values, compressors=blosc)
    done(run, tmp_path / "s", tmp_path / "t", "--dtype", "float32")
    found = zarr.open_group(str(tmp_path / "t"))["a"]
    assert np.array_equal(found[...], values)
    assert found.compressors[0].to_dict()["configuration"] == blosc.to_dict()["configuration"] | {"typesize": 4}


@pytest.mark.parametrize("zarr_format, codec", [(2, "blosc-lz4"), (3, "blosc-zstd"), (2, "lz4")])
def test_chunks_beyond_what_a_codec_takes(tmp_path, run, zarr_format, codec):
    zarr.open_group(str(tmp_path / "s")).create_array("a", shape=(1 << 15, 1 << 16), chunks=(1, 1 << 16), dtype="u1")
    words = ("--chunks", "dim_0=-1", "--codec", codec, "--format", zarr_format, "--memory", "100GiB")
    status, out, err = run(tmp_path / "s", tmp_path / "t", *words)
    assert status == 1 and "array 'a': expected chunks of at most 2" in err and "give smaller ones" in err
    assert not out and not (tmp_path / "t").exists()


def test_groups_without_arrays_are_kept(tmp_path, run):
    """AnnData has empty dictionaries, OME-Zarr has groups of labels."""
    group = zarr.open_group(str(tmp_path / "s"))
    group.create_group("deep/empty", attributes={"encoding-type": "dict"})
    group.create_array("a", data=np.arange(3))
    done(run, tmp_path / "s", tmp_path / "t")
    found = zarr.open_group(str(tmp_path / "t"))
    assert sorted(dict(found.members(max_depth=None))) == ["a", "deep", "deep/empty"]
    assert dict(found["deep/empty"].attrs) == {"encoding-type": "dict"}


def test_keys_of_chunks_are_the_sources(tmp_path, run):
    """OME-Zarr 0.4 asks for folders in Zarr v2, whose keys have dots by default."""
    for zarr_format, keys in ((2, {"name": "v2", "separator": "/"}), (3, {"name": "default", "separator": "."})):
        source, target = tmp_path / f"s{zarr_format}", tmp_path / f"t{zarr_format}"
        group = zarr.open_group(str(source), zarr_format=zarr_format)
        group.create_array("0", data=np.ones((4, 4)), chunks=(2, 2), chunk_key_encoding=keys)
        done(run, source, target, "--chunks", "dim_0=1", "--verify")
        first = "0/3/0" if zarr_format == 2 else "0/c.3.0"
        assert (target / first).is_file()


def test_other_arrays_than_xarrays_get_no_missing_values(tmp_path, run):
    """Zeros of images and counts, which are the fill value of Zarr v2, aren't missing in v3."""
    group = zarr.open_group(str(tmp_path / "s"), zarr_format=2)
    group.create_array("0", data=np.arange(16), fill_value=0)
    group.create_array("scalar", shape=(), dtype="i4")
    for source, target, zarr_format in (("s", "t", 3), ("t", "u", 2)):
        done(run, tmp_path / source, tmp_path / target, "--format", zarr_format)
        found = zarr.open_group(str(tmp_path / target))
        assert all(dict(found[name].attrs) == {} for name in ("0", "scalar"))


@pytest.mark.parametrize("first, second", [
    ("--sel time=2020-01-01", "--sel time=2020-01-01T06..2020-01-02T00"),
    ("--isel level=0", "--isel level=1"), ("--isel y=0..2", "--isel y=1..3"),
])
def test_another_selection_is_not_complete(tmp_path, run, first, second):
    """Their metadata are the same."""
    forecasts(tmp_path / "s")
    done(run, tmp_path / "s", tmp_path / "t", *first.split(), "--arrays", "z")
    status, out, err = run(tmp_path / "s", tmp_path / "t", *second.split(), "--arrays", "z")
    assert status == 1 and "or what this command writes, but" in err and "has other values there" in err and not out
    assert done(run, tmp_path / "s", tmp_path / "t", *first.split(), "--arrays", "z")["was_complete"]


def test_another_source_does_not_go_on(tmp_path, run, monkeypatch):
    """Years may differ in nothing but values."""
    from dali_zarr._rechunk import work

    for name, value in (("2019", 1.0), ("2020", 2.0)):
        write_array(tmp_path / name, "a", np.full((8, 4), value), layout=Layout((2, 4)), dims=("time", "x"))

    def failing(*_):
        raise OSError("ended")

    with monkeypatch.context() as patched:
        patched.setattr(work, "copy", failing)
        assert run(tmp_path / "2019", tmp_path / "t")[0] == 1
    status, _, err = run(tmp_path / "2020", tmp_path / "t")
    assert status == 1 and "found the unfinished target of another source" in err
    monkeypatch.chdir(tmp_path)
    done(run, "2019", tmp_path / "t", "--verify")


@pytest.mark.parametrize("words, message", [
    ("--method nearest", "--method: expected labels in --sel"),
    ("--sel time=2020-01-01..2020-01-02 --tolerance 6h", "--tolerance: expected labels in --sel"),
    ("--sel level=500 --tolerance 3", "--tolerance: expected --method too"),
    ("--target_options aws_region=x", "--target_options: expected none"),
    ("--storage_options aws_region=x", "--storage_options: expected none but branch, tag or snapshot_id"),
    ("--dtype >f4 --arrays t2m", "--dtype: expected a type without a byte order"),
    ("--dtype longdouble --arrays t2m", "--dtype: expected an integer or floating-point type of at most 8 bytes"),
])
def test_arguments_without_an_effect(tmp_path, run, words, message):
    forecasts(tmp_path / "s")
    status, out, err = run(tmp_path / "s", tmp_path / "t", *words.split())
    assert status == 1 and message in err and not out and not (tmp_path / "t").exists(), err


def test_a_damaged_chunk_is_named(tmp_path, run):
    write_array(tmp_path / "s", "a", np.random.default_rng(0).random((8, 4)), layout=Layout((2, 4)), dims=("time", "x"))
    (tmp_path / "s/a/c/2/0").write_bytes(b"no frame of zstd")
    status, out, err = run(tmp_path / "s", tmp_path / "t", "--chunks", "time=2", "--workers", "1", "--quiet")
    assert status == 1 and "array 'a' can't be read at [4:6, 0:4]: " in err and not out


def test_stores_that_do_not_answer(tmp_path, run):
    write_array(tmp_path / "s", "a", np.arange(3), dims=("time",))
    options = ("aws_endpoint=http://127.0.0.1:1", "aws_allow_http=true", "aws_access_key_id=a", "aws_secret_access_key=b")
    for target, words in (("s3://", ()), ("s3://bucket/t", ("--target_options", *options, "aws_region=x"))):
        status, out, err = run(tmp_path / "s", target, *words)
        assert status == 1 and target in err and "Traceback" not in err and not out


def test_places_in_one_another(tmp_path, run):
    """However they are written."""
    write_array(tmp_path / "s", "a", np.arange(3), dims=("time",))
    for source, target in ((f"local://{tmp_path}/s", f"{tmp_path}/s/t"), (f"{tmp_path}/s", f"local://{tmp_path}/s"),
                           ("memory://x", "memory:///x/y")):
        if source.startswith("memory"):
            done(run, tmp_path / "s", source)
        status, _, err = run(source, target)
        assert status == 1 and "expected a place outside of the source" in err


def test_coordinates_of_a_store_that_cannot_be_listed(tmp_path, run):
    """By HTTP without consolidated metadata."""
    before = forecasts(tmp_path / "s").drop_vars("unused")
    before.to_zarr(tmp_path / "plain", zarr_format=3, consolidated=False)
    with Server(tmp_path) as server:
        done(run, f"{server.url}/plain", tmp_path / "t", "--arrays", "t2m", "--storage_options", "max_retries=0")
    xarray.testing.assert_identical(xarray.open_zarr(tmp_path / "t").load()[["t2m"]], before[["t2m"]])


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_axes_of_images_name_dimensions(tmp_path, run, version):
    """As the reader has them: those that the attributes of an image or its labels tell, where arrays have no names."""
    zarr_format = 2 if version == "0.4" else 3
    values = {"a/0": np.arange(384).reshape(2, 4, 6, 8), "a/1": np.ones((2, 4, 3, 4)), "a/labels/cells/0": np.ones((4, 6, 8))}
    root = zarr.open_group(str(tmp_path / "s"), mode="w", zarr_format=zarr_format)
    for name, data in (values | {"a/other": np.ones((4, 6))}).items():
        root.create_array(name, data=data)
    for group, axes, levels in (("a", "czyx", ("0", "./1")), ("a/labels/cells", "zyx", ("0",))):
        image = {"axes": [{"name": axis} for axis in axes], "datasets": [{"path": level} for level in levels]}
        found = {"multiscales": [image]}
        root[group].attrs.update(found if version == "0.4" else {"ome": found | {"version": "0.5"}})
    words = ["--chunks", "c=1,z=2,dim_0=3", "--isel", "z=1..4", "--verify"]
    done(run, tmp_path / "s", tmp_path / "t", *words)
    target = zarr.open_group(str(tmp_path / "t"), mode="r")
    for name, data in values.items():
        part = data[1:4] if data.ndim == 3 else data[:, 1:4]
        assert target[name].chunks == ((1,) * (data.ndim - 3) + (2, *data.shape[-2:])) and (target[name][:] == part).all(), name
    assert target["a/other"].chunks == (3, 6)
    window = 'arrays={image: "a/0", label: "a/labels/cells/0"}, dims=[z, y, x], window=[2, 4, 4], random_crop=[z, y, x]'
    done(run, tmp_path / "s", tmp_path / "u", "--for", window, "--verify")
    # Attributes that aren't as specified name nothing.
    for axes in (None, "zyx", [1, 2, 3, 4], ["z", "z", "y", "x"], [{}, "z", "y", "x"]):
        image = {"axes": axes, "datasets": [{"path": "0"}]}
        root["a"].attrs.update({"multiscales": [None, image]} if version == "0.4" else {"ome": {"multiscales": [None, image]}})
        status, _, err = run(tmp_path / "s", tmp_path / "v", "--arrays", "a/0", "--chunks", "c=1", "--quiet")
        assert status == 1 and "the dimensions are dim_0, dim_1, dim_2, dim_3" in err
