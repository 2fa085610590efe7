"""Coordinates and attributes beside the arrays."""

from __future__ import annotations

import ctypes
import json
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .library import POINTER, check, loaded
from .waits import interruptible


class Labels:
    """The labels of a reader's arrays: coordinates and attributes, from the stores that the library opens for them.

    Stores are opened when they are first needed, and again in a process that was forked.
    """

    def __init__(self, spec: dict[str, Any]):
        """``spec`` has the reader's arguments that decide its stores and arrays, in the operator's form."""
        self._spec = spec
        self._handle: ctypes.c_void_p | None = None
        self._process = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_spec": self._spec, "_handle": None, "_process": 0}

    def _opened(self) -> ctypes.c_void_p:
        if self._handle is None or self._process != os.getpid():
            handle = POINTER()
            check(loaded().dali_zarr_labels_open(json.dumps(self._spec).encode(), ctypes.byref(handle)))
            self._handle, self._process = handle, os.getpid()
            weakref.finalize(self, _close_labels, handle, self._process)
        return self._handle

    def find(self, array: int, store: int, dim: str | None, length: int) -> dict[str, Any] | None:
        """Returns the array with the coordinates along ``dim`` of array number ``array`` in store number ``store``, which has
        ``length`` elements along it; without ``dim`` the array itself. None if there is none.

        The header explains the result, at ``dali_zarr_labels_find``. Here ``dtype`` and ``fill_value`` are NumPy's: objects
        for elements of any length.

        Raises:
            ValueError, TypeError, RuntimeError: The metadata can't be read, or the array is none of labels.
        """
        key = None if dim is None else dim.encode()
        found = self._told(lambda handle, text: loaded().dali_zarr_labels_find(handle, array, store, key, length, text))
        if found is not None and found["kind"] is not None:
            is_variable = found["dtype"] in ("str", "bytes")
            found["dtype"] = np.dtype(object if is_variable else found["dtype"])
            found["fill_value"] = None if found["fill_value"] is None else _scalar(found)
        return found

    def attributes(self, array: int, store: int) -> dict[str, Any]:
        """Returns the attributes of an array's group; empty where there is no group.

        Raises:
            ValueError, RuntimeError: They can't be read.
        """
        return self._told(lambda handle, text: loaded().dali_zarr_labels_attributes(handle, array, store, text))

    def _told(self, ask: Callable[[Any, Any], int]) -> Any:
        def work() -> Any:
            text = ctypes.c_char_p()
            check(ask(self._opened(), ctypes.byref(text)))
            return json.loads(text.value or b"null")

        return interruptible(work)

    def read(self, array: int, store: int, found: Mapping[str, Any]) -> npt.NDArray[Any]:
        """Reads the elements of an array that :meth:`find` told, as they are stored.

        Raises:
            ValueError, TypeError, RuntimeError: They can't be read, or there are too many.
        """

        def work() -> tuple[bytes, list[int]]:
            values, data, ends = POINTER(), POINTER(), POINTER()
            size, count = ctypes.c_size_t(), ctypes.c_size_t()
            name = found["name"].encode()
            check(loaded().dali_zarr_labels_read(self._opened(), array, store, name, ctypes.byref(values)))
            try:
                places = (ctypes.byref(one) for one in (data, size, ends, count))
                check(loaded().dali_zarr_values_data(values, *places))
                numbers = (ctypes.c_int64 * count.value).from_address(ends.value)[:] if ends.value else []
                return ctypes.string_at(data, size.value), numbers
            finally:
                loaded().dali_zarr_values_release(values)

        data, ends = interruptible(work)
        if found["kind"] == "numbers":
            return np.frombuffer(bytearray(data), found["dtype"]).reshape(found["shape"])
        parts: list[Any] = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        return np.array([part.decode() for part in parts] if found["kind"] == "text" else parts, found["dtype"])


def _close_labels(handle: ctypes.c_void_p, process: int) -> None:
    # The threads of a handle are in the process that opened it.
    if process == os.getpid():
        loaded().dali_zarr_labels_close(handle)


def _scalar(found: Mapping[str, Any]) -> Any:
    """Returns the fill value of an array as NumPy's scalar."""
    fill, dtype = found["fill_value"], found["dtype"]
    if found["kind"] == "numbers":
        parts = fill if dtype.kind == "c" else fill[:1]
        size = dtype.itemsize // len(parts)
        return np.frombuffer(b"".join(part.to_bytes(8, "little")[:size] for part in parts), dtype)[0]
    value = bytes(fill) if found["kind"] == "bytes" else fill
    return value if dtype.kind == "O" else dtype.type(value)
