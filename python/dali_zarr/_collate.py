"""Outputs in the form that ``collate`` names in PyTorch's batches: as lists of tensors, and ragged outputs as nested tensors,
padded tensors, or CSR matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from ._loading.collate import LENGTHS, Collate, CollatePlan, beyond_columns, check_name, is_in_columns, needs, shape_of
from ._loading.outputs import Place
from ._loading.ragged import ROWS, Lengths, Ragged, Shapes, differ_first

_UNTYPED: Any = torch


class Collation:
    """Turns a batch's outputs, some of which may be ragged, into tensors or lists of tensors."""

    def __init__(
        self, how: Collate | None, columns: int | None, ragged: Ragged, places: Sequence[Place], shaped: AbstractSet[Place],
    ):
        """Checks what is asked for.

        Raises:
            ValueError: It doesn't fit the outputs.
        """
        check_name(how)
        self._choice = CollatePlan(how, columns, ragged, places, lambda group: group or "matrix", shaped)
        # Outputs that were ragged in some batch, a transform's too. In another batch their samples may all have one
        # length, for example in a last batch of one sample.
        self._ragged: set[Place] = set()
        # Those of them that are lists of tensors.
        self._listed: set[Place] = {place for place, dims in ragged.dims.items() if how == "list" or (how is None and dims != ROWS)}

    @classmethod
    def of(
        cls, how: Collate | None, columns: int | None, ragged: Ragged | None, places: Sequence[Place], shaped: AbstractSet[Place],
    ) -> Collation | None:
        """Makes a collation; returns None where batches are tensors of outputs as they are. ``ragged``: the ragged outputs, if
        there are any; ``shaped``: as of :class:`CollatePlan`.

        Raises:
            ValueError: What is asked for doesn't fit the outputs.
        """
        if ragged is None and not needs(how, columns, bool(shaped)):
            return None
        return cls(how, columns, ragged or Ragged.none(), places, shaped)

    def __call__(
        self, places: Sequence[Place], found: Sequence[Any], valid: int, dense: Callable[[Any], torch.Tensor],
        flat: Callable[[Any, tuple[int, ...]], torch.Tensor],
    ) -> tuple[list[Place], list[Any]]:
        """Returns the batch's places and tensors, or lists of tensors, of the first ``valid`` samples. ``dense`` makes a tensor
        of an output of DALI's whose samples have one shape; ``flat`` makes one of a ragged output, with the shape that is
        passed."""
        choice = self._choice
        values: dict[Place, Any] = {}
        parts: dict[Place, tuple[torch.Tensor, Lengths]] = {}
        # Outputs with equal lengths share one tensor of offsets: by this PyTorch knows that their shapes agree.
        offsets: list[tuple[Lengths, torch.Tensor]] = []
        for place, output in zip(places, found, strict=True):
            if place not in self._ragged and not choice.ragged.has(place, output):
                tensor = dense(output)
                values[place] = list(tensor.unbind()) if choice.how == "list" else tensor
                if choice.how == "padded" and place in choice.shaped and tensor.ndim > 1:
                    shape = torch.tensor(tensor.shape[1:], dtype=torch.int64, device=tensor.device)
                    values[shape_of(place)] = shape.repeat(len(tensor), 1)
                continue
            self._ragged.add(place)
            if choice.how in (None, "list") and (choice.how == "list" or not differ_first(output.shape())):
                self._listed.add(place)
            if place in self._listed or (choice.how == "padded" and not choice.ragged.are_rows):
                shapes = Shapes(output, valid)
                samples = shapes.split(flat(output, (shapes.total,)))
                if place in self._listed:
                    values[place] = samples
                else:
                    values[place] = _padded_to(samples or [flat(output, (shapes.total,))[:0]], shapes.largest)[: len(samples)]
                    told = torch.tensor(shapes.shapes, dtype=torch.int64, device=values[place].device)
                    values[shape_of(place)] = told.reshape(len(samples), shapes.ndim)
                continue
            lengths = Lengths(output, valid, place)
            tensor = flat(output, lengths.shape)[: lengths.total]
            at = _offsets(offsets, lengths, tensor.device)
            if choice.how in (None, "nested"):
                values[place] = _nested(tensor, at, lengths)
            elif choice.how == "padded":
                values[place] = _padded(tensor, at, lengths)
                values.setdefault((LENGTHS,), at.diff())
            elif place not in choice.matrices:
                name = "/".join(place)
                raise ValueError(f"dali_zarr: collate='csr': output {name!r} of the transform is ragged, but no part of a matrix")
            else:
                parts[place] = (tensor, lengths)
                matrix, data, indices = choice.matrices[place]
                values.setdefault(matrix, tensor)
                if data in parts and indices in parts:
                    size = (len(lengths.lengths), choice.columns)
                    values[matrix] = _csr(at, parts[indices][0], parts[data][0], size)
        return list(values), list(values.values())


def _offsets(known: list[tuple[Lengths, torch.Tensor]], lengths: Lengths, device: torch.device) -> torch.Tensor:
    for other, tensor in known:
        if (other.offsets == lengths.offsets).all():
            return tensor
    tensor = torch.from_numpy(lengths.offsets).to(device)
    known.append((lengths, tensor))
    return tensor


def _nested(values: torch.Tensor, offsets: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    longest, shortest = (int(f(lengths.lengths)) if len(lengths.lengths) else 0 for f in (max, min))
    return _UNTYPED.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=shortest, max_seqlen=longest)


# PyTorch lacks most functions for these types.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _padded_to(samples: Sequence[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    first = samples[0]
    if first.dtype in _SIGNED:
        signed = _SIGNED[first.dtype]
        return _padded_to([sample.view(signed) for sample in samples], shape).view(first.dtype)
    out = first.new_zeros((len(samples), *shape))
    for i, sample in enumerate(samples):
        out[(i, *map(slice, sample.shape))] = sample
    return out


def _padded(values: torch.Tensor, offsets: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    if values.dtype in _SIGNED:
        return _padded(values.view(_SIGNED[values.dtype]), offsets, lengths).view(values.dtype)
    longest = int(lengths.lengths.max()) if len(lengths.lengths) else 0
    out = values.new_zeros((len(lengths.lengths), longest, *values.shape[1:]))
    if lengths.total == 0:
        return out
    along = torch.arange(longest, device=values.device)
    is_inside = along < offsets.diff()[:, None]
    at = (offsets[:-1, None] + along).clamp_(max=lengths.total - 1)
    is_inside = is_inside.reshape(*is_inside.shape, *[1] * (values.ndim - 1))
    return torch.where(is_inside, values[at], out)


def _check_columns(indices: torch.Tensor, columns: int) -> None:
    """Raises ValueError if an index isn't a column: kernels of PyTorch would read beyond their operands."""
    if indices.numel() == 0:
        return
    if indices.device.type == "cpu" and is_in_columns(indices.numpy(), columns):
        return
    bounds: list[int] = _UNTYPED.stack(_UNTYPED.aminmax(indices)).tolist()
    lowest, highest = bounds
    if lowest < 0 or highest >= columns:
        raise beyond_columns(lowest, highest, columns)


def _csr(offsets: torch.Tensor, indices: torch.Tensor, data: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    if indices.dtype not in (torch.int32, torch.int64):
        indices = indices.to(torch.int64)
    _check_columns(indices, size[1])
    # Offsets and indices must have one type. A batch with 32-bit indices has fewer than 2^31 values, for want of
    # memory.
    return torch.sparse_csr_tensor(offsets.to(indices.dtype), indices, data, size=size, check_invariants=False)
