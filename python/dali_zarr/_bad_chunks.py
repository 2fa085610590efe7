"""The bad chunks that readers have found, and without which they go on (``on_bad_chunk``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from . import _native
from ._inspect import counters


@dataclass(frozen=True)
class BadChunk:
    """A chunk whose bytes can't be decoded, or a shard whose index is damaged.

    Attributes:
        store: The location of the store, without secrets.
        array: The name of the array in the store.
        key: The key of the chunk, or of its shard.
        inner_chunk: The coordinates of an inner chunk in the array's grid of inner chunks. None: the whole value is bad.
        reason: What is wrong.
    """

    store: str
    array: str
    key: str
    inner_chunk: tuple[int, ...] | None
    reason: str


def of_reader(number: int) -> list[BadChunk]:
    """Returns the bad chunks of the reader with this number, in the order in which they were found."""
    return [_made(**one) for one in _native.bad_chunks(number)]


def _made(store: str, array: str, key: str, inner_chunk: list[int] | None, reason: str) -> BadChunk:
    return BadChunk(store, array, key, None if inner_chunk is None else tuple(inner_chunk), reason)


def bad_chunks(pipe: Any = None) -> Any:
    """Bad chunks that readers with ``on_bad_chunk="nan"`` or ``"skip"`` have found, at any time while they run.

    Args:
        pipe: As of :func:`dali_zarr.counters`.

    Returns:
        A list of :class:`BadChunk` where :func:`dali_zarr.counters` has a dictionary of counters: for a loader, a list; for a
        pipeline, a dictionary from the names of its Zarr readers to lists. Each chunk is listed once. A reader lists the
        first 131,072.

    Raises:
        TypeError, RuntimeError: As :func:`dali_zarr.counters`.
    """
    own = getattr(pipe, "bad_chunks", None)
    return _listed(counters(pipe)) if own is None else own


def _listed(found: Any) -> Any:
    if isinstance(found, list):
        return [_listed(one) for one in cast("list[Any]", found)]
    # A reader of a pipeline may have any name.
    number = found.get("reader")
    return of_reader(number) if isinstance(number, int) else {name: _listed(one) for name, one in found.items()}
