"""Checks that xarray's variables hold what the reader would read: the elements of a store's array at given
positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .axes import Array, Axes
from .stores import needed

Indices = npt.NDArray[np.int64]

# xarray's wrappers that leave every element at its place.
_TRANSPARENT = (
    "MemoryCachedArray", "CopyOnWriteArray", "ImplicitToExplicitIndexingAdapter", "_ElementwiseFunctionArray",
    "NativeEndiannessArray", "BoolTypeArray",
)
# How many elements of a dask variable are compared with the store's, along each dimension.
_SAMPLED = 32


def check(axes: Axes, array: Array, variable: Any, isel: Mapping[str, Any], is_own: bool) -> None:
    """Compares a variable with what the reader gives for ``isel``.

    A variable that is still as xarray opened it is compared by name and position. For arrays of dask, some elements are
    read and compared. ``is_own``: whether the store is the one that the dataset names.

    Raises:
        ValueError: They differ, or it can't be found out whether they do.
    """
    name = array.name
    dims = tuple(dim for dim in array.dims if not isinstance(isel.get(dim), int))
    if tuple(variable.dims) != dims:
        raise ValueError(
            f"dali_zarr: from_xarray: {name!r}: expected the dimensions {dims}, in the order of the store, but found "
            f"{tuple(variable.dims)}"
        )
    lengths = [_length(axes, dim) for dim in array.dims]
    wanted = [_positions(isel.get(dim), length) for dim, length in zip(array.dims, lengths, strict=True)]
    data = variable._data
    if hasattr(data, "dask"):
        _compare(axes, array, variable, wanted)
        return
    keys: list[Any] = []
    while type(data).__name__ != "ZarrArrayWrapper":
        kind = type(data).__name__
        if kind == "LazilyIndexedArray":
            keys.append(data.key.tuple)
        elif kind not in _TRANSPARENT:
            raise ValueError(
                f"dali_zarr: from_xarray: {name!r} isn't as it was opened: the reader takes arrays from the store, and computes "
                "nothing; select before values are loaded, and with slices, integers or one list for each dimension"
            )
        data = data.array
    stored = data.get_array() if hasattr(data, "get_array") else data._array
    path = str(stored.path).strip("/")
    if path != name.strip("/") if is_own else path.split("/")[-1] != name.split("/")[-1]:
        raise ValueError(f"dali_zarr: from_xarray: {name!r} is the array {path!r} in the store; names must be the store's")
    if axes.is_joined or tuple(stored.shape) != tuple(lengths):
        raise ValueError(
            f"dali_zarr: from_xarray: {name!r}: expected a variable of the stores in path, but found one of an array with the "
            f"shape {tuple(stored.shape)} instead of {tuple(lengths)}; open several stores with dask"
        )
    for dim, one, other in zip(array.dims, _of_keys(keys, lengths), wanted, strict=True):
        if one.shape != other.shape or not np.array_equal(one, other):
            raise ValueError(
                f"dali_zarr: from_xarray: {name!r}: its elements along {dim!r} aren't those that the coordinates tell, or are in "
                f"another order; give the reader pick={{{dim!r}: [...]}} or isel={{{dim!r}: ...}}"
            )


def _length(axes: Axes, dim: str) -> int:
    lengths = axes.lengths(dim)
    return sum(lengths) if axes.is_joined and dim == axes.dims[0] else lengths[0]


def _positions(indexer: Any, length: int) -> Indices:
    if indexer is None:
        return np.arange(length)
    return np.asarray(np.arange(length)[indexer])


def _of_keys(keys: list[Any], lengths: list[int]) -> list[Indices]:
    """Returns the positions that are left of each axis after indexing with all keys. The first key was applied last."""
    found: list[Indices] = [np.arange(length) for length in lengths]
    left = list(range(len(lengths)))
    for key in reversed(keys):
        for axis, indexer in zip(left, key, strict=True):
            found[axis] = np.asarray(found[axis][indexer])
        left = [axis for axis in left if found[axis].ndim]
    return found


def _compare(axes: Axes, array: Array, variable: Any, wanted: list[Indices]) -> None:
    """Raises ValueError where sampled elements aren't the store's."""
    shape = cast("tuple[int, ...]", variable.shape)
    if 0 in shape or shape != tuple(len(one) for one in wanted if one.ndim):
        raise ValueError(f"dali_zarr: from_xarray: {array.name!r}: its shape {shape} isn't that of the selection")
    rng = np.random.default_rng(0)
    spread: list[npt.NDArray[np.int64]] = [
        np.unique(np.linspace(0, length - 1, min(length, _SAMPLED)).astype(np.int64)) for length in shape
    ]
    # Along each axis evenly spread elements, at random places along the other axes.
    rows = [
        np.stack([one if at == axis else rng.integers(0, length, len(one)) for at, length in enumerate(shape)], 1)
        for axis, one in enumerate(spread)
    ]
    places = np.concatenate(rows) if rows else np.zeros((1, 0), np.int64)
    # One by one: vectorised indices fail over chunks of different lengths.
    dask = needed("dask", "from_xarray of arrays of dask's")
    found = np.array(dask.compute(*(variable.data[tuple(place)] for place in places.tolist())))
    columns = iter(places.T)
    at = [one[next(columns)] if one.ndim else np.full(len(places), int(one)) for one in wanted]
    stored = axes.elements(array, at, variable.encoding)
    same = found == stored
    if found.dtype.kind == "f" and stored.dtype.kind == "f":
        same |= np.isnan(found) & np.isnan(stored)
    if found.dtype != stored.dtype or not same.all():
        wrong = int(np.flatnonzero(~same)[0]) if not same.all() else 0
        position = tuple(int(one[wrong]) for one in at)
        raise ValueError(
            f"dali_zarr: from_xarray: {array.name!r} isn't as it was opened: at {position} of the store's array there is "
            f"{stored[wrong]!s} ({stored.dtype}), but the dataset has {found[wrong]!s} ({found.dtype}) there"
        )

