"""DALI's dynamic mode (``nvidia.dali.experimental.dynamic``).

It makes its classes of the operators that are known when it is imported. Where that has happened before the plugin was
loaded, the class of this operator is made here, with the same functions. DALI gives the help to constructors alone; here the class
has it too.
"""

import sys
from types import ModuleType
from typing import Any

from . import _dali

_NAME = "dynamic"
_MODULE = f"nvidia.dali.experimental.{_NAME}"


class _Parent(ModuleType):
    """The package of the dynamic mode, which Python tells when that has been imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == _NAME:
            _describe(value)


def add_operator() -> None:
    """Makes ``dynamic.readers.Zarr`` exist, if the dynamic mode is in use already."""
    dynamic = sys.modules.get(_MODULE)
    if dynamic is None:
        _dali.module("experimental").__class__ = _Parent
        return
    if not hasattr(getattr(dynamic, "readers", None), "Zarr"):
        operator = _dali.module("experimental.dynamic._op_builder").build_operator_class(_dali.schema())
        _dali.module("experimental.dynamic._ops")._all_ops.append(operator)
    _describe(dynamic)


def _describe(dynamic: Any) -> None:
    reader = getattr(getattr(dynamic, "readers", None), "Zarr", None)
    if reader is not None and not reader.__doc__:
        reader.__doc__ = reader.__init__.__doc__
