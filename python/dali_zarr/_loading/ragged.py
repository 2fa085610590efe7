"""Outputs whose samples differ in their shapes: which they are, and the shapes of their samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .outputs import Place

# The arguments that make outputs ragged rows.
RAGGED = ("ragged", "ragged_ends")
# Rows differ in their first dimension.
ROWS = (0,)


@dataclass(frozen=True)
class Ragged:
    """The ragged outputs of a reader."""

    # For each ragged output the positions of the dimensions in which its samples differ.
    dims: Mapping[Place, tuple[int, ...]]
    # Whether samples are rows, so that they have one length in all ragged outputs. Otherwise they have the shapes of their
    # stores or groups.
    are_rows: bool
    # Columns of the matrix whose rows the samples are; None where its group doesn't say it.
    columns: int | None

    @classmethod
    def of(cls, told: Mapping[str, Any], places: Sequence[Place]) -> Ragged:
        """Makes it from the reader's counter ``ragged``, for outputs at these places. The reader's last output is the
        index."""
        found = {place: tuple(dims) for place, dims in zip(places, told["outputs"], strict=False) if dims is not None}
        return cls(found, told["rows"], told["columns"])

    @property
    def places(self) -> frozenset[Place]:
        """The places of the ragged outputs."""
        return frozenset(self.dims)

    @classmethod
    def none(cls) -> Ragged:
        """Makes it for a reader without ragged outputs."""
        return cls({}, False, None)

    def has(self, place: Place, output: Any) -> bool:
        """Whether an output, which a transform may have made, is ragged."""
        return place in self.dims or not output.is_dense_tensor()


class Lengths:
    """Lengths and offsets of the first ``valid`` samples of a ragged output, which lie one after the other."""

    def __init__(self, output: Any, valid: int, place: Place):
        shapes: list[tuple[int, ...]] = output.shape()
        if not differ_first(shapes):
            raise ValueError(
                f"dali_zarr: output {'/'.join(place)!r}: expected samples that differ in their first dimension alone, but found "
                f"{shapes[0]} and {next(s for s in shapes if s[1:] != shapes[0][1:])}; give collate='list' or 'padded', or have "
                "the transform make them equal"
            )
        every = np.fromiter((shape[0] for shape in shapes), np.int64, len(shapes))
        # The shape of all samples together, also of those that aren't valid.
        self.shape = (int(every.sum()), *shapes[0][1:])
        self.lengths: npt.NDArray[np.int64] = every[:valid]
        self.offsets: npt.NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        self.total = int(self.offsets[-1])


class Shapes:
    """The shapes of the first ``valid`` samples of an output, which lie one after the other."""

    def __init__(self, output: Any, valid: int):
        shapes: list[tuple[int, ...]] = output.shape()
        sizes = [math.prod(shape) for shape in shapes]
        # The elements of all samples, also of those that aren't valid.
        self.total = sum(sizes)
        self.shapes, self.ndim = shapes[:valid], len(shapes[0])
        self.bounds = [(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(valid)]

    def split(self, flat: Any) -> list[Any]:
        """Returns the samples of a flat array of all elements."""
        return [flat[start:end].reshape(shape) for (start, end), shape in zip(self.bounds, self.shapes, strict=True)]

    @property
    def largest(self) -> tuple[int, ...]:
        """The greatest length of a sample along each dimension; 0 where there are no samples."""
        return tuple(map(max, zip(*self.shapes, strict=True))) if self.shapes else (0,) * self.ndim


def differ_first(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether samples with these shapes differ in their first dimension alone, if they differ."""
    return bool(shapes) and bool(shapes[0]) and all(shape[1:] == shapes[0][1:] for shape in shapes)
