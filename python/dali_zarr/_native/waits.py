"""Waits for the library, in which handlers of signals run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
from collections.abc import Callable, Generator
from typing import TypeVar

from . import library
from .library import POINTER, check, error_of, loaded

T = TypeVar("T")

# The longest single wait for the library, in milliseconds. Python runs handlers of signals between two waits.
_WAIT_MS = 50
# What :func:`wait_run` returns of a run that waits for a batch.
WAITS = 1

# PyErr_Restore: raises an exception, given by its type, value and traceback.
_restore = ctypes.PYFUNCTYPE(None, POINTER, POINTER, POINTER)(("PyErr_Restore", ctypes.pythonapi))


class _Waiter:
    """A thread that makes one call after the other. On a busy machine a new thread takes milliseconds to begin."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="dali_zarr wait", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._calls.get()()

    def call(self, work: Callable[[], None]) -> None:
        self._calls.put(work)


# Those that nobody waits for. There is one, and one more for each call that was interrupted while another began.
_idle: list[_Waiter] = []
# A child of a fork has none of its parent's threads.
os.register_at_fork(after_in_child=_idle.clear)


def interruptible(work: Callable[[], T]) -> T:
    """Runs ``work``, which may wait for a store, and returns its result. Handlers of signals run meanwhile. An exception of
    theirs, as of Ctrl-C, ends the call; then ``work`` goes on in its thread until the store answers or times out.

    Python runs handlers only in the main thread, and only while it runs Python code. So another thread does the work.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    result: list[T] = []
    errors: list[BaseException] = []
    ended = threading.Event()
    # Only the main thread takes one.
    waiter = _idle.pop() if _idle else _Waiter()

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001  (raised by the thread that waits)
            errors.append(error)
        _idle.append(waiter)
        ended.set()

    waiter.call(run)
    ended.wait()
    if errors:
        raise errors[0]
    return result[0]


@contextlib.contextmanager
def opening(place: Callable[[str], str]) -> Generator[list[int], None, None]:
    """Context in which DALI makes operators. They open their stores at its end, while Python's lock is free and handlers of
    signals run. Gives a list, which then has the numbers of the operators.

    Raises:
        ValueError, TypeError, IndexError, RuntimeError, MemoryError: A store can't be opened. After the message stands
            what ``place`` returns for the place where the operator was made.
    """
    opened = ctypes.c_int32()
    check(loaded().dali_zarr_defer_opening(1))
    try:
        numbers: list[int] = []
        yield numbers
        while not opened.value:
            status = loaded().dali_zarr_wait_opened(_WAIT_MS, ctypes.byref(opened))
            if status:
                raise error_of(status, place)
        numbers += _operators()
    finally:
        check(loaded().dali_zarr_defer_opening(0))


def _operators() -> list[int]:
    """Returns the numbers of the operators that DALI has made on this thread in :func:`opening`."""
    count = ctypes.c_size_t(0)
    check(loaded().dali_zarr_operators(None, ctypes.byref(count)))
    numbers = (ctypes.c_uint64 * count.value)()
    check(loaded().dali_zarr_operators(numbers, ctypes.byref(count)))
    return list(numbers)


def _wait_run(called: ctypes.CDLL | None, operator: int, runs: int, milliseconds: int) -> int:
    outlook = ctypes.c_int32()
    if called is not None:
        called.dali_zarr_wait_runs(operator, runs, milliseconds, ctypes.byref(outlook))
    return outlook.value


def has_run(operator: int, runs: int) -> bool:
    """Whether an operator has ended ``runs`` runs since it was made."""
    return not _wait_run(library.with_gil(), operator, runs, 0)


def wait_run(operator: int, runs: int) -> int:
    """Waits for the end of an operator's run, for a short time. Returns 0 if it has ended, :data:`WAITS` if it waits for a
    batch, and another number if it hasn't begun."""
    return _wait_run(library.unless_missing(), operator, runs, _WAIT_MS)


def end_waits(operator: int) -> None:
    """Ends the waits of an operator, whose batches nobody takes any more."""
    called = library.with_gil()
    if called is not None:
        called.dali_zarr_end_waits(operator)


def watch_signals(watched: bool) -> bool:
    """Sets whether handlers of signals run while an operator waits on this thread, the main one. Returns what was set before."""
    called = library.with_gil()
    return called is not None and bool(called.dali_zarr_watch_signals(watched))


def raise_raised() -> None:
    """Raises the exception that a handler raised while an operator waited on this thread, if there is one."""
    exception, called = (POINTER * 3)(), library.with_gil()
    if called is not None:
        called.dali_zarr_take_raised(exception)
    if exception[0]:
        try:
            _restore(*exception)
        except BaseException as error:
            # Not DALI's error, which says only that the operator didn't end its run.
            error.__suppress_context__ = True
            raise


def interrupt() -> None:
    """Ends all waits for batches."""
    called = library.unless_missing()
    if called is not None:
        called.dali_zarr_interrupt()
