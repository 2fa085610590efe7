"""A mean and a stddev for each element along a dimension of one array, against NumPy in float64, and from files of statistics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dali_zarr
import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from support.oracle import cast
from support.pipelines import batches, build, same, settled, to_numpy
from support.stores import Layout, write_array

N = 20
# Names, dimensions and shapes beside the first dimension: boxes that are small, and those of which a channel is large.
FIELDS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "action": (("t", "k"), (N, 7)),
    "image": (("t", "y", "x", "rgb"), (N, 40, 36, 3)),
    "cells": (("t", "c", "y", "x"), (N, 2, 48, 50)),
    "level": (("t", "level", "lat", "lon"), (N, 5, 6, 8)),
    "genes": (("t", "gene"), (N, 900)),
}
CHANNEL = {"action": 1, "image": 3, "cells": 1, "level": 1, "genes": 1}


def numbers(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(-100, 100, count), rng.uniform(0.1, 40, count)


def by_output(given: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
    return {"mean": {o: mean for o, (mean, _) in given.items()}, "stddev": {o: stddev for o, (_, stddev) in given.items()}}


def along(values: np.ndarray, d: int, ndim: int) -> np.ndarray:
    return values.reshape([-1 if i == d else 1 for i in range(ndim)])


def normalised(values: np.ndarray, d: int, mean: Any, stddev: Any, dtype: str = "float32") -> np.ndarray:
    """By NumPy: ``d`` is the dimension of the channels."""
    mean, stddev = (along(np.asarray(one, "f8"), d, values.ndim) if np.ndim(one) else one for one in (mean, stddev))
    return cast((values.astype("f8") - mean) / stddev, dtype)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """All of FIELDS, each in a type and chunks of its own."""
    path = tmp_path_factory.mktemp("channels") / "s"
    rng = np.random.default_rng(3)
    types = {"action": "float64", "image": "uint8", "cells": "uint16", "level": "float32", "genes": "float32"}
    chunks = {"action": (6, 4), "image": (3, 17, 20, 3), "cells": (2, 1, 48, 50), "level": (4, 2, 6, 8), "genes": (5, 900)}
    written = {}
    for name, (dims, shape) in FIELDS.items():
        written[name] = (rng.normal(size=shape) * 50 + 100).clip(0, 255).astype(types[name])
        write_array(path, name, written[name], layout=Layout(chunks[name]), dims=dims)
    return path, written


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("how", ["by length", "by name", "by position", "by output"])
def test_against_numpy(store, device, name, how):
    path, written = store
    d, dims = CHANNEL[name], FIELDS[name][0]
    mean, stddev = numbers(written[name].shape[d])
    position = d - len(dims)
    told: dict[str, dict[str, Any]] = {
        "by length": {}, "by name": {"channels": dims[d]}, "by position": {"channels": position},
        "by output": {"channels": {name: [str(position)]}},
    }
    pipe = build(device, 4, path=path, arrays=[name], mean=mean, stddev=list(stddev), **told[how])
    for start, (found,) in zip(range(0, N, 4), batches(pipe), strict=False):
        same(found, normalised(written[name][start : start + 4], d, mean, stddev), f"{name} from {start}")


@pytest.mark.parametrize("dtype", ["float16", "float64", "int16", "uint8"])
def test_types(store, device, dtype):
    path, written = store
    arrays = ["action", "image", "cells"]
    given = {name: numbers(written[name].shape[CHANNEL[name]]) for name in arrays}
    pipe = build(
        device, N, path=path, arrays=arrays, dtype=dtype, **by_output(given),
    )
    for name, found in zip(arrays, next(batches(pipe)), strict=True):
        same(found, normalised(written[name], CHANNEL[name], *given[name], dtype=dtype), name)


def test_beside_other_outputs(store, device):
    """One number for some, several for others, none for the rest; in windows, in the order of a shuffle."""
    path, written = store
    mean, _ = numbers(7)
    pipe = build(
        device, 3, path=path, arrays=["action", "image", "genes"], window={"action": {"t": 4}, "genes": {"t": 2}}, step={"t": 1},
        mean={"action": mean, "image": 127.5}, stddev={"action": 2.5}, return_index=True, random_shuffle=True, initial_fill=5,
    )
    seen = set()
    for _, (action, image, genes, index) in zip(range(6), batches(pipe), strict=False):
        for i, (start,) in enumerate(index.tolist()):
            seen.add(start)
            same(action[i], normalised(written["action"][start : start + 4], 1, mean, 2.5), f"action at {start}")
            same(image[i], cast(written["image"][start].astype("f8") - 127.5, "float32"), f"image at {start}")
            same(genes[i], written["genes"][start : start + 2], f"genes at {start}")
    assert len(seen) == N - 3


def test_several_dimensions(store, device):
    path, written = store
    mean, stddev = (one.reshape(5, 6) for one in numbers(30))
    pipe = build(
        device, N, path=path, arrays=["level"], channels=["lat", "level"], mean=mean.ravel(), stddev={"level": stddev.ravel()},
    )
    expected = (written["level"].astype("f8") - mean[..., None]) / stddev[..., None]
    same(next(batches(pipe))[0], expected.astype("f4"), "in the order of the array's dimensions")


@pytest.mark.parametrize(
    "selection", [{"sel": {"level": [3, 0, 4]}}, {"isel": {"level": slice(1, 5, 2)}}, {"pick": {"level": [4, 4, 1]}}],
)
def test_numbers_are_for_the_selected_elements(store, device, selection):
    path, written = store
    places = list(np.arange(5)[next(iter(selection.values()))["level"]])
    mean, stddev = numbers(len(places))
    pipe = build(device, N, path=path, arrays=["level"], channels="level", mean=mean, stddev=stddev, **selection)
    same(next(batches(pipe))[0], normalised(written["level"][:, places], 1, mean, stddev), "selected")


@pytest.mark.parametrize("policy", ["drop", "pad", "edge"])
@pytest.mark.parametrize("window", [0, 1, 3])
def test_samples_cut_along_the_channels(store, device, policy, window):
    """There a number belongs to an element of the whole dimension, wherever a window begins."""
    path, written = store
    mean, stddev = numbers(5)
    whole = normalised(written["level"], 1, mean, stddev)
    pipe = build(
        device, 6, path=path, arrays=["level"], dims=["t", "level"], window=[0, window], step=[1, 1], roi_start=[0, 1],
        channels="level", mean=mean, stddev=stddev, out_of_bounds_policy=policy, fill_value=-7.0, return_index=True,
    )
    for _, (found, index) in zip(range(12), batches(pipe), strict=False):
        for sample, (t, start) in zip(found, index.tolist(), strict=True):
            at = start + np.arange(max(window, 1))
            expected = whole[t, at.clip(1, 4)]
            if policy == "pad":
                expected[at > 4] = -7.0
            same(sample, expected[0] if window == 0 else expected, f"{t}, {start}")


def test_offsets_strides_and_stores(tmp_path, device):
    """Joined stores, of which one has missing chunks, and samples of one store after the other."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 6, 3)).astype("f4") for n in (9, 7)]
    for i, part in enumerate(parts):
        array = zarr.create_array(
            tmp_path / str(i) / "a", shape=part.shape, chunks=(4, 4, 2), dtype="f4", dimension_names=("t", "y", "c"),
            fill_value=5.5,
        )
        array[: 4 + i] = part[: 4 + i]
        part[4 + i :] = 5.5
    paths, (mean, stddev) = [tmp_path / "0", tmp_path / "1"], numbers(3)
    expected = normalised(np.concatenate(parts), 2, mean, stddev)
    args: dict[str, Any] = {"path": paths, "arrays": ["a"], "mean": mean, "stddev": stddev}
    pipe = build(device, 1, window=[3], stride=[2], step=[1], offsets=[0, 2], **args)
    for start, found in zip(range(16 - 6), batches(pipe), strict=False):
        for offset, one in zip((0, 2), found, strict=True):
            same(one[0], expected[start + offset : start + offset + 5 : 2], f"{start} {offset}")
    apart = build(device, 4, concat="samples", **args)
    found = np.concatenate([batch[0] for _, batch in zip(range(4), batches(apart), strict=False)])
    same(found, expected, "one store after the other")


@pytest.mark.parametrize("fillna", [None, 280.0])
def test_packed_data(tmp_path, device, fillna):
    """Numbers are of decoded values, after fillna."""
    rng = np.random.default_rng(1)
    stored = rng.integers(0, 1000, (8, 4, 5, 3)).astype("int16")
    stored[rng.random(stored.shape) < 0.2] = 7
    attributes = {"scale_factor": 0.01, "add_offset": 273.15, "missing_value": 7}
    write_array(tmp_path, "a", stored, layout=Layout((3, 4, 5, 2)), dims=("t", "y", "x", "c"), attributes=attributes)
    values = np.where(stored == 7, np.nan, stored * 0.01 + 273.15)
    filled = values if fillna is None else np.where(np.isnan(values), fillna, values)
    mean, stddev = np.array([270.0, 275, 280]), np.array([2.0, 3, 4])
    given: dict[str, Any] = {} if fillna is None else {"fillna": fillna}
    pipe = build(device, 8, path=tmp_path, arrays=["a"], mean=mean, stddev=stddev, prefetch_queue_depth=1, **given)
    same(next(batches(pipe))[0], normalised(filled, 3, mean, stddev), "decoded")
    if fillna is not None:
        found = settled(pipe)
        assert found["nans_replaced"] == {"a": int(np.isnan(values).sum()) * found["batches"]}


def test_other_orders_of_bytes_and_dimensions(tmp_path, device):
    """F order, big-endian numbers, shuffled bytes: what is on the way to channels."""
    mean, stddev = numbers(3)
    for order, shuffle in (("C", 1), ("F", 2)):
        for dtype in ("<f4", ">f4", ">i2", "<u2"):
            path = tmp_path / f"{order}{dtype[1:]}{dtype[0] == '>'}"
            values = (np.random.default_rng(2).normal(size=(6, 9, 8, 3)) * 90).astype(dtype)
            array = zarr.create_array(
                path / "a", shape=values.shape, chunks=(2, 9, 5, 3), dtype=dtype, order=order, zarr_format=2,
                compressors=numcodecs.Blosc(cname="lz4", shuffle=shuffle),
                attributes={"_ARRAY_DIMENSIONS": ["t", "y", "x", "c"]},
            )
            array[...] = values
            pipe = build(device, 6, path=path, arrays=["a"], mean=mean, stddev=stddev)
            same(next(batches(pipe))[0], normalised(values, 3, mean, stddev), f"{order} {dtype}")


def test_parts_of_complex_numbers(tmp_path, device):
    """The parts are the last dimension, whatever the fill value."""
    values = (np.arange(24).reshape(4, 6) + 1j).astype("complex64")
    for fill in (0, 2 + 5j):
        path = tmp_path / str(fill)
        array = zarr.create_array(
            path / "a", shape=(6, 6), chunks=(2, 3), dtype="complex64", dimension_names=("t", "x"), fill_value=fill,
        )
        array[:4] = values
        stored = np.concatenate([values, np.full((2, 6), fill, "complex64")])
        expected = normalised(stored.view("f4").reshape(6, 6, 2), 2, [10.0, 20.0], [2.0, 4.0])
        pipe = build(device, 6, path=path, arrays=["a"], mean=[10.0, 20.0], stddev=[2.0, 4.0])
        same(next(batches(pipe))[0], expected, f"fill value {fill}")


def test_ragged_rows(tmp_path, device):
    """Atoms with three coordinates, and labels of their own."""
    rng = np.random.default_rng(4)
    offsets = np.array([0, 3, 3, 10, 14])
    xyz, label = rng.normal(size=(14, 3)).astype("f4"), rng.normal(size=(4, 2)).astype("f4")
    root = zarr.create_group(tmp_path / "s")
    for name, values, dims in (("xyz", xyz, ("atom", "axis")), ("label", label, ("molecule", "k"))):
        root.create_array(name, data=values, chunks=(4, values.shape[1]), dimension_names=dims)
    root.create_array("offsets", data=offsets)
    args: dict[str, Any] = {"path": tmp_path / "s", "arrays": ["xyz", "label"], "ragged": "offsets"}
    given = {"xyz": numbers(3), "label": numbers(2)}
    pipe = build(
        device, 4, channels=-1, **by_output(given), **args,
    )
    found, labels = pipe.run()
    for i in range(4):
        sample = np.array((found.as_cpu() if device == "gpu" else found).at(i))
        same(sample, normalised(xyz[offsets[i] : offsets[i + 1]], 1, *given["xyz"]), f"row {i}")
    same(to_numpy(labels), normalised(label, 1, *given["label"]), "labels")
    with pytest.raises(ValueError, match="channels: expected other dimensions than the rows"):
        build(device, 4, mean={"xyz": np.zeros(4)}, channels={"xyz": 0}, **args)


@given(data=st.data())
def test_random_arrays(tmp_path_factory, device, data):
    """Any shape and chunks, any of the dimensions, windows along some."""
    draw = data.draw
    rank = draw(st.integers(2, 5))
    shape = tuple(draw(st.sampled_from([2, 3, 5, 20, 60] if rank < 4 else [2, 3, 6])) for _ in range(rank))
    chunks = tuple(draw(st.integers(1, n)) for n in shape)
    dtype = draw(st.sampled_from(["uint8", "int16", "int64", "float16", "float32", "float64"]))
    seed = draw(st.integers(0, 99))
    values = (np.random.default_rng(seed).normal(size=shape) * 60).astype(dtype)
    path = tmp_path_factory.mktemp("random")
    dims = tuple("tabcd"[:rank])
    zarr.create_array(path / "a", data=values, chunks=chunks, dimension_names=dims, compressors=None)
    channels = sorted(draw(st.sets(st.integers(1, rank - 1), min_size=1, max_size=2)))
    counts = [values.shape[d] for d in channels]
    mean, stddev = numbers(int(np.prod(counts)), seed)
    whole_shape = [n if d in channels else 1 for d, n in enumerate(values.shape)]
    cut = draw(st.sampled_from([None, *range(1, rank)]))
    args: dict[str, Any] = {"dims": ["t"], "window": [0]}
    if cut is not None:
        window = draw(st.integers(1, values.shape[cut]))
        args = {"dims": ["t", dims[cut]], "window": [0, window], "step": [1, 1]}
    whole = cast((values.astype("f8") - mean.reshape(whole_shape)) / stddev.reshape(whole_shape), "float32")
    pipe = build(
        device, 3, path=path, arrays=["a"], channels=[dims[d] for d in channels], mean=mean, stddev=stddev, return_index=True,
        **args,
    )
    for _, (found, index) in zip(range(4), batches(pipe), strict=False):
        for sample, (t, *start) in zip(found, index.tolist(), strict=True):
            expected = whole[t] if cut is None else np.take(whole[t], np.arange(start[0], start[0] + window), axis=cut - 1)
            same(sample, expected, f"{args} {channels} at {t} {start}")


@pytest.fixture(scope="module")
def file(store, tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("files") / "stats.json"
    channels = {name: dims[CHANNEL[name]] for name, (dims, _) in FIELDS.items()}
    dali_zarr.statistics(store[0], arrays=list(FIELDS), channels=channels, output=found)
    return found


def test_statistics_round_trip(store, file, device):
    path, written = store
    entries = json.loads(file.read_text())["arrays"]
    pipe = build(device, N, path=path, arrays=list(FIELDS), mean=file, stddev=str(file))
    for name, found in zip(FIELDS, next(batches(pipe)), strict=True):
        d, by = CHANNEL[name], entries[name]["by_channel"]
        others = tuple(i for i in range(found.ndim) if i != d)
        np.testing.assert_allclose(by["mean"], written[name].astype("f8").mean(others), rtol=1e-12)
        same(found, normalised(written[name], d, by["mean"], by["stddev"]), name)


@pytest.mark.parametrize(
    ("dims", "level"),
    # A list along dims would be a table of starts.
    [(["t"], [3, 1]), (["t"], slice(2, None)), (["t"], 4), (["t", "level"], slice(2, None)), (["t", "level"], 4)],
    ids=str,
)
def test_selected_elements_have_their_own_statistics(store, file, device, dims, level):
    path, written = store
    by = json.loads(file.read_text())["arrays"]["level"]["by_channel"]
    whole = normalised(written["level"], 1, by["mean"], by["stddev"])
    pipe = build(
        device, 7, path=path, arrays=["level"], dims=dims, isel={"level": level}, mean=file, stddev=file, return_index=True,
    )
    for _, (found, index) in zip(range(8), batches(pipe), strict=False):
        for sample, (t, *start) in zip(found, index.tolist(), strict=True):
            expected = whole[t, start[0]] if start else whole[t, level]
            same(sample, expected, f"{t} {start}")


def test_the_reader_says_otherwise_than_the_file(store, file):
    """One number, or the channels of another file's default."""
    path, _ = store
    entry = json.loads(file.read_text())["arrays"]["level"]
    args: dict[str, Any] = {"path": path, "arrays": ["level"], "stddev": 1.0}
    first = {
        key: to_numpy(build(mean=mean, **args, **given).run()[0])
        for key, mean, given in (
            ("pooled", file, {"channels": []}), ("one", entry["mean"], {}),
            ("named", file, {"channels": "level"}), ("list", entry["by_channel"]["mean"], {"channels": "level"}),
        )
    }
    same(first["pooled"], first["one"], "one number")
    same(first["named"], first["list"], "one for each level")
    with pytest.raises(ValueError, match="'level': expected statistics for each element of 'lat', but found those along 'level'"):
        build(path=path, arrays=["level"], mean=file, channels="lat")


def test_a_stack_with_levels(store, file, device):
    """Levels that all arrays have are no channels of the stack, but have numbers of their own."""
    path, written = store
    by = json.loads(file.read_text())["arrays"]["level"]["by_channel"]
    pipe = build(
        device, N, path=path, arrays={"a": "level", "b": "level"}, stack_arrays=True, mean=file,
        stddev={"a": 2.0, "b": by["stddev"]}, channels="level",
    )
    expected = [normalised(written["level"], 1, by["mean"], stddev) for stddev in (2.0, by["stddev"])]
    same(next(batches(pipe))[0], np.stack(expected, axis=1), "stack")


def test_two_files_of_other_channels(store, file, tmp_path):
    path, _ = store
    other = tmp_path / "other.json"
    dali_zarr.statistics(path, arrays=["level"], channels="lat", output=other)
    with pytest.raises(ValueError, match="mean, stddev: array 'level': expected files with .* but found level and lat"):
        build(path=path, arrays=["level"], mean=file, stddev=other)


def test_errors(store):
    path, _ = store
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"arrays": ["image"], "mean": [1, 2]}, ValueError, 'as many as one of its dimensions has .*"rgb" 3\\), found 2'),
        ({"arrays": ["image", "action"], "mean": [1, 2, 3]}, ValueError, "each of the 2 arrays, found 3; give those of an array"),
        ({"arrays": ["image"], "mean": [1, 2, 3], "channels": "x"}, ValueError, 'along channels \\("x" 36\\), found 3'),
        ({"arrays": ["image"], "mean": [1, 2, 3], "channels": "c"}, ValueError, 'no array has a dimension "c"'),
        ({"arrays": ["image"], "mean": [1, 2, 3], "channels": 2.5}, TypeError, "channels: expected names or positions of"),
        ({"arrays": ["image"], "mean": [1, 2, 3], "stddev": [1, 0, 1]}, ValueError, "stddev: expected finite numbers other than"),
        ({"arrays": ["action"], "mean": {"action": []}}, ValueError, "at least one value for 'action'"),
    ]
    for arguments, error, message in cases:
        for make in (lambda **args: build("cpu", 2, **args), dali_zarr.explain):
            with pytest.raises(error, match=message):
                make(path=path, **arguments)
    with pytest.raises(ValueError, match="statistics: channels: expected dimensions of t, k, but found 'q'"):
        dali_zarr.statistics(path, arrays=["action"], channels="q")
    with pytest.raises(ValueError, match="channels: there is no output 'q'; the outputs are 'action'"):
        dali_zarr.statistics(path, arrays=["action"], channels={"q": "k"})


def test_ambiguous_lengths(tmp_path):
    write_array(tmp_path, "a", np.zeros((4, 3, 3), "f4"), dims=("t", "y", "c"))
    with pytest.raises(ValueError, match=r'several have as many elements \("y" 3, "c" 3\); name it, as in channels=\{"a": "c"\}'):
        build(path=tmp_path, arrays=["a"], mean=[1, 2, 3])
    assert dali_zarr.explain(path=tmp_path, arrays=["a"], mean=[1, 2, 3], channels="y")["arrays"][0]["channels"] == ["y"]


def test_checkpoints(store):
    """The state is of these numbers along this dimension."""
    path, written = store
    args: dict[str, Any] = {"path": path, "arrays": ["action"], "mean": np.arange(7.0), "stddev": 2.0}
    pipe = build(batch_size=3, checkpointing=True, **args)
    pipe.run()
    state = pipe.checkpoint()
    resumed = build(batch_size=3, checkpointing=True, checkpoint=state, **(args | {"channels": -1}))
    same(to_numpy(resumed.run()[0]), normalised(written["action"][3:6], 1, np.arange(7.0), 2.0), "the next batch")
    with pytest.raises((ValueError, RuntimeError), match="array 'action': mean"):
        build(batch_size=3, checkpointing=True, checkpoint=state, **(args | {"mean": np.arange(7.0) + 1})).run()


def test_explained(store):
    found = dali_zarr.explain(path=store[0], arrays=["image", "action"], mean={"image": [1, 2, 3]})
    assert [array["channels"] for array in found["arrays"]] == [["rgb"], []]
    assert "uint8, normalised by rgb" in str(found)
