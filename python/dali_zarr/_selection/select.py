"""``sel`` and ``isel``, turned into the reader's own arguments.

Along ``dims`` a slice becomes a region (``roi_start``, ``roi_end``). A slice with a step becomes a ``stride`` too;
steps and offsets then count selected elements. Gaps in a selection, as bools leave them, become ``breaks``, and the
runs between them ``segments``. A list says where samples start: it becomes a column of the table ``starts``. A single
element of another dimension drops the dimension, which becomes one of ``dims``, without a window. Any other selection
of another dimension becomes a ``pick``.

Each step makes values of values: a selection becomes positions (:func:`_looked_up`), positions become picks, dropped
dimensions or something along ``dims`` (:func:`_told`), and from the latter two :mod:`cutting` makes arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

from .._hints import nearest
from .._log import log
from . import cutting, indexers
from .axes import Axes
from .cut import Dropped
from .cutting import Selected
from .lookup import shown

NAMES = ("sel", "isel", "method", "tolerance")


def resolved(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments that select the same without ``sel``, ``isel``, ``method`` and ``tolerance``.

    Raises:
        ValueError, TypeError, IndexError: A label or an index isn't there, or the selection can't be expressed.
        ImportError: A package that labels need isn't installed.
    """
    found = {name: value for name, value in arguments.items() if name not in NAMES}
    selections = {name: _mapping(name, arguments.get(name)) for name in ("sel", "isel")}
    method, tolerance = arguments.get("method"), arguments.get("tolerance")
    labels = list(selections["sel"].values())
    if (method is not None or tolerance is not None) and all(isinstance(label, slice) for label in labels):
        given = "method" if method is not None else "tolerance"
        raise ValueError(f"zarr_reader: {given}: expected labels in sel that aren't slices, but found none")
    if tolerance is not None and method is None:
        raise ValueError("zarr_reader: tolerance: expected a method too, such as method='nearest'")
    if not any(selections.values()):
        return found
    if any(found.get(name) for name in ("ragged", "ragged_ends")):
        raise ValueError(
            "zarr_reader: sel, isel: expected none with ragged or ragged_ends, whose rows have no labels; choose rows by number "
            "with roi_start and roi_end, or with pick"
        )
    axes = Axes.of_reader(found)
    both = sorted(selections["sel"].keys() & selections["isel"].keys())
    if both:
        raise ValueError(f"zarr_reader: sel, isel: expected one of both for each dimension, but found two for {both[0]!r}")
    selected = [
        _looked_up(name, dim, indexer, axes, method, tolerance)
        for name, selection in selections.items() for dim, indexer in selection.items()
    ]
    told = _told(found, axes, selected)
    log.debug("%s select by %s", selections, {name: value for name, value in told.items() if value is not found.get(name)})
    return told


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"zarr_reader: {name}: expected a dictionary from dimensions to labels, found {value!r}")
    return {str(dim): indexer for dim, indexer in cast(Mapping[Any, Any], value).items()}


def _empty(name: str, dim: str, indexer: Any, axes: Axes) -> str:
    """Returns the message for a selection without elements: what there is, and the slice that was probably meant."""
    there = f"there are {sum(axes.lengths(dim)) if axes.is_joined and dim == axes.dims[0] else axes.lengths(dim)[0]}"
    if name == "sel":
        values = axes.coordinates(dim)
        if values is not None and len(values):
            first, last = shown([values[0], values[-1]])
            there = f"the coordinates go from {first} to {last}"
    hint = ""
    if isinstance(indexer, slice):
        given = cast("slice[Any, Any, Any]", indexer)
        if given.start is not None and given.stop is not None and (given.step or 1) > 0:
            turned = slice(given.stop, given.start, given.step)
            try:
                if all(len(one.indices) for one in indexers.selected(name, dim, turned, axes, None, None)):
                    hint = f"; write slice({given.stop!r}, {given.start!r})"
            except (ValueError, TypeError):
                # The exchanged bounds can't be looked up either.
                pass
    return f"zarr_reader: {name}: {dim!r}: expected at least one element, but {indexer!r} selects none: {there}{hint}"


def check_dim(name: str, dim: str, known: Iterable[str]) -> None:
    """Raises ValueError for a dimension that no array has."""
    names = list(dict.fromkeys(known))
    if dim not in names:
        like = nearest(dim, names)
        hint = f"; did you mean {like}?" if like else ""
        raise ValueError(f'zarr_reader: {name}: no array has a dimension "{dim}"; the dimensions are {", ".join(names)}{hint}')


def _looked_up(
    name: str, dim: str, indexer: Any, axes: Axes, method: str | None, tolerance: Any,
) -> Selected:
    """Returns the positions that a selection along a dimension has."""
    check_dim(name, dim, axes.names())
    if axes.is_picked(dim):
        raise ValueError(
            f"zarr_reader: pick: {dim!r}: expected pick or a selection, but found {name} too; labels are looked up among "
            "all elements, not among those picked: give the positions of all that is wanted in pick, or all in sel or isel"
        )
    stores = indexers.selected(name, dim, indexer, axes, method, tolerance)
    if not all(len(one.indices) for one in stores):
        raise ValueError(_empty(name, dim, indexer, axes))
    return Selected(name, dim, stores)


def _told(given: dict[str, Any], axes: Axes, selected: list[Selected]) -> dict[str, Any]:
    """Returns the reader's arguments with selections in them."""
    along = {axes.dims.index(one.dim): _of_dims(one, axes) for one in selected if one.dim in axes.dims}
    others = [one for one in selected if one.dim not in axes.dims]
    dropped = [_dropped(one, axes) for one in others if one.is_scalar]
    picks = {one.dim: pick for one in others if (pick := _pick(one, axes)) is not None}
    found = {**given, "pick": _merged_picks(given.get("pick"), picks)} if picks else given
    return found if not along and not dropped else cutting.arguments(found, axes, along, dropped)


def _of_dims(one: Selected, axes: Axes) -> Selected:
    """Checks a selection along one of ``dims``."""
    if not axes.is_concat_samples and not one.is_same():
        raise ValueError(
            f"zarr_reader: {one.name}: {one.dim!r}: expected the same positions in all stores, since samples are cut along it and "
            "may reach from one store into the next; select them with one reader for each store, or use concat='samples'"
        )
    return one


def _is_one_for_all(one: Selected, axes: Axes) -> bool:
    """Returns whether a selection along a dimension that isn't one of ``dims`` says the same in all stores."""
    return one.is_same() and len(set(axes.lengths(one.dim))) == 1


def _dropped(one: Selected, axes: Axes) -> Dropped:
    """Returns what becomes of a dimension that isn't one of ``dims`` and of which one element is selected."""
    positions = [int(store.indices[0]) for store in one.stores]
    if axes.is_concat_samples:
        return Dropped(one.dim, positions)
    # Where stores differ, the element is picked, and is the only one then.
    return Dropped(one.dim, positions[:1]) if _is_one_for_all(one, axes) else Dropped(one.dim, [0], positions)


def _pick(one: Selected, axes: Axes) -> list[Any] | None:
    """Returns the pick for a selection along a dimension that isn't one of ``dims``; None if it needs none."""
    is_one = _is_one_for_all(one, axes)
    if one.is_scalar:
        return None if axes.is_concat_samples or is_one else [store.indices.tolist() for store in one.stores]
    if is_one:
        indices = one.stores[0].indices
        return None if np.array_equal(indices, np.arange(axes.lengths(one.dim)[0])) else indices.tolist()
    if len({len(store.indices) for store in one.stores}) > 1:
        counts = ", ".join(str(len(store.indices)) for store in one.stores)
        raise ValueError(f"zarr_reader: {one.name}: {one.dim!r}: expected as many elements in each store, but found {counts}")
    return [store.indices.tolist() for store in one.stores]


def _merged_picks(given: Any, new: dict[str, Any]) -> dict[str, Any]:
    picks: dict[str, Any] = dict(cast(Mapping[str, Any], given)) if isinstance(given, Mapping) else {}
    if given and not isinstance(given, Mapping):
        raise TypeError("zarr_reader: pick: expected a dictionary where sel or isel is given too")
    both = next((key for key in new if isinstance(picks.get(key), Mapping)), None)
    if both is not None:
        raise ValueError(
            f"zarr_reader: pick: expected outputs that aren't called as a dimension where sel or isel is given too, but found "
            f"{both!r}; give the output another name"
        )
    return picks | new
