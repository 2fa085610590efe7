"""Mean, variance, range and share of NaN of each channel, combined pairwise (Chan, Golub and LeVeque, 1982).

Within a part, NumPy sums along contiguous memory, which it does pairwise. Parts are combined as a balanced tree.
Everything is float64.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

# Elements that are reduced at a time: they fit a core's cache, with what is computed from them.
_BLOCK = 1 << 18


@dataclass(frozen=True)
class Moments:
    """Moments of some elements of each channel. All arrays have the shape (channel,)."""

    # The number of elements, and of NaNs among them.
    count: Doubles
    nans: Doubles
    # Of the elements that aren't NaN: the sum of weights, the weighted mean and the weighted sum of squared distances
    # from it. The mean is ``high + low``, because the difference of two means may be much smaller than either.
    weight: Doubles
    high: Doubles
    low: Doubles
    m2: Doubles
    # Infinite where there are no elements.
    min: Doubles
    max: Doubles

    @classmethod
    def of(cls, values: npt.NDArray[Any], weights: Doubles | None) -> Moments:
        """Computes the moments of values (channel, element). ``weights``: one for each element; None: all are 1."""
        rows = max(1, _BLOCK // max(values.shape[1], 1))
        parts = [_reduced(values[i : i + rows], weights) for i in range(0, len(values), rows)]
        return cls.concatenated(parts)

    @classmethod
    def nothing(cls, channels: int) -> Moments:
        """Returns the moments of no elements."""
        zero = np.zeros(channels)
        return cls(zero, zero, zero, zero, zero, zero, np.full(channels, np.inf), np.full(channels, -np.inf))

    @classmethod
    def concatenated(cls, parts: list[Moments]) -> Moments:
        """Joins the channels of all parts."""
        return cls(*(np.concatenate(fields) for fields in zip(*(part.fields() for part in parts))))

    def fields(self) -> tuple[Doubles, ...]:
        """Returns all arrays, in the order of the constructor."""
        return self.count, self.nans, self.weight, self.high, self.low, self.m2, self.min, self.max

    def taken(self, channels: Any) -> Moments:
        """Returns the moments of some of the channels."""
        return Moments(*(field[channels] for field in self.fields()))

    def repeated(self, times: int) -> Moments:
        """Returns the moments if each element came ``times`` times."""
        if times == 1:
            return self
        return replace(self, count=self.count * times, nans=self.nans * times, weight=self.weight * times, m2=self.m2 * times)

    def merged(self, other: Moments) -> Moments:
        """Returns the moments of the elements of both."""
        weight = self.weight + other.weight
        share = np.divide(other.weight, weight, out=np.zeros_like(weight), where=weight > 0)
        with np.errstate(invalid="ignore", over="ignore"):
            delta = np.where((self.weight > 0) & (other.weight > 0), (other.high - self.high) + (other.low - self.low), 0.0)
            step = delta * share
            total = self.high + step
            # What the addition lost (Knuth's two-sum).
            part = total - self.high
            lost = (self.high - (total - part)) + (step - part)
            high = np.where(self.weight > 0, total, other.high)
            low = np.where(self.weight > 0, self.low + lost, other.low)
            m2 = self.m2 + other.m2 + delta * delta * self.weight * share
        return Moments(
            self.count + other.count, self.nans + other.nans, weight, high, low, m2,
            np.minimum(self.min, other.min), np.maximum(self.max, other.max),
        )

    @property
    def mean(self) -> Doubles:
        """The mean; NaN where there are no elements."""
        with np.errstate(invalid="ignore"):
            return np.where(self.weight > 0, self.high + self.low, np.nan)

    def stddev(self) -> Doubles:
        """Returns the standard deviation with ``ddof`` 0; NaN where there are no elements."""
        return np.sqrt(np.divide(self.m2, self.weight, out=np.full_like(self.m2, np.nan), where=self.weight > 0))


def pooled(moments: Moments) -> Moments:
    """Returns the moments of the elements of all channels, as one channel."""
    return combined(moments.taken([i]) for i in range(len(moments.count)))


def combined(parts: Iterable[Moments]) -> Moments:
    """Returns the moments of the elements of all parts. There must be at least one part."""
    tree = Tree()
    for part in parts:
        tree.add(part)
    return tree.total()


class Tree:
    """Combines parts pairwise as they come: part with part, pairs with pairs, and so on."""

    def __init__(self) -> None:
        # Pairs of a level and the moments of 2^level parts. Levels fall from the first pair to the last.
        self._parts: list[tuple[int, Moments]] = []

    def add(self, part: Moments) -> None:
        """Adds a part."""
        level = 0
        while self._parts and self._parts[-1][0] == level:
            part = self._parts.pop()[1].merged(part)
            level += 1
        self._parts.append((level, part))

    def total(self) -> Moments:
        """Returns the moments of all parts. There must be at least one part."""
        found = self._parts[-1][1]
        for _, part in reversed(self._parts[:-1]):
            found = part.merged(found)
        return found


def _reduced(stored: npt.NDArray[Any], weights: Doubles | None) -> Moments:
    """Computes moments in two passes over a block: the mean, then the distances from it. The mean of the distances
    corrects the mean."""
    values = np.ascontiguousarray(stored, np.float64)
    count = np.full(len(values), float(values.shape[1]))
    missing = np.isnan(values)
    nans = missing.sum(axis=1).astype(np.float64)
    has_nan = bool(nans.any())
    given = np.ones(1) if weights is None else weights
    weight = count - nans if weights is None else np.where(missing, 0.0, given).sum(axis=1)
    filled = np.where(missing, 0.0, values) if has_nan else values
    with np.errstate(invalid="ignore", over="ignore"):
        mean = _over((filled if weights is None else filled * given).sum(axis=1), weight)
        away = values - mean[:, None]
        if has_nan:
            away[missing] = 0.0
        weighted = away if weights is None else away * given
        rest = weighted.sum(axis=1)
        m2 = (weighted * away).sum(axis=1) - rest * _over(rest, weight)
    low = np.where(missing, np.inf, values) if has_nan else values
    high = np.where(missing, -np.inf, values) if has_nan else values
    return Moments(
        count, nans, weight, mean, _over(rest, weight), np.maximum(m2, 0.0),
        low.min(axis=1, initial=np.inf), high.max(axis=1, initial=-np.inf),
    )


def _over(total: Doubles, weight: Doubles) -> Doubles:
    return np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)
