"""Where a loader is in its epochs: the arithmetic of the reader's shards, from the reader's own state.

The reader pads (``pad_last_batch``), so that all ranks have equally many full batches. How many samples of a batch are
real follows from the sizes of shards. The engine does the same arithmetic in ``order/schedule.rs``. A *leg*, there
called a segment, is the part of a schedule with one number of shards. It begins with a whole epoch, or with the rest
that earlier legs left of an epoch.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

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
class Leg:
    """A part of the schedule with one number of shards. It is the same for all ranks."""

    num_shards: int
    batch_size: int
    stick_to_shard: bool
    # The epoch in which it begins.
    epoch: int
    # How many samples of that epoch earlier legs left. 0: it begins with the whole epoch.
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
class Course:
    """A rank's way through the epochs."""

    samples: int
    shard_id: int
    legs: tuple[Leg, ...]

    @classmethod
    def of_state(cls, state: str, shard_id: int, num_shards: int, batch_size: int, stick_to_shard: bool) -> Course:
        """Returns the course of a reader that begins with this state. A reader with other shards may have written the
        state."""
        found: dict[str, Any] = json.loads(state)
        names = Leg.__dataclass_fields__
        legs = tuple(Leg(**{name: leg[name] for name in names}) for leg in found["legs"])
        course = cls(found["samples"], shard_id, legs)
        leg = legs[-1]
        if (leg.num_shards, leg.batch_size, leg.stick_to_shard) == (num_shards, batch_size, stick_to_shard):
            return course
        return course._divided(Leg(num_shards, batch_size, stick_to_shard, 0, 0, 0))

    def _divided(self, new: Leg) -> Course:
        """Returns the course in which ``new`` follows the last leg. Its shards divide the rest of the leg's epoch, or
        the next epoch if nothing is left."""
        leg = self.legs[-1]
        if leg.delivered == 0:
            return replace(self, legs=(*self.legs[:-1], replace(new, epoch=leg.epoch, rest=leg.rest)))
        parts = [self.part(leg, shard) for shard in range(leg.num_shards)]
        left = sum(max(part.own - part.done * leg.batch_size, 0) for part in parts)
        first = parts[0]
        if left == 0 or (left == self.samples and not first.is_rest):
            return replace(self, legs=(replace(new, epoch=first.epoch + (left == 0)),))
        before = self.legs if first.is_rest else (leg,)
        return replace(self, legs=(*before, replace(new, epoch=first.epoch, rest=left)))

    def part(self, leg: Leg | None = None, shard_id: int | None = None) -> Part:
        """Returns where a rank is in a leg; by default this rank, in the last leg."""
        leg = leg or self.legs[-1]
        shard_id = self.shard_id if shard_id is None else shard_id
        k, first, turn = leg.delivered, leg.epoch, 0
        if leg.rest:
            length = leg.padded(leg.rest)
            if k < length:
                own = leg.held(leg.rest, shard_id % leg.num_shards)
                return Part(leg.epoch, leg.rest, own, length // leg.batch_size, k // leg.batch_size, shard_id, True)
            k, first, turn = k - length, first + 1, 1
        length = leg.padded(self.samples)
        later, done = divmod(k, length)
        shard = shard_id % leg.num_shards if leg.stick_to_shard else (shard_id + turn + later) % leg.num_shards
        own = leg.held(self.samples, shard)
        return Part(first + later, self.samples, own, length // leg.batch_size, done // leg.batch_size, shard, False)

    def batches_before(self) -> int:
        """Returns how many batches of this epoch each rank delivered before the last leg; 0 unless that began in
        mid-epoch."""
        return sum(self.part(leg).done for leg in self.legs[:-1]) if self.part().is_rest else 0

    def after(self, batches: int) -> Course:
        """Returns the course after this many more batches."""
        leg = self.legs[-1]
        return replace(self, legs=(*self.legs[:-1], replace(leg, delivered=leg.delivered + batches * leg.batch_size)))

    def at(self, epoch: int) -> Course:
        """Returns the course at the beginning of a whole epoch."""
        leg = self.legs[-1]
        whole = leg.epoch + bool(leg.rest)
        if epoch >= whole:
            delivered = (leg.padded(leg.rest) if leg.rest else 0) + (epoch - whole) * leg.padded(self.samples)
            return replace(self, legs=(*self.legs[:-1], replace(leg, delivered=delivered)))
        # The epoch is before the leg: as if the leg's shards had been used from the first epoch on.
        return replace(self, legs=(replace(leg, epoch=0, rest=0, delivered=epoch * leg.padded(self.samples)),))

    def written(self, state: str) -> str:
        """Returns a reader's state with its place replaced by that of this course, which is at the beginning of an
        epoch."""
        found: dict[str, Any] = json.loads(state)
        part = self.part()
        leg = self.legs[-1]
        names = Leg.__dataclass_fields__
        found["legs"] = [{"pad_last_batch": True} | {name: getattr(leg, name) for name in names} for leg in self.legs]
        found["epoch"] = part.epoch
        found["position"] = self.samples * part.shard // leg.num_shards
        found["shard_id"] = self.shard_id
        found.pop("check", None)  # the check of the old legs; the reader writes that of the new ones
        return json.dumps(found, separators=(",", ":"))
