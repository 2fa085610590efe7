"""Values by name: dictionaries by dimension, by output, or by output and then by dimension."""

import math
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from . import dtypes, pick, segments, values

# Arguments with a value for each of dims.
PER_DIM = frozenset({"window", "step", "overlap", "stride", "roi_start", "roi_end", "pad_before", "pad_after"})
# Those of them that are lengths in units with ``scale_by``.
LENGTHS = frozenset({"window", "step", "overlap"})
# Arguments with dimensions for each output.
OF_DIMS = frozenset({"channels", "squeeze", "transpose"})
# Arguments with a value for each output.
PER_OUTPUT = frozenset({"mask_and_scale", "mean", "stddev", "dtype", "fill_value", "fillna"}) | OF_DIMS


def checked(name: str, value: Any) -> Any:
    """Returns an argument's value as the engine takes it, with dictionaries by name.

    Raises:
        TypeError, ValueError: It isn't one that the argument can have.
    """
    if name == "groups" and value is not None:
        return groups(value)
    if name in ("breaks", "segments") and value is not None:
        return segments.checked(name, value)
    if name in ("arrays", "dims", "random_crop", *OF_DIMS) and value is not None and not isinstance(value, Mapping):
        return _arrays(value) if name == "arrays" else dims(name, value)
    if not isinstance(value, Mapping) or name not in PER_DIM | PER_OUTPUT | {"arrays"}:
        return values.checked(name, value)
    given = {str(key): item for key, item in cast(Mapping[Any, Any], value).items()}
    if name in PER_DIM:
        return {key: checked(name, item) for key, item in given.items()}
    return {key: _of_output(name, item) for key, item in given.items()}


def lengths(name: str, value: Any) -> Any:
    """Returns lengths in units: a number, a list of numbers, or a dictionary of them by dimension or by output.

    Raises:
        TypeError, ValueError: It is none, or a number isn't finite.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {str(key): lengths(name, item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [lengths(name, item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"zarr_reader: {name}: expected lengths in units of the places (scale_by), but found {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"zarr_reader: {name}: expected lengths that are finite, but found {value!r}")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _of_output(name: str, value: Any) -> Any:
    match name:
        case "arrays":
            if not isinstance(value, str | os.PathLike):
                raise TypeError(f"zarr_reader: arrays: expected names of arrays by output, found {value!r}")
            return values.expanded(value)
        case "dtype":
            return dtypes.name_of(value)
        case "channels" | "squeeze" | "transpose":
            return dims(name, value)
        case "mask_and_scale":
            return values.checked(name, value)
        case _:
            listed = values.items(value)
            file = os.fsdecode(listed[0]) if len(listed) == 1 and values.is_file(listed[0]) else ""
            if name in ("mean", "stddev") and set("./") & set(file):
                raise TypeError(
                    f"zarr_reader: {name}: expected numbers by output, found the file {file!r}: a file is for all outputs; write "
                    f"{name}={file!r}, or the numbers themselves"
                )
            return [values.text_of(name, item) for item in listed]


def _arrays(value: Any) -> Any:
    found = values.items(value)
    wrong = [item for item in found if not isinstance(item, str | os.PathLike)]
    if wrong:
        raise TypeError(f"zarr_reader: arrays: expected names of arrays, found {wrong[0]!r}")
    return value if isinstance(value, str) else [item if isinstance(item, str) else values.expanded(item) for item in found]


def groups(value: Any) -> list[str]:
    """Returns names and patterns of groups as a list of text.

    Raises:
        TypeError: It isn't one or several of them, nor True.
        ValueError: There are none.
    """
    found: list[Any] = ["*"] if value is True else values.items(value)
    for item in found:
        if not isinstance(item, str):
            raise TypeError(f"zarr_reader: groups: expected names or patterns of groups, or True for all, found {item!r}")
    if not found:
        raise ValueError(
            "zarr_reader: groups: expected at least one name or pattern, but found none; leave it out for the store itself"
        )
    return found


def dims(name: str, value: Any) -> list[str]:
    """Returns dimensions, which are given by name or position, as text.

    Raises:
        TypeError: It isn't one or several of them.
    """
    if name == "squeeze" and isinstance(value, bool):
        return ["..."] if value else []
    found = values.items(value)
    for item in found:
        if isinstance(item, bool) or not isinstance(item, str | numbers.Integral):
            raise TypeError(f"zarr_reader: {name}: expected names or positions of dimensions, found {item!r}")
    return [str(item) for item in found]


def spelled(value: Any) -> Any:
    """Returns an order of dimensions, or a dictionary of orders, with Python's ellipsis as text."""
    if isinstance(value, Mapping):
        return {key: spelled(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [spelled(item) for item in cast("Sequence[Any]", value)]
    return "..." if value is ... else value


def check_stack(arguments: Mapping[str, Any]) -> None:
    """Raises ValueError where values of a stack are given under a name that isn't one of its arrays, such as the
    stack's own."""
    arrays = arguments.get("arrays")
    if arguments.get("stack_arrays") is not True or not arrays:
        return
    known = [arrays] if isinstance(arrays, str) else [str(name) for name in arrays]
    for name in sorted(PER_OUTPUT & arguments.keys()):
        if not isinstance(arguments[name], Mapping):
            continue
        given = cast("Mapping[str, Any]", arguments[name])
        wrong = next((key for key in given if key not in known), None)
        if wrong is not None:
            numbers = [_plain_number(one) for one in values.items(given[wrong])]
            shown = repr(numbers if len(numbers) > 1 else numbers[0])
            each = ", ".join(f"{array!r}: {shown}" for array in known)
            otherwise = "" if len(numbers) > 1 else f", or {name}={{{each}}}"
            raise ValueError(
                f"zarr_reader: {name}: expected names of the stack's arrays, {', '.join(map(repr, known))}, but found {wrong!r}; "
                f"write {name}={shown} for all of them{otherwise}"
            )


def _plain_number(value: Any) -> Any:
    """Turns text that was made of a number into the number again, without ``.0`` if it is whole."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return value
    return value if isinstance(value, bool) else int(number) if number.is_integer() else number


def beyond_dali(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments for which DALI has no type: dictionaries, and lists that may have items of several
    types."""
    given = PER_DIM | PER_OUTPUT | {"arrays"}
    found: dict[str, Any] = {name: value for name, value in arguments.items() if name in given and isinstance(value, Mapping)}
    lists = {name: value for name, value in arguments.items() if name in ("breaks", "segments") and value is not None}
    listed = LENGTHS & arguments.keys() - found.keys()
    real = {name for name in listed if any(isinstance(item, float) for item in items_of(arguments[name]))}
    picks = {"pick": arguments["pick"]} if pick.is_by_output(arguments.get("pick")) else {}
    mixed = {name for name, value in lists.items() if any(isinstance(item, str | bool) for item in values.items(value))}
    return found | picks | {name: lists[name] for name in mixed} | {name: arguments[name] for name in real}


def items_of(value: Any) -> list[Any]:
    """Returns one or several values as a list; none for None."""
    return [] if value is None else values.items(value)


def one_per_dim(name: str, value: Any, dims: list[str], default: int) -> list[int]:
    """Returns the numbers for each of ``dims`` of an argument that is the same for all outputs.

    Raises:
        ValueError: As :func:`per_dim`, or there are values by output.
    """
    found = per_dim(name, value, dims, default)
    if None not in found:
        outputs = ", ".join(map(repr, found))
        raise ValueError(f"zarr_reader: {name}: expected the same value for all outputs, but found values by output ({outputs})")
    return found[None]


def per_dim(name: str, value: Any, dims: list[str], default: int) -> dict[str | None, list[int]]:
    """Returns the numbers for each of ``dims``, by output; under the key None those of all outputs.

    Raises:
        ValueError: A list of another length, or a dimension that isn't one of ``dims``.
    """
    if isinstance(value, Mapping):
        given = cast(Mapping[str, Any], value)
        if any(isinstance(item, Mapping | list | tuple) for item in given.values()):
            return {output: one_per_dim(name, item, dims, default) for output, item in given.items()}
        unknown = next((key for key in given if key not in dims and key not in map(str, range(len(dims)))), None)
        if unknown is not None:
            raise ValueError(f'zarr_reader: {name}: expected a dimension of dims ({", ".join(dims)}), but found "{unknown}"')
        return {None: [int(given.get(dim, given.get(str(i), default))) for i, dim in enumerate(dims)]}
    listed = [] if value is None else values.items(value)
    if listed and len(listed) != len(dims):
        raise ValueError(f"zarr_reader: {name}: expected one value for each of dims ({', '.join(dims)}), found {len(listed)}")
    return {None: [int(item) for item in listed] if listed else [default] * len(dims)}
