"""Attributes and fill values of the target: packing stays as it is, in the other format and for another type too.

xarray takes the fill value of Zarr v2 for missing values, and in v3 the attribute ``_FillValue``. Its arrays of v2 have
the attribute ``_ARRAY_DIMENSIONS``.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from .._selection.stores import needed

PACKING = ("scale_factor", "add_offset", "_Unsigned")
_MISSING = ("_FillValue", "missing_value")


def attributes_of(array: Any, zarr_format: int, dtype: np.dtype[Any]) -> tuple[dict[str, Any], Any]:
    """The attributes and the fill value of an array that is written in a format and with a type.

    Raises:
        ValueError: A fill value can't be had in the type.
    """
    was = array.metadata.zarr_format
    attributes = {name: value for name, value in dict(array.attrs).items() if name != "_ARRAY_DIMENSIONS"}
    fill = array.fill_value
    if dtype != array.dtype:
        fill = None if fill is None else _converted(array, "fill_value", fill, dtype)
        for name in _MISSING:
            if name in attributes:
                found = _decoded(array, attributes[name])
                listed = cast("list[Any]", found) if isinstance(found, list) else [found]
                converted = [_converted(array, name, value, dtype) for value in listed]
                encoded = [_encoded(name, value, was, dtype) for value in converted]
                attributes[name] = encoded if isinstance(found, list) else encoded[0]
    if was == zarr_format:
        return attributes, fill
    if zarr_format == 3:
        # Other arrays than xarray's have no missing values; they are zeros mostly.
        if fill is not None and dtype.kind in "biufcSU" and "_ARRAY_DIMENSIONS" in dict(array.attrs):
            attributes["_FillValue"] = _encoded("_FillValue", fill, 3, dtype)
        elif "_FillValue" in attributes and isinstance(attributes["_FillValue"], int | float):
            attributes["_FillValue"] = _encoded("_FillValue", dtype.type(attributes["_FillValue"]), 3, dtype)
        # v3 needs one.
        return attributes, _default(dtype) if fill is None else fill
    # Without a value for what is missing, none of the values that are written means that.
    if "_FillValue" not in attributes:
        return attributes, None
    return attributes, dtype.type(_decoded(array, attributes.pop("_FillValue"), dtype))


def is_packed(array: Any) -> bool:
    """Whether the stored numbers stand for others."""
    return any(name in dict(array.attrs) for name in PACKING)


def _default(dtype: np.dtype[Any]) -> Any:
    return "" if dtype.kind in "OT" else np.zeros((), dtype)[()]


def _decoded(array: Any, value: Any, dtype: np.dtype[Any] | None = None) -> Any:
    """An attribute with a value of the array: xarray writes floats of v3 as text."""
    if isinstance(value, str) and array.metadata.zarr_format == 3 and (dtype or array.dtype).kind in "fcS":
        return needed("xarray.backends.zarr", "rechunk").FillValueCoder.decode(value, dtype or array.dtype)
    return value


def _encoded(name: str, value: Any, zarr_format: int, dtype: np.dtype[Any]) -> Any:
    if zarr_format == 3 and name == "_FillValue":
        return needed("xarray.backends.zarr", "rechunk").FillValueCoder.encode(value, dtype)
    return cast(Any, value).item() if isinstance(value, np.generic) else value


def _converted(array: Any, name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    with np.errstate(over="ignore"):
        found = np.asarray(value, array.dtype).astype(dtype)[()]
    if np.isfinite(value) and not np.isfinite(found):
        raise ValueError(
            f"--dtype: array '{array.path}': {name} {value} is too large for {dtype}; give another type, or leave the "
            "array out with --arrays"
        )
    return found
