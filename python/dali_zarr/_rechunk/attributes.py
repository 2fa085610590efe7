"""Attributes and fill values of the target: packing stays as it is, in the other format and for another type too.

xarray marks missing values by the fill value in Zarr v2, and by the attribute ``_FillValue`` in v3. Its arrays of v2
have the attribute ``_ARRAY_DIMENSIONS``.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from .._selection.stores import needed

PACKING = ("scale_factor", "add_offset", "_Unsigned")
_MISSING = ("_FillValue", "missing_value")


def attributes_of(array: Any, zarr_format: int, dtype: np.dtype[Any]) -> tuple[dict[str, Any], Any]:
    """Returns the attributes and the fill value of an array that is written in this format and with this type.

    Raises:
        ValueError: A fill value is too large for the type.
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
        # Fill values of arrays that aren't xarray's don't mark missing values: mostly they are 0.
        if fill is not None and dtype.kind in "biufcSU" and "_ARRAY_DIMENSIONS" in dict(array.attrs):
            attributes["_FillValue"] = _encoded("_FillValue", fill, 3, dtype)
        elif "_FillValue" in attributes and isinstance(attributes["_FillValue"], int | float):
            attributes["_FillValue"] = _encoded("_FillValue", dtype.type(attributes["_FillValue"]), 3, dtype)
        # Zarr v3 needs a fill value.
        return attributes, _default(array, dtype) if fill is None else fill
    # Nothing marks missing values. Without a fill value in v2, no value of the data can be taken for one.
    if "_FillValue" not in attributes:
        return attributes, None
    return attributes, dtype.type(_decoded(array, attributes.pop("_FillValue"), dtype))


def is_packed(array: Any) -> bool:
    """Returns whether the array's numbers are packed: stored numbers stand for others."""
    return any(name in dict(array.attrs) for name in PACKING)


def _default(array: Any, dtype: np.dtype[Any]) -> Any:
    # Text, or bytes of any length.
    return array.metadata.dtype.default_scalar() if dtype.kind in "OT" else np.zeros((), dtype)[()]


def _decoded(array: Any, value: Any, dtype: np.dtype[Any] | None = None) -> Any:
    """Decodes an attribute that is a value of the array: in Zarr v3 xarray writes floats as text."""
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
