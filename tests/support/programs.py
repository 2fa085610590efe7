"""Runs examples as programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from .processes import start_program

EXAMPLES = Path(__file__).parents[2] / "examples"


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}


def script(*words: object, imports: str = "torch", **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program; returns what it printed, and how it ended. ``imports``: see
    :class:`support.processes.Process`."""
    process = start_program(*words, imports=imports, env={"OMP_NUM_THREADS": "1"} | environment)
    out, err = process.communicate(200)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def torchrun(processes: int, *words: object, kill_after: int | None = None) -> list[list[str]]:
    """Runs a program by torchrun; returns the lines that all processes printed, as lists of words. With ``kill_after``
    all processes are killed after this many lines."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    running = subprocess.Popen([*command, *map(str, words)], env=_environment(), stdout=subprocess.PIPE, text=True)
    lines: list[list[str]] = []
    for line in running.stdout:
        lines.append(line.split())
        if len(lines) == kill_after:
            # All at once, as when a machine fails; torchrun's workers have sessions of their own.
            for process in [*psutil.Process(running.pid).children(recursive=True), running]:
                process.kill()
            running.wait(60)
            return lines + [line.split() for line in running.stdout]
    assert running.wait(60) == 0
    return lines
