"""The pipeline of a loader: the reader, perhaps a transform after it, and what makes it go on from a state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .. import _arguments, _calls, _dali, _errors, _native
from .._bad_chunks import BadChunk, of_reader
from .._inspect import counters
from . import checkpoint as checkpoints
from . import common, outputs
from .epochs import Schedule
from .parts import Parts
from .ragged import RAGGED, Ragged

B = TypeVar("B")

NAME = "reader"
# Runs of a pipeline of pushed samples that are scheduled and not taken: as many as DALI's queue holds by default.
_SCHEDULED = 2

Transform = Callable[[dict[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Padded:
    """To what a ragged output is padded."""

    # The length along each dimension in which samples differ, by position: that of the longest sample. Empty: they don't.
    lengths: Mapping[int, int]
    dtype: str
    # See Ragged.are_rows.
    are_rows: bool


@dataclass(frozen=True)
class Plan:
    """What a loader reads, and how."""

    # The reader's arguments, except those of shards, padding and the index.
    arguments: Mapping[str, Any]
    # The offsets as users give them; and as the operator gets them, in elements of the store.
    offsets: Any
    told_offsets: tuple[int, ...]
    arrays: tuple[str, ...]
    batch_size: int
    device: str
    device_id: int | None
    shard_id: int
    num_shards: int
    num_threads: int
    transform: Transform | None
    # Whether the caller pushes the samples of each batch. Otherwise the reader divides them among the ranks.
    is_pushed: bool = False
    # The parts of a dimension that the ranks of a read group read; None: each reads the whole.
    parts: Parts | None = None
    # The bad chunks that closed readers of this plan have found, in their order.
    found_bad: dict[BadChunk, None] = field(default_factory=dict[BadChunk, None], compare=False, repr=False)

    def places(self) -> list[outputs.Place]:
        """Returns where the reader's outputs stand, in their order."""
        stack = bool(self.arguments.get("stack_arrays", False))
        return outputs.places(self.arrays, self.offsets, stack, outputs.masks(self.arrays, self.arguments))

    def sources(self) -> dict[outputs.Place, outputs.Source]:
        """Returns the sources of the reader's outputs, by place."""
        return outputs.sources(self.arrays, self.offsets, bool(self.arguments.get("stack_arrays", False)), self.told_offsets)

    def explained(self) -> dict[str, Any]:
        """Returns what the reader would do. Opens the stores, but builds no pipeline and uses no device.

        Raises:
            TypeError, ValueError, IndexError: As building the pipeline does, apart from limits of memory and the transform.
        """
        given = {name: value for name, value in self.arguments.items() if name not in _arguments.names.DALIS}
        spec = _arguments.to_spec({**given, "offsets": list(self.told_offsets)}) | ({"order": "pushed"} if self.is_pushed else {})
        return _native.explain(spec | {"batch_size": self.batch_size, "device": self.device})

    @property
    def is_by_store(self) -> bool:
        """Whether samples come from groups, or from each store on its own, so that their shapes depend on what is stored."""
        if any(self.arguments.get(name) for name in RAGGED):
            return False
        return bool(self.arguments.get("groups")) or self.arguments.get("concat") == "samples"

    def padded(self) -> dict[outputs.Place, Padded]:
        """Returns the ragged outputs, and to what each is padded. If samples come from stores or groups, all outputs whose
        samples have dimensions are among them, since their shapes are told."""
        explained = self.explained()
        are_rows = explained["ragged"] is not None
        found: dict[outputs.Place, Padded] = {}
        for place, output in zip(self.places(), explained["outputs"], strict=False):
            lengths = {d: length for d, length in enumerate(output["shape"]) if output["dims"][d] in output["ragged_dims"]}
            if lengths or (self.is_by_store and output["shape"]):
                found[place] = Padded(lengths, output["dtype"], are_rows)
        return found

    def pipeline_seed(self) -> int:
        """Returns the seed of the transform's random operators: the same in each run, another one on each rank."""
        seed = int(self.arguments.get("seed", -1))
        return int(np.random.SeedSequence([seed & (2**64 - 1), self.shard_id]).generate_state(1)[0] >> 1)

    def schedule(self, state: str) -> Schedule:
        """Returns the schedule of a reader that begins with this state."""
        if self.is_pushed:
            # The place in the caller's order isn't the reader's. Only the number of samples counts.
            return Schedule.of_state(state, 0, 1, self.batch_size, False)
        stick = any(bool(self.arguments.get(name, False)) for name in ("stick_to_shard", "shuffle_after_epoch"))
        return Schedule.of_state(state, self.shard_id, self.num_shards, self.batch_size, stick)


def _restored_checkpoint(plan: Plan, state: Mapping[str, bytes], template: bytes) -> bytes:
    """Returns the checkpoint from which a pipeline goes on, given states of its operators by name, and a checkpoint of a
    pipeline like it. Random operators without a state go to the numbers that they would have at the reader's place, had
    they been used from the first epoch on."""
    others: dict[str, bytes] = {}
    if NAME in state:
        with contextlib.suppress(ArithmeticError, KeyError, TypeError, ValueError):  # a damaged state, which the reader refuses
            place = plan.schedule(state[NAME].decode()).delivered()
            others = checkpoints.random_states_at(template, place)
    return checkpoints.with_states(template, {**others, **state})


class Reading:
    """A running pipeline. Its last output is the index of samples."""

    def __init__(self, plan: Plan, state: Mapping[str, bytes] | None = None, template: bytes | None = None):
        """Builds the pipeline. With ``state`` (of operators, by name) and ``template`` (a checkpoint of a pipeline like
        this one), it goes on from that state.

        Raises:
            TypeError, ValueError, IndexError, MemoryError: As building the pipeline does.
        """
        self.plan = plan
        restored = None if state is None or template is None else _restored_checkpoint(plan, state, template)
        self._pipe: Any = None
        # The places of outputs that the transform makes.
        self._changed: set[outputs.Place] = set()
        self._pipe, self.places = self._built(restored)
        # Runs of the pipeline that were scheduled and whose outputs were taken, and batches that were pushed. Each is
        # counted by one thread.
        self._runs: int = 0
        self._taken: int = 0
        self._pushes: int = 0
        self._bfloats: list[int] | None = None
        # The library's number of the reader, and how many batches it prepares at a time; None: not asked for yet.
        self._told: tuple[int, int] | None = None
        # Batches since ``_begun``. Before the first one, the pipeline's checkpoint still has the state that it was
        # restored from.
        self._delivered = 0
        self._begun = plan.schedule(self.state())
        # After :meth:`close`: its checkpoint and its counters at that time.
        self._left = b""
        self._last_counters: dict[str, Any] = {}

    def _built(self, restored: bytes | None) -> tuple[Any, list[outputs.Place]]:
        """Builds the pipeline, which goes on from a checkpoint; returns it and the places of its outputs."""
        plan = self.plan
        pipe = _dali.module("pipeline").Pipeline(
            batch_size=plan.batch_size, num_threads=plan.num_threads, device_id=plan.device_id,
            seed=plan.pipeline_seed(), enable_checkpointing=True, checkpoint=restored,
        )
        with pipe:
            places, nodes = self._defined()
            pipe.set_outputs(*nodes)
        try:
            pipe.build()
        except Exception as error:
            _errors.shorten(error)
            raise
        if plan.is_pushed:
            # DALI would fill its queue at the first run, whether samples were pushed or not.
            pipe._first_iter = False
        return pipe, places

    def _defined(self) -> tuple[list[outputs.Place], list[Any]]:
        """Defines the operators; returns the places and the nodes of their outputs."""
        plan = self.plan
        of_rank = {"shard_id": plan.shard_id, "num_shards": plan.num_shards, "pad_last_batch": True}
        order = {_arguments.ORDER: "pushed"} if plan.is_pushed else of_rank
        with common.by_loader():
            found = _dali.module("fn").zarr_reader(
                **{**plan.arguments, "offsets": list(plan.told_offsets)}, **order, device=plan.device, name=NAME, return_index=True,
            )
        places = plan.places()
        if plan.transform is None:
            return places, found
        given = outputs.nested(places, found[:-1], lambda content, _: content)
        before = dict(zip(places, found, strict=False))
        places, nodes = outputs.flattened(plan.transform(given))
        self._changed = {place for place, node in zip(places, nodes, strict=True) if node is not before.get(place)}
        return places, [*nodes, found[-1]]

    @property
    def schedule(self) -> Schedule:
        """Where the reader is, after the batch that was handed out last."""
        return self._begun.after(self._delivered)

    @property
    def is_open(self) -> bool:
        """Whether there is a pipeline."""
        return self._pipe is not None

    def close(self) -> None:
        """Ends the pipeline. Tensors that share its memory stay valid."""
        if self._pipe is not None:
            self._left, self._last_counters = self.checkpoint(), self.counters()
            self.bad_chunks()
            self._pipe = self._told = None

    def resume(self) -> None:
        """Opens the pipeline again if it was closed. It goes on after the batch handed out last.

        Raises:
            TypeError, ValueError, IndexError, MemoryError: As building the pipeline does.
        """
        if self._pipe is None:
            self._pipe, self.places = self._built(self._left)
            self._runs = self._taken = self._pushes = 0

    def checkpoint(self) -> bytes:
        """Returns DALI's checkpoint after the batch that was handed out last."""
        return self._left if self._pipe is None else self._pipe.checkpoint()

    def state(self) -> str:
        """Returns the reader's own part of the checkpoint."""
        return checkpoints.states(self.checkpoint())[NAME].decode()

    def dtypes(self) -> list[str]:
        """Returns the types of the reader's outputs."""
        return self.counters()["dtypes"]

    def bfloats(self, pads: bool = False) -> list[int]:
        """Returns the numbers of the outputs that hold bits of bfloat16 as uint16. Empty with a transform, unless it only
        ``pads``."""
        if self._bfloats is None:
            own = self.dtypes() if self.plan.transform is None or pads else []
            bits = {place for place, dtype in zip(self.plan.places(), own, strict=False) if dtype == "bfloat16"}
            self._bfloats = [i for i, place in enumerate(self.places) if place in bits]
        return self._bfloats

    def ragged(self) -> Ragged | None:
        """Returns the reader's outputs whose samples differ in their shapes; None where there are none."""
        told = self.counters()["ragged"]
        if told is None:
            return None
        found = Ragged.of(told, self.plan.places())
        if found.are_rows:
            return found
        # A transform may give samples of stores one shape, as crops do, under the same name.
        return replace(found, dims={place: dims for place, dims in found.dims.items() if place not in self._changed})

    def shaped(self) -> frozenset[outputs.Place]:
        """Returns the outputs beside which padded batches tell the shapes of samples: those of a reader of stores or groups
        that no transform has changed."""
        return frozenset(self.plan.places()) - self._changed if self.plan.is_by_store else frozenset()

    def counters(self) -> dict[str, Any]:
        """Returns the reader's counters."""
        return self._last_counters if self._pipe is None else counters(self._pipe)[NAME]

    def bad_chunks(self) -> list[BadChunk]:
        """Returns the bad chunks that this reader and those before it have found."""
        if self._pipe is not None:
            self.plan.found_bad.update(dict.fromkeys(of_reader(self.counters()["reader"])))
        return list(self.plan.found_bad)

    def _pushes_to(self) -> tuple[int, int]:
        self.resume()
        if self._told is None:
            told = self.counters()
            self._told = told["reader"], told["batches_ahead"]
        return self._told

    @property
    def batches_ahead(self) -> int:
        """How many batches the reader prepares at a time."""
        return self._pushes_to()[1]

    def push(self, numbers: npt.NDArray[np.int64], epoch: int, place: int | None) -> bool:
        """Pushes the samples of a batch, with the place of the first one in its epoch, on which random crops depend; None: they
        don't. Returns False if as much waits as may wait.

        Raises:
            IndexError: There is no such sample.
            ValueError: There are none, or more than in a batch.
        """
        is_taken = _native.push(self._pushes_to()[0], numbers, epoch, place)
        self._pushes += is_taken
        return is_taken

    def push_batches(self, samples: Sequence[bytes], sizes: Sequence[int], epoch: int, places: Sequence[int]) -> int:
        """Pushes several batches, as :func:`_native.push_batches`. Returns how many were pushed."""
        count = _native.push_batches(self._pushes_to()[0], samples, sizes, epoch, places)
        self._pushes += count
        return count

    def numbers(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the numbers of samples, which are given by numbers (sample,), or by rows of the index (sample, column).

        Raises:
            IndexError: There is no such sample.
            ValueError: The index has another number of columns, or starts are drawn at random.
        """
        return samples if samples.ndim == 1 else _native.find(self._pushes_to()[0], samples)

    def _schedule(self) -> None:
        """Schedules the runs of the next batches: one, or of pushed samples as many as DALI's queue holds. A run whose samples
        weren't pushed waits for them, and DALI's executor may not finish the run before it then."""
        most = min(self._pushes, self._taken + _SCHEDULED) if self.plan.is_pushed else self._taken + 1
        while self._runs < most:
            self._pipe.schedule_run()
            self._runs += 1

    def next(self, take: Callable[[list[Any]], B]) -> B:
        """Waits for the next batch, from a pipeline that is opened if it was closed; returns what ``take`` makes of its outputs.

        Raises:
            KeyboardInterrupt: The wait was interrupted. The pipeline is closed then.
        """
        self.resume()
        try:
            self._schedule()
            try:
                _calls.wait(self._pipe)
            except BaseException:
                # A signal's handler raised it. Where the iteration goes on isn't known, so nothing is read ahead.
                self.close()
                raise
            # The batch before needn't be released: DALI's executor gives it away, and reuses its memory when nobody
            # holds it.
            taken = list(self._pipe.outputs())
            self._taken += 1
            found = take(taken)
            self._schedule()
        except KeyboardInterrupt:
            # The pipeline may have lost a batch.
            self.close()
            raise
        except Exception as error:
            _errors.shorten(error)
            raise
        self._delivered += 1
        return found
