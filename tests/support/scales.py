"""Arrays of other resolutions: an oracle in exact fractions and NumPy for ``scale_by``, and stores as writers make them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Along:
    """The elements of an array along a dimension: the centre of the first one and the distance, in one unit for all arrays."""

    first: Fraction
    distance: Fraction
    length: int

    def nearest(self, place: Fraction) -> int:
        """The element whose first edge is nearest to a place; of two, the later one."""
        return floor((place - (self.first - self.distance / 2)) / self.distance + HALF)

    def previous(self, place: Fraction) -> int:
        """The element that holds a place; at an edge, the later one."""
        return floor((place - (self.first - self.distance / 2)) / self.distance)

    def at(self, place: Fraction, method: str) -> int:
        return self.previous(place) if method == "previous" else self.nearest(place)

    def edge(self, element: int) -> Fraction:
        return self.first + (element - HALF) * self.distance

    def centres(self) -> npt.NDArray[np.float64]:
        return np.array([float(self.first + i * self.distance) for i in range(self.length)])


def start_in(own: Along, window: int, grid: Along, grid_window: int, start: int, method: str = "nearest") -> int:
    """The element at which the box of a sample begins that starts at the grid's element ``start``."""
    centre = grid.edge(start) + grid_window * grid.distance / 2
    return own.at(centre - window * own.distance / 2, method)


def bound_in(own: Along, grid: Along, element: int, method: str = "nearest") -> int:
    """An element of the grid that bounds a region, as one of another array."""
    if element <= 0:
        return 0
    return own.length if element >= grid.length else min(max(own.at(grid.edge(element), method), 0), own.length)


@dataclass(frozen=True)
class Image:
    """An array with the places of its elements. ``windows`` counts elements; 0 drops the dimension."""

    values: npt.NDArray[Any]
    dims: tuple[str, ...]
    along: Mapping[str, Along]
    windows: Mapping[str, int]


def sample(
    image: Image, grid: Image, start: Mapping[str, int], regions: Mapping[str, tuple[int, int]], policy: str, fill: float = 0,
    method: str = "nearest",
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]] | None:
    """A sample of an image, and which of its elements lie inside; None where the policy drops it. The grid's own elements have
    the same rule: it is an image like the others."""
    index, masks = [], []
    for dim in image.dims:
        if dim not in image.along:
            index.append(np.arange(image.values.shape[image.dims.index(dim)]))
            continue
        own, of_grid, region = image.along[dim], grid.along[dim], regions[dim]
        window = max(image.windows[dim], 1)
        at = start_in(own, window, of_grid, max(grid.windows[dim], 1), start[dim], method) + np.arange(window)
        low, high = (bound_in(own, of_grid, bound, method) for bound in region)
        inside = (at >= low) & (at < high)
        if policy == "drop" and not inside.all():
            return None
        masks.append((dim, inside))
        index.append(np.clip(np.clip(at, low, max(high - 1, low)), 0, own.length - 1))
    found = image.values[np.ix_(*index)]
    is_in = np.ones(found.shape, bool)
    for dim, inside in masks:
        is_in &= np.expand_dims(inside, [i for i, other in enumerate(image.dims) if other != dim])
    found = np.where(is_in, found, np.asarray(fill, found.dtype)) if policy == "pad" else found
    dropped = tuple(i for i, dim in enumerate(image.dims) if dim in image.along and image.windows[dim] == 0)
    whole = tuple(i for i, dim in enumerate(image.dims) if dim not in image.along)
    kept = is_in.all(axis=whole, keepdims=True) if whole else is_in
    return found.squeeze(dropped), kept.squeeze(tuple(sorted((*dropped, *whole))))


def starts(
    images: Mapping[str, Image], grid: str, steps: Mapping[str, int], regions: Mapping[str, tuple[int, int]], policy: str,
    offsets: Sequence[int] = (0,), method: str = "nearest",
) -> list[tuple[int, ...]]:
    """The starts of all samples, in their order."""
    dims = list(steps)
    of_grid = images[grid]

    def fits(dim: str, at: int) -> bool:
        if policy != "drop":
            return True
        for image, offset in itertools.product(images.values(), offsets if dim == dims[0] else (0,)):
            if dim not in image.along:
                continue
            own, window = image.along[dim], max(image.windows[dim], 1)
            first = start_in(own, window, of_grid.along[dim], max(of_grid.windows[dim], 1), at + offset, method)
            low, high = (bound_in(own, of_grid.along[dim], bound, method) for bound in regions[dim])
            if first < low or first + window > high:
                return False
        return True

    each = [[at for at in range(*regions[dim], steps[dim]) if fits(dim, at)] for dim in dims]
    return list(itertools.product(*each))


def numbered(shape: Sequence[int], dtype: str = "int32", first: int = 1) -> npt.NDArray[Any]:
    """Values that all differ, none of which is 0."""
    return (np.arange(int(np.prod(shape))) + first).reshape(shape).astype(dtype)


def write_coordinates(
    root: Path, name: str, image: Image, zarr_format: int = 3, dtype: str = "float64", units: Mapping[str, str] | None = None,
    chunk: int = 7, scale: float = 1.0,
) -> str:
    """Writes an image as xarray does: an array and its coordinates in a group. ``scale``: by what coordinates are multiplied, for
    other units. Returns the array's name."""
    group = zarr.open_group(str(root), mode="a", zarr_format=zarr_format).create_group(name)

    def write(of: str, values: npt.NDArray[Any], dims: Sequence[str], chunks: Sequence[int], attributes: dict[str, Any]) -> None:
        names: dict[str, Any] = {"dimension_names": list(dims)} if zarr_format == 3 else {}
        array = group.create_array(of, shape=values.shape, dtype=values.dtype, chunks=tuple(chunks), **names)
        array[...] = values
        array.attrs.update(attributes | ({"_ARRAY_DIMENSIONS": list(dims)} if zarr_format == 2 else {}))

    write("v", image.values, image.dims, [min(chunk, n) for n in image.values.shape], {})
    for dim, along in image.along.items():
        of_dim = {"units": units[dim]} if units else {}
        write(dim, (along.centres() * scale).astype(dtype), [dim], [along.length], of_dim)
    return f"{name}/v"


def transformations(along: Sequence[Along], version: str, level: str, how: str = "dataset") -> tuple[list[Any], list[Any]]:
    """The transformations of a level and of its image, as OME-Zarr has them. ``how``: "dataset" says all by the level, "image" the
    translation by the image, "affine", "byDimension" and "sequence" are of 0.6."""
    scale = {"type": "scale", "scale": [float(one.distance) for one in along]}
    translation = {"type": "translation", "translation": [float(one.first) for one in along]}
    if version != "0.6":
        return ([scale], [translation]) if how == "image" else ([scale, translation], [])
    if how == "affine":
        numbers = [(float(one.distance), float(one.first)) for one in along]
        rows = [[n if i == j else 0.0 for j in range(len(along))] + [first] for i, (n, first) in enumerate(numbers)]
        whole: dict[str, Any] = {"type": "affine", "affine": rows}
    elif how == "byDimension":
        parts = [
            {"type": "sequence", "transformations": [
                {"type": "scale", "scale": [float(one.distance)]}, {"type": "translation", "translation": [float(one.first)]},
            ]} for one in along
        ]
        whole = {"type": "byDimension", "transformations": [
            {"transformation": part, "input_axes": [i], "output_axes": [i]} for i, part in enumerate(parts)
        ]}
    else:
        whole = {"type": "sequence", "transformations": [scale, translation]}
    return [whole | {"input": {"path": level}, "output": {"name": "physical"}}], []


def write_levels(
    root: Path, name: str, levels: Sequence[Image], version: str = "0.4", how: str = "dataset", unit: str | None = "micrometer",
    scale: Fraction = Fraction(1), chunk: int = 9,
) -> list[str]:
    """Writes the levels of an image as writers of OME-Zarr do. Returns their names in the store."""
    zarr_format = 2 if version == "0.4" else 3
    group = zarr.open_group(str(root / name) if name else str(root), mode="a", zarr_format=zarr_format)
    axes = [{"name": dim, "type": "space"} | ({"unit": unit} if unit else {}) for dim in levels[0].dims]
    datasets, of_image = [], []
    for i, image in enumerate(levels):
        array = group.create_array(
            f"s{i}", shape=image.values.shape, dtype=image.values.dtype, chunks=tuple(min(chunk, n) for n in image.values.shape),
            chunk_key_encoding={"name": "v2" if zarr_format == 2 else "default", "separator": "/"},
        )
        array[...] = image.values
        along = [Along(one.first * scale, one.distance * scale, one.length) for one in (image.along[dim] for dim in image.dims)]
        own, of_image = transformations(along, version, f"s{i}", how)
        datasets.append({"path": f"s{i}", "coordinateTransformations": own})
    multiscale: dict[str, Any] = {"name": name, "datasets": datasets}
    multiscale |= {"coordinateSystems": [{"name": "physical", "axes": axes}]} if version == "0.6" else {"axes": axes}
    multiscale |= {"coordinateTransformations": of_image} if of_image else {}
    if version == "0.4":
        group.attrs["multiscales"] = [{"version": "0.4", **multiscale}]
    else:
        group.attrs["ome"] = {"version": version, "multiscales": [multiscale]}
    return [f"{name}/s{i}" if name else f"s{i}" for i in range(len(levels))]
