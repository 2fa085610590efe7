"""Which regions of an array are copied at a time. Pure: no store is read here.

A task reads a region of the source and writes it to the target. A region consists of whole units of the target (shards, or
chunks where there are none), so that no two tasks write the same object and a task can be repeated. Source chunks at the borders
of regions are read more than once. Where that costs more than a second copy, an array goes through an intermediate array, as in
rechunker. Both copies can handle the chunks of that array in the memory that there is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

# A core's work, roughly: bytes that it decodes or encodes in a second, and seconds that each object takes beside that.
_RATE, _OBJECT = 500e6, 5e-4
# Regions grow to about this many bytes, since a task costs some milliseconds. There should be at least _TASKS_EACH of
# them for each worker.
_TASK_BYTES = 64 << 20
_TASKS_EACH = 4
# Into how many parts the extents of intermediate chunks may be cut.
_PARTS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Axis:
    """A dimension of an array that is copied.

    Attributes:
        length: Elements of the target.
        unit: Elements of a shard or chunk of the target.
        chunk: Elements of a chunk of the source.
        start, step: Where the first element of the target is in the source, and the distance of the next.
        indices: The places of all elements in the source, if they aren't evenly spaced.
    """

    length: int
    unit: int
    chunk: int
    start: int = 0
    step: int = 1
    indices: tuple[int, ...] | None = None

    def touches(self, extent: int) -> int:
        """Returns how many chunks of the source are read for all regions of this extent, counted again for each
        region."""
        return int(np.sum(self._crossed(extent)))

    def most(self, extent: int) -> int:
        """Returns how many chunks of the source a region of this extent has elements of, at most."""
        return int(np.max(self._crossed(extent), initial=0))

    def _crossed(self, extent: int) -> npt.NDArray[np.int64]:
        """Returns for each region how many chunks of the source it has elements of."""
        first = np.arange(0, self.length, extent)
        last = np.minimum(first + extent, self.length) - 1
        if self.indices is not None:
            chunks = np.asarray(self.indices) // self.chunk
            return np.asarray([len(np.unique(chunks[a : b + 1])) for a, b in zip(first, last, strict=True)], np.int64)
        if self.step >= self.chunk:
            return last - first + 1
        return self._chunk_of(last) - self._chunk_of(first) + 1

    def _chunk_of(self, element: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return (self.start + element * self.step) // self.chunk

    def larger(self, extent: int) -> set[int]:
        """Returns larger extents that are worth a try. All are multiples of the unit."""
        chunk = max(1, self.chunk // self.step)
        wanted = {extent + self.unit, 2 * extent, (extent // chunk + 1) * chunk, math.lcm(self.unit, chunk), self.length}
        rounded = {min(-(-n // self.unit) * self.unit, self._whole) for n in wanted}
        return {n for n in rounded if n > extent}

    @property
    def _whole(self) -> int:
        return -(-self.length // self.unit) * self.unit


@dataclass(frozen=True)
class Sizes:
    """Sizes on which a task's memory depends.

    Attributes:
        read, written: Bytes of an element of the source and of the target.
        shard: Bytes of a decoded shard of the source; 0 without shards.
        sharded: Whether the target has shards.
        in_flight: Objects that a task reads or writes at a time.
    """

    read: int
    written: int
    shard: int
    sharded: bool
    in_flight: int


@dataclass(frozen=True)
class Copy:
    """One pass over an array.

    Attributes:
        region: Elements of a region along each dimension.
        count: The number of regions.
        task_bytes: The most bytes that a task holds.
        amplification: How often a source chunk is read, on average.
        seconds: An estimate for one core, to compare plans.
    """

    region: tuple[int, ...]
    count: int
    task_bytes: int
    amplification: float
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The passes over an array: one, or two with an intermediate array between them, which has the chunks
    ``intermediate``."""

    copies: tuple[Copy, ...]
    intermediate: tuple[int, ...] | None = None

    @property
    def task_bytes(self) -> int:
        return max(copy.task_bytes for copy in self.copies)

    @property
    def seconds(self) -> float:
        return sum(copy.seconds for copy in self.copies)


def task_bytes(axes: Sequence[Axis], sizes: Sizes, region: Sequence[int]) -> int:
    """Returns the most bytes that a task holds: the block in both types, and the source or target objects in flight,
    encoded and decoded."""
    elements = math.prod(min(extent, axis.length) for extent, axis in zip(region, axes, strict=True))
    block = elements * (sizes.read + (sizes.written if sizes.read != sizes.written else 0))
    # A chunk that is read takes up to three times its size: encoded, and while filters decode it once or twice more.
    chunk = math.prod(axis.chunk for axis in axes) * sizes.read
    reading = 3 * chunk * sizes.in_flight
    if sizes.shard:
        # Of a shard, all chunks that the region crosses are read before the first is decoded.
        crossed = math.prod(axis.most(extent) for extent, axis in zip(region, axes, strict=True)) * chunk
        reading += min(sizes.shard * sizes.in_flight, crossed)
    unit = math.prod(axis.unit for axis in axes) * sizes.written
    # A shard takes its size once more: its encoded chunks, and the shard that is put together of them.
    writing = (3 if sizes.sharded else 2) * unit * sizes.in_flight
    return block + max(reading, writing)


def smallest(axes: Sequence[Axis], sizes: Sizes) -> int:
    """Returns the least bytes in which a task can write one shard or chunk."""
    return task_bytes(axes, sizes, [axis.unit for axis in axes])


def planned(axes: Sequence[Axis], sizes: Sizes, budget: int, workers: int) -> Plan | None:
    """Returns the fastest plan within ``budget`` bytes for each task; None where there is none.

    Args:
        axes: The dimensions, none for a scalar.
        sizes: The sizes of elements and objects.
        budget: The most bytes that each task may hold.
        workers: How many tasks run at a time.
    """
    direct = _copy(axes, sizes, budget, workers)
    if direct is None:
        return None
    plan = Plan((direct,))
    # A second copy costs at least as much as another read of everything.
    if direct.amplification > 2:
        staged = _staged(direct, axes, sizes, budget, workers)
        if staged is not None and staged.seconds < plan.seconds:
            return staged
    return plan


def _staged(direct: Copy, axes: Sequence[Axis], sizes: Sizes, budget: int, workers: int) -> Plan | None:
    """Plans two passes. The first pass's region grows from source chunks; the second's grows from target units, as in
    the direct copy. The chunks between them are what both regions have in common, or a part of it: with smaller chunks,
    one more may fit into memory."""
    turned = [
        Axis(axis.length, min(max(1, axis.chunk // axis.step), axis.length), min(axis.unit, axis.length)) for axis in axes
    ]
    read = _copy(turned, replace(sizes, sharded=False), budget, workers)
    if read is None:
        return None
    best: Plan | None = None
    for first, second in itertools.product(_PARTS, repeat=2):
        between = tuple(
            min(-(-one // first), axis.length) if one < other else min(-(-other // second), axis.length)
            for one, other, axis in zip(read.region, direct.region, axes, strict=True)
        )
        plan = _by_way_of(between, axes, sizes, budget, workers)
        if plan is not None and (best is None or plan.seconds < best.seconds):
            best = plan
    return best


def _by_way_of(between: tuple[int, ...], axes: Sequence[Axis], sizes: Sizes, budget: int, workers: int) -> Plan | None:
    """Plans two passes, with an intermediate array that has the chunks ``between``."""
    to = [replace(axis, unit=extent) for axis, extent in zip(axes, between, strict=True)]
    back = [Axis(axis.length, axis.unit, extent) for axis, extent in zip(axes, between, strict=True)]
    first = _copy(to, replace(sizes, sharded=False), budget, workers)
    second = _copy(back, replace(sizes, read=sizes.written, shard=0), budget, workers)
    return None if first is None or second is None else Plan((first, second), between)


def _copy(axes: Sequence[Axis], sizes: Sizes, budget: int, workers: int) -> Copy | None:
    """Plans one pass within a budget: regions grow while that saves reads, then until tasks are large enough."""
    region = [axis.unit for axis in axes]
    if task_bytes(axes, sizes, region) > budget:
        return None
    while True:
        grown = _grown(axes, sizes, budget, region)
        if grown is None:
            break
        region = grown
    _widen(axes, sizes, budget, workers, region)
    reads = math.prod(axis.touches(extent) for axis, extent in zip(axes, region, strict=True))
    chunks = math.prod(axis.touches(axis.length or 1) for axis in axes)
    units = math.prod(-(-axis.length // axis.unit) for axis in axes)
    elements = math.prod(axis.length for axis in axes)
    amplification = reads / chunks if chunks else 1.0
    moved = reads * math.prod(axis.chunk for axis in axes) * sizes.read + elements * sizes.written
    return Copy(
        tuple(region), count(axes, region), task_bytes(axes, sizes, region), amplification,
        moved / _RATE + (reads + units) * _OBJECT,
    )


def _grown(axes: Sequence[Axis], sizes: Sizes, budget: int, region: list[int]) -> list[int] | None:
    """Returns the larger region that saves most reads for the additional memory that it takes; None where none saves
    reads."""
    best, found = 0.0, None
    for i, axis in enumerate(axes):
        reads = axis.touches(region[i])
        for extent in axis.larger(region[i]):
            trial = [*region[:i], extent, *region[i + 1 :]]
            saved = reads / max(axis.touches(extent), 1)
            if saved <= 1 or task_bytes(axes, sizes, trial) > budget:
                continue
            gain = math.log(saved) / math.log(extent / region[i])
            if gain > best + 1e-9 or (found is not None and gain > best - 1e-9 and extent > found[i]):
                best, found = gain, trial
    return found


def _widen(axes: Sequence[Axis], sizes: Sizes, budget: int, workers: int, region: list[int]) -> None:
    """Makes small regions larger in place, unless more would be read, or there would be too few tasks for the
    workers."""
    for i in reversed(range(len(axes))):
        axis = axes[i]
        while region[i] < axis.length:
            extent = min(2 * region[i], -(-axis.length // axis.unit) * axis.unit)
            trial = [*region[:i], extent, *region[i + 1 :]]
            block = math.prod(trial) * sizes.written
            if block > _TASK_BYTES or task_bytes(axes, sizes, trial) > budget or count(axes, trial) < _TASKS_EACH * workers:
                break
            if axis.touches(extent) > axis.touches(region[i]):
                break
            region[i] = extent


def count(axes: Sequence[Axis], region: Sequence[int]) -> int:
    """Returns how many regions there are."""
    return math.prod(-(-axis.length // extent) for axis, extent in zip(axes, region, strict=True))


def regions(shape: Sequence[int], region: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yields all regions of an array, in C order. A region's number is its place in this order."""
    grid = [-(-length // extent) for length, extent in zip(shape, region, strict=True)]
    for at in np.ndindex(*grid):
        yield tuple(
            slice(i * extent, min((i + 1) * extent, length)) for i, extent, length in zip(at, region, shape, strict=True)
        )


def compared(axes: Sequence[Axis], chunks: Sequence[int], sizes: Sizes, budget: int) -> tuple[int, ...]:
    """Returns the extent of the regions in which source and target are read and compared, chosen so that little is read
    twice. ``chunks``: those of the target."""
    others = [Axis(axis.length, 1, chunk) for axis, chunk in zip(axes, chunks, strict=True)]
    pairs = list(zip(axes, others, strict=True))

    def held(region: Sequence[int]) -> int:
        block = math.prod(min(extent, axis.length) for extent, axis in zip(region, axes, strict=True))
        objects = 3 * sizes.in_flight * max(math.prod(a.chunk for a, _ in pairs) * sizes.read, math.prod(chunks) * sizes.written)
        # Both blocks in the target's type, the source's block in its own type, and the bits of both.
        return block * (sizes.read + 3 * sizes.written + 2) + objects + min(sizes.shard, block * sizes.read)

    def reads(region: Sequence[int]) -> int:
        return math.prod(a.touches(n) * a.chunk for (a, _), n in zip(pairs, region, strict=True)) + math.prod(
            b.touches(n) * b.chunk for (_, b), n in zip(pairs, region, strict=True)
        )

    region = [max(1, min(axis.chunk, chunk, axis.length)) for axis, chunk in zip(axes, chunks, strict=True)]
    while True:
        best, found = 0.0, None
        for i, (axis, other) in enumerate(pairs):
            for extent in (axis.larger(region[i]) | other.larger(region[i])) if region[i] < axis.length else ():
                trial = [*region[:i], extent, *region[i + 1 :]]
                saved = reads(region) / max(reads(trial), 1)
                grow = min(extent, axis.length) / region[i]
                if saved > 1 and held(trial) <= budget and grow > 1 and math.log(saved) / math.log(grow) > best:
                    best, found = math.log(saved) / math.log(grow), trial
        if found is None:
            break
        region = found
    for i in reversed(range(len(axes))):
        while region[i] < axes[i].length:
            trial = [*region[:i], min(2 * region[i], axes[i].length), *region[i + 1 :]]
            if held(trial) > min(budget, _TASK_BYTES) or reads(trial) > reads(region):
                break
            region = trial
    return tuple(region)
