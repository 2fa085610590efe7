"""Runs the notebooks of examples/ and stores what they show: python tests/support/notebooks.py

They are run in a folder with the small stores. Stored outputs have no paths of the machine, no times and no counts of runs, so
that they change only where what is shown does.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat

EXAMPLES = Path(__file__).parents[2] / "examples"


def executed(file: Path, folder: Path) -> Any:
    """Returns a notebook with outputs, run in ``folder``."""
    notebook = nbformat.read(file, as_version=4)
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            # Warnings depend on the machine.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                _cleaned(output, folder)
            cell.execution_count = None
    notebook.metadata = {name: notebook.metadata[name] for name in ("kernelspec",) if name in notebook.metadata}
    return notebook


def _cleaned(output: Any, folder: Path) -> None:
    if "text" in output:
        output.text = output.text.replace(f"{folder}/", "")
    if "execution_count" in output:
        output.execution_count = None
    if "data" in output:
        output.data = {kind: data for kind, data in output.data.items() if kind in ("text/plain", "image/png")}
        output.data["text/plain"] = output.data["text/plain"].replace(f"{folder}/", "")
        output.metadata = {}
        # A picture's text has its size.
        if "image/png" in output.data:
            output.data["text/plain"] = re.sub(r"<Figure.*>", "<Figure>", output.data["text/plain"])


def texts(notebook: Any) -> list[str]:
    """Returns the text of all outputs."""
    return [output.get("text") or output.data["text/plain"] for cell in notebook.cells for output in cell.get("outputs", [])]


def main() -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        runpy.run_path(str(EXAMPLES / "small_stores.py"))["main"](folder)
        for file in sorted(EXAMPLES.glob("notebooks/*.ipynb")):
            nbformat.write(executed(file, folder), file)


if __name__ == "__main__":
    main()
