"""A lazily opened and selected dataset of xarray, as the arguments of a reader."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from .. import _arguments
from .._arguments.types import Paths, StorageOptions
from . import origins, renames
from .axes import Axes
from .lookup import Positions, shown

# The attributes that xarray applies when it decodes.
_PACKED = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


def from_xarray(dataset: Any, *, path: Paths | None = None, storage_options: StorageOptions | None = None) -> dict[str, Any]:
    """The reader's arguments that select what a dataset holds: its variables, and its part of each dimension.

    ::

        ds = xr.open_zarr("era5.zarr").sel(level=[500, 850], time=slice("2015", "2017"))[["z", "t2m"]]
        loader = Loader(**dali_zarr.from_xarray(ds), batch_size=16)

    The dataset's coordinates are matched against those of its store. Each variable must still be a part of an array of
    the store, at these positions. For arrays of dask, some elements are read and compared. Variables and dimensions may
    have been renamed, datasets of several stores concatenated (opened with dask), and the dimension that samples are
    cut along moved to the front. The arguments name dimensions as the store does.

    Args:
        dataset: Opened by ``xarray.open_zarr`` and selected; nothing must have been computed with it.
        path: The dataset's store, where it is to be read from another place than the dataset tells.
        storage_options: As of the reader.

    Raises:
        ValueError: The dataset can't be expressed; the message says why.
        TypeError: It is no dataset.
    """
    return described(dataset, path, storage_options)[0]


def described(dataset: Any, path: Any, storage_options: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the arguments of :func:`from_xarray`, and the names that the dataset's dimensions have in the store."""
    if not hasattr(dataset, "data_vars"):
        instead = "write array.to_dataset()" if hasattr(dataset, "to_dataset") else "open it with xarray.open_zarr"
        raise TypeError(f"dali_zarr: from_xarray: expected an xarray.Dataset, but found {type(dataset).__name__}; {instead}")
    names = [str(name) for name in dataset.data_vars]
    if not names:
        raise ValueError("dali_zarr: from_xarray: expected a dataset with variables, but found none")
    for name in names:
        is_opened = {"chunks", "preferred_chunks"} & dataset[name].encoding.keys()
        if not is_opened or isinstance(dataset[name].variable._data, np.ndarray):
            raise ValueError(
                f"dali_zarr: from_xarray: {name!r} isn't as it was opened: the reader takes arrays from the store, and "
                "computes nothing; give mean, stddev, or a transform of the loader; concatenate datasets that were opened with "
                "chunks={}, since xarray loads others"
            )
    sources = renames.Sources.of(dataset, names, path)
    found = sources.arguments(storage_options)
    axes = Axes.of_reader(_arguments.to_places(found))
    if axes.is_joined and path is None:
        found, axes = _ordered(dataset, sources, found, axes, storage_options)
    dims = renames.dims(dataset, axes)
    moved = renames.moved(dataset, axes, dims)
    if moved is not None:
        if axes.is_joined and moved != axes.dims[0]:
            raise ValueError(
                f"dali_zarr: from_xarray: expected {axes.dims[0]!r} in front, along which stores are joined, but found {moved!r}"
            )
        found["dims"] = [moved]
        axes = Axes.of_reader(_arguments.to_places(found))
    isel = {dim: indexer for dim in axes.names() if (indexer := _selected(dataset, dim, dims[dim], axes)) is not None}
    for array in axes.arrays:
        variable = dataset[array.output].variable
        left = [dims[dim] for dim in array.dims if not isinstance(isel.get(dim), int)]
        origins.check(axes, array, variable.transpose(*left) if hasattr(variable._data, "dask") else variable, isel)
    # A list in isel along dims would say where samples start. Such lists become pick: then windows count the dataset's
    # elements.
    listed = {dim for dim, indexer in isel.items() if dim in axes.dims and isinstance(indexer, list)}
    for name, of in (("pick", listed), ("isel", isel.keys() - listed)):
        if of:
            found[name] = {dim: isel[dim] for dim in isel if dim in of}
    # xarray has moved the attributes that it applied to the encoding.
    if any(name in dataset[array].encoding for array in names for name in _PACKED):
        found["mask_and_scale"] = True
    elif any(name in dataset[array].attrs for array in names for name in _PACKED):
        found["mask_and_scale"] = False
    stored = cast("dict[str, str]", found["arrays"])
    if all(name == array for name, array in stored.items()):
        found["arrays"] = names
    return found, {own: dim for dim, own in dims.items() if own is not None and own != dim}


def _ordered(
    dataset: Any, sources: renames.Sources, found: dict[str, Any], axes: Axes, storage_options: Any,
) -> tuple[dict[str, Any], Axes]:
    """Puts the stores of a concatenated dataset into its order, and leaves out those of which nothing is selected."""
    joined = renames.joined_dim(axes)
    dims = renames.dims(dataset, axes, joined)
    own = dims[joined]
    values = axes.coordinates_by_store(joined) or []
    wanted: list[Any] = np.atleast_1d(dataset[own].values).tolist() if own is not None and own in dataset.coords else []
    first = {value: i for i, value in reversed(list(enumerate(wanted)))}
    places = [min((first[value] for value in one.tolist() if value in first), default=None) for one in values]
    used = [i for i, place in enumerate(places) if place is not None]
    if not used:
        raise ValueError(
            f"dali_zarr: from_xarray: the coordinates of {joined!r}, along which {len(axes.paths)} stores are concatenated, don't "
            "tell which store comes first; give path=[...] with all of them, in their order"
        )
    found = sources.chosen(sorted(used, key=lambda i: places[i] or 0)).arguments(storage_options)
    if joined != axes.arrays[0].dims[0]:
        found["dims"] = [joined]
    return found, Axes.of_reader(_arguments.to_places(found))


def _selected(dataset: Any, dim: str, own: str | None, axes: Axes) -> Any:
    """Returns the indexer of ``isel`` that selects the dataset's part of a dimension; None for all of it. ``own``: the
    dimension's name in the dataset; None: it has none."""
    lengths = axes.lengths(dim)
    length = sum(lengths) if axes.is_joined and dim == axes.dims[0] else lengths[0]
    stored = axes.coordinates(dim)
    if own is None:
        raise ValueError(
            f"dali_zarr: from_xarray: the dataset has no dimension {dim!r}, which the store has, so it can't be told which of "
            f"its {length} elements are selected (was its coordinate dropped?); the dataset's dimensions are "
            f"{', '.join(map(str, dataset.sizes))}"
        )
    if own not in dataset.coords or stored is None:
        if dataset.sizes.get(own) == length:
            return None
        raise ValueError(
            f"dali_zarr: from_xarray: {own!r} has no coordinates, so it can't be told which {dataset.sizes.get(own, 1)} of "
            f"{length} elements are selected; give the reader isel={{{dim!r}: ...}}"
        )
    wanted = np.atleast_1d(dataset[own].values)
    if not len(wanted):
        raise ValueError(f"dali_zarr: from_xarray: expected at least one element along {own!r}, but the dataset has none")
    places = {value: i for i, value in enumerate(stored.tolist())}
    if len(places) < length:
        raise ValueError(f"dali_zarr: from_xarray: the coordinates of {own!r} aren't unique; give the reader isel={{{dim!r}: ...}}")
    wrong = [label for label, value in zip(wanted, wanted.tolist(), strict=True) if value not in places]
    if wrong:
        (label,), (first, last) = shown(wrong[:1]), shown([stored[0], stored[-1]])
        of = f"the store {axes.paths[0]}" if len(axes.paths) == 1 else f"the {len(axes.paths)} stores"
        is_alone = len(axes.paths) == 1 and dim == axes.dims[0]
        several = "; if it joins several stores, give path=[...] with all of them, in their order" if is_alone else ""
        raise ValueError(
            f"dali_zarr: from_xarray: the dataset's {own!r} has {label}, which isn't a coordinate of {of} (from {first} to "
            f"{last}): the reader takes coordinates as they are stored{several}"
        )
    positions = Positions(np.array([places[value] for value in wanted.tolist()], np.int64), dataset[own].ndim == 0)
    if positions.is_scalar:
        return int(positions.indices[0])
    spacing = positions.spacing()
    if spacing is None:
        return positions.indices.tolist()
    first, last = int(positions.indices[0]), int(positions.indices[-1])
    return None if len(wanted) == length else slice(first, last + 1, spacing if spacing > 1 else None)
