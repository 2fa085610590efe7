"""Selections along ``dims`` beside ``scale_by``: regions of the array whose elements samples start at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from .._arguments import by_name
from .axes import REGIONS, Axes
from .cut import Dropped, where_given

if TYPE_CHECKING:
    from .cutting import Selected


def arguments(given: Mapping[str, Any], axes: Axes, along: Mapping[int, Selected], dropped: Sequence[Dropped]) -> dict[str, Any]:
    """Returns the given arguments with selections in them, as :func:`.cutting.arguments`. Windows stay lengths in units.

    Raises:
        ValueError: A selection isn't a slice without a step.
    """
    dims = [*axes.dims, *(one.dim for one in dropped)]
    regions: dict[int, list[tuple[int, int]]] = {}
    for i, one in along.items():
        if one.is_list or any(store.spacing() != 1 for store in one.stores):
            raise ValueError(
                f"zarr_reader: {one.name}: {one.dim!r}: expected a slice without a step beside scale_by, but found other elements; "
                "say where samples start with starts"
            )
        regions[i] = [(int(store.indices[0]), int(store.indices[-1]) + 1) for store in one.stores]
    for i, one in enumerate(dropped, len(axes.dims)):
        regions[i] = [(at, at + 1) for at in one.positions]
    told = {name: _by_dim(given[name], axes.dims) for name in by_name.PER_DIM & given.keys() if given[name] is not None}
    if axes.is_concat_samples:
        stores = range(len(axes.paths))
        own = [[[*regions[i][store], 1] if i in regions else None for i in range(len(dims))] for store in stores]
        return {**given, **told, "dims": dims, REGIONS: own}
    for name, bound in (("roi_start", 0), ("roi_end", 1)):
        own_bounds = where_given(name, given[name], axes.dims) if given.get(name) is not None else {}
        told[name] = own_bounds | {dims[i]: of[0][bound] for i, of in regions.items()}
    return {**given, **told, "dims": dims}


def _by_dim(value: Any, dims: list[str]) -> Any:
    """Returns an argument "for each of dims", by output or not, as a dictionary by dimension: there will be more of ``dims``."""
    if isinstance(value, Mapping):
        named = cast("Mapping[str, Any]", value)
        is_by_output = any(isinstance(item, Mapping | list | tuple) for item in named.values())
        return {key: _by_dim(item, dims) for key, item in named.items()} if is_by_output else dict(named)
    listed = by_name.items_of(value)
    if listed and len(listed) != len(dims):
        return value
    return dict(zip(dims, listed, strict=False))
