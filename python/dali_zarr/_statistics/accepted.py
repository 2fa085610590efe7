"""Which arguments of readers and loaders statistics take: those that select elements, and those that don't matter to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from .._arguments.types import ElementArguments, ResourceArguments, Segments
from .._hints import did_you_mean
from .._selection.axes import named_by_window


class TakenArguments(ElementArguments, ResourceArguments, total=False):
    """Arguments of the reader that matter: which elements there are, and how chunks are read."""

    segments: Segments | None


class IgnoredArguments(TypedDict, total=False):
    """Arguments of readers and loaders that don't matter: how elements make samples, in which order samples come, and
    what becomes of their values."""

    window: Any
    step: Any
    overlap: Any
    random_crop: Any
    samples_per_volume: Any
    stride: Any
    out_of_bounds_policy: Any
    pad_before: Any
    pad_after: Any
    fill_value: Any
    missing_dates: Any
    fill_missing: Any
    stack_arrays: Any
    transpose: Any
    squeeze: Any
    return_mask: Any
    return_index: Any
    mean: Any
    stddev: Any
    dtype: Any
    random_shuffle: Any
    num_samples: Any
    replacement: Any
    initial_fill: Any
    shuffle_after_epoch: Any
    seed: Any
    stick_to_shard: Any
    shard_id: Any
    num_shards: Any
    pad_last_batch: Any
    drop_last: Any
    uneven: Any
    transform: Any
    num_threads: Any
    on_bad_chunk: Any
    sharding: Any
    collate: Any
    columns: Any
    name: Any
    preserve: Any
    bytes_per_sample_hint: Any


class StatisticsArguments(TakenArguments, IgnoredArguments, total=False):
    """Arguments that may be given."""


TAKEN = frozenset(TakenArguments.__annotations__)
IGNORED = frozenset(IgnoredArguments.__annotations__)
# Parameters of the function itself.
OWN = frozenset({
    "path", "arrays", "offsets", "channels", "weights", "batch_size", "device", "device_id", "output", "progress", "process_group",
})
_RAGGED = "statistics of ragged rows are those of all stored elements; leave it out, and name arrays that have as many elements"
# Arguments that are refused, and why. Without them the statistics would mean something else.
REFUSED = {
    "starts": "it chooses samples, which may overlap, but each element counts once; select elements with sel, isel or segments",
    "align": "arrays of another rate have elements of their own; leave it out, and ask for their statistics in a call of their own",
    "scale_by": "arrays of another resolution have elements of their own; ask for the statistics of each in a call of its own",
    "scale_method": "it is for scale_by, which statistics don't take; leave it out",
    "grid": "it is for scale_by, which statistics don't take; leave it out",
    "groups": "give the groups as path, a list of stores, with concat='samples'",
    "ragged": _RAGGED, "ragged_ends": _RAGGED, "max_length": _RAGGED,
}


def accepted(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the arguments that matter.

    Raises:
        TypeError: An argument isn't known, or is refused.
    """
    for name, value in arguments.items():
        if name in REFUSED and value is not None:
            raise TypeError(f"dali_zarr: statistics: {name}: {REFUSED[name]}")
        if name not in TAKEN and name not in IGNORED and name not in REFUSED:
            hint = did_you_mean(name, TAKEN | IGNORED | OWN, "see help(dali_zarr.statistics) for the arguments that there are")
            raise TypeError(f"dali_zarr: statistics: {name}: there is no such argument; {hint}")
    found = {name: value for name, value in arguments.items() if name in TAKEN}
    # The window may name dimensions that dims doesn't.
    if found.get("dims") is None and (named := named_by_window(arguments.get("window"))):
        found["dims"] = named
    return found
