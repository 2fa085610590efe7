"""Dates that lie regularly between those of a coordinate, and that it lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._log import log
from .interpolated import numbers_of
from .lookup import are_times
from .stores import needed

# The most elements for each date that is there: one wrong date could make an axis endless.
MOST = 16

Elements = npt.NDArray[np.int64]


def elements_of(variable: Any) -> Elements | None:
    """Returns for each date of a regular axis the element with it, -1 where there is none. None if no date is absent, or dates
    aren't regular: their distances must be multiples of one that at least half of them have."""
    if not are_times(variable) or len(variable) < 3:
        return None
    numbers = numbers_of("zarr_reader: fill_missing", variable, variable)[0]
    if numbers.dtype == np.int64 and (numbers == np.iinfo(np.int64).min).any():
        return None
    apart = np.diff(numbers)
    if (apart < 0).all():
        apart = -apart
    if not (apart > 0).all():
        return None
    each, counts = np.unique(apart, return_counts=True)
    step = each[np.argmax(counts)]
    if len(each) == 1 or counts.max() * 2 < len(apart) or (each % step).any():
        return None
    steps = apart // step
    total = int(steps.sum()) + 1
    if total > MOST * len(numbers):
        log.warning("fill_missing: dates along %r are far apart: %d would be filled, so none is", variable.dims[0], total)
        return None
    found = np.full(total, -1, np.int64)
    found[np.concatenate([[0], np.cumsum(steps)])] = np.arange(len(numbers))
    return found


def dates_of(variable: Any, elements: Elements) -> Any:
    """Returns the variable with the dates that it lacks put in, as :func:`elements_of` tells them."""
    values = np.asarray(variable.values)
    places = np.flatnonzero(elements >= 0)
    # Of two dates that follow each other, the distance is that of all.
    near = int(np.argmin(np.diff(places)))
    step = values[near + 1] - values[near]
    # NumPy makes durations of its own of Python's, which cftime's dates don't take.
    dates = values[0] + np.arange(len(elements)).astype(object if values.dtype == object else np.int64) * step
    dates[places] = values
    return needed("xarray", "fill_missing").Variable(variable.dims, dates, variable.attrs, variable.encoding)
