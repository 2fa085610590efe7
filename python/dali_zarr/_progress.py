"""Progress on the terminal: tqdm's bar where it is installed, else lines on stderr."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_SECONDS = 5.0


def shown(items: Iterator[T], count: int, what: str, unit: str = "batch", plural: str = "batches") -> Iterator[T]:
    """Yields the ``count`` items as they come, and shows how many have come."""
    try:
        tqdm: Any = importlib.import_module("tqdm")
    except ImportError:
        return _lines(items, count, what, plural)
    return iter(tqdm.tqdm(items, total=count, desc=what, unit=unit))


def _lines(items: Iterator[T], count: int, what: str, plural: str) -> Iterator[T]:
    began = last = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last >= _SECONDS or done == count:
            last = now
            left = (now - began) / done * (count - done)
            print(f"{what}: {done} of {count} {plural}, {now - began:.0f} s, about {left:.0f} s left", file=sys.stderr, flush=True)
