"""What all suites of foreign stores share."""

from __future__ import annotations

import pytest
from support.pipelines import why_no_gpu


# Without a GPU there is only one device to compare on, and nothing to skip: `make foreign` promises a run without skips.
@pytest.fixture(params=["cpu"] if why_no_gpu() else ["cpu", "gpu"])
def device(request: pytest.FixtureRequest) -> str:
    """The operator's devices that this machine has."""
    return request.param
