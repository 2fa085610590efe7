"""What comes of stored values: decoding, NaNs replaced, normalised, converted; and one tensor of channels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from support.argument_space.dataset import Refused, Variable
from support.oracle import cast


def by_output(given: Any, output: str, default: Any = None) -> Any:
    return given.get(output, default) if isinstance(given, Mapping) else default if given is None else given


def filled(values: np.ndarray, fillna: float | None) -> np.ndarray:
    if fillna is None or values.dtype.kind != "f":
        return values
    with np.errstate(over="ignore"):
        return np.where(np.isnan(values), values.dtype.type(fillna), values)


def converted(values: np.ndarray, mean: Any, stddev: Any, dtype: str | None) -> np.ndarray:
    """Normalises if ``mean`` or ``stddev`` is given, which have the values' dimensions, and converts."""
    with np.errstate(all="ignore"):
        if mean is not None or stddev is not None:
            found = values.astype("float64")
            found = found if mean is None else found - mean
            found = found if stddev is None else found / stddev
            return cast(found, dtype or "float32")
        return cast(values, dtype or values.dtype)


def along_dims(name: str, numbers: Any, variable: Variable, shape: Sequence[int], cut: Sequence[str], channels: Any) -> Any:
    """Returns one number, or numbers in the shape of an array's dimensions: 1 along those that aren't of channels."""
    if numbers is None:
        return None
    listed = [float(n) for n in np.atleast_1d(numbers)]
    dims = variable.dims
    if channels is not None:
        wanted = [channels] if isinstance(channels, (str, int)) else list(channels)
        of = sorted({dims[w] if isinstance(w, int) else w for w in wanted} & set(dims), key=dims.index)
    elif len(listed) == 1:
        return listed[0]
    else:
        fitting = [d for d, n in zip(dims, shape, strict=True) if d not in cut and n == len(listed)]
        if len(fitting) != 1:
            raise Refused(name)
        of = fitting
    extents = [n if d in of else 1 for d, n in zip(dims, shape, strict=True)]
    if len(listed) == 1:
        return listed[0]
    if math.prod(extents) != len(listed):
        raise Refused(name)
    return np.array(listed).reshape(extents)


def ordered(given: Any, output: str | None, values: np.ndarray, dims: Sequence[str]) -> np.ndarray:
    """Transposes a sample with the dimensions ``dims``. ``output``: None for a stack."""
    wanted = given if output is None else by_output(given, output)
    if wanted is None:
        return values
    names = wanted.split() if isinstance(wanted, str) else ["..." if d is ... else d for d in wanted]
    if output is None and "variable" not in dims:
        names = ["channel" if d == "variable" else d for d in names]
    names = [d for d in names if d in (*dims, "...")]
    at = names.index("...") if "..." in names else None
    if at is not None:
        names[at : at + 1] = [d for d in dims if d not in names]
    return values.transpose([dims.index(d) for d in names])


def padding(fill_value: Any, dtype: np.dtype) -> np.ndarray:
    with np.errstate(all="ignore"):
        return cast(np.array(fill_value, np.float64), dtype)


class Stack:
    """One tensor whose first dimension has channels."""

    def __init__(self, dims_of: Mapping[str, tuple[str, ...]], dropped: Sequence[str], windows: Sequence[str]):
        """``dims_of``: dimensions in the store, by output. ``dropped``: those that samples lack. ``windows``: those along
        which samples have windows."""
        self.outputs = list(dims_of)
        longest = max(dims_of.values(), key=len)
        several = [dims for dims in dims_of.values() if len(dims) > 1]
        shared = [d for d in longest if d not in dropped and d not in windows and all(d in dims for dims in several)]
        self.grid = [d for d in longest if d in shared or d in windows]

    def channels(self, values: np.ndarray, dims: Sequence[str], sizes: Mapping[str, int]) -> np.ndarray:
        """The channels of one array, repeated along the dimensions that it lacks."""
        order = [i for i, d in enumerate(dims) if d not in self.grid] + [dims.index(d) for d in self.grid if d in dims]
        count = math.prod(n for d, n in zip(dims, values.shape, strict=True) if d not in self.grid)
        shape = [count, *(values.shape[dims.index(d)] if d in dims else 1 for d in self.grid)]
        return np.broadcast_to(values.transpose(order).reshape(shape), [count, *(sizes[d] for d in self.grid)])
