"""Turns what Python takes into the operator's own arguments: paths as objects, NumPy's arrays, dictionaries, sizes such
as ``"10GB"``, types by any name, files of statistics, and numbers with double precision, which DALI's floating-point
arguments lack."""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, cast

from .. import _handles, _native
from .._selection import align, filled, select
from .._selection.axes import ALIGN, ORIGINS, REGIONS
from .._statistics import files as statistics_files
from . import by_name, dtypes, names, options, paths, pick, segments, tables, values

# The operator's hidden argument: JSON of the values that the types of DALI's arguments can't express.
OTHERS = "_arguments"

# A hidden argument: "pushed" if the caller pushes the samples of each batch.
ORDER = "_order"

__all__ = ["ORDER", "array_names", "to_operator", "to_places", "to_spec", "resolved"]


def to_operator(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Converts arguments to the operator's own. Arguments that were converted before come out the same.

    Raises:
        TypeError, ValueError, IndexError: An argument has a value that it can't have.
    """
    found = resolved(arguments)
    selected = {name: found[name] for name in (ALIGN, REGIONS, ORIGINS, tables.OPENING) if name in found}
    others = by_name.beyond_dali(found) | values.precise(found) | values.wide(found) | selected
    found = {name: value for name, value in found.items() if name not in others}
    if ORDER in found:
        others["order"] = found.pop(ORDER)
    if found.get("dtype") is not None:
        found["dtype"] = dtypes.to_dali(found["dtype"])
        if found["dtype"] == dtypes.BFLOAT:
            others["dtype"] = found.pop("dtype")
    if others:
        # Some are there already if the arguments were converted before.
        found[OTHERS] = json.dumps(json.loads(found.get(OTHERS) or "{}") | others)
    return found


def to_spec(arguments: Mapping[str, Any], own: Iterable[str] = ()) -> dict[str, Any]:
    """Converts arguments for the library's own functions, which take JSON and types by name. ``own``: the arguments of
    the calling function beside the reader's.

    Raises:
        TypeError, ValueError, IndexError: As :func:`to_operator`, or an argument isn't known.
    """
    names.check(arguments, own=own)
    found = {name: value for name, value in resolved(arguments).items() if value is not None}
    if "dtype" in found and not isinstance(found["dtype"], Mapping):
        found["dtype"] = dtypes.name_of(found["dtype"])
    return found | values.precise(found)


def to_places(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments on which dimensions and coordinates depend, in the operator's form."""
    given = ("path", "arrays", "groups", "storage_options", "dims", "scale_by", "grid")
    arguments = _handles.translated(arguments)
    return resolved({name: arguments[name] for name in given if arguments.get(name) is not None})


def _plain(value: Any) -> Any:
    """Converts arrays and numbers of NumPy and others to Python's lists and numbers, in dictionaries and lists too."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        listed = values.items(value)
        # Breaks may be a million numbers.
        return listed if set(map(type, listed)) <= {int, float, str} else [_plain(item) for item in listed]
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, type) else value


def _in_line(value: Any) -> Any:
    """Returns numbers of channels in one dimension, which come as broadcasting wants them, such as (channel, 1, 1)."""
    if isinstance(value, Mapping):
        return {name: _in_line(item) for name, item in cast(Mapping[Any, Any], value).items()}
    shape = getattr(value, "shape", ())
    is_line = len(shape) > 1 and sum(n != 1 for n in shape) <= 1 and hasattr(value, "reshape")
    return value.reshape(-1) if is_line else value


def anchored(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments that :func:`resolved` accepts, with absolute paths and with tables that the library holds. Later they
    mean the same, whatever the current directory is then."""
    found = _handles.translated(arguments)
    if found.get("path") is not None:
        found["path"] = values.path(found["path"])
    if isinstance(found.get("cache_dir"), str | bytes | os.PathLike):
        found["cache_dir"] = paths.absolute(values.expanded(found["cache_dir"]))
    for name in ("ragged", "ragged_ends"):
        if isinstance(found.get(name), str | bytes | os.PathLike):
            found[name] = paths.location(values.expanded(found[name]))
    for name in ("mean", "stddev"):
        if values.is_file(found.get(name)):
            found[name] = paths.absolute(values.expanded(found[name]))
    if found.get("arrays"):
        found["arrays"] = paths.of_arrays(by_name.checked("arrays", found["arrays"]))
    return found | {name: tables.named(name, found[name], bool(found.get("path"))) for name in tables.NAMES & found.keys()}


def resolved(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Checks arguments, and replaces selections and files of statistics; dictionaries by name stay. Arguments that were
    resolved before come out the same.

    Raises:
        TypeError, ValueError, IndexError: An argument has a value that it can't have.
    """
    kept = ("dtype", "align", *tables.NAMES, *select.NAMES)
    arguments = _handles.translated(arguments)
    arguments |= {name: _in_line(arguments[name]) for name in ("mean", "stddev") if name in arguments}
    found = {name: _plain(value) if name not in kept else value for name, value in arguments.items()}
    found |= {name: by_name.spelled(found[name]) for name in ("squeeze", "transpose") if name in found}
    if found.get("path", ()) is None:
        del found["path"]
    if "path" in found:
        found["path"] = values.path(found["path"])
    if isinstance(found.get("cache_dir"), str | bytes | os.PathLike):
        found["cache_dir"] = paths.absolute(values.expanded(found["cache_dir"]))
    for name in ("ragged", "ragged_ends"):
        if isinstance(found.get(name), str | bytes | os.PathLike):
            found[name] = paths.location(values.expanded(found[name]))
    found |= {name: tables.named(name, found[name], bool(found.get("path"))) for name in tables.NAMES & found.keys()}
    if found.get("fill_missing") is not None and found["fill_missing"] != found["fill_missing"]:
        found["fill_missing"] = "nan"
    for name, value in found.items():
        values.check_text(name, value)
    of_units = by_name.LENGTHS if found.get("scale_by") else frozenset[str]()
    found = {name: (by_name.lengths if name in of_units else by_name.checked)(name, value) for name, value in found.items()}
    if found.get("arrays"):
        found["arrays"] = paths.of_arrays(found["arrays"])
    by_name.check_stack(found)
    if isinstance(found.get("storage_options"), Mapping):
        found["storage_options"] = options.to_strings(found["storage_options"], paths.of_stores(found))
    if found.get("storage_options"):
        found["storage_options"] = options.with_directory(found["storage_options"])
    if OTHERS not in found:
        # Else these are the arguments of an operator, for which dates were looked up.
        found = filled.resolved(found)
    if "align" in found:
        found = align.resolved(found)
    if any(found.get(name) is not None for name in select.NAMES):
        found = select.resolved(found)
    if isinstance(found.get("pick"), Mapping):
        found["pick"] = pick.to_strings(found)
    if isinstance(found.get("segments"), slice):
        found["segments"] = segments.of_slice(found["segments"], found)
    return statistics_files.read(found)


def array_names(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the operator's outputs, without offsets: as given, or that of the only array that the store
    has.

    Raises:
        ValueError: The store has several, or can't be read.
    """
    given = arguments.get("arrays")
    if given:
        return (given,) if isinstance(given, str) else tuple(given)
    places = {name: arguments[name] for name in ("path", "storage_options", "dims") if arguments.get(name) is not None}
    return tuple(array["output"] for array in _native.explain({**places, "missing_dates": "keep"})["arrays"])
