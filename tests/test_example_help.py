"""Every example script that takes arguments says which, for --help: without a store, and before it does anything."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(
    file for file in EXAMPLES.glob("*.py")
    if ("sys.argv" in file.read_text() or "argparse" in file.read_text()) and file.name != "era5_demo.py"  # a part of two scripts
)


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.stem)
@pytest.mark.filterwarnings("ignore")
def test_help(file, monkeypatch, capsys, tmp_path):
    for name in ("xbatcher", "jax", "lightning"):
        if f"import {name}" in file.read_text() or f"from {name}" in file.read_text():
            pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [file.name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(file), run_name="__main__")
    assert not ended.value.code
    out, err = capsys.readouterr()
    assert file.name in out and not err and not list(tmp_path.iterdir())


def test_those_that_take_arguments():
    assert len(SCRIPTS) > 12
