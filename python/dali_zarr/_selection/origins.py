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


def leaves(variable: Any) -> list[Any]:
    """Returns the arrays of zarr-python that a variable of xarray reads, in the order of its graph; empty where it reads
    none, since its values are in memory."""
    data = variable._data
    if not hasattr(data, "dask"):
        found = _leaf(data)
        return [] if found is None else [found]
    layers: Any = getattr(data.dask, "layers", {})
    # An opened array is the only entry of its layer.
    entries = [next(iter(layer.values())) for layer in layers.values() if len(layer) == 1]
    return [found for entry in entries if (found := _leaf(getattr(entry, "value", entry))) is not None]


def _leaf(data: Any) -> Any:
    while type(data).__name__ != "ZarrArrayWrapper":
        data = getattr(data, "array", None)
        if data is None:
            return None
    return data.get_array() if hasattr(data, "get_array") else data._array


def check(axes: Axes, array: Array, variable: Any, isel: Mapping[str, Any]) -> None:
    """Compares a variable with what the reader gives for ``isel``. Its dimensions are in the order of the store's array.

    A variable that is still as xarray opened it is compared by position. For arrays of dask, some elements are read and
    compared.

    Raises:
        ValueError: They differ, or it can't be found out whether they do.
    """
    name = array.output
    lengths = [_length(axes, dim) for dim in array.dims]
    wanted = [_positions(isel.get(dim), length) for dim, length in zip(array.dims, lengths, strict=True)]
    data = variable._data
    if hasattr(data, "dask"):
        dropped = [dim for dim in array.dims if isinstance(isel.get(dim), int)]
        _compare(axes, array, variable, wanted, dropped)
        return
    keys: list[Any] = []
    while type(data).__name__ != "ZarrArrayWrapper":
        kind = type(data).__name__
        if kind == "LazilyIndexedArray":
            keys.append(data.key.tuple)
        elif kind == "LazilyVectorizedIndexedArray" and (key := orthogonal(data.key.tuple)) is not None:
            keys.append(key)
        elif kind not in _TRANSPARENT:
            raise ValueError(
                f"dali_zarr: from_xarray: {name!r} isn't as it was opened: the reader takes arrays from the store, and computes "
                "nothing; select before values are loaded, and with slices, integers or one list for each dimension"
            )
        data = data.array
    stored = data.get_array() if hasattr(data, "get_array") else data._array
    if axes.is_joined or tuple(stored.shape) != tuple(lengths):
        raise ValueError(
            f"dali_zarr: from_xarray: {name!r}: expected a variable of the stores in path, but found one of an array with the "
            f"shape {tuple(stored.shape)} instead of {tuple(lengths)}; open several stores with dask"
        )
    for dim, one, other in zip(array.dims, _of_keys(keys, lengths), wanted, strict=True):
        if not np.array_equal(one.ravel(), other.ravel()):
            raise ValueError(
                f"dali_zarr: from_xarray: {name!r}: its elements along {dim!r} aren't those that the coordinates tell, or are in "
                f"another order; give the reader pick={{{dim!r}: [...]}} or isel={{{dim!r}: ...}}"
            )


def orthogonal(key: tuple[Any, ...]) -> tuple[Indices, ...] | None:
    """Returns the positions along each axis of an array that was transposed, which xarray keeps as arrays of indices;
    None if they don't vary along one axis each."""
    found: list[Indices] = [np.asarray(one) for one in key]
    varying = [_varying(one) for one in found]
    used = [axis for axes in varying for axis in axes]
    if any(len(axes) > 1 for axes in varying) or len(set(used)) < len(used):
        return None
    # An axis along which all are the same counts elements that come several times, unless it has only one.
    shape = np.broadcast_shapes(*(one.shape for one in found))
    if any(length > 1 and axis not in used for axis, length in enumerate(shape)):
        return None
    return tuple(_along(one, axes) for one, axes in zip(found, varying, strict=True))


def _along(indices: Indices, axes: tuple[int, ...]) -> Indices:
    """Returns indices along the axes along which they differ."""
    return indices[tuple(slice(None) if axis in axes else slice(1) for axis in range(indices.ndim))].ravel()


def _varying(indices: Indices) -> tuple[int, ...]:
    """Returns the axes along which indices differ."""
    axes = range(indices.ndim)
    return tuple(axis for axis in axes if indices.shape[axis] > 1 and (indices != indices.take([0], axis)).any())


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


def _compare(axes: Axes, array: Array, variable: Any, wanted: list[Indices], dropped: list[str]) -> None:
    """Raises ValueError where sampled elements aren't the store's."""
    wanted = [one.reshape(()) if dim in dropped else one for dim, one in zip(array.dims, wanted, strict=True)]
    shape = cast("tuple[int, ...]", variable.shape)
    if 0 in shape or shape != tuple(len(one) for one in wanted if one.ndim):
        raise ValueError(f"dali_zarr: from_xarray: {array.output!r}: its shape {shape} isn't that of the selection")
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
            f"dali_zarr: from_xarray: {array.output!r} isn't as it was opened: at {position} of the store's array there is "
            f"{stored[wrong]!s} ({stored.dtype}), but the dataset has {found[wrong]!s} ({found.dtype}) there"
        )

