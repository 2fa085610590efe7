"""Finds which elements of each array a reader selects, and which dimensions are channels, both when statistics are made
and when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .._arguments import values
from .._selection.axes import Array, Axes


@dataclass(frozen=True)
class Axis:
    """A dimension, and the elements that are selected along it."""

    dim: str
    # Positions in the store; with several stores in the first one, along the joined axis in all together.
    positions: list[int]
    # Their coordinates. None where there are none, no package is there to read them, or one is missing or infinite.
    labels: list[float | str] | None


class Selected:
    """What a reader with these arguments, in the operator's form, selects."""

    def __init__(self, arguments: Mapping[str, Any]):
        """Reads metadata.

        Raises:
            ValueError, TypeError, RuntimeError: As building a pipeline with the reader does.
        """
        self.axes = Axes.of_reader(arguments)
        self._arguments = arguments
        self._windows = self.axes.listed("window", arguments, 0)
        self._coordinates: dict[str, npt.NDArray[Any] | None] = {}

    @property
    def arrays(self) -> list[Array]:
        """The arrays, in the reader's order."""
        return self.axes.arrays

    def locations(self) -> list[str]:
        """Returns the locations of all stores: those of ``path``, and of arrays that have their own."""
        paths = self.axes.paths if self._arguments.get("path") is not None else []
        return list(dict.fromkeys([*paths, *(array.name for array in self.arrays if array.is_own)]))

    def sample_dims(self, array: Array) -> list[str]:
        """Returns the dimensions that the array has in a sample."""
        cut = {dim for dim, window in zip(self.axes.dims, self._windows, strict=True) if window == 0}
        return [dim for dim in array.dims if dim not in cut]

    def stacked_dims(self, array: Array) -> list[str]:
        """Returns the dimensions of which ``stack_arrays`` makes channels: those that not all arrays of two or more
        dimensions have."""
        large = [set(other.dims) for other in self.arrays if len(other.dims) > 1]
        common: set[str] = set[str].intersection(*large) if large else set()
        return [dim for dim in self.sample_dims(array) if dim not in common]

    def named_channels(self, array: Array, given: Any) -> list[str] | None:
        """Returns the dimensions of an array that ``given`` names, in the array's order; None where it says nothing of
        the array. ``given`` is the argument ``channels`` in the operator's form."""
        if isinstance(given, Mapping):
            given = cast(Mapping[str, Any], given).get(array.output)
        if given is None:
            return None
        places = {_position(key, array) for key in values.items(given)}
        return [dim for d, dim in enumerate(array.dims) if d in places]

    def check_channels(self, given: Any) -> None:
        """Raises ValueError for an output or a dimension that ``channels`` names (in the operator's form) and that
        doesn't exist."""
        by_output: dict[str | None, Any] = {None: given or []}
        if isinstance(given, Mapping):
            by_output = dict(cast(Mapping[str | None, Any], given))
        for output, keys in by_output.items():
            arrays = [array for array in self.arrays if output in (None, array.output)]
            if not arrays:
                known = ", ".join(repr(array.output) for array in self.arrays)
                raise ValueError(f"channels: there is no output {output!r}; the outputs are {known}")
            for key in values.items(keys):
                if all(_position(key, array) is None for array in arrays):
                    known = ", ".join(dict.fromkeys(dim for array in arrays for dim in array.dims))
                    raise ValueError(f"channels: expected dimensions of {known}, but found {key!r}")

    def channel_dims(self, array: Array) -> list[str] | None:
        """Returns the dimensions of an array that the reader's argument ``channels`` names; None where it says nothing
        of the array."""
        return self.named_channels(array, self._arguments.get("channels"))

    def positions(self, array: Array, dim: str) -> list[int]:
        """Returns the selected elements along a dimension of an array; along the joined axis those of all stores."""
        found = self._picked(array, dim)
        region = self.region(array, dim)
        if found is None:
            return list(region)
        length = sum(self.axes.lengths(dim)) if dim == self.axes.dims[0] else array.shapes[0][array.dims.index(dim)]
        return [found[i] + length if found[i] < 0 else found[i] for i in region]

    def _picked(self, array: Array, dim: str) -> list[int] | None:
        """Returns what is picked of a dimension of an array in the first store, as it is given: negative numbers count from the
        end. None where nothing is."""
        lists = self.axes.picks_of(dim, array.output)
        return None if lists is None else lists[0]

    def length(self, array: Array, dim: str) -> int:
        """Returns the number of elements of a dimension after ``pick``, those outside of the region included.
        Dimensions without names may have a different length in each array."""
        if dim in self.axes.dims:
            return self.axes.axis_length(self.axes.dims.index(dim))
        picked = self._picked(array, dim)
        return array.shapes[0][array.dims.index(dim)] if picked is None else len(picked)

    def region(self, array: Array, dim: str) -> range:
        """Returns which of the elements that :meth:`length` counts are selected."""
        every = range(self.length(array, dim))
        if dim not in self.axes.dims:
            return every
        start, end, spacing = self.axes.regions(self.axes.dims.index(dim), self._arguments)[0]
        return every[start:end:spacing]

    def axis(self, array: Array, dim: str) -> Axis:
        """Returns a dimension of an array with its selected elements."""
        positions = self.positions(array, dim)
        if dim not in self._coordinates:
            self._coordinates[dim] = self._read(dim)
        found = self._coordinates[dim]
        if found is None or (dim not in self.axes.dims and len(found) != array.shapes[0][array.dims.index(dim)]):
            return Axis(dim, positions, None)
        chosen = found[positions]
        # NaN and NaT equal nothing, and JSON has no infinite numbers: then positions identify the elements.
        is_whole = bool(np.all(chosen == chosen)) and (chosen.dtype.kind != "f" or bool(np.isfinite(chosen).all()))
        return Axis(dim, positions, labels_of(chosen) if is_whole else None)

    def coordinates(self, array: Array, dim: str) -> Any:
        """Returns the coordinates of the selected elements, as NumPy's array, or None where there are none.

        Raises:
            ValueError, RuntimeError, ImportError: They can't be read.
        """
        variable = self.axes.variable(dim, 0)
        return None if variable is None else np.asarray(variable.values)[self.positions(array, dim)]

    def _read(self, dim: str) -> npt.NDArray[Any] | None:
        try:
            variable = self.axes.variable(dim, 0)
        except (ImportError, RuntimeError, ValueError):
            return None
        return None if variable is None else np.asarray(variable.values)


def labels_of(coordinates: npt.NDArray[Any]) -> list[float | str]:
    """Converts coordinates to what files of statistics have: numbers, or text."""
    if coordinates.dtype.kind in "biuf":
        return [float(value) for value in coordinates]
    return [str(value) for value in coordinates]


def _position(key: str, array: Array) -> int | None:
    """Returns the place of a dimension among those of an array, given by its name or its position; None if it isn't
    there."""
    if key in array.dims:
        return array.dims.index(key)
    count = len(array.dims)
    return int(key) % count if key.lstrip("-").isdigit() and -count <= int(key) < count else None
