"""What the loaders have in common, whatever their batches are made of."""

from __future__ import annotations

import copy
import operator
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, NoReturn, Self, SupportsIndex, TypeVar, cast

from .._arguments import paths, tables
from .._bad_chunks import BadChunk
from .._log import log
from . import ranks, states
from .agreement import Agreement
from .course import Course, Last, Shared, Unopened
from .drawn import AnySource, DrawnCourse
from .epochs import Ending
from .iteration import Iteration, check_count
from .reading import Plan, Reading

B = TypeVar("B")

# Arguments that don't matter where the caller says which samples come.
_OF_ORDER = frozenset({
    "random_shuffle", "shuffle_after_epoch", "initial_fill", "weights", "num_samples", "replacement", "stick_to_shard",
})

_IS_OVER = "dali_zarr: another iteration over this loader has begun, or it was refreshed; only the last one can go on"

# What belongs to a process, and isn't copied with a loader.
_OF_PROCESS = frozenset({"_lock", "_group"})


def checked_epoch(epoch: Any) -> int:
    """Returns the number of an epoch as Python's integer.

    Raises:
        TypeError, ValueError: It is none.
    """
    if isinstance(epoch, bool) or not isinstance(epoch, SupportsIndex):
        raise TypeError(f"dali_zarr: set_epoch: expected an integer, but found {epoch!r}")
    epoch = operator.index(epoch)
    if epoch < 0:
        raise ValueError(f"dali_zarr: set_epoch: expected a number of at least 0, but found {epoch}")
    return epoch


class BaseLoader(Generic[B]):
    """An iterable over epochs of batches."""

    def __init__(
        self, plan: Plan, ending: Ending, agreement: Agreement | None = None, moves: bool = False, later: bool = False,
        source: AnySource | None = None,
    ):
        """Opens the store; if ``later``, only checks that it can be opened.

        Args:
            plan: What is read, with the rank and the device as far as they are known.
            ending: What becomes of the last batch.
            agreement: Compares the order with that of the other ranks; None: there are no others.
            moves: Whether the rank or the device may change; then :meth:`_placed` returns them.
            later: Whether to open the store only when it is first needed.
            source: What the samples of each batch are drawn from; None: the order is the reader's own.

        Raises:
            ValueError: Nothing of an epoch would be left; and as building a pipeline raises.
        """
        check_count("batch_size", plan.batch_size)
        check_count("num_threads", plan.num_threads)
        transform: Any = plan.transform
        if transform is not None and not callable(transform):
            raise TypeError(f"dali_zarr: transform: expected a function of the outputs, but found {transform!r}")
        self._ending, self._moves, self._agreement = ending, moves, agreement
        self._course = Course(Unopened(plan), ending) if source is None else DrawnCourse(Unopened(plan), ending, source)
        self._pid = os.getpid()
        # Held while the store is opened or the first batch of an iteration is looked for: other threads may ask for the length.
        self._lock = threading.RLock()
        # The process group that told the rank, and whether there ever was one.
        self._group: Any = ranks.group()
        self._had_group = self._group is not None
        # The number of samples over all ranks, as long as the store isn't open.
        self.samples_told = 0
        if later:
            self.samples_told = int(plan.explained()["samples"])
        else:
            self._open()

    def _check_reading(self, reading: Reading) -> None:
        """Raises ValueError where batches can't be made of what is read."""
        if not reading.plan.is_pushed:
            self._ending.check(reading.schedule.part().samples, reading.plan.num_shards, reading.plan.batch_size)

    @property
    def _plan(self) -> Plan:
        return self._course.plan

    @property
    def _reading(self) -> Reading:
        return self._opened().reading

    def _opened(self) -> Course:
        """Returns the course, with the store open."""
        if isinstance(self._course.stage, Unopened):
            self._check_process()
            with self._lock:
                self._settle(strict=False)
                self._open()
        return self._course

    def _open(self) -> None:
        if self._course.open(self._check_reading):
            log.info("opened %r", self)

    def _settle(self, strict: bool = True) -> None:
        """Finds the rank and the device anew, if they weren't given. If they have changed since the store was opened,
        it is opened anew: at once with ``strict``, else when it is next needed.

        Raises:
            RuntimeError: With ``strict``, if the rank has changed after batches were handed out.
        """
        if os.getpid() != self._pid:
            # A copy in another process, which has no pipeline. It can still describe itself.
            return
        with self._lock:
            if self._moves:
                group, plan = self._found()
                stage = self._course.stage
                if strict or not (isinstance(stage, Shared) and stage.is_elsewhere(plan)):
                    self._course.move(plan)
                    self._group = group
            if strict:
                self._open()

    def _found(self) -> tuple[Any, Plan]:
        """Returns the process group, and the plan with the rank and the device as they are now."""
        group, own = ranks.group(), self._plan
        plan = self._placed(own) if self._moves else own
        if group is None and self._had_group:
            # Keep the ranks that the group told. The environment may have others, such as numbers of machines.
            plan = replace(plan, shard_id=own.shard_id, num_shards=own.num_shards)
        self._had_group |= group is not None
        return group, plan

    def _placed(self, plan: Plan) -> Plan:
        """Returns the plan with the rank and the device as they are now."""
        return plan

    def _taken(self, found: list[Any], valid: int, own: int) -> B:
        """Makes a batch of the first ``valid`` samples of DALI's outputs. Those from ``own`` on repeat others. The last
        output is the index."""
        raise NotImplementedError

    def _check_process(self) -> None:
        """Raises RuntimeError in a process that can't use the pipeline."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "dali_zarr: this loader was made in another process, of which this one is a fork without the loader's threads. "
                "Make the loader in this process; with Lightning's ddp_fork and ddp_notebook in train_dataloader, or choose "
                "ddp_spawn. Worker processes aren't needed: iterate over the loader itself, without a DataLoader around it"
            )

    def __repr__(self) -> str:
        self._settle(strict=False)
        plan = self._plan
        stores = plan.arguments.get("path") or "stores of their own"
        store = repr(paths.shown(stores)) if isinstance(stores, str) else f"{len(stores)} stores"
        ranks = f", rank {plan.shard_id} of {plan.num_shards}" if plan.num_shards > 1 else ""
        name = f"{type(self).__name__} of {', '.join(plan.arrays)} from {store}"
        if isinstance(self._course.stage, Unopened):
            return f"<{name}: not opened yet, batches of {plan.batch_size}, to the {plan.device.upper()}{ranks}>"
        try:
            size = f"{self.samples} samples, {self._course.length()} batches"
        except TypeError:
            size = "a sampler without a length, batches"
        return f"<{name}: {size} of {plan.batch_size}, to the {plan.device.upper()}{ranks}, epoch {self.epoch}>"

    @property
    def bad_chunks(self) -> list[BadChunk]:
        """The bad chunks that the loader has found so far, with ``on_bad_chunk="nan"`` or ``"skip"``: each once, in the order in
        which they were found."""
        self._check_process()
        return self._reading.bad_chunks()

    def counters(self) -> dict[str, Any]:
        """The reader's counters since the store was opened last, as :func:`dali_zarr.counters` returns them."""
        self._check_process()
        return self._reading.counters()

    @property
    def batch_size(self) -> int:
        """Samples in each batch of this rank, except perhaps the last."""
        return self._plan.batch_size

    @property
    def samples(self) -> int:
        """Samples in the epoch that the loader is in, over all ranks. If it goes on from a state with another number of
        ranks, only the rest counts. With a sampler: those that it gives this rank.

        Raises:
            TypeError: The sampler doesn't tell it.
        """
        if isinstance(self._course, DrawnCourse):
            drawn = self._course.samples()
            if drawn is None:
                raise TypeError("dali_zarr: samples: the sampler doesn't tell how many samples it gives")
            return drawn
        self._settle(strict=False)
        return self._reading.schedule.part().samples

    @property
    def number(self) -> int:
        """The number of the last batch in its epoch, which begins with 0; -1 before the first one."""
        return -1 if self._course.last is None else self._course.last.number

    @property
    def epoch(self) -> int:
        """The number of the epoch that the last batch came from; before the first batch, of the next epoch."""
        known = self._course.epoch()
        if known is not None:
            return known
        self._settle(strict=False)
        return self._opened().following()

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration this epoch. Its order depends only on the seed and the epoch's number. A sampler with
        ``set_epoch`` is told when the iteration begins."""
        epoch = checked_epoch(epoch)
        self._check_process()
        self._course.set_epoch(epoch)

    def __getitem__(self, _place: Any) -> NoReturn:
        raise TypeError(
            "dali_zarr: a loader has no elements by number: it gives whole batches in its own order, and reads ahead with "
            "threads of its own; iterate over it itself, without a DataLoader around it"
        )

    def __len__(self) -> int:
        """Batches in an epoch, the same on all ranks. If the epoch began with another number of ranks, the batches that
        those delivered count too. With a sampler: as many as it gives.

        Raises:
            TypeError: The sampler doesn't tell it.
            RuntimeError: Batches were handed out, and the process has another rank since.
        """
        self._settle()
        return self._opened().length()

    def __iter__(self) -> Iterator[B]:
        """Begins the next epoch: the first one after :meth:`load_state_dict` goes on where the state was taken.

        Raises:
            RuntimeError: Batches were handed out, and the process has another rank since; or it is a worker process.
        """
        self._check_process()
        self._settle()
        return Iteration(self._epoch(), self.counters, self._check_process)

    def _epoch(self) -> Iterator[B]:
        if isinstance(self._course, DrawnCourse):
            yield from self._drawn()
            return
        with self._lock:
            self._settle()
            course = self._opened()
            turn = course.begin()
            part = course.reading.schedule.part()
            batches = range(part.done, course.batches(part))
            if batches and self._agreement is not None:
                self._agreement.check(self._plan, course.reading.state())
            course.begun(hands_out=bool(batches))
            before = course.reading.schedule.batches_before()
        shares = self._plan.num_shards, self._plan.batch_size
        for number in batches:
            if turn != course.turn:
                raise RuntimeError(_IS_OVER)
            if self._moves and ranks.group() is not self._group:
                self._settle()
            valid, own = self._ending.sizes(part, number, *shares)
            batch = self._reading.next(lambda found, valid=valid, own=own: self._taken(found, valid, own))
            course.last = Last(part.epoch, before + number, number + 1 == batches.stop)
            yield batch
        if turn == course.turn:
            course.finish(part.epoch)

    def _drawn(self) -> Iterator[B]:
        """An epoch of what a sampler gives."""
        with self._lock:
            self._settle()
            course = cast(DrawnCourse, self._opened())
            turn = course.begin()
            course.begun(hands_out=True)
        while sizes := course.sizes():
            valid, own = sizes
            batch = self._reading.next(lambda found, valid=valid, own=own: self._taken(found, valid, own))
            course.took()
            yield batch
            if turn != course.turn:
                raise RuntimeError(_IS_OVER)
        course.end()

    def _as_pushed(self) -> Self:
        """Returns a loader of the same samples whose caller pushes them. It opens the store when it is first needed."""
        made = copy.copy(self)
        group, plan = self._found()
        arguments = {name: value for name, value in plan.arguments.items() if name not in _OF_ORDER}
        made._course = Course(Unopened(replace(plan, arguments=arguments, is_pushed=True, found_bad={})), self._ending)
        made._moves, made._group = False, group
        return made

    @property
    def _is_last(self) -> bool:
        """Whether the batch handed out last is the last one of its epoch."""
        return self._course.last is not None and self._course.last.is_last

    def _renew(self, renewed: Callable[[Plan], Plan]) -> None:
        """Opens the store anew with the plan that ``renewed`` makes of the old one. The next iteration is a whole epoch:
        the one that was set, or the one after the epoch that was begun.

        Raises:
            TypeError, ValueError, IndexError, MemoryError: As making the loader does. It keeps its samples then.
        """
        self._check_process()
        with self._lock:
            self._settle()
            self._opened().renew(renewed, self._check_reading)
        log.info("refreshed: %r", self)

    def _changed(self, found: Mapping[str, Any], changed: Callable[[Plan], Plan] = lambda plan: plan) -> None:
        """Opens the store anew with what was looked up in it, but with the samples that the loader began with: the store may
        have grown. ``changed`` changes the new plan."""

        def renewed(plan: Plan) -> Plan:
            kept = {name: plan.arguments[name] for name in (tables.OPENING,) if name in plan.arguments}
            return changed(replace(plan, **{**found, "arguments": {**found["arguments"], **kept}}))

        with self._lock:
            if isinstance(self._course.stage, Unopened):
                self._course.move(renewed(self._plan))
            else:
                self._renew(renewed)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is after the batch handed out last: numbers and text, as torchdata's StatefulDataLoader gives.

        One rank's state serves all: each may load its own, or that of any other taken after as many batches.
        """
        self._check_process()
        self._settle(strict=False)
        return self._opened().state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken, also with another number of ranks or another batch size: the samples of
        the epoch that all ranks had not delivered then are divided anew.

        Random operators of a transform go on exactly if the rank and the number of ranks are the same. Else they begin
        anew.

        Raises:
            ValueError: It isn't a loader's state, or one of a loader of other samples; the message says what differs.
        """
        states.check(state)
        self._check_process()
        with self._lock:
            group, plan = self._found()
            self._course.load(plan, state, self._check_reading)
            self._group = group
        log.info("a state of rank %s of %s was loaded: %r", state["rank"], state["world_size"], self)

    def __getstate__(self) -> dict[str, Any]:
        """The loader's arguments and its place. A copy, also one in another process, opens the store when it is first
        needed, and goes on where this loader is."""
        tables.check_portable(self._plan.arguments)
        # What the first opening found is in the memory of this process.
        arguments = {name: value for name, value in self._plan.arguments.items() if name != tables.OPENING}
        return self._portable(replace(self._plan, arguments=arguments))

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        made.__setstate__(self._portable(self._plan))
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self._portable(self._plan), memo))
        return made

    def _portable(self, plan: Plan) -> dict[str, Any]:
        with self._lock:
            found = {name: value for name, value in self.__dict__.items() if name not in _OF_PROCESS}
            return found | {"_course": self._course.copied(plan)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if tables.OPENING not in self._plan.arguments:
            self._course.move(replace(self._plan, arguments={**self._plan.arguments, tables.OPENING: tables.opening()}))
        self._lock = threading.RLock()
        self._group = ranks.group()
        # In another process the ranks of this one's group mean nothing.
        self._had_group = self._group is not None or (self._had_group and self._pid == os.getpid())
        self._pid = os.getpid()
