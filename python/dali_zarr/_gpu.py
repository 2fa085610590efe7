"""Whether there is a driver for GPUs. CUDA isn't initialised for that, since the process may be forked later."""

from __future__ import annotations

import ctypes
import functools


@functools.cache
def why_none() -> str | None:
    """Returns why no GPU can be used; None where the driver is installed."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "this machine has no GPU, or no driver for it: libcuda.so.1 isn't installed (a container needs --gpus all)"
    return None
