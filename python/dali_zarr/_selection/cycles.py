"""Which element of a cycle belongs to a date: of the twelve months, or of the days or hours of a year."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .lookup import are_times
from .stores import needed

# Steps of a day that a year may be cut into: days, 12, 6, 4, 3, 2, 1 and half hours.
_STEPS = (1, 2, 4, 6, 8, 12, 24, 48)
_DAY = 86400


def elements(
    output: str, first: str, there: Any, dim: str, coordinates: Any, length: int,
) -> npt.NDArray[np.int64]:
    """Returns for each date in ``there`` an element of a cycle with ``length`` elements: months (12), the days of a year (365,
    366, or 360), or several steps of each of these days. With coordinates that are dates, the cycle is in their order.

    A cycle of 365 days has no 29 February: it gets the element of 28 February. One of 366 days has it as its day 60, and years
    without it skip that day.

    Raises:
        ValueError: The length is none of a cycle, or labels aren't dates.
    """
    if not are_times(there):
        raise ValueError(f"zarr_reader: align: {output!r}: expected dates along {first!r} with 'cyclic', but found {there.dtype}")
    steps = next((n for n in _STEPS if length % n == 0 and length // n in (365, 366, 360)), None)
    if length != 12 and steps is None:
        raise ValueError(
            f"zarr_reader: align: {output!r}: expected 12 months, or the days of a year (365, 366 or 360) or equally many steps of "
            f"each, along {dim!r} with 'cyclic', but found {length} elements"
        )
    days = length // (steps or 1)
    places = _places(there, days, steps)
    return places if coordinates is None else _ordered(output, dim, coordinates, places, days, steps)


def _places(variable: Any, days: int, steps: int | None) -> npt.NDArray[np.int64]:
    """Returns the place of each date in a cycle of months, or of so many days with several steps each."""
    return _months(variable) if steps is None else _days(variable, days) * steps + _seconds(variable) * steps // _DAY


def _months(variable: Any) -> npt.NDArray[np.int64]:
    return _part(variable, "month") - 1


def _days(variable: Any, days: int) -> npt.NDArray[np.int64]:
    """Returns the day of each date in a year of so many days, from 0."""
    month, day = _part(variable, "month"), _part(variable, "day")
    if days == 360:
        return (month - 1) * 30 + np.minimum(day, 30) - 1
    lengths = [31, 29 if days == 366 else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    begins = np.cumsum([0, *lengths[:-1]])
    return begins[month - 1] + np.minimum(day, np.array(lengths)[month - 1]) - 1


def _seconds(variable: Any) -> npt.NDArray[np.int64]:
    """Returns the second of the day of each date."""
    return _part(variable, "hour") * 3600 + _part(variable, "minute") * 60 + _part(variable, "second")


def _part(variable: Any, name: str) -> npt.NDArray[np.int64]:
    xarray = needed("xarray", "align")
    return np.asarray(getattr(xarray.DataArray(variable).dt, name).values, np.int64)


def _ordered(
    output: str, dim: str, coordinates: Any, places: npt.NDArray[np.int64], days: int, steps: int | None,
) -> npt.NDArray[np.int64]:
    """Returns the elements at these places of the cycle, as coordinates order them: dates of one year in any order, or numbers of
    months or days from 0 or 1. Other coordinates are taken to be in order."""
    if are_times(coordinates):
        own = _places(coordinates, days, steps)
    else:
        values = np.asarray(coordinates.values)
        if values.dtype.kind not in "iu" or values.min() not in (0, 1):
            return places
        own = values.astype(np.int64) - int(values.min())
    if not np.array_equal(np.sort(own), np.arange(len(own))):
        raise ValueError(
            f"zarr_reader: align: {output!r}: expected each of the {len(own)} elements of a cycle once along {dim!r}, but its "
            "coordinates have some several times or not at all"
        )
    return np.argsort(own)[places]
