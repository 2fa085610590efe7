"""``align`` with ``"linear"``: between which two elements the value for each label lies, and the weight of the second one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .lookup import are_times, duration
from .stores import needed


class Pairs(NamedTuple):
    """Two elements for each label. The weights are those of the second ones, and 0 where a label is that of an element."""

    elements: npt.NDArray[np.int64]
    others: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]


def pairs(where: str, there: Any, dim: str, coordinates: Any, tolerance: Any) -> Pairs:
    """Finds the elements around each label of ``there``; -1 where there are none, or one is farther than ``tolerance``.

    The distances of labels are exact: whole numbers of a unit for dates. A weight is the distance to the first element
    divided by that between both, in float64.

    Raises:
        ValueError: Labels have no distances, are missing, or aren't different.
    """
    labels, elements = numbers_of(where, there, coordinates)
    order = np.argsort(elements, kind="stable")
    ordered = elements[order]
    missing = _missing(ordered)
    if missing.any():
        raise ValueError(f"{where}: expected a label for each element along {dim!r}, but found {int(missing.sum())} missing ones")
    if (ordered[1:] == ordered[:-1]).any():
        raise ValueError(f"{where}: expected each label along {dim!r} once, but found some several times")
    last = len(ordered) - 1
    low = np.searchsorted(ordered, labels, side="right") - 1
    is_one = (low >= 0) & (ordered[np.maximum(low, 0)] == labels)
    is_between = (low >= 0) & (low < last) & ~is_one & ~_missing(labels)
    low = np.maximum(low, 0)
    high = np.minimum(low + 1, last)
    below, above = _distance(labels, ordered[low]), _distance(ordered[high], labels)
    whole = _distance(ordered[high], ordered[low]).astype(np.float64)
    weights = np.divide(below.astype(np.float64), whole, out=np.zeros(len(labels)), where=is_between)
    if tolerance is not None:
        most = _tolerance(where, there, np.result_type(there.dtype, coordinates.dtype), tolerance)
        is_between &= (below <= most) & (above <= most)
    is_between_or_one = is_between | is_one
    return Pairs(
        np.where(is_between_or_one, order[low], -1), np.where(is_between, order[high], np.where(is_one, order[low], -1)),
        np.where(is_between, weights, 0.0),
    )


def numbers_of(where: str, there: Any, coordinates: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns labels and coordinates as numbers of one unit: int64 or float64."""
    labels, elements = np.asarray(there.values), np.asarray(coordinates.values)
    if labels.dtype.kind in "mM" and labels.dtype.kind == elements.dtype.kind:
        unit = np.result_type(labels.dtype, elements.dtype)
        return labels.astype(unit).view(np.int64), elements.astype(unit).view(np.int64)
    if are_times(there):
        return _microseconds(labels, elements[0]), _microseconds(elements, elements[0])
    kinds = labels.dtype.kind + elements.dtype.kind
    if any(kind not in "iuf" for kind in kinds):
        raise ValueError(
            f"{where}: expected labels between which there are others, numbers or dates, but found {labels.dtype} and "
            f"{elements.dtype}"
        )
    is_whole = all(np.can_cast(of.dtype, np.int64) for of in (labels, elements))
    return labels.astype(np.int64 if is_whole else np.float64), elements.astype(np.int64 if is_whole else np.float64)


def _microseconds(dates: npt.NDArray[Any], since: Any) -> npt.NDArray[np.int64]:
    return np.array([(date - since) // timedelta(microseconds=1) for date in dates], np.int64)


def _missing(numbers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.isnan(numbers) if numbers.dtype.kind == "f" else numbers == np.iinfo(np.int64).min


def _distance(later: npt.NDArray[Any], earlier: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the distances, which whole numbers of 64 bits without a sign always hold."""
    return later - earlier if later.dtype.kind == "f" else (later - earlier).view(np.uint64)


def _tolerance(where: str, there: Any, unit: np.dtype[Any], tolerance: Any) -> float:
    """Returns the tolerance in the unit of the numbers."""
    try:
        if unit.kind in "mM":
            pandas = needed("pandas", "align")
            given = pandas.Timedelta(duration(tolerance) if isinstance(tolerance, str) else tolerance)
            found = given // pandas.Timedelta(1, np.datetime_data(unit)[0])
        elif are_times(there):
            found = (duration(tolerance) if isinstance(tolerance, str) else tolerance) // timedelta(microseconds=1)
        else:
            found = float(tolerance)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: expected a distance of labels as tolerance, but found {tolerance!r}") from error
    if not found >= 0:
        raise ValueError(f"{where}: expected a tolerance of 0 or more, but found {tolerance!r}")
    return found
