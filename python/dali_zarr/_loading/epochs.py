"""Where a loader is in its epochs: the arithmetic of the reader's shards, from the reader's own state.

The reader pads (``pad_last_batch``), so that all ranks have equally many full batches. How many samples of a batch are
real follows from the sizes of shards. The engine does the same arithmetic in ``order/schedule.rs``. A *segment* is the
part of a schedule with one number of shards. It begins with a whole epoch, or with the rest that earlier segments left
of an epoch.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np


def check_flags(**flags: Any) -> None:
    """Raises TypeError unless all are True or False: any text, even "no", would count as true."""
    for name, flag in flags.items():
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"dali_zarr: {name}: expected True or False, but found {flag!r}")


def check_last_batch(drop_last: Any, pad_last_batch: Any) -> None:
    """Raises TypeError or ValueError unless at most one of both is True."""
    check_flags(drop_last=drop_last, pad_last_batch=pad_last_batch)
    if drop_last and pad_last_batch:
        raise ValueError("dali_zarr: expected drop_last or pad_last_batch, but found both")


Uneven: TypeAlias = Literal["repeat", "drop", "exact"]


def whole_batches(samples: int, num_shards: int, batch_size: int) -> int:
    """Returns how many batches of an epoch are full on all ranks: ``drop_last`` keeps them."""
    return samples // num_shards // batch_size


def check_whole_batches(samples: int, num_shards: int, batch_size: int) -> None:
    """Raises ValueError where ``drop_last`` keeps no batch."""
    if not whole_batches(samples, num_shards, batch_size):
        raise ValueError(
            f"dali_zarr: drop_last: expected at least one whole batch, but the {samples} samples on {num_shards} ranks are less "
            f"than {batch_size} each; use a smaller batch_size, or pad_last_batch=True"
        )


@dataclass(frozen=True)
class Segment:
    """A part of the schedule with one number of shards. It is the same for all ranks."""

    num_shards: int
    batch_size: int
    stick_to_shard: bool
    # The epoch in which it begins.
    epoch: int
    # How many samples of that epoch earlier segments left. 0: it begins with the whole epoch.
    rest: int
    # How many samples each rank has delivered, repetitions included.
    delivered: int

    def padded(self, samples: int) -> int:
        """Returns how many samples each rank delivers, repetitions included, if there are ``samples`` in all."""
        return math.ceil(math.ceil(samples / self.num_shards) / self.batch_size) * self.batch_size

    def held(self, samples: int, shard: int) -> int:
        """Returns how many of ``samples`` a shard has."""
        return samples * (shard + 1) // self.num_shards - samples * shard // self.num_shards


@dataclass(frozen=True)
class Part:
    """The epoch, or the rest of one, that a rank is in."""

    epoch: int
    # Samples over all ranks, and of this rank.
    samples: int
    own: int
    # Batches of each rank, a padded last one included, and how many of them were delivered.
    batches: int
    done: int
    shard: int
    is_rest: bool


@dataclass(frozen=True)
class Ending:
    """How an epoch ends if its samples don't divide into full batches on all ranks.

    The shares of ranks differ by at most one sample. ``uneven`` says what becomes of the difference: each rank delivers
    as many samples as the largest share, repeating its last one (``"repeat"``), as many as the smallest share
    (``"drop"``), or its own share (``"exact"``). Then batches are short, or even empty, on some ranks only."""

    drop_last: bool = False
    pad_last_batch: bool = False
    uneven: Uneven = "repeat"

    def __post_init__(self) -> None:
        check_last_batch(self.drop_last, self.pad_last_batch)
        given: Any = self.uneven
        if not isinstance(given, str) or given not in get_args(Uneven):
            raise ValueError(f"dali_zarr: uneven: expected 'repeat', 'drop' or 'exact', but found {given!r}")

    def check(self, samples: int, num_shards: int, batch_size: int) -> None:
        """Raises ValueError where nothing of an epoch is left. The reader itself refuses fewer samples than shards."""
        if self.drop_last:
            check_whole_batches(samples, num_shards, batch_size)

    def has_one_shape(self) -> bool:
        """Returns whether batches with the same number have the same size on all ranks."""
        return self.drop_last or self.pad_last_batch or self.uneven != "exact"

    def batches(self, part: Part, num_shards: int, batch_size: int) -> int:
        """Returns how many batches of a part each rank delivers."""
        if self.drop_last:
            return whole_batches(part.samples, num_shards, batch_size)
        if self.uneven == "drop":
            return math.ceil(part.samples // num_shards / batch_size)
        return part.batches

    def sizes(self, part: Part, number: int, num_shards: int, batch_size: int) -> tuple[int, int]:
        """Returns how many samples batch ``number`` of a part has, and how many of these don't repeat others."""
        if self.pad_last_batch:
            share = part.batches * batch_size
        elif self.uneven == "repeat":
            share = math.ceil(part.samples / num_shards)
        else:
            share = part.samples // num_shards if self.uneven == "drop" else part.own
        before = number * batch_size
        size = min(max(share - before, 0), batch_size)
        return size, min(max(part.own - before, 0), size)


@dataclass(frozen=True)
class Schedule:
    """A rank's way through the epochs."""

    samples: int
    shard_id: int
    segments: tuple[Segment, ...]

    @classmethod
    def of_state(cls, state: str, shard_id: int, num_shards: int, batch_size: int, stick_to_shard: bool) -> Schedule:
        """Returns the schedule of a reader that begins with this state. A reader with other shards may have written the
        state."""
        found: dict[str, Any] = json.loads(state)
        names = Segment.__dataclass_fields__
        segments = tuple(Segment(**{name: segment[name] for name in names}) for segment in found["legs"])
        schedule = cls(found["samples"], shard_id, segments)
        segment = segments[-1]
        if (segment.num_shards, segment.batch_size, segment.stick_to_shard) == (num_shards, batch_size, stick_to_shard):
            return schedule
        return schedule._divided(Segment(num_shards, batch_size, stick_to_shard, 0, 0, 0))

    def _divided(self, new: Segment) -> Schedule:
        """Returns the schedule in which ``new`` follows the last segment. Its shards divide the rest of the segment's
        epoch, or the next epoch if nothing is left."""
        segment = self.segments[-1]
        if segment.delivered == 0:
            return replace(self, segments=(*self.segments[:-1], replace(new, epoch=segment.epoch, rest=segment.rest)))
        parts = [self.part(segment, shard) for shard in range(segment.num_shards)]
        left = sum(max(part.own - part.done * segment.batch_size, 0) for part in parts)
        first = parts[0]
        if left == 0 or (left == self.samples and not first.is_rest):
            return replace(self, segments=(replace(new, epoch=first.epoch + (left == 0)),))
        before = self.segments if first.is_rest else (segment,)
        return replace(self, segments=(*before, replace(new, epoch=first.epoch, rest=left)))

    def part(self, segment: Segment | None = None, shard_id: int | None = None) -> Part:
        """Returns where a rank is in a segment; by default this rank, in the last segment."""
        segment = segment or self.segments[-1]
        shard_id = self.shard_id if shard_id is None else shard_id
        k, first, turn = segment.delivered, segment.epoch, 0
        if segment.rest:
            length = segment.padded(segment.rest)
            if k < length:
                own = segment.held(segment.rest, shard_id % segment.num_shards)
                return Part(segment.epoch, segment.rest, own, length // segment.batch_size, k // segment.batch_size, shard_id, True)
            k, first, turn = k - length, first + 1, 1
        length = segment.padded(self.samples)
        later, done = divmod(k, length)
        shard = shard_id % segment.num_shards if segment.stick_to_shard else (shard_id + turn + later) % segment.num_shards
        own = segment.held(self.samples, shard)
        return Part(first + later, self.samples, own, length // segment.batch_size, done // segment.batch_size, shard, False)

    def batches_before(self) -> int:
        """Returns how many batches of this epoch each rank delivered before the last segment; 0 unless that began in
        mid-epoch."""
        return sum(self.part(segment).done for segment in self.segments[:-1]) if self.part().is_rest else 0

    def delivered(self) -> int:
        """Returns how many samples a rank has delivered since the first epoch, repetitions included, as if there had been
        these shards in all earlier epochs."""
        part, segment = self.part(), self.segments[-1]
        earlier = self.segments[:-1] if part.is_rest else ()
        before = sum(self.part(one).done * one.batch_size for one in earlier)
        return part.epoch * segment.padded(self.samples) + before + part.done * segment.batch_size

    def after(self, batches: int) -> Schedule:
        """Returns the schedule after this many more batches."""
        segment = self.segments[-1]
        delivered = segment.delivered + batches * segment.batch_size
        return replace(self, segments=(*self.segments[:-1], replace(segment, delivered=delivered)))

    def at(self, epoch: int) -> Schedule:
        """Returns the schedule at the beginning of a whole epoch."""
        segment = self.segments[-1]
        whole = segment.epoch + bool(segment.rest)
        if epoch >= whole:
            delivered = (segment.padded(segment.rest) if segment.rest else 0) + (epoch - whole) * segment.padded(self.samples)
            return replace(self, segments=(*self.segments[:-1], replace(segment, delivered=delivered)))
        # The epoch is before the segment: as if the segment's shards had been used from the first epoch on.
        return replace(self, segments=(replace(segment, epoch=0, rest=0, delivered=epoch * segment.padded(self.samples)),))

    def written(self, state: str) -> str:
        """Returns a reader's state with its place replaced by that of this schedule, which is at the beginning of an
        epoch."""
        found: dict[str, Any] = json.loads(state)
        part = self.part()
        segment = self.segments[-1]
        names = Segment.__dataclass_fields__
        found["legs"] = [{"pad_last_batch": True} | {name: getattr(segment, name) for name in names} for segment in self.segments]
        found["epoch"] = part.epoch
        found["position"] = self.samples * part.shard // segment.num_shards
        found["shard_id"] = self.shard_id
        found.pop("check", None)  # the check of the old segments; the reader writes that of the new ones
        return json.dumps(found, separators=(",", ":"))
