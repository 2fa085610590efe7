"""The few calls of the CUDA driver that tests and benchmarks need, by ctypes: no PyTorch, no CUDA toolkit."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np


def _call(name: str, *args: Any) -> None:
    status = getattr(_driver(), name)(*args)
    if status:
        raise RuntimeError(f"{name} returned {status}")


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def use_primary_context() -> None:
    """Makes device 0's primary context current in the calling thread. DALI and PyTorch use this context too."""
    context, device = ctypes.c_void_p(), ctypes.c_int()
    _call("cuInit", 0)
    _call("cuDeviceGet", ctypes.byref(device), 0)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call("cuCtxSetCurrent", context)


def synchronize() -> None:
    """Waits until the device has nothing left to do."""
    use_primary_context()
    _call("cuCtxSynchronize")


def memory_used() -> int:
    """Returns the bytes of device memory that all processes use."""
    use_primary_context()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return total.value - free.value


class PinnedCopy:
    """Copies arrays of one shape to the device through one pinned buffer that is reused."""

    def __init__(self, like: np.ndarray):
        use_primary_context()
        self.shape, self.dtype, self.nbytes = like.shape, like.dtype, like.nbytes
        host, self.device = ctypes.c_void_p(), ctypes.c_uint64()
        _call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(self.nbytes), 0)
        _call("cuMemAlloc_v2", ctypes.byref(self.device), ctypes.c_size_t(self.nbytes))
        raw = (ctypes.c_byte * self.nbytes).from_address(host.value)
        self.pinned = np.frombuffer(raw, self.dtype).reshape(self.shape)

    def copy(self, array: np.ndarray) -> PinnedCopy:
        """Puts ``array`` on the device and waits for it."""
        self.pinned[...] = array
        _call("cuMemcpyHtoD_v2", self.device, ctypes.c_void_p(self.pinned.ctypes.data), ctypes.c_size_t(self.nbytes))
        return self

    def numpy(self) -> np.ndarray:
        """Returns what lies on the device, copied to host memory."""
        out = np.empty(self.shape, self.dtype)
        _call("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), self.device, ctypes.c_size_t(self.nbytes))
        return out
