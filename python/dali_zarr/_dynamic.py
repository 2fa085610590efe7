"""DALI's dynamic mode (``nvidia.dali.experimental.dynamic``).

It makes its classes of the operators that are known when it is imported. Where that has happened before the plugin was
loaded, the class of this operator is made here, with the same functions.
"""

import sys

from . import _dali

_MODULE = "nvidia.dali.experimental.dynamic"


def add_operator() -> None:
    """Makes ``dynamic.readers.Zarr`` exist, if the dynamic mode is in use already."""
    dynamic = sys.modules.get(_MODULE)
    readers = getattr(dynamic, "readers", None)
    if dynamic is None or hasattr(readers, "Zarr"):
        return
    operator = _dali.module("experimental.dynamic._op_builder").build_operator_class(_dali.schema())
    _dali.module("experimental.dynamic._ops")._all_ops.append(operator)
