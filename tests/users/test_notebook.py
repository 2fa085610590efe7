"""A reader of notebooks, with a kernel of Jupyter."""

from __future__ import annotations

import os
import sys

import pytest
from support.programs import EXAMPLES


@pytest.mark.timeout_s(300)
def test_a_notebook(reanalysis, monkeypatch):
    """The cells run, and show what they are for: what explain says, the loader, the batch, a picture, a number."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("STORE", str(reanalysis))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    notebook = nbformat.read(EXAMPLES / "notebooks" / "first_look.ipynb", as_version=4)
    stored = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert all(stored) and "/" not in stored[1][-1].data["text/plain"] and len(stored[3][-1].data["image/png"]) > 10_000
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
    shown = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert "samples: 24; 6 batches of 4 per epoch" in shown[0][-1].text
    texts = [outputs[-1].data["text/plain"] for outputs in shown[1:]]
    assert texts[0].startswith("<Loader of t2m, z from ") and ": 24 samples, 6 batches of 4" in texts[0]
    assert texts[1] == "Batch({'t2m': float32 (4, 12, 20), 'z': float32 (4, 2, 12, 20)})"
    assert len(shown[3][-1].data["image/png"]) > 10_000
    assert int(texts[3]) > 0
