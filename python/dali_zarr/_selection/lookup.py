"""Looks up labels (as xarray does) or indices: finds their positions along a dimension."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass
from numbers import Integral
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .stores import needed

# The most coordinates that are listed in a message.
_SHOWN = 8


@dataclass(frozen=True)
class Positions:
    """Elements of a dimension, in the order in which they were asked for."""

    indices: npt.NDArray[np.int64]
    # Whether it is a single element, whose dimension is dropped.
    is_scalar: bool
    # Whether elements were listed one by one. Else they come from a slice, a partial date, or a list of bools.
    is_list: bool = False
    # Whether they come from a list of bools. Elements that it leaves out are gaps, even where all gaps are equal.
    is_mask: bool = False

    def spacing(self) -> int | None:
        """Returns the distance of neighbours, at least 1; None where they don't ascend, are unevenly spaced, or have
        gaps."""
        steps = np.diff(self.indices)
        if not len(steps):
            return 1
        if self.is_mask and steps[0] > 1:
            return None
        return int(steps[0]) if steps[0] > 0 and bool((steps == steps[0]).all()) else None

    def runs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
        """Returns where runs of neighbours begin and end (one past the last). None unless the elements ascend with
        gaps."""
        if self.spacing() is not None or not bool((np.diff(self.indices) > 0).all()):
            return None
        first = np.flatnonzero(np.diff(self.indices, prepend=-2) != 1)
        return self.indices[first], self.indices[np.append(first[1:], len(self.indices)) - 1] + 1


def of_index(name: str, dim: str, length: int, indexer: Any) -> Positions:
    """Finds the positions for an indexer of ``isel``: an integer, a slice, or a list of integers or of bools.

    Raises:
        IndexError: An index is outside.
        TypeError: It is none of these.
    """
    _check_form(name, dim, indexer)
    index = indexer
    if not isinstance(indexer, slice):
        # An empty list has no type of its own.
        index = np.asarray(indexer, np.int64 if np.size(indexer) == 0 else None)
        if index.dtype.kind not in "iub":
            raise TypeError(f"zarr_reader: {name}: {dim!r}: expected integers, a slice or bools, but found {indexer!r}")
    try:
        found = np.arange(length)[index]
    except IndexError as error:
        raise IndexError(f"zarr_reader: {name}: {dim!r}: {error}") from None
    return _checked(name, dim, indexer, np.asarray(found))


def of_label(dim: str, length: int, variable: Any, label: Any, method: str | None, tolerance: Any) -> Positions:
    """Finds the positions for an indexer of ``sel`` among the coordinates in ``variable`` (None: positions are the
    labels).

    Raises:
        KeyError: No element has the label.
        ValueError, TypeError: The label can't be looked up.
    """
    _check_form("sel", dim, label)
    xarray = needed("xarray", "selecting by label")
    given = label
    if variable is None:
        _check_positions(dim, label, method, tolerance)
    elif are_times(variable):
        _check_calendar(dim, label, variable)
        label = _years_as_text(label)
    numbers = xarray.DataArray(np.arange(length), dims=(dim,), coords={} if variable is None else {dim: variable})
    if isinstance(tolerance, str) and variable is not None and variable.dtype.kind == "O" and are_times(variable):
        # cftime's dates are compared with Python's durations only.
        tolerance = duration(tolerance)
    options = {} if isinstance(label, slice) or method is None else {"method": method, "tolerance": tolerance}
    try:
        found = numbers.sel({dim: label}, **options)
    except KeyError as error:
        if wrong := _no_date(dim, given, variable):
            raise ValueError(wrong) from error
        there = _shown(variable) + _hint(label, variable) + _of_years(given, variable)
        first = _first_missing(numbers, dim, label, options)
        missing = given if first is label else first
        if isinstance(missing, str):
            # Names the number that the user gave, and that was taken for a year.
            missing = next((one for one in _labels(given) if type(one) is int and _years_as_text(one) == missing), missing)
        raise KeyError(f"zarr_reader: sel: {dim!r}: {missing!r} isn't among the coordinates{there}") from error
    except (ValueError, TypeError, IndexError, NotImplementedError) as error:
        if wrong := _no_date(dim, given, variable):
            raise ValueError(wrong) from error
        if years := _of_years(given, variable):
            there = _shown(variable) + years
            raise ValueError(f"zarr_reader: sel: {dim!r}: {given!r} isn't among the coordinates{there}") from error
        # With a method, xarray can't compare dates that are text with cftime's.
        hint = "" if isinstance(label, slice) else _of_calendar(_labels(label), variable)
        said = f"; {hint}" if hint else f": {error}"
        raise ValueError(f"zarr_reader: sel: {dim!r}: {given!r} can't be looked up{said}") from error
    # For coordinates that aren't unique, and for labels of strange types. The class is looked up only after an error.
    except needed("pandas", "selecting by label").errors.InvalidIndexError as error:
        values: list[Any] = [] if variable is None else np.asarray(variable.values).tolist()
        if len(set(values)) == len(values):
            kind = type(given).__name__
            raise ValueError(
                f"zarr_reader: sel: {dim!r}: expected a label, a list of labels or a slice, but found {given!r} of type {kind}"
            ) from error
        raise ValueError(f"zarr_reader: sel: {dim!r}: the coordinates aren't unique; select by position, with isel") from error
    return _checked("sel", dim, label, np.asarray(found.values))


def are_times(variable: Any) -> bool:
    """Whether coordinates are dates, of NumPy's or cftime's types."""
    values = np.asarray(variable.values)
    return values.dtype.kind == "M" or (values.dtype.kind == "O" and values.size > 0 and hasattr(values.flat[0], "calendar"))


def _years_as_text(label: Any) -> Any:
    """Turns whole numbers into text, since years are text for xarray. On the command line 2015 is a number, as it may
    be a level."""
    if isinstance(label, slice):
        bounds = cast("slice[Any, Any, Any]", label)
        return slice(_years_as_text(bounds.start), _years_as_text(bounds.stop), bounds.step)
    if isinstance(label, list):
        return [_years_as_text(one) for one in cast("list[Any]", label)]
    return f"{label:04}" if type(label) is int and 0 <= label <= 9999 else label


def _labels(label: Any) -> list[Any]:
    """Returns all labels of an indexer: the bounds of a slice, a single label, or the labels of a list."""
    if isinstance(label, slice):
        bounds = cast("slice[Any, Any, Any]", label)
        return [one for one in (bounds.start, bounds.stop) if one is not None]
    return np.ravel(np.asarray(label, object)).tolist() if np.ndim(label) else [label]


def _check_positions(dim: str, label: Any, method: Any, tolerance: Any) -> None:
    """Raises ValueError for labels that aren't positions, where a dimension has no coordinates."""
    found = next((one for one in _labels(label) if not isinstance(one, Integral | np.bool_)), None)
    # Slices have no method, whatever the other labels have.
    if found is None and (isinstance(label, slice) or (method is None and tolerance is None)):
        return
    wrong = f"{found!r}" if found is not None else "method" if method is not None else "tolerance"
    raise ValueError(
        f"zarr_reader: sel: {dim!r}: there are no coordinates along it (no array {dim!r} of one dimension beside the arrays, or in "
        f"a group around them), so that its labels are positions, but found {wrong}; select by position, with isel"
    )


def _check_calendar(dim: str, label: Any, variable: Any) -> None:
    """Raises TypeError for dates of cftime's where coordinates are NumPy's."""
    if np.asarray(variable.values).dtype.kind != "M":
        return
    for one in _labels(label):
        if type(one).__module__.startswith("cftime"):
            raise TypeError(
                f"zarr_reader: sel: {dim!r}: expected dates as text or numpy.datetime64, since the coordinates are of the standard "
                f"calendar, but found {one!r}; write {one.isoformat()!r}"
            )


def duration(text: str) -> Any:
    """Returns a duration such as ``"6h"`` as Python's.

    Raises:
        ValueError: It is none.
    """
    try:
        return needed("pandas", "selecting by label").Timedelta(text).to_pytimedelta()
    except ValueError as error:
        raise ValueError(f"zarr_reader: tolerance: expected a duration such as '6h' or '2D', but found {text!r}") from error


def _check_form(name: str, dim: str, indexer: Any) -> None:
    if isinstance(indexer, Set | Mapping | Iterator | ValuesView):
        kind = type(cast(object, indexer)).__name__
        raise TypeError(
            f"zarr_reader: {name}: {dim!r}: expected a label, a list or a slice, but found a {kind}, which isn't a list; write "
            + (repr(sorted(cast("Set[Any]", indexer), key=repr)) if isinstance(indexer, Set) else "list(...)")
        )
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
    """Returns the first label of a list that no element has; if it isn't a list, the label itself."""
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


def _no_date(dim: str, label: Any, variable: Any) -> str:
    """Returns the message for the first label, or bound of a slice, that is text but not a date of NumPy's; empty if
    there is none."""
    if variable is None or np.asarray(variable.values).dtype.kind != "M":
        return ""
    for text in _labels(label):
        if isinstance(text, str):
            try:
                needed("pandas", "selecting by label").Timestamp(text)
            except ValueError:
                right = "'2020', '2020-01', '2020-01-31' or '2020-01-31T06:00'"
                return f"zarr_reader: sel: {dim!r}: {text!r} isn't a date; write {right}"
    return ""


def _of_years(label: Any, variable: Any) -> str:
    """Returns the end of a message about numbers where coordinates are dates."""
    if variable is None or not are_times(variable) or not any(isinstance(one, Integral) for one in _labels(label)):
        return ""
    return "; a number is a year here, and positions are for isel"


def _hint(label: Any, variable: Any) -> str:
    """Returns the end of a message about text, where coordinates are numbers, or dates that may be text only outside of
    lists."""
    of_calendar = _of_calendar(_labels(label), variable) if np.ndim(label) else ""
    if of_calendar:
        return f"; {of_calendar}"
    is_text = any(isinstance(one, str) for one in _labels(label))
    if isinstance(label, slice) and is_text and variable is not None and np.asarray(variable.values).dtype.kind == "M":
        return "; where dates don't ascend, bounds are numpy.datetime64, not text"
    if variable is None or not isinstance(label, str) or np.asarray(variable.values).dtype.kind not in "iuf":
        return ""
    try:
        return f"; they are numbers: write {int(label) if label.strip('+-').isdigit() else float(label)} instead of {label!r}"
    except ValueError:
        return "; they are numbers, and the label is text"


def _of_calendar(labels: Sequence[Any], variable: Any) -> str:
    """Returns what to write instead of text for dates of cftime's, in lists and with a method; empty for other
    coordinates."""
    if variable is None or not variable.size or not any(isinstance(one, str) for one in labels):
        return ""
    date = np.asarray(variable.values)[0]
    if not type(date).__module__.startswith("cftime"):
        return ""
    example = f"cftime.{type(date).__name__}({date.year}, {date.month}, {date.day}, {date.hour})"
    return f"in lists and with a method dates of this calendar aren't text: write {example}"


def _shown(variable: Any) -> str:
    """Returns the end of a message that lists some of the coordinates."""
    if variable is None:
        return ""
    found: npt.NDArray[Any] = np.asarray(variable.values)
    values = list(found)
    if len(values) <= _SHOWN:
        return f": {', '.join(shown(values))}"
    *first, last = shown([*values[:4], values[-1]])
    return f": {', '.join(first)}, ..., {last}"


def shown(values: Sequence[Any]) -> list[str]:
    """Formats coordinates for messages: dates as days, minutes or seconds, whichever is the coarsest that is exact for
    all."""
    if not all(isinstance(value, np.datetime64) for value in values):
        return [str(value) for value in values]
    dates: npt.NDArray[np.datetime64] = np.array(values)
    coarser = [dates.astype(f"datetime64[{unit}]") for unit in ("D", "m", "s")]
    return [str(date) for date in next((one for one in coarser if (one == dates).all()), dates)]
