"""Every example script that takes arguments says which, for --help and where they are missing, before it does anything."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(
    file for file in EXAMPLES.glob("*.py")
    if "argparse" in file.read_text() and file.name != "era5_demo.py"  # a part of two scripts
)


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.stem)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("word", ["--help", "--no-such-argument"])
def test_help(file, word, monkeypatch, capsys, tmp_path):
    for name in ("xbatcher", "jax", "lightning"):
        if f"import {name}" in file.read_text() or f"from {name}" in file.read_text():
            pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [file.name, word])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(file), run_name="__main__")
    out, err = capsys.readouterr()
    is_help = word == "--help"
    assert (ended.value.code, bool(out), bool(err)) == ((0, True, False) if is_help else (2, False, True))
    assert (out + err).startswith(f"usage: {file.name} ") and not list(tmp_path.iterdir())


def test_those_that_take_arguments():
    assert len(SCRIPTS) > 12
    assert not [file.name for file in EXAMPLES.glob("*.py") if "sys.argv" in file.read_text()], "argparse says what is missing"
