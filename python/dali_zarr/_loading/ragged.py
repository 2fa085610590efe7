"""Outputs whose samples differ in their first dimension: which they are, and the lengths of their samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .outputs import Place

# The arguments that make outputs ragged.
RAGGED = ("ragged", "ragged_ends")


@dataclass(frozen=True)
class Ragged:
    """The ragged outputs of a reader."""

    places: frozenset[Place]
    # Elements of the longest sample, after `max_length`.
    longest: int
    # Columns of the matrix whose rows the samples are; None where its group doesn't say it.
    columns: int | None

    @classmethod
    def of(cls, told: Mapping[str, Any], places: Sequence[Place]) -> Ragged:
        """Makes it from the reader's counter ``ragged``, for outputs at these places. The reader's last output is the
        index."""
        found = [place for place, ragged in zip(places, told["outputs"], strict=False) if ragged]
        return cls(frozenset(found), told["longest"], told["columns"])

    def has(self, place: Place, output: Any) -> bool:
        """Whether an output, which a transform may have made, is ragged."""
        return place in self.places or not output.is_dense_tensor()


class Lengths:
    """Lengths and offsets of the first ``valid`` samples of a ragged output, which lie one after the other."""

    def __init__(self, output: Any, valid: int, place: Place):
        shapes: list[tuple[int, ...]] = output.shape()
        further = {shape[1:] for shape in shapes}
        if len(further) > 1:
            raise ValueError(
                f"dali_zarr: output {'/'.join(place)!r}: expected samples that differ in their first dimension alone, but found "
                f"{shapes[0]} and {next(s for s in shapes if s[1:] != shapes[0][1:])}; have the transform make them equal"
            )
        every = np.fromiter((shape[0] for shape in shapes), np.int64, len(shapes))
        # The shape of all samples together, also of those that aren't valid.
        self.shape = (int(every.sum()), *shapes[0][1:])
        self.lengths: npt.NDArray[np.int64] = every[:valid]
        self.offsets: npt.NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        self.total = int(self.offsets[-1])
