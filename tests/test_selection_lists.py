"""Lists of labels or positions along ``dims``: where samples start, in the order of the list. The oracle is xarray."""

from __future__ import annotations

import shutil
from typing import Any

import dali_zarr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pipelines import build, to_numpy
from support.stores import Layout, write_array

xr = pytest.importorskip("xarray", reason="selection by label needs xarray")

SHAPE = (50, 4, 12)
DIMS = ("time", "level", "latitude")
VALUES = np.arange(np.prod(SHAPE), dtype="int32").reshape(SHAPE)
UNITS = {"units": "hours since 2020-02-27", "calendar": "standard"}


def write(path, values=VALUES, first=0) -> None:
    write_array(path, "z", values, codec="zstd", layout=Layout((7, 2, 5)), dims=DIMS)
    write_array(path, "time", np.arange(first, first + len(values)), dims=("time",), attributes=UNITS)
    write_array(path, "level", np.array([1000, 850, 500, 100]), dims=("level",))
    write_array(path, "latitude", np.linspace(60, 5, values.shape[2]), dims=("latitude",))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    base = tmp_path_factory.mktemp("lists") / "era5.zarr"
    write(base)
    return base


@pytest.fixture(scope="module")
def opened(path):
    return xr.open_zarr(path, consolidated=False)


def epoch(path, device="cpu", **args: Any) -> list[np.ndarray]:
    """The outputs of an epoch, and the index."""
    args |= {} if path is None else {"path": path}
    pipe = build(device, 4, return_index=True, **({"arrays": ["z"]} | args))
    size = pipe.reader_meta("reader")["epoch_size"]
    batches = [[to_numpy(out) for out in pipe.run()] for _ in range(-(-size // 4))]
    return [np.concatenate([batch[i] for batch in batches])[:size] for i in range(len(batches[0]))]


LISTS = [
    {"sel": {"time": ["2020-02-27T05", "2020-02-28T03"]}}, {"sel": {"time": ["2020-02-28T03", "2020-02-27T05", "2020-02-28T03"]}},
    {"sel": {"time": np.array(["2020-02-28T03", "2020-02-27"], "M8[ns]"), "level": [500, 850]}},
    {"sel": {"time": ["2020-02-28T03:20", "2020-02-27T04:40"]}, "method": "nearest"}, {"isel": {"time": [3, 8, -1, 3]}},
    {"isel": {"time": np.arange(50) % 9 == 4}}, {"sel": {"time": ["2020-02-28T03"], "level": 850}},
    {"isel": {"time": [5, 4]}, "sel": {"latitude": slice(40, 20)}},
]


@pytest.mark.parametrize("how", LISTS, ids=str)
def test_values_are_xarrays(path, opened, device, how):
    """Without windows samples are the elements that xarray selects, in its order."""
    want = opened.z.sel(how.get("sel", {}), method=how.get("method")) if "method" in how else opened.z.sel(how.get("sel", {}))
    want = want.isel(how.get("isel", {}))
    found, _ = epoch(path, device, **how)
    assert found.shape == want.shape and (found == want.values).all()


def test_several_dims(path, opened, device):
    """A list along each: all combinations, as xarray has them. A scalar and a slice beside a list."""
    cuts = {"dims": ["time", "latitude"]}
    want = opened.z.sel(time=["2020-02-28T01", "2020-02-27"], latitude=[10, 60, 10]).transpose("time", "latitude", "level")
    found, index = epoch(path, device, sel={"time": ["2020-02-28T01", "2020-02-27"], "latitude": [10, 60, 10]}, **cuts)
    assert (found == want.values.reshape(6, 4)).all()
    assert index.tolist() == [[25, 10], [25, 0], [25, 10], [0, 10], [0, 0], [0, 10]]
    found, index = epoch(path, device, isel={"latitude": [7, 2]}, sel={"time": "2020-02-28T01"}, **cuts)
    assert (found == opened.z.isel(time=25, latitude=[7, 2]).values.T).all()
    found, index = epoch(path, device, isel={"latitude": [7, 2], "time": slice(3, None, 20)}, **cuts)
    want = opened.z.isel(time=slice(3, None, 20), latitude=[7, 2]).transpose("time", "latitude", "level")
    assert (found == want.values.reshape(-1, 4)).all()


@given(st.data())
def test_windows_start_there(path, opened, data):
    """Windows, strides and offsets go on from each element of a list, along a grid of a slice in the other dimension."""
    draw = data.draw
    times = draw(st.lists(st.integers(0, SHAPE[0] - 1), min_size=1, max_size=6))
    window, other = draw(st.sampled_from([0, 1, 3])), draw(st.sampled_from([0, 2, 4]))
    stride, offsets = draw(st.integers(1, 2)), draw(st.sampled_from([[0], [0, 2], [-3, 1]]))
    spacing, step = draw(st.integers(1, 2)), draw(st.sampled_from([None, 1, 3]))
    pad, first = draw(st.booleans()), draw(st.integers(0, 4))
    rows = np.arange(SHAPE[2])[slice(first, None, spacing)]
    want = []
    for t in times:
        for row in range(0, len(rows), step or max(other, 1)):
            taken = rows[row : row + max(other, 1)]
            at = [[t + offset + stride * i for i in range(max(window, 1))] for offset in offsets]
            inside = all(0 <= one < SHAPE[0] for places in at for one in places) and len(taken) == max(other, 1)
            if not (inside or pad):
                continue
            padded = np.full((len(at), max(window, 1), SHAPE[1], max(other, 1)), -1, VALUES.dtype)
            for i, places in enumerate(at):
                for j, one in enumerate(places):
                    if 0 <= one < SHAPE[0]:
                        padded[i, j, :, : len(taken)] = VALUES[one][:, taken]
            padded = padded if window else padded[:, 0]
            want.append(padded if other else padded[..., 0])
    how: dict[str, Any] = {"window": {"time": window, "latitude": other}, "stride": {"time": stride}, "offsets": offsets}
    how |= {"step": {"latitude": step}} if step else {}
    how |= {"out_of_bounds_policy": "pad", "fill_value": -1} if pad else {}
    try:
        *found, _ = epoch(path, dims=["time", "latitude"], isel={"time": times, "latitude": slice(first, None, spacing)}, **how)
    except ValueError as error:
        assert not want and "there is no sample" in str(error), error
        return
    assert len(found) == len(offsets)
    assert (np.stack(found, 1) == np.array(want)).all()


def test_joined_stores(tmp_path, device):
    """A label is looked up in all stores, and positions count over them."""
    paths = [tmp_path / "0", tmp_path / "1"]
    for i, one in enumerate(paths):
        write(one, VALUES + 10000 * i, first=100 * i)
    both = xr.concat([xr.open_zarr(one, consolidated=False) for one in paths], "time")
    for how in (
        {"sel": {"time": ["2020-03-02T06", "2020-02-27T10", "2020-03-02T05"]}},
        {"sel": {"time": ["2020-03-02T06:10", "2020-03-01"]}, "method": "nearest"}, {"isel": {"time": [99, 3, 50]}},
    ):
        options = {"method": how["method"]} if "method" in how else {}
        want = both.z.sel(how.get("sel", {}), **options).isel(how.get("isel", {}))
        found, _ = epoch(paths, device, **how)
        assert (found == want.values).all()
    found, _ = epoch(paths, device, isel={"time": [48, 10]}, window=[4])
    assert (found == np.stack([both.z.values[48:52], both.z.values[10:14]])).all()
    for kind, how in (
        ("isn't among the coordinates", {"sel": {"time": ["2020-02-27", "2020-03-01"]}}),
        ("concat='samples' contradicts, since labels tell no store", {"isel": {"time": [3, 4]}, "concat": "samples"}),
    ):
        with pytest.raises(ValueError, match=kind):
            dali_zarr.explain(path=paths, arrays="z", **how)
    shutil.rmtree(paths[1] / "time")
    write_array(paths[1], "time", np.arange(50), dims=("time",), attributes=UNITS)
    with pytest.raises(ValueError, match="the coordinates aren't unique; select by position"):
        dali_zarr.explain(path=paths, arrays="z", sel={"time": ["2020-02-27"]})


def test_stores_without_coordinates(tmp_path):
    paths = [tmp_path / "0", tmp_path / "1"]
    for one in paths:
        write_array(one, "z", VALUES, dims=DIMS)
    found, _ = epoch(paths[0], sel={"time": [3, 4]})
    assert (found == VALUES[3:5]).all(), "positions are the labels"
    joined = np.concatenate([VALUES, VALUES])
    for label, chosen in ((slice(3, 60), slice(3, 60)), ([3, 60], [3, 60]), (slice(60, None, 7), slice(60, None, 7)), (51, [51])):
        found, _ = epoch(paths, sel={"time": label})
        assert (found == joined[chosen]).all(), f"{label}: they count on over the border"
    write_array(paths[1], "time", np.arange(50), dims=("time",))
    for label in ([3, 4], slice(3, 4), 3):
        with pytest.raises(ValueError, match="expected coordinates in every store.*select by position, with isel"):
            dali_zarr.explain(path=paths, arrays="z", sel={"time": label})


def test_own_stores(path, tmp_path, device):
    write_array(tmp_path, "label", np.arange(50) * 2, dims=("time",))
    arrays = {"z": str(path / "z"), "label": str(tmp_path / "label")}
    z, label, _ = epoch(None, device, arrays=arrays, sel={"time": ["2020-02-28T03", "2020-02-27T05"]})
    assert (z == VALUES[[27, 5]]).all() and label.tolist() == [54, 10]


def test_the_loader(path):
    """Shuffled: each start once. Labels of samples are those of the list. States go on."""
    pytest.importorskip("torch")
    labels = [f"2020-02-{27 + i % 2}T{i:02}" for i in range(20)]
    how: dict[str, Any] = {"arrays": ["z"], "sel": {"time": labels}, "offsets": {"now": 0, "next": 1}, "batch_size": 3}
    how["device"] = "cpu"
    loader = dali_zarr.torch.Loader(path, random_shuffle=True, **how)
    seen = [batch["now"].coords["time"] for batch in loader]
    assert [len(one) for one in seen] == [3] * 6 + [2]
    assert sorted(np.concatenate(seen)) == sorted(np.array(labels, "M8[ns]"))
    batches = iter(dali_zarr.torch.Loader(path, **how))
    first = next(batches)
    assert (first["now"]["z"].numpy() == VALUES[[0, 25, 2]]).all() and (first["next"]["z"].numpy() == VALUES[[1, 26, 3]]).all()
    taking = dali_zarr.torch.Loader(path, **how)
    next(iter(taking))
    other = dali_zarr.torch.Loader(path, **how)
    other.load_state_dict(taking.state_dict())
    for one, again in zip(batches, other, strict=True):
        assert (one["now"]["z"] == again["now"]["z"]).all()
    with pytest.raises(ValueError, match="reader of other samples: starts"):
        dali_zarr.torch.Loader(path, **how | {"sel": {"time": labels[1:]}}).load_state_dict(taking.state_dict())


def test_explain_and_the_command_line(path, capsys, monkeypatch):
    from dali_zarr.__main__ import main

    sel = {"time": ["2020-02-28T03", "2020-02-27T05"]}
    told = dali_zarr.explain(path=path, arrays="z", sel=sel, window=[3])
    assert (told["samples"], told["starts_from_table"], told["outputs"][0]["shape"]) == (2, True, [3, 4, 12])
    words = ["explain", str(path), "--arrays", "z", "--window", "3", "--json", "--sel", "time=2020-02-28T03,2020-02-27T05"]
    monkeypatch.setattr("sys.argv", ["dali_zarr", *words])
    assert main() == 0
    assert capsys.readouterr().out == dali_zarr.explain(path=path, arrays="z", sel=sel, window=[3], json=True) + "\n"


REFUSED = [
    ({"window": [-1]}, "window -1, all of the region, can't be along it"), ({"step": [2]}, "which step along 'time' contradicts"),
    ({"step": {"time": 2}}, "step along 'time' contradicts"), ({"overlap": [0]}, "overlap along 'time' contradicts"),
    ({"dims": ["time", "latitude"], "step": [1, 2]}, "give step as a dictionary of the other dimensions"),
    ({"random_crop": ["time"]}, "random_crop contradicts"), ({"starts": [3]}, "starts contradicts"),
    ({"samples_per_volume": 2}, "samples_per_volume contradicts"), ({"pad_before": [1]}, "pad_before contradicts"),
    ({"roi_start": [1]}, "roi_start or a selection along dims"), ({"sel": {"time": ["2021-01-01"]}}, "isn't among the coordinates"),
    ({"window": [2], "sel": {"time": ["2020-02-28T03"]}, "isel": {"time": [1]}}, "one of both for each dimension"),
    ({"dims": ["time", "latitude"], "step": {"latitude": 0}}, "step: 'latitude': expected at least 1, but found 0"),
    ({"dims": ["time", "latitude"], "window": [1, 3], "overlap": {"latitude": 3}}, "overlap: 'latitude': expected 0 to 2"),
]


@pytest.mark.parametrize(("how", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(path, how, words):
    how = how if "sel" in how else {"isel": {"time": [3, 8]}} | how
    with pytest.raises(ValueError, match=f"^zarr_reader: .*{words}"):
        dali_zarr.explain(path=path, arrays="z", **how)


def test_more_starts_than_memory(path):
    """All combinations are too many rows: an error, and not the end of the process."""
    times = np.zeros(5_000_000, np.int64)
    with pytest.raises(MemoryError, match="make 25000000000000 samples"):
        dali_zarr.explain(path=path, arrays="z", dims=["time", "latitude"], isel={"time": times, "latitude": times})


def test_rows_that_reach_out(path):
    """Dropped and padded as those of a table of starts."""
    how: dict[str, Any] = {"isel": {"time": [48, 3]}, "window": [4]}
    assert epoch(path, **how)[1].tolist() == [[3]]
    assert epoch(path, **how, out_of_bounds_policy="edge")[1].tolist() == [[48], [3]]
    with pytest.raises(ValueError, match="row 0 starts at 48"):
        epoch(path, **how, out_of_bounds_policy="error")


def test_from_xarray_counts_what_the_dataset_holds(path, opened):
    """Windows of unevenly selected times are windows of the dataset."""
    ds = opened[["z"]].isel(time=[3, 4, 9, 20])
    args = dali_zarr.from_xarray(ds)
    found, _ = epoch(**args)
    assert (found == ds.z.values).all()
    found, _ = epoch(**args, window=[2], step=[1])
    assert (found == np.stack([ds.z.values[i : i + 2] for i in range(3)])).all()


def test_steps_of_some_dimensions_beside_a_selection(path):
    """What a dictionary of steps leaves out has its default."""
    found, index = epoch(
        path, dims=["time", "latitude"], window=[2, 3], step={"latitude": 4}, isel={"time": slice(None, None, 3)},
    )
    assert index.tolist() == [[t, y] for t in range(0, 45, 6) for y in (0, 4, 8)]
    assert (found[4] == VALUES[[6, 9], :, 4:7]).all()
    plain, _ = epoch(path, dims=["time", "latitude"], window=[2, 3], overlap={"latitude": 1}, isel={"time": slice(0, 8)})
    again, _ = epoch(path, dims=["time", "latitude"], window=[2, 3], overlap={"latitude": 1}, roi_end=[8, 12])
    assert (plain == again).all()
