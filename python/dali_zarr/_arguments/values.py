"""Checks values of arguments. It refuses values that DALI would convert silently, or refuse without naming the
argument."""

import operator
import os
import re
import reprlib
from collections.abc import Mapping
from types import NoneType
from typing import Any, SupportsFloat, SupportsIndex, cast

from . import names, paths
from .types import ReaderArguments

# Arguments that are numbers of bytes, or text such as "10GB".
BYTES = frozenset(name for name, hint in ReaderArguments.__annotations__.items() if "Bytes" in hint.__forward_arg__)
# DALI's types for lists of integers. It has lists of 64-bit integers since 2.4.
_INTEGERS = ("_INT64_VEC", "_INT32_VEC")
# Arguments with values of any type, which are checked where they are used, and what others can have besides lists and
# dictionaries. Secrets among options aren't shown.
_ANY = frozenset({"align", "dtype", "sel", "isel", "method", "tolerance", "storage_options"})
_PLAIN: Any = (str, SupportsFloat, SupportsIndex, os.PathLike, slice, range, type, NoneType)
# What is taken for text.
_TEXT: Any = (str, os.PathLike)
_UNITS = {"B": 1} | {f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)} | {f"{p}IB": 1024**i for i, p in enumerate("KMGT", 1)}


def checked(name: str, value: Any) -> Any:
    """Returns the value as the operator takes it.

    Raises:
        TypeError, ValueError: The argument can't have this value; the message says which it can have.
    """
    if value is None:
        return None
    if name in BYTES and isinstance(value, str):
        value = byte_count(f"zarr_reader: {name}", value)
    if name in names.of_type("INT64"):
        check_integer(name, value)
    elif name in names.of_type(*_INTEGERS):
        for item in items(value):
            check_integer(name, item)
    elif name in names.of_type("STRING"):
        if not isinstance(value, _TEXT):
            # It may be a long array.
            raise TypeError(f"zarr_reader: {name}: expected text, found {reprlib.repr(value)}")
    elif name in names.of_type("BOOL"):
        if not isinstance(value, bool):
            raise TypeError(f"zarr_reader: {name}: expected True or False, found {value!r}")
    elif isinstance(value, type) and name != "dtype":
        raise TypeError(f"zarr_reader: {name}: expected a value, found {value}")
    return value


def check_integer(name: str, item: Any) -> None:
    """Raises TypeError or ValueError for what isn't a whole number of 64 bits."""
    try:
        number = operator.index(item)
    except TypeError:
        sizes = " or sizes such as '10GB' or '512MiB'" if name in BYTES else ""
        raise TypeError(f"zarr_reader: {name}: expected integers{sizes}, found {item!r}") from None
    if isinstance(item, bool):
        raise TypeError(f"zarr_reader: {name}: expected integers, found {item!r}")
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"zarr_reader: {name}: expected an integer of 64 bits, found {number}")


def byte_count(name: str, text: str) -> int:
    """Converts text such as ``"10GB"`` to a number of bytes. ``name`` begins the message.

    Raises:
        ValueError: The text isn't a number of bytes.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].upper() or "B") if match else None
    if match is None or unit is None:
        raise ValueError(f"{name}: expected a number of bytes, such as '10GB' or '512MiB', found {text!r}")
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def precise(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the floating-point arguments as text that keeps all their bits: DALI's have single precision, and JSON
    has no NaN."""
    given = {name: value for name, value in arguments.items() if value is not None and not isinstance(value, Mapping)}
    one = {name: text_of(name, given[name]) for name in names.of_type("FLOAT") & given.keys()}
    return one | {name: [text_of(name, v) for v in items(given[name])] for name in names.of_type("_FLOAT_VEC") & given.keys()}


def wide(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the lists with integers of more than 32 bits, which DALI before 2.4 doesn't take."""
    named = names.of_type(*_INTEGERS) & arguments.keys()
    # Lists with other items don't go to DALI's types anyway (:func:`.by_name.beyond_dali`).
    lists = {name: items(arguments[name]) for name in named}
    return {
        name: values for name, values in lists.items()
        if all(isinstance(value, int) for value in values) and any(not -(2**31) <= value < 2**31 for value in values)
    }


def text_of(name: str, value: Any) -> str:
    try:
        return repr(float(value))
    except (ValueError, TypeError) as error:
        raise TypeError(f"zarr_reader: {name}: expected numbers, found {value!r}") from error


def items(value: Any) -> list[Any]:
    """Returns the items of a list or tuple; a single value becomes a list of it."""
    return list(cast("list[Any] | tuple[Any, ...]", value)) if isinstance(value, list | tuple) else [value]


def is_file(value: Any) -> bool:
    """Whether a value of ``mean`` or ``stddev`` is a file's name, not numbers (which may be text)."""
    if isinstance(value, os.PathLike):
        return True
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False


def path(value: Any) -> str | list[str]:
    """Returns one store or several as text: absolute, with the home directory for ``~``."""
    if isinstance(value, str | os.PathLike | bytes):
        return paths.absolute(expanded(value))
    listed = items(value)
    if isinstance(value, list | tuple) and all(isinstance(p, str | bytes | os.PathLike) for p in listed):
        return [paths.absolute(expanded(p)) for p in listed]
    wrong = next((one for one in listed if not isinstance(one, str | bytes | os.PathLike)), None)
    # Dictionaries and objects may hold secrets.
    shown = repr(wrong) if isinstance(wrong, int | float | NoneType) else type(wrong).__name__
    raise TypeError(f"zarr_reader: path: expected a path or a list of paths, found {shown}")


def expanded(value: Any) -> str:
    """Returns a path as text, with the home directory for ``~``."""
    return os.path.expanduser(os.fsdecode(value))


def check_text(name: str, value: Any) -> None:
    """Raises ValueError if any part of an argument is text that UTF-8 can't encode, and TypeError if it is neither text
    nor a number nor the like: DALI and JSON can't carry it."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            # Values of options aren't repeated: they may be secrets.
            shown = "text" if name == "storage_options" else repr(paths.shown(value))
            raise ValueError(
                f"zarr_reader: {name}: expected text that UTF-8 can encode, but found {shown} with the surrogate "
                f"U+{ord(value[error.start]):04X} at position {error.start}; a file whose name isn't UTF-8 has to be renamed"
            ) from None
    elif isinstance(value, Mapping):
        for item in cast(Mapping[Any, Any], value).items():
            check_text(name, item)
    elif isinstance(value, list | tuple):
        listed = items(value)
        for item in listed if set(map(type, listed)) - {int, float} else ():
            check_text(name, item)
    elif name not in _ANY and not isinstance(value, _PLAIN) and (name != "pick" or isinstance(value, bytes)):
        found = reprlib.repr(value)
        raise TypeError(f"zarr_reader: {name}: expected numbers, text, or lists or dictionaries of them, found {found}")
