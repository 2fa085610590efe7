"""Which blocks of elements a pass of statistics reads: windows of its own, as large as chunks and memory suggest.

A block is a sample of the reader. A block may reach beyond the end of a store or segment: there the reader pads, and
padded elements are left out here. So stores of any shapes have blocks of one shape.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .. import _arguments, _native
from .._selection.axes import LARGEST_STEP
from .selected import Selected

Indices = npt.NDArray[np.int64]

# Bytes up to which a block grows; it is larger only where a chunk is. The most bytes of a block, and of a batch.
_GROWN, _LARGEST = 4 << 20, 64 << 20
# The fixed cost of a sample is about that of delivering this many bytes.
_COST = 1 << 16
# Each process has at least this many blocks, if there are enough elements.
_EACH = 4


@dataclass(frozen=True)
class Part:
    """Samples of a batch that have the same elements inside."""

    # Numbers of the samples; None for all.
    rows: Indices | None
    # Along each of dims: where the elements inside begin, counted from the region's start, and how many they are.
    first: tuple[int, ...]
    counts: tuple[int, ...]
    # Which of the elements along the first of dims count.
    chosen: npt.NDArray[np.bool_]


class Blocks:
    """The blocks of a pass, and the reader's arguments that deliver them."""

    def __init__(self, selected: Selected, arguments: Mapping[str, Any], most: int | None, world: int):
        """Reads metadata. ``arguments`` are in the operator's form, without offsets. ``most``: at most this many
        elements along the first of dims are read at a time.

        Raises:
            ValueError, TypeError, IndexError: As building a pipeline with the reader does.
        """
        self._axes = axes = selected.axes
        self._count = len(axes.dims)
        is_listed = bool(arguments.get("starts"))
        # Dates whose data are missing have NaNs, which don't count.
        arguments = {**arguments, "missing_dates": "keep"}
        first = _arguments.values.items(arguments.get("step") or 1)[0]
        few = {} if is_listed else {"step": [first, *[LARGEST_STEP] * (self._count - 1)]}
        told = _native.explain(_arguments.to_spec({**arguments, **few}))
        # Of each array, whether attributes decode it.
        self.decoded: list[bool] = [array["mask_and_scale"] for array in told["arrays"]]
        self._regions = [axes.regions(i, arguments) for i in range(self._count)]
        self._bounds = [np.array(bounds, np.int64) for bounds in told["segments"]["bounds"]]
        self._runs = [self._chosen(store, arguments.get("segments")) for store in range(len(self._bounds))]
        sample = sum(output["sample_bytes"] for output in told["outputs"])
        self.windows = [0] * self._count if is_listed else self._chosen_windows(told["arrays"], sample, most, world)
        extents = [max(window, 1) for window in self.windows]
        block = sample * math.prod(extents)
        blocks = told["samples"] if is_listed else self._blocks(extents)
        # No larger than a process's blocks: padding is copied too, so a batch with few blocks would take as long as a
        # full one.
        self.batch_size = max(1, min(_LARGEST // max(block, 1), 4096, -(-blocks // world)))
        if most is not None:
            self.batch_size = max(1, min(self.batch_size, most // max(self.windows[0], 1)))
        self.samples = told["samples"] if is_listed else sum(
            int((run[:, 1] - run[:, 0]).sum()) * math.prod(self._length(i, store) for i in range(1, self._count))
            for store, run in enumerate(self._steps_of_runs())
        )
        self.arguments = {name: value for name, value in arguments.items() if name not in ("breaks", "segments", "cross_stores")}
        if is_listed:
            return
        spacing = [max(axis[0][2], 1) for axis in self._regions]
        self.arguments |= {
            "window": self.windows, "stride": spacing, "out_of_bounds_policy": "pad",
            "step": [extent * space for extent, space in zip(extents, spacing, strict=True)],
        }
        if arguments.get("segments") is not None:
            self.arguments["starts"] = _arguments.tables.named("starts", self._table())
            del self.arguments["step"]

    def _length(self, i: int, store: int) -> int:
        start, end, spacing = self._region(i, store)
        return -((start - end) // spacing)

    def _region(self, i: int, store: int) -> tuple[int, int, int]:
        return self._regions[i][store % len(self._regions[i])]

    def _chosen(self, store: int, segments: Any) -> Indices:
        """Returns the runs of elements that are read along the first of dims of a store: the first element, and one
        past the last. Neighbouring segments are one run."""
        bounds = self._bounds[store]
        if segments is None:
            return bounds[[[0, -1]]]
        listed = np.array(_arguments.values.items(segments))
        numbers = np.flatnonzero(listed) if listed.dtype.kind == "b" else np.unique(listed % (len(bounds) - 1))
        found = [(int(bounds[n]), int(bounds[n + 1])) for n in numbers.tolist() if bounds[n] < bounds[n + 1]]
        runs: list[list[int]] = []
        for start, end in found:
            if runs and runs[-1][1] == start:
                runs[-1][1] = end
            else:
                runs.append([start, end])
        return np.array(runs, np.int64).reshape(-1, 2)

    def _steps_of_runs(self) -> list[Indices]:
        """Returns the runs of each store, counted in selected elements from the region's start."""
        found: list[Indices] = []
        for store, runs in enumerate(self._runs):
            start, _, spacing = self._region(0, store)
            found.append(-((start - runs) // spacing))
        return found

    def _chosen_windows(self, arrays: Sequence[Mapping[str, Any]], sample: int, most: int | None, world: int) -> list[int]:
        """Returns a block's length along each of dims. It is the largest chunk's, halved where that is too large, or a
        multiple of it while that makes reading cheaper. 0: the dimension, which isn't the first of dims, has one
        element."""
        longest = [max(self._length(i, store) for store in range(len(self._bounds))) for i in range(self._count)]
        chunks = [1] * self._count
        for i, dim in enumerate(self._axes.dims):
            of = [one["chunks"][array["dims"].index(dim)] for array in arrays if dim in array["dims"] for one in array["stores"]]
            spacing = max(self._regions[i][0][2], 1)
            chunks[i] = max(1, min(longest[i], max(of, default=1) // spacing))
        limit = [min(longest[0], most) if most else longest[0], *longest[1:]]
        windows = [max(1, min(chunk, bound)) for chunk, bound in zip(chunks, limit, strict=True)]
        # Dropped dimensions have one element.
        windows = [1 if n == 1 else window for n, window in zip(longest, windows, strict=True)]
        while math.prod(windows) * sample > _LARGEST and max(windows) > 1:
            i = next(i for i, window in enumerate(windows) if window > 1)
            windows[i] = -(-windows[i] // 2)
        for i in reversed(range(self._count)):
            while windows[i] < limit[i]:
                wider = [*windows[:i], min(windows[i] + chunks[i] * max(1, windows[i] // chunks[i]), limit[i]), *windows[i + 1 :]]
                too_large = math.prod(wider) * sample > _GROWN or (world > 1 and self._blocks(wider) < _EACH * world)
                if too_large or self._cost(wider, sample) >= self._cost(windows, sample):
                    break
                windows = wider
        return [0 if n == 1 and i > 0 else window for i, (n, window) in enumerate(zip(longest, windows, strict=True))]

    def _blocks(self, windows: Sequence[int]) -> int:
        found = 0
        for store, runs in enumerate(self._steps_of_runs()):
            along = int((-((runs[:, 0] - runs[:, 1]) // windows[0])).sum())
            found += along * math.prod(-(-self._length(i, store) // windows[i]) for i in range(1, self._count))
        return found

    def _cost(self, windows: Sequence[int], sample: int) -> int:
        return self._blocks(windows) * (math.prod(windows) * sample + _COST)

    def _table(self) -> Indices:
        """Returns a row for each block of the chosen segments, with the store's number in front where each has samples
        of its own."""
        rows: list[Indices] = []
        for store, runs in enumerate(self._runs):
            columns: list[Indices] = []
            for i in range(self._count):
                start, end, spacing = self._region(i, store)
                step = max(self.windows[i], 1) * spacing
                if i:
                    columns.append(np.arange(start, end, step))
                    continue
                listed = cast("list[list[int]]", runs.tolist())
                aligned = [(start - (start - first) // spacing * spacing, last) for first, last in listed]
                parts = [np.arange(first, last, step, dtype=np.int64) for first, last in aligned]
                columns.append(np.concatenate([np.empty(0, np.int64), *parts]))
            grid = np.stack(np.meshgrid(*columns, indexing="ij"), axis=-1).reshape(-1, self._count)
            rows.append(np.insert(grid, 0, store, axis=1) if self._axes.is_concat_samples else grid)
        found = np.concatenate(rows)
        if not len(found):
            raise ValueError("dali_zarr: statistics: segments: expected one with elements, but all that are chosen are empty")
        return found

    def parts(self, index: Indices, offset: int, told: Collection[int]) -> Iterator[Part]:
        """Groups the samples of a batch with this index by which of their elements count. For an offset along the first
        of dims, an element counts if the one at the offset is in the region too, and in the same segment. ``told``:
        those of dims along which it matters where the elements begin."""
        stores = index[:, 0] if self._axes.is_concat_samples else np.zeros(len(index), np.int64)
        at = self._axes.within_picks(index[:, index.shape[1] - self._count :], self.arguments)
        keys: dict[tuple[Any, ...], list[int]] = {}
        made: dict[tuple[Any, ...], Part] = {}
        for row, (store, starts) in enumerate(zip(stores.tolist(), at.tolist(), strict=True)):
            part = self._inside(store, starts, offset)
            key = (tuple(part.first[i] for i in told), part.counts, part.chosen.tobytes())
            keys.setdefault(key, []).append(row)
            made.setdefault(key, part)
        for key, rows in keys.items():
            whole = len(rows) == len(index)
            yield replace(made[key], rows=None if whole else np.array(rows, np.int64))

    def _inside(self, store: int, starts: Sequence[int], offset: int) -> Part:
        first, counts = list[int](), list[int]()
        for i, start in enumerate(starts):
            begin, end, spacing = self._region(i, store)
            first.append((start - begin) // spacing)
            counts.append(min(max(self.windows[i], 1), max(-((start - end) // spacing), 0)))
        spacing = self._region(0, store)[2]
        place = starts[0] + np.arange(counts[0], dtype=np.int64) * spacing
        chosen = self._is_chosen(store, place)
        if offset:
            chosen &= self._joins(store, place, place + offset)
        return Part(None, tuple(first), tuple(counts), chosen)

    def _is_chosen(self, store: int, place: Indices) -> npt.NDArray[np.bool_]:
        """Returns which of a block's elements are in the same run as its first one: a later run has blocks of its
        own."""
        runs = self._runs[store]
        if not len(runs):
            return np.zeros(len(place), np.bool_)
        run = np.searchsorted(runs[:, 0], place, "right") - 1
        return (run >= 0) & (run == run[:1]) & (place < runs[run, 1])

    def _joins(self, store: int, place: Indices, other: Indices) -> npt.NDArray[np.bool_]:
        """Returns whether elements ``other`` are in the region, and in the same segments as ``place``."""
        bounds = self._bounds[store]
        inside = (other >= bounds[0]) & (other < bounds[-1])
        return inside & (np.searchsorted(bounds[1:-1], place, "right") == np.searchsorted(bounds[1:-1], other, "right"))

