"""The lines of docs/from/torchgeo.md run, and give the boxes of torchgeo's RasterDataset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
INSTALLED = HERE.parents[1] / "build" / "integrations" / "torchgeo"
if not (INSTALLED / "torchgeo").is_dir():
    pytest.skip("torchgeo isn't installed: `make integrations` installs it", allow_module_level=True)

pytest.importorskip("torch")
import dali_zarr  # noqa: E402


def test_boxes_are_those_of_torchgeo():
    """Two epochs of 24 boxes of two sizes that are drawn, and 20 of a grid; and 12 steps of a model."""
    path = os.pathsep.join(map(str, (INSTALLED, Path(dali_zarr.__file__).parents[1])))
    command = [sys.executable, "-W", "ignore", str(HERE / "torchgeo_lines.py")]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout.partition("FOUND")[2].splitlines()[0])
    ours, theirs = found["losses"]
    assert found["equal"] == 136 and len(set(ours)) == 12 and ours == theirs
