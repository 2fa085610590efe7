"""The lines of docs/from/torchgeo.md run, and give the boxes of torchgeo's RasterDataset."""

from __future__ import annotations

from support.beside import installed, run_beside

INSTALLED = installed("torchgeo", "torchgeo", "torchgeo")


def test_boxes_are_those_of_torchgeo():
    """Two epochs of 24 boxes of two sizes that are drawn, 20 of a grid, and 20 of one that reaches beyond the scene; and 12 steps
    of a model."""
    found = run_beside(INSTALLED, "torchgeo_lines.py", timeout=170, OMP_NUM_THREADS="1")
    ours, theirs = found["losses"]
    assert found["equal"] == 176 and len(set(ours)) == 12 and ours == theirs
