"""The coordinates of a dimension, decoded as xarray decodes them: packed values, times and their calendars."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import Any, cast

import numpy as np

from .stores import Store, needed


def read(store: Store, array: str, dim: str, length: int) -> Any:
    """Returns xarray's variable with the coordinates along ``dim`` of an array of the store, or None where there are
    none.

    The array with the dimension's name holds them. It is in the array's group, or in the nearest group around it.
    Stores of anemoi-datasets have the names along ``variable`` in the group's attribute ``variables``.

    Raises:
        ValueError: There isn't one coordinate for each element.
        RuntimeError: They can't be read.
    """
    found = _nearest(store, array, dim)
    if found is None:
        store.check(array)
        return _named_by_attribute(store, array, dim, length)
    if found.shape != (length,):
        if found.ndim != 1:
            return None
        raise ValueError(
            f"zarr_reader: array '{found.path}': expected {length} coordinates, one for each element of '{array}', but found "
            f"{found.shape[0]}"
        )
    with _reading(store, found):
        return decoded(dim, np.asarray(found[:]), _attributes(found))


def _named_by_attribute(store: Store, array: str, dim: str, length: int) -> Any:
    if dim != "variable":
        return None
    names = variables(store.attributes(array.strip("/").rpartition("/")[0]))
    if len(names) != length:
        return None
    return needed("xarray", "selecting by label").Variable((dim,), np.array(names, dtype=str))


def variables(attributes: Mapping[str, Any]) -> list[str]:
    """Returns the names of an anemoi store's variables, in their order; empty for other stores. Old stores have a
    dictionary from names to numbers instead."""
    found = attributes.get("variables")
    if found is None and isinstance(by_name := attributes.get("name_to_index"), dict):
        numbers = cast(dict[str, Any], by_name)
        found = sorted(numbers, key=lambda name: numbers[name])
    names = cast(list[Any], found) if isinstance(found, list) else []
    return names if all(isinstance(name, str) for name in names) else []


def text(store: Store, array: str, dim: str, length: int) -> list[str] | None:
    """Returns the coordinates along ``dim`` of an array of the store if they are text, else None. Others aren't read.

    Raises:
        RuntimeError: They can't be read.
    """
    found = _nearest(store, array, dim)
    if found is None or found.shape != (length,) or np.dtype(found.dtype).kind not in "OTUS":
        return None
    with _reading(store, found):
        return [one.decode() if isinstance(one, bytes) else str(one) for one in np.asarray(found[:]).tolist()]


@contextlib.contextmanager
def _reading(store: Store, found: Any) -> Generator[None, None, None]:
    """Turns what reading and decoding an array raises into an error that names store and array."""
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        raise store.unreadable(f"array '{found.path}': {error}") from error


def _nearest(store: Store, array: str, dim: str) -> Any:
    """zarr-python's array of the dimension's name in an array's group, or in the nearest one around it; None if there is none."""
    folders = array.strip("/").split("/")[:-1]
    while True:
        found = store.array("/".join([*folders, dim]))
        if found is not None or not folders:
            return found
        folders.pop()


def elements(store: Store, name: str, at: list[Any], encoding: Mapping[str, Any]) -> Any:
    """Reads elements of an array at positions, which are one list for each axis. Those of the array's attributes that
    are in ``encoding`` decode them.

    Raises:
        RuntimeError: They can't be read.
    """
    found = store.array(name)
    if found is None:
        store.check(name)
        found = store.array("")
    values = np.atleast_1d(found.vindex[tuple(at)] if at else found[()])
    attributes = {key: value for key, value in _attributes(found).items() if key in encoding}
    return np.asarray(decoded("_point", values, attributes).values)


def _attributes(array: Any) -> dict[str, Any]:
    attributes = dict(array.attrs)
    if array.metadata.zarr_format == 2:
        # xarray masks the fill value of Zarr v2.
        if array.fill_value is not None:
            attributes["_FillValue"] = array.fill_value
    elif isinstance(attributes.get("_FillValue"), str):
        coder = needed("xarray.backends.zarr", "selecting by label").FillValueCoder
        attributes["_FillValue"] = coder.decode(attributes["_FillValue"], array.dtype)
    attributes.pop("_ARRAY_DIMENSIONS", None)
    return attributes


def decoded(dim: str, values: Any, attributes: dict[str, Any]) -> Any:
    """Decodes stored coordinates; returns xarray's variable."""
    xarray = needed("xarray", "selecting by label")
    dataset = xarray.decode_cf(xarray.Dataset({dim: ((dim,), values, attributes)}))
    return dataset.variables[dim]
