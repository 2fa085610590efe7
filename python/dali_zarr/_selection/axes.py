"""The dimensions of what a reader reads: their names, their lengths in each store, their coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .. import _native
from .._arguments import by_name, names, pick, values
from . import absent, coordinates
from .stores import needed

# The arguments that decide the dimensions.
PLACES = ("path", "arrays", "groups", "storage_options", "dims", "concat", "_align", "scale_by", "grid")
# Those with which coordinates are read: also the folder that keeps chunks of remote stores.
_OF_LABELS = ("cache_dir", "cache_dir_size", "cache_validate")
# Hidden arguments of the engine for what a selection leaves: the regions, and the origins of the index.
REGIONS, ORIGINS = "_regions", "_index_origins"
# And for what ``align`` comes to: the elements of arrays of another rate, by output.
ALIGN = "_align"
# The engine's largest step: with it a region has one sample.
LARGEST_STEP = 1 << 40


@dataclass(frozen=True)
class Array:
    """An array, in all stores."""

    name: str
    output: str
    dims: tuple[str, ...]
    # One for each store; a single one of an array with a store of its own.
    shapes: tuple[tuple[int, ...], ...]
    # Whether its elements are aligned to those of other arrays along the first of dims.
    is_aligned: bool = False

    @property
    def is_own(self) -> bool:
        """Whether it has a store of its own, whose location is its name."""
        return names.is_location(self.name)


class Axes:
    """The dimensions of what a reader reads. Coordinates are read once, when they are first asked for."""

    def __init__(
        self, paths: list[str], labels: coordinates.Labels, arrays: list[Array], dims: list[str],
        picks: Mapping[str, list[list[int]]], is_concat_samples: bool = False, spec: Mapping[str, Any] | None = None,
        cut: frozenset[str] | None = None, elements: npt.NDArray[np.int64] | None = None,
        own_picks: Mapping[str, Mapping[str, list[list[int]]]] | None = None,
    ):
        self.is_concat_samples = is_concat_samples
        # The stores' elements along the first of dims, with -1 for dates that they lack and that count too; None: all are there.
        self._elements = elements
        # The outputs that samples are cut of; None: all. Others are read whole, whatever their dimensions are called.
        self._cut = cut
        self.paths, self.arrays, self.dims = paths, arrays, dims
        # ``picks`` has one list for all stores, or one for each; ``_picks`` only those that are one for all.
        # ``spec`` has the arguments of a reader of the arrays.
        # ``own_picks`` has those that differ by output, by dimension and then by output.
        self.picks, self.own_picks, self._labels, self._spec = picks, own_picks or {}, labels, spec or {}
        self._picks = {dim: lists[0] for dim, lists in picks.items() if len(lists) == 1}
        self._variables: dict[tuple[str, int], Any] = {}

    @property
    def grid(self) -> str | None:
        """The output whose array's elements samples start at; None without ``scale_by``, since all arrays have them."""
        return (self._spec.get("grid") or self.arrays[0].output) if self._spec.get("scale_by") else None

    def __getstate__(self) -> dict[str, Any]:
        # Stores are opened anew where they are needed. What was read of them is copied.
        return self.__dict__ | {"_stores": {}}

    @classmethod
    def of_reader(cls, arguments: Mapping[str, Any]) -> Axes:
        """Makes the axes of a reader with these arguments, which are in the operator's form. Reads metadata.

        Raises:
            ValueError, TypeError, RuntimeError: As building a pipeline with the reader does.
        """
        spec = {name: arguments[name] for name in PLACES if arguments.get(name) is not None}
        # Arrays without dimension names take those of dims, which window may give instead.
        if named := arguments.get("dims") or named_by_window(arguments.get("window")):
            spec["dims"] = named
        path: Any = arguments.get("path") or []
        grouped, window = bool(arguments.get("groups")), arguments.get("window")
        cut = _outputs_of(window) if grouped else None
        arrays, found = _arrays(spec if cut is None else spec | {"window": window, "out_of_bounds_policy": "pad"})
        kept = {name: arguments[name] for name in _OF_LABELS if arguments.get(name) is not None}
        told: Mapping[str, Any] = arguments.get(ALIGN) or {}
        elements = next((np.array(of["elements"], np.int64) for of in told.values() if of.get("is_own")), None)
        told = {output: of for output, of in told.items() if not of.get("is_own")}
        largest = max((array for array in arrays if array.output not in told), key=lambda array: len(array.dims))
        picked = pick.entries(arguments.get("pick"))
        picks = {_named(dim, largest): indices for output, dim, indices in picked if output is None}
        given = [_named(dim, largest) for dim in items_of(named)]
        # Groups are read whole unless they are cut.
        dims = given or ([] if grouped and not items_of(window) else list(largest.dims[:1]))
        arrays = [_aligned(array, told[array.output]["dim"], dims[0]) if array.output in told else array for array in arrays]
        own_picks = _own_picks(picked, arrays)
        picks |= {dim: common for dim, of in own_picks.items() if (common := _common(dim, of, arrays)) is not None}
        own_picks = {dim: of for dim, of in own_picks.items() if dim not in picks}
        # Without path the arrays have stores of their own. The first array's name is the location of its store.
        paths = found if grouped else ([path] if isinstance(path, str) else list(path)) or [arrays[0].name]
        is_concat_samples = grouped or arguments.get("concat") == "samples"
        labels = _native.Labels(spec | kept)
        return cls(paths, labels, arrays, dims, picks, is_concat_samples, spec, cut, elements, own_picks)

    @property
    def is_joined(self) -> bool:
        """Whether there are several stores, joined along the first of ``dims``. Where dates that they lack count, all are one."""
        return len(self.paths) > 1 and not self.is_concat_samples and not self._is_filled(self.dims[0])

    def is_picked(self, dim: str) -> bool:
        """Whether elements of a dimension are picked, of all outputs or of some."""
        return dim in self.picks or dim in self.own_picks

    def picks_of(self, dim: str, output: str | None) -> list[list[int]] | None:
        """Returns what is picked of a dimension for an output: one list for all stores, or one for each; None where nothing is.
        Without an output: what is picked for all."""
        return self.picks.get(dim) or (self.own_picks.get(dim, {}).get(output) if output is not None else None)

    def _is_filled(self, dim: str) -> bool:
        """Whether dates along a dimension count that the stores lack."""
        return self._elements is not None and dim == self.dims[0]

    def names(self) -> list[str]:
        """All dimensions of the arrays."""
        return list(dict.fromkeys(dim for array in self.arrays for dim in array.dims))

    def stored(self, output: str | None) -> tuple[str, ...]:
        """Returns the dimensions of an output's array, or of the array with most dimensions, as they are stored."""
        own = next((array for array in self.arrays if array.output == output), None)
        return (own or max(self.arrays, key=lambda array: len(array.dims))).dims

    def named(self, dim: str) -> str:
        """Returns the name of a dimension that is given by its name, or by its position in the array with most dimensions."""
        return _named(dim, max(self.arrays, key=lambda array: len(array.dims)))

    def lengths(self, dim: str) -> list[int]:
        """Returns a dimension's length in each store, from the first array that has the dimension."""
        if self._elements is not None and dim == self.dims[0]:
            return [len(self._elements)] * len(self.paths)
        return self._stored_lengths(dim)

    def _stored_lengths(self, dim: str) -> list[int]:
        array = self.arrays[self._having(dim)[0]]
        found = [shape[array.dims.index(dim)] for shape in array.shapes]
        return found * len(self.paths) if len(found) == 1 else found

    def _having(self, dim: str) -> list[int]:
        """Returns the numbers of the arrays that say what is along a dimension. An array that is aligned to others doesn't say
        it along the first of ``dims``. The array whose elements samples start at comes first, then those of the stores in
        ``path``, then those with a store of their own."""
        having = [
            i for i, array in enumerate(self.arrays)
            if dim in array.dims and not (array.is_aligned and bool(self.dims) and dim == self.dims[0])
            and (dim not in self.dims or self._is_cut(array))
        ]
        return sorted(having, key=lambda i: (self.arrays[i].output != self.grid, len(self.arrays[i].shapes) < len(self.paths)))

    def _is_cut(self, array: Array) -> bool:
        return self._cut is None or array.output in self._cut

    def variable(self, dim: str, store: int) -> Any:
        """Returns xarray's variable with a dimension's coordinates in a store, or None where there are none.

        Raises:
            ValueError, RuntimeError, ImportError: They can't be read.
        """
        if self._elements is not None and dim == self.dims[0]:
            return self._whole(self._elements)
        return self._stored(dim, store)

    def _whole(self, elements: npt.NDArray[np.int64]) -> Any:
        """Returns the coordinates along the first of ``dims`` with the dates that the stores lack."""
        dim = self.dims[0]
        if (dim, -1) not in self._variables:
            found = [self._stored(dim, store) for store in range(len(self.paths))]
            joined = found[0] if len(found) == 1 else needed("xarray", "fill_missing").Variable.concat(found, dim)
            self._variables[dim, -1] = absent.dates_of(joined, elements)
        return self._variables[dim, -1]

    def _stored(self, dim: str, store: int) -> Any:
        if (dim, store) not in self._variables:
            length = self._stored_lengths(dim)[store]
            found = (
                coordinates.read(self._labels, number, store, dim, length, self._place(self.arrays[number], store))
                for number in self._having(dim)
            )
            self._variables[dim, store] = next((variable for variable in found if variable is not None), None)
        return self._variables[dim, store]

    def own_coordinates(self, output: str, dim: str) -> list[npt.NDArray[Any]] | None:
        """Returns the coordinates along a dimension of one output's array, in each store or in all; None where a store has none.

        Raises:
            ValueError, RuntimeError, ImportError: They can't be read.
        """
        number = next(i for i, array in enumerate(self.arrays) if array.output == output)
        array = self.arrays[number]
        found: list[npt.NDArray[Any]] = []
        for store, shape in enumerate(array.shapes):
            length = shape[array.dims.index(dim)]
            variable = coordinates.read(self._labels, number, store, dim, length, self._place(array, store))
            if variable is None:
                return None
            found.append(np.asarray(variable.values))
        return found

    def attributes(self, output: str) -> dict[str, Any]:
        """Returns the attributes of an output's array, in the first store.

        Raises:
            ValueError, RuntimeError: They can't be read.
        """
        number = next(i for i, array in enumerate(self.arrays) if array.output == output)
        found = self._labels.find(number, 0, None, 0)
        return {} if found is None else found["attributes"]

    def _place(self, array: Array, store: int) -> tuple[str, str]:
        """The location of an array's store and the array's name, for messages."""
        return (array.name if array.is_own else self.paths[store]), array.name

    def elements(self, array: Array, at: list[npt.NDArray[np.int64]], encoding: Mapping[str, Any]) -> npt.NDArray[Any]:
        """Reads elements of an array at positions, which are one list for each axis, along the joined axis in all stores
        together. Of the attributes that decode them, only those in ``encoding`` are applied.

        Raises:
            ValueError, TypeError, RuntimeError: They can't be read.
        """
        axes = sorted(range(len(array.dims)), key=lambda d: array.dims[d] != self.dims[0])
        joined = self.is_joined and self.dims[0] in array.dims
        spec: dict[str, Any] = {
            **self._spec, "path": self.paths if joined else self.paths[:1], "arrays": [array.name], "mask_and_scale": False,
        }
        for name in ("dims", "groups", "scale_by", "grid"):
            spec.pop(name, None)
        if not axes:
            return coordinates.elements(self._labels, self.arrays.index(array), _batch(spec), encoding, self.paths[0])
        table = _native.keep_table(np.ascontiguousarray(np.stack([at[d] for d in axes], axis=1), np.int64))
        try:
            spec |= {"dims": [array.dims[d] for d in axes], "window": [0] * len(axes), "starts": table, "batch_size": len(at[0])}
            return coordinates.elements(self._labels, self.arrays.index(array), _batch(spec), encoding, self.paths[0])
        finally:
            _native.release_table(table)

    def joined(self) -> Any:
        """Returns xarray's variable with the coordinates of all stores along the axis that joins them; None where a
        store has none."""
        found = [self.variable(self.dims[0], store) for store in range(len(self.paths))]
        if any(variable is None for variable in found):
            return None
        return needed("xarray", "selecting by label").Variable.concat(found, self.dims[0])

    def coordinates(self, dim: str) -> npt.NDArray[Any] | None:
        """Returns a dimension's coordinates after ``pick``: along the first of ``dims`` those of all stores, else those
        of the first store. None where a store has none, or where stores have different picks."""
        is_one = dim != self.dims[0] or self._is_filled(dim)
        found = [self._coordinates(dim, store) for store in range(1 if is_one else len(self.paths))]
        if any(one is None for one in found) or (dim in self.picks and dim not in self._picks):
            return None
        joined = np.concatenate([one for one in found if one is not None])
        return joined[self._picks[dim]] if dim in self._picks else joined

    def coordinates_by_store(self, dim: str, output: str | None = None) -> list[npt.NDArray[Any]] | None:
        """Returns a dimension's coordinates in each store, after ``pick`` for an output; None where a store has none."""
        found: list[npt.NDArray[Any]] = []
        picks = self.picks_of(dim, output)
        for store in range(len(self.paths)):
            one = self._coordinates(dim, store)
            if one is None:
                return None
            found.append(one if picks is None else one[picks[store % len(picks)]])
        return found

    def _coordinates(self, dim: str, store: int) -> npt.NDArray[Any] | None:
        variable = self.variable(dim, store)
        return None if variable is None else np.asarray(variable.values)

    def store_of(self, place: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the store of each element along the first of ``dims``; for elements outside, the nearest store."""
        dim = self.dims[0]
        if dim in self._picks:
            chosen = np.asarray(self._picks[dim])
            place = chosen[np.clip(place, 0, len(chosen) - 1)]
            length = self.lengths(dim)[0] if self._is_filled(dim) else sum(self.lengths(dim))
            place = np.where(place < 0, place + length, place)
        if self._elements is not None:
            # A date that the stores lack is where the last one before it is.
            held = np.maximum.accumulate(self._elements)
            place = held[np.clip(place, 0, len(held) - 1)]
        ends = np.cumsum(self._stored_lengths(dim))
        return np.minimum(np.searchsorted(ends, place, side="right"), len(ends) - 1)

    def listed(self, name: str, arguments: Mapping[str, Any], default: int) -> list[int]:
        """Returns an argument "for each of dims". Where outputs differ, it is the largest: all windows of a sample
        begin at its start."""
        self._check_counts(name, arguments)
        found = by_name.per_dim(name, arguments.get(name), self.dims, default).values()
        return [max(of, key=length_of) for of in zip(*found, strict=True)]

    def _check_counts(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raises ValueError for an argument that is a length in units: whoever asks here wants elements of all arrays."""
        if name in by_name.LENGTHS and arguments.get("scale_by"):
            raise ValueError(f"zarr_reader: scale_by: expected none here, where {name} has to count elements; leave it out")

    def windows(self, arguments: Mapping[str, Any], output: str | None = None) -> list[tuple[int, int]]:
        """Returns the window and its stride along each of ``dims``: of one output, or of the output with the longest
        window. A window along a dimension that the output's array lacks doesn't count."""
        # Of equally long windows, the first one's stride counts.
        found = [self.windows_along(arguments, i) for i in range(len(self.dims))]
        return [of[output] if output in of else max(of.values(), key=lambda one: length_of(one[0])) for of in found]

    def span(self, arguments: Mapping[str, Any], i: int) -> int:
        """Returns how many elements along one of ``dims`` there are from the first to the last one of a sample's
        windows."""
        whole = self.region_length(i, arguments)
        found = [(whole if window < 0 else window, stride) for window, stride in self.windows_along(arguments, i).values()]
        return max((max(window, 1) - 1) * stride + 1 for window, stride in found)

    def windows_along(self, arguments: Mapping[str, Any], i: int) -> dict[str, tuple[int, int]]:
        """The window and the stride along one of ``dims`` of each output whose array has it."""
        self._check_counts("window", arguments)
        window, stride = (by_name.per_dim(name, arguments.get(name), self.dims, n) for name, n in (("window", 0), ("stride", 1)))

        def of(output: str, given: Mapping[str | None, list[int]], default: int) -> int:
            found = given.get(output, given.get(None))
            return default if found is None else found[i]

        outputs = [array.output for array in self.arrays if self.dims[i] in array.dims and self._is_cut(array)]
        return {output: (of(output, window, 0), of(output, stride, 1)) for output in outputs}

    def within_picks(self, index: npt.NDArray[np.int64], arguments: Mapping[str, Any]) -> npt.NDArray[np.int64]:
        """Converts the reader's index, one column for each of ``dims``. Along a dimension whose only element was
        picked, the index has that element's position in the store; the result has its position among the picked
        elements."""
        origins = arguments.get(ORIGINS)
        return index - np.array(origins, np.int64)[self.store_of(index[:, 0])] if origins else index

    def borders(self) -> list[int]:
        """Returns where the second store and each later one begins along the axis that joins them; empty where none
        does."""
        return self.begins()[1:].tolist() if self.is_joined else []

    def begins(self) -> npt.NDArray[np.int64]:
        """Returns where each store begins along the first of ``dims``, if they follow each other."""
        return np.cumsum([0, *self.lengths(self.dims[0])[:-1]])

    def axis_length(self, i: int) -> int:
        """Returns the number of elements along one of ``dims`` after ``pick``; along the joined axis those of all
        stores."""
        return self._length(i, 0)

    def _length(self, i: int, store: int) -> int:
        """The same as :meth:`axis_length`, in one of the stores where they aren't joined."""
        dim = self.dims[i]
        if self.picks.get(dim):
            return len(self.picks[dim][store % len(self.picks[dim])])
        lengths = self.lengths(dim)
        return sum(lengths) if self.is_joined and i == 0 else lengths[store]

    def regions(self, i: int, arguments: Mapping[str, Any]) -> list[tuple[int, int, int]]:
        """Returns which elements along one of ``dims`` samples may touch: the first, one past the last, and their
        distance. There is one entry for all stores, or one for each store where samples are cut from each on its
        own."""
        told: list[list[list[int] | None]] = arguments.get(REGIONS) or []
        found: list[tuple[int, int, int]] = []
        for store in range(len(self.paths) if self.is_concat_samples else 1):
            own = told[store % len(told)][i] if told else None
            if own is not None:
                found.append((own[0], own[1], own[2]))
                continue
            length = self._length(i, store)
            start, end = self.listed("roi_start", arguments, 0)[i], self.listed("roi_end", arguments, length)[i]
            found.append((start + length if start < 0 else start, end + length if end < 0 else end, 1))
        return found

    def region_length(self, i: int, arguments: Mapping[str, Any]) -> int:
        """Returns how many elements samples may touch along one of ``dims``; in the first store where each has its own
        region."""
        return self.length_of(self.regions(i, arguments)[0])

    @staticmethod
    def length_of(region: tuple[int, int, int]) -> int:
        """Returns how many elements a region has."""
        start, end, spacing = region
        return -((start - end) // spacing)


def _outputs_of(window: Any) -> frozenset[str] | None:
    """Returns the outputs that have windows of their own; None where windows aren't given by output."""
    if not isinstance(window, Mapping):
        return None
    given = cast("Mapping[str, Any]", window)
    return frozenset(given) if all(isinstance(of, Mapping | list | tuple) for of in given.values()) else None


def _aligned(array: Array, dim: str, first: str) -> Array:
    """Returns an array whose dimension ``dim`` takes the place of the first of ``dims``."""
    return replace(array, dims=tuple(first if name == dim else name for name in array.dims), is_aligned=True)


def length_of(window: int) -> float:
    """Returns the length by which windows are compared: -1 is the whole region, longer than any other."""
    return math.inf if window < 0 else window


def _arrays(spec: Mapping[str, Any]) -> tuple[list[Array], list[str]]:
    """Returns the arrays of a reader, and the locations of its stores or groups. Stores that differ along a dimension are looked
    at one by one: they may agree after the selection."""
    paths = items_of(spec.get("path"))
    # Only dimensions and shapes matter here. So attributes that can't decode values are no error, and the largest step
    # makes the fewest samples: one for each store.
    plain = {**spec, "mask_and_scale": False, "missing_dates": "keep"}
    if plain.get("scale_by"):
        # Steps are lengths then. With padding there is a sample wherever the arrays lie.
        plain["out_of_bounds_policy"] = "pad"
        spec = plain
    elif spec.get("dims") or not spec.get("groups"):
        spec = {**plain, "step": [LARGEST_STEP] * max(len(items_of(spec.get("dims"))), 1)}
    else:
        # Groups that are read whole have no steps.
        spec = plain
    try:
        told = _native.explain(spec)
        stores, paths = [told["arrays"]], list(told["path"])
    except ValueError as error:
        if spec.get("groups"):
            raise
        try:
            # Arrays without dimensions take no step.
            is_concat_samples = [plain] if len(paths) < 2 else [{**spec, "path": path} for path in paths]
            stores = [_native.explain(one)["arrays"] for one in is_concat_samples]
        except (ValueError, TypeError, IndexError, RuntimeError):
            raise error from None
        if any([(a["name"], a["dims"]) for a in store] != [(a["name"], a["dims"]) for a in stores[0]] for store in stores):
            raise
    shapes = [tuple(tuple(part["shape"]) for a in same for part in a["stores"]) for same in zip(*stores, strict=True)]
    arrays = [
        Array(same["name"], same["output"], tuple(same["dims"]), shape)
        for same, shape in zip(stores[0], shapes, strict=True)
    ]
    return arrays, paths


def _batch(spec: dict[str, Any]) -> bytes:
    """Returns the first batch of a reader."""

    def work() -> bytes:
        with _native.Reader(spec) as reader:
            return reader.bytes()

    return _native.interruptible(work)


def items_of(value: Any) -> list[Any]:
    """Returns one or several values as a list; none for None."""
    return [] if value is None else values.items(value)


def named_by_window(window: Any) -> list[str]:
    """Returns the dimensions that ``window`` names."""
    if not isinstance(window, Mapping):
        return []
    found: list[str] = []
    for name, value in cast(Mapping[str, Any], window).items():
        found += named_by_window(value) if isinstance(value, Mapping) else [] if isinstance(value, list | tuple) else [name]
    return list(dict.fromkeys(found))


def _named(dim: Any, array: Array) -> str:
    """Returns the name of a dimension that is given by its name or its position."""
    text = str(dim)
    if text in array.dims or not text.lstrip("-").isdigit() or not -len(array.dims) <= int(text) < len(array.dims):
        return text
    return array.dims[int(text)]


def _own_picks(picked: Sequence[pick.Entry], arrays: Sequence[Array]) -> dict[str, dict[str, list[list[int]]]]:
    """Returns what is picked for single outputs, by dimension and then by output. The engine refuses unknown ones."""
    found: dict[str, dict[str, list[list[int]]]] = {}
    for output, dim, indices in picked:
        own = next((array for array in arrays if array.output == output), None)
        if own is not None:
            found.setdefault(_named(dim, own), {})[own.output] = indices
    return found


def _common(dim: str, of: Mapping[str, list[list[int]]], arrays: Sequence[Array]) -> list[list[int]] | None:
    """Returns what is picked of a dimension if it is the same for all arrays that have it; else None."""
    having = [of.get(array.output) for array in arrays if dim in array.dims]
    return having[0] if all(one == having[0] for one in having) else None
