"""Ragged outputs in JAX's batches: as padded arrays, or as the rows of matrices one after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from . import _dali
from ._loading.collate import LENGTHS, CollatePlan, beyond_columns, check_name, indices_of, is_in_columns, of_values, shape_of
from ._loading.outputs import Place, flattened, nested
from ._loading.ragged import Lengths, Shapes
from ._loading.reading import Padded, Transform

_PAD = "lambda x: {'data': fn.pad(x['X/data'], axes=[0], shape=[max_length]), 'length': x['X/data'].shape()[0]}"
RAGGED = (
    "dali_zarr: expected outputs whose samples have one shape, since JAX has no other arrays, but found ragged ones: give "
    f"collate='list', 'padded' or 'csr', or have a transform pad them, as {_PAD}"
)

# JAX without types, where its own type hints are incomplete.
_UNTYPED: Any = jax


def check(collate: Any, transform: Any, sharding: Any) -> None:
    """Raises ValueError unless ``collate`` is a form that JAX has and neither ``transform`` nor ``sharding``
    contradicts it."""
    check_name(collate)
    if collate == "nested":
        raise ValueError(
            "dali_zarr: collate: expected 'list', 'padded' or 'csr', since JAX has no nested arrays, but found 'nested'"
        )
    if collate is not None and transform is not None:
        raise ValueError(
            "dali_zarr: collate: expected no transform with it, since the lengths of its outputs aren't known before: "
            f"have the transform pad, as {_PAD}"
        )
    if collate in ("csr", "list") and sharding is not None:
        raise ValueError(
            f"dali_zarr: collate: expected no sharding with {collate!r}, since the samples of devices have other numbers of "
            "elements; collate='padded' has one shape"
        )


def padding(padded: Mapping[Place, Padded]) -> Transform | None:
    """Returns a transform that pads ragged outputs, so that batches have one shape; None where there are none."""
    return functools.partial(_padded, dict(padded)) if padded else None


def _padded(padded: Mapping[Place, Padded], given: dict[str, Any]) -> dict[str, Any]:
    fn, types = _dali.module("fn"), _dali.module("types")
    places, values = flattened(given)
    found = dict(zip(places, values, strict=True))
    more: dict[Place, Any] = {}
    for place, how in padded.items():
        shape = fn.cast(found[place].shape(), dtype=types.INT32)
        more |= {(LENGTHS,): shape[0]} if how.are_rows else {shape_of(place): shape}
        found[place] = _pad(found[place], how)
    found |= more
    return nested(list(found), list(found.values()), lambda content, _: content)


def _pad(value: Any, how: Padded) -> Any:
    fn, types = _dali.module("fn"), _dali.module("types")
    if not how.lengths:
        return value
    to = {"axes": list(how.lengths), "shape": [max(length, 1) for length in how.lengths.values()]}
    if how.dtype != "float64":
        return fn.pad(value, **to)
    # DALI can't pad float64. So its bits are padded as int64: the bits of 0.0 are zero.
    return fn.reinterpret(fn.pad(fn.reinterpret(value, dtype=types.INT64), **to), dtype=types.FLOAT64)


def listed(output: Any, valid: int, on_device: Callable[[Any], Any]) -> list[Any]:
    """Returns arrays of the first ``valid`` samples of an output of DALI's. ``on_device`` makes arrays of DALI's tensors."""
    shapes = Shapes(output, valid)
    if shapes.total == 0:
        # DALI has no tensor of no elements.
        dtype = _dali.module("types").to_numpy_type(output.dtype)
        return [_UNTYPED.numpy.zeros(shape, dtype) for shape in shapes.shapes]
    return shapes.split(on_device(output.as_reshaped_tensor([shapes.total])))


def indptr(group: str) -> str:
    """Returns the name of the entry that says where the rows of a group's matrix begin."""
    return f"{group}/indptr" if group else "indptr"


def narrow_values(arguments: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Returns the reader's arguments for matrices: values change their indices in nothing but their width."""
    return with_narrow_indices(of_values(arguments, tuple(names)), names)


def with_narrow_indices(arguments: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Returns the reader's arguments, with int32 for the indices of matrices where JAX has no 64-bit integers."""
    dtype: Any = arguments.get("dtype") or {}
    indices = indices_of(names)
    if _UNTYPED.config.jax_enable_x64 or not indices or not isinstance(dtype, Mapping):
        return arguments
    return {**arguments, "dtype": {**dtype, **dict.fromkeys(indices, "int32")}}


def rows(
    choice: CollatePlan, places: Sequence[Place], found: Sequence[Any], valid: int, dense: Callable[[Any], Any],
    on_device: Callable[[Any], Any],
) -> list[Any]:
    """Returns the batch's arrays, of the first ``valid`` samples. Arrays of a matrix have one row after the other. At
    the end stands, for each matrix, an array that says where its rows begin. ``dense`` makes arrays of DALI's outputs,
    ``on_device`` of DALI's tensors."""
    values: list[Any] = []
    starts: dict[Place, Any] = {}
    for place, output in zip(places, found, strict=True):
        if place not in choice.matrices:
            values.append(dense(output))
            continue
        lengths = Lengths(output, valid, place)
        flat = on_device(output.as_reshaped_tensor(list(lengths.shape)))
        flat = flat if lengths.total == lengths.shape[0] else flat[: lengths.total]
        values.append(flat)
        name, _, indices = choice.matrices[place]
        starts.setdefault(name, None)
        if place == indices:
            host: npt.NDArray[Any] = np.asarray(flat)
            if not is_in_columns(host, choice.columns):
                raise beyond_columns(int(host.min()), int(host.max()), choice.columns)
            # A batch with 32-bit indices has fewer than 2^31 values, for want of memory.
            dtype = np.int64 if host.dtype == np.int64 else np.int32
            (on,) = flat.devices()
            starts[name] = _UNTYPED.device_put(lengths.offsets.astype(dtype), on)
    return [*values, *starts.values()]
