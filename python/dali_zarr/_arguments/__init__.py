"""What Python takes beyond the operator's own arguments, turned into these: paths as objects, NumPy's arrays, dictionaries,
sizes such as ``"10GB"``, types by any name, files of statistics, and numbers with
double precision, which DALI's floating-point arguments lack."""

from collections.abc import Mapping
from typing import Any

from .. import _native
from .._selection import select
from .._statistics import files as statistics_files
from . import dtypes, names, options, pick, values

__all__ = ["array_names", "of_operator", "of_places", "of_spec"]


def of_operator(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The operator's arguments; those that came out of here come out the same.

    Raises:
        TypeError, ValueError, IndexError: An argument has a value that it can't have.
    """
    found = _common(arguments)
    if found.get("dtype") is not None:
        found["dtype"] = dtypes.to_dali(found["dtype"])
    return found | {f"_{name}": text for name, text in values.precise(found).items()}


def of_spec(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same for the library's own functions, which take JSON and have names for types.

    Raises:
        TypeError, ValueError, IndexError: As :func:`of_operator`, or an argument isn't known.
    """
    names.check(arguments)
    found = {name: value for name, value in _common(arguments).items() if value is not None}
    if "dtype" in found:
        found["dtype"] = dtypes.name_of(found["dtype"])
    return found | values.precise(found)


def of_places(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments, in the operator's form, on which dimensions and coordinates depend."""
    given = ("path", "arrays", "storage_options", "dims")
    return _common({name: arguments[name] for name in given if arguments.get(name) is not None})


def _plain(value: Any) -> Any:
    """Python's lists and numbers for arrays of NumPy and others."""
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, type) else value


def _common(arguments: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("dtype", *select.NAMES)
    found = {name: _plain(value) if name not in kept else value for name, value in arguments.items()}
    if "path" in found:
        found["path"] = values.path(found["path"])
    if found.get("cache_dir") is not None:
        found["cache_dir"] = values.expanded(found["cache_dir"])
    for name, value in found.items():
        values.check_text(name, value)
    found = {name: values.checked(name, value) for name, value in found.items()}
    if isinstance(found.get("storage_options"), Mapping):
        found["storage_options"] = options.to_strings(found["storage_options"])
    if any(found.get(name) is not None for name in select.NAMES):
        found = select.resolved(found)
    if isinstance(found.get("pick"), Mapping):
        found["pick"] = pick.to_strings(found)
    for name in ("mean", "stddev"):
        if statistics_files.is_file(found.get(name)):
            found[name] = statistics_files.values(name, found[name], found)
    return found


def array_names(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the arrays that the operator reads: as given, or the only one that the store has.

    Raises:
        ValueError: The store has several, or can't be read.
    """
    given = arguments.get("arrays")
    if given:
        return (given,) if isinstance(given, str) else tuple(given)
    places = {name: arguments[name] for name in ("path", "storage_options", "dims") if arguments.get(name) is not None}
    return tuple(array["name"] for array in _native.explain(places)["arrays"])
