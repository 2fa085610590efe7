"""What older versions of DALI haven't."""

from __future__ import annotations

import importlib.util

import pytest
from nvidia.dali import __version__

DALI = tuple(int(number) for number in __version__.split("+")[0].split("."))
needs_states = pytest.mark.skipif(
    importlib.util.find_spec("nvidia.dali.experimental.dynamic.checkpoint") is None, reason="this dynamic mode has no states",
)
