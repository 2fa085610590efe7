"""The adapter's batches are those of VisCy's HCSDataModule, from plates that iohub has written, and a model has the same losses."""

from __future__ import annotations

import json

import pytest
from support.beside import installed, run_beside

INSTALLED = installed("viscy", "viscy", "VisCy")

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
    folder = tmp_path_factory.mktemp("viscy")
    cases = json.dumps(list(CASES.values()))
    return run_beside(INSTALLED, "viscy_batches.py", cases, cwd=folder, TMPDIR=str(folder), OMP_NUM_THREADS="1")


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
