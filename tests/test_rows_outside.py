"""Rows of a caller's order that lie outside of the region, with elements padded or repeated: values, masks, indexes and labels
are those of NumPy, in samplers, streams, data sets and pipelines, before and after a state."""

from __future__ import annotations

from typing import Any

import dali_zarr  # noqa: F401  (loads the operator)
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from dali_zarr.torch import Dataset, Loader  # noqa: E402

EXAMPLES = 150
SHAPE = (11, 8)
FILL = -7.0


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> tuple[Any, dict[str, np.ndarray]]:
    path, rng = tmp_path_factory.mktemp("outside") / "s.zarr", np.random.default_rng(0)
    root = zarr.create_group(path)
    written = {"a": rng.random(SHAPE).astype("float32"), "b": rng.integers(1, 999, (*SHAPE, 2)).astype("int32")}
    for name, values in written.items():
        dims = ["y", "x", "c"][: values.ndim]
        root.create_array(name, data=values, chunks=(3, 4, 1)[: values.ndim], dimension_names=dims)
    root.create_array("y", data=np.arange(SHAPE[0]) * 10.0, dimension_names=["y"])
    return path, written


def along(at: int, window: int, stride: int, region: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The elements of a window along a dimension, and which of them lie in the region."""
    index = at + np.arange(max(window, 1)) * stride
    inside = (index >= region[0]) & (index < region[1])
    return np.clip(index, region[0], region[1] - 1), inside


def window_of(values: np.ndarray, row: tuple[int, ...], case: dict[str, Any], offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A sample, and its mask, by NumPy."""
    found, masks = values, []
    for axis, at in enumerate(row):
        at += offset if axis == 0 else 0
        index, inside = along(at, case["window"][axis], case["stride"][axis], case["region"][axis])
        found = found.take(index, axis)
        masks.append(inside)
    mask = masks[0][:, None] & masks[1][None]
    if case["policy"] == "pad":
        whole = mask.reshape(*mask.shape, *[1] * (found.ndim - 2))
        found = np.where(whole, found, np.asarray(FILL, found.dtype))
    dropped = tuple(axis for axis in range(2) if case["window"][axis] == 0)
    return found.squeeze(dropped), mask.squeeze(dropped)


@st.composite
def cases(draw) -> dict[str, Any]:
    regions = []
    for length in SHAPE:
        first = draw(st.integers(0, 3))
        regions.append((first, draw(st.integers(first + 1, length))))
    case: dict[str, Any] = {
        "window": [draw(st.integers(0, 6)) for _ in SHAPE], "stride": [draw(st.integers(1, 2)) for _ in SHAPE],
        "region": regions, "policy": draw(st.sampled_from(["pad", "edge"])),
        "offsets": draw(st.sampled_from([[0], [0], [0, 3], [-2]])),
        "batch_size": draw(st.integers(1, 5)),
    }
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        # Rows may lie as far outside as the region is long.
        rows.append(tuple(draw(st.integers(2 * first - end, 2 * end - first)) for first, end in regions))
    return case | {"rows": rows}


def arguments(path: Any, case: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": path, "arrays": ["a", "b"], "dims": ["y", "x"], "window": case["window"], "stride": case["stride"], "step": [1, 1],
        "roi_start": [first for first, _ in case["region"]], "roi_end": [end for _, end in case["region"]],
        "out_of_bounds_policy": case["policy"], "fill_value": FILL, "offsets": case["offsets"], "return_mask": True,
    }


def check(batch: Any, rows: list[tuple[int, ...]], case: dict[str, Any], written: dict[str, np.ndarray]) -> None:
    assert list(map(tuple, batch.index.tolist())) == rows
    for i, row in enumerate(rows):
        for number, offset in enumerate(case["offsets"]):
            for name, values in written.items():
                expected, mask = window_of(values, row, case, offset)
                found = batch[f"{name}{offset:+d}" if offset else name][i].cpu().numpy()
                np.testing.assert_array_equal(found, expected, err_msg=f"{name} at {row}, offset {offset}")
            told = batch["mask"][i].cpu().numpy()
            np.testing.assert_array_equal(told[number] if len(case["offsets"]) > 1 else told, mask, err_msg=f"mask at {row}")


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases())
def test_samplers(store, device, case):
    path, written = store
    rows, size = case["rows"], case["batch_size"]
    loader = Loader(**arguments(path, case), sampler=[list(row) for row in rows], batch_size=size, device=device)
    batches = [rows[at : at + size] for at in range(0, len(rows), size)]
    for batch, expected in zip(loader, batches, strict=True):
        check(batch, expected, case, written)


@settings(max_examples=EXAMPLES // 3, deadline=None)
@given(cases())
def test_as_a_table_of_starts(store, device, case):
    """Tables of the same rows give the same, where they may be shuffled."""
    path, written = store
    given_ = {name: value for name, value in arguments(path, case).items() if name != "step"}
    loader = Loader(**given_, starts=np.array(case["rows"]), random_shuffle=True, batch_size=case["batch_size"], device=device)
    seen = []
    for batch in loader:
        rows = list(map(tuple, batch.index.tolist()))
        check(batch, rows, case, written)
        seen += rows
    assert sorted(seen) == sorted(case["rows"])


CASE: dict[str, Any] = {
    "window": [4, 3], "stride": [1, 1], "region": [(0, 11), (0, 8)], "policy": "pad", "offsets": [0],
}
ROWS = [(-3, 2), (4, 4), (9, 7), (-11, -8), (22, 0), (2, 6), (0, -1), (11, 8)]


def test_streams_data_sets_and_pipelines(store, device):
    path, written = store
    given_ = arguments(path, CASE)
    with Loader(**given_, batch_size=8, device=device).stream() as stream:
        stream.push(ROWS[:3])
        stream.push([5, 0])
        stream.push(ROWS[3:])
        check(stream.get(), ROWS[:3], CASE, written)
        assert stream.get().index.tolist() == [[0, 5], [0, 0]], "numbers stay those of the grid"
        check(stream.get(), ROWS[3:], CASE, written)
    dataset = Dataset(**given_, device=device)
    assert len(dataset) == 11 * 8
    for row in ROWS:
        np.testing.assert_array_equal(dataset[row]["a"].cpu().numpy(), window_of(written["a"], row, CASE)[0])
    with pytest.raises(IndexError, match="expected a number from 0 to 87, but found 88"):
        dataset[88]
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline

    pipe = Pipeline(batch_size=8, num_threads=1, device_id=None)
    with pipe:
        rows = fn.external_source(lambda: np.array(ROWS), batch=True, dtype=types.INT64)
        told = {name: value for name, value in given_.items() if name != "return_mask"}
        pipe.set_outputs(*fn.zarr_reader(rows, **told))
    pipe.build()
    found = pipe.run()[0].as_array()
    np.testing.assert_array_equal(found, np.stack([window_of(written["a"], row, CASE)[0] for row in ROWS]))


@pytest.mark.parametrize("policy", ["pad", "edge"])
def test_states_and_labels(store, device, policy):
    path, written = store
    case = CASE | {"policy": policy}
    made = lambda: Loader(**arguments(path, case), sampler=ROWS, batch_size=3, device=device)  # noqa: E731
    loader = made()
    batches = iter(loader)
    batch = next(batches)
    labels = np.arange(11) * 10.0
    for i, (y, _) in enumerate(ROWS[:3]):
        index, inside = along(y, 4, 1, (0, 11))
        expected = labels[index] if policy == "edge" else np.where(inside, labels[index], np.nan)
        np.testing.assert_array_equal(batch.coords["y"][i], expected)
    state = loader.state_dict()
    again = made()
    again.load_state_dict(state)
    for batch, rows in zip(again, (ROWS[3:6], ROWS[6:]), strict=True):
        check(batch, rows, case, written)


def test_stores_of_their_own(tmp_path, device):
    """A row begins with the number of its store, each of which has a region of its own."""
    values = [np.random.default_rng(i).random((4 + 3 * i, 5)).astype("float32") for i in range(3)]
    paths = [tmp_path / f"{i}.zarr" for i in range(3)]
    for path, one in zip(paths, values, strict=True):
        zarr.create_group(path).create_array("a", data=one, chunks=(3, 5), dimension_names=["y", "x"])
    rows = [(1, -7, 4), (0, -1, 0), (2, 19, -2), (1, 3, 3), (2, -10, 10), (0, 8, -5), (1, 14, 0)]
    loader = Loader(
        paths, arrays=["a"], concat="samples", dims=["y", "x"], window=[2, 3], step=[1, 1], out_of_bounds_policy="pad",
        fill_value=FILL, sampler=rows, batch_size=7, device=device,
    )
    batch = next(iter(loader))
    assert list(map(tuple, batch.index.tolist())) == rows
    for i, (number, *row) in enumerate(rows):
        case = CASE | {"window": [2, 3], "region": [(0, n) for n in values[number].shape]}
        np.testing.assert_array_equal(batch["a"][i].cpu().numpy(), window_of(values[number], tuple(row), case)[0])
    with pytest.raises(IndexError, match=r"no sample that starts at \[0, 9, 0\]"):
        next(iter(Loader(paths, arrays=["a"], concat="samples", dims=["y", "x"], window=[2, 3], step=[1, 1],
                         out_of_bounds_policy="pad", sampler=[(0, 9, 0)], device="cpu")))


def test_steps_and_breaks(store):
    """Rows outside lie on the grid of the others, and belong to the first or the last segment."""
    path, written = store
    given_: dict[str, Any] = {
        "arrays": ["a"], "dims": ["y", "x"], "window": [3, 8], "step": [3, 8], "out_of_bounds_policy": "pad", "fill_value": FILL,
        "roi_start": [2, 0], "device": "cpu",
    }
    batch = next(iter(Loader(path, **given_, sampler=[(-1, 0), (11, 0), (5, 0)], batch_size=3)))
    for found, at in zip(batch["a"], (-1, 11, 5), strict=True):
        case = CASE | {"window": [3, 8], "region": [(2, 11), (0, 8)]}
        np.testing.assert_array_equal(found.numpy(), window_of(written["a"], (at, 0), case)[0])
    with pytest.raises(IndexError, match=r"no sample that starts at \[0, 0\] \(y, x\); outside of the region samples start"):
        next(iter(Loader(path, **given_, sampler=[(0, 0)])))
    broken = Loader(path, **given_ | {"step": [1, 8]}, breaks=[6], sampler=[(0, 0, 0), (1, 12, 0)], batch_size=2)
    batch = next(iter(broken))
    for found, at, region in zip(batch["a"], (0, 12), ((2, 6), (6, 11)), strict=True):
        case = CASE | {"window": [3, 8], "region": [region, (0, 8)]}
        np.testing.assert_array_equal(found.numpy(), window_of(written["a"], (at, 0), case)[0])
    with pytest.raises(IndexError, match="no sample that starts at"):
        next(iter(Loader(path, **given_ | {"step": [1, 8]}, breaks=[6], sampler=[(1, 0, 0)])))


@pytest.mark.parametrize("policy", ["drop", "error"])
def test_without_padding_they_are_an_error(store, policy):
    path, _ = store
    given_: dict[str, Any] = {
        "arrays": ["a"], "dims": ["y", "x"], "window": [1, 1], "step": [1, 1], "out_of_bounds_policy": policy, "device": "cpu",
    }
    words = (
        r'no sample that starts at \[-1, 2\] \(y, x\), which lies outside along "y"; samples may start there with '
        'out_of_bounds_policy "pad" or "edge", and without pad_before and pad_after'
    )
    with pytest.raises(IndexError, match=words):
        next(iter(Loader(path, **given_, sampler=[(-1, 2)])))
    with pytest.raises(IndexError, match="which lies outside"):
        next(iter(Loader(path, **given_ | {"out_of_bounds_policy": "pad", "window": [2, 1]}, pad_after=[1, 0], sampler=[(-1, 2)])))
    # Nor have numbers of samples outside a meaning of their own.
    for number in (1 << 62, (1 << 62) + 5):
        for how in (given_, given_ | {"out_of_bounds_policy": "pad"}):
            for sampler in ([number], np.array([number])):
                with pytest.raises(IndexError, match=f"expected numbers of samples, but found {number}"):
                    next(iter(Loader(path, **how, sampler=sampler)))
    for row in ((-12, 2), (2**63 - 1, 0), (0, 2**63 - 1), (-(2**63), 2**63 - 1), (2**62, -(2**62))):
        with pytest.raises(IndexError, match=r"no sample that starts at .* \(y, x\); outside of the region samples start at"):
            next(iter(Loader(path, **given_ | {"out_of_bounds_policy": "pad"}, sampler=[row])))


def test_missing_dates_are_left_out(tmp_path):
    """A row outside whose window reads a date whose data are missing is no sample, as those inside."""
    root = zarr.create_group(tmp_path / "s.zarr", zarr_format=2)
    data = root.create_array("data", data=np.arange(24.0).reshape(12, 2), chunks=(1, 2))
    data.attrs["_ARRAY_DIMENSIONS"] = ["time", "cell"]
    dates = np.datetime64("2020-01-01", "s") + np.arange(12) * np.timedelta64(6, "h")
    told = root.create_array("dates", shape=dates.shape, dtype=dates.dtype, chunks=(12,))
    told[...] = dates
    told.attrs["_ARRAY_DIMENSIONS"] = ["time"]
    root.attrs.update({"missing_dates": [str(dates[1])], "frequency": "6h", "variables": ["2t", "msl"]})
    given_: dict[str, Any] = {"arrays": ["data"], "window": [3], "step": [1], "out_of_bounds_policy": "pad", "device": "cpu"}
    loader = Loader(tmp_path / "s.zarr", **given_, sampler=[[-2], [12]], batch_size=2)
    batch = next(iter(loader))
    assert batch["data"].tolist() == [[[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0]] * 3]
    for row in (-1, 0, 1):
        with pytest.raises(IndexError, match="no sample that starts at"):
            next(iter(Loader(tmp_path / "s.zarr", **given_, sampler=[[row]])))


def test_other_resolutions(tmp_path):
    """With ``scale_by`` rows are elements of the grid array, and each array is padded for itself."""
    from fractions import Fraction

    from support.scales import Along, Image, numbered, sample, write_coordinates

    fine = Image(numbered([12]), ("y",), {"y": Along(Fraction(0), Fraction(1), 12)}, {"y": 4})
    coarse = Image(numbered([6], first=100), ("y",), {"y": Along(Fraction(1, 2), Fraction(2), 6)}, {"y": 2})
    images = {"fine": fine, "coarse": coarse}
    arrays = {name: write_coordinates(tmp_path / "r.zarr", name, image) for name, image in images.items()}
    rows = [[-3], [13], [4], [-12], [24]]
    for method in ("nearest", "previous"):
        loader = Loader(
            tmp_path / "r.zarr", arrays=arrays, scale_by="coordinates", scale_method=method, dims=["y"], window={"y": 4.0},
            step={"y": 1.0}, out_of_bounds_policy="pad", fill_value=-1, return_mask=True, sampler=rows, batch_size=5, device="cpu",
        )
        batch = next(iter(loader))
        for name, image in images.items():
            for i, (at,) in enumerate(rows):
                wanted = sample(image, fine, {"y": at}, {"y": (0, 12)}, "pad", -1, method)
                assert wanted is not None
                np.testing.assert_array_equal(batch[name][i].numpy(), wanted[0])
                np.testing.assert_array_equal(batch[f"{name}_mask"][i].numpy(), wanted[1])
