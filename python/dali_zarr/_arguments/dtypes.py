"""Element types: DALI's, NumPy's, PyTorch's and names of them, turned into DALI's or into names."""

from typing import Any

import numpy as np

from .. import _dali

# DALI's names by NumPy's, where they aren't NumPy's names in capitals.
_TO_DALI = {"float32": "FLOAT"}
_KINDS = "one of NumPy's, DALI's or PyTorch's types or its name, such as np.float32, types.FLOAT or 'float32'"


def name_of(dtype: Any) -> str:
    """Returns NumPy's name of a type, given as a type or a name of NumPy's, DALI's or PyTorch's.

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
    try:
        if isinstance(found, types.DALIDataType):
            found = types.to_numpy_type(found)
        # NumPy takes None for float64.
        name = "" if found is None else np.dtype(found).name
    except (TypeError, KeyError, ValueError):
        name = ""
    if not hasattr(types, _TO_DALI.get(name, name.upper())):
        also = "; PyTorch's bfloat16 is made of float32 by .to(torch.bfloat16)" if text.endswith("bfloat16") else ""
        raise TypeError(f"zarr_reader: dtype: expected {_KINDS}, but found {dtype!r}{also}")
    return name


def to_dali(dtype: Any) -> Any:
    """Returns DALI's type.

    Raises:
        TypeError: As :func:`name_of`.
    """
    types = _dali.module("types")
    # The operator itself refuses types that NumPy lacks.
    if isinstance(dtype, types.DALIDataType):
        return dtype
    name = name_of(dtype)
    return getattr(types, _TO_DALI.get(name, name.upper()))
