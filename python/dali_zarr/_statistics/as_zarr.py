"""Statistics as a Zarr group that xarray opens, with the content of the JSON file.

The group itself is a table with an entry for each array. The groups ``arrays/NAME`` have the numbers of their channels.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._selection.stores import needed
from .formats import FORMAT, check_version, elements

_WHY = "statistics as Zarr"
_ENDING = ".zarr"
NUMBERS = ("mean", "stddev", "min", "max", "nan_share", "count", "weight")
_TENDENCY = "tendency_"
# Names in the groups that channels' dimensions can't have. "array" is the table's dimension, which xarray's trees inherit.
_RESERVED = frozenset({*NUMBERS, *(_TENDENCY + key for key in NUMBERS), "offset", "array"})
_GROUPS = "arrays"
_NO_GROUPS = frozenset({"", ".", "..", "zarr.json"})
_POSITIONS = "_position"
# Attributes for all arrays together. Those that are None are left out: xarray can't write them to other formats.
_ATTRIBUTES = ("format", "version", "path", "samples", "dim", "offsets", "weights", "channels")
_OF_ARRAYS = ("mask_and_scale", "fillna")


def is_meant(target: Path) -> bool:
    """Returns whether a file of that name is written as Zarr."""
    return target.name.endswith(_ENDING)


def check(target: Path, names: Collection[str]) -> None:
    """Raises FileExistsError where something other than a group of statistics has the name, ImportError where
    zarr-python is missing, ValueError where arrays have names that groups beside each other can't have."""
    zarr = needed("zarr", _WHY)
    for name in names:
        inside = next((other for other in names if name.startswith(f"{other}/")), None)
        if inside is not None or not _NO_GROUPS.isdisjoint(name.split("/")):
            why = "that isn't a name of a group" if inside is None else f"its group would be inside that of '{inside}'"
            raise ValueError(f"array '{name}': {why}; give the output another name, or write JSON, to a name that ends in .json")
    target = target.resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(f"expected an existing folder, but found none at {target.parent}")
    if not target.exists():
        return
    try:
        found = zarr.open_group(str(target), mode="r").attrs.get("format")
    except Exception:
        found = None
    if found != FORMAT:
        raise FileExistsError(
            f"expected a new name, or that of a Zarr group of statistics, which is replaced, but found something else at {target}"
        )


def write(content: Mapping[str, Any], target: Path) -> None:
    """Writes the content of the JSON file as a group. An existing group is replaced as a whole; a program that is
    reading it may fail."""
    check(target, content["arrays"])
    target = target.resolve()
    partial, former = (target.with_name(f".{target.name}.{os.getpid()}.{kind}") for kind in ("new", "old"))
    try:
        _write(content, partial)
        if target.exists():
            target.rename(former)
        try:
            partial.rename(target)
        except OSError:
            if former.exists() and not target.exists():
                former.rename(target)
            raise
    finally:
        for path in (partial, former):
            shutil.rmtree(path, ignore_errors=True)


def _write(content: Mapping[str, Any], path: Path) -> None:
    zarr = needed("zarr", _WHY)
    root = zarr.open_group(str(path), mode="w", zarr_format=3)
    root.attrs.update({name: content[name] for name in _ATTRIBUTES if content[name] is not None})
    entries: Mapping[str, Any] = content["arrays"]
    offsets = list(dict.fromkeys(offset for entry in entries.values() for offset in entry["tendencies"]))
    _text(root, "array", list(entries))
    if offsets:
        _array(root, "offset", [int(offset) for offset in offsets], ["offset"])
    for key in NUMBERS:
        _array(root, key, [entry[key] for entry in entries.values()], ["array"])
        if offsets:
            table = [[entry["tendencies"][offset][key] for entry in entries.values()] for offset in offsets]
            _array(root, _TENDENCY + key, table, ["offset", "array"])
    for name, entry in entries.items():
        _write_channels(root.require_group(f"{_GROUPS}/{name}"), entry, offsets)
        _consolidate(zarr, path, f"{_GROUPS}/{name}")
    _consolidate(zarr, path, None)


def _write_channels(group: Any, entry: Mapping[str, Any], offsets: Sequence[str]) -> None:
    axes: list[Mapping[str, Any]] = entry["channels"]
    group.attrs.update({"dims": [axis["dim"] for axis in axes]} | {name: entry[name] for name in _OF_ARRAYS if name in entry})
    dims = _names([axis["dim"] for axis in axes])
    shape = [len(axis["positions"]) for axis in axes]
    for dim, axis in zip(dims, axes, strict=True):
        _array(group, dim + _POSITIONS, axis["positions"], [dim])
        labels: list[Any] | None = axis["labels"]
        if labels is not None:
            (_text if isinstance(labels[0], str) else _array)(group, dim, labels, [dim])
    # The attribute by which xarray knows that these arrays are coordinates of the numbers.
    beside = {"coordinates": " ".join(dim + _POSITIONS for dim in dims)} if dims else {}
    if offsets:
        _array(group, "offset", [int(offset) for offset in offsets], ["offset"])
    for key in NUMBERS:
        _array(group, key, entry["by_channel"][key], dims, shape, beside)
        if offsets:
            table = [entry["tendencies"][offset]["by_channel"][key] for offset in offsets]
            _array(group, _TENDENCY + key, table, ["offset", *dims], [len(offsets), *shape], beside)


def _names(dims: Sequence[str]) -> list[str]:
    """Returns names for the dimensions of channels in a group. ``_`` is added to names that other arrays of the group
    have."""
    taken, found = set(_RESERVED), list[str]()
    for dim in dims:
        while not taken.isdisjoint((dim, dim + _POSITIONS)):
            dim += "_"
        taken |= {dim, dim + _POSITIONS}
        found.append(dim)
    return found


def _array(
    group: Any, name: str, values: Any, dims: Sequence[str], shape: Sequence[int] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    found = np.array(values)
    if found.dtype.kind not in "i":
        # None becomes NaN.
        found = np.array(values, np.float64)
    found = found if shape is None else found.reshape(shape)
    fill = 0 if found.dtype.kind == "i" else np.nan
    group.create_array(
        name, data=found, chunks=found.shape, dimension_names=list(dims), fill_value=fill, attributes=dict(attributes or {}),
    )


def _text(group: Any, name: str, values: Sequence[str], dims: Sequence[str] | None = None) -> None:
    made = group.create_array(name, shape=(len(values),), dtype=str, chunks=(len(values),), dimension_names=list(dims or [name]))
    made[:] = np.array(values, object)


def _consolidate(zarr: Any, path: Path, group: str | None) -> None:
    """Consolidates metadata, without zarr-python's warning that Zarr v3 doesn't specify this. xarray warns if they are
    missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(str(path), path=group)


def content(root: Any) -> dict[str, Any]:
    """Returns the content that the JSON file would have, from zarr-python's group.

    Raises:
        ValueError: The group has another version of the format.
    """
    told: dict[str, Any] = dict(root.attrs)
    check_version(told)
    names = [str(name) for name in elements(root["array"])]
    offsets = [str(offset) for offset in elements(root["offset"]).tolist()] if "offset" in root else []
    table = {key: _listed(root[key]) for key in NUMBERS}
    tendencies = {key: _listed(root[_TENDENCY + key]) for key in NUMBERS} if offsets else {}
    arrays: dict[str, Any] = {}
    for i, name in enumerate(names):
        group = root[f"{_GROUPS}/{name}"]
        by: dict[str, Any] = {key: _flat(group[key]) for key in NUMBERS}
        others: dict[str, Any] = {}
        for n, offset in enumerate(offsets):
            of_channels = {key: _flat(group[_TENDENCY + key], n) for key in NUMBERS}
            others[offset] = {key: tendencies[key][n][i] for key in NUMBERS} | {"by_channel": of_channels}
        arrays[name] = {
            **{key: group.attrs[key] for key in _OF_ARRAYS if key in group.attrs}, "channels": _axes(group),
            **{key: table[key][i] for key in NUMBERS}, "by_channel": by, "tendencies": others,
        }
    return {**{name: told.get(name) for name in _ATTRIBUTES}, "arrays": arrays}


def _axes(group: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    dims = group.attrs["dims"]
    for dim, name in zip(dims, _names(dims), strict=True):
        labels = elements(group[name]).tolist() if name in group else None
        found.append({"dim": dim, "positions": elements(group[name + _POSITIONS]).tolist(), "labels": labels})
    return found


def _listed(array: Any) -> list[Any]:
    return _plain(elements(array))


def _flat(array: Any, row: int | None = None) -> list[Any]:
    values = elements(array)
    return _plain((values if row is None else values[row]).reshape(-1))


def _plain(values: Any) -> list[Any]:
    found = values.astype(object)
    found[values != values] = None
    return found.tolist()
