"""Which elements of each array a reader selects, and which dimensions are channels: the same when statistics are made and read."""

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
    # In the store, of several stores in the first.
    positions: list[int]
    # Their coordinates, or None where there are none (or no package that reads them), or one is missing or infinite.
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
        # Of several stores in the first; as they are given: from the end too.
        self._picks = {dim: lists[0] for dim, lists in self.axes.picks.items()}
        self._coordinates: dict[str, npt.NDArray[Any] | None] = {}

    @property
    def arrays(self) -> list[Array]:
        """In the reader's order."""
        return self.axes.arrays

    def locations(self) -> list[str]:
        """Those of all stores: of ``path``, and of arrays that have their own."""
        paths = self.axes.paths if self._arguments.get("path") is not None else []
        return list(dict.fromkeys([*paths, *(array.name for array in self.arrays if array.is_own)]))

    def sample_dims(self, array: Array) -> list[str]:
        """The dimensions that the array has in a sample."""
        cut = {dim for dim, window in zip(self.axes.dims, self._windows, strict=True) if window == 0}
        return [dim for dim in array.dims if dim not in cut]

    def stacked_dims(self, array: Array) -> list[str]:
        """The dimensions of which ``stack_arrays`` makes channels: those that not every array of two dimensions or more has."""
        large = [set(other.dims) for other in self.arrays if len(other.dims) > 1]
        common: set[str] = set[str].intersection(*large) if large else set()
        return [dim for dim in self.sample_dims(array) if dim not in common]

    def named_channels(self, array: Array, given: Any) -> list[str] | None:
        """Those of an array that ``channels`` names, in the operator's form, in the array's order; None: nothing was said of it."""
        if isinstance(given, Mapping):
            given = cast(Mapping[str, Any], given).get(array.output)
        if given is None:
            return None
        places = {_position(key, array) for key in values.items(given)}
        return [dim for d, dim in enumerate(array.dims) if d in places]

    def check_channels(self, given: Any) -> None:
        """Raises ValueError for what ``channels``, in the operator's form, names and no array has."""
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
        """Those of an array that the reader's argument names."""
        return self.named_channels(array, self._arguments.get("channels"))

    def positions(self, array: Array, dim: str) -> list[int]:
        """The selected elements along a dimension of an array; along the joined axis those of all stores."""
        found = self._picks.get(dim)
        region = self.region(array, dim)
        if found is None:
            return list(region)
        length = sum(self.axes.lengths(dim)) if dim == self.axes.dims[0] else array.shapes[0][array.dims.index(dim)]
        return [found[i] + length if found[i] < 0 else found[i] for i in region]

    def length(self, array: Array, dim: str) -> int:
        """Elements of the dimension after ``pick``, also those outside of the region. Dimensions without names may be of different
        lengths in each array."""
        if dim in self.axes.dims:
            return self.axes.axis_length(self.axes.dims.index(dim))
        return len(self._picks[dim]) if dim in self._picks else array.shapes[0][array.dims.index(dim)]

    def region(self, array: Array, dim: str) -> range:
        """Which of those are selected."""
        every = range(self.length(array, dim))
        if dim not in self.axes.dims:
            return every
        start, end, spacing = self.axes.regions(self.axes.dims.index(dim), self._arguments)[0]
        return every[start:end:spacing]

    def axis(self, array: Array, dim: str) -> Axis:
        """A dimension of an array with its selected elements."""
        positions = self.positions(array, dim)
        if dim not in self._coordinates:
            self._coordinates[dim] = self._read(dim)
        found = self._coordinates[dim]
        if found is None or (dim not in self.axes.dims and len(found) != array.shapes[0][array.dims.index(dim)]):
            return Axis(dim, positions, None)
        chosen = found[positions]
        # NaN and NaT equal nothing, and JSON has no infinite numbers: positions tell the elements then.
        is_whole = bool(np.all(chosen == chosen)) and (chosen.dtype.kind != "f" or bool(np.isfinite(chosen).all()))
        return Axis(dim, positions, labels_of(chosen) if is_whole else None)

    def coordinates(self, array: Array, dim: str) -> Any:
        """The coordinates of the selected elements, as NumPy's array, or None where there are none.

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
    """Coordinates as files of statistics have them: numbers, or text."""
    if coordinates.dtype.kind in "biuf":
        return [float(value) for value in coordinates]
    return [str(value) for value in coordinates]


def _position(key: str, array: Array) -> int | None:
    """Where a dimension is among those of an array, given by its name or its position."""
    if key in array.dims:
        return array.dims.index(key)
    count = len(array.dims)
    return int(key) % count if key.lstrip("-").isdigit() and -count <= int(key) < count else None
