"""Wraps DALI's functions and classes of the operator, so that they take all values that :mod:`._arguments` converts."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

from . import _arguments, _dali, _gpu, _handles
from ._arguments import names, tables, values
from ._loading import agreement


def _wrapped(function: Callable[..., Any], check_names: bool = False) -> Callable[..., Any]:
    if getattr(function, "_dali_zarr", False):
        return function

    @functools.wraps(function)
    def wrapper(*positional: Any, **arguments: Any) -> Any:
        arguments = _handles.translated(arguments)
        if check_names:
            names.check(arguments)
            if arguments.get("device") == "gpu" and (why := _gpu.why_none()):
                raise RuntimeError(f"zarr_reader: device: {why}; write device=\"cpu\", and device_id=None of the pipeline")
            agreement.compare_operators(arguments)
        given = _arguments.to_operator(arguments)
        result = function(*positional, **given)
        results: list[Any] = list(cast(Any, result)) if isinstance(result, list | tuple) else [result]
        _hold(given, *positional, *results)
        return cast(Any, result)

    wrapper.__dict__["_dali_zarr"] = True
    return wrapper


def _with_selection(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the arguments that Python takes beyond the schema to a function's signature and help, which notebooks
    complete by. A function whose signature names no arguments stays as it is."""
    signature = inspect.signature(function)
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values()):
        return function
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in sorted(names.SELECTION - signature.parameters.keys())
    ]
    if more:
        added = "\n".join(f"{one.name} : optional, default = None\n    See `dali_zarr.zarr_reader`." for one in more)
        function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n{added}\n"
        function.__dict__["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), *more])
    return function


def _hold(arguments: dict[str, Any], *results: Any) -> None:
    """Keeps the tables and credentials in an operator's arguments alive: the object that stands for the operator holds
    them. DALI keeps only their names as text, and builds the operator later."""
    options = values.items(arguments.get("storage_options") or [])
    kept = [value for value in [*arguments.values(), *options] if isinstance(value, tables.Kept)]
    for result in results if kept else ():
        # For a DataNode, the operator that it comes from, which its pipeline keeps. Other objects are operators
        # themselves.
        owner: Any = getattr(result, "source", result)
        if owner is not None:
            owner.__dict__["_dali_zarr_tables"] = kept


def wrap_functions() -> None:
    """Wraps the functions and classes that DALI has made of the operator. Does nothing the second time."""
    fn, ops = _dali.module("fn"), _dali.module("ops")
    for module, name in ((fn, "zarr_reader"), (fn.readers, "zarr")):
        setattr(module, name, _with_selection(_wrapped(getattr(module, name), check_names=True)))
    # Names aren't checked here: the dynamic mode passes arguments of its own to these classes.
    for reader in (ops.ZarrReader, ops.readers.Zarr):
        reader.__init__ = _wrapped(reader.__init__)
