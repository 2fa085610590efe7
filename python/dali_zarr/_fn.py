"""What ``fn.zarr_reader`` takes beyond the operator's own arguments: paths as objects, and ``pick`` as a dictionary."""

import functools
import os
from collections.abc import Callable
from typing import Any

from . import _pick


def _arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    arguments = dict(arguments)
    path = arguments.get("path")
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    elif isinstance(path, list | tuple):
        path = [os.fspath(p) for p in path]
    if path is not None:
        arguments["path"] = path
    if isinstance(arguments.get("pick"), dict):
        arguments["pick"] = _pick.to_strings(
            arguments["pick"], path=path, arrays=arguments.get("arrays"), dims=arguments.get("dims")
        )
    return arguments


def _wrap(function: Callable) -> Callable:
    if getattr(function, "_dali_zarr", False):
        return function

    @functools.wraps(function)
    def wrapper(*inputs, **arguments):
        return function(*inputs, **_arguments(arguments))

    wrapper._dali_zarr = True
    return wrapper


def wrap_functions() -> None:
    """Wraps the two functions that DALI has made of the operator."""
    from nvidia.dali import fn

    fn.zarr_reader = _wrap(fn.zarr_reader)
    fn.readers.zarr = _wrap(fn.readers.zarr)
