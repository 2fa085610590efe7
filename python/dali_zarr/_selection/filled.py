"""``fill_missing`` of dates that the stores lack: the first of ``dims`` has an element for each date that lies regularly between
others, whether the stores have it or not.

The result is the hidden argument ``_align`` of the arrays' own: for each date the element that the stores have, and -1 where
they have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._log import log
from . import align
from .absent import Elements, elements_of
from .axes import ALIGN, Axes, items_of

# Arguments with which samples aren't cut of one regular axis.
_NOT_WITH = ("groups", "ragged", "ragged_ends", "scale_by")


def resolved(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments with ``_align`` for the arrays that lack dates, if ``fill_missing`` fills them.

    Raises:
        ValueError: Breaks are ends of segments in an array, which doesn't count the dates that are put in.
        TypeError, IndexError, RuntimeError: As :meth:`Axes.of_reader`.
    """
    found = dict(arguments)
    stores = items_of(found.get("path"))
    is_one = len(stores) < 2 or (found.get("concat") != "samples" and found.get("cross_stores", True))
    if found.get("fill_missing") is None or ALIGN in found or not is_one or any(found.get(name) for name in _NOT_WITH):
        return found
    axes = Axes.of_reader(_of_own(found))
    if not axes.dims:
        return found
    first = axes.dims[0]
    try:
        variable = axes.joined() if axes.is_joined else axes.variable(first, 0)
    except (ImportError, ValueError, RuntimeError) as error:
        # What stores declare missing is filled without coordinates.
        log.warning("fill_missing: dates along %r that the stores lack aren't looked for: %s", first, error)
        return found
    elements = None if variable is None else elements_of(variable)
    if elements is None:
        return found
    breaks = items_of(found.get("breaks"))
    if any(isinstance(one, str) and one != "auto" for one in breaks):
        raise ValueError(
            f"zarr_reader: fill_missing: the stores lack {int((elements < 0).sum())} dates along {first!r}, which are filled, so "
            "that the ends of segments that breaks names don't count the same elements; give breaks as numbers"
        )
    if "auto" in breaks:
        # Nothing is uneven any more.
        found["breaks"] = [one for one in breaks if one != "auto"]
    _say(first, variable, elements)
    own = {"dim": first, "elements": elements.tolist(), "is_own": True}
    return {**found, ALIGN: {array.output: own for array in axes.arrays if first in array.dims}}


def _of_own(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments that read the arrays which aren't aligned to others."""
    asked: Any = arguments.get("align") or {}
    own = {output: name for output, name in align.arrays_of(arguments).items() if output not in asked}
    return align.of_arrays(arguments, own) if asked and own else dict(arguments)


def _say(first: str, variable: Any, elements: Elements) -> None:
    absent = elements < 0
    begins = np.flatnonzero(absent[1:] & ~absent[:-1])
    log.warning(
        "fill_missing: the stores lack %d dates along %r, in %d places, the first after %s; they are filled, and elements along "
        "%r count them", int(absent.sum()), first, len(begins), np.asarray(variable.values)[elements[begins[0]]], first,
    )
