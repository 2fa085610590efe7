"""The tensors of a batch of which each rank has a part: how they are packed for one collective, and joined again."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from .._batch import Batch
from .._loading.outputs import Place
from .._loading.parts import Parts

# Outputs begin in the buffers at multiples of so many bytes.
_ALIGNED = 16
_BITS: dict[int, torch.dtype] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Exchange:
    """A part of a batch, and what is sent of it."""

    batch: Batch
    parts: Parts
    # The tensors that have the divided dimension, with its axis in each.
    tensors: list[tuple[torch.Tensor, int]]
    # Their bytes, then nothing, up to the bytes of the longest part.
    sent: torch.Tensor
    bytes: int
    # What all ranks have sent. A rank without the memory for it says so before others send anything.
    received: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, parts: Parts, axes: Mapping[Place, int], device: torch.device) -> Exchange:
        """Packs the part of a batch. ``axes``: the axis of the divided dimension in the tensors that have it, by place."""
        tensors = [(tensor, axes[place]) for place, tensor in _placed(batch) if place in axes]
        sizes = parts.sizes()
        size = max(_laid_out(tensors, one)[-1] for one in sizes)
        sent = torch.empty(size, dtype=torch.uint8, device=device)
        for (tensor, _), at in zip(tensors, _laid_out(tensors, sizes[parts.rank]), strict=False):
            sent[at : at + tensor.nbytes].view(_bits(tensor)).view(tensor.shape).copy_(tensor.view(_bits(tensor)))
        return cls(batch, parts, tensors, sent, size, torch.empty(len(sizes) * size, dtype=torch.uint8, device=device))

    def gathered(self) -> Batch:
        """Returns the batch with the parts of all ranks, which were received."""
        received = self.received.view(len(self.parts.sizes()), self.bytes)
        found: dict[int, torch.Tensor] = {}
        for i, (tensor, axis) in enumerate(self.tensors):
            pieces: list[torch.Tensor] = []
            for rank, length in enumerate(self.parts.sizes()):
                shape = [*tensor.shape[:axis], length, *tensor.shape[axis + 1 :]]
                at = _laid_out(self.tensors, length)[i]
                piece = received[rank, at : at + math.prod(shape) * tensor.element_size()]
                # A view of no bytes has no type of several bytes.
                pieces.append(piece.view(_bits(tensor)).view(shape) if self.bytes else tensor.new_empty(shape, dtype=_bits(tensor)))
            found[id(tensor)] = torch.cat(pieces, dim=axis).view(tensor.dtype)
        # DALI's memory waits for the stream on which the tensors were taken, and not for the one that uses the batch.
        is_shared = self.sent.is_cuda
        return _changed(self.batch, lambda tensor: found.get(id(tensor), tensor.clone() if is_shared else tensor))


def _laid_out(tensors: Sequence[tuple[torch.Tensor, int]], length: int) -> list[int]:
    """Returns where each tensor begins in a buffer, if the divided dimension has this length, and where the last one ends."""
    found = [0]
    for tensor, axis in tensors:
        size = tensor.nbytes // tensor.shape[axis] * length
        found.append(found[-1] + -(-size // _ALIGNED) * _ALIGNED)
    return found


def _bits(tensor: torch.Tensor) -> torch.dtype:
    """Returns a type of the same size that all functions know."""
    return _BITS[tensor.element_size()]


def _placed(batch: Batch) -> Iterator[tuple[Place, torch.Tensor]]:
    for name, value in batch.items():
        if isinstance(value, Batch):
            yield from (((name, *inner), tensor) for inner, tensor in _placed(value))
        elif isinstance(value, torch.Tensor):
            yield (name,), value


def tensors(batch: Batch) -> Iterator[torch.Tensor]:
    """Returns all tensors of a batch."""
    return (tensor for _, tensor in _placed(batch))


def _changed(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """Returns the same batch with what ``change`` makes of each tensor."""
    made = copy.copy(batch)
    for name, value in batch.items():
        made[name] = _changed(value, change) if isinstance(value, Batch) else change(value)
    return made
