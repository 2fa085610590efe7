"""Where tasks run: threads of this process, or a cluster of dask.distributed; and how much memory they may take there."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import itertools
import os
import runpy
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from .._selection.stores import needed
from .._text import shape, size
from . import work
from .layout import Wanted
from .plan import smallest

# The share of the memory that is planned for tasks. The rest is for allocators, metadata and Dask.
_PLANNED = 0.7
_BATCH = 2048
# With fewer bytes of memory than this, what the allocator keeps for each thread matters.
_TIGHT = 1 << 30
# Seconds within which a cluster's scheduler has to answer for the first time.
_CONNECTING = 10.0
# Seconds for which a cluster may have no worker.
_PATIENCE = 60.0
# How many times zarr-python's calls are cancelled after an error.
_ENDINGS = 10
_LOST = ("CancelledError", "CommClosedError", "KilledWorker")
# Objects that a task reads or writes at a time; zarr-python's own limit is 10.
_IN_FLIGHT = (16, 8, 4, 2, 1)


@dataclass(frozen=True)
class Task:
    """A region of a copy: its number there, and what a worker calls."""

    copy: str
    number: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Executor(Protocol):
    """Runs tasks. In each process ``workers`` tasks share ``memory`` bytes. In all processes ``slots`` tasks run at a
    time."""

    workers: int
    memory: int

    @property
    def slots(self) -> int: ...

    def check(self, array: Any, target: Any) -> None:
        """Raises where workers can't open an array of the source, or the target is in this process only."""
        ...

    def run(self, tasks: Iterator[Task], done: Callable[[Task, Any], None]) -> None:
        """Runs all tasks, in any order. Calls ``done`` for each that has ended, in the calling thread."""
        ...

    @property
    def in_flight(self) -> int | None:
        """How many objects a task may have in flight, which tasks are told; None where :meth:`limited` sets it."""
        ...

    def limited(self, in_flight: int) -> AbstractContextManager[Any]:
        """Returns a context in which tasks have this many objects in flight."""
        ...

    def close(self) -> None:
        """Disconnects from the workers."""
        ...


class Local:
    """Runs tasks in threads of this process."""

    def __init__(self, workers: int | None, memory: int | None):
        self.workers = workers or len(os.sched_getaffinity(0))
        self.memory = memory or machine_memory() // 4
        self.in_flight = None
        if self.memory < _TIGHT:
            _give_back_memory(self.memory, self.workers)
        self._dask = needed("dask", "rechunk")
        self._callback: Any = needed("dask.callbacks", "rechunk").Callback

    @property
    def slots(self) -> int:
        return self.workers

    def check(self, array: Any, target: Any) -> None:
        pass

    def limited(self, in_flight: int) -> AbstractContextManager[Any]:
        return needed("zarr", "rechunk").config.set({"async.concurrency": in_flight})

    def run(self, tasks: Iterator[Task], done: Callable[[Task, Any], None]) -> None:
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                while batch := list(itertools.islice(tasks, _BATCH)):
                    named = {f"{task.copy}/{task.number}": task for task in batch}
                    lazy = [self._delayed(task, name) for name, task in named.items()]
                    with self._callback(posttask=functools.partial(_told, named, done)):
                        self._dask.compute(*lazy, scheduler="threads", pool=pool, num_workers=self.workers, optimize_graph=False)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                # Several times: a task that is between two calls of zarr-python begins another one, which is cancelled
                # then.
                for _ in range(_ENDINGS):
                    needed("zarr.core.sync", "rechunk").sync(_ended())
                    time.sleep(0.02)
                raise

    def _delayed(self, task: Task, name: str) -> Any:
        return self._dask.delayed(functools.partial(task.function, *task.arguments), pure=False)(dask_key_name=name)

    def close(self) -> None:
        pass


async def _ended() -> None:
    """Cancels what zarr-python reads and writes. After an error it would go on, and print many lines when the process
    ends."""
    this = cast("asyncio.Task[Any]", asyncio.current_task())
    while rest := asyncio.all_tasks() - {this}:
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def _told(
    named: Mapping[str, Task], done: Callable[[Task, Any], None], key: Any, result: Any, _dsk: Any, _state: Any, _worker: Any
) -> None:
    if key in named:
        done(named[key], result)


class Cluster:
    """Runs tasks on a cluster's workers. ``memory`` and ``workers`` are those of each worker."""

    def __init__(self, address: str, memory: int | None):
        distributed: Any = needed("distributed", "--scheduler")
        try:
            self._client: Any = distributed.Client(address, timeout=_CONNECTING, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise ValueError(f"--scheduler: no scheduler answers at {address}: {error}") from error
        self._wait: Any = distributed.wait
        self._address = address
        self.in_flight: int | None = None
        # Functions of a main program are sent by value, those of a package by name.
        self._sent = runpy.run_path(str(work.__file__), run_name="__main__")
        workers = cast("list[dict[str, Any]]", list(self._client.scheduler_info(n_workers=-1)["workers"].values()))
        if not workers:
            self.close()
            raise ValueError(f"--scheduler: expected workers, but the cluster at {address} has none")
        self.workers = max(int(worker["nthreads"]) for worker in workers)
        self.slots = sum(int(worker["nthreads"]) for worker in workers)
        limits = [int(worker["memory_limit"]) for worker in workers if worker["memory_limit"]]
        self.memory = memory or (min(limits) // 2 if limits else machine_memory() // 4)

    def check(self, array: Any, target: Any) -> None:
        for store in (array.store, target):
            if "memory" in str(getattr(getattr(store, "fs", None), "protocol", "")):
                raise ValueError(f"--scheduler: expected a store that all workers reach, but {store} is in this process")
        try:
            self._client.run(self._sent["open_again"], array)
        except Exception as error:
            raise ValueError(f"--scheduler: a worker of {self._address} can't open {array.store}: {error}") from error

    def limited(self, in_flight: int) -> AbstractContextManager[Any]:
        self.in_flight = in_flight
        return _Nothing()

    def run(self, tasks: Iterator[Task], done: Callable[[Task, Any], None]) -> None:
        running: dict[Any, Task] = {}

        def submit(count: int) -> None:
            for task in itertools.islice(tasks, count):
                running[self._submitted(task)] = task

        try:
            submit(2 * self.slots)
            while running:
                ended = self._ended(list(running))
                for future in ended:
                    done(running.pop(future), future.result())
                submit(len(ended))
        except Exception as error:
            if any(one.__name__ in _LOST for one in type(error).__mro__):
                raise self._lost(error) from error
            raise
        finally:
            for future in running:
                future.cancel()

    def _submitted(self, task: Task) -> Any:
        return self._client.submit(self._sent[task.function.__name__], *task.arguments, pure=False, retries=2)

    def _ended(self, futures: list[Any]) -> list[Any]:
        """Waits until a future has ended; returns those that have.

        Raises:
            RuntimeError: There has been no worker for some time.
        """
        without_workers: float | None = None
        while True:
            with contextlib.suppress(TimeoutError), self._client.as_current():
                return list(self._wait(futures, timeout=1, return_when="FIRST_COMPLETED").done)
            if self._client.status == "running" and self._client.scheduler_info(n_workers=-1)["workers"]:
                without_workers = None
                continue
            without_workers = without_workers or time.monotonic()
            if time.monotonic() - without_workers > _PATIENCE:
                raise self._lost("it has no workers")

    def _lost(self, why: object) -> RuntimeError:
        return RuntimeError(f"--scheduler: the cluster at {self._address} was lost ({why}); run the command again to go on")

    def close(self) -> None:
        self._client.close(timeout=2)


class _Nothing(AbstractContextManager[None]):
    def __exit__(self, *_: object) -> None:
        return None


def budget(executor: Executor, arrays: list[Wanted]) -> tuple[int, int]:
    """Returns how many bytes a task may take, and how many objects it may have in flight: as many as leave most of its
    bytes to the block that it copies. Where memory is short, it lowers the number of threads; the workers of a cluster
    stay.

    Raises:
        ValueError: The memory isn't enough for one shard or chunk.
    """
    whole = int(executor.memory * _PLANNED)
    fixed = isinstance(executor, Cluster)
    least = {n: max((smallest(array.axes(), array.sizes(n)) for array in arrays), default=0) for n in _IN_FLIGHT}
    for workers in [executor.workers] if fixed else range(executor.workers, 0, -1):
        for in_flight, bytes_needed in least.items():
            if bytes_needed <= whole // workers // (4 if in_flight > 1 else 1):
                executor.workers = workers
                return whole // workers, in_flight
    worst = max(arrays, key=lambda array: smallest(array.axes(), array.sizes(1)))
    needed_bytes = smallest(worst.axes(), worst.sizes(1)) * (executor.workers if fixed else 1)
    what = "shard" if worst.shards else "chunk"
    raise ValueError(
        f"--memory: array {worst.name!r}: expected at least {_whole_mebibytes(needed_bytes / _PLANNED)} for one {what} of "
        f"{shape(worst.unit)} and the source's chunks of {shape(worst.source.chunks)}, but found {size(executor.memory)}; give "
        f"more memory, or smaller {what}s"
    )


def _give_back_memory(memory: int, workers: int) -> None:
    """Makes glibc give large blocks back to the system when they are freed. Otherwise each of the threads that decode
    and encode keeps some, and memory grows beyond what tasks hold. All threads together may keep a quarter of
    ``memory``: new blocks cost time. zarr-python's threads are more than the workers on a machine with many cores."""
    threads = workers + (needed("zarr", "rechunk").config.get("threading.max_workers") or min(32, (os.cpu_count() or 1) + 4))
    with contextlib.suppress(OSError, AttributeError):
        libc, large = ctypes.CDLL(None), max(memory // (8 * threads), 64 << 10)
        # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h.
        libc.mallopt(-3, large)
        libc.mallopt(-1, 2 * large)


def _whole_mebibytes(count: float) -> str:
    return f"{-(-int(count) // (1 << 20))}MiB"


def machine_memory() -> int:
    """Returns the bytes of memory of this machine, or of its control group if that has fewer."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found = min(found, int(Path(file).read_text()))
        except (OSError, ValueError):
            continue
    return found
