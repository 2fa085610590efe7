"""Mean, variance, range and share of NaN of each channel, combined pairwise (Chan, Golub and LeVeque, 1982).

Sums are those of NumPy along contiguous memory, which are pairwise; parts are combined as a balanced tree. Everything is float64.
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
    """Of some elements of each channel; all arrays have the shape (channel,)."""

    # Elements, and NaNs among them.
    count: Doubles
    nans: Doubles
    # Of those that aren't NaN: the sum of weights, the weighted mean and the weighted sum of squared distances from it. The mean
    # is the sum of two numbers, because the difference of two means may be much smaller than either.
    weight: Doubles
    high: Doubles
    low: Doubles
    m2: Doubles
    # Infinite where there are no elements.
    min: Doubles
    max: Doubles

    @classmethod
    def of(cls, values: npt.NDArray[Any], weights: Doubles | None) -> Moments:
        """Of values (channel, element), with a weight for each element, or 1."""
        rows = max(1, _BLOCK // max(values.shape[1], 1))
        parts = [_reduced(values[i : i + rows], weights) for i in range(0, len(values), rows)]
        return cls.concatenated(parts)

    @classmethod
    def nothing(cls, channels: int) -> Moments:
        """Of no elements."""
        zero = np.zeros(channels)
        return cls(zero, zero, zero, zero, zero, zero, np.full(channels, np.inf), np.full(channels, -np.inf))

    @classmethod
    def concatenated(cls, parts: list[Moments]) -> Moments:
        """Of the channels of all parts."""
        return cls(*(np.concatenate(fields) for fields in zip(*(part.fields() for part in parts))))

    def fields(self) -> tuple[Doubles, ...]:
        """In their order."""
        return self.count, self.nans, self.weight, self.high, self.low, self.m2, self.min, self.max

    def taken(self, channels: Any) -> Moments:
        """Of some of the channels."""
        return Moments(*(field[channels] for field in self.fields()))

    def repeated(self, times: int) -> Moments:
        """Of elements that come so many times."""
        if times == 1:
            return self
        return replace(self, count=self.count * times, nans=self.nans * times, weight=self.weight * times, m2=self.m2 * times)

    def merged(self, other: Moments) -> Moments:
        """Of the elements of both."""
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
        """NaN where there are no elements."""
        with np.errstate(invalid="ignore"):
            return np.where(self.weight > 0, self.high + self.low, np.nan)

    def stddev(self) -> Doubles:
        """With ``ddof`` 0; NaN where there are no elements."""
        return np.sqrt(np.divide(self.m2, self.weight, out=np.full_like(self.m2, np.nan), where=self.weight > 0))


def pooled(moments: Moments) -> Moments:
    """Of the elements of all channels, as one channel."""
    return combined(moments.taken([i]) for i in range(len(moments.count)))


def combined(parts: Iterable[Moments]) -> Moments:
    """Of the elements of all parts, of which there is at least one."""
    tree = Tree()
    for part in parts:
        tree.add(part)
    return tree.total()


class Tree:
    """Combines parts pairwise as they come: part with part, pairs with pairs, and so on."""

    def __init__(self) -> None:
        # Of 2^level parts each, the levels falling.
        self._parts: list[tuple[int, Moments]] = []

    def add(self, part: Moments) -> None:
        """Adds a part."""
        level = 0
        while self._parts and self._parts[-1][0] == level:
            part = self._parts.pop()[1].merged(part)
            level += 1
        self._parts.append((level, part))

    def total(self) -> Moments:
        """Of all parts, of which there is at least one."""
        found = self._parts[-1][1]
        for _, part in reversed(self._parts[:-1]):
            found = part.merged(found)
        return found


def _reduced(stored: npt.NDArray[Any], weights: Doubles | None) -> Moments:
    """In two passes over a block: the mean, and the distances from it, whose own mean corrects it."""
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
