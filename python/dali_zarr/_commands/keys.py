"""Which chunks of an array a store has where the metadata say; and whether it has them under other keys.

Chunks that aren't there have the fill value. So an array whose metadata name another separator than its writer used is read
without an error, and all its values are the fill value.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from .._arguments import names, options, values
from .._selection.stores import needed, opened
from .arrays import ReadableArray

# Keys of a store that are looked at by default, where listing takes requests; and files that aren't chunks.
_LISTED = 1000
_DOCUMENTS = ("zarr.json", ".zarray")


@dataclass(frozen=True)
class Keys:
    """How the keys of an array's chunks, or of its shards, are formed, from the array's path on.

    Attributes:
        is_default: Whether they begin with c, as Zarr v3's default says.
        separator: "/" or ".". None where keys have none.
        grid: The numbers of the chunks, or of the shards, along each dimension.
    """

    is_default: bool
    separator: str | None
    grid: tuple[range, ...]

    @classmethod
    def of(cls, first: str, grid: Sequence[range]) -> Keys:
        """Returns the keys of an array whose first chunk has the key ``first``, such as c/0/0 or 0.0."""
        is_default = first.startswith("c")
        separator = first[-2] if len(grid) > 1 or (grid and is_default) else None
        return cls(is_default, separator, tuple(grid))

    @property
    def count(self) -> int:
        return math.prod(map(len, self.grid))

    def has(self, key: str) -> bool:
        """Returns whether a key is that of a chunk."""
        separator = self.separator or "."
        parts = key.split(separator)
        if self.is_default and parts.pop(0) != "c":
            return False
        if not self.is_default and not self.grid:
            return key == "0"
        return len(parts) == len(self.grid) and all(
            _number(part) in numbers for part, numbers in zip(parts, self.grid, strict=True)
        )

    def others(self) -> list[Keys]:
        """Returns the other ways in which writers form keys, those with the same beginning first."""
        kinds = ((kind, separator) for kind in (self.is_default, not self.is_default) for separator in ("/", "."))
        own = (self.is_default, self.separator)
        return [Keys(kind, separator, self.grid) for kind, separator in kinds if (kind, separator) != own]


def _number(text: str) -> int:
    """Returns the number that a part of a key stands for, or -1."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 and (text == "0" or text[0] != "0") else -1


@dataclass(frozen=True)
class Stored:
    """What a store has of an array.

    Attributes:
        count: The number of chunks, or of shards, that are where the metadata say; None where keys aren't listed to the end.
        bytes: Their bytes, where that is known.
        looks: If there are none: how the keys look that the store has instead. None where they don't look like those of
            chunks.
    """

    count: int | None = None
    bytes: int | None = None
    looks: str | None = None

    @property
    def warning(self) -> str | None:
        """A sentence if no chunk is stored."""
        return warning(self.looks) if self.count == 0 else None


def warning(looks: str | None) -> str:
    """Returns a sentence about an array of which no chunk is stored."""
    found = "no chunk is stored where the metadata say, so all values are the fill value"
    return found if looks is None else f"{found}; its files look as if {looks}"


def stored(
    path: str | None, array: ReadableArray, storage_options: Any, start: Sequence[int] | None = None,
    end: Sequence[int] | None = None,
) -> Stored:
    """Looks for the chunks of an array.

    Args:
        path: The store of arrays that have none of their own.
        array: The array.
        storage_options: The store's, in any form that the reader takes.
        start, end: The region whose chunks count. By default all do, and of stores that are listed by requests the first
            keys alone are looked at.
    """
    place = array.name if names.is_location(array.name) else path
    grid = objects(array, start, end)
    if place is None or grid is None:
        return Stored()
    keys = Keys.of(array.first_key.removeprefix(array.path).removeprefix("/"), grid)
    if not keys.count:
        return Stored()
    place = values.expanded(place)
    files = _files(place, array.path)
    is_sized = files is not None
    if files is None:
        listed = _elsewhere(place, array.path, _by_name(storage_options), None if start is not None else _LISTED)
        if listed is None:
            return Stored()
        files = ((key, 0) for key in listed)
    count = total = 0
    strays: list[str] = []
    for key, size in files:
        if keys.has(key):
            count += 1
            total += size
        elif len(strays) < _LISTED:
            strays.append(key)
    return Stored(count, total if is_sized else None, None if count else _looks(keys, strays))


def _by_name(storage_options: Any) -> dict[str, str]:
    if isinstance(storage_options, Mapping):
        return options.by_name(options.to_strings(cast("Mapping[Any, Any]", storage_options)))
    return options.by_name(values.items(storage_options or []))


def objects(array: ReadableArray, start: Sequence[int] | None, end: Sequence[int] | None) -> list[range] | None:
    """Returns the numbers of chunks, or of shards, in a region along each dimension; None where they don't follow from the
    region."""
    every = [range(count) for count in array.objects]
    if start is None or end is None or (not any(start) and list(end) == list(array.shape)):
        return every
    unit = array.shards or array.chunks
    if any(-(-length // part) != count for length, part, count in zip(array.shape, unit, array.objects, strict=False)):
        return None
    return [range(low // part, -(-high // part)) for low, high, part in zip(start, end, unit, strict=True)][: len(every)]


def _looks(keys: Keys, found: Sequence[str]) -> str | None:
    for other in keys.others():
        if any(map(other.has, found)):
            name = "default" if other.is_default else "v2"
            kind = "" if other.is_default == keys.is_default else f'chunk_key_encoding were "{name}" and '
            return f'{kind}the separator were "{other.separator}"'
    return None


def _elsewhere(place: str, path: str, storage_options: Mapping[str, str], limit: int | None) -> list[str] | None:
    """Returns the keys of an array in a store that isn't a folder or an archive; None where there are more than ``limit``,
    and where it can't be listed."""
    found: list[str] = []
    with contextlib.suppress(Exception):
        store = opened(needed("zarr", "listing a store"), place, storage_options)
        # A folder without the array's metadata, which are consolidated.
        store = needed("zarr.storage", "listing a store").LocalStore(store) if isinstance(store, str) else store
        found = _first_keys(store, path, limit)
    # Without the array's metadata this isn't a list of its chunks: they may be in an archive or in references.
    is_whole = limit is None or len(found) < limit
    return found if is_whole and any(name in found for name in _DOCUMENTS) else None


def _first_keys(store: Any, path: str, limit: int | None) -> list[str]:
    """Returns the first keys of an array in a store of zarr-python's, from the array's path on."""
    prefix = f"{path}/" if path else ""

    async def first(prefix: str) -> list[str]:
        found: list[str] = []
        async for key in store.list_prefix(prefix):
            found.append(key)
            if len(found) == limit:
                break
        return found

    sync = needed("zarr.core.sync", "listing a store").sync
    # fsspec's references have no folders. The location may be the array's, which the reader found in a store around it.
    found: list[str] = sync(first(prefix)) or sync(first(""))
    return [key.removeprefix(prefix) for key in found if key.startswith(prefix)] or found


def _files(place: str, path: str) -> Iterator[tuple[str, int]] | None:
    """Returns the files of an array in a folder or in an archive, and their bytes; None for other stores."""
    root = Path(place.removeprefix("file://"))
    if "://" in str(root):
        return None
    if root.is_file():
        return _in_archive(root, path) if zipfile.is_zipfile(root) else None
    folder = next((one for one in (root / path, root) if any((one / name).is_file() for name in _DOCUMENTS)), None)
    return None if folder is None else _walked(folder, "")


def _walked(folder: Path, before: str) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _walked(Path(entry.path), f"{before}{entry.name}/")
            else:
                yield before + entry.name, entry.stat().st_size


def _in_archive(file: Path, path: str) -> Iterator[tuple[str, int]] | None:
    with zipfile.ZipFile(file) as archive:
        # Of several entries with a name the last one counts.
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    documents = {f"{path}/{name}".lstrip("/") for name in _DOCUMENTS}
    # The store may be in a folder of the archive.
    places = [name for name in sizes if name in documents or any(name.endswith(f"/{one}") for one in documents)]
    if not places:
        return None
    before = min(places, key=len).rpartition("/")[0]
    prefix = f"{before}/" if before else ""
    return ((name.removeprefix(prefix), size) for name, size in sizes.items() if name.startswith(prefix))
