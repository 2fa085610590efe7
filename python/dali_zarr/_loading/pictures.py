"""Batches as pictures: fields with their coordinates, by xarray's plotting."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

from .._selection.axes import Array, Axes
from .._selection.stores import needed
from .labels import Labels
from .outputs import Source

# The most panels of a figure.
_PANELS = 16
_COLUMNS = 4
_SIZE = (4.2, 3.2)


@dataclass(frozen=True)
class Output:
    """One entry of a batch, in host memory, and where its samples are."""

    title: str
    # None: a transform made it.
    source: Source | None
    values: npt.NDArray[Any]
    labels: Labels
    index: npt.NDArray[np.int64]


def plot(outputs: Sequence[Output], samples: Sequence[int], **how: Any) -> Any:
    """Draws a figure with a panel for each field: pictures of two dimensions, lines of one. Further dimensions have a
    panel for each element. ``how`` goes to xarray's plotting.

    Raises:
        ImportError: xarray or Matplotlib isn't installed.
        IndexError: The batch lacks a sample.
        ValueError: There is nothing to draw.
    """
    needed("xarray", "plotting a batch")
    pyplot = needed("matplotlib.pyplot", "plotting a batch")
    panels = list(itertools.islice(_panels(outputs, samples), _PANELS))
    if not panels:
        raise ValueError("dali_zarr: plot: expected outputs with dimensions, but found none: scalars have no picture")
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = (_SIZE[0] * columns, _SIZE[1] * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for ax, (title, field) in zip(axes.flat, panels, strict=False):
        if field.ndim == 1:
            field.plot(ax=ax)
        else:
            (field.plot.pcolormesh if _has_coordinates(field) else field.plot.imshow)(ax=ax, **how)
        ax.set_title(title, fontsize="medium")
    # Notebooks show the figure that is returned, and it shouldn't be shown twice.
    pyplot.close(figure)
    return figure


def _has_coordinates(field: Any) -> bool:
    return all(dim in field.coords for dim in field.dims)


def _panels(outputs: Sequence[Output], samples: Sequence[int]) -> Iterator[tuple[str, Any]]:
    for sample in samples:
        given: Any = sample
        if not isinstance(given, SupportsIndex):
            raise TypeError(f"dali_zarr: plot: expected the number of a sample, or several, but found {given!r}")
        for output in outputs:
            if not -len(output.values) <= sample < len(output.values):
                raise IndexError(f"dali_zarr: plot: expected a sample below {len(output.values)}, but found {sample}")
            field = field_of(output, sample)
            if output.source is not None:
                # As stored, so that the last two dimensions are a picture; the channels of a stack come first.
                stored = output.labels.axes().stored(output.source.array)
                field = field.transpose(*sorted(field.dims, key=lambda dim: stored.index(dim) if dim in stored else -1))
            for at in itertools.product(*(range(length) for length in field.shape[:-2])):
                panel = field[at]
                if panel.ndim:
                    yield "\n".join([output.title, *_places(panel)]), panel


def _places(panel: Any) -> list[str]:
    """Returns the labels of a panel along the dimensions that it lost, as one text; empty if there are none."""
    scalars = [f"{name} {_short(value.values[()])}" for name, value in panel.coords.items() if value.ndim == 0]
    return [", ".join(scalars)] if scalars else []


def _short(value: Any) -> str:
    if isinstance(value, np.datetime64):
        return re.sub(r"(T00:00)?(:00)?$", "", str(value.astype("datetime64[s]")))
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)


def field_of(output: Output, sample: int) -> Any:
    """A sample of an output as xarray's DataArray, with the coordinates that are known."""
    xarray = needed("xarray", "plotting a batch")
    values = output.values[sample]
    if output.source is None:
        return xarray.DataArray(values, name=output.title)
    axes, dims = output.labels.axes(), output.labels.dims(output.source.array)
    if len(dims) != values.ndim:
        # A transform changed how many there are.
        dims = [f"dim_{i}" for i in range(values.ndim)]
    coords: dict[str, Any] = {}
    try:
        found = output.labels.of(output.index[sample : sample + 1 or None], output.source.offset, output.source.array)
    except (ImportError, RuntimeError, ValueError, AttributeError):
        found = {}
    # A label of another array's dimension says nothing about this one.
    own = axes.names() if output.source.array is None else axes.stored(output.source.array)
    for dim, label in found.items():
        if dim not in dims and dim in own and label.ndim == 1:
            coords[dim] = label[0]
        elif dim in dims and label.ndim == 2 and label.shape[1] == values.shape[dims.index(dim)]:
            coords[dim] = (dim, label[0])
    for dim, length in zip(dims, values.shape, strict=True):
        known = None if dim in coords else _coordinates(axes, dim)
        if known is not None and known.shape == (length,) and known.dtype.kind in "iufM":
            coords[dim] = (dim, known, _described_by(axes.variable(dim, 0).attrs))
    for channel in {*dims} - {*axes.names()} if output.source.array is None else ():
        names = _channels(axes, output.labels)
        if len(names) == values.shape[dims.index(channel)]:
            coords[channel] = (channel, names)
    return xarray.DataArray(values, dims=dims, coords=coords, name=output.title, attrs=_attributes(axes, output))


def _attributes(axes: Axes, output: Output) -> dict[str, Any]:
    """Returns the attributes by which xarray labels an output's colours. A stack has no units in common, and normalised
    values have none."""
    if output.source is None or output.source.array is None:
        return {}
    try:
        found = _described_by(axes.attributes(output.source.array))
    except (ImportError, RuntimeError, StopIteration, ValueError):
        return {}
    return {name: value for name, value in found.items() if name != "units" or not output.labels.is_normalised}


def _described_by(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: attributes[name] for name in ("long_name", "standard_name", "units") if isinstance(attributes.get(name), str)}


def _dropped(axes: Axes, labels: Labels, array: Array | None) -> set[str]:
    """The dimensions along which an array, or a stack of all, has no window."""
    windows = labels.windows(None if array is None else array.output)
    return {dim for dim, (window, _) in zip(axes.dims, windows, strict=True) if window == 0}


def _common(axes: Axes) -> set[str]:
    """The dimensions that don't become channels of a stack."""
    large = [set(array.dims) for array in axes.arrays if len(array.dims) > 1]
    return set[str].intersection(*large) if large else set()


def _channels(axes: Axes, labels: Labels) -> list[str]:
    """Returns the names of a stack's channels: the array's name and, where an array gives several, their coordinates
    too. Empty where coordinates are missing."""
    dropped = _dropped(axes, labels, None)
    common, found = _common(axes), list[str]()
    for array in axes.arrays:
        stacked = [dim for dim in array.dims if dim not in common and dim not in dropped]
        places = [_coordinates(axes, dim) for dim in stacked]
        if any(place is None for place in places):
            return []
        known = cast("list[npt.NDArray[Any]]", places)
        found += [" ".join([array.name, *map(_short, at)]) for at in itertools.product(*known)]
    return found


def _coordinates(axes: Axes, dim: str) -> npt.NDArray[Any] | None:
    """Coordinates along a dimension that samples have whole, if they are the same in all stores."""
    try:
        if dim not in axes.names() or dim in axes.dims:
            return None
        found = axes.coordinates_by_store(dim)
    except (ImportError, RuntimeError, ValueError):
        return None
    return found[0] if found and all(np.array_equal(one, found[0]) for one in found) else None


def described(batch: Mapping[str, Any]) -> str:
    """A batch in one line: types and shapes instead of values."""
    inner = ", ".join(f"{name!r}: {_described(value)}" for name, value in batch.items())
    return f"{type(batch).__name__}({{{inner}}})"


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return described(cast("Mapping[str, Any]", value))
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return f"{dtype} {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)
