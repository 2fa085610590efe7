"""Fixtures and profiles for all suites: devices that skip with their reason, time limits, hypothesis' seeds."""

from __future__ import annotations

import fcntl
import gc
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

from support import remote, zarr_here
from support.pipelines import why_no_gpu

# Imported objects stay. Looking through them for garbage again and again takes a tenth of the time of the imports.
gc.disable()
# Garbage is collected before a fork. A child would otherwise collect pipelines of earlier tests, whose threads it
# doesn't have: DALI ends the process then.
os.register_at_fork(before=gc.collect)
# Tensors of tests are small: threads of OpenMP would wait for one another for longer than they work. Where a program asks for
# more threads, they don't spin for 200 ms after each loop.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# What xarray computes by Dask takes less time than to hand it to threads. rechunk names its own threads.
os.environ.setdefault("DASK_SCHEDULER", "synchronous")
# Text is as wide as where nothing is a terminal.
os.environ["COLUMNS"] = "120"
# JAX takes three quarters of a GPU's memory otherwise, which tests in other processes need too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# The same examples on every run, so that a red CI means a change and not luck; DALI_ZARR_EXAMPLES=2000 searches further.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, max_examples=int(os.environ.get("DALI_ZARR_EXAMPLES", "40")),
    suppress_health_check=list(HealthCheck), print_blob=True,
)
settings.load_profile("fixed")


def _use_memory_for_files() -> None:
    """Puts temporary files into memory, if there is enough of it and programs may run from there; TMPDIR overrides
    this. Test stores are hundreds of thousands of small files. A disk may take a millisecond to write each of them, and
    another to remove it."""
    memory = Path("/dev/shm")
    if "TMPDIR" in os.environ or not os.access(memory, os.W_OK):
        return
    found = os.statvfs(memory)
    if found.f_bavail * found.f_frsize >= 4 << 30 and not found.f_flag & os.ST_NOEXEC:
        tempfile.tempdir = os.environ["TMPDIR"] = str(memory)


_use_memory_for_files()


zarr_here.work_here()

# No test may hang: a reader that waits for ever is one of the faults that the suites look for.
TIME_LIMIT = int(os.environ.get("DALI_ZARR_TEST_TIMEOUT", "180"))


# Without a GPU thousands of cases are left out, before anything is set up for them. The header of the report says why.
@pytest.fixture(params=["cpu"] if why_no_gpu() else ["cpu", "gpu"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both devices of the operator."""
    if request.param == "cpu":
        yield "cpu"
    else:
        with _gpu(request):
            yield "gpu"


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    """The GPU alone."""
    with _gpu(request):
        yield "gpu"


def pytest_collection_finish() -> None:
    _keep_imported()
    # Less often than by default, which took a twentieth of the tests' time: few tests leave much.
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_runtest_logfinish() -> None:
    if len(sys.modules) > _modules + 100:
        _keep_imported()


_modules = 0


def _keep_imported() -> None:
    """Excludes all imported objects, some millions, from garbage collection: looking through them took a fifth of the
    tests' time."""
    global _modules
    _modules = len(sys.modules)
    gc.collect()
    gc.freeze()


def pytest_xdist_auto_num_workers() -> int:
    """Returns one more than there are processors: many tests wait."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder for tests of what only a file system on a disk does."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@contextmanager
def _gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skips without a GPU. Tests of all workers, and of other runs on this machine, share the GPU. Tests that measure
    its memory have the mark ``quiet_gpu``, and have it alone."""
    if reason := why_no_gpu():
        pytest.skip(reason)
    quiet = request.node.get_closest_marker("quiet_gpu") is not None
    base = Path("/tmp") / f"dali-zarr-tests-{os.getuid()}"
    with open(f"{base}.queue", "w") as queue, open(f"{base}.gpu", "w") as lock:
        # A test that waits to have the GPU alone keeps the queue's lock meanwhile, so that no other test gets in before
        # it.
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if quiet else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield


@pytest.fixture(scope="session")
def small_stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stores of examples/small_stores.py, which is written once for all workers. Tests must not write
    to it."""
    main = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "small_stores.py"))["main"]
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "small-stores"
    with open(shared / "small-stores.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            main(shared / "small-stores.new")
            (shared / "small-stores.new").rename(folder)
    return folder


@pytest.fixture
def values(request: pytest.FixtureRequest) -> np.ndarray:
    """Noise, float32, in the shape that the test's module calls ``SHAPE``, or in that of the tests of stores on servers."""
    shape = getattr(request.module, "SHAPE", remote.SHAPE)
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an S3 server for all tests. Each test writes to a prefix of its own."""
    pytest.importorskip("moto.server")
    with remote.s3_server(tmp_path_factory.mktemp("moto") / "log") as url:
        yield url


@pytest.fixture
def s3_options(s3: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Storage options for it, with its credentials in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    return {"aws_endpoint": s3, "aws_region": "us-east-1", "aws_allow_http": True}


def pytest_report_header() -> str:
    return f"{why_no_gpu()}; tests are for the CPU alone" if why_no_gpu() else "tests are for the CPU and the GPU"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quiet_gpu: no other test uses the GPU meanwhile")
    config.addinivalue_line("markers", "timeout_s(seconds): ends the test with an error after that many seconds")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """Raises TimeoutError in a test that lasts too long; a call stuck in native code ends the run with its stacks shown."""
    marker = item.get_closest_marker("timeout_s")
    limit = int(marker.args[0]) if marker else TIME_LIMIT

    def expire(_signal, _frame):
        raise TimeoutError(f"{item.nodeid} took longer than {limit} s")

    import faulthandler

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(limit)
    faulthandler.dump_traceback_later(limit + 30, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
