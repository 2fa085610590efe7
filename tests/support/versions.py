"""What older versions of DALI haven't."""

from __future__ import annotations

import importlib.util

import pytest
from nvidia.dali import __version__

from support.pipelines import why_no_gpu

DALI = tuple(int(number) for number in __version__.split("+")[0].split("."))
# Before 2.0 it asks the driver for its version, also for readers on the CPU.
needs_dynamic_mode = pytest.mark.skipif(DALI < (2, 0) and why_no_gpu() is not None, reason="this DALI's dynamic mode needs a driver")
# Before 2.1 it asks JAX for what newer versions of JAX haven't any more.
needs_dalis_jax = pytest.mark.skipif(DALI < (2, 1), reason="this DALI's iterators don't fit the JAX that is tested")
needs_states = pytest.mark.skipif(
    importlib.util.find_spec("nvidia.dali.experimental.dynamic.checkpoint") is None, reason="this DALI's dynamic mode has no states",
)
