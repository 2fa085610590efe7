"""Has DALI's functions and classes of the operator take what :mod:`._arguments` knows."""

import functools
from collections.abc import Callable
from typing import Any

from . import _arguments, _dali
from ._arguments import names


def _wrapped(function: Callable[..., Any], check_names: bool = False) -> Callable[..., Any]:
    if getattr(function, "_dali_zarr", False):
        return function

    @functools.wraps(function)
    def wrapper(*positional: Any, **arguments: Any) -> Any:
        if check_names:
            names.check(arguments)
        return function(*positional, **_arguments.of_operator(arguments))

    wrapper.__dict__["_dali_zarr"] = True
    return wrapper


def wrap_functions() -> None:
    """Wraps the functions and classes that DALI has made of the operator. Does nothing the second time."""
    fn, ops = _dali.module("fn"), _dali.module("ops")
    for module, name in ((fn, "zarr_reader"), (fn.readers, "zarr")):
        setattr(module, name, _wrapped(getattr(module, name), check_names=True))
    # The dynamic mode gives these arguments of its own.
    for reader in (ops.ZarrReader, ops.readers.Zarr):
        reader.__init__ = _wrapped(reader.__init__)
