"""Labels in `pick`: decoded coordinates as xarray's `sel` takes them, looked up in each store."""

from __future__ import annotations

import base64
import struct
import tempfile
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
import xarray
from hypothesis import assume, given
from hypothesis import strategies as st
from support.pipelines import batches, build, check, same, to_numpy
from support.stores import CODECS_V2, CODECS_V3, Layout, write_array, write_era5

KINDS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float32", "float64")


def _decoded(path: str | Path) -> xarray.Dataset:
    """A store as xarray decodes it, times excepted, with the number of each level."""
    with xarray.open_zarr(path, consolidated=False, decode_times=False) as ds:
        return ds.load().assign(number=("level", np.arange(ds.sizes["level"])))


@st.composite
def coordinates(draw: st.DrawFn) -> dict[str, Any]:
    """Coordinates as they may be stored: packed, with missing ones, unsigned in signed, in either byte order."""
    dtype, zarr_format = draw(st.sampled_from(KINDS)), draw(st.sampled_from([2, 3]))
    is_float = dtype.startswith("float")
    info = np.finfo(dtype) if is_float else np.iinfo(dtype)
    low, high = max(int(info.min), -2000), min(int(info.max), 2000)
    stored = draw(st.lists(st.integers(low, high), min_size=1, max_size=12))
    values = np.array(stored, dtype) / (np.array(8, dtype) if is_float else 1)
    attributes: dict[str, Any] = {}
    if draw(st.booleans()):
        attributes["scale_factor"] = draw(st.sampled_from([0.1, 10.0, -0.25, 0.01]))
    if draw(st.booleans()):
        attributes["add_offset"] = draw(st.sampled_from([0.5, -273.15, 100.0]))
    fill = draw(st.sampled_from([0, stored[0], low, high]))
    if draw(st.booleans()):
        if zarr_format == 2:
            attributes["missing_value"] = stored[-1]
        else:
            encoded = base64.standard_b64encode(struct.pack("<d", float(fill))).decode()
            attributes["_FillValue"] = encoded if is_float else fill
    if not is_float and draw(st.booleans()):
        attributes["_Unsigned"] = draw(st.sampled_from(["true", "false"]))
    return {
        "values": values.astype(dtype), "zarr_format": zarr_format, "attributes": attributes, "fill_value": fill,
        "layout": Layout((draw(st.integers(1, 5)),), big_endian=draw(st.booleans())),
        "codec": draw(st.sampled_from(sorted(CODECS_V2 if zarr_format == 2 else CODECS_V3))),
    }


@given(data=st.data())
@pytest.mark.filterwarnings("ignore")
def test_random_coordinates(device, data):
    """Each label that means one element takes the element that xarray takes; others are refused."""
    level = data.draw(coordinates())
    # xarray views the fill value of such data in the wrong byte order.
    assume(not (level["zarr_format"] == 2 and level["layout"].big_endian and "_Unsigned" in level["attributes"]))
    count = len(level["values"])
    with tempfile.TemporaryDirectory() as path:
        z = np.arange(1, 1 + 3 * count, dtype="float32").reshape(3, count)
        write_array(path, "z", z, zarr_format=level["zarr_format"], dims=("time", "level"), layout=Layout((2, 2)))
        write_array(path, "level", dims=("level",), **level)
        args = {"path": path, "arrays": ["z"], "mask_and_scale": data.draw(st.booleans())}
        try:
            ds = _decoded(path)
        except Exception:  # what xarray can't decode, of which there is little
            assume(False)
        values = ds["level"].values
        assume(values.dtype.kind in "iuf")
        times = [int((values == v).sum()) for v in values]
        # Integers beyond 2^53 have no float of their own.
        clear = [float(v) for v, n in zip(values, times) if n == 1 and abs(float(v)) <= 2**53]
        if clear:
            labels = data.draw(st.lists(st.sampled_from(clear), min_size=1, max_size=5))
            wanted = [int(ds["number"].sel(level=label)) for label in labels]
            same(to_numpy(build(device, 3, pick={"level": labels}, **args).run()[0]), z[:, wanted], f"{labels} of {values}")
        for v, n in zip(values, times):
            if n != 1:
                with pytest.raises(ValueError, match=r"zarr_reader: pick: .* of dimension \"level\""):
                    build(device, 3, pick={"level": [float(v)]}, **args)
        absent = 12345.678
        with pytest.raises(ValueError, match=r"12345\.678 isn't a coordinate of dimension \"level\" in store"):
            build(device, 3, pick={"level": [*clear[:1], absent]}, **args)


LEVELS = {"1.zarr": [1000, 850, 500, 250], "2.zarr": [250, 1000, 500, 850], "3.zarr": [500, 100, 1000, 250, 850]}


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """Three stores that continue one another, with the same levels elsewhere: in three orders and types, one packed."""
    base, start = tmp_path_factory.mktemp("joined"), 0
    for (name, levels), hours in zip(LEVELS.items(), (5, 4, 6)):
        path, n = base / name, len(levels)
        t = np.arange(start, start + hours, dtype="float32")
        # A value tells its level and its hour.
        z = np.array(levels, "float32")[None, :, None, None] * 100 + t[:, None, None, None] + np.zeros((1, 1, 3, 4), "float32")
        write_array(path, "z", z, dims=("time", "level", "lat", "lon"), layout=Layout((2, 2, 3, 2)), codec="blosc-lz4-shuffle")
        write_array(path, "t2m", -z[:, 0], dims=("time", "lat", "lon"), layout=Layout((3, 3, 4)))
        write_array(path, "profile", np.array(levels, "float32"), dims=("level",))
        write_array(path, "time", t.astype("float64"), dims=("time",), layout=Layout((4,)))
        if name == "2.zarr":
            stored, packing = np.array(levels, "int16") // 10, {"scale_factor": 10.0}
        else:
            stored, packing = np.array(levels, "float64" if n == 4 else "int32"), {}
        write_array(path, "level", stored, dims=("level",), attributes=packing, layout=Layout((3,)))
        start += hours
    return [base / name for name in LEVELS]


def _samples(hours: np.ndarray, labels: list[float]) -> np.ndarray:
    """z at these hours and levels."""
    return np.broadcast_to(
        (hours[:, None] + 100 * np.array(labels))[..., None, None].astype("float32"), (len(hours), len(labels), 3, 4)
    )


@pytest.mark.parametrize("labels", [[1000.0], [850.0, 1000.0], [250.0, 500.0, 500.0]])
@pytest.mark.parametrize("dims", [None, ["time"]])
def test_each_store_is_read_at_its_own_levels(joined, device, labels, dims):
    """In order, and where `dims` isn't named."""
    args = {"dims": dims} if dims else {}
    pipe = build(device, 15, path=joined, arrays=["z"], pick={"level": labels}, **args)
    same(to_numpy(pipe.run()[0]), _samples(np.arange(15), labels), "z")


@pytest.mark.parametrize("stack", [False, True])
def test_shuffled_and_resumed(joined, device, stack):
    """Windows across stores, stacked or not, shuffled: every sample holds its hours' levels, also after a checkpoint."""
    args = {
        "path": joined, "arrays": ["z", "t2m"], "pick": {"level": [500.0, 1000.0]}, "window": [2], "step": [1],
        "offsets": [0, 1], "stack_arrays": stack, "random_shuffle": True, "initial_fill": 4, "seed": 5, "return_index": True,
        "checkpointing": True,
    }
    pipe = build(device, 4, **args)
    seen, kept = [], []
    for at in range(9):
        if at == 4:
            checkpoint = pipe.checkpoint()
        batch = [to_numpy(out) for out in pipe.run()]
        kept.append(batch)
        start = batch[-1][:, 0]
        seen += start.tolist()
        for offset in (0, 1):
            group = batch[offset : offset + 1] if stack else batch[2 * offset : 2 * offset + 1]
            for hour in (0, 1):
                field = group[0][:, :2, hour] if stack else group[0][:, hour]
                same(np.ascontiguousarray(field), _samples(start + offset + hour, [500.0, 1000.0]), f"batch {at}")
    assert sorted(seen[:13]) == list(range(13))
    again = build(device, 4, checkpoint=checkpoint, **args)
    for batch in kept[4:]:
        for out, expected in zip(again.run(), batch, strict=True):
            same(to_numpy(out), expected, "resumed")
    with pytest.raises(ValueError, match=r"array 'z': shape: .* in the checkpoint"):
        build(device, 4, checkpoint=checkpoint, **args | {"pick": ["level=2,0|2,0|2,0"]})


@pytest.mark.parametrize(
    "args",
    [
        {}, {"stack_arrays": True, "dtype": "float32"}, {"dims": ["time", "level"], "window": [3, 2], "step": [1, 1]},
        {"dims": ["time", "level"], "window": [0, 0], "cross_stores": False}, {"window": [4], "out_of_bounds_policy": "pad"},
        {"offsets": [-2, 3]}, {"dims": ["0", "1"], "window": [2, -1]},
    ],
    ids=str,
)
def test_a_list_of_indices_for_each_store(joined, device, args):
    """Under arguments of all kinds; stores may have different numbers of levels. A dictionary says the same."""
    args = {"path": joined, "arrays": ["z", "t2m", "profile", "time"]} | args
    check(device, 2, pick=["level=0,3,-1|-3,0,2|2,2,4"], **args)
    args["path"] = [str(path) for path in joined]
    told = dali_zarr.explain(pick=["level=0,3,-1|-3,0,2|2,2,4"], **args)
    assert told == dali_zarr.explain(pick={"level": [[0, 3, -1], (-3, 0, 2), np.array([2, 2, 4])]}, **args)


def test_stores_joined_along_levels(joined, device):
    """Then it is the times that each store may have elsewhere."""
    args = {"path": joined[:2], "arrays": ["z"], "dims": ["level"], "window": [3], "step": [1]}
    check(device, 2, pick=["time=0,3,-1|-3,0,2"], **args)
    pipe = build(device, 5, pick={"level": [250.0, 850.0]}, **args | {"path": joined[:1], "window": [2]})
    assert to_numpy(pipe.run()[0])[0, 0, :, 0, 0].tolist() == [25000, 85000]


def test_random_crops_of_what_each_store_picks(joined, device):
    args = {"dims": ["time", "level"], "window": [0, 0], "random_crop": ["level"], "return_index": True}
    z, index = next(batches(build(device, 15, path=joined, arrays=["z"], pick=["level=0,3|1,0|3,4"], **args)))
    levels = np.array([[1000, 250], [1000, 250], [250, 850]])
    wanted = levels[np.searchsorted([5, 9], index[:, 0], "right"), index[:, 1]] * 100 + index[:, 0]
    assert z[:, 0, 0].tolist() == wanted.tolist() and set(index[:, 1]) == {0, 1}


def test_a_label_that_a_store_lacks(joined, device):
    with pytest.raises(ValueError, match=r"100\.0 isn't a coordinate of dimension \"level\" in store .*1\.zarr: 1000\.0, 850"):
        build(device, 1, path=joined, arrays=["z"], pick={"level": [100.0]})
    with pytest.raises(ValueError, match=r"100\.0 isn't .* in store .*2\.zarr: 250\.0, 1000\.0, 500\.0, 850\.0"):
        build(device, 1, path=[joined[2], joined[1]], arrays=["z"], pick={"level": [100.0]})


def test_labels_along_the_joined_dimension(joined, device):
    """They are looked up in all stores together, as stores are joined."""
    pipe = build(device, 3, path=joined, arrays=["t2m", "time"], pick={"time": [13.0, 0.0, 6.0]})
    assert to_numpy(pipe.run()[1]).tolist() == [13, 0, 6]
    both = {"path": [joined[0], joined[0]], "arrays": ["t2m"]}
    with pytest.raises(ValueError, match=r"1\.0 is the coordinate of 2 elements of dimension \"time\" in the 2 stores"):
        build(device, 3, pick={"time": [1.0]}, **both)
    with pytest.raises(ValueError, match='pick: stores are joined along "time", so that its indices count over all of them'):
        build(device, 3, pick=["time=1|2"], **both)


@pytest.mark.parametrize(
    ("pick", "kind", "words"),
    [
        (["level=0|1"], ValueError, r"one for each store of path \(3\), but found 2"),
        (["level=0|1,2|3"], ValueError, "as many indices of \"level\" for each store, but found 1 and 2"),
        (["level=0|4|4"], IndexError, r"index 4 is outside dimension \"level\" of array 'z' in store .*2\.zarr, .* length 4"),
        (["level=0|0|-6"], IndexError, r"index -6 .* in store .*3\.zarr, which has length 5"),
        (["level=0,1"], ValueError, "has length 4 along \"level\" in .*1.zarr and 5 in .*3.zarr"),
        (["level=0|1|"], ValueError, "pick: expected \"DIMENSION="),
        ({"level": [[0], [1], ["2"]]}, TypeError, "pick: 'level': expected whole numbers"),
        ({"level": [[0], 1, 2]}, TypeError, "pick: 'level': expected whole numbers"),
        ({"level": [[0.5], [1.0], [2.0]]}, TypeError, "pick: 'level': expected whole numbers"),
    ],
    ids=str,
)
def test_lists_that_do_not_fit(joined, device, pick, kind, words):
    with pytest.raises(kind, match=words):
        build(device, 1, path=joined, arrays=["z"], pick=pick)


def test_explain_counts_the_chunks_of_each_store(tmp_path):
    """What a sample takes depends on where its levels lie in its store."""
    for name in "ab":
        write_era5(tmp_path / name, hours=4, levels=6)
    one, two = ([0, 1, 2], [0, 1, 5])
    args = {"path": [str(tmp_path / name) for name in "ab"], "arrays": ["z"]}
    for first, second, chunks in [(one, one, 1), (one, two, 1.5), (two, one, 1.5), (two, two, 2)]:
        told = dali_zarr.explain(**args, pick={"level": [first, second]})
        assert told["arrays"][0]["chunks_per_sample"] == chunks
        assert told["reads"]["in_order"]["chunks"] == 8 * chunks
