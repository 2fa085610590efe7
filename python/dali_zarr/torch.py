"""Batches for PyTorch: :class:`Loader` reads a Zarr store without DALI's boilerplate.

::

    from dali_zarr.torch import Loader

    loader = Loader("era5.zarr", arrays=["t2m", "z"], offsets={"input": 0, "target": 6}, batch_size=16, random_shuffle=True)
    for batch in loader:
        loss = criterion(model(batch["input"]["t2m"]), batch["target"]["t2m"])
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch

from . import _arguments
from ._arguments.types import Integers, LoaderArguments, Paths
from ._batch import Batch, Origin
from ._collate import Collation
from ._frameworks import accelerate, dataloader, devices, lightning
from ._frameworks import read_group as read_groups
from ._loading import outputs, parts, ranks, samplers, states
from ._loading.agreement import Agreement
from ._loading.asked import Asked
from ._loading.collate import Collate, check_name, of_values
from ._loading.epochs import Ending, Uneven, check_flags
from ._loading.labels import Labels
from ._loading.loader import BaseLoader
from ._loading.reading import Plan, Reading, Transform
from ._loading.rollout import Rollouts
from ._loading.stream import Stream
from ._reader import describe

__all__ = ["Batch", "Dataset", "Loader", "Stream"]


class Loader(Rollouts, BaseLoader[Batch]):
    """Batches of samples from a Zarr store, decoded ahead of time, on the GPU where the codec allows it.

    Iterating gives an epoch of :class:`Batch`, mappings of tensors by the names of arrays. Tensors share DALI's memory: nothing
    is copied. Each iteration is a new epoch; all ranks have equally many batches of equal sizes.

    A loader can be pickled and copied. The copy opens the store when it is first needed, and goes on where the loader is.
    """

    # Whether it reads for a Dataset, which pushes samples, and opens the store in the process that needs it.
    _is_of_dataset = False

    def __init__(
        self,
        path: Paths | None = None,
        *,
        batch_size: int | None = None,
        device: str | torch.device | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Iterable[Any]] | None = None,
        offsets: Integers | Mapping[str, int | Sequence[int]] | None = None,
        drop_last: bool = False,
        pad_last_batch: bool = False,
        uneven: Uneven = "repeat",
        process_group: Any = None,
        shard_id: int | None = None,
        num_shards: int | None = None,
        read_group: Any = None,
        read_dim: str | None = None,
        gather: bool | None = None,
        transform: Transform | None = None,
        num_threads: int = 2,
        return_index: bool = False,
        collate: Collate | None = None,
        columns: int | None = None,
        **arguments: Unpack[LoaderArguments],
    ):
        """Opens the store, and reads ahead from the first iteration on.

        Args:
            path: One store or several, as of :func:`dali_zarr.zarr_reader`, or none.
            batch_size: Samples in each batch of this rank. Default: 1, or ``batch_sampler.batch_size``. With ``batch_sampler`` the
                most that a batch has.
            device: ``"cuda"``, ``"cuda:1"``, ``"cpu"``; default: ``"cuda"`` where there is one. Without a number it is the
                device that is current when the first batch is asked for, or ``LOCAL_RANK``'s, if CUDA isn't in use before.
            sampler: Which samples come, and in which order, as torch's DataLoader takes it: an iterable of numbers of samples,
                or of their rows in ``batch.index``. The sampler is this rank's own: nothing is divided among ranks. It is drawn by
                the thread that iterates, ``prefetch_queue_depth`` batches and four more ahead. Each iteration begins it again.
            batch_sampler: The same, an iterable of batches, which may vary in size.
            offsets: With a list, names of outputs end with the offset (``t2m+6``). With a dictionary, batches are
                nested: ``{"input": 0, "target": 6}`` gives ``batch["target"]["t2m"]``; its values may be lists.
            drop_last: Leave out a last batch that isn't full on all ranks without repetitions. Otherwise it is shorter.
            pad_last_batch: Fill the last batch with repetitions of the last sample instead.
            uneven: What becomes of samples that can't be divided equally among the ranks. ``"repeat"``: ranks with one
                sample less repeat their last one. ``"drop"``: ranks with one sample more leave it out. ``"exact"``: neither;
                the last batch may be shorter, or even empty, on some ranks. ``batch.is_repeated`` tells the repetitions.
                Default: ``"repeat"``.
            process_group: The group of processes whose ranks share the samples. Default: all ranks of
                ``torch.distributed``, else those of torchrun's environment, as they are when the first batch is asked
                for.
            shard_id, num_shards: The rank and the number of ranks, where nothing else tells them. Ranks with the same
                ``shard_id`` (of a parallel model) get the same samples.
            read_group: A group of processes whose ranks get the same samples, such as those that hold parts of one model. Each
                reads its part of ``read_dim``, and the parts are gathered on the device. Groups divide the samples among
                themselves, in the order of their ranks. If they aren't groups of a mesh, say how: give ``process_group``, with one
                rank of each read group, or ``shard_id`` and ``num_shards``. All ranks of a group must take the same batches.
            read_dim: The dimension that a read group divides, one that samples have whole. Default: the last one.
            gather: Whether each rank gets the whole (default) or its part. Parts that are gathered follow the borders of chunks.
                Others differ by one element at most, as torch's ``tensor_split`` makes them. :attr:`read_parts` tells them.
            transform: A function of DALI's operators, run in the same pipeline: from the outputs by name (nested as the batch is)
                to a dictionary of outputs by name.
            num_threads: Threads of DALI's for the transform. Default: 2.
            return_index: Whether batches have an entry ``"index"``; ``batch.index`` is there in any case.
            collate: ``"list"``: each output is a list of tensors, one for each sample, whatever their shapes; they share DALI's
                memory. The other forms are for ragged outputs. ``"nested"``: nested tensors, which share it too. Default:
                ``"nested"``, or lists for outputs whose samples differ in other dimensions than the first.
                ``"padded"``: zeros up to the longest sample of the batch, and an entry ``"lengths"`` of int64; with `groups` and
                ``concat="samples"``, also where all samples have one shape, an entry such as ``"image/shape"`` for each output
                instead.
                ``"csr"``: of the arrays ``X/data`` and ``X/indices`` one sparse matrix ``"X"`` (samples, columns) with
                the layout ``torch.sparse_csr``; Indices that aren't columns raise an error; to check this, the host
                waits for a GPU. It isn't checked that the indices of a row ascend. Arguments that change values
                (``dtype``, ``mean``...) leave the indices as they are.
            columns: The number of columns with ``collate="csr"``. Default: from the attribute ``shape`` of the matrix's
                group.
            arguments: The other arguments of :func:`dali_zarr.zarr_reader`, which explains them. The output of
                ``stack_arrays`` is called ``"stacked"``; where an offset has a name, the output has that name.

        Raises:
            TypeError, ValueError, IndexError, MemoryError: As building a pipeline with the reader does.
            RuntimeError: In a worker process of a DataLoader.
        """
        dataloader.check_worker()
        check_flags(return_index=return_index)
        check_name(collate)
        on = devices.chosen(device)
        drawn = samplers.asked(sampler, batch_sampler, batch_size, drop_last, pad_last_batch)
        if drawn is not None:
            samplers.check_ranks(process_group=process_group, shard_id=shard_id, num_shards=num_shards, uneven=uneven)
        is_pushed = drawn is not None or self._is_of_dataset
        self._read_group = group = read_groups.asked(read_group, read_dim, gather, transform, self._is_of_dataset)
        if group is None:
            rank, world = ranks.rank_and_world(process_group, shard_id, num_shards)
        else:
            parts.check(arguments)
            group.check_device(on.type)
            rank, world = group.shard(process_group, shard_id, num_shards, is_pushed)
        _arguments.names.check(arguments, own=_arguments.names.OF_LOADERS)
        is_given = shard_id is not None or process_group is not None or is_pushed or group is not None
        follows = on.type == "cuda" and ":" not in str(on)
        flat = outputs.offsets_of(offsets)
        asked = Asked(path, arguments, flat, of_values if collate == "csr" else None, None if group is None else group.rank)
        self._begin_rollouts(asked, offsets, arguments.get("window"))
        self._return_index = return_index
        found, self._labels = self._asked.looked_up()
        # This process may become one of several ranks. It shouldn't begin on the device of the first one, so it opens
        # the store later.
        later = self._is_of_dataset or (follows and not is_given and ranks.told() is None and not devices.is_known())
        if batch_size is None:
            batch_size = 1 if drawn is None else drawn.batch_size
        plan = Plan(
            **found, offsets=offsets, batch_size=batch_size, device="gpu" if on.type == "cuda" else "cpu",
            device_id=devices.current() if follows and not later else on.index, shard_id=rank, num_shards=world,
            num_threads=num_threads, transform=transform, is_pushed=is_pushed,
        )
        self._is_host = plan.device == "cpu"
        self._sources = plan.sources()
        self._offsets = outputs.offsets_by_group(offsets, plan.told_offsets)
        self._collate: tuple[Collate | None, int | None] = collate, columns
        self._collation: Collation | None = None
        self._is_given, self._follows = is_given, follows
        # Each thread has its own current device, at first 0. That of another thread, which only prefetches batches,
        # says nothing.
        self._thread = threading.get_ident()
        ending = Ending(drop_last, pad_last_batch, uneven)
        super().__init__(plan, ending, Agreement(process_group, shard_id is None), follows or not is_given, later, drawn)

    def _placed(self, plan: Plan) -> Plan:
        # Where nothing tells the rank any more, the last known one stays.
        rank, world = (None if self._is_given else ranks.told()) or (plan.shard_id, plan.num_shards)
        is_asked = self._follows and (plan.device_id is None or threading.get_ident() == self._thread)
        return replace(plan, shard_id=rank, num_shards=world, device_id=devices.current() if is_asked else plan.device_id)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._thread = threading.get_ident()

    def stream(self) -> Stream[Batch]:
        """Returns a stream of the loader's samples, in the order in which a program pushes them. It has a reader of its own,
        with the loader's arguments. Those of the order don't matter for it."""
        if self._is_gathered:
            raise ValueError("dali_zarr: stream: expected gather=False with read_group, since ranks may push other samples")
        made = self._as_pushed()
        return Stream(lambda: made._reading, lambda found, count: made._taken(found, count, count))

    def refresh(self) -> None:
        """Takes what the stores hold now: new samples, and new values of old ones. Until then a loader keeps the samples
        that it began with, although the stores grow.

        The next iteration is a whole epoch, the next one by number, or the one of :meth:`set_epoch`; the rest of an epoch
        that was begun is left out. States that were taken before belong to the old samples.

        Raises:
            TypeError, ValueError, IndexError, MemoryError: As making the loader does. It keeps its samples then.
        """
        labels = self._labels

        def renewed(plan: Plan) -> Plan:
            nonlocal labels
            found, labels = self._asked.looked_up()
            return replace(plan, **found)

        self._renew(renewed)
        self._labels = labels
        self._tell_places()

    def _tell_places(self) -> None:
        """Finds where the outputs stand, and their offsets."""
        self._sources = self._plan.sources()
        self._offsets = outputs.offsets_by_group(self._plan.offsets, self._plan.told_offsets)

    def _reopen(self, found: dict[str, Any], labels: Labels) -> None:
        self._check_process()
        self._changed(found)
        self._tell_places()

    def _read(self) -> Plan:
        return self._plan

    def _is_within_epoch(self) -> bool:
        return self._course.is_within()

    def _goes_on(self) -> bool:
        return self._course.goes_on()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is after the batch handed out last: numbers and text, as torchdata's StatefulDataLoader gives.

        One rank's state serves all: each may load its own, or that of any other taken after as many batches. It holds the
        offsets and the window, if they were set.
        """
        return super().state_dict() | self._rollout_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken, also with another number of ranks or another batch size: the samples of
        the epoch that all ranks had not delivered then are divided anew. Offsets and windows that were set are set again.

        Random operators of a transform go on exactly if the rank and the number of ranks are the same. Else they begin
        anew.

        Raises:
            ValueError: It isn't a loader's state, or one of a loader of other samples; the message says what differs.
        """
        states.check(state)
        self._load_rollout(state)
        super().load_state_dict(state)

    def _check_reading(self, reading: Reading) -> None:
        super()._check_reading(reading)
        ragged = reading.ragged()
        if self._is_gathered and ragged is not None:
            raise ValueError(
                "dali_zarr: read_group: expected samples of one shape, but those of stores or groups differ; give gather=False"
            )
        if self._is_gathered and self._collate[0] is not None:
            raise ValueError(
                f"dali_zarr: collate={self._collate[0]!r}: expected none beside a read_group that gathers, whose batches are "
                "tensors; leave it out, or give gather=False"
            )
        self._collation = Collation.of(*self._collate, ragged, reading.places, reading.shaped())

    def _check_process(self) -> None:
        dataloader.check_worker()
        super()._check_process()

    def _epoch(self) -> Iterator[Batch]:
        batches = self._first(super()._epoch)
        if self._read_group is not None and self._is_gathered:
            device = torch.device("cpu") if self._is_host else torch.device("cuda", self._plan.device_id or 0)
            batches = self._read_group.gathered(batches, self, device, self._divided)
        return accelerate.told(batches, lambda: self._is_last, _own, self._plan.batch_size)

    @property
    def _is_gathered(self) -> bool:
        """Whether other ranks have parts of the batches."""
        return self._read_group is not None and self._read_group.gathers

    def _divided(self) -> tuple[parts.Parts, dict[outputs.Place, int]]:
        """Returns the parts of a batch, and the axis of the divided dimension in the tensors that have it."""
        told = self._plan.parts
        assert told is not None
        return told, {place: told.axes[one.array] + 1 for place, one in self._sources.items() if one.array in told.axes}

    @property
    def read_parts(self) -> list[slice] | None:
        """The elements of ``read_dim`` that each rank of the read group reads, by rank, among those that are selected. None
        without ``read_group``."""
        told = self._plan.parts
        return None if told is None else [slice(*both) for both in itertools.pairwise(told.bounds)]

    def _first(self, epoch: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
        lightning.load_forgotten_states(self)
        self._begin_epoch()
        yield from epoch()

    @property
    def dataset(self) -> dataloader.Dataset:
        """For code that makes a DataLoader of a loader's parts, as Accelerate's ``skip_first_batches`` does."""
        return dataloader.Dataset(self)

    @property
    def batch_sampler(self) -> dataloader.BatchSampler:
        """As :attr:`dataset`."""
        return dataloader.BatchSampler(self)

    # What else is asked of a DataLoader.
    sampler = None
    collate_fn = staticmethod(dataloader.collate)
    num_workers = 0
    prefetch_factor = None

    def _taken(self, found: list[Any], valid: int, own: int) -> Batch:
        index = self._tensor(found.pop(), valid)
        if self._is_gathered and not self._is_host:
            # The memory of DALI's tensor waits for the stream on which parts are gathered, and not for that of the user.
            index = index.clone()
        if self._collation is not None:
            places, tensors = self._collated(self._collation, found, valid)
        else:
            places, tensors = self._reading.places, [self._shared(output.as_tensor()) for output in found]
            if valid != self._plan.batch_size:
                tensors = [tensor[:valid] for tensor in tensors]
            for i in self._reading.bfloats():
                tensors[i] = tensors[i].view(torch.bfloat16)

        def made(values: dict[str, Any], group: str) -> Batch:
            return Batch(values, _origin=Origin(self._labels, index, own, self._offsets.get(group, 0), self._sources))

        batch = outputs.nested(places, tensors, made)
        if self._return_index:
            batch["index"] = index
        return batch

    def _collated(self, collation: Collation, found: list[Any], valid: int) -> tuple[list[outputs.Place], list[Any]]:
        bits = {id(found[i]) for i in self._reading.bfloats()}

        def typed(output: Any, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.view(torch.bfloat16) if id(output) in bits else tensor

        return collation(
            self._reading.places, found, valid, lambda output: typed(output, self._tensor(output, valid)),
            lambda output, shape: typed(output, self._shared(output.as_reshaped_tensor(list(shape)))),
        )

    def _tensor(self, output: Any, valid: int) -> torch.Tensor:
        tensor = self._shared(output.as_tensor())
        return tensor if valid == self._plan.batch_size else tensor[:valid]

    def _shared(self, shared: Any) -> torch.Tensor:
        """Returns a tensor that shares DALI's buffer, as DALI's own iterator does. DALI uses the buffer again only
        after the tensor is gone and the work queued on it has run, on the stream that is current for its device at this
        call."""
        # On the CPU there is no stream to wait for. PyTorch takes 1 us for a DLPack capsule. For an object it takes 10
        # us: it asks for a version of DLPack that DALI lacks, and then once more.
        return torch.from_dlpack(shared.__dlpack__() if self._is_host else shared)


def _own(batch: Batch) -> int:
    """Returns how many samples of a batch don't repeat others."""
    return int((~batch.is_repeated).sum())


describe(Loader.__init__, LoaderArguments)

# A data set reads by a loader.
from ._dataset import Dataset  # noqa: E402
