"""The few calls of GDAL's multidimensional C API that write and read arrays, by ctypes in the library that rasterio brings:
GDAL's own Python package has no wheels, and rasterio's API has no arrays of more than two dimensions."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rasterio

TYPES = {
    "uint8": 1, "uint16": 2, "int16": 3, "uint32": 4, "int32": 5, "float32": 6, "float64": 7, "uint64": 12, "int64": 13, "int8": 14,
}

_POINTER, _TEXT, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
# What is made returns a handle, what is written or set a truth value.
_CALLS: dict[str, tuple[Any, ...]] = {
    "GDALGetDriverByName": (_POINTER, _TEXT),
    "GDALCreateMultiDimensional": (_POINTER, _POINTER, _TEXT, _POINTER, _POINTER),
    "GDALOpenEx": (_POINTER, _TEXT, ctypes.c_uint, _POINTER, _POINTER, _POINTER),
    "GDALDatasetGetRootGroup": (_POINTER, _POINTER),
    "GDALGroupCreateGroup": (_POINTER, _POINTER, _TEXT, _POINTER),
    "GDALGroupOpenMDArrayFromFullname": (_POINTER, _POINTER, _TEXT, _POINTER),
    "GDALGroupCreateDimension": (_POINTER, _POINTER, _TEXT, _TEXT, _TEXT, ctypes.c_uint64, _POINTER),
    "GDALExtendedDataTypeCreate": (_POINTER, ctypes.c_int),
    "GDALGroupCreateMDArray": (_POINTER, _POINTER, _TEXT, _SIZE, _POINTER, _POINTER, _POINTER),
    "GDALMDArrayWrite": (ctypes.c_int, *[_POINTER] * 8, _SIZE),
    "GDALMDArrayRead": (ctypes.c_int, *[_POINTER] * 8, _SIZE),
    "GDALMDArraySetNoDataValueAsDouble": (ctypes.c_int, _POINTER, ctypes.c_double),
    "GDALMDArraySetScale": (ctypes.c_int, _POINTER, ctypes.c_double),
    "GDALMDArraySetOffset": (ctypes.c_int, _POINTER, ctypes.c_double),
}
_FREE = ("GDALClose", "GDALGroupRelease", "GDALDimensionRelease", "GDALMDArrayRelease", "GDALExtendedDataTypeRelease")


def _library() -> ctypes.CDLL:
    (file,) = (Path(rasterio.__file__).parents[1] / "rasterio.libs").glob("libgdal*")
    library = ctypes.CDLL(str(file))
    for name, (result, *arguments) in _CALLS.items():
        call = getattr(library, name)
        call.restype, call.argtypes = result, arguments
    for name in _FREE:
        getattr(library, name).argtypes = [_POINTER]
    library.CPLGetLastErrorMsg.restype = _TEXT
    library.GDALAllRegister()
    return library


_GDAL = _library()


def _call(name: str, *arguments: Any) -> Any:
    result = getattr(_GDAL, name)(*arguments)
    if not result:
        raise RuntimeError(f"{name}: {_GDAL.CPLGetLastErrorMsg().decode()}")
    return result


def _options(options: dict[str, str]) -> Any:
    return (_TEXT * (len(options) + 1))(*(f"{key}={value}".encode() for key, value in options.items()), None)


def _transfer(call: str, array: Any, dtype: Any, values: np.ndarray, low: Sequence[int]) -> None:
    """Writes ``values`` to the box that begins at ``low``, or reads it into them."""
    assert values.flags.c_contiguous
    start = (ctypes.c_uint64 * max(1, values.ndim))(*low)
    count = (_SIZE * max(1, values.ndim))(*values.shape)
    _call(call, array, start, count, None, None, dtype, values.ctypes.data, values.ctypes.data, values.nbytes)


@contextmanager
def store(path: Path, **options: str) -> Iterator[Any]:
    """A new Zarr store; what is given is its root group."""
    driver = _call("GDALGetDriverByName", b"Zarr")
    dataset = _call("GDALCreateMultiDimensional", driver, str(path).encode(), None, _options(options))
    with ExitStack() as stack:
        stack.callback(_GDAL.GDALClose, dataset)
        root = _call("GDALDatasetGetRootGroup", dataset)
        stack.callback(_GDAL.GDALGroupRelease, root)
        yield root


def write(
    root: Any, name: str, values: np.ndarray, dims: Sequence[str] = (), *, shape: Sequence[int] | None = None,
    low: Sequence[int] | None = None, nodata: float | None = None, scale: float | None = None, offset: float | None = None,
    **options: str,
) -> None:
    """Makes an array (and the groups before its name) of ``shape`` and writes ``values`` to the box that begins at ``low``."""
    with ExitStack() as stack:

        def keep(release: str, handle: Any) -> Any:
            stack.callback(getattr(_GDAL, release), handle)
            return handle

        group, (*groups, last) = root, name.split("/")
        for part in groups:
            group = keep("GDALGroupRelease", _call("GDALGroupCreateGroup", group, part.encode(), None))
        handles = [
            keep("GDALDimensionRelease", _call("GDALGroupCreateDimension", group, dim.encode(), None, None, extent, None))
            for dim, extent in zip(dims, shape or values.shape, strict=True)
        ]
        dtype = keep("GDALExtendedDataTypeRelease", _call("GDALExtendedDataTypeCreate", TYPES[values.dtype.name]))
        made = _call(
            "GDALGroupCreateMDArray", group, last.encode(), len(handles), (_POINTER * max(1, len(handles)))(*handles), dtype,
            _options(options),
        )
        array = keep("GDALMDArrayRelease", made)
        if nodata is not None:
            _call("GDALMDArraySetNoDataValueAsDouble", array, nodata)
        if scale is not None:
            _call("GDALMDArraySetScale", array, scale)
        if offset is not None:
            _call("GDALMDArraySetOffset", array, offset)
        _transfer("GDALMDArrayWrite", array, dtype, np.ascontiguousarray(values), low or [0] * values.ndim)


def read(path: Path, name: str, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array as GDAL reads it."""
    multidimensional, raise_errors = 0x10, 0x40
    dataset = _call("GDALOpenEx", str(path).encode(), multidimensional | raise_errors, None, None, None)
    with ExitStack() as stack:
        stack.callback(_GDAL.GDALClose, dataset)
        root = _call("GDALDatasetGetRootGroup", dataset)
        stack.callback(_GDAL.GDALGroupRelease, root)
        array = _call("GDALGroupOpenMDArrayFromFullname", root, f"/{name}".encode(), None)
        stack.callback(_GDAL.GDALMDArrayRelease, array)
        handle = _call("GDALExtendedDataTypeCreate", TYPES[dtype.name])
        stack.callback(_GDAL.GDALExtendedDataTypeRelease, handle)
        values = np.empty(shape, dtype)
        _transfer("GDALMDArrayRead", array, handle, values, [0] * len(shape))
        return values
