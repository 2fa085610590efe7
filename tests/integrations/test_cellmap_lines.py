"""The lines of docs/from/cellmap-data.md run, and give the patches of CellMapDataset."""

from __future__ import annotations

from support.beside import installed, run_beside

INSTALLED = installed("cellmap", "cellmap_data", "cellmap-data")


def test_patches_are_those_of_cellmap_data():
    """In order and shuffled: an image and a label at 8 nm, and the image at 16 nm."""
    found = run_beside(INSTALLED, "cellmap_lines.py", timeout=170, OMP_NUM_THREADS="1")
    assert found == [753, 101, 652]
