"""Stores that users hold, translated to the reader's arguments: groups, arrays and stores of zarr-python, stores of obstore,
repositories and sessions of Icechunk, mappers of fsspec, paths of universal_pathlib, and datasets of xarray.

A handle becomes a path or a URL, options and credentials. The library keeps the credentials under a name, and arguments have
only the name (:mod:`.._arguments.tables`). Nothing is imported: whoever holds an object has imported its package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from . import arrays, datasets, filesystems, merging, objects, repositories
from .place import Place, kinds, refused, shown

_TEXT = (str, bytes, os.PathLike)
# Packages whose stores are handles.
_PACKAGES = frozenset({"zarr", "fsspec", "obstore", "icechunk", "upath"})


def translated(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments in which ``path`` and ``arrays`` are text. Arguments without handles come out as they are.

    Raises:
        ValueError: A handle can't be translated; the message says what can't be, and what to do.
    """
    found = dict(arguments)
    if datasets.is_dataset(found.get("path")):
        found = datasets.merged(found)
    path, named = found.get("path"), found.get("arrays")
    if not _has_handles(path) and not _has_handles(named):
        return found
    merging.merge(found, _places("path", path), _named_places(named), is_list=isinstance(path, list | tuple))
    return found


def is_handle(value: Any) -> bool:
    """Whether a value is a store, a group or an array that a user holds."""
    if value is None or isinstance(value, str | bytes):
        return False
    packages = {package for package, _ in kinds(value)}
    return "upath" in packages or (not isinstance(value, os.PathLike) and bool(packages & _PACKAGES))


def _has_handles(value: Any) -> bool:
    if is_handle(value):
        return True
    if isinstance(value, Mapping):
        value = list(cast("Mapping[Any, Any]", value).values())
    return isinstance(value, list | tuple) and any(map(is_handle, cast("list[Any]", value)))


def _places(argument: str, value: Any) -> list[Place | Any]:
    """Returns the places of handles. Other values stay."""
    if value is None:
        return []
    listed = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
    return [_place(argument, one) if is_handle(one) else one for one in listed]


def _named_places(value: Any) -> dict[str, Place | Any] | None:
    """Returns the places of the handles in ``arrays`` by the names of outputs; other values stay. None: there are no
    handles."""
    if not _has_handles(value):
        return None
    if isinstance(value, Mapping) and not is_handle(value):
        named = cast("Mapping[Any, Any]", value)
        return dict(zip(map(str, named), _places("arrays", list(named.values())), strict=True))
    found: dict[str, Place | Any] = {}
    for one in _places("arrays", value):
        name = (one.name if one.is_array else "") if isinstance(one, Place) else str(one)
        if not name or name in found:
            refused("arrays", repr(name), "expected arrays with different names; write arrays={NAME: ...}")
        found[name] = one
    return found


def _place(argument: str, value: Any) -> Place:
    if objects.is_store(value) and not any(package == "zarr" for package, _ in kinds(value)):
        if ("fsspec", "AbstractFileSystem") not in kinds(value):
            return objects.of_store(argument, value)
    for found in (arrays.place(argument, value), repositories.place(argument, value), filesystems.place(argument, value)):
        if found is not None:
            return found
    refused(argument, shown(value), "it is no store, group or array that the reader knows; give its path or URL")
