"""Segments of a data set: where they end, and which of them are read."""

import os
from collections.abc import Mapping
from typing import Any, cast

from .. import _native
from . import paths, values
from .types import ElementArguments

# The arguments on which segments depend: windows tell the dimensions of samples, and a selection changes them together with its
# region. Those that change values (``_OF_VALUES``) don't matter to segments.
OF_SEGMENTS = frozenset({
    "path", "arrays", "ragged", "ragged_ends", "_regions", *ElementArguments.__annotations__,
    "window", "stride", "step", "overlap", "out_of_bounds_policy", "pad_before", "pad_after", "random_crop",
})
_OF_VALUES = frozenset({"mask_and_scale", "fillna"})


def count(what: str, arguments: Mapping[str, Any]) -> int:
    """Returns how many segments there are. ``arguments`` are in the operator's form; ``what`` begins the message.

    Raises:
        ValueError: Each store has segments of its own; and as building a pipeline raises.
    """
    names = OF_SEGMENTS - _OF_VALUES
    given = {name: value for name, value in arguments.items() if name in names and value is not None}
    bounds = _native.explain({**given, "mask_and_scale": False, "missing_dates": "keep"})["segments"]["bounds"]
    if len(bounds) > 1:
        raise ValueError(
            f"{what}: expected stores that are joined to one axis, but concat='samples' numbers the segments of each "
            "store; give one reader for each store, or a list of numbers that holds for all"
        )
    return len(bounds[0]) - 1


def of_slice(given: slice, arguments: Mapping[str, Any]) -> list[int]:
    """Returns the numbers of the segments that a slice selects.

    Raises:
        ValueError: The slice selects none.
    """
    found = list(range(count("zarr_reader: segments", arguments))[given])
    if not found:
        raise ValueError(f"zarr_reader: segments: expected at least one segment, but {given!r} has none")
    return found


def checked(name: str, value: Any) -> list[Any] | slice:
    """Returns ``breaks`` or ``segments`` as the engine takes them: a list of whole numbers, of names, or of bools.
    Slices stay.

    Raises:
        TypeError, ValueError: The value has other items, or there is no segment.
    """
    if isinstance(value, slice):
        if name == "breaks":
            raise TypeError(f"zarr_reader: breaks: expected integers or names, found {value!r}")
        found = cast("slice[Any, Any, Any]", value)
        for bound in (found.start, found.stop, found.step):
            if bound is not None:
                values.check_integer(name, bound)
        if found.step == 0:
            raise ValueError(f"zarr_reader: segments: expected a slice with a step other than 0, found {value!r}")
        return found
    items = values.items(list(value) if isinstance(value, range) else value)
    if name == "breaks":
        found = [paths.location(values.expanded(item)) if isinstance(item, str | os.PathLike) else item for item in items]
        for item in found:
            if not isinstance(item, str):
                values.check_integer(name, item)
        return found
    if not items:
        raise ValueError("zarr_reader: segments: expected at least one segment, but found none")
    if isinstance(items[0], bool):
        if not all(isinstance(item, bool) for item in items):
            raise TypeError("zarr_reader: segments: expected integers, or True or False for each segment, but found both")
        return items
    for item in items:
        values.check_integer(name, item)
    return items
