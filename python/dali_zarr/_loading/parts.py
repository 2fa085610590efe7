"""The parts of a dimension that the ranks of a read group read, as arguments of their readers.

All ranks of a group read the same samples, each its part of one dimension that samples have whole. What the order depends on is
that of the whole, so that it is the same on all ranks, and that of a loader without a group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .. import _arguments, _native
from .._arguments import values
from .._arguments.pick import is_by_output
from .._hints import did_you_mean
from .._log import log
from .._selection.axes import ALIGN, Axes
from .ragged import RAGGED

# Values of a state with longer JSON text are replaced by a hash, as the engine's ``reader/checkpoint`` does.
_LONGEST = 160
# Stands in a state for what its reader can't say of the whole.
_OF_PARTS = "of a read group"
# The entries of a state that describe the shapes in several stores, and those of arrays beyond the eighth.
_OF_STORES, _MORE = "samples of the stores", "further arrays"


@dataclass(frozen=True)
class Rank:
    """What a rank of a read group is asked to read."""

    # The dimension that is divided; None: the last one that isn't one of ``dims``.
    dim: str | None
    rank: int
    size: int
    # Whether the parts are gathered. Then they may differ in size, and follow the borders of chunks.
    gathers: bool


@dataclass(frozen=True)
class Parts:
    """The parts of a dimension."""

    dim: str
    # Where they begin, by rank, and where the last one ends, in elements of the whole.
    bounds: tuple[int, ...]
    rank: int
    # The place of the dimension in a sample of each output that has it, by the name of its array; None: of a stack.
    axes: Mapping[str | None, int]
    # For each array that has it, what a state says of the whole's shape. None: it can't be told.
    shapes: Mapping[int, Any]

    def sizes(self) -> list[int]:
        """Returns the number of elements of each part, by rank."""
        return np.diff(self.bounds).tolist()

    def state_of_whole(self, state: str) -> str:
        """Returns the state of this part's reader as that of a reader of the whole, which all ranks have in common."""
        told: dict[str, Any] = json.loads(state)
        for i, shape in self.shapes.items():
            if i < len(told["arrays"]):
                key = _MORE if _MORE in told["arrays"][i] else "shape"
                told["arrays"][i][key] = _OF_PARTS if shape is None or key == _MORE else shape
        if _OF_STORES in told["cut"]:
            told["cut"][_OF_STORES] = _OF_PARTS
        return _dumped(told)

    def state_of_part(self, state: str, own: str) -> str:
        """Returns the state of a reader of the whole as that of this part's reader, which refuses what isn't a state. ``own``:
        another state of this part's reader.

        Raises:
            ValueError: The state belongs to another whole.
        """
        mine = json.loads(own)
        try:
            told: dict[str, Any] = json.loads(state)
            arrays, cut = told["arrays"], told["cut"]
            for i in self.shapes:
                if i < min(len(arrays), len(mine["arrays"])):
                    key = _MORE if _MORE in mine["arrays"][i] else "shape"
                    self._check(i, key, arrays[i].get(key), mine["arrays"][i].get("name"))
                    arrays[i][key] = mine["arrays"][i][key]
            if _OF_STORES in cut and _OF_STORES in mine["cut"]:
                cut[_OF_STORES] = mine["cut"][_OF_STORES]
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError, RecursionError):
            return state
        return _dumped(told)

    def _check(self, array: int, key: str, then: Any, name: str) -> None:
        """Raises ValueError if an array had another shape when a state was made."""
        shape = self.shapes[array]
        if key != _MORE and shape is not None and then not in (_OF_PARTS, shape):
            raise ValueError(
                f"dali_zarr: load_state_dict: expected a state of the same samples, but array {name!r} has the shape {then} in the "
                f"state, and {shape} here; load it with the arguments and the data set that it was made with"
            )


def divided(found: Mapping[str, Any], told_offsets: Sequence[int], rank: Rank, axes: Axes) -> tuple[dict[str, Any], Parts]:
    """Returns the reader's arguments for a rank's part, and all parts.

    Args:
        found: The arguments for the whole, in the operator's form.
        told_offsets: The offsets that the operator gets.
        rank: What is asked for.
        axes: The dimensions of the whole.

    Raises:
        ValueError: The dimension can't be divided.
    """
    if is_by_output(found.get("pick")):
        raise ValueError(
            "dali_zarr: read_group: expected the same pick for all outputs, but found pick by output; read the others with another "
            "loader"
        )
    dim = _dim(rank, axes)
    given = {name: value for name, value in found.items() if name not in _arguments.names.DALIS}
    whole = _native.explain(_arguments.to_spec({**given, "offsets": list(told_offsets), "name": None}) | {"device": "cpu"})
    lists, length = _elements(dim, axes)
    _check_statistics(dim, length, found)
    if length < rank.size:
        raise ValueError(
            f"dali_zarr: read_dim: expected at least as many elements along {dim!r} as the read group has ranks, {rank.size}, but "
            f"found {length}; choose another dimension"
        )
    arrays: list[dict[str, Any]] = whole["arrays"]
    bounds = _joined_bounds(dim, lists, length, rank, arrays) if rank.gathers else equal_bounds(length, rank.size)
    begin, end = bounds[rank.rank : rank.rank + 2]
    parts = [one[begin:end] for one in lists] if lists else [np.arange(begin, end)]
    text = "|".join(",".join(map(str, one.tolist())) for one in parts)
    picks: list[str] = found.get("pick") or []
    others = [entry for entry in picks if axes.named(entry.rpartition("=")[0].strip()) != dim]
    arguments: dict[str, Any] = dict(found) if rank.size == 1 else {**found, "pick": [*others, f"{dim}={text}"]}
    if rank.size > 1 and found.get("initial_fill") is None and any(found.get(n) for n in ("random_shuffle", "shuffle_after_epoch")):
        # The default depends on the bytes that samples read.
        arguments["initial_fill"] = whole["shuffle"]["initial_fill"]
    has = {one["output"] for one in arrays if dim in one["dims"]}
    places: dict[str, int] = {one["name"]: one["dims"].index(dim) for one in whole["outputs"] if dim in one["dims"]}
    is_stack = bool(found.get("stack_arrays", False))
    axes_of: dict[str | None, int] = {**places}
    if is_stack:
        axes_of = {None: next(iter(places.values()))} if places else {}
    shapes = {i: _shape(one, axes, lists, dim, found) for i, one in enumerate(arrays) if one["output"] in has}
    return arguments, Parts(dim, bounds, rank.rank, axes_of, shapes)


def _dim(rank: Rank, axes: Axes) -> str:
    """Returns the dimension that is divided."""
    free = [dim for dim in axes.stored(None) if dim not in axes.dims]
    if rank.dim is None:
        if not free:
            raise ValueError(
                f"dali_zarr: read_group: expected a dimension that samples have whole, which ranks can divide, but all are in "
                f"dims, {', '.join(axes.dims)}; leave one out of dims"
            )
        return free[-1]
    if rank.dim in axes.dims:
        raise ValueError(
            f"dali_zarr: read_dim: expected a dimension that samples have whole, but found {rank.dim!r}, along which they are cut; "
            "leave it out of dims, or choose another one"
        )
    others = [dim for dim in axes.names() if dim not in axes.dims]
    if rank.dim not in others:
        hint = did_you_mean(rank.dim, others, f"there are {', '.join(others) or 'none'}")
        raise ValueError(f"dali_zarr: read_dim: no array has a dimension {rank.dim!r} that samples have whole; {hint}")
    return rank.dim


def _elements(dim: str, axes: Axes) -> tuple[list[npt.NDArray[np.int64]], int]:
    """Returns the elements that are selected along a dimension, one list for all stores or one for each; empty where all are.
    And their number."""
    lengths = {shape[array.dims.index(dim)] for array in axes.arrays if dim in array.dims for shape in array.shapes}
    lists = [np.array(one, np.int64) for one in axes.picks.get(dim) or []]
    if lists:
        own = axes.lengths(dim)
        lists = [np.where(one < 0, one + own[i % len(own)], one) for i, one in enumerate(lists)]
        return lists, len(lists[0])
    if len(lengths) > 1:
        raise ValueError(
            f"dali_zarr: read_dim: expected arrays, and stores, of one length along {dim!r}, but found "
            f"{', '.join(map(str, sorted(lengths)))}; choose another dimension, or select elements that all have"
        )
    return [], lengths.pop()


def _check_statistics(dim: str, length: int, found: Mapping[str, Any]) -> None:
    """Raises ValueError where elements along the dimension have statistics of their own."""
    given: Any = found.get("channels")
    by_output: list[Any] = list(cast("Mapping[str, Any]", given).values()) if isinstance(given, Mapping) else [given]
    named = {str(one) for of in by_output for one in values.items(of)}
    for name in ("mean", "stddev"):
        value: Any = found.get(name)
        listed: list[Any] = list(cast("Mapping[str, Any]", value).values()) if isinstance(value, Mapping) else [value]
        is_own = given is None and any(isinstance(one, list | tuple) and len(cast("list[Any]", one)) == length for one in listed)
        if value is not None and (dim in named or (is_own and length > 1)):
            raise ValueError(
                f"dali_zarr: read_dim: expected a dimension whose elements have no {name} of their own, but found {dim!r}, which "
                f"has; choose another dimension, or name those that have in channels"
            )


def equal_bounds(length: int, size: int) -> tuple[int, ...]:
    """Returns the bounds of parts that differ by one element at most, the longer ones first."""
    least, more = divmod(length, size)
    return tuple(i * least + min(i, more) for i in range(size + 1))


def _joined_bounds(
    dim: str, lists: Sequence[npt.NDArray[np.int64]], length: int, rank: Rank, arrays: Sequence[Mapping[str, Any]],
) -> tuple[int, ...]:
    """Returns the bounds of parts that are joined again: at those borders of chunks that are nearest to the bounds of equal
    parts. Borders count that all arrays have in common; where these are too few, those of the array with most bytes."""
    having = [one for one in arrays if dim in one["dims"]]
    borders = [_borders(one, dim, lists, length) for one in having]
    common = set[int].intersection(*borders)
    largest = max(zip(having, borders, strict=True), key=lambda both: both[0]["bytes_per_sample"])[1]
    equal = equal_bounds(length, rank.size)
    for allowed in (sorted(common), sorted(largest)):
        if len(allowed) >= rank.size - 1:
            return (0, *_nearest(allowed, equal[1:-1]), length)
    log.warning(
        "read_group: expected at least %d chunks along %r, one for each rank, but found %d: chunks that several ranks have a part "
        "of are decoded by each; choose another read_dim, or rechunk the store", rank.size, dim, len(largest) + 1,
    )
    return equal


def _borders(array: Mapping[str, Any], dim: str, lists: Sequence[npt.NDArray[np.int64]], length: int) -> set[int]:
    """Returns the places between selected elements where a chunk ends, in all stores."""
    at = array["dims"].index(dim)
    found: set[int] | None = None
    for i, store in enumerate(array["stores"]):
        elements = lists[i % len(lists)] if lists else np.arange(length)
        chunks = elements // max(int(store["chunks"][at]), 1)
        own = set((np.flatnonzero(np.diff(chunks)) + 1).tolist())
        found = own if found is None else found & own
    return found or set()


def _nearest(allowed: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Returns for each wanted bound the nearest one that is allowed, in ascending order and none twice. There are enough."""
    found: list[int] = []
    first = 0
    for i, bound in enumerate(wanted):
        last = len(allowed) - (len(wanted) - i - 1)
        best = min(range(first, last), key=lambda at: (abs(allowed[at] - bound), at))
        found.append(allowed[best])
        first = best + 1
    return found


def _shape(
    array: Mapping[str, Any], axes: Axes, lists: Sequence[npt.NDArray[np.int64]], dim: str, found: Mapping[str, Any],
) -> Any:
    """Returns what the state of a reader of the whole says of an array's shape, as the engine's ``reader/checkpoint`` writes it;
    None where the engine has picks of its own."""
    if found.get(ALIGN) or found.get("fill_missing") or axes.is_concat_samples:
        return None
    told: list[Any] = []
    for name, length in zip(array["dims"], array["stores"][0]["shape"], strict=True):
        picks = [one.tolist() for one in lists] if name == dim else axes.picks.get(name) or []
        own = [[i + length if i < 0 else i for i in one] for one in picks]
        same = own[:1] if all(one == own[0] for one in own) else own
        is_plain = len(same) == 1 and same[0] == list(range(len(same[0])))
        pick = None if not own or is_plain else same[0] if len(same) == 1 else same
        if name in axes.dims:
            told.append(name if pick is None else {name: pick})
        else:
            told.append(pick if pick is not None else len(same[0]) if same else length)
    text = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    return told if len(text.encode()) <= _LONGEST else f"{len(told)} entries with hash {_hash(text.encode()):016x}"


def _hash(text: bytes) -> int:
    """Returns the hash (FNV-1a) of a text."""
    found = 0xCBF29CE484222325
    for byte in text:
        found = (found ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return found


def _dumped(state: Mapping[str, Any]) -> str:
    return json.dumps(state, separators=(",", ":"), ensure_ascii=False)


def check(arguments: Mapping[str, Any]) -> None:
    """Raises ValueError for arguments of a reader whose samples can't be divided."""
    for name in RAGGED:
        if arguments.get(name) is not None:
            raise ValueError(f"dali_zarr: read_group: expected none with {name}: rows differ in length, so ranks can't divide them")
    if arguments.get("on_bad_chunk") == "skip":
        raise ValueError(
            "dali_zarr: read_group: expected none with on_bad_chunk='skip': each rank finds bad chunks in its own part, so ranks "
            "would replace different samples; use 'nan'"
        )
