"""A lazily opened and selected dataset of xarray, as the arguments of a reader."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _arguments
from .._arguments.types import Paths, StorageOptions
from .._failures import error_details
from . import origins
from .axes import Axes
from .lookup import Positions, shown

# The attributes that xarray applies when it decodes.
_PACKED = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


def from_xarray(dataset: Any, *, path: Paths | None = None, storage_options: StorageOptions | None = None) -> dict[str, Any]:
    """The reader's arguments that select what a dataset holds: its variables, and its part of each dimension.

    ::

        ds = xr.open_zarr("era5.zarr").sel(level=[500, 850], time=slice("2015", "2017"))[["z", "t2m"]]
        loader = Loader(**dali_zarr.from_xarray(ds), batch_size=16)

    The dataset's coordinates are matched against those of its store. Each variable must still be a part of the store's
    array of the same name, at these positions. For arrays of dask, some elements are read and compared.

    Args:
        dataset: Opened by ``xarray.open_zarr`` and selected; nothing must have been computed with it.
        path: The dataset's store, where the dataset doesn't tell it.
        storage_options: As of the reader.

    Raises:
        ValueError: The dataset can't be expressed; the message says why.
        TypeError: It is no dataset.
    """
    if not hasattr(dataset, "data_vars"):
        instead = "write array.to_dataset()" if hasattr(dataset, "to_dataset") else "open it with xarray.open_zarr"
        raise TypeError(f"dali_zarr: from_xarray: expected an xarray.Dataset, but found {type(dataset).__name__}; {instead}")
    source = path if path is not None else dataset.encoding.get("source")
    if source is None:
        raise ValueError("dali_zarr: from_xarray: the dataset doesn't tell its store; give path=")
    names = [str(name) for name in dataset.data_vars]
    if not names:
        raise ValueError("dali_zarr: from_xarray: expected a dataset with variables, but found none")
    for name in names:
        if "chunks" not in dataset[name].encoding and "preferred_chunks" not in dataset[name].encoding:
            raise ValueError(
                f"dali_zarr: from_xarray: {name!r} isn't as it was opened: the reader takes arrays from the store, and "
                "computes nothing; give mean, stddev, or a transform of the loader"
            )
    found: dict[str, Any] = {"path": source, "arrays": names}
    if storage_options is not None:
        found["storage_options"] = storage_options
    axes = _axes(found)
    isel = {dim: indexer for dim in axes.names() if (indexer := _selected(dataset, dim, axes)) is not None}
    for array in axes.arrays:
        origins.check(axes, array, dataset[array.name].variable, isel, path is None)
    # A list in isel along dims would say where samples start. Such lists become pick: then windows count the dataset's
    # elements.
    listed = {dim for dim, indexer in isel.items() if dim in axes.dims and isinstance(indexer, list)}
    for name, dims in (("pick", listed), ("isel", isel.keys() - listed)):
        if dims:
            found[name] = {dim: isel[dim] for dim in isel if dim in dims}
    # xarray has moved the attributes that it applied to the encoding.
    if any(name in dataset[array].encoding for array in names for name in _PACKED):
        found["mask_and_scale"] = True
    elif any(name in dataset[array].attrs for array in names for name in _PACKED):
        found["mask_and_scale"] = False
    return found


def _axes(arguments: dict[str, Any]) -> Axes:
    """Returns the dimensions of the arrays in the store.

    Raises:
        ValueError: It has no array of a variable's name, or can't be read.
    """
    try:
        return Axes.of_reader(_arguments.to_places(arguments))
    except ValueError as error:
        renamed = error_details(error).get("name")
        if renamed not in arguments["arrays"]:
            raise
        raise ValueError(
            f"dali_zarr: from_xarray: the store has no array {renamed!r}: variables are found by the names that they have there, "
            "so a dataset must not be renamed (nor variables be added); select under the old name, and give the new one by "
            f"arrays={{{renamed!r}: NAME_IN_THE_STORE}}. {error}"
        ) from error


def _selected(dataset: Any, dim: str, axes: Axes) -> Any:
    """Returns the indexer of ``isel`` that selects the dataset's part of a dimension; None for all of it."""
    lengths = axes.lengths(dim)
    length = sum(lengths) if axes.is_joined and dim == axes.dims[0] else lengths[0]
    stored = axes.coordinates(dim)
    if dim not in dataset.coords or stored is None:
        if dataset.sizes.get(dim) == length:
            return None
        if dim not in dataset.sizes and dim not in dataset.coords:
            raise ValueError(
                f"dali_zarr: from_xarray: the dataset has no dimension {dim!r}, which the store has, so it can't be told which of "
                f"its {length} elements are selected (was it renamed, or its coordinate dropped?); the dataset's dimensions are "
                f"{', '.join(map(str, dataset.sizes))}"
            )
        raise ValueError(
            f"dali_zarr: from_xarray: {dim!r} has no coordinates, so it can't be told which {dataset.sizes.get(dim, 1)} of "
            f"{length} elements are selected; give the reader isel={{{dim!r}: ...}}"
        )
    wanted = np.atleast_1d(dataset[dim].values)
    if not len(wanted):
        raise ValueError(f"dali_zarr: from_xarray: expected at least one element along {dim!r}, but the dataset has none")
    places = {value: i for i, value in enumerate(stored.tolist())}
    if len(places) < length:
        raise ValueError(f"dali_zarr: from_xarray: the coordinates of {dim!r} aren't unique; give the reader isel={{{dim!r}: ...}}")
    wrong = [label for label, value in zip(wanted, wanted.tolist(), strict=True) if value not in places]
    if wrong:
        (label,), (first, last) = shown(wrong[:1]), shown([stored[0], stored[-1]])
        of = f"the store {axes.paths[0]}" if len(axes.paths) == 1 else f"the {len(axes.paths)} stores"
        is_alone = len(axes.paths) == 1 and dim == axes.dims[0]
        several = "; if it joins several stores, give path=[...] with all of them, in their order" if is_alone else ""
        raise ValueError(
            f"dali_zarr: from_xarray: the dataset's {dim!r} has {label}, which isn't a coordinate of {of} (from {first} to "
            f"{last}): the reader takes coordinates as they are stored{several}"
        )
    positions = Positions(np.array([places[value] for value in wanted.tolist()], np.int64), dataset[dim].ndim == 0)
    if positions.is_scalar:
        return int(positions.indices[0])
    spacing = positions.spacing()
    if spacing is None:
        return positions.indices.tolist()
    first, last = int(positions.indices[0]), int(positions.indices[-1])
    return None if len(wanted) == length else slice(first, last + 1, spacing if spacing > 1 else None)
