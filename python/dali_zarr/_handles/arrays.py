"""zarr-python's groups, arrays and stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import filesystems, objects, repositories
from .place import Place, kinds, refused, shown

_GROUPS = frozenset({"Group", "AsyncGroup"})
_ARRAYS = frozenset({"Array", "AsyncArray"})
_MEMORY = frozenset({"MemoryStore", "GpuMemoryStore", "ManagedMemoryStore"})


def place(argument: str, value: Any) -> Place | None:
    """Returns the place of a group, an array or a store; None if it is none of zarr-python's.

    Raises:
        ValueError: The reader can't read it.
    """
    names = {name for package, name in kinds(value) if package == "zarr"}
    if not names:
        return None
    if names & _GROUPS:
        found = of_store(argument, value.store).within(value.path)
        return found if found.is_folder else _with_names(found, value)
    if names & _ARRAYS:
        return of_store(argument, value.store).within(value.path, is_array=True)
    if "StorePath" in names:
        return of_store(argument, value.store).within(value.path)
    return of_store(argument, value)


def of_array(array: Any) -> Place:
    """Returns the place of an array of zarr-python.

    Raises:
        ValueError: The reader can't read its store.
    """
    return of_store("path", array.store).within(array.path, is_array=True)


def of_store(argument: str, store: Any) -> Place:
    """Returns the place of a store."""
    names = {name for package, name in kinds(store) if package == "zarr"}
    if "LocalStore" in names:
        return Place(str(store.root))
    if "ZipStore" in names:
        return Place(str(store.path))
    if "FsspecStore" in names:
        return filesystems.of_path(argument, store.fs, store.path)
    if "ObjectStore" in names:
        return objects.of_store(argument, store.store)
    found = repositories.place(argument, store)
    if found is not None:
        return found
    if names & _MEMORY:
        refused(argument, shown(store), "it is in this process's memory; write it to a folder, and give its path")
    if "WrapperStore" in names and type(store).__module__.startswith("zarr."):
        return of_store(argument, store._store)
    refused(
        argument, shown(store),
        "it isn't a store whose place the reader knows (LocalStore, ZipStore, FsspecStore, ObjectStore or Icechunk's); give the "
        "path or the URL of what it reads",
    )


def _with_names(found: Place, group: Any) -> Place:
    """Adds the names of a group's arrays, where they can be listed."""
    return replace(found, names=tuple(sorted(group.array_keys()))) if hasattr(group, "array_keys") else found
