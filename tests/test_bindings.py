"""The bindings of nvCOMP are those of the headers that the environment has."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.timeout_s(900)
def test_the_bindings_are_those_of_the_headers(tmp_path):
    if importlib.util.find_spec("clang") is None:
        pytest.skip("libclang isn't installed: `make setup` does it")
    if shutil.which("cargo") is None:
        pytest.skip("cargo isn't installed")
    new = tmp_path / "sys.rs"
    subprocess.run(["make", "--silent", "bindings", f"BINDINGS={new}"], cwd=ROOT, check=True)
    assert new.read_text() == (ROOT / "src/nvcomp-sys/src/sys.rs").read_text()
