"""The library: its functions, and its errors as exceptions."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path

from .._failures import Failure, attach

POINTER = ctypes.c_void_p
_ERRORS = {1: ValueError, 2: TypeError, 3: IndexError, 4: RuntimeError, 5: MemoryError}

_library: ctypes.CDLL | None = None
# The same library for calls that return at once. They keep Python's lock: once released, another thread might hold it
# for long.
_library_with_gil: ctypes.PyDLL | None = None


class _Python(ctypes.Structure):
    """The struct ``dali_zarr_python`` of the header."""

    _fields_ = [(name, POINTER) for name in ("ensure", "release", "check_signals", "fetch")]


class Epoch(ctypes.Structure):
    """The struct ``dali_zarr_meta`` of the header."""

    _fields_ = [
        ("epoch_size", ctypes.c_int64), ("epoch_size_padded", ctypes.c_int64), ("number_of_shards", ctypes.c_int64),
        ("shard_id", ctypes.c_int64), ("pad_last_batch", ctypes.c_int32), ("stick_to_shard", ctypes.c_int32),
    ]


def bind(path: Path) -> None:
    """Declares the functions of the library, which DALI has loaded already."""
    global _library, _library_with_gil
    library = ctypes.CDLL(str(path))
    text, size = ctypes.c_char_p, ctypes.c_size_t
    library.dali_zarr_last_error_details.restype = text
    library.dali_zarr_operator_error.argtypes = [text, ctypes.POINTER(text)]
    library.dali_zarr_explain.argtypes = [text, ctypes.POINTER(text)]
    library.dali_zarr_arrays.argtypes = [text, ctypes.POINTER(text)]
    library.dali_zarr_pick_labels.argtypes = [text, text, ctypes.POINTER(ctypes.c_double), size, ctypes.POINTER(text)]
    library.dali_zarr_all_stats.argtypes = [ctypes.POINTER(text)]
    library.dali_zarr_bad_chunks.argtypes = [ctypes.c_uint64, ctypes.POINTER(text)]
    library.dali_zarr_log_level.argtypes = library.dali_zarr_keep_log.argtypes = [ctypes.c_int32]
    library.dali_zarr_wait_log.argtypes = [ctypes.c_uint32]
    library.dali_zarr_take_log.argtypes = library.dali_zarr_opening_keep.argtypes = [ctypes.POINTER(text)]
    library.dali_zarr_opening_release.argtypes = library.dali_zarr_credentials_release.argtypes = [text]
    library.dali_zarr_credentials_keep.argtypes = [text, ctypes.POINTER(text)]
    library.dali_zarr_table_keep.argtypes = [POINTER, size, size, ctypes.c_int32, ctypes.POINTER(text)]
    library.dali_zarr_table_release.argtypes = [text]
    library.dali_zarr_open.argtypes = [text, ctypes.POINTER(POINTER)]
    library.dali_zarr_close.argtypes = [POINTER]
    library.dali_zarr_close.restype = None
    library.dali_zarr_describe_epoch.argtypes = [POINTER, ctypes.POINTER(Epoch)]
    library.dali_zarr_next_batch.argtypes = [POINTER, ctypes.POINTER(POINTER)]
    library.dali_zarr_batch_release.argtypes = [POINTER]
    library.dali_zarr_batch_release.restype = None
    library.dali_zarr_stats.argtypes = [POINTER, ctypes.POINTER(text)]
    library.dali_zarr_batch_data.argtypes = [POINTER, size, ctypes.POINTER(POINTER), ctypes.POINTER(size)]
    library.dali_zarr_labels_open.argtypes = [text, ctypes.POINTER(POINTER)]
    library.dali_zarr_labels_close.argtypes = [POINTER]
    library.dali_zarr_labels_close.restype = None
    library.dali_zarr_labels_find.argtypes = [POINTER, size, size, text, ctypes.c_uint64, ctypes.POINTER(text)]
    library.dali_zarr_labels_attributes.argtypes = [POINTER, size, size, ctypes.POINTER(text)]
    library.dali_zarr_labels_read.argtypes = [POINTER, size, size, text, ctypes.POINTER(POINTER)]
    library.dali_zarr_values_data.argtypes = [
        POINTER, ctypes.POINTER(POINTER), ctypes.POINTER(size), ctypes.POINTER(POINTER), ctypes.POINTER(size),
    ]
    library.dali_zarr_values_release.argtypes = [POINTER]
    library.dali_zarr_values_release.restype = None
    integers = ctypes.c_uint64, POINTER, size
    library.dali_zarr_push.argtypes = [*integers, ctypes.c_uint64, ctypes.c_uint64]
    library.dali_zarr_find.argtypes = [*integers, size, POINTER]
    library.dali_zarr_take_described.argtypes = []
    library.dali_zarr_take_described.restype = ctypes.c_uint64
    library.dali_zarr_defer_opening.argtypes = [ctypes.c_int32]
    library.dali_zarr_wait_opened.argtypes = [ctypes.c_uint32, ctypes.POINTER(ctypes.c_int32)]
    brief = ctypes.PyDLL(str(path))
    brief.dali_zarr_watch_signals.argtypes = [ctypes.c_int32]
    brief.dali_zarr_take_raised.argtypes = [ctypes.POINTER(POINTER)]
    brief.dali_zarr_end_waits.argtypes = [ctypes.c_uint64]
    for one in (library, brief):
        one.dali_zarr_push_batches.argtypes = [
            ctypes.c_uint64, POINTER, POINTER, POINTER, size, ctypes.c_uint64, ctypes.POINTER(size),
        ]
        one.dali_zarr_wait_runs.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int32)]
    library.dali_zarr_operators.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(size)]
    library.dali_zarr_set_python.argtypes = [ctypes.POINTER(_Python)]
    names = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch")
    library.dali_zarr_set_python(_Python(*(ctypes.cast(getattr(ctypes.pythonapi, name), POINTER) for name in names)))
    _library, _library_with_gil = library, brief


def unless_missing() -> ctypes.CDLL | None:
    """Returns the library; None before :func:`bind`."""
    return _library


def with_gil() -> ctypes.PyDLL | None:
    """Returns the library for calls that return at once and keep Python's lock; None before :func:`bind`."""
    return _library_with_gil


def loaded() -> ctypes.CDLL:
    """Returns the library.

    Raises:
        RuntimeError: It isn't loaded.
    """
    if _library is None:
        raise RuntimeError("dali_zarr: the library isn't loaded")
    return _library


def check(status: int) -> None:
    """Raises the exception of the last call on this thread, if it returned an error."""
    if status:
        raise error_of(status)


def error_of(status: int, place: Callable[[str], str] | None = None) -> Exception:
    """Makes the exception of the last call on this thread, which returned ``status``. After its message stands what
    ``place`` returns for the place where the operator was made."""
    failure = Failure(json.loads(loaded().dali_zarr_last_error_details()))
    after = place(failure.details["operator"] or "") if place else ""
    return attach(_ERRORS.get(status, RuntimeError)(failure.message + after), failure)
