"""Labels of samples are the coordinates of the elements that were read, whatever cuts them: numbers tell where they lie."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stores import Layout, write_array

pytest.importorskip("torch", reason="labels are those of the loader's batches")
pytest.importorskip("xarray", reason="labels need it")

CASES = int(os.environ.get("DALI_ZARR_LABELS", "150"))
# Why arguments are refused that contradict each other.
REFUSALS = (
    'pad_before: expected out_of_bounds_policy="pad" or "edge"', "one less than the elements that a sample spans",
    'breaks: expected elements of dimension "time" that have one before them', "a single element has no windows",
    "boolean index did not match", "isn't among the coordinates", "expected at least one element, but",
    "a list says where samples start", "which fit at no start in the region of interest", "so there is no sample",
    "the selection has gaps", "only evenly spaced",
)
LENGTHS, LEVELS = (7, 9), np.array([1000, 850, 500])
# Of each element of time, over both stores.
TIMES = np.concatenate([np.arange(7) * 3, 100 + np.arange(9) * 2])
DIMS = {"a": ("time", "level"), "b": ("time",)}
PADDED = -7


def numbers(name: str, first: int, length: int) -> np.ndarray:
    """Each says its place: ten times that in time, and in level."""
    times = 10 * np.arange(first, first + length, dtype="int32")
    return times[:, None] + np.arange(len(LEVELS), dtype="int32") if name == "a" else times


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> list[Path]:
    base, first = tmp_path_factory.mktemp("labels"), 0
    for i, length in enumerate(LENGTHS):
        for name, dims in DIMS.items():
            write_array(base / str(i), name, numbers(name, first, length), layout=Layout((3, 2)[: len(dims)]), dims=dims)
        write_array(base / str(i), "time", TIMES[first : first + length], dims=("time",))
        write_array(base / str(i), "level", LEVELS, dims=("level",))
        first += length
    return [base / str(i) for i in range(len(LENGTHS))]


def batches(path: Any, **args: Any) -> list[Any]:
    from dali_zarr.torch import Loader

    return list(Loader(path, batch_size=3, device="cpu", host_memory_limit="64MiB", **{"fill_value": PADDED, **args}))


def check(batch: Any, entry: str, array: str, args: dict[str, Any]) -> None:
    """That the labels of an output are those of its elements. Padded ones have none along some dimension."""
    coords, values = batch.coords_of(entry), batch[entry].numpy()
    # Along dimensions that samples aren't cut along they are the same for all samples, or not told.
    alike = {"level"} - {*args["dims"], *(dim for dim, label in args.get("sel", {}).items() if isinstance(label, int))}
    for sample, found in enumerate(values):
        along: list[np.ndarray] = []
        for d, dim in enumerate(DIMS[array]):
            own = coords.get(dim, LEVELS) if dim in alike else coords[dim][sample]
            along.append(np.atleast_1d(own))
            found = np.expand_dims(found, d) if np.ndim(own) == 0 else found
        assert found.shape == tuple(map(len, along)), (entry, along, found)
        is_padded = found == PADDED
        number, has_none = np.where(is_padded, 0, found), np.zeros(found.shape, bool)
        for d, (labels, known) in enumerate(zip(along, (TIMES[number // 10], LEVELS[number % 10]), strict=False)):
            shown = np.expand_dims(labels, tuple(i for i in range(found.ndim) if i != d))
            assert (is_padded | (shown == known)).all(), (entry, DIMS[array][d], labels, found)
            has_none = has_none | np.isnan(shown)
        assert (has_none == is_padded).all(), (entry, along, found, "what is padded has no label")


def selections(draw: st.DrawFn, dim: str, length: int) -> Any:
    first, last = sorted(draw(st.tuples(st.integers(0, length - 1), st.integers(0, length - 1))))
    labels = TIMES if dim == "time" else LEVELS
    match draw(st.sampled_from(["slice", "slice", "bools", "list", "one"])):
        case "slice":
            return {"sel": {dim: slice(int(labels[first]), int(labels[last]), draw(st.sampled_from([None, 2, 3])))}}
        case "bools":
            return {"isel": {dim: np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)))}}
        case "list":
            return {"sel": {dim: [int(labels[i]) for i in draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=3))]}}
    return {"sel": {dim: int(labels[first])}}


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of a loader; some contradict each other."""
    args: dict[str, Any] = {"dims": draw(st.sampled_from([["time"], ["time", "level"]]))}
    outputs, small = draw(st.sampled_from([["a"], ["a", "b"], ["b", "a"]])), st.integers(1, 3)
    args["arrays"] = {f"{name}_out": name for name in outputs}
    args |= {
        name: {output: {dim: draw(numbers) for dim in args["dims"]} for output in args["arrays"]}
        for name, numbers in (("window", st.integers(0, 3)), ("stride", st.sampled_from([1, 1, 2, 3])))
    }
    for name, values in (
        ("step", st.fixed_dictionaries({dim: small for dim in args["dims"]})), ("breaks", st.lists(st.integers(1, 15), min_size=1)),
        ("offsets", st.lists(st.integers(-3, 3), min_size=1, max_size=2, unique=True)), ("cross_stores", st.just(False)),
        ("pad_before", st.fixed_dictionaries({"time": small})), ("concat", st.just("samples")),
    ):
        if draw(st.integers(0, 2)) == 0:
            args[name] = draw(values)
    for dim, length in (("time", sum(LENGTHS)), ("level", len(LEVELS))):
        if draw(st.booleans()):
            for name, chosen in selections(draw, dim, length).items():
                args[name] = args.get(name, {}) | chosen
    return args | {"out_of_bounds_policy": draw(st.sampled_from(["drop", "pad", "pad", "edge"]))}


def test_random_arguments(stores):
    looked_at = {"drop": 0, "pad": 0, "edge": 0}

    @settings(max_examples=CASES)
    @given(arguments())
    def each(args):
        try:
            found = batches(stores, **args)
        except (ValueError, TypeError, IndexError) as error:
            assert any(text in str(error) for text in REFUSALS), (args, error)
            return
        for batch in found:
            for offset in args.get("offsets", [0]):
                for output, array in args["arrays"].items():
                    check(batch, f"{output}{offset:+d}" if offset else output, array, args)
        looked_at[args["out_of_bounds_policy"]] += 1

    each()
    assert all(count > CASES / 20 for count in looked_at.values()), looked_at
