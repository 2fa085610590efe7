"""The lines of docs/from/monai.md run, and give the samples of MONAI's Dataset with RandSpatialCropd."""

from __future__ import annotations

from support.beside import installed, run_beside

INSTALLED = installed("monai", "monai", "MONAI")


def test_samples_and_losses_are_those_of_monai():
    """Two epochs of 24 crops, in order and shuffled, and 12 steps of a model."""
    found = run_beside(INSTALLED, "monai_lines.py", timeout=170, OMP_NUM_THREADS="1")
    ours, theirs = found["losses"]
    assert found["equal"] == 96 and len(set(ours)) == 12 and ours == theirs
