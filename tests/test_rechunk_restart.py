"""``rechunk`` started again after a kill at any moment, and within its memory."""

from __future__ import annotations

import functools
import json
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from dali_zarr._rechunk import execute, work
from dali_zarr._rechunk import run as running
from dali_zarr._rechunk.scratch import Scratch
from support.command_line import command
from support.processes import start, start_program
from support.stores import Layout, write_array, write_era5

pytest.importorskip("dask")
pytestmark = pytest.mark.filterwarnings("ignore")

DIMS = ("time", "lat", "lon")
TESTS = Path(__file__).parent


@pytest.fixture
def run(monkeypatch, capsys):
    return functools.partial(command, monkeypatch, capsys, "rechunk")


def content(folder):
    """All files, but for the order of what zarr-python lists in consolidated metadata."""
    return {
        str(file.relative_to(folder)): json.loads(file.read_bytes()) if file.suffix == ".json" else file.read_bytes()
        for file in folder.rglob("*") if file.is_file()
    }


class Killed(BaseException):
    """What nothing catches."""


class Power:
    """Fails at the given write or deletion of a local store, and at all that follow, as if the process had ended there."""

    def __init__(self, monkeypatch):
        self.left: int | None = None
        self.count = 0
        for name in ("set", "set_if_not_exists", "delete", "delete_dir"):
            monkeypatch.setattr(zarr.storage.LocalStore, name, self._failing(getattr(zarr.storage.LocalStore, name)))

    def _failing(self, method):
        @functools.wraps(method)
        async def failing(*args, **kwargs):
            self.count += 1
            if self.left is not None:
                if self.left <= 0:
                    raise Killed
                self.left -= 1
            return await method(*args, **kwargs)

        return failing


@pytest.mark.parametrize("words", [
    ["--chunks", "time=1,level=1"],
    ["--chunks", "time=1,level=1", "--format", "2"],
    ["--chunks", "latitude=3,longitude=5", "--memory", "64KiB", "--workers", "1"],
], ids=["direct", "v2", "staged"])
def test_a_kill_at_every_write_is_made_good(tmp_path, run, monkeypatch, words):
    """Whatever was written last, the next run leaves the same files as one that wasn't interrupted."""
    write_era5(tmp_path / "s", hours=6, levels=2, lat=6, lon=10)
    assert run(tmp_path / "s", tmp_path / "whole", *words, "--quiet")[0] == 0
    expected = content(tmp_path / "whole")
    power = Power(monkeypatch)
    assert run(tmp_path / "s", tmp_path / "counted", *words, "--quiet")[0] == 0
    count, at = power.count, 0
    assert count > 20
    while at < count:
        target = tmp_path / str(at)
        power.left = at
        with pytest.raises(Killed):
            run(tmp_path / "s", target, *words, "--quiet")
        power.left = None
        status, _, err = run(tmp_path / "s", target, *words, "--quiet")
        assert (status, err) == (0, ""), at
        assert content(target) == expected, at
        at += 1 if at < 6 or at > count - 6 else 7


STAGED = ("--chunks", "lat=10,lon=10", "--memory", "256KiB", "--workers", "1", "--quiet", "--verify")


@pytest.fixture
def crossing(tmp_path):
    """Fields of noise with a hole of the fill value."""
    values = np.random.default_rng(0).standard_normal((60, 45, 65)).astype("f4")
    values[:40, :30] = 0
    write_array(tmp_path / "s", "a", values, layout=Layout((1, 45, 65)), dims=DIMS)
    return values


def test_an_intermediate_array_of_files_that_is_half_written(tmp_path, run, crossing, monkeypatch):
    """A file that was cut short is written again, with the region that it is part of."""
    write = Scratch.__setitem__
    left = iter(range(3))

    def failing(self, region, block):
        write(self, region, block)
        if next(left, None) is None:
            newest = max(self._folder.iterdir(), key=lambda one: one.stat().st_mtime_ns)
            newest.write_bytes(newest.read_bytes()[:7])
            raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Scratch, "__setitem__", failing)
        run(tmp_path / "s", tmp_path / "t", *STAGED)
    assert list((tmp_path / "t/.rechunk/scratch/a").iterdir())
    assert run(tmp_path / "s", tmp_path / "t", *STAGED)[0] == 0
    assert np.array_equal(zarr.open_group(str(tmp_path / "t"))["a"][...], crossing)
    assert not (tmp_path / "t/.rechunk").exists()


@pytest.mark.parametrize("first", ["files", "zarr"])
def test_a_run_goes_on_with_the_other_kind_of_intermediate_array(tmp_path, run, crossing, monkeypatch, first):
    """As on a machine with more memory, or less."""
    memory = {"files": 1 << 40, "zarr": 0}
    other = "zarr" if first == "files" else "files"
    copy, calls = work.copy, []

    def failing(source, target, *rest):
        calls.append(isinstance(target, Scratch))
        if isinstance(source, Scratch) or str(getattr(source, "path", "")).startswith(".rechunk"):
            raise OSError("ended")
        copy(source, target, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(work, "copy", failing)
        patched.setattr(running, "machine_memory", lambda: memory[first])
        assert run(tmp_path / "s", tmp_path / "t", *STAGED)[0] == 1
    assert calls[0] == (first == "files") and len(calls) > 1
    monkeypatch.setattr(running, "machine_memory", lambda: memory[other])
    status, _, err = run(tmp_path / "s", tmp_path / "t", *STAGED)
    assert status == 0, err
    assert np.array_equal(zarr.open_group(str(tmp_path / "t"))["a"][...], crossing)
    assert not (tmp_path / "t/.rechunk").exists()


def test_what_is_done_is_not_done_again(tmp_path, run, monkeypatch):
    values = np.random.default_rng(0).standard_normal((64, 40, 40)).astype("f4")
    write_array(tmp_path / "s", "a", values, layout=Layout((1, 40, 40)), dims=DIMS)
    words = (tmp_path / "s", tmp_path / "t", "--chunks", "time=2", "--quiet", "--json", "--memory", "200KiB", "--workers", "2")
    calls: list[object] = []
    copy = work.copy

    def failing(source, target, selection, region, in_flight):
        calls.append(region)
        if len(calls) == 5:
            raise OSError("no space left on device")
        copy(source, target, selection, region, in_flight)

    monkeypatch.setattr(work, "copy", failing)
    status, _, err = run(*words)
    assert status == 1 and "no space left on device" in err
    status, out, _ = run(*words)
    assert status == 0
    (array,) = json.loads(out)["arrays"]
    # The one that failed, and at most one that ran beside it, are repeated.
    assert array["copies"][0]["regions"] + 1 <= len(calls) <= array["copies"][0]["regions"] + 2
    assert np.array_equal(zarr.open_group(str(tmp_path / "t"))["a"][...], values)


def test_another_command_does_not_go_on(tmp_path, run, monkeypatch):
    """With other options, or another source, an unfinished target is refused and stays as it is."""
    for name in ("s", "other"):
        write_era5(tmp_path / name, hours=6 if name == "s" else 7)
    def failing(*_):
        raise OSError("ended")

    with monkeypatch.context() as patched:
        patched.setattr(work, "copy", failing)
        assert run(tmp_path / "s", tmp_path / "t", "--chunks", "time=1")[0] == 1
    before = content(tmp_path / "t")
    assert ".rechunk/plan.json" in before
    for words in ((tmp_path / "s", "--chunks", "time=2"), (tmp_path / "other", "--chunks", "time=1")):
        status, _, err = run(words[0], tmp_path / "t", *words[1:])
        assert status == 1 and "found the unfinished target of another source or other options" in err
    status, _, err = run(tmp_path / "s", tmp_path / "t", "--chunks", "time=1", "--memory", "1KiB")
    assert status == 1 and "--memory" in err and content(tmp_path / "t") == before
    assert run(tmp_path / "s", tmp_path / "t", "--chunks", "time=1", "--workers", "1")[0] == 0
    assert ".rechunk/plan.json" not in content(tmp_path / "t")


# Tasks that take their time, so that there is some to end the process in. After 15 no task ends: on a busy machine the process
# would otherwise be done before it is killed.
SLOW = """
import itertools, sys, time
from dali_zarr._rechunk import run as running
from dali_zarr._rechunk import work
from dali_zarr._rechunk.scratch import Scratch
from dali_zarr.__main__ import main
copy, number = work.copy, itertools.count(1)
work.copy = lambda *args: (copy(*args), time.sleep(0.05 if next(number) < 15 else 1000))
sys.exit(main())
"""


def test_a_process_that_is_killed(tmp_path, run):
    """By the system, several times, without a chance to tidy up."""
    values = np.random.default_rng(0).standard_normal((200, 40, 40)).astype("f4")
    write_array(tmp_path / "s", "a", values, layout=Layout((1, 40, 40)), dims=DIMS)
    words = [str(tmp_path / "s"), str(tmp_path / "t"), "--chunks", "time=2", "--memory", "200KiB", "--workers", "2", "--quiet"]
    written = 0
    for _ in range(2):
        process = start(SLOW, "rechunk", *words, imports="dask")
        before, limit = written, time.monotonic() + 120
        while written < before + 15 and time.monotonic() < limit:
            time.sleep(0.02)
            written = len(list((tmp_path / "t").rglob("c/*/0/0")))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert 30 <= written < 100 and (tmp_path / "t/.rechunk/plan.json").exists()
    assert run(*words, "--verify")[0] == 0
    assert np.array_equal(zarr.open_group(str(tmp_path / "t"))["a"][...], values)
    assert not (tmp_path / "t/.rechunk").exists() and not list((tmp_path / "t").rglob("*.partial"))


MIB = 1 << 20
LIMITED = {
    "split": ("tens", "--chunks time=1", 16),
    "crossing": ("fields", "--chunks lat=20,lon=20", 20),
    "crossing with more": ("fields", "--chunks lat=20,lon=20", 32),
    "from shards": ("shards", "--chunks lat=20,lon=20", 16),
    "from shards by many": ("shards", "--chunks lat=20,lon=20 --workers 16", 16),
    "to shards": ("tens", "--chunks time=1 --shards time=10", 16),
    "type": ("tens", "--chunks time=1 --dtype float16", 16),
    "list": ("tens", "--chunks time=1 --isel time=0,1,5,9,50,7,99,3,2,2 lat=1,3,5,0,150", 16),
}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Stores of 32 MB, mostly twice the limit, beside one that is small. They hold noise, which zstd gives up on soon."""
    folder = tmp_path_factory.mktemp("large")
    values = np.random.default_rng(0).standard_normal((160, 200, 250), "f4")
    write_array(folder / "small", "a", values[:4, :20, :20], layout=Layout((1, 20, 20)), dims=DIMS)
    write_array(folder / "fields", "a", values, layout=Layout((1, 200, 250)), dims=DIMS)
    write_array(folder / "tens", "a", values, layout=Layout((10, 200, 250)), dims=DIMS)
    write_array(folder / "shards", "a", values, layout=Layout((1, 200, 250), shards=(20, 200, 250)), dims=DIMS)
    return folder


@pytest.mark.parametrize("case", LIMITED)
def test_memory_stays_below_its_limit(tmp_path, large, case):
    """What the process holds beyond its start, sampled while it works, with the comparison at the end."""
    source, words, limit = LIMITED[case]
    common = ["--verify", "--quiet", "--json"]
    warm = ["rechunk", str(large / "small"), str(tmp_path / "w"), "--chunks", "time=2", *common]
    measured = ["rechunk", str(large / source), str(tmp_path / "t"), *words.split(), "--memory", f"{limit}MiB", *common]
    process = start_program(TESTS / "support" / "memory.py", *warm, "--", *measured, imports="dask")
    out, err = process.communicate()
    assert process.returncode == 0, err
    grown = int(out.split()[-1])
    assert grown < limit * MIB, f"{grown / MIB:.1f} MiB"


@pytest.mark.parametrize("cores", [2, 16, 64])
def test_what_all_threads_may_keep(monkeypatch, cores):
    """The allocator keeps freed blocks for each thread. With the threads that zarr-python has on machines with many cores this must
    stay a part of the memory."""
    told = {}
    monkeypatch.setattr(execute.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(execute.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=told.__setitem__))
    for memory in (16 * MIB, 20 * MIB, 500 * MIB):
        execute.Local(2, memory)
        trim_threshold, mmap_threshold = told[-1], told[-3]
        assert mmap_threshold < trim_threshold
        assert trim_threshold * (2 + min(32, cores + 4)) <= 0.31 * memory, "planned for tasks is the rest"


# No file may be larger, as on a disk with so much room.
LIMITED_FILES = """
import resource, signal, sys
from dali_zarr.__main__ import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
sys.exit(main())
"""


def test_a_full_disk_is_told_in_a_sentence(tmp_path, run):
    """Whatever else is written at that time; and the run goes on when there is room."""
    values = np.random.default_rng(0).standard_normal((64, 64, 64)).astype("f4")
    write_array(tmp_path / "s", "a", values, layout=Layout((1, 64, 64)), dims=DIMS)
    words = [str(tmp_path / "s"), str(tmp_path / "t"), "--chunks", "lat=8,lon=8", "--codec", "none", "--quiet"]

    process = start(LIMITED_FILES, "rechunk", *words, imports="dask")
    _, err = process.communicate(120)
    (line,) = err.splitlines()
    assert process.returncode == 1 and line.endswith("File too large; when that is mended, the same command goes on")
    assert run(*words, "--verify")[0] == 0 and ".rechunk/plan.json" not in content(tmp_path / "t")


# What a shell starts in the background ignores the signal.
INTERRUPTED = """
import signal, sys
from dali_zarr.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


def test_an_interruption_is_told_in_a_sentence(tmp_path, run):
    """By Ctrl-C, soon, and the run goes on where it was."""
    values = np.random.default_rng(0).standard_normal((64, 64, 64)).astype("f4")
    write_array(tmp_path / "s", "a", values, layout=Layout((8, 64, 64)), dims=DIMS)
    words = [str(tmp_path / "s"), str(tmp_path / "t"), "--chunks", "time=4,lat=4,lon=4", "--quiet"]
    process = start(INTERRUPTED, "rechunk", *words, imports="dask")
    while not (tmp_path / "t/a/c").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "python -m dali_zarr rechunk: interrupted\n")
    assert (tmp_path / "t/.rechunk/plan.json").exists()
    assert run(*words, "--verify")[0] == 0 and ".rechunk/plan.json" not in content(tmp_path / "t")


# As an interruption leaves it that comes between the making of a coroutine and the wait for it.
UNAWAITED = """
import sys
import dali_zarr.__main__ as command

async def write():
    pass

def interrupted(*_):
    command.left = write()
    raise KeyboardInterrupt

command._run = interrupted
status = command.main()
del command.left
sys.exit(status)
"""


def test_an_interruption_before_a_wait_is_told_in_the_same_sentence(tmp_path):
    process = start(UNAWAITED, "rechunk", str(tmp_path / "s"), str(tmp_path / "t"), "--chunks", "time=4", imports="dask")
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "python -m dali_zarr rechunk: interrupted\n")
