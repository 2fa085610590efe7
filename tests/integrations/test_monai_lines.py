"""The lines of docs/from/monai.md run, and give the samples of MONAI's Dataset with RandSpatialCropd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
INSTALLED = HERE.parents[1] / "build" / "integrations" / "monai"
if not (INSTALLED / "monai").is_dir():
    pytest.skip("MONAI isn't installed: `make integrations` installs it", allow_module_level=True)

pytest.importorskip("torch")
import dali_zarr  # noqa: E402


def test_samples_and_losses_are_those_of_monai():
    """Two epochs of 24 crops, in order and shuffled, and 12 steps of a model."""
    path = os.pathsep.join(map(str, (INSTALLED, Path(dali_zarr.__file__).parents[1])))
    command = [sys.executable, "-W", "ignore", str(HERE / "monai_lines.py")]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout.partition("FOUND")[2].splitlines()[0])
    ours, theirs = found["losses"]
    assert found["equal"] == 96 and len(set(ours)) == 12 and ours == theirs
