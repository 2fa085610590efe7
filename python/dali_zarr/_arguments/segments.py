"""Segments of a data set: where they end, and which of them are read."""

import os
from typing import Any

from . import values


def checked(name: str, value: Any) -> list[Any]:
    """``breaks`` or ``segments`` as the engine takes them: a list of whole numbers, of names, or of bools.

    Raises:
        TypeError, ValueError: It has other items, or there is no segment.
    """
    items = values.items(list(value) if isinstance(value, range) else value)
    if name == "breaks":
        found = [values.expanded(item) if isinstance(item, str | os.PathLike) else item for item in items]
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
