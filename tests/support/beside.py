"""Runs scripts beside a framework that has a folder of its own (`make integrations`): here it would clash with others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dali_zarr
import pytest

ROOT = Path(__file__).resolve().parents[2]


def installed(name: str, module: str, title: str) -> Path:
    """The framework's folder; a module of tests is skipped without it."""
    folder = ROOT / "build" / "integrations" / name
    if not (folder / module).is_dir():
        pytest.skip(f"{title} isn't installed: `make integrations` installs it", allow_module_level=True)
    pytest.importorskip("torch")
    return folder


def run_beside(folder: Path, script: str, *words: str, timeout: float = 300, cwd: Path | None = None, **environment: str) -> Any:
    """What a script of tests/integrations prints after FOUND, on that line, as JSON."""
    path = os.pathsep.join(map(str, (folder, Path(dali_zarr.__file__).parents[1])))
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "integrations" / script), *words]
    variables = os.environ | {"PYTHONPATH": path} | environment
    done = subprocess.run(command, env=variables, cwd=cwd, check=False, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout.partition("FOUND")[2].splitlines()[0])
