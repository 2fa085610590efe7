"""Positions along a dimension, of labels (as xarray looks them up) or of indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .stores import needed

# So many coordinates are listed in messages.
_SHOWN = 8


@dataclass(frozen=True)
class Positions:
    """Elements of a dimension, in the order in which they were asked for."""

    indices: npt.NDArray[np.int64]
    # A single element, whose dimension is dropped.
    is_scalar: bool
    # Elements that were listed one by one. Others are a slice, those of a part of a date, or those for which a list has True.
    is_list: bool = False
    # Of bools, which say what there is: what they leave out is a gap also where gaps are equal.
    is_mask: bool = False

    def spacing(self) -> int | None:
        """The distance of neighbours, at least 1; None where they are in another order, unevenly spaced, or have gaps."""
        steps = np.diff(self.indices)
        if not len(steps):
            return 1
        if self.is_mask and steps[0] > 1:
            return None
        return int(steps[0]) if steps[0] > 0 and bool((steps == steps[0]).all()) else None

    def runs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
        """Where runs of neighbours begin and end (one past the last), if that is how ascending elements with gaps lie."""
        if self.spacing() is not None or not bool((np.diff(self.indices) > 0).all()):
            return None
        first = np.flatnonzero(np.diff(self.indices, prepend=-2) != 1)
        return self.indices[first], self.indices[np.append(first[1:], len(self.indices)) - 1] + 1


def of_index(name: str, dim: str, length: int, indexer: Any) -> Positions:
    """What ``isel`` takes: an integer, a slice, or a list of integers or of bools.

    Raises:
        IndexError: An index is outside.
        TypeError: It is none of these.
    """
    _check_form(name, dim, indexer)
    try:
        found = np.arange(length)[indexer if isinstance(indexer, slice) else np.asarray(indexer)]
    except IndexError as error:
        if "valid indices" in str(error) or "must be of integer" in str(error):
            raise TypeError(f"zarr_reader: {name}: {dim!r}: expected integers, a slice or bools, but found {indexer!r}") from None
        raise IndexError(f"zarr_reader: {name}: {dim!r}: {error}") from None
    return _checked(name, dim, indexer, np.asarray(found))


def of_label(dim: str, length: int, variable: Any, label: Any, method: str | None, tolerance: Any) -> Positions:
    """What ``sel`` takes, among the coordinates that ``variable`` holds (None: positions are the labels).

    Raises:
        KeyError: No element has the label.
        ValueError, TypeError: The label can't be looked up.
    """
    _check_form("sel", dim, label)
    xarray = needed("xarray", "selecting by label")
    if variable is not None and _are_times(variable):
        label = _years_as_text(label)
    numbers = xarray.DataArray(np.arange(length), dims=(dim,), coords={} if variable is None else {dim: variable})
    options = {} if isinstance(label, slice) or method is None else {"method": method, "tolerance": tolerance}
    try:
        found = numbers.sel({dim: label}, **options)
    except KeyError as error:
        there = _shown(variable) + _hint(label, variable)
        missing = _first_missing(numbers, dim, label, options)
        raise KeyError(f"zarr_reader: sel: {dim!r}: {missing!r} isn't among the coordinates{there}") from error
    except (ValueError, TypeError, IndexError, NotImplementedError) as error:
        if variable is not None and np.asarray(variable.values).dtype.kind == "M" and (wrong := _no_date(label)):
            raise ValueError(
                f"zarr_reader: sel: {dim!r}: {wrong!r} isn't a date; write '2020', '2020-01', '2020-01-31' or '2020-01-31T06:00'"
            ) from error
        raise ValueError(f"zarr_reader: sel: {dim!r}: {label!r} can't be looked up: {error}") from error
    except Exception as error:
        # pandas has an error of its own for coordinates that aren't unique.
        if type(error).__name__ != "InvalidIndexError":
            raise
        raise ValueError(f"zarr_reader: sel: {dim!r}: the coordinates aren't unique; select by position, with isel") from error
    return _checked("sel", dim, label, np.asarray(found.values))


def _are_times(variable: Any) -> bool:
    """Whether coordinates are dates, of NumPy's or cftime's types."""
    values = np.asarray(variable.values)
    return values.dtype.kind == "M" or (values.dtype.kind == "O" and values.size > 0 and hasattr(values.flat[0], "calendar"))


def _years_as_text(label: Any) -> Any:
    """Years are text for xarray. On the command line 2015 is a number, because it may be a level."""
    if isinstance(label, slice):
        bounds = cast("slice[Any, Any, Any]", label)
        return slice(_years_as_text(bounds.start), _years_as_text(bounds.stop), bounds.step)
    if isinstance(label, list):
        return [_years_as_text(one) for one in cast("list[Any]", label)]
    return f"{label:04}" if type(label) is int and 0 <= label <= 9999 else label


def _check_form(name: str, dim: str, indexer: Any) -> None:
    dims: Sequence[Any] = getattr(indexer, "dims", (dim,))
    if len(dims) > 1 or (len(dims) == 1 and dims[0] != dim):
        raise ValueError(
            f"zarr_reader: {name}: {dim!r}: expected labels along {dim!r}, but found an array with the dimensions {tuple(dims)}"
        )


def _checked(name: str, dim: str, indexer: Any, found: npt.NDArray[Any]) -> Positions:
    if found.ndim > 1:
        raise ValueError(f"zarr_reader: {name}: {dim!r}: expected a list, but found an array of {found.ndim} dimensions")
    is_mask = np.ndim(indexer) > 0 and np.asarray(indexer).dtype.kind == "b"
    is_list = np.ndim(indexer) > 0 and not is_mask
    return Positions(np.atleast_1d(found).astype(np.int64), found.ndim == 0, is_list, is_mask)


def _first_missing(numbers: Any, dim: str, label: Any, options: Mapping[str, Any]) -> Any:
    """The first label of a list that no element has; a label that isn't in a list itself."""
    if np.ndim(label) != 1:
        return label
    found: npt.NDArray[Any] = np.asarray(label)
    listed: list[Any] = cast("list[Any]", label) if isinstance(label, list) else list(found)
    for item in listed:
        # So that messages don't say np.int64(501).
        one: Any = np.asarray(item).item() if np.asarray(item).dtype.kind in "iuf" else item
        try:
            numbers.sel({dim: [one]}, **options)
        except KeyError:
            return one
    return cast(Any, label)


def _no_date(label: Any) -> str | None:
    """The first bound of a slice that is text and can't be read as a date."""
    bounds = cast("slice[Any, Any, Any]", label)
    for text in (bounds.start, bounds.stop) if isinstance(label, slice) else ():
        if isinstance(text, str):
            try:
                needed("pandas", "selecting by label").Timestamp(text)
            except ValueError:
                return text
    return None


def _hint(label: Any, variable: Any) -> str:
    """For text where coordinates are numbers, or where xarray takes it for dates only outside of lists."""
    listed: list[Any] = np.ravel(np.asarray(label, object)).tolist() if np.ndim(label) else []
    if variable is not None and len(listed) and isinstance(listed[0], str):
        date = np.asarray(variable.values)[0]
        if type(date).__module__.startswith("cftime"):
            example = f"cftime.{type(date).__name__}({date.year}, {date.month}, {date.day}, {date.hour})"
            return f"; in lists dates of this calendar aren't text: write {example}"
    if variable is None or not isinstance(label, str) or np.asarray(variable.values).dtype.kind not in "iuf":
        return ""
    try:
        return f"; they are numbers: write {int(label) if label.strip('+-').isdigit() else float(label)} instead of {label!r}"
    except ValueError:
        return "; they are numbers, and the label is text"


def _shown(variable: Any) -> str:
    """Some of the coordinates."""
    if variable is None:
        return ""
    found: npt.NDArray[Any] = np.asarray(variable.values)
    values = list(found)
    if len(values) <= _SHOWN:
        return f": {', '.join(shown(values))}"
    *first, last = shown([*values[:4], values[-1]])
    return f": {', '.join(first)}, ..., {last}"


def shown(values: Sequence[Any]) -> list[str]:
    """Coordinates as messages have them: dates as exact as they differ from whole days, minutes or seconds."""
    if not all(isinstance(value, np.datetime64) for value in values):
        return [str(value) for value in values]
    dates: npt.NDArray[np.datetime64] = np.array(values)
    coarser = [dates.astype(f"datetime64[{unit}]") for unit in ("D", "m", "s")]
    return [str(date) for date in next((one for one in coarser if (one == dates).all()), dates)]
