"""The adapter's batches are those of VisCy's HCSDataModule, from plates that iohub has written, and a model has the same losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
INSTALLED = HERE.parents[1] / "build" / "integrations" / "viscy"
if not (INSTALLED / "viscy").is_dir():
    pytest.skip("VisCy isn't installed: `make integrations` installs it", allow_module_level=True)

pytest.importorskip("torch")
import dali_zarr  # noqa: E402

CASES = {
    "windows": {},
    "slices": {"z_window_size": 1},
    "two targets": {"target_channel": ["Membrane", "Nuclei"]},
    "a channel twice": {"target_channel": "Phase"},
    "normalised": {"normalizations": "fov_statistics"},
    "normalised by time": {"normalizations": "timepoint_statistics", "z_window_size": 5},
    "affine maps of longer windows": {"augmentations": ["affine"], "normalizations": "fov_statistics"},
    "weighted crops": {"augmentations": ["crops", "flip"], "z_window_size": 4, "yx_patch_size": [12, 12]},
    "fields of view of several sizes": {"store": "unlike", "stages": ["train", "val"]},
    "floats": {"store": "float"},
    "doubles": {"store": "double"},
    "bytes": {"store": "bytes"},
    "shards of OME-Zarr 0.5": {"store": "shards"},
    "another level": {"store": "levels", "array_key": "1", "yx_patch_size": [8, 16]},
    "prediction": {"stages": ["predict"], "normalizations": "fov_statistics", "normalised": ["Phase"]},
    "prediction of one position": {"fov": "B/1/000", "stages": ["predict"]},
    "the second of two ranks": {"ranked": True},
    "workers": {"num_workers": 2, "persistent_workers": True, "augmentations": ["flip"], "stages": ["train", "val"]},
    "a copy in a cache": {"caching": True, "stages": ["train", "val"]},
}


# One process reads all cases: imports take longest.
@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = os.pathsep.join(map(str, (INSTALLED, Path(dali_zarr.__file__).parents[1])))
    command = [sys.executable, "-W", "ignore", str(HERE / "viscy_batches.py"), json.dumps(list(CASES.values()))]
    folder = tmp_path_factory.mktemp("viscy")
    environment = os.environ | {"PYTHONPATH": path, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=folder, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout.partition("FOUND")[2].splitlines()[0])


@pytest.mark.timeout_s(400)
@pytest.mark.parametrize("number", range(len(CASES)), ids=list(CASES))
def test_batches_are_those_of_viscy(found, number):
    """Two epochs of each stage."""
    assert found["cases"][number] >= 4


@pytest.mark.timeout_s(400)
@pytest.mark.parametrize("what", ["own", "combined"])
def test_other_loaders(found, what):
    """Of a data set of one's own, which reads in other forms, and two in turn. A reader ends with its loader."""
    assert found[what] >= 4


@pytest.mark.timeout_s(400)
def test_a_model_trains_alike(found):
    """Two shuffled epochs, the second one from a checkpoint, with validation, and a prediction."""
    ours, theirs = found["losses"]
    assert len({one for one in ours if isinstance(one, float)}) >= 20 and ours == theirs
