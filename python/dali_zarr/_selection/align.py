"""``align``: arrays of another rate beside the others. Six-hourly fields beside hourly ones, a climatology beside dates.

Labels of both are looked up when a reader is opened. The result is the hidden argument ``_align``: for each element along
the first of ``dims`` the element of the aligned array that belongs to it. It may have entries of the other arrays already, see
:mod:`.absent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .._arguments import names
from .._hints import nearest
from .._log import log
from . import cycles, interpolated
from .axes import ALIGN, Axes
from .lookup import are_times, duration
from .stores import needed

METHODS = ("exact", "previous", "nearest", "linear", "cyclic")
# The methods as pandas names them.
_OF_PANDAS = {"exact": None, "previous": "pad", "nearest": "nearest"}
_KEYS = ("method", "tolerance", "dim")

Elements = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Asked:
    """What the user asked for one output."""

    output: str
    method: str
    tolerance: Any = None
    # The dimension of the array that takes the place of the first of dims, where it has another name.
    dim: str | None = None


def resolved(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments with ``_align`` instead of ``align``, and without a ``tolerance`` that was for it.

    Raises:
        ValueError, TypeError: The alignment is none, or labels can't be looked up.
        ImportError: A package that labels need isn't installed.
    """
    found = dict(arguments)
    asked = _asked(found.pop("align"), found)
    if not asked:
        return found
    if found.get("method") is None:
        found.pop("tolerance", None)
    arrays = arrays_of(found)
    _check_outputs(arrays, asked)
    if found.get("concat") == "samples" and len(found.get("path") or []) > 1 and not isinstance(found.get("path"), str):
        raise ValueError(
            "zarr_reader: align: expected one store, or stores joined along the first of dims, but found concat='samples' with "
            "several; use one reader for each store"
        )
    if any(found.get(name) for name in ("ragged", "ragged_ends")):
        raise ValueError("zarr_reader: align: expected none with ragged or ragged_ends, whose rows have no labels")
    if found.get("groups"):
        raise ValueError("zarr_reader: align: expected none with groups, whose samples are cut from each group on its own")
    others = {output: name for output, name in arrays.items() if output not in asked}
    if not others:
        raise ValueError(
            "zarr_reader: align: expected an array to which the others are aligned, but found all of them in align; leave out the "
            "one whose elements samples start at"
        )
    own: Any = found.get(ALIGN) or {}
    axes = Axes.of_reader({**of_arrays(found, others), ALIGN: own})
    told = {one.output: _aligned(axes, found, one, arrays[one.output]) for one in asked.values()}
    return {**found, ALIGN: {**own, **told}}


def _asked(given: Any, arguments: Mapping[str, Any]) -> dict[str, _Asked]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(
            f"zarr_reader: align: expected a dictionary from outputs to one of {', '.join(METHODS)}, such as "
            f"{{'sst': 'previous'}}, but found {given!r}"
        )
    common = arguments.get("tolerance") if arguments.get("method") is None else None
    found: dict[str, _Asked] = {}
    for output, how in cast("Mapping[Any, Any]", given).items():
        options = cast("Mapping[Any, Any]", how) if isinstance(how, Mapping) else {"method": how}
        unknown = next((key for key in options if key not in _KEYS), None)
        if unknown is not None:
            raise ValueError(f"zarr_reader: align: {output!r}: expected {', '.join(_KEYS)}, but found {unknown!r}")
        method = options.get("method")
        if method not in METHODS:
            like = nearest(str(method), METHODS)
            hint = f"; did you mean {like}?" if like else ""
            raise ValueError(f"zarr_reader: align: {output!r}: expected one of {', '.join(METHODS)}, but found {method!r}{hint}")
        tolerance = options.get("tolerance", common)
        if tolerance is not None and method not in ("previous", "nearest", "linear"):
            if "tolerance" in options:
                raise ValueError(
                    f"zarr_reader: align: {output!r}: expected tolerance with 'previous', 'nearest' or 'linear' only, but found it "
                    f"with {method!r}"
                )
            tolerance = None
        found[str(output)] = _Asked(str(output), method, tolerance, options.get("dim"))
    return found


def arrays_of(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Returns the arrays by output."""
    given: Any = arguments.get("arrays") or []
    listed = [given] if isinstance(given, str) else given
    is_named = isinstance(listed, Mapping)
    return dict(cast("Mapping[str, str]", listed)) if is_named else {str(name): str(name) for name in listed}


def _check_outputs(arrays: Mapping[str, str], asked: Mapping[str, _Asked]) -> None:
    """Raises ValueError if an output is aligned that isn't there."""
    for output in asked:
        if output not in arrays:
            like = nearest(output, arrays)
            hint = f"; did you mean {like}?" if like else ""
            there = ", ".join(arrays) or "none, since arrays isn't given"
            raise ValueError(f"zarr_reader: align: there is no output {output!r}; the outputs are {there}{hint}")


def of_arrays(arguments: Mapping[str, Any], arrays: Mapping[str, str]) -> dict[str, Any]:
    """Returns arguments that read these arrays only."""
    found = {name: value for name, value in arguments.items() if name not in ("align", ALIGN)}
    found["arrays"] = dict(arrays)
    if all(names.is_location(name) for name in arrays.values()):
        found.pop("path", None)
    return found


def _aligned(axes: Axes, arguments: Mapping[str, Any], asked: _Asked, array: str) -> dict[str, Any]:
    first = axes.dims[0]
    places = {name: arguments[name] for name in ("path", "storage_options") if arguments.get(name) is not None}
    # A joined dimension has the same name in all stores.
    own = Axes.of_reader(of_arrays(places | {"concat": "dims"}, {asked.output: array}))
    dims = own.arrays[0].dims
    dim = asked.dim if asked.dim is not None else first if first in dims else next(iter(dims), None)
    if dim not in dims:
        there = ", ".join(dims) if dims else "none"
        raise ValueError(
            f"zarr_reader: align: {asked.output!r}: expected a dimension of array {array!r} ({there}), but found "
            f"{'none' if dim is None else repr(dim)}; leave it out of align: without dimensions it is the same for all samples"
        )
    own.dims = [dim]
    # Only along the first of dims stores are joined. Of an array with another dimension, the first store's is read.
    is_joined = own.is_joined and dim == first
    length = sum(own.lengths(dim)) if is_joined else own.lengths(dim)[0]
    coordinates = own.joined() if is_joined else own.variable(dim, 0)
    there = axes.joined() if axes.is_joined else axes.variable(first, 0)
    if there is None:
        raise ValueError(
            f"zarr_reader: align: expected coordinates along {first!r}, with which {asked.output!r} is aligned, but found none "
            f"(no array {first!r} of one dimension beside the arrays, or in a group around them)"
        )
    if asked.method == "cyclic":
        elements = cycles.elements(asked.output, first, there, dim, coordinates, length)
        _say(asked, elements)
        return {"dim": dim, "elements": elements.tolist()}
    where = f"zarr_reader: align: {asked.output!r}"
    _check_labels(where, first, there, dim, coordinates)
    if asked.method == "linear":
        pairs = interpolated.pairs(where, there, dim, coordinates, asked.tolerance)
        _say(asked, pairs.elements)
        return {"dim": dim, **{name: of.tolist() for name, of in pairs._asdict().items()}}
    elements = _looked_up(where, asked, there, dim, coordinates)
    _say(asked, elements)
    return {"dim": dim, "elements": elements.tolist()}


def _check_labels(where: str, first: str, there: Any, dim: str, coordinates: Any) -> None:
    """Raises ValueError if labels of both sides can't be compared."""
    if coordinates is None:
        raise ValueError(
            f"{where}: expected coordinates along {dim!r} of the aligned array, but found none (no array {dim!r} of one dimension "
            "beside it, or in a group around it)"
        )
    if are_times(there) != are_times(coordinates) or (are_times(there) and there.dtype.kind != coordinates.dtype.kind):
        raise ValueError(
            f"{where}: expected labels of one kind and calendar, but found {there.dtype} along {first!r} and "
            f"{coordinates.dtype} along {dim!r} of the aligned array"
        )


def _looked_up(where: str, asked: _Asked, there: Any, dim: str, coordinates: Any) -> Elements:
    """Returns the element for each label of ``there``, -1 where there is none."""
    pandas = needed("pandas", "align")
    index, labels = coordinates.to_index(), there.to_index()
    if not index.is_unique:
        raise ValueError(f"{where}: expected each label along {dim!r} once, but found some several times")
    order: Elements | None = None
    if not index.is_monotonic_increasing:
        order = np.argsort(np.asarray(index), kind="stable")
        index = index[order]
    tolerance = asked.tolerance
    if isinstance(tolerance, str) and are_times(there):
        tolerance = duration(tolerance) if there.dtype.kind == "O" else pandas.Timedelta(duration(tolerance))
    options = {} if tolerance is None else {"tolerance": tolerance}
    try:
        found = np.asarray(index.get_indexer(labels, method=_OF_PANDAS[asked.method], **options), np.int64)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise ValueError(f"{where}: the labels can't be looked up: {error}") from error
    return found if order is None else np.where(found >= 0, order[found], -1)


def _say(asked: _Asked, elements: Elements) -> None:
    without = int((elements < 0).sum())
    if without == len(elements):
        raise ValueError(
            f"zarr_reader: align: {asked.output!r}: expected an element for some of the {len(elements)} labels, but found none; "
            "give a larger tolerance, or another method"
        )
    if without:
        log.warning(
            "align: %r: none of its elements belongs to %d of %d labels (%s); samples that read them are left out",
            asked.output, without, len(elements), asked.method,
        )
