"""sel, isel, splits and from_xarray: what is read is what xarray selects; what can't be expressed is refused."""

from __future__ import annotations

import functools
import shutil

import dali_zarr
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from nvidia.dali import fn
from support.pipelines import read, run_script
from support.stores import Layout, chunk_files, write_array, write_era5
from support.windows import samples

xr = pytest.importorskip("xarray", reason="selection by label needs xarray")

HOURS = 40
LEVELS = [1000, 850, 500, 300, 100]


@pytest.fixture(scope="module", params=[2, 3], ids=["v2", "v3"])
def era5(request, tmp_path_factory):
    """z (time, level, latitude, longitude) and others, with packed latitudes and times of a calendar."""
    path = tmp_path_factory.mktemp("selection") / "era5.zarr"
    write_era5(path, hours=HOURS, zarr_format=request.param)
    time = {"units": "hours since 2020-02-27", "calendar": "noleap" if request.param == 2 else "standard"}
    fill = None if request.param == 2 else 0
    write_array(path, "level", np.array(LEVELS, "int32"), dims=("level",), zarr_format=request.param, fill_value=fill)
    packed = {"scale_factor": 0.25, "add_offset": 10.0}
    write_array(
        path, "latitude", np.arange(12, dtype="int16")[::-1].copy(), dims=("latitude",), attributes=packed,
        zarr_format=request.param, fill_value=-1,
    )
    group = zarr.open_group(path)
    group["time"].attrs.update(time)
    if request.param == 2:
        # xarray takes the fill value for missing: no time is 0.
        group["time"][:] = np.arange(HOURS) + 1
    return path


@functools.cache  # nobody writes to these stores
def opened(path, dask=False):
    return xr.open_zarr(path, consolidated=False, chunks={} if dask else None)


SELECTIONS = [
    {"time": slice("2020-02-27T05", "2020-02-28T03")}, {"time": "2020-02-28"}, {"time": slice(None, None, 7)},
    {"time": slice("2020-02-28", None, 3), "level": [500, 850, 500]}, {"level": 300}, {"level": slice(850, 300)},
    {"level": slice(None, None, -1)}, {"latitude": slice(12.0, 10.5)}, {"latitude": 12.25, "level": 850},
    {"latitude": [11.0, 10.25], "longitude": [3, 0], "time": slice("2020-02-28", "2020-02-28")}, {"longitude": slice(2, 9, 3)},
]


@pytest.mark.parametrize("sel", SELECTIONS, ids=str)
@pytest.mark.parametrize("function", [fn.zarr_reader, dali_zarr.zarr_reader], ids=["fn", "typed"])
def test_values_are_xarrays(era5, sel, function):
    want = opened(era5).z.sel(sel).values
    (found,) = read(era5, sel=sel, function=function)
    assert found.shape == want.shape and (found == want).all()


@pytest.mark.parametrize(
    ("sel", "method", "tolerance"),
    [({"level": 480}, "nearest", None), ({"level": [480, 110]}, "nearest", 30), ({"latitude": 10.9}, "nearest", 0.2),
     ({"level": 480, "time": slice("2020-02-28", None)}, "nearest", None)],
    ids=str,
)
def test_methods(era5, sel, method, tolerance):
    ds, slices = opened(era5).z, {dim: label for dim, label in sel.items() if isinstance(label, slice)}
    others = {dim: label for dim, label in sel.items() if dim not in slices}
    want = ds.sel(slices).sel(others, method=method, tolerance=tolerance).values
    (found,) = read(era5, sel=sel, method=method, tolerance=tolerance)
    assert (found == want).all()


def test_lists_of_text_in_other_calendars(era5):
    """xarray looks dates in text up one by one, and in lists only where the calendar is the usual one."""
    index = opened(era5).indexes["time"]
    labels = ["2020-02-28T01", "2020-02-27T05"]
    if type(index).__name__ == "CFTimeIndex":
        message = r"in lists and with a method dates of this calendar aren't text: write cftime.DatetimeNoLeap\(2020, 2"
        with pytest.raises(ValueError, match=message):
            read(era5, sel={"time": labels})
        labels = [index[24], index[4]]
    (found,) = read(era5, sel={"time": labels})
    assert (found == opened(era5).z.sel(time=labels).values).all()


@pytest.mark.parametrize(
    "isel", [{"time": slice(-10, None)}, {"time": 3}, {"level": [-1, 0], "latitude": slice(None, 5)}, {"longitude": 7}], ids=str,
)
def test_positions(era5, isel):
    want = opened(era5).z.isel(isel).values
    (found,) = read(era5, isel=isel)
    assert (found == (want if want.ndim == found.ndim else want[None])).all()


@given(st.data())
def test_windows_count_selected_elements(written, data):
    """Windows, steps, strides and offsets over a selection with a step are those over what xarray selects."""
    start, spacing = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 4))
    window, stride = data.draw(st.sampled_from([0, 1, 2, 3, -1])), data.draw(st.integers(1, 2))
    offsets, step = data.draw(st.sampled_from([[0], [0, 1], [0, -2], [1]])), data.draw(st.sampled_from([None, 1, 2]))
    selection = slice(start, None, spacing)
    values = np.arange(31)[selection]
    want = samples(values, window, step, stride, offsets)
    how = {"window": [window], "stride": [stride], "offsets": offsets} | ({"step": [step]} if step else {})
    try:
        found = read(written, ["n"], isel={"time": selection}, **how)
    except ValueError as error:
        assert len(want[0]) == 0, error
        return
    assert [f.reshape(len(f), -1).tolist() for f in found] == [w.reshape(len(w), -1).tolist() for w in want]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("windows")
    write_array(path, "n", np.arange(31, dtype="int64"), layout=Layout((4,)), dims=("time",))
    return path


def test_stacks_lose_a_level(era5):
    """With a single level z is a channel as t2m is."""
    (found,) = read(era5, ["t2m", "z"], stack_arrays=True, sel={"level": 500})
    ds = opened(era5, dask=True)
    assert (found == np.stack([ds.t2m.values, ds.z.sel(level=500).values], 1)).all()


def test_a_step_between_windows_of_all_that_is_selected(written):
    """It is the one that is given, beside a selection with a step too."""
    for time in (slice(0, 8), slice(0, 16, 2)):
        how = {"path": written, "arrays": ["n"], "window": [-1], "step": [2], "out_of_bounds_policy": "edge"}
        assert dali_zarr.explain(**how, isel={"time": time})["samples"] == 4


def test_empty_lists_select_nothing(written):
    for args in ({"isel": {"time": []}}, {"isel": {"time": np.array([])}}, {"sel": {"time": []}}):
        with pytest.raises(ValueError, match="expected at least one element, but .* selects none"):
            read(written, arrays=["n"], **args)
    with pytest.raises(ValueError, match=r"train: expected at least one of the 2 segments, but \[\] has none of them"):
        dali_zarr.splits(path=written, arrays=["n"], breaks=[3], by="segments", train=[])


def test_explain_and_the_loader_take_them(era5):
    torch_loader = pytest.importorskip("torch") and dali_zarr.torch.Loader
    sel = {"time": slice("2020-02-28", None, 2), "level": [500, 850]}
    e = dali_zarr.explain(path=era5, arrays="z", sel=sel, offsets=[0, 1])
    assert e["samples"] == opened(era5).z.sel(sel).sizes["time"] - 1 and e["outputs"][0]["shape"] == [2, 12, 20]
    loader = torch_loader(
        era5, arrays=["z"], sel=sel, offsets={"now": 0, "next": 1}, batch_size=9, device="cpu", host_memory_limit="128MiB",
    )
    (batch,) = loader
    want = opened(era5).z.sel(sel)
    assert (batch["next"]["z"].numpy() == want.values[1:]).all()
    assert [str(t) for t in batch["next"].coords["time"]] == [str(t) for t in want.time.values[1:]]


def test_the_command_line(era5, capsys, monkeypatch):
    from dali_zarr.__main__ import main

    words = ["dali_zarr", "explain", str(era5), "--arrays", "z", "--json"]
    sel = ["--sel", "time=2020-02-27T05..2020-02-28T03", "level=480,850", "--method", "nearest"]
    monkeypatch.setattr("sys.argv", [*words, *sel])
    assert main() == 0
    args = {"sel": {"time": slice("2020-02-27T05", "2020-02-28T03"), "level": [480, 850]}, "method": "nearest"}
    assert capsys.readouterr().out == dali_zarr.explain(path=era5, arrays="z", json=True, **args) + "\n"
    monkeypatch.setattr("sys.argv", [*words, "--isel", "time=0..20..2", "level=-1"])
    assert main() == 0
    isel = {"time": slice(0, 20, 2), "level": -1}
    assert capsys.readouterr().out == dali_zarr.explain(path=era5, arrays="z", json=True, isel=isel) + "\n"


@pytest.mark.parametrize(
    ("args", "kind", "words"),
    [
        ({"sel": {"level": 700}}, ValueError, "sel: 'level': 700 isn't among the coordinates: 1000, 850, 500, 300, 100"),
        ({"sel": {"levle": 500}}, ValueError, 'no array has a dimension "levle"; .*did you mean level?'),
        ({"isel": {"time": slice(None, None, -1)}}, ValueError, "the selection goes backwards"),
        ({"isel": {"time": 3}, "window": [2]}, ValueError, "a single element has no windows"),
        ({"sel": {"time": slice("1999", "2000")}}, ValueError, "expected at least one element, but"),
        ({"sel": {"level": 500}, "isel": {"level": 1}}, ValueError, "one of both for each dimension, but found two for 'level'"),
        ({"sel": {"level": 500}, "pick": {"level": [1]}}, ValueError, "'level': expected pick or a selection, but found sel too"),
        ({"isel": {"level": slice(None)}, "pick": "level=4,3,2,1,0"}, ValueError, "'level': expected pick or a selection"),
        ({"sel": {"level": [500]}, "pick": ["1=4,3,2,1,0"]}, ValueError, "'level': expected pick or a selection"),
        ({"sel": {"level": 500}, "pick": {1: np.arange(5)}}, ValueError, "'level': expected pick or a selection"),
        ({"sel": {"time": slice("2020-02-28", None)}, "pick": {"time": range(39, -1, -1)}}, ValueError, "'time': expected pick"),
        ({"sel": {"time": slice(None)}, "roi_start": [2]}, ValueError, "expected roi_start or a selection"),
        ({"isel": {"level": 9}}, IndexError, "index 9 is out of bounds"),
        ({"isel": {"level": 1.5}}, TypeError, "expected integers, a slice or bools, but found 1.5"),
        ({"isel": {"level": ["1"]}}, TypeError, r"expected integers, a slice or bools, but found \['1'\]"),
        ({"isel": {"level": [1, None]}}, TypeError, r"expected integers, a slice or bools, but found \[1, None\]"),
        ({"sel": [500]}, TypeError, "expected a dictionary from dimensions to labels"),
        ({"method": "nearest"}, ValueError, "method: expected labels in sel that aren't slices"),
        ({"sel": {"level": 500}, "tolerance": 1}, ValueError, "tolerance: expected a method too"),
        ({"sel": {"level": 480}, "method": "closest"}, ValueError, "can't be looked up"),
    ],
    ids=str,
)
def test_what_is_refused(era5, args, kind, words):
    with pytest.raises(kind, match=f"^zarr_reader: .*{words}"):
        dali_zarr.explain(path=era5, arrays=["z"], **args)


def test_nothing_is_imported_for_positions(era5):
    out = run_script(
        "import sys, dali_zarr\n"
        "dali_zarr.explain(path=sys.argv[1], arrays=['z'], isel={'time': slice(5), 'level': [0]})\n"
        "print('xarray' in sys.modules, 'zarr' in sys.modules, 'cftime' in sys.modules)", str(era5), imports="nothing",
    )
    assert out.split() == ["False", "False", "False"]


def test_only_coordinates_are_read(era5, tmp_path):
    path = shutil.copytree(era5, tmp_path / "copy")
    for file in chunk_files(path, "z"):
        file.unlink()
    sel = {"time": slice("2020-02-28", None), "level": 500}
    with_data, without = (dali_zarr.explain(path=p, arrays=["z"], sel=sel)["samples"] for p in (era5, path))
    assert with_data == without


# Splits, and datasets of xarray.


def test_splits(era5):
    parts = dali_zarr.splits(
        path=era5, arrays=["z"], sel={"level": 500}, random_shuffle=True, offsets=[0, 1],
        train=slice(None, "2020-02-27T20"), validation=slice("2020-02-27T21", "2020-02-28T05"), test=slice("2020-02-28T06", None),
    )
    assert list(parts) == ["train", "validation", "test"]
    assert [part.get("random_shuffle") for part in parts.values()] == [True, False, False]
    ds = opened(era5, dask=True).z.sel(level=500)
    sizes = [dali_zarr.explain(**part)["samples"] for part in parts.values()]
    assert sizes == [ds.sel(time=part["sel"]["time"]).sizes["time"] - 1 for part in parts.values()]
    assert sum(sizes) == HOURS - 3, "no sample reaches from one part into another"
    with pytest.raises(ValueError, match="train and test share 4"):
        dali_zarr.splits(path=era5, arrays=["z"], train=slice(None, "2020-02-28T03"), test=slice("2020-02-28T00", None))
    with pytest.raises(ValueError, match="at least one of train"):
        dali_zarr.splits(path=era5, arrays=["z"])
    with pytest.raises(ValueError, match="found them in sel too"):
        dali_zarr.splits(path=era5, arrays=["z"], sel={"time": slice(None)}, train="2020-02-27")


@pytest.mark.parametrize("sel", [s for s in SELECTIONS if "longitude" not in s and s.get("level") != [500, 850, 500]], ids=str)
def test_from_xarray(era5, sel):
    ds = opened(era5, dask=True)[["z"]].sel(sel)
    args = dali_zarr.from_xarray(ds)
    assert args["path"] == str(era5) and args["arrays"] == ["z"]
    (found,) = read(**args)
    assert (found == ds.z.values).all()


def test_what_from_xarray_refuses(era5):
    ds = opened(era5, dask=True)[["z"]]
    with pytest.raises(ValueError, match="'z' isn't as it was opened"):
        dali_zarr.from_xarray(ds.isel(time=slice(3)) * 2, path=era5)
    with pytest.raises(ValueError, match="'longitude' has no coordinates, so it can't be told which 3 of 20"):
        dali_zarr.from_xarray(ds.isel(longitude=slice(3)))
    with pytest.raises(ValueError, match="expected at least one element along 'time', but the dataset has none"):
        dali_zarr.from_xarray(ds.sel(time=slice("1900", "1901")))
    with pytest.raises(ValueError, match="doesn't tell its store"):
        dali_zarr.from_xarray(ds.persist())
    with pytest.raises(ValueError, match="the dataset's 'level' has 1, which isn't a coordinate of the store"):
        dali_zarr.from_xarray(ds.assign_coords(level=[1, 2, 3, 4, 5]))


CHANGES = {
    "permuted": lambda ds: ds.isel(longitude=[*range(1, 20), 0]),
    "reversed": lambda ds: ds.isel(longitude=slice(None, None, -1)),
    "rolled": lambda ds: ds.roll(longitude=3),
    "rolled beside its coordinates": lambda ds: ds.roll(time=3),
    "shifted": lambda ds: ds.shift(level=1, fill_value=0),
    "without coordinates": lambda ds: ds.drop_vars("latitude").isel(latitude=slice(None, None, -1)),
    "relabelled": lambda ds: ds.assign_coords(level=ds.level.values[::-1]),
    "transposed": lambda ds: ds.transpose("longitude", "latitude", ...),
    "expanded": lambda ds: ds.expand_dims("member"),
    "one by one": lambda ds: ds.isel(level=xr.DataArray([0, 1], dims="p"), latitude=xr.DataArray([0, 1], dims="p")),
    "filled": lambda ds: ds.where(ds.z > ds.z.mean(), 1.0),
}


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_datasets_are_refused(era5, change, chunks):
    if chunks is not None:
        pytest.importorskip("dask")
    ds = xr.open_zarr(era5, consolidated=False, chunks=chunks)
    ds = CHANGES[change](ds[["z"]])
    with pytest.raises(ValueError, match="^dali_zarr: from_xarray: "):
        dali_zarr.from_xarray(ds, path=era5)


@pytest.mark.parametrize("sel", [{}, {"time": slice("2020-02-28", None, 3), "level": [500, 850]}, {"level": 300}], ids=str)
def test_from_xarray_without_dask(era5, sel):
    ds = xr.open_zarr(era5, consolidated=False, chunks=None)[["z"]].isel(time=slice(1, None)).sel(sel)
    (found,) = read(**dali_zarr.from_xarray(ds))
    assert (found == ds.z.values).all()


def test_from_xarray_decodes(tmp_path):
    values = np.arange(12, dtype="int16").reshape(4, 3)
    write_array(tmp_path, "a", values, dims=("t", "x"), attributes={"scale_factor": 0.5, "_FillValue": 7} | {"_FillValue": 7})
    ds = opened(tmp_path, dask=True)
    args = dali_zarr.from_xarray(ds)
    assert args == {"path": str(tmp_path), "arrays": ["a"], "mask_and_scale": True}
    np.testing.assert_array_equal(read(**args)[0], ds.a.values)


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    """Robot's demonstrations one after the other, and where each ends."""
    path = tmp_path_factory.mktemp("splits") / "pusht.zarr"
    ends = np.cumsum([4, 7, 3, 9, 5, 2])
    write_array(path, "data/action", np.arange(ends[-1]), layout=Layout((8,)))
    write_array(path, "meta/episode_ends", ends)
    return path


PARTS = [
    {"train": slice(0, 3), "validation": slice(3, None)}, {"train": slice(None, -2), "validation": [5], "test": [-2]},
    {"train": np.arange(6) % 3 > 0, "test": np.arange(6) % 3 == 0}, {"train": [4, 0], "validation": 2},
]


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_splits_by_episodes(episodes, parts):
    """Each sample's window lies in an episode of its part, and all of them are there."""
    ends = np.cumsum([4, 7, 3, 9, 5, 2])
    found = dali_zarr.splits(
        path=episodes, arrays="data/action", breaks="meta/episode_ends", window=[2], step=[1], random_shuffle=True, **parts
    )
    assert list(found) == list(parts)
    assert [one.get("random_shuffle") for one in found.values()] == [name == "train" for name in parts]
    for name, arguments in found.items():
        chosen = sorted(np.atleast_1d(np.arange(6)[parts[name]]).tolist())
        want = [[i, i + 1] for e in chosen for i in range(([0, *ends])[e], ends[e] - 1)]
        (values,) = read(**arguments | {"arrays": ["data/action"]})
        assert sorted(values.tolist()) == want


def test_what_splits_by_episodes_refuse(episodes, era5):
    how = {"path": episodes, "arrays": "data/action", "breaks": "meta/episode_ends"}
    for kind, words, parts in (
        (ValueError, "train and test share 2", {"train": slice(0, 4), "test": [2, 3]}),
        (ValueError, r"validation: expected at least one of the 6 segments, but slice\(6, None, None\) has none",
         {"train": slice(0, 6), "validation": slice(6, None)}),
        (IndexError, "splits: 'train': index 6 is out of bounds", {"train": [6]}),
        (IndexError, "splits: 'train': boolean index did not match", {"train": [True, False]}),
        (TypeError, "splits: 'train': expected integers, a slice or bools, but found '2016'", {"train": "2016"}),
        (ValueError, "found segments too; leave it out", {"train": [1], "segments": [1]}),
        (ValueError, "by: expected 'labels', 'segments' or 'rows', but found 'episodes'", {"train": [1], "by": "episodes"}),
        (ValueError, "by: expected breaks, between which", {"train": [1], "by": "segments", "breaks": None}),
    ):
        with pytest.raises(kind, match=words):
            dali_zarr.splits(**how | parts)
    # Breaks that are elements leave labels what they are, unless they are asked for.
    sel = dali_zarr.splits(path=era5, arrays=["z"], breaks=[10], train="2020-02-27")["train"]["sel"]
    assert sel == {"time": "2020-02-27"}
    assert dali_zarr.splits(path=era5, arrays=["z"], breaks=[10, 20], by="segments", train=[0, 2])["train"]["segments"] == [0, 2]
    sel = dali_zarr.splits(**how, by="labels", train=slice(0, 9))["train"]["sel"]
    assert sel == {"dim_0": slice(0, 9)}


def test_splits_of_lists_share_no_element(written):
    """Samples go on from each element of a list, so parts are compared by all that they read."""
    how = {"path": written, "arrays": ["n"], "train": [5, 9]}
    parts = dali_zarr.splits(**how, validation=[7], window=[2])
    assert [dali_zarr.explain(**one)["samples"] for one in parts.values()] == [2, 1]
    for more in ({"window": [3]}, {"offsets": {"now": 0, "next": 2}}, {"window": [2], "stride": [2]}):
        with pytest.raises(ValueError, match="without common elements along 'time', but train and validation share"):
            dali_zarr.splits(**how, validation=[7], **more)
    how |= {"arrays": {"few": "n", "many": "n"}, "train": [0]}
    windows = {"window": {"few": {"time": 2}, "many": {"time": 3}}, "stride": {"few": {"time": 4}, "many": {"time": 1}}}
    assert list(dali_zarr.splits(**how, **windows, validation=[5])) == ["train", "validation"]
    with pytest.raises(ValueError, match="train and validation share 1"):
        dali_zarr.splits(**how, **windows, validation=[3])


def test_splits_of_stores_with_samples_of_their_own(tmp_path):
    """A label may be in several; parts are compared store by store."""
    paths = [tmp_path / name for name in "01"]
    for i, path in enumerate(paths):
        write_array(path, "n", np.arange(6) + 10 * i, dims=("time",))
        write_array(path, "time", np.arange(6), dims=("time",))
    parts = dali_zarr.splits(path=paths, arrays=["n"], concat="samples", train=slice(0, 3), validation=4)
    (found,) = read(**parts["validation"])
    assert found.tolist() == [4, 14]
    with pytest.raises(ValueError, match="train and validation share 2"):
        dali_zarr.splits(path=paths, arrays=["n"], concat="samples", train=slice(0, 4), validation=4)


def test_splits_along_the_first_dimension_that_windows_name(tmp_path):
    write_array(tmp_path, "n", np.arange(12).reshape(4, 3), dims=("time", "lat"))
    write_array(tmp_path, "lat", np.array([30, 20, 10]), dims=("lat",))
    parts = dali_zarr.splits(path=tmp_path, arrays=["n"], window={"lat": 1, "time": 2}, train=slice(30, 20), validation=10)
    assert [part["sel"] for part in parts.values()] == [{"lat": slice(30, 20)}, {"lat": 10}]
