"""Batches for JAX: :class:`Loader` reads a Zarr store without DALI's boilerplate.

::

    from dali_zarr.jax import Loader

    loader = Loader("era5.zarr", arrays=["t2m", "z"], offsets={"input": 0, "target": 6}, batch_size=16, random_shuffle=True)
    for batch in loader:
        state, loss = train_step(state, batch["input"]["t2m"], batch["target"]["t2m"])
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, Unpack, cast

import jax
import numpy as np
import numpy.typing as npt

from . import _arguments, _collate_jax, _dali
from ._arguments.types import Integers, LoaderArguments, Paths
from ._bad_chunks import BadChunk
from ._frameworks.jax_device import OnDevice, Part, check_type, hardware_id, padded
from ._loading import outputs, pictures, ranks, samplers, states
from ._loading.agreement import Agreement
from ._loading.asked import Asked
from ._loading.epochs import Ending, Uneven, check_flags
from ._loading.iteration import Iteration, check_count
from ._loading.labels import Labels
from ._loading.reading import Plan, Transform
from ._loading.rollout import Rollouts
from ._loading.split import Split
from ._loading.stream import Stream
from ._reader import describe

__all__ = ["Batch", "Loader", "Stream"]


class Batch(dict[str, Any]):
    """JAX's arrays by name. The first dimension of each is the sample. If ``offsets`` is a dictionary, the entries are
    inner batches by its keys.

    A batch is a pytree of its arrays. A batch that JAX makes from it, as ``jax.tree.map`` does, has no ``coords``.
    """

    loader: str | None
    """The name of the loader in a mixture that gave the batch."""

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), *, _origin: _Origin | None = None):
        super().__init__(values)
        self._origin = _origin
        self.loader = None

    @property
    def index(self) -> npt.NDArray[np.int64]:
        """Where each sample starts: int64 (sample, dimension), one column for each of the reader's ``dims``."""
        if self._origin is None:
            raise AttributeError("dali_zarr: this batch doesn't come from a loader, so it has no index")
        return self._origin.index()

    @property
    def is_repeated(self) -> npt.NDArray[np.bool_]:
        """Which of this process's samples repeat others: bool (sample,); see :class:`dali_zarr.torch.Batch`."""
        if self._origin is None:
            raise AttributeError("dali_zarr: this batch doesn't come from a loader, so it has no is_repeated")
        return self._origin.is_repeated()

    @property
    def coords(self) -> dict[str, npt.NDArray[Any]]:
        """Labels of the samples by dimension, as NumPy's arrays; see :class:`dali_zarr.torch.Batch`."""
        if self._origin is None:
            raise AttributeError("dali_zarr: this batch doesn't come from a loader, so it has no coords")
        return self._origin.labels.of(self._origin.index(), self._origin.offset)

    def coords_of(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Labels of one entry, shifted by its offset; see :meth:`dali_zarr.torch.Batch.coords_of`."""
        if isinstance(self.get(name), Batch):
            return self[name].coords
        if self._origin is None:
            raise AttributeError("dali_zarr: this batch doesn't come from a loader, so it has no coords")
        source = outputs.source_of(self._origin.sources, name, self._origin.offset)
        return self._origin.labels.of(self._origin.index(), source.offset, source.array)

    def plot(self, sample: int | Sequence[int] = 0, **how: Any) -> Any:
        """Matplotlib's figure of samples; see :meth:`dali_zarr.torch.Batch.plot`."""
        samples = [sample] if isinstance(sample, int) else list(sample)
        return pictures.plot(list(self._outputs("")), samples, **how)

    def _outputs(self, group: str) -> Iterator[pictures.Output]:
        if self._origin is None:
            raise AttributeError("dali_zarr: this batch doesn't come from a loader, so it has no coords")
        for name, value in self.items():
            if isinstance(value, Batch):
                yield from value._outputs(name)
            else:
                place = (group, name) if group else (name,)
                source = self._origin.sources.get(place)
                yield pictures.Output(
                    "/".join(place), source, np.asarray(value), self._origin.labels, self._origin.index(),
                )

    def __missing__(self, name: object) -> NoReturn:
        raise outputs.missing(self, name)

    def __repr__(self) -> str:
        return pictures.described(self)


def _children(batch: Batch) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
    return [(jax.tree_util.DictKey(name), value) for name, value in batch.items()], tuple(batch)


def _of_children(names: tuple[str, ...], values: Iterable[Any]) -> Batch:
    return Batch(zip(names, values, strict=True))


jax.tree_util.register_pytree_with_keys(Batch, _children, _of_children)


class _Origin:
    """Where the samples of a batch come from. ``parts``: one for each device."""

    def __init__(self, labels: Labels, parts: list[Part], offset: int, sources: Mapping[outputs.Place, outputs.Source]):
        self.labels, self.offset, self.sources, self._parts = labels, offset, sources, parts

    def index(self) -> npt.NDArray[np.int64]:
        """Joins the indexes of all devices to the reader's index of the batch."""
        return np.concatenate([part.index() for part in self._parts])

    def is_repeated(self) -> npt.NDArray[np.bool_]:
        return np.concatenate([np.arange(part.valid) >= part.own for part in self._parts])


class Loader(Rollouts):
    """Batches of samples from a Zarr store for JAX, like :class:`dali_zarr.torch.Loader` with two differences.
    Functions that are compiled for fixed shapes need full last batches: give ``drop_last`` or ``pad_last_batch``. And
    there is ``sharding``. A loader with a sharding can't be pickled, since it has devices.
    """

    def __init__(
        self,
        path: Paths | None = None,
        *,
        batch_size: int | None = None,
        device: str = "auto",
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Iterable[Any]] | None = None,
        sharding: Any = None,
        offsets: Integers | Mapping[str, int | Sequence[int]] | None = None,
        drop_last: bool = False,
        pad_last_batch: bool = False,
        uneven: Uneven = "repeat",
        shard_id: int | None = None,
        num_shards: int | None = None,
        transform: Transform | None = None,
        num_threads: int = 2,
        return_index: bool = False,
        collate: Literal["list", "padded", "csr"] | None = None,
        columns: int | None = None,
        **arguments: Unpack[LoaderArguments],
    ):
        """Opens the store, and reads ahead from the first iteration on.

        Args:
            path: One store or several, as of :func:`dali_zarr.zarr_reader`, or none.
            batch_size: Samples in each batch of this process, over all of its devices. Default: 1, or ``batch_sampler.batch_size``.
            device: ``"gpu"``, ``"cpu"``, or ``"auto"``: the GPU if JAX has one. Default: ``"auto"``.
            sampler, batch_sampler: As of :class:`dali_zarr.torch.Loader`: the samples of this process.
            sharding: A ``jax.sharding.Sharding`` that divides the samples, and nothing else, among devices: arrays are global ones
                of all processes. Each device's part is read by a reader of its own, as a rank of its own. ``uneven="exact"``
                needs ``drop_last`` or ``pad_last_batch`` then.
            shard_id, num_shards: The rank and the number of ranks. Default: JAX's processes; call
                ``jax.distributed.initialize`` before. Where JAX knows only one process: the ranks of
                ``torch.distributed`` or torchrun's environment.
            return_index: Whether batches have an entry ``"index"``: a NumPy array of int64, of this process's samples.
            collate: ``"list"``: each output is a list of arrays, one for each sample, whatever their shapes. The other forms are
                for ragged outputs (``ragged``, ``ragged_ends``, ``groups``). ``"padded"``: zeros up to the longest
                sample of the store (at most ``max_length``), so that all batches have one shape, and an entry
                ``"lengths"`` of int32; with `groups` and ``concat="samples"``, also where all samples have one shape, an entry
                such as ``"image/shape"`` for each output instead. ``"csr"``: the arrays ``X/data`` and
                ``X/indices`` with one row after the other, and an entry ``"X/indptr"`` that says where each row begins.
                Indices that aren't columns raise an error; it isn't checked that the indices of a row ascend. Arguments
                that change values leave the indices as they are; without ``jax_enable_x64`` they become int32.
            columns: The number of columns with ``collate="csr"``. Default: from the attribute ``shape`` of the matrix's
                group.
            arguments, offsets, drop_last, pad_last_batch, uneven, transform, num_threads: As of :class:`dali_zarr.torch.Loader`.

        Raises:
            TypeError: An output has integers of 64 bits, which JAX would cut without ``jax_enable_x64``; and as below.
            ValueError: Outputs are ragged, and neither ``collate`` nor a transform says what becomes of them.
            ValueError, IndexError, MemoryError: As building a pipeline with the reader does.
        """
        if device not in ("auto", "cpu", "gpu"):
            raise ValueError(f"dali_zarr: device: expected 'auto', 'cpu' or 'gpu', but found {device!r}")
        drawn = samplers.asked(sampler, batch_sampler, batch_size, drop_last, pad_last_batch)
        if drawn is not None:
            samplers.check_ranks(shard_id=shard_id, num_shards=num_shards, uneven=uneven)
        if batch_size is None:
            batch_size = 1 if drawn is None else drawn.batch_size
        check_count("batch_size", batch_size)
        check_flags(return_index=return_index)
        ending = Ending(drop_last, pad_last_batch, uneven)
        _collate_jax.check(collate, transform, sharding)
        on = ("gpu" if jax.default_backend() == "gpu" else "cpu") if device == "auto" else device
        _arguments.names.check(arguments, own=_arguments.names.OF_LOADERS)
        flat = outputs.offsets_of(offsets)
        asked = Asked(path, arguments, flat, _collate_jax.narrow_values if collate == "csr" else None)
        self._begin_rollouts(asked, offsets, arguments.get("window"))
        agreement = Agreement(is_certain=shard_id is None)
        if shard_id is None and num_shards is None and jax.process_count() > 1:
            shard_id, num_shards = jax.process_index(), jax.process_count()
        is_given = shard_id is not None or drawn is not None
        rank, world = ranks.rank_and_world(None, shard_id, num_shards)
        devices = [None] if sharding is None else _devices(sharding, batch_size * world)
        if sharding is not None and not ending.has_one_shape():
            raise ValueError(
                "dali_zarr: sharding: expected drop_last=True or pad_last_batch=True with uneven='exact', since parts must have "
                "one shape"
            )
        if batch_size % len(devices):
            raise ValueError(f"dali_zarr: batch_size: expected a multiple of the {len(devices)} devices, but found {batch_size}")
        self._sharding, self._return_index = sharding, return_index
        found, self._labels = self._asked.looked_up()
        self._loaders: list[OnDevice] = []
        split = Split(drawn, len(devices)) if drawn is not None and len(devices) > 1 else None
        for i, one in enumerate(devices):
            plan = Plan(
                **found, offsets=offsets, batch_size=batch_size // len(devices), device=on,
                device_id=None if on == "cpu" else hardware_id(one), shard_id=rank * len(devices) + i,
                num_shards=world * len(devices), num_threads=num_threads, transform=transform, is_pushed=drawn is not None,
            )
            plan, compares = padded(plan, collate), agreement if i == 0 else None
            source = drawn if split is None else split.part(i)
            how = ending, compares, not is_given, collate, columns, source
            self._loaders.append(OnDevice(plan, one, i, len(devices), *how))
        self._tell_places()
        if transform is None:
            if collate is None and self._loaders[0].is_ragged():
                raise ValueError(_collate_jax.RAGGED)
            for place, dtype in zip(self._sources, self._loaders[0].dtypes(), strict=False):
                check_type(getattr(_dali.module("types"), dtype.upper(), None), "/".join(place))

    def _tell_places(self) -> None:
        """Finds where the outputs stand, and their offsets."""
        plan = self._loaders[0].plan
        self._sources = plan.sources()
        self._offsets = outputs.offsets_by_group(plan.offsets, plan.told_offsets)

    @property
    def batch_size(self) -> int:
        """Samples in each batch of this process, except perhaps the last."""
        return sum(loader.batch_size for loader in self._loaders)

    @property
    def epoch(self) -> int:
        """The number of the epoch that the last batch came from; before the first batch, of the next epoch."""
        return self._loaders[0].epoch

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration this epoch. Its order depends only on the seed and the epoch's number."""
        for loader in self._loaders:
            loader.set_epoch(epoch)

    def __len__(self) -> int:
        """Batches in an epoch, the same in all processes."""
        return len(self._loaders[0])

    def __iter__(self) -> Iterator[Batch]:
        """Begins the next epoch: the first one after :meth:`load_state_dict` goes on where the state was taken.

        Raises:
            RuntimeError: Batches were handed out, and the process has another rank since.
        """
        self._begin_epoch()
        return Iteration(map(self._batch, zip(*map(iter, self._loaders), strict=True)), self.counters)

    def _batch(self, found: tuple[tuple[list[Any], Part], ...]) -> Batch:
        return self._made(self._loaders[0], found)

    def _made(self, first: OnDevice, found: tuple[tuple[list[Any], Part], ...]) -> Batch:
        columns = zip(*(arrays for arrays, _ in found), strict=True)
        joined = [self._joined(list(column)) for column in columns]
        parts = [part for _, part in found]

        def made(values: dict[str, Any], group: str) -> Batch:
            return Batch(values, _origin=_Origin(self._labels, parts, self._offsets.get(group, 0), self._sources))

        batch = cast(Batch, outputs.nested(first.places(), joined, made))
        if self._return_index:
            batch["index"] = batch.index
        return batch

    def _joined(self, arrays: list[Any]) -> Any:
        if self._sharding is None:
            return arrays[0]
        shape = (self._loaders[0].num_shards // len(arrays) * sum(len(array) for array in arrays), *arrays[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self._sharding, arrays)

    def __repr__(self) -> str:
        shown = repr(self._loaders[0]).replace("OnDevice", "Loader", 1)
        return shown if len(self._loaders) == 1 else f"{shown[:-1]}, on the first of {len(self._loaders)} devices>"

    @property
    def bad_chunks(self) -> list[BadChunk]:
        """The bad chunks that the loader has found so far, with ``on_bad_chunk="nan"`` or ``"skip"``: each once, in the order in
        which they were found, device by device."""
        return list(dict.fromkeys(bad for loader in self._loaders for bad in loader.bad_chunks))

    def counters(self) -> Any:
        """The reader's counters, as :func:`dali_zarr.counters` returns them; with several devices a list, one entry for
        each."""
        found = [loader.counters() for loader in self._loaders]
        return found[0] if len(found) == 1 else found

    def stream(self) -> Stream[Batch]:
        """Returns a stream of the loader's samples, in the order in which a program pushes them, as
        :meth:`dali_zarr.torch.Loader.stream`. With a sharding there is none."""
        if self._sharding is not None:
            raise ValueError("dali_zarr: stream: expected a loader without sharding, since a stream has one device")
        made = self._loaders[0].as_pushed()
        return Stream(made.reading, lambda found, count: self._made(made, (made.taken(found, count),)))

    def refresh(self) -> None:
        """Takes what the stores hold now, as :meth:`dali_zarr.torch.Loader.refresh`."""
        found, labels = self._asked.looked_up()
        for loader in self._loaders:
            loader.renew(found)
        self._labels = labels
        self._tell_places()

    def _reopen(self, found: dict[str, Any], labels: Labels) -> None:
        for loader in self._loaders:
            loader.change(found)
        self._tell_places()

    def _read(self) -> Plan:
        return self._loaders[0].plan

    def _is_within_epoch(self) -> bool:
        return self._loaders[0].is_within_epoch()

    def _goes_on(self) -> bool:
        return self._loaders[0].goes_on()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is after the batch handed out last: numbers and text. One process's state serves all."""
        return {"devices": [loader.state_dict() for loader in self._loaders]} | self._rollout_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken, also with other numbers of processes or devices, or another batch size.

        Raises:
            ValueError: It isn't a loader's state, or one of a loader of other samples; the message says what differs.
        """
        found: list[Mapping[str, Any]] = list(state.get("devices", ()))
        if not found:
            raise ValueError(f"dali_zarr: load_state_dict: expected the state of a loader, but found the keys {sorted(state)}")
        for one in found:
            states.check(one)
        self._load_rollout(state)
        for i, loader in enumerate(self._loaders):
            loader.load_state_dict(found[i] if len(found) == len(self._loaders) else found[0])

    def __getstate__(self) -> dict[str, Any]:
        if self._sharding is not None:
            raise TypeError(
                "dali_zarr: a loader with a sharding can't be pickled or copied, since devices can't: make it anew in each "
                "process, and give it the state of this one (state_dict, load_state_dict)"
            )
        # Also in a shallow copy the readers are its own.
        return self.__dict__ | {"_loaders": [copy.copy(loader) for loader in self._loaders]}


describe(Loader.__init__, LoaderArguments)


def _devices(sharding: Any, samples: int) -> list[Any]:
    """This process's devices, in the order of the samples that they have."""
    places = sharding.addressable_devices_indices_map((samples,))
    found = sorted((index[0].start or 0, device.id, device) for device, index in places.items())
    starts = [start for start, _, _ in found]
    if len(set(starts)) < len(starts):
        raise ValueError(
            "dali_zarr: sharding: expected one that divides the samples among all devices, but found devices with the same "
            "samples; give shard_id and num_shards instead, and put the batches on the other devices by jax.device_put"
        )
    return [device for _, _, device in found]
