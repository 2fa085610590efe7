"""``sel`` and ``isel``, turned into the reader's own arguments.

Along ``dims`` a slice becomes a region (``roi_start``, ``roi_end``). A slice with a step becomes a ``stride`` too;
steps and offsets then count selected elements. Gaps in a selection, as bools leave them, become ``breaks``, and the
runs between them ``segments``. A list says where samples start: it becomes a column of the table ``starts``. A single
element of another dimension drops the dimension, which becomes one of ``dims``, without a window. Any other selection
of another dimension becomes a ``pick``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .._arguments import by_name, tables, values
from .._hints import nearest
from .._log import log
from . import gaps, grids, indexers
from .axes import ORIGINS, REGIONS, Axes, length_of
from .lookup import Positions, shown

NAMES = ("sel", "isel", "method", "tolerance")
# Stands for a value that an argument by dimension leaves out: no dimension is so long.
_UNSET = 1 << 62


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
    chosen = _SelectionBuilder(found, axes)
    for name, selection in selections.items():
        for dim, indexer in selection.items():
            check_dim(name, dim, axes.names())
            if dim in axes.picks:
                raise ValueError(
                    f"zarr_reader: pick: {dim!r}: expected pick or a selection, but found {name} too; labels are looked up among "
                    "all elements, not among those picked: give the positions of all that is wanted in pick, or all in sel or isel"
                )
            stores = indexers.selected(name, dim, indexer, axes, method, tolerance)
            if not all(len(one.indices) for one in stores):
                raise ValueError(_empty(name, dim, indexer, axes))
            chosen.add(name, dim, stores)
    told = chosen.arguments()
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


class _SelectionBuilder:
    """Collects selections, and turns them into the reader's arguments."""

    def __init__(self, arguments: dict[str, Any], axes: Axes):
        self._given, self._axes = arguments, axes
        self._picks: dict[str, Any] = {}
        # By place in dims: ``sel`` or ``isel``, and the selected positions, in all stores or in each.
        self._along: dict[int, tuple[str, list[Positions]]] = {}
        # By dropped dimension: the position of the only element, one for all stores or one for each.
        self._single: dict[str, list[int]] = {}
        # By dropped dimension that is picked: the position of the only element in each store.
        self._origins: dict[str, list[int]] = {}

    def add(self, name: str, dim: str, stores: list[Positions]) -> None:
        first = stores[0]
        if dim in self._axes.dims:
            if not self._axes.is_concat_samples and any(not np.array_equal(one.indices, first.indices) for one in stores):
                raise ValueError(
                    f"zarr_reader: {name}: {dim!r}: expected the same positions in all stores, since samples are cut along it and "
                    "may reach from one store into the next; select them with one reader for each store, or use concat='samples'"
                )
            self._along[self._axes.dims.index(dim)] = (name, stores)
            return
        if first.is_scalar and self._axes.is_concat_samples:
            self._single[dim] = [int(one.indices[0]) for one in stores]
            return
        same = all(np.array_equal(one.indices, first.indices) for one in stores)
        same = same and len(set(self._axes.lengths(dim))) == 1
        if first.is_scalar and same:
            self._single[dim] = [int(first.indices[0])]
            return
        if not same and len({len(one.indices) for one in stores}) > 1:
            counts = ", ".join(str(len(one.indices)) for one in stores)
            raise ValueError(f"zarr_reader: {name}: {dim!r}: expected as many elements in each store, but found {counts}")
        if first.is_scalar:
            self._single[dim] = [0]
            self._origins[dim] = [int(one.indices[0]) for one in stores]
        elif same and np.array_equal(first.indices, np.arange(self._axes.lengths(dim)[0])):
            return
        self._picks[dim] = first.indices.tolist() if same else [one.indices.tolist() for one in stores]

    def arguments(self) -> dict[str, Any]:
        found = dict(self._given)
        if self._picks:
            found["pick"] = _merged_picks(found.get("pick"), self._picks)
        if not self._along and not self._single:
            return found
        for name in ("roi_start", "roi_end"):
            if found.get(name) is not None and self._along:
                raise ValueError(f"zarr_reader: {name}: expected {name} or a selection along dims, but found both")
        lists = {i: name for i, (name, positions) in self._along.items() if positions[0].is_list}
        if lists and 0 in self._along and self._along[0][1][0].runs() is not None and 0 not in lists:
            first, listed = self._along[0][0], self._axes.dims[next(iter(lists))]
            raise ValueError(
                f"zarr_reader: {first}: {self._axes.dims[0]!r}: the selection has gaps, which can't be where a list along "
                f"{listed!r} says where samples start; give a slice, or a table of starts"
            )
        _check_lists(self._given, self._axes.dims, lists)
        cut = _DimArguments(self._given, self._axes)
        for i, (name, positions) in self._along.items():
            if i in lists:
                cut.start_at(i, name, positions[0])
            else:
                cut.restrict(i, name, positions)
        for dim, position in self._single.items():
            cut.drop(dim, position, self._origins.get(dim))
        replaced = ("overlap", "roi_start", "roi_end", *(["step"] if lists else []))
        return {name: value for name, value in found.items() if name not in replaced} | cut.arguments()


def _merged_picks(given: Any, new: dict[str, Any]) -> dict[str, Any]:
    picks: dict[str, Any] = dict(cast(Mapping[str, Any], given)) if isinstance(given, Mapping) else {}
    if given and not isinstance(given, Mapping):
        raise TypeError("zarr_reader: pick: expected a dictionary where sel or isel is given too")
    return picks | new


def _check_lists(given: Mapping[str, Any], dims: list[str], lists: Mapping[int, str]) -> None:
    """Raises ValueError for an argument that contradicts a list. ``lists``: by place in ``dims``, ``sel`` or ``isel``,
    which has it."""
    if not lists:
        return
    i, name = next(iter(lists.items()))
    listed = f"zarr_reader: {name}: {dims[i]!r}: a list says where samples start, which "
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


class _DimArguments:
    """The arguments that have a value for each of ``dims``, with defaults filled in."""

    def __init__(self, given: dict[str, Any], axes: Axes):
        self._axes = axes
        self._dims = list(axes.dims)
        self._crops = [str(dim) for dim in _names(given.get("random_crop"))]
        self._offsets = [int(offset) for offset in _names(given.get("offsets"))] or [0]
        lengths = [axes.axis_length(i) for i in range(len(self._dims))]
        # By output, or for all outputs under the key None.
        self._windows = by_name.per_dim("window", given.get("window"), self._dims, 0)
        self._strides = self._by_output(by_name.per_dim("stride", given.get("stride"), self._dims, 1))
        self._start = by_name.one_per_dim("roi_start", given.get("roi_start"), self._dims, 0)
        self._end = _ends(given.get("roi_end"), self._dims, lengths)
        # None where it is left out.
        self._step: list[int | None] = []
        if given.get("step") is not None:
            step = by_name.one_per_dim("step", given["step"], self._dims, _UNSET)
            self._step = [None if n == _UNSET else n for n in step]
        self._overlap = by_name.one_per_dim("overlap", given["overlap"], self._dims, 0) if given.get("overlap") is not None else []
        # By place in dims: the list that says where samples start.
        self._lists: dict[int, Positions] = {}
        self._pads = {name: self._padded(name, given) for name in ("pad_before", "pad_after") if given.get(name) is not None}
        # By place in dims: the first selected element, one past the last, and their distance; for all stores or for
        # each.
        self._regions: dict[int, list[list[int]]] = {}
        # By place in dims, where the only element is picked: its position in each store.
        self._origins: dict[int, list[int]] = {}
        self._given = {name: given[name] for name in ("roi_start", "roi_end") if given.get(name) is not None}
        self._segments: dict[str, list[int]] = {}
        self._cross_stores = given.get("cross_stores", True)
        self._cuts = {name: given[name] for name in ("breaks", "segments", "starts") if given.get(name) is not None}

    def _padded(self, name: str, given: dict[str, Any]) -> dict[str, int]:
        padded = by_name.one_per_dim(name, given[name], self._dims, _UNSET)
        return {dim: n for dim, n in zip(self._dims, padded, strict=True) if n != _UNSET}

    def _by_output(self, given: dict[str | None, list[int]]) -> dict[str | None, list[int]]:
        """Adds an entry of strides for each output that lacks one, unless one value is for all outputs."""
        if None in given:
            return given
        outputs = dict.fromkeys(array.output for array in self._axes.arrays)
        unknown = next((output for output in given if output not in outputs), None)
        if unknown is not None:
            raise ValueError(f"zarr_reader: stride: expected outputs ({', '.join(outputs)}), but found {unknown!r}")
        return {output: given.get(output, [1] * len(self._dims)) for output in outputs}

    def start_at(self, i: int, name: str, positions: Positions) -> None:
        """Makes samples start at the selected elements of one of ``dims``."""
        dim = self._dims[i]
        if any(window[i] == -1 for window in self._windows.values()):
            raise ValueError(
                f"zarr_reader: {name}: {dim!r}: a list says where samples start, so window -1, all of the region, can't be "
                "along it; give the number of elements, or a slice"
            )
        self._lists[i] = positions

    def restrict(self, i: int, name: str, stores: list[Positions]) -> None:
        """Keeps the selected elements of one of ``dims``, in all stores or in each."""
        runs = stores[0].runs() if i == 0 and not self._axes.is_concat_samples else None
        if runs is not None:
            self._part(name, *runs)
            return
        each = [(self._spacing(i, name, one), len(one.indices)) for one in stores]
        spacings = {spacing for spacing, count in each if count > 1} or {1}
        spacing = spacings.pop()
        if spacings:
            raise ValueError(
                f"zarr_reader: {name}: {self._dims[i]!r}: expected elements at the same distance in all stores, since samples are "
                f"cut along it, but found the distances {', '.join(map(str, sorted([spacing, *spacings])))}; give a reader for each"
            )
        self._regions[i] = [[int(one.indices[0]), int(one.indices[-1]) + 1, spacing] for one in stores]
        self._start[i], self._end[i], _ = self._regions[i][0]
        if spacing > 1:
            self._space(i, name, spacing, {len(one.indices) for one in stores})

    def _part(self, name: str, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        """Makes each run of selected elements along the first of ``dims`` a segment, and leaves out what lies
        between."""
        given = _names(self._cuts.get("breaks"))
        named = any(isinstance(one, str) for one in given)
        other = next((name for name in ("segments", "starts") if name in self._cuts), "breaks" if named else None)
        if other is not None:
            raise ValueError(
                f"zarr_reader: {name}: {self._dims[0]!r}: the selection has gaps, which become breaks, and what lies in them "
                "becomes segments that aren't read, so "
                f"{other} can't be given too; give a slice, or numbers for breaks and no segments"
            )
        self._start[0], self._end[0] = int(starts[0]), int(ends[-1])
        borders = [] if self._cross_stores else self._axes.borders()
        self._segments = gaps.segments(starts, ends, given, borders, self._axes.axis_length(0))

    def _spacing(self, i: int, name: str, positions: Positions) -> int:
        """Returns the distance of the selected elements of a store."""
        dim, indices = self._dims[i], positions.indices
        if positions.is_scalar and any(window[i] for window in self._windows.values()):
            raise ValueError(
                f"zarr_reader: {name}: {dim!r}: a single element has no windows: give a slice, or window 0 along it"
            )
        spacing = positions.spacing()
        if spacing is None and bool((np.diff(indices) < 0).all()):
            raise ValueError(
                f"zarr_reader: {name}: {dim!r}: the selection goes backwards along a dimension that samples are cut along; select "
                f"it in the order of the store, with a step above 0, or give positions with pick={{{dim!r}: [...]}}"
            )
        if spacing is None:
            raise ValueError(
                f"zarr_reader: {name}: {dim!r}: only evenly spaced ascending elements can be selected along a dimension that "
                f"samples are cut along, and gaps along the first one; give another slice, several readers, positions with "
                f"pick={{{dim!r}: [...]}}, or a list of numbers, which says where samples start"
            )
        return spacing

    def _space(self, i: int, name: str, spacing: int, counts: set[int]) -> None:
        """Makes windows, their steps, offsets and padding count selected elements. ``counts``: how many of them the
        stores have."""
        dim = self._dims[i]
        if dim in self._crops or str(i) in self._crops:
            raise ValueError(
                f"zarr_reader: {name}: {dim!r}: expected a slice without a step along a dimension of random_crop, whose samples "
                f"start at any element, but found the step {spacing}; leave it out, and give stride if samples shall skip elements"
            )
        for window in self._windows.values():
            # Stores with different counts have samples of different shapes, which the reader refuses.
            if window[i] == -1 and len(counts) == 1:
                window[i] = next(iter(counts))
        step = self._steps()
        if "starts" not in self._cuts or self._step or self._overlap:
            self._step = [n * spacing if at == i else n for at, n in enumerate(step)]
            self._overlap = []
        for pads in self._pads.values():
            if dim in pads:
                pads[dim] *= spacing
        for stride in self._strides.values():
            stride[i] *= spacing
        if i == 0:
            self._offsets = [offset * spacing for offset in self._offsets]

    def _steps(self) -> list[int]:
        """Returns the distance of starts along each of ``dims``; 0 along those that are cropped at random."""
        found: list[int] = []
        for i in range(len(self._dims)):
            window = self._longest(i)
            dim, given = self._dims[i], self._step[i] if self._step else None
            crop = dim in self._crops or str(i) in self._crops
            default = 0 if crop else window if window > 0 else 1 if window == 0 else max(self._end[i] - self._start[i], 1)
            overlap = self._overlap[i] if self._overlap else 0
            if overlap and not 0 <= overlap < default:
                expected = "0 along a dimension of random_crop" if crop else f"0 to {default - 1}, one less than the window"
                raise ValueError(f"zarr_reader: overlap: {dim!r}: expected {expected}, but found {overlap}")
            found.append(default - overlap if given is None else given)
        return found

    def _longest(self, i: int) -> int:
        """Returns the longest window along one of dims, of the outputs whose arrays have it; -1 is all of the
        region."""
        having = {array.output for array in self._axes.arrays if self._dims[i] in array.dims}
        found = [of[i] for output, of in self._windows.items() if output is None or output in having]
        return max(found, key=length_of, default=0)

    def drop(self, dim: str, positions: list[int], origins: list[int] | None) -> None:
        """Adds a dimension of which only one element is read. ``positions``: where it is, one for all stores or one for
        each. ``origins``: where it is in each store, if it is picked."""
        i, position = len(self._dims), positions[0]
        self._regions[i] = [[at, at + 1, 1] for at in positions]
        if origins is not None:
            self._origins[i] = origins
        if self._step:
            self._step.append(1)
        if self._overlap:
            self._overlap.append(0)
        self._dims.append(dim)
        added = [(self._start, position), (self._end, position + 1)]
        added += [(window, 0) for window in self._windows.values()] + [(stride, 1) for stride in self._strides.values()]
        for one, value in added:
            one.append(value)

    def arguments(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "dims": self._dims, "window": self._windows.get(None, self._windows), "stride": self._strides.get(None, self._strides),
            **self._region_arguments(), **self._pads, **self._segments,
        }
        if self._lists:
            found["starts"] = tables.named("starts", self._table())
        elif self._step or self._overlap:
            found["step"] = self._steps()
        if self._offsets != [0]:
            found["offsets"] = self._offsets
        return found

    def _region_arguments(self) -> dict[str, Any]:
        """Returns the arguments of the region. Where ``roi_start`` and ``roi_end`` can't express it, a hidden argument
        does."""
        found: dict[str, Any] = {}
        count = len(self._dims)
        if self._origins:
            stores = len(next(iter(self._origins.values())))
            none = [0] * stores
            found[ORIGINS] = [[self._origins.get(i, none)[store] for i in range(count)] for store in range(stores)]
        if self._axes.is_concat_samples:
            # The user's own roi_start and roi_end stay: negative ones count from the end of each store.
            for name, given in self._given.items():
                values = by_name.one_per_dim(name, given, self._axes.dims, _UNSET)
                found[name] = {dim: n for dim, n in zip(self._axes.dims, values, strict=True) if n != _UNSET}
            stores = len(self._axes.paths)
            whole: list[list[int] | None] = [None] * stores
            found[REGIONS] = [[self._regions.get(i, whole)[store] for i in range(count)] for store in range(stores)]
            return found
        spaced = {i: of[0] for i, of in self._regions.items() if of[0][2] > 1}
        if spaced:
            found[REGIONS] = [[spaced.get(i) for i in range(count)]]
        return found | {"roi_start": self._start, "roi_end": self._end}

    def _table(self) -> npt.NDArray[np.int64]:
        """Returns a row for each sample: all combinations of the lists and of the starts along the other dimensions.
        The first column varies slowest."""
        step, columns = self._steps(), list[npt.NDArray[np.int64]]()
        for i, dim in enumerate(self._dims):
            if i in self._lists:
                columns.append(self._lists[i].indices)
                continue
            if step[i] < 1:
                raise ValueError(f"zarr_reader: step: {dim!r}: expected at least 1, but found {step[i]}")
            length = self._axes.axis_length(i) if i < len(self._axes.dims) else 0
            start, end = (n + length if n < 0 else n for n in (self._start[i], self._end[i]))
            columns.append(np.arange(start, end, step[i], dtype=np.int64))
        return grids.product(columns)


def _ends(given: Any, dims: list[str], lengths: list[int]) -> list[int]:
    """Returns ``roi_end`` for each of ``dims``."""
    found = by_name.one_per_dim("roi_end", given, dims, _UNSET)
    return [length if end == _UNSET else end for end, length in zip(found, lengths, strict=True)]


def _names(value: Any) -> list[Any]:
    return [] if value is None else values.items(value)
