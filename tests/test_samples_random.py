"""Random plans over all that cuts samples, against an oracle that walks over elements: windows and values by output, edges,
episodes, stores one after the other or joined, tables of starts, ragged rows; in order, shuffled, and resumed."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.oracle import cast
from support.pipelines import build, same
from support.ragged import samples as read

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
    values: Values = field(default_factory=lambda: Values({}, {}))


@dataclass
class Values:
    """By output: the type, and mean and standard deviation, for each element along its last dimension or for all."""

    dtype: dict[str, str]
    norm: dict[str, tuple[Any, float]]

    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {"dtype": self.dtype} if self.dtype else {}
        if self.norm:
            given |= {"mean": {o: n[0] for o, n in self.norm.items()}, "stddev": {o: n[1] for o, n in self.norm.items()}}
            given["channels"] = {o: -1 for o, n in self.norm.items() if isinstance(n[0], list)}
        return given

    def of(self, output: str, stored: np.ndarray) -> np.ndarray:
        """What comes of stored values."""
        dtype = self.dtype.get(output, "float32" if output in self.norm else stored.dtype)
        if output in self.norm:
            mean, stddev = self.norm[output]
            stored = (stored.astype("float64") - np.array(mean)) / stddev
        return cast(stored, dtype)


def random_values(rng: np.random.Generator, outputs: dict[str, int]) -> Values:
    """For outputs, each with the length of its last dimension."""
    types = ["uint8", "int32", "int64", "float16", "float32", "float64"]
    values = Values({}, {})
    for output, channels in outputs.items():
        if rng.random() < 0.3:
            values.dtype[output] = str(rng.choice(types))
        if rng.random() < 0.3:
            mean = rng.choice([0.0, 1.5, 900.0], channels).tolist()
            values.norm[output] = (mean if rng.random() < 0.5 else mean[0], float(rng.choice([1.0, 0.3, 123.0])))
    return values


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
        "out_of_bounds_policy": policy, "return_mask": True, "return_index": True,
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
    if case.pads is None and rng.random() < 0.4:
        # Some lie outside.
        if "concat" in args:
            sizes = [a["image"].shape[: len(axes)] for a in arrays]
            case.starts = np.array([(s, *(rng.integers(-1, n + 1) for n in sizes[s])) for s in rng.integers(0, stores, 25)])
        else:
            lengths = [sum(len(a["image"]) for a in arrays), heights[0]][: len(axes)]
            case.starts = np.stack([rng.integers(-1, n + 1, 25) for n in lengths], axis=1)
        args["starts"] = case.starts
    else:
        args["step"] = step
    case.values = random_values(rng, {"image": 2, "action": 3})
    args |= case.values.arguments()
    # A value of the output's type.
    types = {"image": "int16", "action": "float32"} | dict.fromkeys(case.values.norm, "float32") | case.values.dtype
    fills = {"f": {"image": -3, "action": 0.5}, "i": {"image": -3, "action": -4}, "u": {"image": 3, "action": 4}}
    args["fill_value"] = {output: fills[np.dtype(dtype).kind][output] for output, dtype in types.items()}
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
    fill = case.args["fill_value"][output]
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
    values = case.values.of(output, values)
    if case.policy == "pad":
        values = np.where(ok_all, values, cast(np.float64(fill), values.dtype))
    dropped = [d for d, dim in enumerate(DIMS[output]) if dim in where and case.windows[output][dim] == 0]
    return np.squeeze(values, axis=tuple(dropped)), inside


def samples_of(case: Case) -> list[Sample]:
    parts = case.arrays
    if case.joined or len(parts) == 1:
        parts = [{name: np.concatenate([p[name] for p in parts]) for name in DIMS}]
    concat = "concat" in case.args
    bounds = []
    for number, part in enumerate(parts):
        lengths = dict(zip(DIMS["image"], part["image"].shape, strict=True))
        breaks = case.breaks[number] if case.breaks else []
        bounds.append({d: bounds_of(breaks if d == "t" else [], lengths[d]) for d in case.args["dims"]})
    # The store, and for each axis the segment and the start.
    places: list[tuple[int, tuple[tuple[int, int], ...]]] = []
    if case.starts is None:
        for number, of in enumerate(bounds):
            places += [(number, place) for place in itertools.product(*(starts_along(case, d, of[d]) for d in of))]
    else:
        fitting = [{d: _fitting(case, d, of[d]) for d in of} for of in bounds]
        for row in case.starts.tolist():
            number, starts = (row[0], row[1:]) if concat else (0, row)
            place = tuple((around(bounds[number][d], s), s) for d, s in zip(bounds[number], starts, strict=True))
            if case.policy != "drop" or all(p in fitting[number][d] for d, p in zip(fitting[number], place, strict=True)):
                places.append((number, place))
    found = []
    for number, place in places:
        of = bounds[number]
        where = {d: (at, (of[d][s], of[d][s + 1])) for d, (s, at) in zip(of, place, strict=True)}
        image, _ = cut(case, parts[number]["image"], "image", where)
        action, _ = cut(case, parts[number]["action"], "action", where)
        index = ([number] if concat else []) + ([place[0][0]] if case.breaks else [])
        found.append(Sample(index + [at for _, at in place], image, action, mask_of(case, where)))
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


def epoch(device: str, samples: int, shuffled: bool, **args: Any) -> list[tuple[np.ndarray, ...]]:
    """The samples of the first epoch, output by output; of a shuffled one the second half comes from a reader that was resumed."""
    pipe = build(device, 3, random_shuffle=shuffled, initial_fill=7, checkpointing=shuffled, **args)
    assert pipe.epoch_size("reader") == samples
    count = -(-samples // 3)
    before = count // 2 if shuffled else count
    found = [sample for batch in read(pipe, before) for sample in zip(*batch, strict=True)]
    if shuffled:
        checkpoint = pipe.checkpoint()
        rest = [sample for batch in read(pipe, count - before) for sample in zip(*batch, strict=True)]
        pipe = build(device, 3, random_shuffle=True, initial_fill=7, checkpointing=True, checkpoint=checkpoint, **args)
        resumed = [sample for batch in read(pipe, count - before) for sample in zip(*batch, strict=True)]
        for one, other in zip(rest, resumed, strict=True):
            for left, right in zip(one, other, strict=True):
                same(right, left, f"after the checkpoint: {args}")
        found += resumed
    return found[:samples]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + CASES))
def test_random_samples(tmp_path, device, seed):
    case = random_case(seed, tmp_path)
    expected = samples_of(case)
    if not expected:
        with pytest.raises(ValueError):
            build(device, 3, **case.args)
        return
    for shuffled in (False, True):
        samples = epoch(device, len(expected), shuffled, **case.args)
        left: dict[tuple[int, ...], list[int]] = {}
        for i, sample in enumerate(expected):
            left.setdefault(tuple(sample.index), []).append(i)
        for i, (image, action, mask, index) in enumerate(samples):
            number = left[tuple(index.tolist())].pop(0)
            if not shuffled:
                assert expected[i].index == index.tolist(), f"sample {i}: {case.args}"
            same(image, expected[number].image, f"image of {index}: {case.args}")
            same(action, expected[number].action, f"action of {index}: {case.args}")
            same(mask, expected[number].mask, f"mask of {index}: {case.args}")
        assert not any(left.values())


@dataclass
class Rows:
    """Stores of ragged rows, joined: the reader's arguments, and each sample by its index."""

    args: dict[str, Any]
    samples: list[tuple[list[int], np.ndarray, np.ndarray]]


def random_rows(seed: int, base: Path) -> Rows:
    rng = np.random.default_rng(seed)
    stores, height = int(rng.integers(1, 3)), int(rng.integers(3, 7))
    ends = bool(rng.random() < 0.3)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for i in range(stores):
        lengths = rng.integers(0, 7, int(rng.integers(2, 25)))
        lengths[0] = 1
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        # As many elements as rows would leave open what is ragged.
        offsets[-1] += offsets[-1] == len(lengths)
        root = zarr.create_group(base / f"{i}.zarr")
        frames = rng.integers(0, 30000, (int(offsets[-1]), height)).astype(np.int16)
        label = rng.normal(size=(len(lengths), 2)).astype(np.float32)
        for name, dims, value in (("frames", ("element", "y"), frames), ("label", ("obs", "k"), label)):
            chunks = tuple(int(rng.integers(1, n + 2)) for n in value.shape)
            root.create_array(name, data=value, chunks=chunks, dimension_names=dims)
        root.create_array("offsets", data=offsets[1:] if ends else offsets, chunks=(5,))
        found += [(frames[a:b], one) for (a, b), one in zip(itertools.pairwise(offsets), label, strict=True)]
    cut_y = bool(rng.random() < 0.5)
    window = int(rng.integers(0, 4)) if cut_y else None
    values = random_values(rng, {"frames": height, "label": 2})
    args: dict[str, Any] = {
        "path": [base / f"{i}.zarr" for i in range(stores)] if stores > 1 else base / "0.zarr",
        "arrays": {"frames": "frames", "label": "label"}, "dims": ["obs", "y"] if cut_y else ["obs"], "return_index": True,
        "ragged_ends" if ends else "ragged": "offsets", **values.arguments(),
    }
    if window is not None:
        args["window"] = {"frames": {"y": window}}
    longest = None
    if rng.random() < 0.4:
        args["max_length"] = longest = int(rng.integers(1, 6))
    across = list(range(height - max(window, 1) + 1)) if window is not None else [None]
    if rng.random() < 0.4:
        rows = rng.integers(0, len(found), 20).tolist()
        table = [(row, int(rng.choice(across))) if cut_y else (row,) for row in rows]
        args["starts"] = np.array(table)
        places = [(row, *rest) if cut_y else (row, None) for row, *rest in table]
    else:
        step, step_y, low = int(rng.integers(1, 3)), int(rng.integers(1, 3)), int(rng.integers(0, len(found) // 2 + 1))
        args |= {"step": {"obs": step} | ({"y": step_y} if cut_y else {}), "roi_start": {"obs": low}}
        places = list(itertools.product(range(low, len(found), step), across[::step_y]))
    samples = []
    for row, y in places:
        frames, label = found[row]
        frames = values.of("frames", frames[:longest])
        if window is not None:
            frames = frames[:, y] if window == 0 else frames[:, y : y + window]
        index = [row] if y is None else [row, y]
        samples.append((index, frames, values.of("label", label)))
    return Rows(args, samples)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + CASES))
def test_random_rows(tmp_path, device, seed):
    case = random_rows(seed, tmp_path)
    for shuffled in (False, True):
        found = epoch(device, len(case.samples), shuffled, **case.args)
        left = [index for index, *_ in case.samples]
        of = {tuple(index): rest for index, *rest in case.samples}
        for i, (frames, label, index) in enumerate(found):
            assert shuffled or left[i] == index.tolist(), f"sample {i}: {case.args}"
            same(frames, of[tuple(index.tolist())][0], f"frames of {index}: {case.args}")
            same(label, of[tuple(index.tolist())][1], f"label of {index}: {case.args}")
        assert sorted(index.tolist() for *_, index in found) == sorted(left)
