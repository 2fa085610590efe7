"""What iterating over a loader returns."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

B = TypeVar("B")


def check_count(name: str, count: Any) -> None:
    """Raises TypeError or ValueError unless it is a whole number of at least 1."""
    try:
        number = operator.index(count)
    except TypeError:
        number = None
    if number is None or isinstance(count, bool):
        raise TypeError(f"dali_zarr: {name}: expected an integer, but found {count!r}")
    if not 1 <= number < 2**31:
        raise ValueError(f"dali_zarr: {name}: expected {'at least 1' if number < 1 else 'less than 2^31'}, but found {count}")


class Iteration(Iterator[B]):
    """The batches of an epoch, with the counters of the loader that they come from."""

    def __init__(self, batches: Iterator[B], counters: Callable[[], Any], check: Callable[[], None] = lambda: None):
        self._batches, self.counters, self._check = batches, counters, check

    def __next__(self) -> B:
        self._check()
        return next(self._batches)

    def close(self) -> None:
        """Ends the iteration, as a generator's ``close`` does."""
        if close := getattr(self._batches, "close", None):
            close()
