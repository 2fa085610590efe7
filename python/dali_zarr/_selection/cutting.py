"""How samples are cut along ``dims`` after a selection, as the reader's arguments.

:func:`arguments` makes them in steps from values to values: how the given arguments cut samples (:class:`~.cut.Cut`); what each
selection says (positions of a list, a region for each store, or gaps); the cut with these in it; and its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._arguments import tables
from . import gaps, grids, scaled
from .axes import ORIGINS, REGIONS, Axes, items_of
from .cut import Cut, Dropped, Region, Regions, of_arguments, where_given
from .lookup import Positions


@dataclass(frozen=True)
class Selected:
    """What ``sel`` or ``isel`` selects along a dimension."""

    # "sel" or "isel".
    name: str
    dim: str
    # One for each store; one for all stores that are joined along the dimension.
    stores: Sequence[Positions]

    @property
    def is_scalar(self) -> bool:
        """Whether it is a single element, without its dimension."""
        return self.stores[0].is_scalar

    @property
    def is_list(self) -> bool:
        """Whether elements were listed one by one."""
        return self.stores[0].is_list

    def is_same(self) -> bool:
        """Returns whether the positions are the same in all stores."""
        return all(np.array_equal(one.indices, self.stores[0].indices) for one in self.stores)


def arguments(given: Mapping[str, Any], axes: Axes, along: Mapping[int, Selected], dropped: Sequence[Dropped]) -> dict[str, Any]:
    """Returns the given arguments with selections in them.

    Args:
        given: The reader's arguments, without ``sel`` and ``isel``.
        axes: The reader's dimensions.
        along: By place in ``dims``, what is selected.
        dropped: Other dimensions, which become further ones of ``dims``.

    Raises:
        ValueError, TypeError: A selection can't be expressed, or contradicts another argument.
    """
    for name in ("roi_start", "roi_end"):
        if given.get(name) is not None and along:
            raise ValueError(f"zarr_reader: {name}: expected {name} or a selection along dims, but found both")
    if given.get("scale_by"):
        return scaled.arguments(given, axes, along, dropped) | _origins(axes, dropped)
    lists = {i: one for i, one in along.items() if one.is_list}
    runs = _runs(axes, along, lists)
    _check_lists(given, axes.dims, lists)
    cut = of_arguments(given, axes)
    regions: dict[int, list[Region]] = {}
    for i, one in along.items():
        if i in lists:
            _check_list(cut, i, one)
        elif i == 0 and runs is not None:
            _check_gaps(given, one)
        else:
            regions[i] = _regions(cut, i, one)
    cut = cut.within({i: (of[0].first, of[0].end) for i, of in regions.items()})
    spaced = {i: of for i, of in regions.items() if of[0].spacing > 1}
    if spaced:
        cut = cut.spaced(spaced, axes, has_starts=given.get("starts") is not None)
    segments: dict[str, list[int]] = {}
    if runs is not None:
        borders = [] if given.get("cross_stores", True) else axes.borders()
        segments = gaps.segments(*runs, items_of(given.get("breaks")), borders, axes.axis_length(0))
        cut = cut.within({0: (int(runs[0][0]), int(runs[1][-1]))})
    for i, one in enumerate(dropped, len(cut.dims)):
        regions[i] = [Region(at, at + 1, 1) for at in one.positions]
        cut = cut.with_dropped(one)
    replaced = ("overlap", "roi_start", "roi_end", *(["step"] if lists else []))
    kept = {name: value for name, value in given.items() if name not in replaced}
    told = cut.arguments() | _region_arguments(given, axes, cut, regions) | _origins(axes, dropped) | segments
    if lists:
        table = _table(cut, axes, {i: one.stores[0] for i, one in lists.items()})
        return kept | told | {"starts": tables.named("starts", table)}
    return kept | told | ({"step": cut.steps(axes)} if cut.step or cut.overlap else {})


def _runs(
    axes: Axes, along: Mapping[int, Selected], lists: Mapping[int, Selected],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """Returns where runs begin and end in a selection with gaps along the first of ``dims``; None where there is none."""
    first = along.get(0)
    runs = None if first is None or 0 in lists else first.stores[0].runs()
    if first is not None and runs is not None and lists:
        listed = axes.dims[next(iter(lists))]
        raise ValueError(
            f"zarr_reader: {first.name}: {first.dim!r}: the selection has gaps, which can't be where a list along {listed!r} says "
            "where samples start; give a slice, or a table of starts"
        )
    return None if axes.is_concat_samples else runs


def _check_lists(given: Mapping[str, Any], dims: list[str], lists: Mapping[int, Selected]) -> None:
    """Raises ValueError for an argument that contradicts a list. ``lists``: by place in ``dims``, the selections that have
    one."""
    if not lists:
        return
    i, one = next(iter(lists.items()))
    listed = f"zarr_reader: {one.name}: {dims[i]!r}: a list says where samples start, which "
    for other in ("starts", "random_crop", "pad_before", "pad_after"):
        if given.get(other) is not None and given[other] != []:
            raise ValueError(f"{listed}{other} contradicts; give one of them, or a slice")
    if given.get("samples_per_volume", 1) != 1:
        raise ValueError(f"{listed}samples_per_volume contradicts; give one of them, or a slice")
    if given.get("concat") == "samples":
        raise ValueError(f"{listed}concat='samples' contradicts, since labels tell no store; give starts with the store's number")
    for other in ("step", "overlap"):
        value = given.get(other)
        if isinstance(value, Mapping):
            both = next((dims[at] for at in lists if dims[at] in value or str(at) in value), None)
        else:
            both = None if value is None else dims[i]
        if both is not None:
            others = f"; give {other} as a dictionary of the other dimensions" if len(lists) < len(dims) else ""
            raise ValueError(f"{listed}{other} along {both!r} contradicts; leave it out there{others}, or give a slice")


def _check_list(cut: Cut, i: int, one: Selected) -> None:
    """Raises ValueError where a list along one of ``dims`` can't say where samples start."""
    if any(window[i] == -1 for window in cut.windows.values()):
        raise ValueError(
            f"zarr_reader: {one.name}: {one.dim!r}: a list says where samples start, so window -1, all of the region, can't be "
            "along it; give the number of elements, or a slice"
        )


def _check_gaps(given: Mapping[str, Any], one: Selected) -> None:
    """Raises ValueError for an argument that contradicts a selection with gaps."""
    is_named = any(isinstance(at, str) for at in items_of(given.get("breaks")))
    other = next((name for name in ("segments", "starts") if given.get(name) is not None), "breaks" if is_named else None)
    if other is not None:
        raise ValueError(
            f"zarr_reader: {one.name}: {one.dim!r}: the selection has gaps, which become breaks, and what lies in them "
            "becomes segments that aren't read, so "
            f"{other} can't be given too; give a slice, or numbers for breaks and no segments"
        )


def _regions(cut: Cut, i: int, one: Selected) -> list[Region]:
    """Returns the regions of a selection along one of ``dims``: one for all stores or one for each."""
    if one.is_scalar and any(window[i] for window in cut.windows.values()):
        raise ValueError(
            f"zarr_reader: {one.name}: {one.dim!r}: a single element has no windows: give a slice, or window 0 along it"
        )
    each = [(_spacing(one, store), len(store.indices)) for store in one.stores]
    spacings = sorted({spacing for spacing, count in each if count > 1} or {1})
    if len(spacings) > 1:
        raise ValueError(
            f"zarr_reader: {one.name}: {one.dim!r}: expected elements at the same distance in all stores, since samples are "
            f"cut along it, but found the distances {', '.join(map(str, spacings))}; give a reader for each"
        )
    if spacings[0] > 1 and cut.is_cropped(i):
        raise ValueError(
            f"zarr_reader: {one.name}: {one.dim!r}: expected a slice without a step along a dimension of random_crop, whose "
            f"samples start at any element, but found the step {spacings[0]}; leave it out, and give stride if samples shall skip "
            "elements"
        )
    return [Region(int(store.indices[0]), int(store.indices[-1]) + 1, spacings[0]) for store in one.stores]


def _spacing(one: Selected, store: Positions) -> int:
    """Returns the distance of the selected elements of a store."""
    spacing = store.spacing()
    if spacing is None and bool((np.diff(store.indices) < 0).all()):
        raise ValueError(
            f"zarr_reader: {one.name}: {one.dim!r}: the selection goes backwards along a dimension that samples are cut along; "
            f"select it in the order of the store, with a step above 0, or give positions with pick={{{one.dim!r}: [...]}}"
        )
    if spacing is None:
        raise ValueError(
            f"zarr_reader: {one.name}: {one.dim!r}: only evenly spaced ascending elements can be selected along a dimension that "
            f"samples are cut along, and gaps along the first one; give another slice, several readers, positions with "
            f"pick={{{one.dim!r}: [...]}}, or a list of numbers, which says where samples start"
        )
    return spacing


def _region_arguments(given: Mapping[str, Any], axes: Axes, cut: Cut, regions: Regions) -> dict[str, Any]:
    """Returns the arguments of the region. Where ``roi_start`` and ``roi_end`` can't express it, a hidden argument
    does."""
    places = range(len(cut.dims))
    if not axes.is_concat_samples:
        spaced = {i: of[0] for i, of in regions.items() if of[0].spacing > 1}
        hidden = {REGIONS: [[list(spaced[i]) if i in spaced else None for i in places]]} if spaced else {}
        return {**hidden, "roi_start": cut.start, "roi_end": cut.end}
    # The user's own roi_start and roi_end stay: negative ones count from the end of each store.
    own = {name: where_given(name, given[name], axes.dims) for name in ("roi_start", "roi_end") if given.get(name) is not None}
    stores = range(len(axes.paths))
    return {**own, REGIONS: [[list(regions[i][store]) if i in regions else None for i in places] for store in stores]}


def _origins(axes: Axes, dropped: Sequence[Dropped]) -> dict[str, Any]:
    """Returns the hidden argument that tells where elements are that are picked and dropped."""
    stores = next((range(len(one.origins)) for one in dropped if one.origins is not None), None)
    if stores is None:
        return {}
    along = [0] * len(axes.dims)
    return {ORIGINS: [[*along, *(0 if one.origins is None else one.origins[store] for one in dropped)] for store in stores]}


def _table(cut: Cut, axes: Axes, lists: Mapping[int, Positions]) -> npt.NDArray[np.int64]:
    """Returns a row for each sample: all combinations of the lists, by place in ``dims``, and of the starts along the other
    dimensions. The first column varies slowest."""
    return grids.product([
        lists[i].indices if i in lists else _starts(cut, i, step, axes.axis_length(i) if i < len(axes.dims) else 0)
        for i, step in enumerate(cut.steps(axes))
    ])


def _starts(cut: Cut, i: int, step: int, length: int) -> npt.NDArray[np.int64]:
    """Returns where samples start along one of ``dims``, which has this length."""
    if step < 1:
        raise ValueError(f"zarr_reader: step: {cut.dims[i]!r}: expected at least 1, but found {step}")
    start, end = (n + length if n < 0 else n for n in (cut.start[i], cut.end[i]))
    return np.arange(start, end, step, dtype=np.int64)
