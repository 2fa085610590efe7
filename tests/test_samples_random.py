"""Random plans over all that cuts samples, against an oracle that walks over elements: windows by output, edges, episodes,
stores one after the other or joined, tables of starts, crops; in order and shuffled."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.pipelines import batches, build, same

CASES = int(os.environ.get("DALI_ZARR_RANDOM_CASES", "40"))
FIRST = int(os.environ.get("DALI_ZARR_RANDOM_FIRST", "0"))


@dataclass
class Case:
    """Stores, the reader's arguments, and what follows from them along each axis."""

    arrays: list[dict[str, np.ndarray]]
    args: dict[str, Any]
    windows: dict[str, dict[str, int]]
    strides: dict[str, dict[str, int]]
    step: dict[str, int]
    policy: str
    pads: tuple[int, int] | None = None
    breaks: list[list[int]] = field(default_factory=list)
    chosen: list[int] | None = None
    joined: bool = False
    starts: np.ndarray | None = None


DIMS = {"image": ("t", "y", "c"), "action": ("t", "k")}


def write(path: Path, rng: np.random.Generator, length: int, height: int, ends: list[int]) -> dict[str, np.ndarray]:
    root = zarr.create_group(path, zarr_format=int(rng.choice([2, 3])))
    values = {
        "image": rng.integers(0, 30000, (length, height, 2)).astype(np.int16),
        "action": rng.normal(size=(length, 3)).astype(np.float32),
    }
    for name, value in values.items():
        chunks = tuple(int(rng.integers(1, n + 2)) for n in value.shape)
        kwargs: dict[str, Any] = {"chunks": chunks}
        if root.metadata.zarr_format == 3:
            kwargs["dimension_names"] = DIMS[name]
            if rng.random() < 0.3:
                kwargs["shards"] = tuple(c * int(rng.integers(1, 4)) for c in chunks)
        else:
            kwargs["attributes"] = {"_ARRAY_DIMENSIONS": list(DIMS[name])}
        if rng.random() < 0.5:
            kwargs["compressors"] = None
        root.create_array(name, data=value, **kwargs)
    root.create_array("ends", data=np.array(ends, np.int64), chunks=(3,))
    return values


def random_case(seed: int, base: Path) -> Case:
    rng = np.random.default_rng(seed)
    stores = int(rng.integers(1, 4))
    joined = stores > 1 and rng.random() < 0.5
    heights = [int(rng.integers(4, 8))] * stores if joined else [int(rng.integers(4, 8)) for _ in range(stores)]
    by_name = rng.random() < 0.4
    arrays, breaks = [], []
    for i in range(stores):
        length = int(rng.integers(9, 25))
        ends = sorted({int(e) for e in rng.integers(1, length, int(rng.integers(1, 4)))} | {length})
        arrays.append(write(base / f"{i}.zarr", rng, length, heights[i], ends))
        breaks.append(ends[:-1])
    cut_y = not joined and stores > 1 or rng.random() < 0.4
    axes = ["t", "y"] if cut_y else ["t"]
    windows = {o: {d: int(rng.integers(0, 4)) for d in axes if d in DIMS[o]} for o in DIMS}
    windows["image"] |= {"y": max(windows["image"]["y"], 1)} if cut_y else {}
    strides = {o: {d: int(rng.integers(1, 3)) for d in axes if d in DIMS[o]} for o in DIMS}
    step = {d: int(rng.integers(1, 4)) for d in axes}
    policy = str(rng.choice(["drop", "pad", "edge"]))
    args: dict[str, Any] = {
        "path": [base / f"{i}.zarr" for i in range(stores)] if stores > 1 else base / "0.zarr",
        "arrays": {"image": "image", "action": "action"}, "dims": axes, "window": windows, "stride": strides,
        "out_of_bounds_policy": policy, "fill_value": {"image": -3, "action": 0.5}, "return_mask": True, "return_index": True,
    }
    if stores > 1 and not joined:
        args["concat"] = "samples"
    case = Case(arrays, args, windows, strides, step, policy, joined=joined)
    if rng.random() < 0.6:
        if by_name:
            args["breaks"] = "ends"
            case.breaks = breaks
        elif joined or stores == 1:
            total = sum(len(a["image"]) for a in arrays)
            args["breaks"] = sorted({int(b) for b in rng.integers(1, total, 3)})
            case.breaks = [args["breaks"]]
        if joined and by_name:
            firsts = np.cumsum([0] + [len(a["image"]) for a in arrays])
            # The last of a store's ends is its length: a break, unless the axis ends there.
            of_stores = zip(firsts, breaks, arrays, strict=False)
            case.breaks = [[int(f + b) for f, cuts, a in of_stores for b in [*cuts, len(a["image"])]][:-1]]
    need = max((max(windows[o]["t"], 1) - 1) * strides[o]["t"] + 1 for o in DIMS)
    if policy != "drop" and rng.random() < 0.5:
        case.pads = (int(rng.integers(0, need)), int(rng.integers(0, need)))
        args |= {"pad_before": {"t": case.pads[0]}, "pad_after": {"t": case.pads[1]}}
    if case.pads is None and rng.random() < 0.25 and "concat" not in args:
        sizes = [sum(len(a["image"]) for a in arrays), heights[0]][: len(axes)]
        case.starts = np.stack([rng.integers(0, n, 15) for n in sizes], axis=1)
        args["starts"] = case.starts
    else:
        args["step"] = step
    return case


@dataclass
class Sample:
    index: list[int]
    image: np.ndarray
    action: np.ndarray
    mask: np.ndarray


def bounds_of(cuts: list[int], length: int) -> list[int]:
    return [0, *cuts, length]


def around(bounds: list[int], at: int) -> int:
    return min(max(int(np.searchsorted(bounds, at, side="right")) - 1, 0), len(bounds) - 2)


def reach_of(case: Case, dim: str) -> int:
    """Elements along one axis from the first to the last that a sample reads."""
    return max((max(case.windows[o][dim], 1) - 1) * case.strides[o][dim] + 1 for o in DIMS if dim in DIMS[o])


def starts_along(case: Case, dim: str, bounds: list[int]) -> list[tuple[int, int]]:
    """(segment, start) along one axis, in order."""
    reach, length = reach_of(case, dim), bounds[-1]

    if dim == "t" and case.pads is not None:
        found = []
        for s, (low, high) in enumerate(itertools.pairwise(bounds)):
            last = high - reach + case.pads[1]
            found += [(s, start) for start in range(low - case.pads[0], last + 1, case.step[dim])]
        return found
    grid = range(0, length, case.step[dim])
    if case.policy == "drop":
        inside = [s for s in grid if s + reach <= bounds[around(bounds, s) + 1]]
        return [(around(bounds, s), s) for s in inside]
    return [(around(bounds, s), s) for s in grid]


def cut(case: Case, values: np.ndarray, output: str, where: dict[str, tuple[int, tuple[int, int]]]) -> tuple[np.ndarray, Any]:
    """The output's values, and of the kept axes whether each element is inside."""
    inside: list[np.ndarray] = []
    fill = {"image": -3, "action": 0.5}[output]
    ok_all = np.ones(values.shape, bool)
    for d, dim in enumerate(DIMS[output]):
        if dim not in where:
            continue
        start, (low, high) = where[dim]
        window, stride = case.windows[output][dim], case.strides[output][dim]
        at = start + np.arange(max(window, 1)) * stride
        ok = (at >= low) & (at < high)
        values = np.take(values, np.clip(at, low, high - 1), axis=d)
        ok_all = np.take(ok_all, np.zeros(len(at), int), axis=d)
        ok_all = ok_all & ok.reshape([-1 if i == d else 1 for i in range(values.ndim)])
        inside.append(ok)
    if case.policy == "pad":
        values = np.where(ok_all, values, np.array(fill, values.dtype))
    dropped = [d for d, dim in enumerate(DIMS[output]) if dim in where and case.windows[output][dim] == 0]
    return np.squeeze(values, axis=tuple(dropped)), inside


def samples_of(case: Case) -> list[Sample]:
    parts = case.arrays
    if case.joined or len(parts) == 1:
        parts = [{name: np.concatenate([p[name] for p in parts]) for name in DIMS}]
    found = []
    for number, part in enumerate(parts):
        lengths = dict(zip(DIMS["image"], part["image"].shape, strict=True))
        breaks = case.breaks[number] if case.breaks else []
        bounds = {d: bounds_of(breaks if d == "t" else [], lengths[d]) for d in case.args["dims"]}
        if case.starts is None:
            grid = itertools.product(*(starts_along(case, d, bounds[d]) for d in bounds))
        else:
            rows = [[(around(bounds[d], int(s)), int(s)) for d, s in zip(bounds, row, strict=True)] for row in case.starts]
            fitting = {d: _fitting(case, d, bounds[d]) for d in bounds}
            is_kept = [case.policy != "drop" or all(p in fitting[d] for d, p in zip(bounds, row, strict=True)) for row in rows]
            grid = itertools.compress(rows, is_kept)
        for places in grid:
            where = {d: (at, (bounds[d][s], bounds[d][s + 1])) for d, (s, at) in zip(bounds, places, strict=True)}
            image, _ = cut(case, part["image"], "image", where)
            action, _ = cut(case, part["action"], "action", where)
            index = [number] if "concat" in case.args else []
            index += [places[0][0]] if case.breaks else []
            found.append(Sample(index + [at for _, at in places], image, action, mask_of(case, where)))
    return found


def _fitting(case: Case, dim: str, bounds: list[int]) -> set[tuple[int, int]]:
    reach = reach_of(case, dim)
    return {(around(bounds, s), s) for s in range(bounds[-1]) if s + reach <= bounds[around(bounds, s) + 1]}


def mask_of(case: Case, where: dict[str, tuple[int, tuple[int, int]]]) -> np.ndarray:
    """Over the longest window along each axis that samples have."""
    along, rest = [], True
    for dim, (start, (low, high)) in where.items():
        kept = [(case.windows[o][dim], case.strides[o][dim]) for o in DIMS if dim in DIMS[o] and case.windows[o][dim] > 0]
        if not kept:
            rest = rest and low <= start < high
            continue
        longest = max(w for w, _ in kept)
        stride = next(s for w, s in kept if w == longest)
        at = start + np.arange(longest) * stride
        along.append((at >= low) & (at < high))
    mask = np.ones([len(a) for a in along], bool)
    for d, one in enumerate(along):
        mask &= one.reshape([-1 if i == d else 1 for i in range(mask.ndim)])
    return np.asarray(mask & rest)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + CASES))
def test_random_samples(tmp_path, device, seed):
    case = random_case(seed, tmp_path)
    expected = samples_of(case)
    # Each store that comes one after the other must have a sample.
    stores = {sample.index[0] for sample in expected} if "concat" in case.args else {0}
    if not expected or len(stores) < (len(case.arrays) if "concat" in case.args else 1):
        with pytest.raises(ValueError):
            build(device, 3, **case.args)
        return
    for shuffled in (False, True):
        pipe = build(device, 3, random_shuffle=shuffled, initial_fill=7, **case.args)
        assert pipe.epoch_size("reader") == len(expected)
        found = [list(zip(*outputs, strict=True)) for outputs in itertools.islice(batches(pipe), -(-len(expected) // 3))]
        samples = list(itertools.chain(*found))[: len(expected)]
        left = {}
        for i, sample in enumerate(expected):
            left.setdefault(tuple(sample.index), []).append(i)
        for i, (image, action, mask, index) in enumerate(samples):
            numbers = left[tuple(index.tolist())]
            number = numbers.pop(0)
            if not shuffled:
                assert expected[i].index == index.tolist(), f"sample {i}: {case.args}"
            same(image, expected[number].image, f"image of {index}: {case.args}")
            same(action, expected[number].action, f"action of {index}: {case.args}")
            same(mask, expected[number].mask, f"mask of {index}: {case.args}")
        assert not any(left.values())
