"""The store that is read: its groups and arrays by zarr-python, and what of them is selected."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from .._arguments import values
from .._hints import did_you_mean
from .._selection import indexers, select
from .._selection.axes import Array, Axes
from .._selection.stores import is_of_fsspec, needed, opened
from .labels import SourceLabels
from .options import Options
from .work import Selection

# Storage options that say which version of an Icechunk repository is read.
VERSION = ("branch", "tag", "snapshot_id")
# Attributes of the CF conventions that name other arrays.
_LINKS = ("coordinates", "bounds", "grid_mapping")


@dataclass(frozen=True)
class Source:
    """A store.

    Attributes:
        path: Where it is.
        arrays: zarr-python's, by name with the groups before it; "" where the store is an array itself.
        groups: The attributes of groups, by name, "" the root's; of all, or of those above the arrays that were asked for.
        zarr_format: 2 or 3.
    """

    path: str
    arrays: dict[str, Any]
    groups: dict[str, dict[str, Any]]
    zarr_format: int

    def place(self, options: Options) -> list[Any]:
        """Returns where the store is, the same from every working directory, and which version of it was asked for."""
        path = self.path if "://" in self.path else os.path.realpath(self.path)
        return [path, *(options.storage_options.get(name) for name in VERSION)]

    def dims(self, name: str) -> tuple[str, ...]:
        """Returns the names of an array's dimensions, as the reader calls them: its own, else those of the axes of the
        nearest OME-Zarr image around it, else ``dim_0``, ``dim_1``..."""
        array, group = self.arrays[name], name
        while group and stored_names(array) is None:
            group = group.rpartition("/")[0]
            attributes = self.groups.get(group, {})
            of_ome = attributes.get("ome")
            images: Any = cast("dict[str, Any]", of_ome if isinstance(of_ome, dict) else attributes).get("multiscales")
            if isinstance(images, list):
                level = name.removeprefix(group).strip("/")
                found = (_axes(image, level, array.ndim) for image in cast("list[Any]", images))
                return next((axes for axes in found if axes), dims_of(array))
        return dims_of(array)

    def fingerprint(self) -> str:
        """Returns the metadata of all arrays, as text. A run can't go on with a source that differs in it."""
        return json.dumps({name: array.metadata.to_dict() for name, array in self.arrays.items()}, default=str, sort_keys=True)


def read(path: str, options: Options) -> Source:
    """Opens a store. Reads metadata only.

    Raises:
        ImportError: A package that is needed for it isn't installed.
        ValueError: The store lacks an array.
        RuntimeError: The store can't be opened or listed.
    """
    zarr = needed("zarr", "rechunk")
    path = values.expanded(path)
    strange = sorted(set(options.storage_options) - set(VERSION))
    if strange and ("://" not in path or path.startswith("file://")) and not is_of_fsspec(path):
        raise ValueError(
            f"--storage_options: expected none but branch, tag or snapshot_id, since {path} is local, found {strange[0]!r}"
        )
    try:
        store = opened(zarr, path, options.storage_options)
        root = _root(zarr, store)
    except ImportError:
        raise
    except Exception as error:
        raise RuntimeError(f"store {path}: it can't be opened: {_first_line(error)}") from error
    if isinstance(root, zarr.Array):
        if options.arrays:
            raise ValueError(f"--arrays: expected none, since the store {path} is an array itself")
        return Source(path, {"": root}, {}, root.metadata.zarr_format)
    found, above = _arrays(zarr, root, path, options.arrays)
    groups = {"": dict(root.attrs)}
    if options.arrays is None:
        groups |= {name: dict(group.attrs) for name, group in above.items()}
    for name in found:
        folder = name.rpartition("/")[0]
        while folder:
            groups.setdefault(folder, dict(above[folder].attrs) if folder in above else {})
            folder = folder.rpartition("/")[0]
    return Source(path, dict(sorted(found.items())), groups, root.metadata.zarr_format)


def _root(zarr: Any, store: Any) -> Any:
    """Opens the store's group or array. An array that zarr-python refuses in consolidated metadata is found again when
    groups are listed, by its name."""
    try:
        return zarr.open(store, mode="r")
    except Exception:
        try:
            return zarr.open_group(store, mode="r", use_consolidated=False)
        except Exception:
            # The first error says more.
            pass
        raise


def _arrays(zarr: Any, root: Any, path: str, names: tuple[str, ...] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arrays that are asked for and their coordinates; and the groups that were listed."""
    try:
        members, refused = _members(zarr, root)
    except Exception as error:
        if names is None:
            raise RuntimeError(f"store {path}: it can't be listed: {_first_line(error)}; give --arrays") from error
        members, refused = {}, {}
    arrays = {name: member for name, member in members.items() if isinstance(member, zarr.Array)}
    above = {name: member for name, member in members.items() if name not in arrays}
    for name in refused if names is None else [name for name in names if name in refused]:
        raise _refused(path, name, refused[name])
    if names is None:
        if not arrays:
            raise ValueError(f"store {path}: expected arrays, but found none")
        return arrays, above
    found = {name: arrays[name] if name in arrays else _one(zarr, root, path, name, arrays) for name in names}
    waiting = list(found)
    for name in waiting:
        if not members:
            # A store that can't be listed, such as one by HTTP without consolidated metadata.
            for place in _candidates(name, found[name]) - arrays.keys():
                arrays |= _tried(zarr, root, place)
        for place in sorted(_candidates(name, found[name]) & refused.keys()):
            raise _refused(path, place, refused[place], f", which belongs to array {name!r}")
        beside = {place for place in _of_dims(name, found[name], arrays) if place} | linked(name, found[name], arrays)
        for place in sorted(beside - found.keys()):
            found[place] = arrays[place]
            waiting.append(place)
    folders = {name.rpartition("/")[0] for name in names}
    dims = {dim for name in names for dim in dims_of(found[name])}
    for folder in folders:
        # xarray keeps coordinates that no array names in the group.
        group: Any = root if not folder else above.get(folder)
        links = named(folder, dict(group.attrs), arrays) if group is not None else set[str]()
        for place in links - found.keys():
            if dims.issuperset(dims_of(arrays[place])):
                found[place] = arrays[place]
    return found, above


def _members(zarr: Any, root: Any) -> tuple[dict[str, Any], dict[str, Exception]]:
    """Returns all groups and arrays below a group, and the errors of those that zarr-python refuses. Raises the store's error
    if it can't be listed."""
    try:
        return dict(root.members(max_depth=None)), {}
    except Exception:
        # One that is refused hides all others. So each is opened by itself.
        found: dict[str, Any] = {}
        refused: dict[str, Exception] = {}
        waiting = [""]
        for group in waiting:
            for name in _names(root, group):
                try:
                    found[name] = zarr.open(root.store_path / name, mode="r")
                except FileNotFoundError:
                    continue
                except Exception as error:
                    refused[name] = error
                    continue
                if not isinstance(found[name], zarr.Array):
                    waiting.append(name)
        if not refused:
            raise
        return found, refused


def _names(root: Any, group: str) -> list[str]:
    """Returns the names of what lies in a group of a store, of files too."""

    async def listed() -> list[str]:
        folder = (root.store_path / group).path if group else root.store_path.path
        return sorted([name async for name in root.store.list_dir(folder)])

    return ["/".join(filter(None, (group, name.strip("/")))) for name in needed("zarr.core.sync", "rechunk").sync(listed())]


def _refused(path: str, name: str, why: Exception, belongs: str = "") -> RuntimeError:
    """Makes the error of an array that zarr-python can't open."""
    return RuntimeError(
        f"store {path}: array {name!r}{belongs} can't be read by zarr-python, by which rechunk reads: {_first_line(why)}; give the "
        "others with --arrays"
    )


def _candidates(name: str, array: Any) -> set[str]:
    """Returns the names that arrays which belong to an array may have."""
    folders = name.split("/")[:-1]
    labels = {"/".join([*folders[:depth], dim]) for depth in range(len(folders) + 1) for dim in dims_of(array)}
    return labels | _places("/".join(folders), dict(array.attrs))


def _tried(zarr: Any, root: Any, place: str) -> dict[str, Any]:
    """Returns the array at a place, by its name; empty if there is none."""
    try:
        found = root[place]
    except Exception:
        return {}
    return {place: found} if isinstance(found, zarr.Array) else {}


def _of_dims(name: str, array: Any, arrays: Mapping[str, Any]) -> list[str | None]:
    """Returns for each dimension the array with its labels, in the array's group or the nearest above it; None if there
    is none."""
    folders = name.split("/")[:-1]
    places = [["/".join([*folders[:depth], dim]) for depth in range(len(folders), -1, -1)] for dim in dims_of(array)]
    return [next((place for place in some if place in arrays and arrays[place].ndim == 1), None) for some in places]


def linked(name: str, array: Any, arrays: Mapping[str, Any]) -> set[str]:
    """Returns the arrays that an array's attributes name as belonging to it: bounds, and coordinates that don't have
    the name of their dimension."""
    return named(name.rpartition("/")[0], dict(array.attrs), arrays)


def named(folder: str, attributes: Mapping[str, Any], arrays: Mapping[str, Any]) -> set[str]:
    """Returns the arrays that attributes of a group, or of an array in it, name."""
    return {place for place in _places(folder, attributes) if place in arrays}


def _places(folder: str, attributes: Mapping[str, Any]) -> set[str]:
    texts = [attributes[link] for link in _LINKS if isinstance(attributes.get(link), str)]
    words = [word.rstrip(":") for text in texts for word in text.split()]
    return {"/".join(filter(None, (folder, word))) for word in words}


def _one(zarr: Any, root: Any, path: str, name: str, known: Iterable[str]) -> Any:
    """Opens an array by its name, in a store that can't be listed. Raises ValueError if it isn't there, and RuntimeError if
    zarr-python refuses it."""
    found = None
    try:
        found = root[name]
    except (KeyError, FileNotFoundError):
        pass
    except Exception as error:
        raise _refused(path, name, error) from error
    if not isinstance(found, zarr.Array):
        there = did_you_mean(name, known, f"there are {', '.join(sorted(known)) or 'none that can be listed'}")
        raise ValueError(f"--arrays: the store {path} has no array {name!r}; {there}")
    return found


def stored_names(array: Any) -> list[str | None] | None:
    """Returns dimension names as they are stored; None where there isn't one for each dimension."""
    if array.metadata.zarr_format == 3:
        found = array.metadata.dimension_names
    else:
        found = dict(array.attrs).get("_ARRAY_DIMENSIONS")
    return list(found) if found is not None and len(found) == array.ndim else None


def dims_of(array: Any) -> tuple[str, ...]:
    """Returns the names of an array's dimensions by its own metadata; ``dim_0``, ``dim_1``... for those without a
    name."""
    names = stored_names(array) or [None] * array.ndim
    return tuple(f"dim_{i}" if name is None else str(name) for i, name in enumerate(names))


def _axes(image: Any, level: str, ndim: int) -> tuple[str, ...] | None:
    """Returns the names of the axes of an OME-Zarr image, if the array ``level`` belongs to it. None where attributes
    aren't as specified."""
    try:
        if level not in [dataset["path"].removeprefix("./").strip("/") for dataset in image["datasets"]]:
            return None
        names = [axis if isinstance(axis, str) else axis["name"] for axis in image["axes"]]
    except (AttributeError, KeyError, TypeError):
        return None
    are_names = all(isinstance(name, str) and name for name in names) and len(set(names)) == len(names)
    return tuple(names) if are_names and len(names) == ndim else None


def is_coordinate(name: str, array: Any) -> bool:
    """Returns whether an array has the labels of a dimension."""
    return array.ndim == 1 and dims_of(array) == (name.rpartition("/")[2],)


def selections(source: Source, options: Options) -> dict[str, Selection]:
    """Returns for each array what is selected along each dimension, as tasks take it.

    Raises:
        ValueError, TypeError, IndexError: A label or an index isn't there.
        ImportError: A package that labels need isn't installed.
    """
    chosen: dict[str, Mapping[str, Any]] = {"sel": options.sel, "isel": options.isel}
    known = [dim for name in source.arrays for dim in source.dims(name)]
    both = sorted(options.sel.keys() & options.isel.keys())
    if both:
        raise ValueError(f"--sel, --isel: expected one of both for each dimension, but found two for {both[0]!r}")
    for name, selection in chosen.items():
        for dim in selection:
            select.check_dim(name, dim, known)
    seen: dict[tuple[str, str, int], Any] = {}
    found: dict[str, Selection] = {}
    for name, array in source.arrays.items():
        parts: list[slice | list[int] | int] = []
        for i, (dim, length) in enumerate(zip(source.dims(name), array.shape, strict=True)):
            how = next((how for how, selection in chosen.items() if dim in selection), None)
            key = (name.rpartition("/")[0], dim, length)
            if how is None:
                parts.append(slice(0, length, 1))
                continue
            if key not in seen:
                seen[key] = _positions(source, options, name, array, how, dim, i)
            parts.append(seen[key])
        found[name] = tuple(parts)
    return found


def _positions(source: Source, options: Options, name: str, array: Any, how: str, dim: str, i: int) -> slice | list[int] | int:
    dims = source.dims(name)
    axes = Axes([source.path], SourceLabels(source, name), [Array(name, name, dims, (tuple(array.shape),))], [dims[0]], {})
    indexer = options.sel[dim] if how == "sel" else options.isel[dim]
    (found,) = indexers.selected(how, dim, indexer, axes, options.method, options.tolerance)
    if not len(found.indices):
        raise ValueError(f"--{how}: {dim!r}: expected at least one element, but {indexer!r} selects none")
    if found.is_scalar:
        return int(found.indices[0])
    spacing = found.spacing()
    if spacing is not None:
        return slice(int(found.indices[0]), int(found.indices[-1]) + 1, spacing)
    return [int(place) for place in np.asarray(found.indices)]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]
