"""The logger ``dali_zarr``, and below it ``dali_zarr.engine`` for what the library logs. They have no handler: Python shows
warnings by default, and the rest where logging is set up.

The library never calls Python: its thread would wait for Python's lock, which a thread that waits for the library may
hold. So the library keeps its records, and a thread of this module takes them.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Generator

from . import _native

log = logging.getLogger("dali_zarr")

_ENGINE = logging.getLogger("dali_zarr.engine")
# The crates below the engine's. Their loggers are below the engine's too, so that its level is that of all.
_CRATES = {
    "dali_zarr_base": _ENGINE.name,
    "dali_zarr_stores": f"{_ENGINE.name}.store",
    "dali_zarr_codecs": f"{_ENGINE.name}.codec",
    "dali_zarr_samples": _ENGINE.name,
    "dali_zarr_engine": _ENGINE.name,
}
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
# How long a change of the logger's level may have no effect, in milliseconds.
_WAIT_MS = 1000


class _Thread(threading.Thread):
    """Hands the library's records to Python's logging until the process ends."""

    def __init__(self):
        super().__init__(name="dali_zarr log", daemon=True)
        self._handing = threading.RLock()
        self._ends = False

    def start(self) -> None:
        _native.keep_log(True)
        super().start()

    def run(self) -> None:
        while not self._ends:
            set_level()
            if _native.wait_log(_WAIT_MS):
                self.hand_over()

    def hand_over(self) -> None:
        """Hands the library's records over. When this returns, all that were logged before the call have been handed
        over, by this thread or another one."""
        with self._handing:
            for record in _native.take_log():
                crate, *modules = record["target"].split("::")
                name = ".".join([_CRATES.get(crate, crate), *modules])
                logging.getLogger(name).log(_LEVELS[record["level"]], "%s", record["message"])

    def end(self) -> None:
        self._ends = True
        self.hand_over()
        _native.keep_log(False)
        self.join(5)


_thread: _Thread | None = None


def set_level() -> None:
    """Has the library make only the records that the logger takes."""
    _native.set_log_level(sum(_ENGINE.isEnabledFor(level) for level in _LEVELS.values()))


@contextlib.contextmanager
def engine() -> Generator[None, None, None]:
    """Context at whose end all that the library logged in it has been handed to Python's logging. A thread hands over
    later ones."""
    global _thread
    set_level()
    if _thread is None:
        _thread = _Thread()
        _thread.start()
    try:
        yield
    finally:
        _thread.hand_over()


def _end() -> None:
    if _thread is not None:
        _thread.end()


def _forget() -> None:
    global _thread
    _thread = None


atexit.register(_end)
# A forked child has no copy of the thread, and the library begins with no records there.
os.register_at_fork(after_in_child=_forget)
