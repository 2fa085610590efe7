"""Which arguments of readers and loaders statistics take: those that select elements, and those that don't matter to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._arguments.types import ElementArguments, LoaderArguments, ResourceArguments, Segments
from .._hints import did_you_mean
from .._selection.axes import named_by_window

# Of readers and loaders: what samples are made of elements, in which order they come and what becomes of their values.
IGNORED = frozenset({
    "window", "step", "overlap", "random_crop", "samples_per_volume", "stride", "out_of_bounds_policy", "pad_before", "pad_after",
    "fill_value", "stack_arrays", "return_mask", "return_index", "mean", "stddev", "dtype", "random_shuffle", "num_samples",
    "replacement", "initial_fill", "shuffle_after_epoch", "seed", "stick_to_shard", "shard_id", "num_shards", "pad_last_batch",
    "drop_last", "transform", "num_threads", "sharding", "collate", "columns", "name", "preserve", "bytes_per_sample_hint",
})
_RAGGED = "statistics of ragged rows would be those of all stored elements; name the array along whose elements they are, without it"
# What statistics can't leave out without meaning something else, and why.
REFUSED = {
    "starts": "it chooses samples, which may overlap, but each element counts once; select elements with sel, isel or segments",
    "ragged": _RAGGED, "ragged_ends": _RAGGED, "max_length": _RAGGED,
}


class StatisticsArguments(LoaderArguments, total=False):
    """Those of readers and loaders that may be given, though they may not matter."""

    return_index: bool
    shard_id: int | None
    num_shards: int | None
    pad_last_batch: bool
    drop_last: bool
    transform: Any
    num_threads: int
    sharding: Any
    collate: Any
    columns: int | None
    name: str | None
    preserve: bool
    bytes_per_sample_hint: int | list[int]


class _Taken(ElementArguments, ResourceArguments, total=False):
    """Those that matter."""

    segments: Segments | None


TAKEN = frozenset(_Taken.__annotations__)


def accepted(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that matter.

    Raises:
        TypeError: One isn't known, or can't be left out.
    """
    for name, value in arguments.items():
        if name in REFUSED and value is not None:
            raise TypeError(f"dali_zarr: statistics: {name}: {REFUSED[name]}")
        if name not in TAKEN and name not in IGNORED and name not in REFUSED:
            hint = did_you_mean(name, TAKEN | IGNORED, "see help(dali_zarr.statistics) for the arguments that there are")
            raise TypeError(f"dali_zarr: statistics: {name}: there is no such argument; {hint}")
    found = {name: value for name, value in arguments.items() if name in TAKEN}
    # Dimensions that only the window names.
    if found.get("dims") is None and (named := named_by_window(arguments.get("window"))):
        found["dims"] = named
    return found
