"""What Python takes beyond the operator's own arguments: paths as objects, NumPy's arrays, dictionaries, and
numbers with double precision, which DALI's floating-point arguments lack."""

import functools
import operator
import os
from collections.abc import Callable
from typing import Any

from . import _pick

_PRECISE = ("fill_value", "mean", "stddev")
_INTEGERS = (
    *("window", "step", "stride", "offsets", "roi_start", "roi_end", "seed", "shard_id", "num_shards"),
    *("breaks", "initial_fill", "cache_size", "cache_dir_size"),
    *("prefetch_queue_depth", "device_memory_limit", "host_memory_limit", "io_threads", "io_concurrency", "decode_threads"),
)


def _check(name: str, value: Any) -> None:
    """Raises TypeError for what DALI would convert silently, or refuse without naming the argument."""
    if isinstance(value, type):
        raise TypeError(f"zarr_reader: {name}: expected a value, found {value}; DALI's types are in nvidia.dali.types")
    if name == "dtype" and isinstance(value, str):
        raise TypeError(f"zarr_reader: dtype: expected one of DALI's types, such as types.FLOAT, found {value!r}")
    if name in _INTEGERS and value is not None:
        for item in value if isinstance(value, list | tuple) else [value]:
            try:
                number = operator.index(item)
            except TypeError:
                raise TypeError(f"zarr_reader: {name}: expected integers, found {item!r}") from None
            if not -(2**63) <= number < 2**63:
                raise ValueError(f"zarr_reader: {name}: expected an integer of 64 bits, found {number}")


def check_text(name: str, value: Any) -> None:
    """Raises ValueError for text that has no encoding in UTF-8, in any part of an argument: DALI and JSON can't carry it."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            # Values of options aren't repeated: they may be secrets.
            shown = "text" if name == "storage_options" else repr(value)
            raise ValueError(
                f"zarr_reader: {name}: expected text that UTF-8 can encode, but found {shown} with the surrogate "
                f"U+{ord(value[error.start]):04X} at position {error.start}; a file whose name isn't UTF-8 has to be renamed"
            ) from None
    elif isinstance(value, dict):
        for item in value.items():
            check_text(name, item)
    elif isinstance(value, list | tuple):
        for item in value:
            check_text(name, item)


# Options that are lists, in which None stands for nothing.
_LISTS = ("snapshot_id", "virtual_chunks")


def _option(name: Any, value: Any) -> str:
    if name in _LISTS and isinstance(value, list | tuple):
        return ",".join("" if item is None else _option(name, item) for item in value)
    if not isinstance(name, str) or not isinstance(value, str | int | float):
        # The value isn't repeated: it may be a secret.
        raise TypeError(
            f"zarr_reader: storage_options: {name!r}: expected a string, a number or a bool, found {type(value).__name__}"
        )
    return str(value).lower() if isinstance(value, bool) else str(value)


def _arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """The operator's arguments; those that came out of here come out the same."""
    arguments = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in arguments.items()}
    for name, value in arguments.items():
        _check(name, value)
    path = arguments.get("path")
    if isinstance(path, os.PathLike | bytes):
        path = os.fsdecode(path)
    elif isinstance(path, list | tuple) and all(isinstance(p, str | bytes | os.PathLike) for p in path):
        path = [os.fsdecode(p) for p in path]
    elif "path" in arguments and not isinstance(path, str):
        raise TypeError(f"zarr_reader: path: expected a path or a list of paths, found {path!r}")
    if path is not None:
        arguments["path"] = path
    if isinstance(arguments.get("cache_dir"), os.PathLike | bytes):
        arguments["cache_dir"] = os.fsdecode(arguments["cache_dir"])
    for name, value in arguments.items():
        check_text(name, value)
    if isinstance(arguments.get("storage_options"), dict):
        arguments["storage_options"] = [f"{k}={_option(k, v)}" for k, v in arguments["storage_options"].items()]
    if isinstance(arguments.get("pick"), dict):
        arguments["pick"] = _pick.to_strings(arguments)
    for name in _PRECISE:
        value = arguments.get(name)
        if value is not None:
            values = value if isinstance(value, list | tuple) else [value]
            try:
                arguments["_" + name] = [repr(float(v)) for v in values]
            except ValueError as error:
                raise TypeError(f"zarr_reader: {name}: expected numbers, found {value!r}") from error
    return arguments


def _wrap(function: Callable) -> Callable:
    if getattr(function, "_dali_zarr", False):
        return function

    @functools.wraps(function)
    def wrapper(*positional, **arguments):
        return function(*positional, **_arguments(arguments))

    wrapper._dali_zarr = True
    return wrapper


def wrap_functions() -> None:
    """Wraps the functions and classes that DALI has made of the operator."""
    from nvidia.dali import fn, ops

    fn.zarr_reader = _wrap(fn.zarr_reader)
    fn.readers.zarr = _wrap(fn.readers.zarr)
    for reader in (ops.ZarrReader, ops.readers.Zarr):
        reader.__init__ = _wrap(reader.__init__)
