"""A user of xbatcher, who switches."""

from __future__ import annotations

import numpy as np
import pytest
from support.programs import EXAMPLES, script


def test_the_switch_from_xbatcher(reanalysis):
    """Each patch is xbatcher's, with its times."""
    pytest.importorskip("xbatcher")
    done = script(EXAMPLES / "xbatcher_switch.py", reanalysis)
    assert done.returncode == 0, done.stderr
    # 24 hours in patches of 4 that overlap by 2, with 2 x 2 on the grid: a batch of 8 has two times.
    begins = [str(np.datetime64("2020-01-01T06", "h") + 4 * n) for n in range(6)]
    assert [line.split() for line in done.stdout.splitlines()] == [[b, "4" if b == begins[-1] else "8", "same"] for b in begins]
