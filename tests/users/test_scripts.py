"""All of the users' scripts."""

from __future__ import annotations

import pytest
from support.programs import EXAMPLES


@pytest.mark.parametrize("name", ["bucket", "lightning_fit", "weather", "xbatcher_switch"])
def test_scripts_are_short(name):
    """So that a reader sees each at once."""
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) < 60
