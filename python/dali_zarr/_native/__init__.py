"""The C ABI of the library (``include/dali_zarr.h``), as far as Python needs it."""

from .calls import (
    all_stats,
    arrays,
    bad_chunks,
    explain,
    keep_credentials,
    keep_log,
    keep_opening,
    keep_table,
    operator_error,
    pick_labels,
    release_credentials,
    release_opening,
    release_table,
    set_log_level,
    take_described,
    take_log,
    wait_log,
)
from .labels import Labels
from .library import bind
from .pushes import find, push, push_batches
from .reader import Reader
from .waits import (
    WAITS,
    end_waits,
    has_run,
    interrupt,
    interruptible,
    opening,
    raise_raised,
    wait_run,
    watch_signals,
)

__all__ = [
    "WAITS", "Labels", "Reader", "all_stats", "arrays", "bad_chunks", "bind", "end_waits", "explain", "find", "has_run",
    "interrupt", "interruptible", "keep_credentials", "keep_log", "keep_opening", "keep_table", "opening", "operator_error",
    "pick_labels", "push", "push_batches", "raise_raised", "release_credentials", "release_opening", "release_table",
    "set_log_level", "take_described", "take_log", "wait_log", "wait_run", "watch_signals",
]
