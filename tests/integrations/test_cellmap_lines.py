"""The lines of docs/from/cellmap-data.md run, and give the patches of CellMapDataset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
INSTALLED = HERE.parents[1] / "build" / "integrations" / "cellmap"
if not (INSTALLED / "cellmap_data").is_dir():
    pytest.skip("cellmap-data isn't installed: `make integrations` installs it", allow_module_level=True)

pytest.importorskip("torch")
import dali_zarr  # noqa: E402


def test_patches_are_those_of_cellmap_data():
    """In order and shuffled: an image and a label at 8 nm, and the image at 16 nm."""
    path = os.pathsep.join(map(str, (INSTALLED, Path(dali_zarr.__file__).parents[1])))
    command = [sys.executable, "-W", "ignore", str(HERE / "cellmap_lines.py")]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    fine, coarse = json.loads(done.stdout.partition("FOUND")[2].splitlines()[0])
    assert (fine, coarse) == (753, 101)
