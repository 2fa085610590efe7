"""What users write, as they write it: the scripts in ``users``, each run as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import zarr
from support.stores import write_array, write_era5

USERS = Path(__file__).parent / "users"


@pytest.fixture(scope="module")
def reanalysis(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "era5.zarr"
    write_era5(path, hours=48)
    zarr.open_group(path)["time"].attrs.update({"units": "hours since 2020-01-01", "calendar": "standard"})
    write_array(path, "level", np.array([1000, 850, 500, 300, 100]), dims=("level",))
    return path


def torchrun(processes: int, *words: object, kill_after: int | None = None) -> list[list[str]]:
    """The lines that all processes printed, in words; with ``kill_after``, until so many were there."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(
        [*command, *map(str, words)], env=environment, stdout=subprocess.PIPE, text=True,
    )
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


def hours(lines: list[list[str]], kind: str, epoch: int) -> list[str]:
    return sorted(hour for line in lines if line[:2] == [kind, str(epoch)] for hour in line[2:])


@pytest.mark.timeout_s(300)
@pytest.mark.filterwarnings("ignore")
def test_weather_by_dates_after_a_crash(reanalysis, tmp_path):
    """Two ranks are killed in mid-epoch, three go on: each sample of each epoch was trained on, and only the step that the crash
    cut off may have been twice."""
    pytest.importorskip("torch")
    pytest.importorskip("xarray")
    checkpoint = tmp_path / "checkpoint.pt"
    first = torchrun(2, USERS / "weather.py", reanalysis, checkpoint, 2, kill_after=7)
    second = torchrun(3, USERS / "weather.py", reanalysis, checkpoint, 2)
    train = [str(np.datetime64("2020-01-01T00", "h") + n) for n in range(30)]
    assert set(hours(first + second, "train", 0)) == set(train)
    assert len(hours(first + second, "train", 0)) <= len(train) + 2 * 2 * 2
    assert hours(second, "train", 1) == train
    validation = [str(np.datetime64("2020-01-02T12", "h") + n) for n in range(6)]
    assert hours(second, "validation", 1) == validation
