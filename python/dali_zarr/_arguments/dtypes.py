"""Element types: DALI's, NumPy's, PyTorch's, JAX's and names of them, turned into DALI's or into names."""

from typing import Any

import numpy as np

from .. import _dali

# DALI's names by NumPy's, where they aren't NumPy's names in capitals.
_TO_DALI = {"float32": "FLOAT"}
# DALI lacks it. An output has its bits as uint16.
BFLOAT = "bfloat16"
_KINDS = "one of NumPy's, DALI's or PyTorch's types or its name, such as np.float32, types.FLOAT or 'float32'"


def name_of(dtype: Any) -> str:
    """Returns NumPy's name of a type, given as a type or a name of NumPy's, DALI's, PyTorch's or JAX's; or "bfloat16".

    Raises:
        TypeError: It isn't a type that the reader can deliver.
    """
    types = _dali.module("types")
    found: Any = dtype
    text = str(dtype)
    if type(dtype).__module__.split(".")[0] == "torch" or (isinstance(dtype, str) and text.startswith("torch.")):
        found = text.removeprefix("torch.")
    elif isinstance(dtype, str) and text.startswith("types."):
        found = getattr(types, text.removeprefix("types."), None)
    if str(found) == BFLOAT or BFLOAT in (getattr(found, "name", None), getattr(found, "__name__", None)):
        return BFLOAT
    try:
        if isinstance(found, types.DALIDataType):
            found = types.to_numpy_type(found)
        # NumPy takes None for float64.
        name = "" if found is None else np.dtype(found).name
    except (TypeError, KeyError, ValueError):
        name = ""
    if not hasattr(types, _TO_DALI.get(name, name.upper())):
        raise TypeError(f"zarr_reader: dtype: expected {_KINDS}, but found {dtype!r}")
    return name


def to_dali(dtype: Any) -> Any:
    """Returns DALI's type; "bfloat16" for bfloat16, which DALI lacks.

    Raises:
        TypeError: As :func:`name_of`.
    """
    types = _dali.module("types")
    # The operator itself refuses types that NumPy lacks.
    if isinstance(dtype, types.DALIDataType):
        return dtype
    name = name_of(dtype)
    return BFLOAT if name == BFLOAT else getattr(types, _TO_DALI.get(name, name.upper()))
