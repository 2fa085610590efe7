"""The store that is written: its metadata, made in an order in which a kill leaves nothing that looks finished."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._arguments import values
from .._selection.stores import for_fsspec, is_icechunk, is_of_fsspec, needed, remote
from .._text import first_line, shape
from .layout import Wanted
from .source import Source
from .state import FOLDER


def opened(path: str, options: Mapping[str, str]) -> Any:
    """Opens zarr-python's store at a path or URL, for writing. Writes nothing.

    Raises:
        ImportError: A package that is needed for it isn't installed.
        ValueError: Nothing can be written there.
    """
    zarr = needed("zarr", "rechunk")
    path = values.expanded(path)
    if path.startswith(("http://", "https://", "reference://", "local://")) or path.endswith((".json", ".parq", ".zip")):
        raise ValueError(f"target {path}: expected a folder or a URL of an object store, which can be written in any order")
    if is_of_fsspec(path):
        needed("fsspec", f"opening {path}")
        return zarr.storage.FsspecStore.from_url(path, storage_options=for_fsspec(options))
    if "://" in path and not path.startswith("file://"):
        return zarr.storage.ObjectStore(remote(path, options))
    if options:
        raise ValueError(f"--target_options: expected none, since the target {path} is local, but found {sorted(options)[0]!r}")
    folder = Path(path.removeprefix("file://"))
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"target {folder}: expected a folder, or nothing yet, but found a file")
    if is_icechunk(folder):
        raise ValueError(f"target {folder}: expected a folder, but found an Icechunk repository, which rechunk can't write")
    parent = next(one for one in folder.absolute().parents if one.exists())
    if not os.access(folder if folder.exists() else parent, os.W_OK | os.X_OK):
        raise ValueError(f"target {folder}: this user may not write there")
    return zarr.storage.LocalStore(folder)


def check_apart(source: str, target: str) -> None:
    """Raises ValueError where the target is the source, or one is in the other."""
    paths = [values.expanded(path).removeprefix("file://").removeprefix("local://") for path in (source, target)]
    places = [os.path.realpath(path) for path in paths]
    if any("://" in path for path in paths):
        places = [re.sub("/+", "/", path).rstrip("/") for path in paths]
    if os.path.commonprefix([place + "/" for place in places]) in [place + "/" for place in places]:
        raise ValueError(f"target {target}: expected a place outside of the source {source}, and not around it")


def is_empty(store: Any) -> bool:
    """Whether a store has no object."""
    return needed("zarr.core.sync", "rechunk").sync(store.is_empty(""))


def make(store: Any, source: Source, arrays: Iterable[Wanted], zarr_format: int) -> dict[str, Any]:
    """Writes the metadata of groups and arrays; returns zarr-python's arrays. Arrays and groups that exist stay."""
    zarr = needed("zarr", "rechunk")
    for name, attributes in sorted(source.groups.items()):
        group = zarr.open_group(store, path=name, mode="a", zarr_format=zarr_format)
        if attributes and dict(group.attrs) != attributes:
            group.update_attributes(attributes)
    return {array.name: _made(zarr, store, array, zarr_format) for array in arrays}


def check_codecs(arrays: Iterable[Wanted], zarr_format: int) -> None:
    """Raises ValueError where zarr-python refuses shards within shards. It compares chunks with the shape before a transposition,
    so it may refuse them for one layout and not for another."""
    zarr = needed("zarr", "rechunk")
    for array in arrays:
        if array.codecs.serializer == "auto" or array.codecs.serializer["name"] != "sharding_indexed":
            continue
        try:
            _made(zarr, zarr.storage.MemoryStore(), array, zarr_format)
        except ValueError as error:
            raise ValueError(
                f"array {array.name!r}: zarr-python can't write its codecs with chunks of {shape(array.chunks)}: "
                f"{first_line(error)}; give other chunks, or --codec"
            ) from error


def _made(zarr: Any, store: Any, array: Wanted, zarr_format: int) -> Any:
    attributes = dict(array.attributes)
    more: dict[str, Any] = {}
    if zarr_format == 3:
        more["dimension_names"] = array.names
    elif array.names is not None:
        attributes["_ARRAY_DIMENSIONS"] = list(array.names)
    was = array.source.metadata
    if was.zarr_format == zarr_format:
        # Chunks keep their kind of names: OME-Zarr requires folders in Zarr v2.
        keys = was.chunk_key_encoding if zarr_format == 3 else {"name": "v2", "separator": was.dimension_separator}
        more["chunk_key_encoding"] = keys
    # Text and bytes have types of their own in zarr-python.
    dtype = was.dtype if array.dtype.kind in "OT" else array.dtype
    how = array.codecs.arguments(zarr_format, array.chunks, array.shards)
    if array.dtype.kind in "OT" and zarr_format == 2:
        # Text and bytes need the filter of their type.
        how["filters"] = "auto"
    config = {"write_empty_chunks": True}
    with warnings.catch_warnings():
        # Ignores warnings about types without a specification: the source has them too.
        warnings.simplefilter("ignore")
        try:
            return zarr.create_array(
                store, name=array.name or None, shape=array.shape, dtype=dtype, zarr_format=zarr_format, config=config,
                fill_value=array.fill_value, attributes=attributes, **more, **how,
            )
        except zarr.errors.ContainsArrayError:
            found = zarr.open_array(store, path=array.name, mode="r+", zarr_format=zarr_format, config=config)
            if dict(found.attrs) != attributes:
                found.update_attributes(attributes)
            return found


def intermediate(store: Any, array: Wanted, chunks: tuple[int, ...], zarr_format: int) -> Any:
    """Makes the array between two copies, in the target's folder of unfinished work."""
    from .codecs import named

    name = f"{FOLDER}/intermediate/{array.name or 'array'}"
    plain = Wanted(
        name, array.source, (), array.dims, array.shape, chunks, None, array.dtype,
        None if zarr_format == 2 else array.fill_value, {},
        named("blosc-lz4:1", zarr_format, array.dtype.itemsize), None,
    )
    return _made(needed("zarr", "rechunk"), store, plain, zarr_format)


def is_complete(store: Any, source: Source, arrays: list[Wanted], zarr_format: int) -> bool:
    """Whether a store without a plan has these groups and arrays, and the consolidated metadata that are written last."""
    zarr = needed("zarr", "rechunk")
    memory = zarr.storage.MemoryStore()
    expected = make(memory, source, arrays, zarr_format)
    try:
        if "" in source.groups:
            root = zarr.open_group(store, mode="r", zarr_format=zarr_format)
            if root.metadata.consolidated_metadata is None or dict(root.attrs) != source.groups[""]:
                return False
        found = {name: zarr.open_array(store, path=name, mode="r", zarr_format=zarr_format) for name in expected}
    except Exception:
        return False
    return all(_told(found[name]) == _told(array) for name, array in expected.items())


def _told(array: Any) -> str:
    return json.dumps(array.metadata.to_dict(), default=str, sort_keys=True)


def written(store: Any, arrays: Iterable[Wanted], zarr_format: int) -> dict[str, Any]:
    """Returns the arrays of a complete target."""
    zarr = needed("zarr", "rechunk")
    return {array.name: zarr.open_array(store, path=array.name, mode="r", zarr_format=zarr_format) for array in arrays}


def consolidate(store: Any, zarr_format: int) -> None:
    """Writes the consolidated metadata of all groups and arrays."""
    with warnings.catch_warnings():
        # Ignores warnings: Zarr v3 doesn't specify consolidated metadata, and the folder of unfinished work isn't in
        # the hierarchy.
        warnings.simplefilter("ignore")
        needed("zarr", "rechunk").consolidate_metadata(store, zarr_format=zarr_format)


def sweep(store: Any) -> None:
    """Removes the halves of files that a kill left in a local store."""
    root = getattr(store, "root", None)
    if isinstance(root, Path):
        for file in root.rglob("*.partial"):
            file.unlink(missing_ok=True)
