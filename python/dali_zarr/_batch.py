"""Batches for PyTorch: tensors by name, and where their samples come from. Users know :class:`Batch` from
:mod:`dali_zarr.torch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt
import torch

from ._loading import outputs, pictures
from ._loading.labels import Labels

# PyTorch without types, for what has none.
_UNTYPED: Any = torch


class Batch(dict[str, Any]):
    """Tensors by name, or lists of tensors (``collate="list"``). The first dimension of each is the sample. If ``offsets`` is a
    dictionary, the entries are inner batches by its keys.

    Ragged outputs (``ragged``, ``ragged_ends``, ``groups``) are nested tensors with the layout ``torch.jagged``, lists of tensors
    where samples differ in other dimensions than the first, or what ``collate`` says."""

    index: torch.Tensor | None
    """Where each sample starts: int64 (sample, dimension), one column for each of the reader's ``dims``."""
    loader: str | None
    """The name of the loader in a mixture that gave the batch."""

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), *, _origin: Origin | None = None):
        super().__init__(values)
        self._origin = _origin
        self.index = None if _origin is None else _origin.index
        self.loader = None

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
                continue
            if isinstance(value, list) and len({one.shape for one in cast("list[torch.Tensor]", value)}) == 1:
                value = torch.stack(cast("list[torch.Tensor]", value))
            if isinstance(value, torch.Tensor) and name != "index" and value.layout == torch.strided:
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
            name: value._with(change) if isinstance(value, Batch) else _changed(value, change) for name, value in self.items()
        }
        found = Batch(values, _origin=self._origin)
        found.loader = self.loader
        return found


def _changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Changes a tensor, or the tensors of a list."""
    if isinstance(value, list):
        return [_changed(item, change) for item in cast("list[Any]", value)]
    return change(value) if isinstance(value, torch.Tensor) else value


def _device_of(batch: Batch) -> torch.device | None:
    """Returns the device of a batch's first tensor."""
    for value in batch.values():
        if isinstance(value, list) and value:
            value = cast("list[Any]", value)[0]
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


class Origin:
    """Where the samples of a batch come from. Samples from ``own`` on repeat others."""

    def __init__(
        self, labels: Labels, index: torch.Tensor, own: int, offset: int, sources: Mapping[outputs.Place, outputs.Source],
    ):
        self.labels, self.index, self.own, self.offset, self.sources = labels, index, own, offset, sources

    def coords(self, source: outputs.Source | None = None) -> dict[str, npt.NDArray[Any]]:
        index = cast("npt.NDArray[np.int64]", self.index.cpu().numpy())
        source = source or outputs.Source(None, self.offset)
        return self.labels.of(index, source.offset, source.array)


Batch.__module__ = "dali_zarr.torch"
