"""Batches for PyTorch: :class:`Loader` reads a Zarr store without DALI's boilerplate.

::

    from dali_zarr.torch import Loader

    loader = Loader("era5.zarr", arrays=["t2m", "z"], offsets={"input": 0, "target": 6}, batch_size=16, random_shuffle=True)
    for batch in loader:
        loss = criterion(model(batch["input"]["t2m"]), batch["target"]["t2m"])
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Unpack, cast

import numpy as np
import numpy.typing as npt
import torch

from . import _arguments
from ._arguments.types import Integers, LoaderArguments, Paths
from ._collate import Collation
from ._frameworks import accelerate, dataloader, devices, lightning
from ._loading import outputs, pictures, ranks
from ._loading.agreement import Agreement
from ._loading.asked import Asked
from ._loading.collate import Collate, check_name, of_values
from ._loading.epochs import Ending, Uneven, check_flags
from ._loading.labels import Labels
from ._loading.loader import BaseLoader
from ._loading.reading import Plan, Reading, Transform
from ._reader import describe

__all__ = ["Batch", "Loader"]

# PyTorch without types, for what has none.
_UNTYPED: Any = torch


class Batch(dict[str, Any]):
    """Tensors by name. The first dimension of each is the sample. If ``offsets`` is a dictionary, the entries are inner
    batches by its keys.

    Ragged outputs (``ragged``, ``ragged_ends``) are nested tensors with the layout ``torch.jagged``, or what ``collate`` says."""

    index: torch.Tensor | None
    """Where each sample starts: int64 (sample, dimension), one column for each of the reader's ``dims``."""

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), *, _origin: _Origin | None = None):
        super().__init__(values)
        self._origin = _origin
        self.index = None if _origin is None else _origin.index

    @property
    def is_repeated(self) -> torch.Tensor:
        """Which samples repeat others, so that all ranks have equally many (``uneven``) or the batch is full
        (``pad_last_batch``): bool (sample,), on the device of the batch's tensors. A mean over all ranks that counts each
        sample once leaves these out."""
        if self._origin is None:
            raise AttributeError("dali_zarr: this batch doesn't come from a loader, so it has no is_repeated")
        index = self._origin.index
        return torch.arange(len(index), device=_device_of(self) or index.device) >= self._origin.own

    @property
    def coords(self) -> dict[str, npt.NDArray[Any]]:
        """Labels of the samples by dimension, as NumPy arrays (times as datetime64 or cftime's objects). They are read
        when they are first asked for.

        Their shape is (sample,), or (sample, window) along dimensions that have windows: the longest window where
        outputs differ. Labels of an inner batch are shifted by its offset. Padded elements have NaT or NaN. Other
        dimensions of which elements are selected (``sel={"level": [500, 850]}``) have the labels of these elements:
        (element,), or (sample, element) where stores differ."""
        if self._origin is None:
            raise AttributeError("dali_zarr: this batch doesn't come from a loader, so it has no coords")
        return self._origin.coords()

    def coords_of(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Labels of one entry, as ``coords``, but shifted by the entry's offset and with its own windows. The entry is
        an inner batch, or a tensor such as ``"t2m+6"`` or a stack's ``"target"``, which has no coords of its own.

        Raises:
            KeyError: It isn't an output of the reader.
            AttributeError: The batch doesn't come from a loader.
        """
        if isinstance(self.get(name), Batch):
            return self[name].coords
        if self._origin is None:
            raise AttributeError("dali_zarr: this batch doesn't come from a loader, so it has no coords")
        return self._origin.coords(outputs.source_of(self._origin.sources, name, self._origin.offset))

    def to(self, device: Any = None, dtype: torch.dtype | None = None, non_blocking: bool = False) -> Batch:
        """The same batch on another device, or its floating-point tensors in another type; ``coords`` stay."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            to = dtype if tensor.is_floating_point() else None
            return tensor.to(device=device, dtype=to, non_blocking=non_blocking)

        return self._with(moved)

    def plot(self, sample: int | Sequence[int] = 0, **how: Any) -> Any:
        """Matplotlib's figure of samples: a panel for each field, with its coordinates, drawn by xarray; for outputs of three
        dimensions or more a panel for each element of the first ones, 16 at most.

        Args:
            sample: The sample's place in the batch, or a list of places.
            how: Arguments of xarray's plotting, such as ``cmap`` or ``robust=True``.

        Raises:
            ImportError: xarray or Matplotlib isn't installed.
            AttributeError: The batch doesn't come from a loader.
            IndexError: The batch lacks a sample.
            ValueError: The batch has only scalars.
        """
        samples = [sample] if isinstance(sample, int) else list(sample)
        return pictures.plot(list(self._outputs("")), samples, **how)

    def _outputs(self, group: str) -> Iterator[pictures.Output]:
        if self._origin is None:
            raise AttributeError("dali_zarr: this batch doesn't come from a loader, so it has no coords")
        index: npt.NDArray[np.int64] = self._origin.index.cpu().numpy()
        for name, value in self.items():
            if isinstance(value, Batch):
                yield from value._outputs(name)
            elif isinstance(value, torch.Tensor) and name != "index" and value.layout == torch.strided:
                host = value.float() if value.dtype == torch.bfloat16 else value
                values: npt.NDArray[Any] = host.detach().cpu().numpy()
                place = (group, name) if group else (name,)
                yield pictures.Output("/".join(place), self._origin.sources.get(place), values, self._origin.labels, index)

    def __missing__(self, name: object) -> NoReturn:
        raise outputs.missing(self, name)

    def __repr__(self) -> str:
        return pictures.described(self)

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory."""
        return self._with(torch.Tensor.pin_memory)

    def _with(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        values = {
            name: value._with(change) if isinstance(value, Batch) else change(value) if isinstance(value, torch.Tensor) else value
            for name, value in self.items()
        }
        return Batch(values, _origin=self._origin)


def _device_of(batch: Batch) -> torch.device | None:
    """Returns the device of a batch's first tensor."""
    for value in batch.values():
        found = value.device if isinstance(value, torch.Tensor) else _device_of(value) if isinstance(value, Batch) else None
        if found is not None:
            return found
    return None


def _children(batch: Batch) -> tuple[list[Any], list[str]]:
    return list(batch.values()), list(batch)


def _of_children(values: Iterable[Any], names: list[str]) -> Batch:
    return Batch(zip(names, values, strict=True))


def _children_with_keys(batch: Batch) -> tuple[list[tuple[Any, Any]], list[str]]:
    return [(_UNTYPED.utils._pytree.MappingKey(name), value) for name, value in batch.items()], list(batch)


_UNTYPED.utils._pytree.register_pytree_node(
    Batch, _children, _of_children, serialized_type_name="dali_zarr.torch.Batch", flatten_with_keys_fn=_children_with_keys,
)


class _Origin:
    """Where the samples of a batch come from. Samples from ``own`` on repeat others."""

    def __init__(
        self, labels: Labels, index: torch.Tensor, own: int, offset: int, sources: Mapping[outputs.Place, outputs.Source],
    ):
        self.labels, self.index, self.own, self.offset, self.sources = labels, index, own, offset, sources

    def coords(self, source: outputs.Source | None = None) -> dict[str, npt.NDArray[Any]]:
        index = cast("npt.NDArray[np.int64]", self.index.cpu().numpy())
        source = source or outputs.Source(None, self.offset)
        return self.labels.of(index, source.offset, source.array)


class Loader(BaseLoader[Batch]):
    """Batches of samples from a Zarr store, decoded ahead of time, on the GPU where the codec allows it.

    Iterating gives an epoch of :class:`Batch`, mappings of tensors by the names of arrays. Tensors share DALI's memory: nothing
    is copied. Each iteration is a new epoch; all ranks have equally many batches of equal sizes.

    A loader can be pickled and copied. The copy opens the store when it is first needed, and goes on where the loader is.
    """

    def __init__(
        self,
        path: Paths | None = None,
        *,
        batch_size: int = 1,
        device: str | torch.device | None = None,
        offsets: Integers | Mapping[str, int | Sequence[int]] | None = None,
        drop_last: bool = False,
        pad_last_batch: bool = False,
        uneven: Uneven = "repeat",
        process_group: Any = None,
        shard_id: int | None = None,
        num_shards: int | None = None,
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
            batch_size: Samples in each batch of this rank.
            device: ``"cuda"``, ``"cuda:1"``, ``"cpu"``; default: ``"cuda"`` where there is one. Without a number it is the
                device that is current when the first batch is asked for, or ``LOCAL_RANK``'s, if CUDA isn't in use before.
            offsets: With a list, names of outputs end with the offset (``t2m+6``). With a dictionary, batches are
                nested: ``{"input": 0, "target": 6}`` gives ``batch["target"]["t2m"]``; its values may be lists.
            drop_last: Leave out a last batch that isn't full on all ranks without repetitions. Otherwise it is shorter.
            pad_last_batch: Fill the last batch with repetitions of the last sample instead.
            uneven: What becomes of samples that can't be divided equally among the ranks. ``"repeat"``: ranks with one
                sample less repeat their last one. ``"drop"``: ranks with one sample more leave it out. ``"exact"``: neither;
                the last batch may be shorter, or even empty, on some ranks. ``batch.is_repeated`` tells the repetitions.
            process_group: The group of processes whose ranks share the samples. Default: all ranks of
                ``torch.distributed``, else those of torchrun's environment, as they are when the first batch is asked
                for.
            shard_id, num_shards: The rank and the number of ranks, where nothing else tells them. Ranks with the same
                ``shard_id`` (of a parallel model) get the same samples.
            transform: A function of DALI's operators, run in the same pipeline: from the outputs by name (nested as the batch is)
                to a dictionary of outputs by name.
            num_threads: Threads of DALI's for the transform.
            return_index: Whether batches have an entry ``"index"``; ``batch.index`` is there in any case.
            collate: What ragged outputs become. ``"nested"`` (default): nested tensors, which share DALI's memory.
                ``"padded"``: zeros up to the longest sample of the batch, and an entry ``"lengths"`` of int64.
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
        rank, world = ranks.rank_and_world(process_group, shard_id, num_shards)
        _arguments.names.check(arguments, own=_arguments.names.OF_LOADERS)
        is_given = shard_id is not None or process_group is not None
        follows = on.type == "cuda" and ":" not in str(on)
        flat = outputs.offsets_of(offsets)
        self._asked = Asked(path, arguments, flat, of_values if collate == "csr" else None)
        self._return_index = return_index
        found, self._labels = self._asked.looked_up()
        # This process may become one of several ranks. It shouldn't begin on the device of the first one, so it opens
        # the store later.
        later = follows and not is_given and ranks.told() is None and not devices.is_known()
        plan = Plan(
            **found, offsets=offsets, batch_size=batch_size, device="gpu" if on.type == "cuda" else "cpu",
            device_id=devices.current() if follows and not later else on.index, shard_id=rank, num_shards=world,
            num_threads=num_threads, transform=transform,
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
        super().__init__(plan, ending, Agreement(process_group, shard_id is None), follows or not is_given, later)

    def _placed(self, plan: Plan) -> Plan:
        # Where nothing tells the rank any more, the last known one stays.
        rank, world = (None if self._is_given else ranks.told()) or (plan.shard_id, plan.num_shards)
        is_asked = self._follows and (plan.device_id is None or threading.get_ident() == self._thread)
        return replace(plan, shard_id=rank, num_shards=world, device_id=devices.current() if is_asked else plan.device_id)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._thread = threading.get_ident()

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
        self._sources = self._plan.sources()
        self._offsets = outputs.offsets_by_group(self._plan.offsets, self._plan.told_offsets)

    def _check_reading(self, reading: Reading) -> None:
        super()._check_reading(reading)
        self._collation = Collation.of(*self._collate, reading.ragged(), reading.places)

    def _check_process(self) -> None:
        dataloader.check_worker()
        super()._check_process()

    def _epoch(self) -> Iterator[Batch]:
        return accelerate.told(self._first(super()._epoch), lambda: self._is_last)

    def _first(self, epoch: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
        lightning.load_forgotten_states(self)
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
        if self._collation is not None:
            places, tensors = self._collated(self._collation, found, valid)
        else:
            places, tensors = self._reading.places, [self._shared(output.as_tensor()) for output in found]
            if valid != self._plan.batch_size:
                tensors = [tensor[:valid] for tensor in tensors]
            for i in self._reading.bfloats():
                tensors[i] = tensors[i].view(torch.bfloat16)

        def made(values: dict[str, Any], group: str) -> Batch:
            return Batch(values, _origin=_Origin(self._labels, index, own, self._offsets.get(group, 0), self._sources))

        batch = outputs.nested(places, tensors, made)
        if self._return_index:
            batch["index"] = index
        return batch

    def _collated(self, collation: Collation, found: list[Any], valid: int) -> tuple[list[outputs.Place], list[torch.Tensor]]:
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


describe(Loader.__init__, LoaderArguments)
