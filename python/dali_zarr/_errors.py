"""Translates DALI's exceptions for users. The reader's message comes first, then what DALI says about where the
operator was made. Readers that need more memory than there is raise MemoryError, which DALI doesn't have."""

import atexit
import contextlib
import functools
import importlib
import signal
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from threading import get_ident, main_thread
from typing import Any

from . import _dali, _log, _native
from ._failures import Failure, attach, failure_of


def _first(text: str, failure: Failure) -> str:
    """Moves the reader's own message to the front of a text of DALI's that has it."""
    before, _, after = text.partition(failure.raw)
    if not before:
        return text
    rest = (before + after).replace("\nencountered:\n", "\n")
    return f"{failure.message}\n\n{rest.strip()}"


def shorten(error: Exception) -> None:
    """Cuts an error's text after the reader's own message. This is for pipelines that users didn't write: where the
    operator was made doesn't help them. Errors of other operators stay as they are."""
    failure = failure_of(error)
    if failure is not None:
        error.args = (failure.message,)


def _translated(method: Callable[..., Any], *positional: Any, **arguments: Any) -> Any:
    try:
        return method(*positional, **arguments)
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        failure = None if failure_of(error) else _native.operator_error(str(error))
        if failure is None:
            raise
        text = _first(str(error), failure)
        if failure.details["kind"] == "memory":
            raise attach(MemoryError(text), failure) from None
        error.args = (text,)
        attach(error, failure)
        raise


def _replace(owner: Any, name: str, around: Callable[[], AbstractContextManager[None]]) -> None:
    method = getattr(owner, name)
    if getattr(method, "_dali_zarr", False):
        return

    @functools.wraps(method)
    def replacement(*positional: Any, **arguments: Any) -> Any:
        with around():
            return _translated(method, *positional, **arguments)

    replacement.__dict__["_dali_zarr"] = True
    setattr(owner, name, replacement)


def _in_pipeline(place: str) -> str:
    """Returns the text that DALI adds when an operator's constructor throws. ``place``: where the operator was made."""
    return f"\n\nCritical error when building pipeline:\n{place}\n\nCurrent pipeline object is no longer valid."


@contextlib.contextmanager
def _built(place: Callable[[str], str]) -> Generator[None, None, None]:
    with _log.engine(), _native.opening(place):
        yield


# Not signal.getsignal: it looks up its result in an enumeration, which takes longer than everything else around a run.
_handler: Callable[[int], Any] = importlib.import_module("_signal").getsignal


class _Run:
    """Context of a call that may wait for a batch. In the main thread, and if SIGINT has Python's own handler, Ctrl-C
    ends the wait."""

    def __enter__(self) -> None:
        self._watched = get_ident() == main_thread().ident and _handler(signal.SIGINT) is signal.default_int_handler
        if self._watched:
            _native.watch_interrupts(True)

    def __exit__(self, *_: object) -> None:
        if self._watched:
            _native.watch_interrupts(False)


def hook() -> None:
    """Wraps the methods that build and run pipelines and readers of the dynamic mode. Errors are translated, Python's
    lock is free while stores are opened, Ctrl-C ends waits, and what is logged during the build goes to Python's
    logging. Wraps nothing the second time."""
    backend = _dali.module("backend_impl")
    for owner, names in ((backend.Pipeline, ("Outputs", "ShareOutputs", "Run")), (backend._Operator, ("SetupAndRun",))):
        for name in names:
            _replace(owner, name, _Run)
    _replace(backend.Pipeline, "Build", functools.partial(_built, _in_pipeline))
    _replace(backend._Operator, "__init__", functools.partial(_built, lambda _place: ""))
    # When the process ends, DALI ends pipelines that may be waiting for a batch.
    atexit.register(_native.interrupt)
