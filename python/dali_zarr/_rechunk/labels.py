"""The labels of a source's arrays, from the arrays that zarr-python has opened to read their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._selection.coordinates import variables

if TYPE_CHECKING:
    from .source import Source

# What anemoi-datasets calls coordinates.
_ANEMOI = {"time": ("dates", "base_dates"), "step": ("steps",)}


class SourceLabels:
    """The labels of one array, as the library tells them of the arrays of a reader."""

    def __init__(self, source: Source, name: str):
        self._source, self._folder = source, name.rpartition("/")[0]

    def attributes(self, array: int, store: int) -> dict[str, Any]:
        """Returns the attributes of the array's group."""
        return self._source.groups.get(self._folder, {})

    def find(self, array: int, store: int, dim: str | None, length: int) -> dict[str, Any] | None:
        """Returns the array with the coordinates along ``dim``: in the array's group or the nearest one around it."""
        folder = self._folder
        while (found := self._at(folder, str(dim))) is None and folder:
            folder = folder.rpartition("/")[0]
        if found is None and variables(self.attributes(array, store)):
            others = (self._at(self._folder, name) for name in _ANEMOI.get(str(dim), ()))
            found = next((one for one in others if one is not None and one["shape"] == [length]), None)
        return found

    def _at(self, folder: str, name: str) -> dict[str, Any] | None:
        path = f"{folder}/{name}" if folder else name
        array = self._source.arrays.get(path)
        if array is None:
            return None
        dtype = np.dtype(array.dtype)
        kind = {"O": "text", "T": "text", "U": "text", "S": "bytes"}.get(dtype.kind, "numbers")
        return {
            "name": path, "shape": list(array.shape), "kind": kind,
            "dtype": np.dtype(object) if dtype.kind == "T" else dtype, "zarr_format": array.metadata.zarr_format,
            "attributes": dict(array.attrs), "fill_value": array.fill_value,
        }

    def read(self, array: int, store: int, found: Mapping[str, Any]) -> npt.NDArray[Any]:
        """Reads an array that was found."""
        values = np.asarray(self._source.arrays[found["name"]][:])
        return values.astype(object) if found["dtype"].kind == "O" else values
