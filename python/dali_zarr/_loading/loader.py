"""What the loaders have in common, whatever their batches are made of."""

from __future__ import annotations

import base64
import copy
import operator
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, NoReturn, Self, SupportsIndex, TypeVar, cast

from .._arguments import paths, tables
from .._log import log
from . import checkpoint as checkpoints
from . import ranks
from .agreement import Agreement
from .epochs import Ending, Part
from .iteration import Iteration, check_count
from .reading import NAME, Plan, Reading, restored_checkpoint

B = TypeVar("B")

# If at most this many batches are left of an epoch, they are read and dropped. Otherwise the store is opened anew.
_FEW = 2
_VERSION = 1


# What belongs to a process, and isn't copied with a loader.
_OF_PROCESS = frozenset({"_lock", "_opened", "_group"})


def _nothing(_found: list[Any]) -> None:
    """Takes nothing of a batch that is dropped."""


class BaseLoader(Generic[B]):
    """An iterable over epochs of batches."""

    def __init__(self, plan: Plan, ending: Ending, agreement: Agreement | None = None, moves: bool = False, later: bool = False):
        """Opens the store; if ``later``, only checks that it can be opened.

        Args:
            plan: What is read, with the rank and the device as far as they are known.
            ending: What becomes of the last batch.
            agreement: Compares the order with that of the other ranks; None: there are no others.
            moves: Whether the rank or the device may change; then :meth:`_placed` returns them.
            later: Whether to open the store only when it is first needed.

        Raises:
            ValueError: Nothing of an epoch would be left; and as building a pipeline raises.
        """
        check_count("batch_size", plan.batch_size)
        check_count("num_threads", plan.num_threads)
        transform: Any = plan.transform
        if transform is not None and not callable(transform):
            raise TypeError(f"dali_zarr: transform: expected a function of the outputs, but found {transform!r}")
        self._plan, self._ending, self._moves = plan, ending, moves
        self._pid = os.getpid()
        # The number of the iteration that may go on; the epoch of the next iteration, if it was set; and whether the
        # next iteration may go on within an epoch, since a state was loaded.
        self._turn = 0
        self._next_epoch: int | None = None
        self._is_restored = False
        self._last_epoch: int | None = None
        # The number of the batch handed out last in its epoch, and whether it is the last one of the epoch.
        self._number, self._is_last = -1, False
        self._agreement = agreement
        # Held while the store is opened or the first batch of an iteration is looked for: other threads may ask for the length.
        self._lock = threading.RLock()
        # The process group that told the rank, and whether there ever was one. Whether batches were handed out at all
        # (``_is_used``), and with this rank (``_is_shared``).
        self._group: Any = ranks.group()
        self._had_group = self._group is not None
        self._is_used = self._is_shared = False
        # The state from which the first batch goes on; None: the beginning.
        self._begins: Mapping[str, Any] | None = None
        self._opened: Reading | None = None
        if later:
            plan.explained()
        else:
            self._open()

    def _check_reading(self, reading: Reading) -> None:
        """Raises ValueError where batches can't be made of what is read."""
        self._ending.check(reading.schedule.part().samples, reading.plan.num_shards, reading.plan.batch_size)

    @property
    def _reading(self) -> Reading:
        if self._opened is None:
            self._check_process()
            with self._lock:
                self._settle(strict=False)
                if self._opened is None:
                    self._open()
        return cast(Reading, self._opened)

    def _open(self) -> None:
        reading = Reading(self._plan)
        self._check_reading(reading)
        if self._begins is not None:
            template = reading.checkpoint()
            reading.close()
            reading = Reading(self._plan, self._states_of(self._begins, template), template)
        self._opened = reading
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
                self._place(strict)
            if strict and self._opened is None:
                self._open()

    def _placed(self, plan: Plan) -> Plan:
        """Returns the plan with the rank and the device as they are now."""
        return plan

    def _place(self, strict: bool) -> None:
        group, own, plan = ranks.group(), self._plan, self._placed(self._plan)
        if group is None and self._had_group:
            # Keep the ranks that the group told. The environment may have others, such as numbers of machines.
            plan = replace(plan, shard_id=own.shard_id, num_shards=own.num_shards)
        self._had_group |= group is not None
        is_other = (plan.shard_id, plan.num_shards) != (own.shard_id, own.num_shards)
        if self._is_shared and is_other:
            if strict:
                raise RuntimeError(
                    f"dali_zarr: this loader has given batches as rank {own.shard_id} of {own.num_shards}, but the process is rank "
                    f"{plan.shard_id} of {plan.num_shards} now, and samples would come twice or not at all: make the loader after "
                    "torch.distributed.init_process_group (with Lightning in train_dataloader), call load_state_dict, or give "
                    "shard_id and num_shards"
                )
            return
        self._group = group
        if self._is_used:
            plan = replace(plan, device_id=own.device_id)
        if is_other or plan.device_id != own.device_id:
            if self._opened is not None:
                log.info("the store is opened anew, as rank %d of %d", plan.shard_id, plan.num_shards)
                self._opened.close()
                self._opened = None
            self._plan = plan

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
        if self._opened is None:
            return f"<{name}: not opened yet, batches of {plan.batch_size}, to the {plan.device.upper()}{ranks}>"
        samples = self._reading.schedule.part().samples
        return (
            f"<{name}: {samples} samples, {self._length()} batches of {plan.batch_size}, to the {plan.device.upper()}{ranks}, "
            f"epoch {self.epoch}>"
        )

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
        ranks, only the rest counts."""
        self._settle(strict=False)
        return self._reading.schedule.part().samples

    @property
    def number(self) -> int:
        """The number of the last batch in its epoch, which begins with 0; -1 before the first one."""
        return self._number

    @property
    def epoch(self) -> int:
        """The number of the epoch that the last batch came from; before the first batch, of the next epoch."""
        if self._last_epoch is not None:
            return self._last_epoch
        if self._next_epoch is not None:
            return self._next_epoch
        self._settle(strict=False)
        part = self._reading.schedule.part()
        return part.epoch + (part.done >= self._batches(part))

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration this epoch. Its order depends only on the seed and the epoch's number."""
        given: Any = epoch
        if isinstance(given, bool) or not isinstance(given, SupportsIndex):
            raise TypeError(f"dali_zarr: set_epoch: expected an integer, but found {given!r}")
        epoch = operator.index(given)
        if epoch < 0:
            raise ValueError(f"dali_zarr: set_epoch: expected a number of at least 0, but found {epoch}")
        self._check_process()
        self._next_epoch = epoch

    def __getitem__(self, _place: Any) -> NoReturn:
        raise TypeError(
            "dali_zarr: a loader has no elements by number: it gives whole batches in its own order, and reads ahead with "
            "threads of its own; iterate over it itself, without a DataLoader around it"
        )

    def __len__(self) -> int:
        """Batches in an epoch, the same on all ranks. If the epoch began with another number of ranks, the batches that
        those delivered count too.

        Raises:
            RuntimeError: Batches were handed out, and the process has another rank since.
        """
        self._settle()
        return self._length()

    def _length(self) -> int:
        schedule = self._reading.schedule
        return schedule.batches_before() + self._batches(schedule.part())

    def _batches(self, part: Part) -> int:
        return self._ending.batches(part, self._plan.num_shards, self._plan.batch_size)

    def __iter__(self) -> Iterator[B]:
        """Begins the next epoch: the first one after :meth:`load_state_dict` goes on where the state was taken.

        Raises:
            RuntimeError: Batches were handed out, and the process has another rank since; or it is a worker process.
        """
        self._check_process()
        self._settle()
        return Iteration(self._epoch(), self.counters, self._check_process)

    def _epoch(self) -> Iterator[B]:
        self._turn += 1
        turn = self._turn
        with self._lock:
            self._settle()
            self._begin()
            part = self._reading.schedule.part()
            batches = range(part.done, self._batches(part))
            if batches:
                if self._agreement is not None:
                    self._agreement.check(self._plan, self._reading.state())
                self._is_used = self._is_shared = True
            before = self._reading.schedule.batches_before()
        shares = self._plan.num_shards, self._plan.batch_size
        for number in batches:
            if turn != self._turn:
                raise RuntimeError(
                    "dali_zarr: another iteration over this loader has begun, or it was refreshed; only the last one can go on"
                )
            if self._moves and ranks.group() is not self._group:
                self._settle()
            valid, own = self._ending.sizes(part, number, *shares)
            batch = self._reading.next(lambda found, valid=valid, own=own: self._taken(found, valid, own))
            self._last_epoch = part.epoch
            self._number, self._is_last = before + number, number + 1 == batches.stop
            yield batch
        if turn == self._turn:
            self._finish(part.epoch)

    def _begin(self) -> None:
        """Goes to the place where the next iteration begins."""
        part = self._reading.schedule.part()
        goes_on = part.done == 0 or (self._is_restored and part.done < self._batches(part))
        wanted, self._next_epoch = self._next_epoch, None
        self._is_restored = False
        if wanted is None:
            wanted = part.epoch if goes_on else part.epoch + 1
        if wanted == part.epoch and goes_on:
            if not self._reading.is_open:
                left = self._reading.checkpoint()
                self._reopen(checkpoints.states(left), left)
        elif wanted == part.epoch + 1 and part.batches - part.done <= _FEW and self._reading.is_open:
            self._finish(part.epoch)
        else:
            self._go_to(wanted)

    def _finish(self, epoch: int) -> None:
        """Reads and drops the batches of an epoch that aren't handed out: those after a break, after ``drop_last``, or
        of padding."""
        while self._reading.schedule.part().epoch == epoch:
            self._reading.next(_nothing)
        if not self._is_shared:
            self._begins = self._state()

    def _go_to(self, epoch: int) -> None:
        log.info("the store is opened anew, to go to epoch %d", epoch)
        template = self._reading.checkpoint()
        state = self._reading.schedule.at(epoch).written(self._reading.state())
        self._reopen({NAME: state.encode()}, template)
        self._begins = self._state()

    def _reopen(self, states: Mapping[str, bytes], template: bytes) -> None:
        # First, so that the memory of both pipelines isn't needed at once.
        self._reading.close()
        try:
            self._opened = Reading(self._plan, states, template)
        except KeyboardInterrupt:
            # The next iteration opens the store.
            self._reading.close(restored_checkpoint(self._plan, states, template))
            raise
        except BaseException:
            self._opened = Reading(self._plan, {}, template)
            raise

    def _renew(self, renewed: Callable[[Plan], Plan]) -> None:
        """Opens the store anew with the plan that ``renewed`` makes of the old one. The next iteration is a whole epoch:
        the one that was set, or the one after the epoch that was begun.

        Raises:
            TypeError, ValueError, IndexError, MemoryError: As making the loader does. It keeps its samples then.
        """
        self._check_process()
        with self._lock:
            self._settle()
            part = self._reading.schedule.part()
            begun = part.done > 0 or part.is_rest
            epoch = part.epoch + begun if self._next_epoch is None else self._next_epoch
            plan = renewed(self._plan)
            # First, so that the memory of both pipelines isn't needed at once. If opening fails, the next iteration opens the
            # store with the old samples.
            self._reading.close()
            reading = Reading(plan)
            self._check_reading(reading)
            self._plan, self._opened, self._begins = plan, reading, None
            self._next_epoch, self._is_restored = epoch, False
            self._turn += 1
        log.info("refreshed: %r", self)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is after the batch handed out last: numbers and text, as torchdata's StatefulDataLoader gives.

        One rank's state serves all: each may load its own, or that of any other taken after as many batches.
        """
        self._check_process()
        self._settle(strict=False)
        return self._state()

    def _state(self) -> dict[str, Any]:
        return {
            "version": _VERSION, "reader": self._reading.state(), "next_epoch": self._next_epoch,
            "rank": self._plan.shard_id, "world_size": self._plan.num_shards,
            "pipeline": base64.b64encode(self._reading.checkpoint()).decode(),
        }

    def _states_of(self, state: Mapping[str, Any], template: bytes) -> dict[str, bytes]:
        """Returns the operators' states by name, from a loader's state. On another rank, or with another transform,
        only the reader's is there."""
        states = {NAME: state["reader"].encode()}
        if (state["rank"], state["world_size"]) == (self._plan.shard_id, self._plan.num_shards):
            whole = checkpoints.states(base64.b64decode(state["pipeline"]))
            if whole.keys() == checkpoints.states(template).keys():
                states = whole | states
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken, also with another number of ranks or another batch size: the samples of
        the epoch that all ranks had not delivered then are divided anew.

        Random operators of a transform go on exactly if the rank and the number of ranks are the same. Else they begin
        anew.

        Raises:
            ValueError: It isn't a loader's state, or one of a loader of other samples; the message says what differs.
        """
        given: Any = state
        if not isinstance(given, Mapping):
            raise TypeError(f"dali_zarr: load_state_dict: expected the state of a loader, but found {type(given).__name__}")
        if state.get("version") != _VERSION or not isinstance(state.get("reader"), str):
            raise ValueError(f"dali_zarr: load_state_dict: expected the state of a loader, but found the keys {sorted(state)}")
        self._check_process()
        with self._lock:
            self._load(state)
        log.info("a state of rank %s of %s was loaded: %r", state["rank"], state["world_size"], self)
        self._turn += 1
        self._next_epoch = state.get("next_epoch")
        self._last_epoch = None
        self._is_restored = True

    def _load(self, state: Mapping[str, Any]) -> None:
        before = self._plan, self._begins, self._is_shared
        left = self._state() if self._is_shared else None
        try:
            # The state says where all ranks go on, whatever this one gave before.
            self._is_shared = False
            self._settle()
            template = self._reading.checkpoint()
            self._begins = dict(state)
            self._reopen(self._states_of(state, template), template)
        except Exception:
            plan, self._begins, self._is_shared = before
            if left is not None and plan is not self._plan:
                # The store was opened anew for another rank. Go back to the old rank and its place, so that this
                # process doesn't give batches that others have.
                if self._opened is not None:
                    self._opened.close()
                self._opened, self._plan, self._begins = None, plan, left
            raise

    def __getstate__(self) -> dict[str, Any]:
        """The loader's arguments and its place. A copy, also one in another process, opens the store when it is first
        needed, and goes on where this loader is."""
        tables.check_portable(self._plan.arguments)
        found = self._portable()
        # What the first opening found is in the memory of this process.
        arguments = {name: value for name, value in self._plan.arguments.items() if name != tables.OPENING}
        return found | {"_plan": replace(self._plan, arguments=arguments)}

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        made.__setstate__(self._portable())
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self._portable(), memo))
        return made

    def _portable(self) -> dict[str, Any]:
        with self._lock:
            found = {name: value for name, value in self.__dict__.items() if name not in _OF_PROCESS}
            if self._is_used:
                found |= {"_begins": self._state(), "_is_restored": True}
        # The copy has given no batches.
        return found | {"_is_used": False, "_is_shared": False, "_last_epoch": None, "_turn": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if tables.OPENING not in self._plan.arguments:
            self._plan = replace(self._plan, arguments={**self._plan.arguments, tables.OPENING: tables.opening()})
        self._lock, self._opened = threading.RLock(), None
        self._group = ranks.group()
        # In another process the ranks of this one's group mean nothing.
        self._had_group = self._group is not None or (self._had_group and self._pid == os.getpid())
        self._pid = os.getpid()
