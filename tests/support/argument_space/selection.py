"""What ``sel``, ``isel`` and ``pick`` select, by xarray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from support.argument_space.dataset import Refused
from support.argument_space.request import Request, listed


@dataclass
class Selected:
    """Positions along a dimension of one store, or of all joined ones, and the kind of what selected them."""

    kind: str  # "one", "slice", "list", "bools"
    positions: np.ndarray
    spacing: int = 1


@dataclass
class Selection:
    """By dimension: along ``dims``, for each store (one entry if they are joined and it is the first of dims); and along
    other dimensions, for each store. ``single`` has those of the latter that a single label drops, in order."""

    along: dict[str, list[Selected]] = field(default_factory=dict)
    others: dict[str, list[Selected]] = field(default_factory=dict)
    single: list[str] = field(default_factory=list)
    # Along dims: positions that are picked.
    picked: dict[str, list[int]] = field(default_factory=dict)


def _kind(indexer: Any) -> str:
    if isinstance(indexer, slice):
        return "slice"
    if np.ndim(indexer) == 0:
        return "one"
    return "bools" if np.asarray(indexer).dtype.kind == "b" else "list"


def select(name: str, dim: str, indexer: Any, coordinates: np.ndarray | None, length: int, how: Mapping[str, Any]) -> Selected:
    """Selects along one dimension as xarray does."""
    coords = {} if coordinates is None else {dim: coordinates}
    array = xr.DataArray(np.arange(length), dims=(dim,), coords=coords)
    kind = _kind(indexer)
    try:
        if name == "sel" and coordinates is not None:
            found = array.sel({dim: indexer}, **({} if kind in ("slice", "bools") else how))
        else:
            found = array.isel({dim: indexer})
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise Refused(name, "method", "tolerance") from error
    positions = np.atleast_1d(found.values)
    if not len(positions):
        raise Refused(name)
    if kind == "one" and found.ndim:
        # Part of a date stands for all times in it.
        kind = "slice"
    spacing = (indexer.step or 1) if isinstance(indexer, slice) else 1
    if spacing < 0 or kind == "slice" and (np.diff(positions) != spacing).any():
        raise Refused(name)
    return Selected(kind, positions, spacing)


def selection_of(request: Request, lengths: list[dict[str, int]]) -> Selection:
    """Returns the selections. ``lengths``: of dimensions, by store."""
    given, found = request.given, Selection()
    known = {d for dims in request.dims_of.values() for d in dims}
    how = {k: given[k] for k in ("method", "tolerance") if given.get(k) is not None}
    labels = {**{d: ("sel", i) for d, i in (given.get("sel") or {}).items()}}
    both = set(labels) & set(given.get("isel") or {})
    labels |= {d: ("isel", i) for d, i in (given.get("isel") or {}).items()}
    if both or set(labels) - known or set(labels) & set(given.get("pick") or {}):
        raise Refused("sel", "isel", "pick")
    if how and all(isinstance(i, slice) for i in (given.get("sel") or {}).values()):
        raise Refused("method", "tolerance")
    for dim, (name, indexer) in labels.items():
        coordinates = [request.coordinates(path, dim) for path in request.paths]
        sizes = [of[dim] for of in lengths]
        if not request.is_concat and dim == request.dims[0]:
            joined = None if coordinates[0] is None else np.concatenate([c for c in coordinates if c is not None])
            stores = [select(name, dim, indexer, joined, sum(sizes), how)]
        else:
            stores = [select(name, dim, indexer, c, n, how) for c, n in zip(coordinates, sizes, strict=True)]
        # Where a store has a single element, elements are as far apart as in the others.
        spacing = max((s.spacing for s in stores if len(s.positions) > 1), default=1)
        for one in stores:
            one.spacing = spacing
        first = stores[0]
        if dim not in request.dims:
            if len({len(s.positions) for s in stores}) > 1:
                raise Refused(name)
            found.others[dim] = stores
            found.single += [dim] if first.kind == "one" else []
            continue
        if not request.is_concat and any(s.positions.tolist() != first.positions.tolist() for s in stores):
            raise Refused(name)
        found.along[dim] = stores
    for dim, indices in (given.get("pick") or {}).items():
        dim = request.reference[dim] if isinstance(dim, int) else dim
        if dim not in known:
            raise Refused("pick")
        per_store = [list(one) for one in indices] if np.ndim(indices[0]) else [listed(indices)] * len(lengths)
        if len(per_store) != len(lengths) or len({len(one) for one in per_store}) > 1:
            raise Refused("pick")
        if dim in request.dims:
            found.picked[dim] = per_store[0]
        else:
            sizes = [of[dim] for of in lengths]
            stores = [select("pick", dim, one, None, n, {}) for one, n in zip(per_store, sizes, strict=True)]
            found.others[dim] = stores
    return found
