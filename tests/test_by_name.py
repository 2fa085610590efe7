"""Arrays that differ, and values by name: by output, by dimension, and by output and dimension."""

from __future__ import annotations

import dali_zarr
import numpy as np
import pytest
import zarr
from support.pipelines import batches, build, same, settled
from support.stores import write_array

N = 23


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Images with actions, as robots record them, and a label of one channel; only the first dimension is common."""
    path = tmp_path_factory.mktemp("differ") / "a.zarr"
    rng = np.random.default_rng(7)
    written = {
        "data/img": rng.integers(0, 255, (N, 6, 5, 3)).astype(np.uint8),
        "data/action": rng.normal(size=(N, 2)).astype(np.float32),
        "data/label": rng.integers(0, 9, (N, 1, 6)).astype(np.int16),
        "time": np.arange(N, dtype=np.int64) * 10,
    }
    root = zarr.create_group(path)
    chunks = {"data/img": (4, 6, 2, 3), "data/action": (7, 2), "data/label": (5, 1, 4), "time": (N,)}
    for name, values in written.items():
        names = ["t", *[None] * (values.ndim - 1)]
        array = root.create_array(name, shape=values.shape, dtype=values.dtype, chunks=chunks[name], dimension_names=names)
        array[...] = values
    return path, written


ARRAYS = {"image": "data/img", "action": "data/action", "label": "data/label"}


def expected(values: np.ndarray, start: int, window: int, stride: int = 1) -> np.ndarray:
    return values[start] if window == 0 else values[start : start + (window - 1) * stride + 1 : stride]


def test_only_dims_tie_arrays_together(store, device):
    path, written = store
    pipe = build(device, 4, path=path, arrays=["data/img", "data/action", "data/label", "time"], dims=["t"], window=[3], step=[2])
    for i, found in zip(range(2), batches(pipe), strict=False):
        for output, values in zip(found, written.values(), strict=True):
            same(output, np.stack([expected(values, 2 * (4 * i + k), 3) for k in range(4)]), "values")


def test_a_stack_ties_all_dimensions(store):
    with pytest.raises(ValueError, match=r"dimension \"dim_1\" has length"):
        dali_zarr.explain(path=store[0], arrays=["data/img", "data/label"], stack_arrays=True, dtype="float32")


def cases():
    return [
        ({"image": {"t": 2}, "action": {"t": 16}}, {}, {"image": (2, 1), "action": (16, 1), "label": (0, 1)}, 16),
        ({"t": 3}, {"image": {"t": 4}, "label": [2]}, {"image": (3, 4), "action": (3, 1), "label": (3, 2)}, 3),
        ({"image": [1], "label": {"t": 5}}, {"t": 3}, {"image": (1, 3), "action": (0, 3), "label": (5, 3)}, 5),
    ]


@pytest.mark.parametrize(("window", "stride", "cuts", "longest"), cases(), ids=str)
@pytest.mark.parametrize("step", [None, {"t": 2}, "overlap"])
def test_windows_by_output(store, device, window, stride, cuts, longest, step):
    path, written = store
    asked = {} if step is None else {"overlap": {"t": longest - 1}} if step == "overlap" else {"step": step}
    distance = longest if step is None else 1 if step == "overlap" else 2
    # Without dims, those of window are meant.
    pipe = build(device, 1, path=path, arrays=ARRAYS, window=window, stride=stride or None, return_index=True, **asked)
    reach = max((max(w, 1) - 1) * s + 1 for w, s in cuts.values())
    starts = list(range(0, N - reach + 1, distance))
    assert pipe.epoch_size("reader") == len(starts)
    for start, found in zip(starts, batches(pipe), strict=False):
        assert found[-1].tolist() == [[start]]
        for (output, array), values in zip(ARRAYS.items(), found[:-1], strict=True):
            same(values[0], expected(written[array], start, *cuts[output]), output)


def test_padding_of_windows_by_output(store, device):
    path, written = store
    fill = {"image": 7, "action": -1.5}
    pipe = build(
        device, N, path=path, arrays=ARRAYS, window={"image": {"t": 2}, "action": {"t": 4}}, step={"t": 1},
        out_of_bounds_policy="pad", fill_value=fill,
    )
    image, action, label = next(batches(pipe))
    same(image[-1], np.stack([written["data/img"][-1], np.full((6, 5, 3), 7, np.uint8)]), "image")
    same(action[-2], np.concatenate([written["data/action"][-2:], np.full((2, 2), -1.5, np.float32)]), "action")
    same(label, written["data/label"], "label")


def test_values_by_output(store, device):
    path, written = store
    pipe = build(
        device, N, path=path, arrays=ARRAYS, dims=["t"], mean={"image": 100.1}, stddev={"image": 50.3}, dtype={"label": np.float64},
    )
    image, action, label = next(batches(pipe))
    same(image, ((written["data/img"].astype(np.float64) - 100.1) / 50.3).astype(np.float32), "image")
    same(action, written["data/action"], "action")
    same(label, written["data/label"].astype(np.float64), "label")


def test_decoding_by_output(tmp_path, device):
    root = zarr.create_group(tmp_path / "a.zarr")
    for name in ("a", "b"):
        array = root.create_array(name, shape=(4, 3), dtype="int16", chunks=(2, 3), attributes={"scale_factor": 0.5})
        array[...] = np.arange(12).reshape(4, 3)
    pipe = build(device, 4, path=tmp_path / "a.zarr", arrays=["a", "b"], mask_and_scale={"a": False})
    a, b = next(batches(pipe))
    same(a, np.arange(12, dtype=np.int16).reshape(4, 3), "as stored")
    same(b, np.arange(12).reshape(4, 3) * 0.5, "decoded, as by default")


def test_one_array_as_several_outputs(store, device):
    """Its chunks are read once."""
    path, written = store
    pipe = build(device, 1, path=path, arrays={"now": "data/action", "next": "data/action"}, window={"next": {"t": 8}}, step=[1])
    for start, (now, following) in zip(range(16), batches(pipe), strict=True):
        same(now[0], written["data/action"][start], "now")
        same(following[0], written["data/action"][start : start + 8], "next")
        if start == 15:
            break
    # Each batch is an epoch. Where the planner is slow, chunks aren't kept for the next one, which reads all four again.
    arrays = {f"output{number}": "data/action" for number in range(6)}
    pipe = build(device, 16, path=path, arrays=arrays, window={"output5": {"t": 8}}, step=[1], dali_queue=1, prefetch_queue_depth=1)
    pipe.run()
    counters = settled(pipe)
    assert counters["chunks_read"] <= 4 * counters["batches"] <= 8


def test_selection_with_windows_by_output(store, device):
    path, written = store
    pipe = build(
        device, 1, path=path, arrays=ARRAYS, dims=["t"], isel={"t": slice(3, 20, 2)},
        window={"image": {"t": 2}, "action": {"t": 4}}, step={"t": 1},
    )
    places = list(range(3, 20, 2))
    for start, (image, action, label) in zip(range(len(places) - 3), batches(pipe), strict=False):
        same(image[0], written["data/img"][places[start : start + 2]], "image")
        same(action[0], written["data/action"][places[start : start + 4]], "action")
        same(label[0], written["data/label"][places[start]], "label")


def test_names_in_explain_and_the_loader(store):
    torch_loader = pytest.importorskip("dali_zarr.torch")
    path, written = store
    arguments = {"path": path, "arrays": ARRAYS, "window": {"image": {"t": 2}, "action": {"t": 4}}, "overlap": {"t": 3}}
    found = dali_zarr.explain(**arguments)
    assert [output["name"] for output in found["outputs"]] == list(ARRAYS)
    assert [output["shape"] for output in found["outputs"]] == [[2, 6, 5, 3], [4, 2], [1, 6]]
    assert found["samples"] == N - 3
    loader = torch_loader.Loader(batch_size=5, device="cpu", **arguments)
    batch = next(iter(loader))
    assert list(batch) == list(ARRAYS)
    same(batch["action"].numpy()[2], written["data/action"][2:6], "action")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"window": {"imag": {"t": 2}}}, ValueError, "window: there is no output 'imag'; the outputs are 'image'"),
        ({"window": {"time": 2}}, ValueError, 'window: no array has a dimension "time"'),
        ({"dims": ["t"], "window": {"dim_1": 2}}, ValueError, 'window: samples aren\'t cut along dimension "dim_1"'),
        ({"dims": ["t"], "window": {"t": 2, 0: 3}}, ValueError, 'window: dimension "t" is named twice'),
        ({"dims": ["t"], "step": {"image": {"t": 2}}}, ValueError, "step: expected values for dimensions, since the outputs"),
        ({"dims": ["t"], "step": 1, "overlap": 1}, ValueError, "step, overlap: expected one of both"),
        ({"dims": ["t"], "window": 4, "overlap": 4}, ValueError, 'overlap: expected 0 to 3 along "t"'),
        ({"dims": ["t"], "window": {"image": {"t": 2.5}}}, TypeError, "window: expected integers, found 2.5"),
        ({"mean": {"nothing": 1}}, ValueError, "mean: there is no output 'nothing'"),
        ({"mean": {"image": [1, 2]}}, ValueError, 'mean: expected one value for \'image\', or as many as one of its dimensions'),
        ({"mean": {"image": "much"}}, TypeError, "mean: expected numbers, found 'much'"),
        ({"dtype": {"image": "complex"}}, TypeError, "dtype: expected one of"),
        ({"mask_and_scale": {"image": 1}}, TypeError, "mask_and_scale: expected True or False, found 1"),
        ({"arrays": {"a": 3}}, TypeError, "arrays: expected names of arrays by output, found 3"),
        ({"arrays": {"a": "data/imag"}}, ValueError, "expected an array 'data/imag'"),
        ({"stack_arrays": True, "dims": ["t"], "window": {"image": 1}, "dtype": "float32"}, ValueError, ""),
    ],
    ids=str,
)
def test_errors(store, arguments, error, message):
    for build_it in (lambda **given: build("cpu", 2, **given), dali_zarr.explain):
        with pytest.raises(error) as found:
            build_it(**{"path": store[0], "arrays": ARRAYS, **arguments})
        assert message in str(found.value)


@pytest.mark.parametrize(
    ("given", "write"),
    [
        ({"fillna": {"stacked": 0}}, "fillna=0 for all of them, or fillna={'a': 0, 'b': 0}"),
        ({"mean": {"stacked": 2.5}}, "mean=2.5 for all of them, or mean={'a': 2.5, 'b': 2.5}"),
        ({"mean": {"now": [1, 2]}, "offsets": [0, 1]}, "mean=[1, 2] for all of them"),
        ({"mask_and_scale": {"c": True}}, "mask_and_scale=True for all of them, or mask_and_scale={'a': True, 'b': True}"),
    ],
    ids=str,
)
def test_values_of_a_stack_are_told_by_its_arrays(tmp_path, given, write):
    """The message says what to write, which then is taken."""
    for name in "ab":
        write_array(tmp_path, name, np.arange(12, dtype="f4").reshape(4, 3), dims=("t", "x"))
    told = {"path": tmp_path, "arrays": ["a", "b"], "stack_arrays": True}
    wrong = next(key for key in next(iter(given.values())))
    with pytest.raises(ValueError, match="expected names of the stack's arrays, 'a', 'b', but found ") as found:
        dali_zarr.explain(**told, **given)
    assert str(found.value).endswith(f"but found {wrong!r}; write {write}")
    others = {name: value for name, value in given.items() if name == "offsets"}
    for one in write.split(", or "):
        dali_zarr.explain(**told, **others, **eval(f"dict({one.removesuffix(' for all of them')})"))
