"""A user of Lightning, whose training is stopped."""

from __future__ import annotations

import numpy as np
import pytest
from support.programs import EXAMPLES, script


@pytest.mark.timeout_s(400)
def test_lightning_after_a_stop(reanalysis, tmp_path):
    """Stopped in the first epoch and started again, training sees each hour once in each epoch, and validation all of its own."""
    pytest.importorskip("lightning")
    lines: list[list[str]] = []
    for steps in (3, 100):
        done = script(EXAMPLES / "lightning_fit.py", reanalysis, tmp_path, steps, imports="lightning")
        assert done.returncode == 0, done.stderr
        lines += [line.split() for line in done.stdout.splitlines()]
    train = [hour for line in lines if line[:1] == ["train"] for hour in line[1:]]
    every = [str(np.datetime64("2020-01-01T00", "h") + n) for n in range(24)]
    assert sorted(train[:24]) == every and sorted(train[24:]) == every and train[:24] != train[24:]
    validation = [hour for line in lines if line[:1] == ["validation"] for hour in line[1:]]
    assert validation == 2 * [str(np.datetime64("2020-01-02T06", "h") + n) for n in range(12)]
