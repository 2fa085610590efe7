"""Exceptions as users need them: the reader's message first, then what DALI says of the operator's place; and MemoryError,
which DALI hasn't, for readers that need more memory than there is."""

import atexit
import contextlib
import functools
import importlib
import re
import signal
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from threading import get_ident, main_thread
from typing import Any

from . import _dali, _log, _native

# What the engine says, between DALI's account of where the operator was made and its last words.
_MESSAGE = re.compile(r"(?:^|\n)(zarr_reader(?: '[^'\n]*')?: .*?)(?=\n(?:Current pipeline object|Stacktrace)|\Z)", re.DOTALL)

# The same, once it is the first.
_SHORT = re.compile(r"(zarr_reader(?: '[^'\n]*')?: .*?)\n\n(?:Critical error|Error in) ", re.DOTALL)


def first(text: str) -> str:
    """A text of DALI with the reader's own message, if there is one, before the rest."""
    found = _MESSAGE.search(text)
    if found is None or found.start(1) == 0:
        return text
    rest = (text[: found.start(1)] + text[found.end(1) :]).replace("\nencountered:\n", "\n")
    return f"{_native.hinted(found[1].rstrip())}\n\n{rest.strip()}"


def shorten(error: Exception) -> None:
    """Leaves out what follows the reader's own message, for pipelines that users didn't write: where in them the operator was made
    is no help. Errors of other operators stay as they are."""
    found = _SHORT.match(str(error))
    if found is not None:
        error.args = (found[1],)


def _translated(method: Callable[..., Any], *positional: Any, **arguments: Any) -> Any:
    try:
        return method(*positional, **arguments)
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        text = first(str(error))
        lacking = _native.memory_error() if isinstance(error, RuntimeError) else None
        if lacking is not None and lacking in text:
            raise MemoryError(text) from None
        if text != str(error):
            error.args = (text,)
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
    """What DALI says around the place of an operator whose constructor throws."""
    return f"\n\nCritical error when building pipeline:\n{place}\n\nCurrent pipeline object is no longer valid."


@contextlib.contextmanager
def _built(place: Callable[[str], str]) -> Generator[None, None, None]:
    with _log.engine(), _native.opening(place):
        yield


# Not signal.getsignal, which looks for its answer in an enumeration: that takes longer than all else around a run.
_handler: Callable[[int], Any] = importlib.import_module("_signal").getsignal


class _Run:
    """Around a call that may wait for a batch: Ctrl-C ends the wait, if Python's own handler is to hear of it."""

    def __enter__(self) -> None:
        self._watched = get_ident() == main_thread().ident and _handler(signal.SIGINT) is signal.default_int_handler
        if self._watched:
            _native.watch_interrupts(True)

    def __exit__(self, *_: object) -> None:
        if self._watched:
            _native.watch_interrupts(False)


def hook() -> None:
    """Where pipelines, and readers of the dynamic mode, are built and run: errors are translated, Python's lock is free while
    stores are opened, Ctrl-C ends waits, and what is logged while they are built goes to Python's logging. Does nothing the second
    time."""
    backend = _dali.module("backend_impl")
    for owner, names in ((backend.Pipeline, ("Outputs", "ShareOutputs", "Run")), (backend._Operator, ("SetupAndRun",))):
        for name in names:
            _replace(owner, name, _Run)
    _replace(backend.Pipeline, "Build", functools.partial(_built, _in_pipeline))
    _replace(backend._Operator, "__init__", functools.partial(_built, lambda _place: ""))
    # What DALI ends when the process does may wait for a batch.
    atexit.register(_native.interrupt)
