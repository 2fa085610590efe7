"""Files of statistics that other programs write: makani's, GraphCast's and WeatherBench's, anemoi's."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._selection.axes import Array
from .._selection.coordinates import variables
from .formats import File, Numbers, elements, entry_of, key_of, reading, rows_of
from .moments import Doubles
from .selected import Axis, Selected, labels_of


class Npy(File):
    """makani's: ``global_means.npy`` and ``global_stds.npy``, of shape (1, channel, 1, 1), in the order of the channels."""

    def __init__(self, content: Any):
        if content.dtype.kind not in "iuf" or max(content.shape, default=1) != content.size:
            raise ValueError(f"expected numbers of shape (1, channel, 1, 1), but found {content.dtype} of shape {content.shape}")
        self._numbers: list[float] = [float(number) for number in content.reshape(-1)]
        self._at = 0

    def numbers(self, name: str, selected: Selected, stacked: bool) -> Numbers:
        count = 0
        for array in selected.arrays:
            dims = {*(selected.stacked_dims(array) if stacked else []), *(selected.channel_dims(array) or [])}
            count += int(np.prod([len(selected.positions(array, dim)) for dim in dims], dtype=np.int64))
        if not stacked and len(selected.arrays) == 1 and selected.channel_dims(selected.arrays[0]) is None:
            # Like a list that the user writes out: the engine finds the dimension that it is for.
            return Numbers([self._numbers], [[]])
        if len(self._numbers) != count:
            what = "channels of the stack" if stacked else "arrays and channels; name these by channels, or give stack_arrays=True"
            raise ValueError(f"expected {count} numbers, one for each of the {what}, but found {len(self._numbers)}")
        self._at = 0
        return super().numbers(name, selected, stacked)

    def named(self, selected: Selected, array: Array) -> list[str]:
        return []

    def of_array(self, name: str, selected: Selected, array: Array, dims: list[str]) -> list[float]:
        count = int(np.prod([len(selected.positions(array, dim)) for dim in dims], dtype=np.int64))
        self._at += count
        return self._numbers[self._at - count : self._at]


class NetCdf(File):
    """GraphCast's and WeatherBench's: a file of means, or of deviations, with a variable for each array, by level."""

    def __init__(self, dataset: Any):
        self._dataset = dataset

    def named(self, selected: Selected, array: Array) -> list[str]:
        """Returns the dimensions along which the file has a number for each element: it has none for all of them
        together."""
        variable = entry_of(self._dataset.data_vars, key_of(array))
        return [dim for dim in array.dims if dim in variable.dims and len(selected.positions(array, dim)) > 1]

    def of_array(self, name: str, selected: Selected, array: Array, dims: list[str]) -> list[float]:
        variable = entry_of(self._dataset.data_vars, key_of(array))
        variable = variable.squeeze([dim for dim in variable.dims if dim not in array.dims and variable.sizes[dim] == 1])
        axes = [
            Axis(str(dim), list(range(length)), labels_of(variable[dim].values) if dim in variable.coords else None)
            for dim, length in variable.sizes.items()
        ]
        return _chosen(selected, array, dims, axes, np.asarray(variable.values, np.float64))


class Anemoi(File):
    """A store of anemoi-datasets: the arrays ``mean`` and ``stdev`` have a number for each variable. The variables are the
    elements of the array ``data`` along its dimension ``variable``; the attribute ``variables`` lists their names."""

    _ARRAYS = {"mean": "mean", "stddev": "stdev"}

    def __init__(self, group: Any):
        names = variables(group.attrs)
        # The numbers of an argument are read when they are asked for.
        self._group = group
        self._axis = Axis(_dim_of(group["mean"]), list(range(len(names))), list(names))

    @classmethod
    def is_kept_by(cls, group: Any) -> bool:
        """Whether a group is such a store."""
        return all(name in group for name in cls._ARRAYS.values()) and bool(variables(group.attrs))

    def named(self, selected: Selected, array: Array) -> list[str]:
        return [self._axis.dim] if self._axis.dim in array.dims and len(selected.positions(array, self._axis.dim)) > 1 else []

    def of_array(self, name: str, selected: Selected, array: Array, dims: list[str]) -> list[float]:
        axis = self._axis
        with reading():
            numbers = np.asarray(elements(self._group[self._ARRAYS[name]]), np.float64)
        if numbers.shape != (len(axis.positions),):
            raise ValueError(f"expected a number for each of {len(axis.positions)} variables, but found the shape {numbers.shape}")
        if axis.dim in array.dims and selected.axis(array, axis.dim).labels is None:
            length = array.shapes[0][array.dims.index(axis.dim)]
            if length != len(numbers):
                raise ValueError(
                    f"array '{array.name}': expected names of its {length} elements along {axis.dim!r}, or as many as the file has "
                    f"variables, {len(numbers)}"
                )
        return _chosen(selected, array, dims, [axis], numbers)


def _dim_of(array: Any) -> str:
    names: Any = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return str(names[0]) if names else "variable"


def _chosen(selected: Selected, array: Array, dims: list[str], axes: list[Axis], numbers: Doubles) -> list[float]:
    """Returns the number of each of the reader's elements along ``dims``, of ``numbers`` along ``axes``. These files
    have no number for several elements together."""
    rows = rows_of(selected, array, dims, axes)
    if rows.shape[1] > 1:
        others = [axis.dim for axis in axes if axis.dim not in dims and len(selected.positions(array, axis.dim)) > 1]
        which = others[0] if len(others) == 1 else others
        raise ValueError(
            f"array '{array.name}': expected one number, but found one for each of {rows.shape[1]} elements of {which!r}; select "
            f"one of them, or give each its own by channels={ {array.output: which} }"
        )
    return [float(number) for number in numbers.reshape(-1)[rows[:, 0]]]
