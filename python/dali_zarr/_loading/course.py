"""Where a loader is in its course: the stages that it goes through, and the place of its iterations.

A loader is in one of three stages::

    Unopened --open--> Ready --share--> Shared
        ^               | ^               |
        +-----move------+ +-----load------+

Stages are values. What leads from one to the next makes a new one, and :class:`Course` assigns it when nothing can fail any
more. So there is nothing to roll back: after an error the loader is in the stage in which it was. A reading is closed before
another one is opened in its place, so that the memory of both isn't needed at once. If that fails, the old one opens its
pipeline again, where it was, when it is next asked for a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, cast

from .._log import log
from . import states
from .epochs import Ending, Part
from .reading import NAME, Plan, Reading

# If at most this many batches are left of an epoch, they are read and dropped. Otherwise the store is opened anew.
_FEW = 2

# Raises ValueError where batches can't be made of what is read.
Check: TypeAlias = Callable[[Reading], None]


@dataclass(frozen=True)
class Unopened:
    """The store is opened when it is first needed, with the rank and the device that the process has then."""

    plan: Plan
    # The state from which the first batch goes on; None: the beginning.
    start: Mapping[str, Any] | None = None
    # Whether the device stays, since batches were handed out before a state was loaded.
    keeps_device: bool = False

    def moved(self, plan: Plan) -> Unopened:
        """Returns the stage with the rank and the device of this plan."""
        return replace(self, plan=replace(plan, device_id=self.plan.device_id) if self.keeps_device else plan)

    def opened(self, check: Check) -> Ready:
        """Opens the store."""
        reading = Reading(self.plan)
        check(reading)
        if self.start is not None:
            reading = _restored(reading, self.start)
        return Ready(reading, self.start, self.keeps_device)

    def loaded(self, plan: Plan, state: Mapping[str, Any], check: Check) -> Ready:
        """Opens the store where a state was taken."""
        return replace(self.moved(plan), start=state).opened(check)


@dataclass(frozen=True)
class Ready:
    """The store is open, and no batch was handed out as this rank. With another rank the store is opened anew, at the same
    place."""

    reading: Reading
    # As those of Unopened. ``start`` is where the reading is.
    start: Mapping[str, Any] | None = None
    keeps_device: bool = False

    @property
    def plan(self) -> Plan:
        return self.reading.plan

    def moved(self, plan: Plan) -> Unopened | Ready:
        """Returns the stage with the rank and the device of this plan. Where they are others, the store is closed."""
        moved = Unopened(self.plan, self.start, self.keeps_device).moved(plan)
        if not _is_other_rank(moved.plan, self.plan) and moved.plan.device_id == self.plan.device_id:
            return self
        log.info("the store is opened anew, as rank %d of %d", plan.shard_id, plan.num_shards)
        self.reading.close()
        return moved

    def opened(self, _check: Check) -> Ready:
        """Returns this stage: the store is open."""
        return self

    def loaded(self, plan: Plan, state: Mapping[str, Any], check: Check) -> Ready:
        """Opens the store anew, where a state was taken."""
        moved = self.moved(plan)
        if isinstance(moved, Unopened):
            return moved.loaded(moved.plan, state, check)
        return Ready(_restored(self.reading, state), state, self.keeps_device)

    def shared(self) -> Shared:
        """Returns the stage in which batches are handed out."""
        return Shared(self.reading)

    def at(self, reading: Reading) -> Ready:
        """Returns the stage at the place where this reading is."""
        return Ready(reading, states.of(reading, None), self.keeps_device)

    def renewed(self, reading: Reading) -> Ready:
        """Returns the stage at the beginning of other samples."""
        return Ready(reading, None, self.keeps_device)


@dataclass(frozen=True)
class Shared:
    """Batches were handed out as this rank, which stays until a state is loaded: as another one it would give samples that
    other ranks have given. The device stays for good."""

    reading: Reading

    @property
    def plan(self) -> Plan:
        return self.reading.plan

    def is_elsewhere(self, plan: Plan) -> bool:
        """Returns whether a plan has another rank."""
        return _is_other_rank(plan, self.plan)

    def moved(self, plan: Plan) -> Shared:
        """Returns this stage.

        Raises:
            RuntimeError: The plan has another rank.
        """
        if self.is_elsewhere(plan):
            raise RuntimeError(
                f"dali_zarr: this loader has given batches as rank {self.plan.shard_id} of {self.plan.num_shards}, but the process "
                f"is rank {plan.shard_id} of {plan.num_shards} now, and samples would come twice or not at all: make the loader "
                "after torch.distributed.init_process_group (with Lightning in train_dataloader), call load_state_dict, or give "
                "shard_id and num_shards"
            )
        return self

    def opened(self, _check: Check) -> Shared:
        """Returns this stage: the store is open."""
        return self

    def loaded(self, plan: Plan, state: Mapping[str, Any], check: Check) -> Ready:
        """Opens the store anew, where a state was taken: it says where all ranks go on, whatever this one gave before."""
        return Ready(self.reading, keeps_device=True).loaded(plan, state, check)

    def shared(self) -> Shared:
        """Returns this stage."""
        return self

    def at(self, reading: Reading) -> Shared:
        """Returns the stage at the place where this reading is."""
        return Shared(reading)

    def renewed(self, reading: Reading) -> Shared:
        """Returns the stage at the beginning of other samples."""
        return Shared(reading)


Stage: TypeAlias = Unopened | Ready | Shared


def _is_other_rank(one: Plan, other: Plan) -> bool:
    return (one.shard_id, one.num_shards) != (other.shard_id, other.num_shards)


def _restored(reading: Reading, state: Mapping[str, Any]) -> Reading:
    """Returns a reading like this one, which goes on where a loader's state was taken. This one is closed."""
    template = reading.checkpoint()
    operators = states.of_operators(state, reading.plan, template)
    reading.close()
    return Reading(reading.plan, operators, template)


@dataclass(frozen=True)
class Next:
    """What the next iteration is."""

    # The epoch that was set; None: the one that goes on, or the one after the epoch that was begun.
    epoch: int | None = None
    # Whether it may go on within an epoch, since a state was loaded.
    goes_on: bool = False


class Last(NamedTuple):
    """The batch that was handed out last."""

    epoch: int
    # Its number in the epoch, and whether it is the last one.
    number: int
    is_last: bool


class Course:
    """A loader's stage, and the place of its iterations. The methods are the transitions: each assigns when it is done.

    What opens, closes or replaces the reading needs the loader's lock.
    """

    def __init__(self, stage: Stage, ending: Ending, following: Next | None = None):
        self.stage, self._ending = stage, ending
        self._next = following or Next()
        self.last: Last | None = None
        # The number of the iteration that may go on. Others are over.
        self.turn = 0

    @property
    def plan(self) -> Plan:
        """What is read."""
        return self.stage.plan

    @property
    def reading(self) -> Reading:
        """The running pipeline; there must be one."""
        return cast("Ready | Shared", self.stage).reading

    def is_within(self) -> bool:
        """Whether batches of an epoch were handed out, and others are left."""
        if isinstance(self.stage, Unopened):
            return self.stage.start is not None
        if self.last is not None:
            return not self.last.is_last
        part = self.reading.schedule.part()
        return (part.done > 0 or part.is_rest) and part.done < self.batches(part)

    def goes_on(self) -> bool:
        """Whether the next iteration goes on within an epoch."""
        return self._next.goes_on and self._next.epoch is None and self.is_within()

    def state(self) -> dict[str, Any]:
        """Returns the state after the batch that was handed out last."""
        return states.of(self.reading, self._next.epoch)

    def epoch(self) -> int | None:
        """Returns the epoch of the last batch; before the first one, the epoch that was set; None where neither is known."""
        return self._next.epoch if self.last is None else self.last.epoch

    def following(self) -> int:
        """Returns the epoch of the next iteration, where none was set and no batch was handed out."""
        part = self.reading.schedule.part()
        return part.epoch + (part.done >= self.batches(part))

    def batches(self, part: Part) -> int:
        """Returns how many batches of a part are handed out."""
        return self._ending.batches(part, self.plan.num_shards, self.plan.batch_size)

    def length(self) -> int:
        """Returns how many batches the epoch has."""
        schedule = self.reading.schedule
        return schedule.batches_before() + self.batches(schedule.part())

    def move(self, plan: Plan) -> None:
        """Takes the rank and the device of this plan.

        Raises:
            RuntimeError: Batches were handed out as another rank.
        """
        self.stage = self.stage.moved(plan)

    def open(self, check: Check) -> bool:
        """Opens the store, unless it is open. Returns whether it was opened."""
        before = self.stage
        self.stage = before.opened(check)
        return self.stage is not before

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration this epoch."""
        self._next = replace(self._next, epoch=epoch)

    def load(self, plan: Plan, state: Mapping[str, Any], check: Check) -> None:
        """Goes on where a state was taken, with the rank and the device of this plan."""
        self.stage = self.stage.loaded(plan, dict(state), check)
        self._next, self.last = Next(state.get("next_epoch"), goes_on=True), None
        self.turn += 1

    def renew(self, renewed: Callable[[Plan], Plan], check: Check) -> None:
        """Opens the store anew with the plan that ``renewed`` makes of the old one. The next iteration is a whole epoch: the one
        that was set, or the one after the epoch that was begun."""
        stage = cast("Ready | Shared", self.stage)
        part = stage.reading.schedule.part()
        begun = part.done > 0 or part.is_rest
        plan = renewed(self.plan)
        stage.reading.close()
        reading = Reading(plan)
        check(reading)
        self.stage = stage.renewed(reading)
        self._next = Next(part.epoch + begun if self._next.epoch is None else self._next.epoch)
        self.turn += 1

    def begin(self) -> int:
        """Begins an iteration, which ends all others: goes to the place where it begins. Returns its number."""
        self.turn += 1
        part = self.reading.schedule.part()
        goes_on = part.done == 0 or (self._next.goes_on and part.done < self.batches(part))
        wanted = self._next.epoch
        if wanted is None:
            wanted = part.epoch if goes_on else part.epoch + 1
        if wanted == part.epoch and goes_on:
            self.reading.resume()
        elif wanted == part.epoch + 1 and part.batches - part.done <= _FEW and self.reading.is_open:
            self.finish(part.epoch)
        else:
            self._go_to(wanted)
        return self.turn

    def begun(self, hands_out: bool) -> None:
        """Ends the beginning of an iteration: the next one is the next epoch, unless another is set. With ``hands_out`` batches
        follow, so the rank and the device stay."""
        if hands_out:
            self.stage = cast("Ready | Shared", self.stage).shared()
        self._next = Next()

    def finish(self, epoch: int) -> None:
        """Reads and drops the batches of an epoch that aren't handed out: those after a break, after ``drop_last``, or
        of padding."""
        while self.reading.schedule.part().epoch == epoch:
            self.reading.next(_nothing)
        self._place(self.reading)

    def _go_to(self, epoch: int) -> None:
        log.info("the store is opened anew, to go to epoch %d", epoch)
        reading = self.reading
        template = reading.checkpoint()
        state = reading.schedule.at(epoch).written(reading.state())
        reading.close()
        self._place(Reading(reading.plan, {NAME: state.encode()}, template))

    def _place(self, reading: Reading) -> None:
        self.stage = cast("Ready | Shared", self.stage).at(reading)

    def copied(self, plan: Plan) -> Course:
        """Returns the course of a copy with this plan. It has given no batches, and opens the store when it is first needed."""
        stage = self.stage
        if isinstance(stage, Shared):
            return Course(Unopened(plan, self.state()), self._ending, replace(self._next, goes_on=True))
        return Course(Unopened(plan, stage.start), self._ending, self._next)


def _nothing(_found: list[Any]) -> None:
    """Takes nothing of a batch that is dropped."""
