"""What Python takes beyond the operator's own arguments: paths as objects, NumPy's arrays, `pick` as a dictionary, and
numbers with double precision, which DALI's floating-point arguments lack."""

import functools
import os
from collections.abc import Callable
from typing import Any

from . import _pick

_PRECISE = ("fill_value", "mean", "stddev")


def _arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """The operator's arguments; those that came out of here come out the same."""
    for name, value in arguments.items():
        if isinstance(value, type):
            raise TypeError(f"zarr_reader: {name}: expected a value, found {value}; DALI's types are in nvidia.dali.types")
    arguments = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in arguments.items()}
    path = arguments.get("path")
    if isinstance(path, os.PathLike | bytes):
        path = os.fsdecode(path)
    elif isinstance(path, list | tuple):
        path = [os.fsdecode(p) for p in path]
    if path is not None:
        arguments["path"] = path
    if isinstance(arguments.get("pick"), dict):
        arguments["pick"] = _pick.to_strings(
            arguments["pick"], path=path, arrays=arguments.get("arrays"), dims=arguments.get("dims")
        )
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
    for operator in (ops.ZarrReader, ops.readers.Zarr):
        operator.__init__ = _wrap(operator.__init__)
