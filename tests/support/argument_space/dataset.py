"""What stores hold, read by zarr-python and xarray alone: values as stored and as xarray decodes them, and coordinates."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from support.argument_space.stores import Stores


class Refused(Exception):
    """The arguments can't be what a reader is given. ``names``: arguments, one of which the message must name."""

    def __init__(self, *names: str):
        super().__init__(*names)
        self.names = names


@dataclass
class Variable:
    """An output's array, whole: of all stores, or of each store."""

    output: str
    dims: tuple[str, ...]
    parts: list[np.ndarray]


class Dataset:
    """The arrays and the coordinates of a set of stores. Everything is read once."""

    def __init__(self, stores: Stores):
        self.stores = stores
        self._values: dict[Any, np.ndarray] = {}
        self._dims: dict[Any, tuple[str, ...]] = {}
        self._packed: dict[Any, bool] = {}
        self._opened: dict[Any, xr.Dataset] = {}

    def place(self, path: Path, name: str) -> tuple[Path, str]:
        """Returns the store and the name in it. An array with a store of its own is given by its location."""
        if name.startswith(("/", "./", "../")):
            whole = Path(name)
            return whole.parent, whole.name
        return path, name

    def dims(self, path: Path, name: str) -> tuple[str, ...]:
        place = self.place(path, name)
        if place not in self._dims:
            known = next((a.dims for a in self.stores.arrays if a.name == name and place in self.stores.kept), None)
            if known is None:
                array = zarr.open_array(str(place[0]), path=place[1], mode="r")
                names = array.metadata.dimension_names if array.metadata.zarr_format == 3 else array.attrs.get("_ARRAY_DIMENSIONS")
                known = tuple(names or (f"dim_{i}" for i in range(array.ndim)))
                known = (*known, "complex") if array.dtype.kind == "c" else known
            self._dims[place] = known
        return self._dims[place]

    def is_packed(self, path: Path, name: str) -> bool:
        place = self.place(path, name)
        if place not in self._packed:
            attributes = {} if place in self.stores.kept else zarr.open_array(str(place[0]), path=place[1], mode="r").attrs
            self._packed[place] = bool({"scale_factor", "add_offset"} & set(attributes))
        return self._packed[place]

    def values(self, path: Path, name: str, is_decoded: bool) -> np.ndarray:
        """Values in native byte order. Times are int64, complex numbers two real ones."""
        key = (*self.place(path, name), is_decoded)
        if key not in self._values:
            if key[:2] in self.stores.kept:
                found = self.stores.kept[key[:2]]
            elif is_decoded:
                found = self._decoded(key[0], key[1])
            else:
                found = zarr.open_array(str(key[0]), path=key[1], mode="r")[...]
            found = np.asarray(found)
            found = found.view("i8") if found.dtype.kind in "mM" else found
            if found.dtype.kind == "c":
                found = np.stack([found.real, found.imag], axis=-1)
            self._values[key] = found.astype(found.dtype.newbyteorder("="), copy=False)
        return self._values[key]

    def coordinates(self, path: Path, dim: str, arrays: Collection[str]) -> np.ndarray | None:
        """The coordinates of a dimension, decoded as xarray decodes them; None if there are none. They lie around the
        ``arrays``, so those with stores of their own have none."""
        key = (path, "coordinates of", dim)
        if dim not in self.stores.labelled or not any(dim in self.dims(path, a) and not a.startswith("/") for a in arrays):
            return None
        if key not in self._values:
            self._values[key] = self._dataset(path, "", True)[dim].values
        return self._values[key]

    def ends(self, path: Path, name: str) -> list[int]:
        return [int(end) for end in self.values(path, name, False)]

    def _decoded(self, path: Path, name: str) -> np.ndarray:
        if self.stores.has_names:
            group, _, last = name.rpartition("/")
            return self._dataset(path, group, False)[last].values
        # xarray opens no store without names of dimensions, but decodes its variables.
        array = zarr.open_array(str(path), path=name, mode="r")
        attributes = dict(array.attrs)
        if array.metadata.zarr_format == 2 and array.fill_value is not None:
            attributes["_FillValue"] = array.fill_value
        variable = xr.Variable(self.dims(path, name), array[...], attributes)
        return xr.conventions.decode_cf_variable(name, variable, decode_times=False).values

    def _dataset(self, path: Path, group: str, decode_times: bool) -> xr.Dataset:
        key = path, group, decode_times
        if key not in self._opened:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._opened[key] = xr.open_zarr(
                    str(path), group=group or None, consolidated=False, decode_times=decode_times, chunks=None
                ).load()
        return self._opened[key]
