"""Labels of samples: the coordinates at the places that the reader's index tells."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .. import _arguments, _native
from .._log import log
from .._selection.axes import Axes
from .ragged import RAGGED
from .scaled import Maps


class Labels:
    """The coordinates of the dimensions that samples are cut along. They are read when they are first asked for."""

    def __init__(self, arguments: Mapping[str, Any], selected: Collection[str] = ()):
        # ``selected``: dimensions that a selection along others than ``dims`` names.
        self._arguments, self.selected = arguments, selected
        self._axes: Axes | None = None
        # By dimension: one array for all stores, or one for each; None where there are no coordinates.
        self._values: dict[str, list[npt.NDArray[Any]] | None] = {}
        # Where segments begin and end: one array for all stores, or one for each.
        self._bounds: list[npt.NDArray[np.int64]] | None = None
        # With ``scale_by``: where the elements of each array lie.
        self._maps: Maps | None = None
        # The dimensions of a sample of each output, by the output's name.
        self._dims: dict[str, list[str]] | None = None

    def axes(self) -> Axes:
        """Returns the dimensions of what is read. Reads metadata the first time."""
        if self._axes is None:
            self._axes = Axes.of_reader(self._arguments)
        return self._axes

    @property
    def is_normalised(self) -> bool:
        """Whether a mean is taken from values, or they are divided by a standard deviation."""
        return any(self._arguments.get(name) is not None for name in ("mean", "stddev"))

    def _is_ragged(self) -> bool:
        return any(self._arguments.get(name) for name in RAGGED)

    def windows(self, output: str | None = None) -> list[tuple[int, int]]:
        """Returns the window and its stride along each of ``dims``: of one output, or the longest."""
        return self.axes().windows(self._counted(), output)

    def _scaled(self) -> Maps | None:
        """Returns where the elements of arrays lie; None if all have the same places."""
        if self._maps is None and self._arguments.get("scale_by"):
            self._maps = Maps(self._explained()["arrays"])
        return self._maps

    def _counted(self) -> Mapping[str, Any]:
        """Returns the arguments with windows that count elements."""
        maps = self._scaled()
        return self._arguments if maps is None else maps.counted(self._arguments)

    def dims(self, output: str | None = None) -> list[str]:
        """Returns the dimensions of a sample in their order: of one output, or of a stack of all."""
        if self._dims is None:
            self._dims = {one["name"]: one["dims"] for one in self._explained()["outputs"]}
        return next(iter(self._dims.values())) if output is None else self._dims[output]

    def _explained(self) -> dict[str, Any]:
        return _native.explain(_arguments.to_spec({**self._arguments, "name": None}))

    def check(self, selected: Collection[str]) -> None:
        """Raises ValueError where joined stores have different coordinates along a dimension that isn't ``selected``: a
        position would mean something else in each store. Coordinates that can't be read aren't compared."""
        path = self._arguments.get("path") or ""
        if self._is_ragged() or isinstance(path, str) or len(path) < 2:
            return
        axes = self.axes()
        for dim in axes.names():
            if dim in axes.dims[: None if axes.is_concat_samples else 1] or dim in selected or axes.is_picked(dim):
                continue
            try:
                values = axes.coordinates_by_store(dim) or []
            except (ImportError, RuntimeError, ValueError) as error:
                log.info("coordinates along %r of joined stores aren't compared: %s", dim, error)
                continue
            for store, one in enumerate(values):
                if one.shape == values[0].shape and not _equal(one, values[0]):
                    at = next(i for i in range(len(one)) if not _equal(one[i : i + 1], values[0][i : i + 1]))
                    raise ValueError(
                        f"dali_zarr: path: expected stores with the same coordinates along {dim!r}, but element {at} is "
                        f"{values[0][at]!s} in {axes.paths[0]} and {one[at]!s} in {axes.paths[store]}; choose labels with "
                        f"sel={{{dim!r}: ...}}, which are looked up in each store, or positions with isel"
                    )

    def of(self, index: npt.NDArray[np.int64], offset: int, output: str | None = None) -> dict[str, npt.NDArray[Any]]:
        """Returns labels by dimension, of samples with this ``index`` (sample, column), shifted by ``offset`` along the
        first of dims.

        Their shape is (sample,), or (sample, window) along dimensions that have windows: those of an ``output``, or the
        longest. Elements that the store doesn't have are NaT or NaN. So are padded elements, which are outside of the
        region or of the sample's segment; where edges are repeated, they have the label at the edge. Dimensions without
        coordinates have positions. Other dimensions, of which ``pick`` or a selection takes some elements, have the
        labels of these elements: (element,), or (sample, element) where stores differ. They are left out if a sample
        then reaches from one store into another.

        Raises:
            AttributeError: Samples are ragged; or a sample reaches from one store into another that has different
                coordinates along another dimension.
        """
        if self._is_ragged():
            raise AttributeError("dali_zarr: coords: ragged samples have none; batch.index tells the number of each sample's row")
        axes = self.axes()
        maps = self._scaled()
        output = axes.grid if maps is not None and output is None else output
        windows = self.windows(output)
        found: dict[str, npt.NDArray[Any]] = {}
        own_stores = index[:, 0] if axes.is_concat_samples else None
        index = index[:, 1:] if axes.is_concat_samples else index
        segments = index[:, 0] if index.shape[1] > len(axes.dims) else None
        index = index[:, index.shape[1] - len(axes.dims) :]
        index = axes.within_picks(index, self._arguments)
        policy = self._arguments.get("out_of_bounds_policy")
        edge, is_bounded = policy == "edge", policy in ("edge", "pad")

        def stores_along(dim: str) -> npt.NDArray[np.int64]:
            if own_stores is not None:
                return own_stores
            within = self._segments(axes, 0, index, segments, None) if is_bounded or segments is not None else None
            return self._stores_of(axes, dim, index[:, 0] + offset, windows[0], within)

        for i, dim in enumerate(axes.dims):
            place = index[:, i] + (offset if i == 0 else 0)
            window, stride = windows[i]
            if maps is not None and output is not None and maps.has(output, dim):
                has_bounds = is_bounded or (i == 0 and segments is not None)
                bounds = self._segments(axes, i, index, segments, own_stores) if has_bounds else None
                found[dim] = maps.coordinates(axes, output, dim, place, own_stores, bounds, edge)
                continue
            if window:
                length = window if window > 0 else axes.region_length(i, self._arguments)
                if window < 0 and len({axes.length_of(one) for one in axes.regions(i, self._arguments)}) > 1:
                    raise AttributeError(
                        f"dali_zarr: coords: the samples of stores have other lengths along {dim!r}; batch.index tells the number "
                        "of each sample's store"
                    )
                place = place[:, None] + np.arange(length) * stride
            values = self._coordinates(axes, i)
            if is_bounded or (i == 0 and segments is not None):
                start, end = (one[:, None] if window else one for one in self._segments(axes, i, index, segments, own_stores))
                if edge:
                    last = end - axes.regions(i, self._arguments)[0][2]
                    place = np.clip(place, start, np.maximum(last, start))
                elif values is not None:
                    place = np.where((place < start) | (place >= end), -1, place)
            if values is None:
                found[dim] = place
            elif len(values) == 1:
                found[dim] = _taken(values[0], place)
            else:
                found[dim] = _of_stores(values, stores_along(dim), place)
        own = {dim for dim, of in axes.own_picks.items() if output in of}
        for dim in {*axes.picks, *own, *(self.selected - axes.own_picks.keys())} - {*axes.dims}:
            values = self._picked(axes, dim, output if dim in own else None)
            if len(values) == 1:
                found[dim] = values[0].copy()
            elif values:
                with contextlib.suppress(AttributeError):
                    found[dim] = np.stack(values)[stores_along(dim)]
        return found

    def _picked(self, axes: Axes, dim: str, output: str | None) -> list[npt.NDArray[Any]]:
        """Returns the labels, or positions, of the elements that are picked along a dimension that samples aren't cut
        along: one array for all stores, or one for each. Empty if they can't be read. ``output``: whose they are, where outputs
        differ."""
        key = dim if output is None else f"{dim} of {output}"
        if key not in self._values:
            try:
                found = axes.coordinates_by_store(dim, output)
            except (ImportError, RuntimeError, ValueError, IndexError) as error:
                log.info("coords have no labels along %r: %s", dim, error)
                self._values[key] = []
                return []
            if found is None:
                lengths = axes.lengths(dim)
                # A selection of all elements makes no pick.
                found = [np.array(one, np.int64) for one in axes.picks_of(dim, output) or map(range, lengths)]
                found = [np.where(one < 0, one + lengths[i], one) for i, one in enumerate(found)]
            self._values[key] = found[:1] if all(_equal(one, found[0]) for one in found) else found
        return self._values[key] or []

    def _segments(
        self, axes: Axes, i: int, index: npt.NDArray[np.int64], segments: npt.NDArray[np.int64] | None,
        stores: npt.NDArray[np.int64] | None,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns where the segments of samples start and end along one of ``dims``."""
        if i > 0:
            own = stores if stores is not None else np.zeros(len(index), np.int64)
            # The end is the start plus the number of elements times their distance.
            regions = axes.regions(i, self._arguments)
            ends = [(start, start - (start - end) // spacing * spacing) for start, end, spacing in regions]
            found = np.array(ends, np.int64)[own]
            return found[:, 0], found[:, 1]
        if self._bounds is None:
            self._bounds = [np.array(bounds, np.int64) for bounds in self._explained()["segments"]["bounds"]]
        starts, ends = np.empty(len(index), np.int64), np.empty(len(index), np.int64)
        for store, bounds in enumerate(self._bounds):
            own = np.full(len(index), True) if stores is None else stores == store
            # Elements before the first segment count as in the first, those after the last as in the last. Segments
            # outside of the region are empty.
            at = self._around(axes, index[own][:, 0], bounds) if segments is None else segments[own]
            starts[own], ends[own] = bounds[at], bounds[at + 1]
        return starts, ends

    def _around(self, axes: Axes, first: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the number of the segment, between ``bounds``, of each sample with these starts. It is the segment
        that holds all that the sample's windows read of the region. Where several segments hold parts of it, or none
        does, it is the segment of the start."""
        offsets = [int(offset) for offset in self._arguments.get("offsets") or [0]]
        maps, dim = self._scaled(), axes.dims[0]
        span = axes.span(self._arguments, 0) if maps is None else max(maps.window(axes.grid or "", dim), 1)
        last = first + max(offsets) + span - 1
        begin = first + min(offsets)
        segment, one, other = (
            np.searchsorted(bounds[1:-1], np.clip(place, bounds[0], bounds[-1] - 1), side="right") for place in (first, begin, last)
        )
        return np.where((one == other) & (begin < bounds[-1]) & (last >= bounds[0]), one, segment)

    def _coordinates(self, axes: Axes, i: int) -> list[npt.NDArray[Any]] | None:
        dim = axes.dims[i]
        if dim not in self._values:
            if i == 0 and not axes.is_concat_samples:
                joined = axes.coordinates(dim)
                self._values[dim] = None if joined is None else [joined]
            else:
                values = axes.coordinates_by_store(dim)
                same = values is not None and all(np.array_equal(one, values[0]) for one in values)
                self._values[dim] = values[:1] if values is not None and same else values
        return self._values[dim]

    def _stores_of(
        self, axes: Axes, dim: str, first: npt.NDArray[np.int64], along: tuple[int, int],
        within: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None,
    ) -> npt.NDArray[np.int64]:
        """Returns which store each sample is in. ``first``: its first element. ``along``: window and stride along the
        first of ``dims``. ``within``: where its segment starts and ends, if known."""
        window, stride = along
        if window < 0:
            window = axes.region_length(0, self._arguments)
        place = first[:, None] + np.arange(max(window, 1)) * stride
        if within is not None:
            place = np.clip(place, within[0][:, None], within[1][:, None] - 1)
        stores = axes.store_of(place)
        if (stores != stores[:, :1]).any():
            raise AttributeError(
                f"dali_zarr: coords: the stores have other coordinates along {dim!r}, and a sample reaches from one store into the "
                "next, so it has no labels along it; use cross_stores=False, or look labels up by batch.index"
            )
        return stores[:, 0]


def check_stores(arguments: Mapping[str, Any], asked: Mapping[str, Any]) -> Labels:
    """Checks the coordinates of a reader's stores; returns its labels. ``arguments`` are in the operator's form,
    ``asked`` has ``sel`` and ``isel`` as users gave them.

    Raises:
        ValueError: Joined stores have different coordinates along a dimension without a selection.
    """
    given = [cast("Mapping[Any, Any]", asked.get(name) or {}) for name in ("sel", "isel")]
    selected = {str(dim): indexer for one in given for dim, indexer in one.items()}
    # slice(None) is no selection.
    whole = {dim for dim, indexer in selected.items() if isinstance(indexer, slice) and indexer == slice(None)}
    labels = Labels(arguments, selected.keys() - whole)
    labels.check(selected)
    return labels


def _equal(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    return np.array_equal(one, other) or (
        one.dtype.kind in "fmM" and other.dtype.kind in "fmM" and np.array_equal(one, other, equal_nan=True)
    )


def _of_stores(
    values: list[npt.NDArray[Any]], stores: npt.NDArray[np.int64], place: npt.NDArray[np.int64],
) -> npt.NDArray[Any]:
    parts = [_taken(values[store], place[at : at + 1]) for at, store in enumerate(cast("list[int]", stores.tolist()))]
    return np.concatenate(parts) if parts else _taken(values[0], place)


def _taken(values: npt.NDArray[Any], place: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    outside = (place < 0) | (place >= len(values))
    taken = values[np.where(outside, 0, place)]
    if outside.any():
        if taken.dtype.kind in "biu":
            taken = taken.astype(np.float64)
        taken[outside] = np.array("NaT", taken.dtype) if taken.dtype.kind in "mM" else np.nan
    return taken
