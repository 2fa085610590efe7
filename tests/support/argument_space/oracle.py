"""The samples of a reader, as the documentation says: computed the slow and obvious way with NumPy, zarr-python and xarray.

Nothing here is of the product, nor of the engine's design. ``Epoch(stores, arguments)`` has the rows of the index in order, and the
values and labels of the sample of each row.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from support.argument_space.axes import Axis, Reach
from support.argument_space.dataset import Dataset, Refused, Variable
from support.argument_space.request import Request
from support.argument_space.segments import segments
from support.argument_space.selection import selection_of
from support.argument_space.values import Stack, along_dims, by_output, converted, filled, ordered, padding

Row = tuple[int | None, ...]


@dataclass
class Cutting:
    """What is cut together: one store, or all joined ones."""

    number: int
    paths: list[Path]
    axes: list[Axis]
    # By output: values as they come, over all elements of dims.
    values: dict[str, np.ndarray]
    # For each store, the position of each dimension that a single label drops.
    single: list[list[int]]
    # Where each store begins along the first of dims.
    begins: list[int]

    def store_of(self, position: int) -> int:
        return max(int(np.searchsorted(self.begins, position, side="right")) - 1, 0)


class Epoch:
    """The samples of an epoch over all shards."""

    def __init__(self, dataset: Dataset, given: Mapping[str, Any]):
        self.request = request = Request(dataset, given)
        self.dataset, self.given = dataset, given
        self.runs = 1
        self._samples: dict[Row, dict[tuple[str, ...], np.ndarray]] = {}
        self.unlike: set[tuple[str, ...]] = set()
        if len(set(request.dims)) < len(request.dims) or set(request.crops) - set(request.dims):
            raise Refused("dims", "random_crop")
        known = {d for dims in request.dims_of.values() for d in dims}
        if set(request.dims) - known:
            raise Refused("dims", "window")
        lengths = [self._lengths(path) for path in request.paths]
        self.selection = selection_of(request, lengths)
        self._check_coordinates(lengths)
        self._check_forms()
        groups = [[i] for i in range(len(lengths))] if request.is_concat else [list(range(len(lengths)))]
        self.cuttings = [self._cutting(n, group, lengths) for n, group in enumerate(groups)]
        self.names_segments = self._names_segments()
        self.reaches = [[self._reach(k, cut) for k in range(len(cut.axes))] for cut in self.cuttings]
        self.rows: list[Row] = []
        self._starts()
        if not self.rows:
            raise Refused(*given)
        dropped = [d for d in request.dims if not request.has_window(d)] + self.selection.single
        self.stack = None
        if request.is_stack:
            kept = [d for d in request.dims if request.has_window(d)]
            self.stack = Stack(request.dims_of, dropped, kept)
            types = {self.cuttings[0].values[o].dtype for o in request.names}
            if len(types) > 1:
                raise Refused("stack_arrays", "dtype")

    # What there is.

    def _lengths(self, path: Path) -> dict[str, int]:
        found: dict[str, int] = {}
        for output, name in self.request.names.items():
            shape = self.dataset.values(path, name, False).shape
            found |= dict(zip(self.request.dims_of[output], shape, strict=True))
        return found

    def _check_coordinates(self, lengths: list[dict[str, int]]) -> None:
        """Joined stores must have the same coordinates along dimensions without a selection."""
        request = self.request
        chosen = {*(self.given.get("sel") or {}), *(self.given.get("isel") or {}), *(self.given.get("pick") or {})}
        free = set(request.dims if request.is_concat else request.dims[:1]) | chosen
        for dim in set(lengths[0]) - free:
            found = [self.request.coordinates(path, dim) for path in request.paths]
            if len({of[dim] for of in lengths}) > 1:
                if request.is_concat:
                    # Samples have the shapes of their stores.
                    continue
                raise Refused("path", "arrays", "concat")
            if any(f is not None and f.tolist() != found[0].tolist() for f in found):
                raise Refused("path")

    def _check_forms(self) -> None:
        given, request = self.given, self.request
        if any(stores[0].spacing > 1 and d in request.crops for d, stores in self.selection.along.items()):
            raise Refused("sel", "isel", "random_crop")
        along = [d for d, of in self.selection.along.items() if of[0].kind == "list"]
        table = along or given.get("starts") is not None
        for name in ("step", "overlap", "random_crop", "segments", "pad_before", "pad_after"):
            if given.get(name) is None or not table:
                continue
            value = given[name]
            if (
                given.get("starts") is None
                and name in ("step", "overlap")
                and isinstance(value, Mapping)
                and not set(value) & set(along)
            ):
                continue
            raise Refused(name, "starts", "sel", "isel")
        if along and (request.is_concat or given.get("starts") is not None):
            raise Refused("sel", "isel", "starts")
        pads = given.get("pad_before") is not None or given.get("pad_after") is not None
        if pads and request.policy not in ("pad", "edge"):
            raise Refused("pad_before", "pad_after", "out_of_bounds_policy")

    def _cutting(self, number: int, group: list[int], lengths: list[dict[str, int]]) -> Cutting:
        request, selection = self.request, self.selection
        paths = [request.paths[i] for i in group]
        first = request.dims[0]
        sizes = [lengths[i][first] for i in group]
        begins = [int(b) for b in np.cumsum([0, *sizes[:-1]])]
        axes = []
        for k, dim in enumerate(request.dims):
            length = sum(sizes) if k == 0 else lengths[group[0]][dim]
            along = selection.along.get(dim)
            one = along[group[0] if len(along) > 1 else 0] if along else None
            axis = Axis(dim, len(selection.picked[dim]) if dim in selection.picked else length)
            axis.count = axis.length
            if one is not None and one.kind == "list":
                axis.listed = [int(p) for p in one.positions]
            elif one is not None:
                axis.first, axis.spacing = int(one.positions[0]), one.spacing
                axis.count = len(one.positions) if one.kind != "bools" else int(one.positions[-1]) + 1 - axis.first
            self._region(axis)
            if k == 0:
                bools = one.positions if one is not None and one.kind == "bools" else None
                picked = selection.picked.get(dim)
                whole = length if picked is None else axis.length
                axis.whole, axis.chosen, self.runs = segments(request, axis.dim, length, paths, begins, bools, picked)
                assert axis.whole[-1] == whole
            axis.__post_init__()
            axes.append(axis)
        single = [[int(selection.others[d][i].positions[0]) for d in selection.single] for i in group]
        cut = Cutting(number, paths, axes, {}, single, begins)
        cut.values = {output: self._values(output, group, paths) for output in request.names}
        return cut

    def _region(self, axis: Axis) -> None:
        start = self.request.per_dim("roi_start")[axis.dim]
        end = self.request.per_dim("roi_end")[axis.dim]
        if start is None and end is None:
            return
        low = 0 if start is None else start + axis.length * (start < 0)
        high = axis.length if end is None else end + axis.length * (end < 0)
        if not 0 <= low <= high <= axis.length:
            raise Refused("roi_start", "roi_end")
        axis.first, axis.count = low, high - low

    def _names_segments(self) -> bool:
        pads = self.given.get("pad_before") is not None or self.given.get("pad_after") is not None
        return self.given.get("breaks") is not None or self.runs > 1 or pads and not self.given.get("cross_stores", True)

    # Values.

    def _values(self, output: str, group: list[int], paths: list[Path]) -> np.ndarray:
        """All values of an output, of all stores that are cut together."""
        request, given, name = self.request, self.given, self.request.names[output]
        decoded = by_output(given.get("mask_and_scale"), output)
        dims, parts = request.dims_of[output], []
        for i, path in zip(group, paths, strict=True):
            is_decoded = self.dataset.is_packed(path, name) if decoded is None else decoded
            part = self.dataset.values(path, name, is_decoded)
            for dim, stores in self.selection.others.items():
                if dim in dims:
                    part = np.take(part, stores[i].positions, axis=dims.index(dim))
            parts.append(part)
        whole = np.concatenate(parts, axis=dims.index(request.dims[0])) if request.dims[0] in dims else parts[0]
        for dim, positions in self.selection.picked.items():
            if dim in dims:
                n = whole.shape[dims.index(dim)]
                if any(not -n <= p < n for p in positions):
                    raise Refused("pick")
                whole = np.take(whole, positions, axis=dims.index(dim))
        whole = filled(whole, by_output(given.get("fillna"), output))
        numbers = [self._statistics(one, output, Variable(output, dims, [whole]), whole.shape) for one in ("mean", "stddev")]
        return converted(whole, *numbers, by_output(given.get("dtype"), output))

    def _statistics(self, name: str, output: str, variable: Variable, shape: tuple[int, ...]) -> Any:
        request, numbers = self.request, self.given.get(name)
        if isinstance(numbers, Mapping):
            numbers = numbers.get(output)
        elif numbers is not None and np.ndim(numbers) and len(request.names) > 1:
            if len(numbers) == len(request.names):
                numbers = numbers[list(request.names).index(output)]
            elif not request.is_stack and len(numbers) != 1:
                raise Refused(name)
        channels = by_output(self.given.get("channels"), output)
        return along_dims(name, numbers, variable, shape, [*request.dims, *self.selection.single], channels)

    # Samples.

    def _reach(self, k: int, cut: Cutting) -> Reach:
        request, dim = self.request, self.request.dims[k]
        counts = [
            (request.count(o, dim, cut.axes[k].count) - 1) * request.strides[o][dim] + 1
            for o in request.names
            if dim in request.windows[o]
        ]
        offsets = request.offsets if k == 0 else [0]
        return Reach(min(offsets), max(offsets) + max(counts, default=1))

    def _pads(self, dim: str, span: int) -> tuple[int, int] | None:
        found = [self.request.per_dim(name)[dim] for name in ("pad_before", "pad_after")]
        if any(n is not None and not 0 <= n < span for n in found):
            raise Refused("pad_before", "pad_after")
        return None if found == [None, None] else (found[0] or 0, found[1] or 0)

    def _starts(self) -> None:
        request, given = self.request, self.given
        self.crop_places: list[list[set[int] | None]] = []
        for cut, reaches in zip(self.cuttings, self.reaches, strict=True):
            places: list[list[tuple[int | None, int | None]]] = []
            random: list[set[int] | None] = []
            steps = request.steps({a.dim: a.count for a in cut.axes})
            for axis, reach in zip(cut.axes, reaches, strict=True):
                random.append(None)
                if given.get("starts") is not None:
                    continue
                if axis.dim in request.crops:
                    random[-1] = {axis.position(s) for s in axis.random_places(reach, request.policy)}
                    places.append([(None, None)] if random[-1] else [])
                    continue
                listed_ = None if axis.listed is None else [axis.start(p) for p in axis.listed]
                places.append(list(axis.places(reach, steps[axis.dim], request.policy, self._pads(axis.dim, reach.span), listed_)))
            self.crop_places.append(random)
            if given.get("starts") is None:
                for place in itertools.product(*places):
                    row = self._row(cut, place)
                    self.rows += [row] * given.get("samples_per_volume", 1)
        if given.get("starts") is not None:
            self._table(np.asarray(given["starts"]))

    def _table(self, table: np.ndarray) -> None:
        table = table.reshape(len(table), -1)
        request = self.request
        columns = len(request.dims) + request.is_concat
        if table.shape[1] != columns:
            raise Refused("starts")
        for row in table.tolist():
            number, starts = (row[0], row[1:]) if request.is_concat else (0, row)
            if not 0 <= number < len(self.cuttings):
                raise Refused("starts")
            cut, place = self.cuttings[number], []
            for axis, reach, at in zip(cut.axes, self.reaches[number], starts, strict=True):
                place += axis.places(reach, 1, request.policy, None, [axis.start(at)])
            if len(place) == len(cut.axes):
                self.rows.append(self._row(cut, place))

    def _row(self, cut: Cutting, place: Any) -> Row:
        positions = [None if s is None else axis.position(s) for axis, (s, _) in zip(cut.axes, place, strict=True)]
        single: list[int | None] = []
        if self.selection.single:
            if not self.request.is_concat and len(cut.paths) > 1 and positions[0] is None:
                single = [None] * len(self.selection.single)
            else:
                single = list(cut.single[cut.store_of(positions[0] or 0) if len(cut.paths) > 1 else 0])
        return (
            *((cut.number,) if self.request.is_concat else ()),
            *((place[0][1],) if self.names_segments else ()),
            *positions,
            *single,
        )

    def places_of(self, row: Row) -> tuple[Cutting, list[tuple[int, int]]]:
        """Returns where a sample with a row of the index starts along each of dims, and in which segments."""
        numbers = [int(n) for n in row if n is not None]
        cut = self.cuttings[numbers.pop(0) if self.request.is_concat else 0]
        segment = numbers.pop(0) if self.names_segments else None
        reaches = self.reaches[cut.number]
        places = []
        for k, (axis, reach, position) in enumerate(zip(cut.axes, reaches, numbers, strict=False)):
            start = axis.start(position)
            places.append((start, segment if k == 0 and segment is not None else axis.segment(start, reach)))
        return cut, places

    def known(self, row: Row) -> Row:
        """The row without what is random; whether that is possible is checked."""
        model = self.rows[0]
        if None not in model:
            return row
        cut = self.cuttings[(row[0] or 0) if self.request.is_concat else 0]
        head = int(self.request.is_concat) + int(self.names_segments)
        for axis, allowed, at in zip(cut.axes, self.crop_places[cut.number], row[head:], strict=False):
            assert allowed is None or at in allowed, f"a random start at {at} along {axis.dim!r}, expected one of {allowed}"
        return tuple(None if r is None else n for n, r in zip(row, model, strict=True))

    def batch(self, rows: list[Row]) -> dict[tuple[str, ...], Any]:
        """The entries of a batch."""
        for row in rows:
            if row not in self._samples:
                self._samples[row] = self.sample(row)
        samples = [self._samples[row] for row in rows]
        found = {place: [sample[place] for sample in samples] for place in samples[0]}
        return {place: of if place in self.unlike else np.stack(of) for place, of in found.items()}

    def sample(self, row: Row) -> dict[tuple[str, ...], np.ndarray]:
        """The outputs of a sample, by their places in a batch; the mask is among them."""
        cut, places = self.places_of(row)
        found = {}
        for output in self.request.outputs:
            if output.array is not None:
                values, dims = self._cut(cut, places, output.array, output.offset)
                parts = ["complex"] * (values.ndim - len(dims))
                found[output.place] = ordered(self.given.get("transpose"), output.array, values, [*dims, *parts])
                continue
            assert self.stack is not None
            parts = [(self._cut(cut, places, o, output.offset)) for o in self.request.names]
            sizes = {d: n for values, dims in parts for d, n in zip(dims, values.shape, strict=True)}
            stacked = [self.stack.channels(values, dims, sizes) for values, dims in parts]
            found[output.place] = ordered(self.given.get("transpose"), None, np.concatenate(stacked), ["channel", *self.stack.grid])
        if self.given.get("return_mask"):
            found["mask",] = self._mask(cut, places)
        return found

    def _cut(self, cut: Cutting, places: list[tuple[int, int]], output: str, offset: int) -> tuple[np.ndarray, list[str]]:
        request, dims = self.request, self.request.dims_of[output]
        values, inside = cut.values[output], np.ones((1,) * len(dims), bool)
        dropped = list(self.selection.single)
        for k, (axis, (start, segment)) in enumerate(zip(cut.axes, places, strict=True)):
            if axis.dim not in dims:
                continue
            d = dims.index(axis.dim)
            count = request.count(output, axis.dim, axis.count)
            at, good = axis.taken(start, segment, offset if k == 0 else 0, count, request.strides[output][axis.dim])
            values = np.take(values, at, axis=d)
            inside = inside & good.reshape([-1 if i == d else 1 for i in range(len(dims))])
            dropped += [] if request.windows[output][axis.dim] else [axis.dim]
        if request.policy == "pad":
            fill = by_output(self.given.get("fill_value"), output, 0.0)
            values = np.where(inside, values, padding(fill, values.dtype))
        return values.squeeze(tuple(i for i, d in enumerate(dims) if d in dropped)), [d for d in dims if d not in dropped]

    def _mask(self, cut: Cutting, places: list[tuple[int, int]]) -> np.ndarray:
        rows = []
        for offset in self.request.offsets:
            row = np.ones((), bool)
            for k, (axis, (start, segment)) in enumerate(zip(cut.axes, places, strict=True)):
                count, stride = self.window(axis)
                _, good = axis.taken(start, segment, offset if k == 0 else 0, count, stride)
                row = row[..., None] & good if self.request.has_window(axis.dim) else row & good[0]
            rows.append(row)
        return np.stack(rows) if len(rows) > 1 else rows[0]

    def window(self, axis: Axis, output: str | None = None) -> tuple[int, int]:
        """The longest window along a dimension, or that of an output, and its stride: of the first output with it."""
        request = self.request
        having = [o for o in request.names if axis.dim in request.windows[o] and output in (None, o)]
        windows = [
            (request.windows[o][axis.dim] != 0, request.count(o, axis.dim, axis.count), request.strides[o][axis.dim])
            for o in having
        ]
        longest = max((w[:2] for w in windows), default=(False, 1))
        return longest[1], next((w[2] for w in windows if w[:2] == longest), 1)

    # Shapes.

    def check_shapes(self) -> None:
        """Finds the entries whose samples have other shapes in other stores."""
        shapes: dict[tuple[str, ...], set[tuple[int, ...]]] = {}
        for cut in self.cuttings if self.request.is_concat else []:
            row = next((r for r in self.rows if r[0] == cut.number), None)
            for place, one in (self.sample(self.anywhere(row)) if row is not None else {}).items():
                shapes.setdefault(place, set()).add(one.shape)
        self.unlike = {place for place, of in shapes.items() if len(of) > 1}

    def anywhere(self, row: Row) -> Row:
        """The row with a place for each random start."""
        if None not in row:
            return row
        cut = self.cuttings[row[0] if self.request.is_concat and row[0] is not None else 0]
        places = self.crop_places[cut.number]
        head = int(self.request.is_concat) + int(self.names_segments)
        at = [min(p) if p else n for p, n in zip(places, row[head:], strict=False)]
        lead = [n if n is not None else 0 for n in row[:head]]
        single = cut.single[0] if self.selection.single else []
        return (*lead, *at, *single)
