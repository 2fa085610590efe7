"""The dimensions of what a reader reads: their names, their lengths in each store, their coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .. import _native
from .._arguments import values
from . import coordinates, stores

# The arguments on which they depend.
_PLACES = ("path", "arrays", "storage_options", "dims")


@dataclass(frozen=True)
class Array:
    """An array, in all stores."""

    name: str
    dims: tuple[str, ...]
    # For each store.
    shapes: tuple[tuple[int, ...], ...]


class Axes:
    """See the module. Coordinates are read when they are first asked for, once."""

    def __init__(
        self, paths: list[str], options: Mapping[str, str], arrays: list[Array], dims: list[str],
        picks: Mapping[str, list[int] | None],
    ):
        self.paths, self.arrays, self.dims = paths, arrays, dims
        # Dimensions with a pick, also one for each store.
        self.picked = frozenset(picks)
        self._options = options
        self._picks = {dim: indices for dim, indices in picks.items() if indices is not None}
        self._stores: dict[int, stores.Store] = {}
        self._variables: dict[tuple[str, int], Any] = {}

    @classmethod
    def of_reader(cls, arguments: Mapping[str, Any]) -> Axes:
        """Those of a reader with these arguments, in the operator's form. Reads metadata.

        Raises:
            ValueError, TypeError, RuntimeError: As building a pipeline with the reader does.
        """
        spec = {name: arguments[name] for name in _PLACES if arguments.get(name) is not None}
        found = _native.explain(spec)["arrays"]
        arrays = [
            Array(a["name"], tuple(a["dims"]), tuple(tuple(part["shape"]) for part in a["stores"])) for a in found
        ]
        path = arguments["path"]
        options = dict(option.split("=", 1) for option in _listed(arguments.get("storage_options")))
        largest = max(arrays, key=lambda array: len(array.dims))
        picks = {_named(dim, largest): indices for dim, indices in _picks(arguments.get("pick")).items()}
        given = [_named(dim, largest) for dim in _listed(arguments.get("dims"))]
        return cls([path] if isinstance(path, str) else list(path), options, arrays, given or list(largest.dims[:1]), picks)

    @property
    def is_joined(self) -> bool:
        """Whether there are several stores, joined along the first of ``dims``."""
        return len(self.paths) > 1

    def names(self) -> list[str]:
        """All dimensions of the arrays."""
        return list(dict.fromkeys(dim for array in self.arrays for dim in array.dims))

    def lengths(self, dim: str) -> list[int]:
        """The length in each store; of a dimension that only some arrays have, where they have it."""
        array = self._array(dim)
        return [shape[array.dims.index(dim)] for shape in array.shapes]

    def _array(self, dim: str) -> Array:
        return next(array for array in self.arrays if dim in array.dims)

    def variable(self, dim: str, store: int) -> Any:
        """xarray's variable with the coordinates in a store, or None where there are none.

        Raises:
            ValueError, RuntimeError, ImportError: They can't be read.
        """
        if (dim, store) not in self._variables:
            array, length = self._array(dim), self.lengths(dim)[store]
            self._variables[dim, store] = coordinates.read(self._store(store), array.name, dim, length)
        return self._variables[dim, store]

    def _store(self, store: int) -> stores.Store:
        if store not in self._stores:
            self._stores[store] = stores.Store(self.paths[store], self._options)
        return self._stores[store]

    def elements(self, name: str, store: int, at: list[npt.NDArray[np.int64]], encoding: Mapping[str, Any]) -> npt.NDArray[Any]:
        """Elements of an array at positions, one list for each axis. Of what decodes them only what ``encoding`` has is applied.

        Raises:
            RuntimeError: They can't be read.
        """
        return coordinates.elements(self._store(store), name, at, encoding)

    def joined(self) -> Any:
        """xarray's variable with the coordinates of all stores along the axis that joins them, or None where one lacks them."""
        found = [self.variable(self.dims[0], store) for store in range(len(self.paths))]
        if any(variable is None for variable in found):
            return None
        return stores.needed("xarray", "selecting by label").Variable.concat(found, self.dims[0])

    def coordinates(self, dim: str) -> npt.NDArray[Any] | None:
        """The coordinates as NumPy has them, along the joined axis those of all stores; None where there are none."""
        count = len(self.paths) if self.is_joined and dim == self.dims[0] else 1
        found = [self.variable(dim, store) for store in range(count)]
        if any(variable is None for variable in found):
            return None
        joined = np.concatenate([np.asarray(variable.values) for variable in found])
        return joined[self._picks[dim]] if dim in self._picks else joined

    def listed(self, name: str, arguments: Mapping[str, Any], default: int) -> list[int]:
        """An argument "for each of dims"."""
        given = _listed(arguments.get(name))
        return [int(item) for item in given] if given else [default] * len(self.dims)

    def axis_length(self, i: int) -> int:
        """Elements along one of ``dims``, of all stores along the joined one, after ``pick``."""
        dim = self.dims[i]
        if dim in self._picks:
            return len(self._picks[dim])
        lengths = self.lengths(dim)
        return sum(lengths) if self.is_joined and i == 0 else lengths[0]

    def region_length(self, i: int, arguments: Mapping[str, Any]) -> int:
        """Elements between ``roi_start`` and ``roi_end`` along one of ``dims``."""
        length = self.axis_length(i)
        start, end = self.listed("roi_start", arguments, 0)[i], self.listed("roi_end", arguments, length)[i]
        return (end + length if end < 0 else end) - (start + length if start < 0 else start)


def _listed(value: Any) -> list[Any]:
    return [] if value is None else values.items(value)


def _named(dim: Any, array: Array) -> str:
    """A dimension's name, where it may be given by its position."""
    text = str(dim)
    if text in array.dims or not text.lstrip("-").isdigit() or not -len(array.dims) <= int(text) < len(array.dims):
        return text
    return array.dims[int(text)]


def _picks(given: Any) -> dict[str, list[int] | None]:
    """The indices by dimension; None where they aren't the same in all stores, or aren't indices."""
    found: dict[str, list[int] | None] = {}
    entries = cast(Mapping[Any, Any], given).items() if isinstance(given, Mapping) else [e.split("=", 1) for e in _listed(given)]
    for dim, indices in entries:
        if isinstance(indices, str):
            indices = indices.split(",")
        listed: list[Any] = list(cast(Iterable[Any], indices)) if isinstance(indices, Iterable) else [indices]
        are_indices = all(str(i).strip().lstrip("-").isdigit() for i in listed)
        found[str(dim).strip()] = [int(i) for i in listed] if are_indices else None
    return found
