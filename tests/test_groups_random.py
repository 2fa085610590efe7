"""Random groups of random shapes, against NumPy: whole, by windows along named dimensions, and by random parts; in order, shuffled,
in shards, and from a checkpoint."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.pipelines import build, same
from support.ragged import samples

CASES = int(os.environ.get("DALI_ZARR_RANDOM_CASES", "60"))
FIRST = int(os.environ.get("DALI_ZARR_RANDOM_FIRST", "0"))

# Arrays of meshes; every dimension has its own length in each group, except the last ones.
KINDS: dict[str, tuple[tuple[str, ...], str]] = {
    "coords": (("points", "xyz"), "float32"),
    "pressure": (("cells",), "float64"),
    "areas": (("cells",), "int16"),
    "faces": (("cells", "corner"), "int64"),
    "fields": (("points", "time", "xyz"), "float32"),
    "images": (("time", "y", "x"), "uint8"),
    "inlet": ((), "float32"),
}
FIXED = {"xyz": 3, "corner": 4}


class Case:
    """A store with groups, the arguments of a reader, and what each of its samples is."""

    def __init__(self, path: Path, number: int):
        rng = self.rng = np.random.default_rng([17, number])
        self.version = int(rng.choice([2, 3]))
        self.named = rng.random() < 0.8
        self.arrays = sorted(rng.choice(list(KINDS), int(rng.integers(1, 5)), replace=False).tolist())
        count = int(rng.integers(1, 8))
        self.groups = [f"run_{k}" for k in sorted(rng.choice(30, count, replace=False).tolist())]
        self.path = path
        # Where some group lacks elements along a dimension that is cut, nothing can be read.
        self.axes = self._axes()
        self.values = [self._write(group) for group in self.groups]
        self.policy = str(rng.choice(["drop", "pad", "edge"]))
        self.crop = [dim for dim, window in self.axes.items() if window >= 0 and rng.random() < 0.4]
        root = zarr.open_group(path, mode="a")
        if rng.random() < 0.5 and self.version == 2:
            zarr.consolidate_metadata(root.store)

    def _axes(self) -> dict[str, int]:
        """The dimensions that samples are cut along, with their windows. Arrays without names are read whole."""
        there = list(dict.fromkeys(dim for name in self.arrays for dim in KINDS[name][0]))
        if not self.named or not there or self.rng.random() < 0.3:
            return {}
        chosen = self.rng.choice(there, int(self.rng.integers(1, min(len(there), 3) + 1)), replace=False).tolist()
        return {dim: int(self.rng.choice([-1, 0, 1, 2, 4, 7])) for dim in chosen}

    def _write(self, name: str) -> dict[str, np.ndarray]:
        rng = self.rng
        group = zarr.open_group(self.path, mode="a", zarr_format=self.version).create_group(name)
        group.attrs["angle"] = 3
        lengths = {
            dim: FIXED.get(dim, int(rng.integers(1 if dim in self.axes or rng.random() < 0.8 else 0, 23)))
            for dims, _ in KINDS.values() for dim in dims
        }
        written: dict[str, np.ndarray] = {}
        for array in self.arrays:
            dims, dtype = KINDS[array]
            shape = tuple(lengths[dim] for dim in dims)
            values = np.asarray(rng.integers(1, 250, shape) + (rng.random(shape) if dtype.startswith("float") else 0)).astype(dtype)
            chunks = tuple(int(rng.integers(1, max(n, 1) + 1)) for n in shape)
            how: dict[str, Any] = {}
            if self.version == 3 and dims and rng.random() < 0.3 and min(shape) > 0:
                how = {"shards": tuple(c * int(rng.integers(1, 3)) for c in chunks)}
            if self.version == 3 and self.named:
                how["dimension_names"] = dims
            made = group.create_array(array, shape=shape, dtype=dtype, chunks=chunks, **how)
            if self.version == 2 and self.named:
                made.attrs["_ARRAY_DIMENSIONS"] = list(dims)
            made[...] = values
            written[array] = values
        return written

    @property
    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "path": self.path, "arrays": self.arrays, "groups": "*", "return_index": True, "out_of_bounds_policy": self.policy,
        }
        if self.axes:
            given |= {"dims": list(self.axes), "window": list(self.axes.values()), "return_mask": True}
        return given | ({"random_crop": self.crop, "seed": 5} if self.crop else {})

    def length(self, group: int, dim: str) -> int:
        array = next(name for name in self.arrays if dim in KINDS[name][0])
        return self.values[group][array].shape[KINDS[array][0].index(dim)]

    def starts(self, group: int) -> list[tuple[list[int], bool]]:
        """The starts along each axis; a random one is one of the list."""
        found = []
        for dim, window in self.axes.items():
            length = self.length(group, dim)
            span = length if window < 0 else max(window, 1)
            fitting = list(range(length - span + 1))
            if dim in self.crop:
                found.append((fitting or ([] if self.policy == "drop" else [0]), True))
            elif self.policy == "drop":
                found.append((fitting[::span], False))
            else:
                found.append((list(range(0, length, span)), False))
        return found

    def rows(self) -> list[tuple[int, list[list[int]]]]:
        """For each sample its group, and the starts that it may have along each axis."""
        found: list[tuple[int, list[list[int]]]] = []
        for group in range(len(self.groups)):
            along = [[starts] if random and starts else [[one] for one in starts] for starts, random in self.starts(group)]
            found += [(group, list(places)) for places in itertools.product(*along)]
        return found

    def sample(self, array: str, row: list[int]) -> np.ndarray:
        """The sample of an array that starts where a row of the index says."""
        group, *start = row
        values = self.values[group][array]
        places = dict(zip(self.axes, start, strict=True))
        for dim in KINDS[array][0]:
            if dim not in places:
                continue
            # Dimensions that are dropped come last.
            at = KINDS[array][0].index(dim)
            window = self.axes[dim]
            count = values.shape[at] if window < 0 else max(window, 1)
            wanted = places[dim] + np.arange(count)
            inside = (wanted >= 0) & (wanted < values.shape[at])
            taken = np.take(values, np.clip(wanted, 0, values.shape[at] - 1), axis=at)
            if self.policy != "edge":
                shape = [1] * values.ndim
                shape[at] = count
                taken = np.where(inside.reshape(shape), taken, np.zeros((), values.dtype))
            values = taken
        dropped = tuple(i for i, dim in enumerate(KINDS[array][0]) if dim in places and self.axes[dim] == 0)
        return values.reshape([n for i, n in enumerate(values.shape) if i not in dropped])

    def mask(self, row: list[int]) -> np.ndarray:
        group, *start = row
        parts = []
        for (dim, window), first in zip(self.axes.items(), start, strict=True):
            length = self.length(group, dim)
            count = length if window < 0 else max(window, 1)
            inside = (first + np.arange(count) >= 0) & (first + np.arange(count) < length)
            parts.append(inside if window else inside[0])
        whole = np.ones((), bool)
        for part in parts:
            whole = np.logical_and.outer(whole, part)
        return whole


def check(case: Case, pipe: Any, batches: int) -> list[list[int]]:
    """Compares batches with NumPy; returns the samples' rows of the index."""
    seen: list[list[int]] = []
    for batch in samples(pipe, batches):
        rows = [row.tolist() for row in batch[-1]]
        for array, found in zip(case.arrays, batch, strict=False):
            for row, one in zip(rows, found, strict=True):
                same(one, np.array(case.sample(array, row), order="C"), f"{array} at {row} of {case.arguments}")
        if case.axes:
            for row, one in zip(rows, batch[-2], strict=True):
                same(one, np.array(case.mask(row), order="C"), f"the mask at {row}")
        seen += rows
    return seen


def fits(rows: list[list[int]], wanted: list[tuple[int, list[list[int]]]]) -> bool:
    """Whether these are the samples that there must be, in any order."""
    def key(row: list[int]) -> tuple[int, tuple[int, ...]]:
        return row[0], tuple(-1 if len(places) > 1 else start for start, places in zip(row[1:], of[row[0]], strict=True))

    # Of each group the starts along random axes, which have more than one place, aren't compared.
    of: dict[int, list[list[int]]] = {}
    for group, places in wanted:
        of.setdefault(group, places)
    told = sorted((group, tuple(-1 if len(p) > 1 else p[0] for p in places)) for group, places in wanted)
    def may_be(row: list[int]) -> bool:
        own = [places for group, places in wanted if group == row[0]]
        return any(all(start in p for start, p in zip(row[1:], places, strict=True)) for places in own)

    return sorted(map(key, rows)) == told and all(map(may_be, rows))


@pytest.mark.parametrize("number", range(FIRST, FIRST + CASES))
def test_groups(tmp_path, device, number):
    case = Case(tmp_path / "g.zarr", number)
    wanted = case.rows()
    if not wanted:
        with pytest.raises(ValueError, match="no sample"):
            build(device, 2, **case.arguments)
        return
    rng = case.rng
    total = len(wanted)
    batch = int(rng.integers(1, 6))
    how: dict[str, Any] = {"random_shuffle": bool(rng.random() < 0.5)}
    pipe = build(device, batch, **case.arguments, **how)
    assert pipe.epoch_size("reader") == total
    seen = check(case, pipe, -(-2 * total // batch))
    assert fits(seen[:total], wanted), (seen[:total], wanted)
    assert fits(seen[total : 2 * total], wanted)
    if not how["random_shuffle"]:
        assert [row[0] for row in seen[:total]] == [group for group, _ in wanted]
    # The same from a checkpoint, and in shards of equally many batches.
    first = build(device, batch, checkpointing=True, **case.arguments, **how)
    head = check(case, first, 2)
    rest = build(device, batch, checkpointing=True, checkpoint=first.checkpoint(), **case.arguments, **how)
    assert (head + check(case, rest, 3))[: len(seen)] == seen[: len(head) + 3 * batch]
    shards = int(rng.integers(2, 4))
    if total >= shards:
        each = -(-total // shards)
        parts = [
            check(case, build(device, each, shard_id=s, num_shards=shards, pad_last_batch=True, **case.arguments, **how), 1)
            for s in range(shards)
        ]
        assert {tuple(row) for part in parts for row in part} == {tuple(row) for row in seen[:total]}
