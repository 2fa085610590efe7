"""The coordinates of a dimension, decoded as xarray decodes them: packed values, times and their calendars. The library
reads them, from the stores that it opens for a reader."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import Any, Protocol, cast

import numpy as np

from .._failures import failure_of
from .stores import needed


class Labels(Protocol):
    """What tells and reads coordinates: :class:`._native.Labels`, or what has a store open already."""

    def find(self, array: int, store: int, dim: str | None, length: int) -> dict[str, Any] | None: ...

    def attributes(self, array: int, store: int) -> dict[str, Any]: ...

    def read(self, array: int, store: int, found: Mapping[str, Any]) -> Any: ...


def read(labels: Labels, array: int, store: int, dim: str, length: int, names: tuple[str, str]) -> Any:
    """Returns xarray's variable with the coordinates along ``dim`` of array number ``array`` in store number ``store``, or
    None where there are none. ``names``: the location of the store and the name of the array, for messages.

    The array with the dimension's name holds them. It is in the array's group, or in the nearest group around it.
    Stores of anemoi-datasets have the dates along ``time`` and the steps along ``step`` in arrays of other names, and the
    names along ``variable`` in the group's attribute ``variables``.

    Raises:
        ValueError: There isn't one coordinate for each element.
        RuntimeError: They can't be read.
    """
    with _reading(names[0]):
        found = labels.find(array, store, dim, length)
        if found is None:
            return _named_by_attribute(labels, array, store, dim, length)
        if found["shape"] == [length]:
            return decoded(dim, labels.read(array, store, found), _attributes(found))
    if len(found["shape"]) != 1:
        return None
    raise ValueError(
        f"zarr_reader: array '{found['name']}': expected {length} coordinates, one for each element of '{names[1]}', but found "
        f"{found['shape'][0]}"
    )


def _named_by_attribute(labels: Labels, array: int, store: int, dim: str, length: int) -> Any:
    if dim != "variable":
        return None
    names = variables(labels.attributes(array, store))
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


@contextlib.contextmanager
def _reading(location: str) -> Generator[None, None, None]:
    """Turns what reading and decoding coordinates raises into an error that names the store."""
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        failure = failure_of(error)
        reason = str(error) if failure is None else failure.message
        place = f"store {location}"
        reason = reason.strip().split("\n")[0].removeprefix("zarr_reader: ").removeprefix(f"{place}, ").removeprefix(f"{place}: ")
        raise RuntimeError(
            f"zarr_reader: store {location}: its coordinates can't be read: {reason}; select by position, with isel"
        ) from error


def elements(labels: Labels, array: int, values: bytes, encoding: Mapping[str, Any], location: str) -> Any:
    """Decodes elements of array number ``array``, as a reader gives them, by those of the array's attributes that are in
    ``encoding``.

    Raises:
        RuntimeError: The attributes can't be read.
    """
    with _reading(location):
        found = labels.find(array, 0, None, 0)
        if found is None:
            raise ValueError("the array isn't there any more")
        stored = np.frombuffer(values, found["dtype"])
        attributes = {key: value for key, value in _attributes(found).items() if key in encoding}
        return np.asarray(decoded("_point", stored, attributes).values)


def _attributes(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes with which xarray decodes an array."""
    attributes = dict(cast("Mapping[str, Any]", found["attributes"]))
    fill = attributes.get("_FillValue")
    if found["zarr_format"] == 2:
        # xarray masks the fill value of Zarr v2.
        if found["fill_value"] is not None:
            attributes["_FillValue"] = found["fill_value"]
    elif isinstance(fill, str):
        coder = needed("xarray.backends.zarr", "selecting by label").FillValueCoder
        attributes["_FillValue"] = coder.decode(fill, "string" if found["dtype"].kind == "O" else found["dtype"])
    attributes.pop("_ARRAY_DIMENSIONS", None)
    return attributes


def decoded(dim: str, values: Any, attributes: dict[str, Any]) -> Any:
    """Decodes stored coordinates; returns xarray's variable."""
    xarray = needed("xarray", "selecting by label")
    dataset = xarray.decode_cf(xarray.Dataset({dim: ((dim,), values, attributes)}))
    return dataset.variables[dim]
