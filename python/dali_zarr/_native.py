"""The C ABI of the library (``include/dali_zarr.h``), as far as Python needs it."""

import ctypes
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_ERRORS = {1: ValueError, 2: TypeError, 3: IndexError, 4: RuntimeError}
# In the order of enum dali_zarr_dtype.
_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)

_library: ctypes.CDLL | None = None


class _Output(ctypes.Structure):
    _fields_ = (
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_size_t),
        ("dtype", ctypes.c_int32),
        ("sample_bytes", ctypes.c_size_t),
        ("layout", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
    )


def bind(path: Path) -> None:
    """Declares the functions of the library, which DALI has loaded already."""
    global _library
    library = ctypes.CDLL(str(path))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.dali_zarr_last_error.restype = ctypes.c_char_p
    library.dali_zarr_set_nvcomp_dirs.argtypes = [ctypes.POINTER(ctypes.c_char_p), size]
    library.dali_zarr_open.argtypes = [ctypes.c_char_p, ctypes.POINTER(pointer)]
    library.dali_zarr_close.argtypes = [pointer]
    library.dali_zarr_close.restype = None
    library.dali_zarr_describe_output.argtypes = [pointer, size, ctypes.POINTER(_Output)]
    library.dali_zarr_next_batch.argtypes = [pointer, ctypes.POINTER(pointer)]
    library.dali_zarr_batch_data.argtypes = [pointer, size, ctypes.POINTER(pointer), ctypes.POINTER(size)]
    library.dali_zarr_explain.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)]
    library.dali_zarr_all_stats.argtypes = [ctypes.POINTER(ctypes.c_char_p)]
    library.dali_zarr_take_described.argtypes = []
    library.dali_zarr_take_described.restype = ctypes.c_uint64
    library.dali_zarr_batch_release.argtypes = [pointer]
    library.dali_zarr_batch_release.restype = None
    _library = library


def _loaded() -> ctypes.CDLL:
    if _library is None:
        raise RuntimeError("dali_zarr: the library isn't loaded")
    return _library


def _json(spec: dict[str, Any]) -> bytes:
    """A spec as the library reads it. JSON has no numbers for nan and the infinities: they travel by name."""
    named = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in spec.items()}
    return json.dumps(named).encode()


def _check(status: int) -> None:
    if status:
        message = _loaded().dali_zarr_last_error().decode("utf-8", "replace")
        raise _ERRORS.get(status, RuntimeError)(message)


def set_nvcomp_dirs(dirs: list[str]) -> None:
    """Tells the library where nvCOMP may be, before it looks in the system's places."""
    array = (ctypes.c_char_p * len(dirs))(*(d.encode() for d in dirs))
    _check(_loaded().dali_zarr_set_nvcomp_dirs(array, len(dirs)))


def explain(spec: dict[str, Any]) -> dict[str, Any]:
    """What a reader of ``spec`` would do.

    Raises:
        ValueError, TypeError, IndexError: as opening the reader does.
    """
    text = ctypes.c_char_p()
    _check(_loaded().dali_zarr_explain(_json(spec), ctypes.byref(text)))
    return json.loads(text.value or b"{}")


def all_stats() -> list[dict[str, Any]]:
    """The counters of all readers of this process."""
    text = ctypes.c_char_p()
    _check(_loaded().dali_zarr_all_stats(ctypes.byref(text)))
    return json.loads(text.value or b"[]")


def take_described() -> int:
    """The number of the reader that DALI asked last on this thread to describe its epoch; 0 if it asked none."""
    return _loaded().dali_zarr_take_described()


# Options that choose what is read of an Icechunk repository or of references, wherever they are.
_VERSIONS = ("branch", "tag", "snapshot_id", "virtual_chunks")


def _is_remote(location: str) -> bool:
    """Whether a path or URL, of references too, is that of a server."""
    location = location.strip().removeprefix("reference://").removeprefix("reference::")
    return "://" in location and not location.startswith("file://")


def read_vector(path: str, array: str, options: str | Sequence[str] | None = None) -> np.ndarray:
    """All of a one-dimensional array of numbers, e.g. the coordinates of a dimension.

    Raises:
        ValueError, TypeError, RuntimeError: as the reader does.
    """
    spec = {"path": path, "arrays": array, "dims": [0], "window": [-1], "io_threads": 1, "decode_threads": 1}
    options = [options] if isinstance(options, str) else list(options or [])
    places = [o.partition("=")[2] for o in options if o.partition("=")[0].strip().lower() == "virtual_chunks"]
    if not any(_is_remote(place) for place in [path, *",".join(places).split(",")]):
        # Those of remote stores beside it are none of its business.
        options = [o for o in options if o.partition("=")[0].strip().lower() in _VERSIONS]
    spec["storage_options"] = options or None
    library, reader, batch = _loaded(), ctypes.c_void_p(), ctypes.c_void_p()
    _check(library.dali_zarr_open(_json(spec), ctypes.byref(reader)))
    try:
        output, data, size = _Output(), ctypes.c_void_p(), ctypes.c_size_t()
        _check(library.dali_zarr_describe_output(reader, 0, ctypes.byref(output)))
        if output.ndim != 1:
            raise ValueError(f"store {path}, array '{array}': expected one dimension, but found {output.ndim}")
        _check(library.dali_zarr_next_batch(reader, ctypes.byref(batch)))
        try:
            _check(library.dali_zarr_batch_data(batch, 0, ctypes.byref(data), ctypes.byref(size)))
            return np.frombuffer(ctypes.string_at(data, output.sample_bytes), _DTYPES[output.dtype])
        finally:
            library.dali_zarr_batch_release(batch)
    finally:
        library.dali_zarr_close(reader)
