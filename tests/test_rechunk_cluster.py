"""``rechunk`` on a cluster of dask.distributed: a scheduler and two workers in processes of their own, which are killed."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import zarr
from dali_zarr._rechunk import execute
from support.command_line import command
from support.processes import Fresh, Process, start
from support.stores import Layout, write_array

pytest.importorskip("dask")
pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("ignore")

DIMS = ("time", "lat", "lon")
WORKERS = 2


STARTED = """
import importlib, os, pathlib, sys
kind, log, *sys.argv[1:] = sys.argv[1:]
sys.path[:] = [place for place in sys.path if not pathlib.Path(place or ".", "dali_zarr").exists()]
file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(file, 1)
os.dup2(file, 2)
importlib.import_module(f"distributed.cli.dask_{kind}").main()
"""


class Cluster:
    """Its address, and its processes: the scheduler, then the workers."""

    def __init__(self, folder):
        self.processes: list[Process | Fresh] = []
        self._folder = folder
        how = ["--port", "0", "--no-dashboard", "--host", "127.0.0.1"]
        self.address = self._started("scheduler", how, r"Scheduler at:\s*(tcp://\S+)")
        for number in range(WORKERS):
            how = [self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "2GiB",
                   "--local-directory", str(folder / str(number))]
            self._started("worker", how, r"(Registered to):\s*tcp", f"worker{number}")

    def _started(self, kind, words, pattern, name=None):
        log = self._folder / f"{name or kind}.log"
        # Workers need zarr-python, and neither DALI nor this package, of which they have another version or none.
        self.processes.append(start(STARTED, kind, log, *words, imports="distributed"))
        log.touch()
        for _ in range(3000):
            if found := re.search(pattern, log.read_text()):
                return found[1]
            assert self.processes[-1].poll() is None, log.read_text()
            time.sleep(0.02)
        raise TimeoutError(log.read_text())

    def kill(self, *which):
        for process in [self.processes[i] for i in which] or self.processes:
            process.kill()
            process.communicate()


@contextmanager
def cluster(folder) -> Iterator[Cluster]:
    folder.mkdir()
    found = Cluster(folder)
    try:
        yield found
    finally:
        found.kill()


@pytest.fixture
def run(monkeypatch, capsys):
    return functools.partial(command, monkeypatch, capsys, "rechunk")


@pytest.fixture
def store(tmp_path):
    values = np.random.default_rng(0).standard_normal((400, 200, 100)).astype("f4")
    write_array(tmp_path / "s", "a", values, layout=Layout((1, 200, 100)), dims=DIMS, codec="none")
    return values


WORDS = ("--chunks", "time=2,lat=20", "--memory", "4MiB", "--quiet", "--json")


def when_written(target, count, then):
    """Does something in another thread once the target has so many chunks."""

    def wait():
        limit = time.monotonic() + 100
        while time.monotonic() < limit:
            if len(list((target / "a/c").glob("*"))) >= count:
                then()
                return
            time.sleep(0.005)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_cluster_that_is_killed_and_started_again(tmp_path, run, store, monkeypatch):
    target = tmp_path / "t"
    monkeypatch.setattr(execute, "_PATIENCE", 2.0)
    with cluster(tmp_path / "one") as first:
        killer = when_written(target, 40, first.kill)
        status, _, err = run(tmp_path / "s", target, *WORDS, "--scheduler", first.address)
        killer.join()
    assert status == 1 and "was lost" in err and "run the command again to go on" in err and "Traceback" not in err
    # Without what workers had begun to write.
    before = {file for file in (target / "a/c").rglob("*") if file.is_file() and not file.name.endswith(".partial")}
    assert 0 < len(before) < 2000 and (target / ".rechunk/plan.json").exists()
    old = {file: file.stat().st_mtime_ns for file in before}
    with cluster(tmp_path / "two") as second:
        status, _, err = run(tmp_path / "s", target, *WORDS, "--scheduler", second.address, "--verify")
        assert status == 0, err
    assert np.array_equal(zarr.open_group(str(target))["a"][...], store)
    assert not (target / ".rechunk").exists()
    # Most of what was written before is as it was.
    again = sum(file.stat().st_mtime_ns != time_before for file, time_before in old.items())
    assert again < len(before)


def test_a_worker_that_is_killed(tmp_path, run, store):
    """The other one does its work."""
    target = tmp_path / "t"
    with cluster(tmp_path / "one") as one:
        killer = when_written(target, 40, functools.partial(one.kill, 1))
        status, _, err = run(tmp_path / "s", target, *WORDS, "--scheduler", one.address, "--verify")
        killer.join()
        assert status == 0, err
    assert np.array_equal(zarr.open_group(str(target))["a"][...], store)


def test_stores_that_workers_do_not_reach(tmp_path, run, store):
    with cluster(tmp_path / "one") as one:
        status, _, err = run(tmp_path / "s", "memory://there", *WORDS, "--scheduler", one.address)
        assert status == 1 and "is in this process" in err
        status, _, err = run(tmp_path / "s", tmp_path / "t", *WORDS[:2], "--memory", "40KiB", "--scheduler", one.address)
        assert status == 1 and "--memory: array 'a'" in err and not (tmp_path / "t").exists()
        one.kill(1, 2)
        time.sleep(1)
        status, _, err = run(tmp_path / "s", tmp_path / "t", *WORDS, "--scheduler", one.address)
        assert status == 1 and "has none" in err and not (tmp_path / "t").exists()
