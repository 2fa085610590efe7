"""DALI's dynamic mode (``nvidia.dali.experimental.dynamic``).

When the dynamic mode is imported, it makes a class for each operator that DALI knows then. If that happened before the
plugin was loaded, this module makes the class of this operator, with DALI's own functions. DALI gives the help text
only to the constructor; here the class gets it too, and the constructor names arguments that it doesn't take.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import _arguments, _calls, _dali, _handles
from ._arguments import names
from ._hints import did_you_mean
from ._loading import agreement

_NAME = "dynamic"
_MODULE = f"nvidia.dali.experimental.{_NAME}"


class _Parent(ModuleType):
    """Class of the package around the dynamic mode. Python sets an attribute of the package when the dynamic mode has
    been imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == _NAME:
            _complete(value)


def add_operator() -> None:
    """Makes ``dynamic.readers.Zarr`` exist, if the dynamic mode is in use already."""
    dynamic = sys.modules.get(_MODULE)
    if dynamic is None:
        _dali.module("experimental").__class__ = _Parent
        return
    if not hasattr(getattr(dynamic, "readers", None), "Zarr"):
        operator = _dali.module("experimental.dynamic._op_builder").build_operator_class(_dali.schema())
        _dali.module("experimental.dynamic._ops")._all_ops.append(operator)
    _complete(dynamic)


def _complete(dynamic: Any) -> None:
    reader = getattr(getattr(dynamic, "readers", None), "Zarr", None)
    if reader is not None and not reader.__doc__:
        reader.__doc__ = reader.__init__.__doc__
        reader.__init__ = _checked(reader.__init__)
        reader.next_epoch = _of_one_process(reader.next_epoch)


def _of_one_process(next_epoch: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the method that begins an epoch, so that it is an error in a forked child, and so are its batches."""

    @functools.wraps(next_epoch)
    def begun(reader: Any, *positional: Any, **arguments: Any) -> _calls.Epoch:
        return _calls.Epoch(reader._op_backend, next_epoch(reader, *positional, **arguments))

    return begun


def _checked(init: Callable[..., None]) -> Callable[..., None]:
    """Wraps a constructor, so that an argument that it doesn't have raises TypeError with a message of the reader's
    own. The operator is made when the first epoch begins, but relative paths mean what they mean now. Seeds are compared
    with those of other ranks."""
    known = inspect.signature(init).parameters.keys() - {"self"}

    @functools.wraps(init)
    def checked(*positional: Any, **arguments: Any) -> None:
        arguments = _handles.translated(arguments)
        for name in arguments.keys() - known:
            if name in names.SELECTION:
                instead = "the dynamic mode doesn't take it; give positions with roi_start, roi_end and pick"
            else:
                otherwise = "see help(dali_zarr.zarr_reader) for the arguments that there are"
                instead = f"there is no such argument; {did_you_mean(name, known, otherwise)}"
            raise TypeError(f"zarr_reader: {name}: {instead}")
        agreement.compare_operators(arguments)
        init(*positional, **_arguments.anchored(arguments))

    return checked
