"""``check``: decodes every chunk of a store by the reader itself, one chunk a batch, and names those that can't be read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .. import _arguments, _native, _progress
from .._failures import error_details
from .._selection import indexers, select
from .._selection.axes import Axes
from .._text import number_of, wrapped
from . import keys, owned
from .arrays import ReadableArray, RefusedArray, listed

# The reader's arguments that the command takes, beside those that select arrays and elements.
RESOURCES = (
    *("storage_options", "host_memory_limit", "io", "use_o_direct", "io_threads", "io_concurrency", "decode_threads"),
)
# The most messages that are reported of an array, and the most places of a message: a report stays bounded for any
# store.
_MESSAGES, _TOLD = 1000, 100
# Counters of chunks that the store has.
_FOUND = ("chunks_decoded_cpu", "chunks_decoded_gpu", "chunks_uncompressed", "chunks_failed")


def check(paths: list[str], options: Mapping[str, Any], show: bool) -> dict[str, Any]:
    """Decodes all chunks; returns what was found, by store and array. ``options`` are the reader's, with ``sel`` or
    ``isel``.

    Raises:
        ValueError, TypeError, IndexError, RuntimeError, ImportError: A store can't be opened, or an argument is wrong.
    """
    given = dict(options)
    chosen = {name: given.pop(name) for name in (*select.NAMES, "arrays") if name in given}
    stores = [_Store(path, given, chosen) for path in owned.places(paths, chosen.get("arrays"))]
    steps = (step for store in stores for step in store.checked())
    total = sum(store.chunks for store in stores)
    for _ in _progress.shown(steps, total, "check", "chunk", "chunks") if show and total else steps:
        pass
    found = [store.report for store in stores]
    return {"sound": all(array["sound"] for store in found for array in store["arrays"]), "stores": found}


class _Store:
    """One store, perhaps with arrays that have stores of their own, and what was found so far."""

    def __init__(self, path: str | None, options: Mapping[str, Any], chosen: Mapping[str, Any]):
        """Reads metadata."""
        self._path, self._options = path, options
        listing = listed(path, chosen.get("arrays"), options.get("storage_options"))
        arrays = listing.arrays
        self._regions = _regions(arrays, path, options, chosen)
        self._entries = [(array, _entry(array)) for array in arrays]
        self.chunks = sum(_count(*self._regions[one.name], one.chunks) for one in arrays if isinstance(one, ReadableArray))
        self.report: dict[str, Any] = {
            "path": path, "is_cut": listing.is_cut, "arrays": [entry for _, entry in self._entries],
        }

    def checked(self) -> Iterator[None]:
        """Decodes the chunks; yields after each one."""
        for array, entry in self._entries:
            if isinstance(array, ReadableArray):
                start, end = self._regions[array.name]
                if _count(start, end, array.chunks):
                    yield from self._check(array, start, end, entry)
                entry["sound"] = not entry["damaged"] and not entry["misplaced"]

    def _check(self, array: ReadableArray, start: list[int], end: list[int], entry: dict[str, Any]) -> Iterator[None]:
        spec: dict[str, Any] = {**self._options, **array.arguments(self._path), "mask_and_scale": False, "missing_dates": "keep"}
        if array.dims:
            # A sample is a chunk. Dimensions are given by position, since names may be missing.
            spec |= {
                "dims": [str(i) for i in range(len(array.dims))],
                "window": [min(chunk, length) for chunk, length in zip(array.chunks, array.shape, strict=True)],
                "step": list(array.chunks), "roi_start": start, "roi_end": end, "out_of_bounds_policy": "pad",
            }
        first = [at // chunk for at, chunk in zip(start, array.chunks, strict=True)]
        grid = _grid(start, end, array.chunks)
        with _native.Reader(_arguments.to_spec(spec)) as reader:
            for number in range(reader.samples()):
                try:
                    reader.skip()
                except RuntimeError as error:
                    at = [int(i) + low for i, low in zip(np.unravel_index(number, grid), first, strict=True)] if grid else []
                    _note(entry, at, str(error), error_details(error).get("chunk"))
                entry["chunks"] += 1
                yield
            counters = reader.counters()
        # The counter of missing chunks has those of the next epoch too, which are prepared.
        found = keys.stored(self._path, array, self._options.get("storage_options"), start, end)
        if found.count is not None:
            entry["missing"] = math.prod(map(len, keys.objects(array, start, end) or ())) - found.count
        is_whole = not any(start) and end == list(array.shape)
        if is_whole and (found.count == 0 or not any(counters[name] for name in _FOUND)):
            entry["warning"], entry["misplaced"] = keys.warning(found.looks), found.looks is not None


def _note(array: dict[str, Any], at: list[int], message: str, key: str | None) -> None:
    """Notes in an array's entry that the chunk at place ``at`` can't be read. ``key`` is the key of the chunk, or of
    its shard. Inner chunks of a shard whose index is damaged share one message."""
    array["unreadable"] += 1
    damaged: list[dict[str, Any]] = array["damaged"]
    entry: dict[str, Any] | None = next((one for one in damaged[-_TOLD:] if one["message"] == message), None)
    if entry is None and len(damaged) == _MESSAGES:
        return
    if entry is None:
        entry = {"chunk": key, "count": 0, "at": [], "message": message}
        damaged.append(entry)
    entry["count"] += 1
    if len(entry["at"]) < _TOLD:
        entry["at"].append(at)


def _grid(start: list[int], end: list[int], chunks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-(last - first) // chunk) for first, last, chunk in zip(start, end, chunks, strict=True))


def _count(start: list[int], end: list[int], chunks: tuple[int, ...]) -> int:
    return int(np.prod(_grid(start, end, chunks), dtype=np.int64))


def _regions(
    arrays: list[ReadableArray | RefusedArray], path: str | None, options: Mapping[str, Any], chosen: Mapping[str, Any],
) -> dict[str, tuple[list[int], list[int]]]:
    """Returns for each array where the region to be checked starts and ends along each dimension: from the chunk of the
    first selected element to that of the last."""
    found = [array for array in arrays if isinstance(array, ReadableArray)]
    regions = {array.name: ([0] * len(array.shape), list(array.shape)) for array in found}
    selections: dict[str, dict[str, Any]] = {name: chosen.get(name) or {} for name in ("sel", "isel")}
    known = [dim for array in found for dim in array.dims]
    for name, selection in selections.items():
        for dim, indexer in selection.items():
            select.check_dim(name, dim, known)
            for array in found:
                if dim not in array.dims:
                    continue
                axes = Axes.of_reader(_arguments.to_places({**options, **array.arguments(path)}))
                (positions,) = indexers.selected(name, dim, indexer, axes, chosen.get("method"), chosen.get("tolerance"))
                if not len(positions.indices):
                    raise ValueError(f"dali_zarr: check: {name}: {dim!r}: expected at least one element, but found none")
                i = array.dims.index(dim)
                chunk, (start, end) = array.chunks[i], regions[array.name]
                start[i] = int(positions.indices.min()) // chunk * chunk
                end[i] = min((int(positions.indices.max()) // chunk + 1) * chunk, array.shape[i])
    return regions


def _entry(array: ReadableArray | RefusedArray) -> dict[str, Any]:
    """Makes the entry of an array in the report, before its chunks are read."""
    entry: dict[str, Any] = {
        "name": array.name, "chunks": 0, "unreadable": 0, "damaged": [],
    }
    if isinstance(array, RefusedArray):
        return entry | {"sound": array.is_sound, "refused": array.message}
    # How many chunks, or shards, aren't stored, or None where the store can't be listed; whether none is, and whether the
    # store has them under other keys.
    return entry | {"unit": array.unit, "missing": None, "warning": None, "misplaced": False}


def text(found: Mapping[str, Any]) -> str:
    """Formats what was found for people."""
    lines: list[str] = []
    for store in found["stores"]:
        lines.append("arrays with stores of their own" if store["path"] is None else f"store {store['path']}")
        for array in store["arrays"]:
            if "refused" in array:
                lines.append(f"  {array['name']}: {'not checked' if array['sound'] else 'refused'}: {_short(array['refused'])}")
                continue
            count = array["unreadable"]
            chunks = number_of(array["chunks"], "chunk")
            state = f"{count} of {chunks} can't be read" if count else chunks if array["misplaced"] else f"{chunks}, sound"
            if array["missing"]:
                state += f"; {number_of(array['missing'], array['unit'])} missing, with the fill value"
            lines.append(f"  {array['name']}: {state}")
            if array["warning"]:
                lines.append(f"    warning: {array['warning']}")
            for one in array["damaged"]:
                places = "; ".join(", ".join(map(str, at)) for at in one["at"][:4]) + ("; ..." if one["count"] > 4 else "")
                lines.append(f"    {_short(one['message'])}" + (f" (in the grid of chunks: {places})" if places else ""))
            told = sum(one["count"] for one in array["damaged"])
            if told < count:
                lines.append(f"    and {number_of(count - told, 'chunk')} more, with other messages")
        if store["is_cut"]:
            lines.append("  perhaps there are more arrays, which were not checked: the list has a limit; name others with --arrays")
    if found["sound"]:
        lines.append("all stored chunks can be decoded; damage that no checksum covers isn't found")
    return "\n".join(map(wrapped, lines))


def _short(message: str) -> str:
    """Returns a message without the store and the array at its beginning."""
    return re.sub(r"^(?:zarr_reader: )?(?:store .*?, array '.*?'[,:] )?", "", message)


def run(paths: list[str], options: Mapping[str, Any], as_json: bool, quiet: bool) -> int:
    """Prints what was found. Returns the exit status: 1 where something can't be read."""
    found = check(paths, options, not quiet)
    print(json.dumps(found, indent=2) if as_json else text(found))
    return 0 if found["sound"] else 1
