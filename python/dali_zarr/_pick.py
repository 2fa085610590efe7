"""``pick`` as a dictionary, turned into the strings that the operator takes.

Whole numbers are indices. Floating-point numbers are labels: they are looked up in the array of coordinates that has
the dimension's name and stands beside the first of ``arrays``, as CF asks for it. Which of the two a list holds is
decided by the Python type alone, never by what the store holds.
"""

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import _native


def to_strings(
    pick: dict[str, Any],
    path: str | Sequence[str] | None,
    arrays: str | Sequence[str] | None,
    dims: Any,
    options: str | Sequence[str] | None = None,
) -> list[str]:
    """The operator's form of ``pick``, e.g. ``["level=0,5"]``."""
    found = {dim: _indices(dim, items, path, arrays, dims, options) for dim, items in pick.items()}
    return [f"{dim}={','.join(map(str, indices))}" for dim, indices in found.items()]


def _indices(dim: str | int, items: Any, path, arrays, dims, options) -> list[int]:
    if isinstance(items, str) or not isinstance(items, Iterable):
        items = [items]
    items = list(items)
    if all(isinstance(item, numbers.Integral) and not isinstance(item, bool) for item in items):
        return [int(item) for item in items]
    if all(isinstance(item, numbers.Real) and not isinstance(item, numbers.Integral) for item in items):
        return _find(dim, [float(item) for item in items], path, arrays, dims, options)
    kinds = ", ".join(sorted({type(item).__name__ for item in items}))
    raise TypeError(
        f"zarr_reader: pick: {dim!r}: expected whole numbers (indices) or floating-point numbers (labels), but found "
        f"{kinds}; give the indices of other labels"
    )


def _find(dim: str | int, labels: list[float], path, arrays, dims, options) -> list[int]:
    if not isinstance(dim, str):
        raise TypeError(f"zarr_reader: pick: labels need a dimension with a name, but found {dim!r}; give indices")
    paths = [path] if isinstance(path, str) else list(path or [])
    if not paths:
        raise ValueError("zarr_reader: path: expected at least one store, but found none")
    first_dim = dims if isinstance(dims, str) else next(iter(dims or []), None)
    if len(paths) > 1 and first_dim in (dim, None):
        raise ValueError(
            f"zarr_reader: pick: labels can't be looked up along {dim!r}, along which {len(paths)} stores may be "
            "joined; name `dims`, or give indices"
        )
    first = arrays if isinstance(arrays, str) else next(iter(arrays or []), "")
    group, slash, _ = first.rpartition("/")
    array = group + slash + dim
    try:
        coordinates = _native.read_vector(paths[0], array, _of_first(options))
    except (ValueError, TypeError) as error:
        raise type(error)(
            f"zarr_reader: pick: the labels of {dim!r} can't be looked up, because the coordinates can't be read "
            f"({error}); give indices"
        ) from error
    return [_find_one(dim, label, coordinates) for label in labels]


def _of_first(options: str | Sequence[str] | None) -> list[str]:
    """The options without the snapshots of other stores than the first."""
    found = []
    for option in [options] if isinstance(options, str) else list(options or []):
        name, _, value = option.partition("=")
        if name.strip().lower() == "snapshot_id" and "," in value:
            value = value.partition(",")[0].strip()
            if not value:
                continue
            option = f"{name}={value}"
        found.append(option)
    return found


def _find_one(dim: str, label: float, coordinates: np.ndarray) -> int:
    # A label such as 0.1 stands for the coordinate that is stored with the precision of its type.
    stored = coordinates.dtype.type(label) if coordinates.dtype.kind == "f" else label
    found = np.flatnonzero(coordinates == stored)
    if len(found) == 1:
        return int(found[0])
    shown = ", ".join(map(str, coordinates[:20])) + (", ..." if len(coordinates) > 20 else "")
    what = "isn't a coordinate" if len(found) == 0 else f"is the coordinate of {len(found)} elements"
    raise ValueError(f"zarr_reader: pick: {label} {what} of dimension {dim!r}: {shown}")
