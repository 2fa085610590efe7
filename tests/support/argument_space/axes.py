"""One dimension that samples are cut along: its selected elements, its segments, and where samples start.

Places count selected elements, from 0. The index counts elements of the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from support.argument_space.dataset import Refused


@dataclass
class Reach:
    """What samples read along a dimension, from their start on: the first element, and one past the last."""

    first: int
    end: int

    @property
    def span(self) -> int:
        return self.end - self.first


@dataclass
class Axis:
    """A dimension of one store, or of all stores that are joined along it."""

    dim: str
    length: int
    # The region: the selected elements are first, first + spacing, and so on.
    first: int = 0
    count: int = 0
    spacing: int = 1
    # Where segments begin and end, in elements of the store, from 0 to the length.
    whole: list[int] = field(default_factory=list)
    # The segments that are read; None: all.
    chosen: set[int] | None = None
    # Where a list says that samples start, in elements of the store.
    listed: list[int] | None = None

    def __post_init__(self) -> None:
        self.whole = self.whole or [0, self.length]
        self.bounds = [min(max(-(-(b - self.first) // self.spacing), 0), self.count) for b in self.whole]

    def position(self, start: int) -> int:
        """The element of the store at a place."""
        return self.first + start * self.spacing

    def start(self, position: int) -> int:
        found, rest = divmod(position - self.first, self.spacing)
        assert rest == 0, f"{position} isn't a selected element of {self}"
        return found

    def around(self, start: int) -> int:
        """The number of the segment that holds an element; of the first or the last one for elements beyond."""
        start = min(max(start, 0), self.count - 1)
        return next(j for j in range(len(self.bounds) - 1) if self.bounds[j] <= start < self.bounds[j + 1])

    def segment(self, start: int, reach: Reach) -> int:
        """The segment that holds all that a sample reads of the region. If several hold parts of it, or none does, the
        segment of the start."""
        first, end = max(start + reach.first, 0), min(start + reach.end, self.count)
        if first < end:
            found = self.around(first)
            if end <= self.bounds[found + 1]:
                return found
        return self.around(start)

    def fits(self, start: int, reach: Reach) -> bool:
        found = self.segment(start, reach)
        return self.bounds[found] <= start + reach.first and start + reach.end <= self.bounds[found + 1]

    def _is_read(self, start: int, reach: Reach) -> bool:
        return self.chosen is None or self.segment(start, reach) in self.chosen

    def places(
        self, reach: Reach, step: int, policy: str, pads: tuple[int, int] | None, starts: Sequence[int] | None = None
    ) -> list[tuple[int, int]]:
        """Returns where samples start and in which segments, in order. ``pads``: how far windows may begin before, and
        end after, their segments. ``starts`` instead of a grid."""
        if self.count == 0:
            return []
        if pads is not None:
            return [
                (start, j)
                for j, (low, high) in enumerate(zip(self.bounds, self.bounds[1:], strict=False))
                if low < high and (self.chosen is None or j in self.chosen)
                for start in range(low - pads[0] - reach.first, high + pads[1] - reach.end + 1, step)
            ]
        grid = range(0, self.count, step) if starts is None else starts
        found = [start for start in grid if self._is_read(start, reach)]
        fitting = [start for start in found if self.fits(start, reach)]
        if policy == "error" and len(fitting) < len(found):
            raise Refused("out_of_bounds_policy", "window", "offsets", "starts")
        kept = found if policy in ("pad", "edge") else fitting
        return [(start, self.segment(start, reach)) for start in kept]

    def random_places(self, reach: Reach, policy: str) -> set[int]:
        """Returns where samples may start that start at random."""
        found = {start for start in range(self.count) if self._is_read(start, reach)}
        fitting = {start for start in found if self.fits(start, reach)}
        return fitting or (found if policy in ("pad", "edge") else set())

    def taken(self, start: int, segment: int, offset: int, window: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the elements of the store that a window has, where those outside of its segment are replaced by the
        nearest inside, and which are inside."""
        at = start + offset + np.arange(max(window, 1)) * stride
        low, high = self.bounds[segment], self.bounds[segment + 1]
        return self.first + np.clip(at, low, high - 1) * self.spacing, (at >= low) & (at < high)
