"""Chooses the dimensions that have statistics for each of their elements, where ``channels`` doesn't name them: by the
dimensions' names, else by the sample's shape."""

from __future__ import annotations

from collections.abc import Sequence

from .._selection.axes import Array
from .selected import Selected

# Dimensions of space, and of members that are alike: their elements have statistics in common.
IN_COMMON = frozenset({
    "latitude", "lat", "rlat", "nav_lat", "south_north", "longitude", "lon", "rlon", "nav_lon", "west_east",
    "x", "y", "z", "xc", "yc", "projection_x_coordinate", "projection_y_coordinate", "easting", "northing",
    "cell", "cells", "ncell", "ncells", "ncol", "node", "nodes", "face", "faces", "point", "points", "values",
    "ensemble", "member", "number", "realization",
})
# A last dimension with at most this many elements, after longer ones, is that of colours (or coordinates).
COLOURS = 4
# A row with more elements than this may be a table's row, a signal, or a field without structure: the user has to say.
COLUMNS = 1024


def default(selected: Selected, array: Array) -> list[str]:
    """Returns the channels' dimensions of an array. Dimensions of which a single element is selected are among them, so
    that its label is kept.

    Raises:
        ValueError: Names and shape don't decide it.
    """
    dims = [dim for dim in selected.sample_dims(array) if dim not in selected.axes.dims]
    lengths = [len(selected.positions(array, dim)) for dim in dims]
    # A row that lacks the dimension of samples is the same for all samples; it isn't taken for channels.
    told = of_sample(dims, lengths) if selected.axes.dims[0] in array.dims or len(dims) > 1 else []
    if told is None:
        raise ValueError(
            f"dali_zarr: statistics: channels: array '{array.name}': expected to be told whether its {lengths[0]} elements along "
            f"{dims[0]!r} are channels; write channels={ {array.output: dims[0]} } if they are, else "
            f"channels={ {array.output: []} }"
        )
    found = {*told, *stacked(selected, array), *single(selected, array)}
    return [dim for dim in array.dims if dim in found]


def of_sample(dims: Sequence[str], lengths: Sequence[int]) -> list[str] | None:
    """Returns the channels' dimensions of a sample with these dimensions, or None where names and shape don't decide
    it."""
    if any(dim.lower() in IN_COMMON for dim in dims):
        return [dim for dim in dims if dim.lower() not in IN_COMMON]
    if len(dims) == 1:
        return list(dims) if lengths[0] <= COLUMNS else None
    if len(dims) > 1 and lengths[-1] <= COLOURS < min(lengths[-3:-1]):
        return [dims[-1]]
    return list(dims[:-2])


def stacked(selected: Selected, array: Array) -> list[str]:
    """Returns the dimensions that ``stack_arrays`` would make channels of; empty where the arrays couldn't be stacked.
    They can where all arrays of two dimensions or more share one, beside that of samples, and have equal lengths along
    each shared one."""
    large = [other for other in selected.arrays if len(other.dims) > 1]
    common = [dim for dim in (large[0].dims if large else ()) if all(dim in other.dims for other in large)]
    agree = all(len({other.shapes[0][other.dims.index(dim)] for other in large}) == 1 for dim in common)
    return selected.stacked_dims(array) if agree and set(common) - set(selected.axes.dims[:1]) else []


def single(selected: Selected, array: Array) -> list[str]:
    """Returns the array's dimensions among ``dims``, except the first, of which one element is selected."""
    return [dim for dim in selected.axes.dims[1:] if dim in array.dims and len(selected.positions(array, dim)) == 1]
