"""Single calls of the library: what it tells, and what it keeps by name."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from .._failures import Failure, attach, failure_of
from .library import check, loaded
from .waits import interruptible

# The most arrays that a message suggests.
_NAMED = 8


def operator_error(text: str) -> Failure | None:
    """Returns the error of an operator whose message is in ``text``, the text of an exception of DALI's; None if it is
    none of the last errors. DALI runs operators on threads of its own, so the last error of this thread is no help."""
    details = ctypes.c_char_p()
    # A C string ends at the first NUL. The library writes NULs as two characters.
    check(loaded().dali_zarr_operator_error(text.replace("\0", "\\0").encode("utf-8", "replace"), ctypes.byref(details)))
    return Failure(json.loads(details.value)) if details.value else None


def explain(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns what a reader of ``spec`` would do.

    Raises:
        ValueError, TypeError, IndexError: as opening the reader does.
    """

    def work() -> dict[str, Any]:
        text = ctypes.c_char_p()
        check(loaded().dali_zarr_explain(json.dumps(spec).encode(), ctypes.byref(text)))
        return json.loads(text.value or b"{}")

    try:
        return interruptible(work)
    except ValueError as error:
        failure = failure_of(error)
        chosen = _data_arrays(spec) if failure is not None and "expected arrays to be named, since it" in failure.raw else []
        if failure is None or not chosen:
            raise
        words = " ".join(chosen)
        raise attach(
            ValueError(f"{error}; give arrays, such as arrays={chosen!r} (in a command: --arrays {words})"), failure,
        ) from None


def _data_arrays(spec: Mapping[str, Any]) -> list[str]:
    """Returns arrays of a store that go together: the largest, and those with its first dimension and at most one dimension
    less. Coordinates aren't among them. Empty where the store can't be listed."""
    paths: Any = spec.get("path")
    place: dict[str, Any] = {"path": paths[0] if isinstance(paths, list) and paths else paths, "device": "cpu"}
    try:
        listed = arrays({name: spec[name] for name in ("storage_options",) if name in spec} | place)["arrays"]
    except (ValueError, TypeError, RuntimeError):
        return []
    found = [one for one in listed if one["refused"] is None and len(one["dims"]) > 1]
    largest = max(found, key=lambda one: (len(one["dims"]), math.prod(one["shape"])), default=None)
    if largest is None:
        return []
    least = max(2, len(largest["dims"]) - 1)
    return [one["name"] for one in found if one["dims"][:1] == largest["dims"][:1] and len(one["dims"]) >= least][:_NAMED]


def arrays(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the arrays of a store, in the form that the header explains at ``dali_zarr_arrays``.

    Raises:
        ValueError, TypeError, RuntimeError: The store can't be opened or listed, or an array that ``spec`` names isn't there.
    """

    def work() -> dict[str, Any]:
        text = ctypes.c_char_p()
        check(loaded().dali_zarr_arrays(json.dumps(spec).encode(), ctypes.byref(text)))
        return json.loads(text.value or b"{}")

    return interruptible(work)


def pick_labels(spec: dict[str, Any], dim: str, labels: list[float]) -> str:
    """Returns the entry of ``pick`` that takes the elements along ``dim`` with these coordinates, e.g. ``"level=2,5"``.

    Raises:
        ValueError, TypeError, RuntimeError: as opening the reader does; or if a label isn't the coordinate of one element.
    """

    def work() -> str:
        text = ctypes.c_char_p()
        array = (ctypes.c_double * len(labels))(*labels)
        check(loaded().dali_zarr_pick_labels(json.dumps(spec).encode(), dim.encode(), array, len(labels), ctypes.byref(text)))
        return (text.value or b"").decode()

    return interruptible(work)


def keep_table(table: npt.NDArray[Any]) -> str:
    """Has the library copy a table of int64 or float64, dense and in C order. Returns the name that arguments use for
    it.

    Raises:
        MemoryError: There is no room for the copy.
    """
    name = ctypes.c_char_p()
    rows, columns = len(table), (table.shape[1] if table.ndim > 1 else 1)
    dtype = {"int64": 4, "float64": 11}[table.dtype.name]
    check(loaded().dali_zarr_table_keep(table.ctypes.data, rows, columns, dtype, ctypes.byref(name)))
    return (name.value or b"").decode()


def release_table(name: str) -> None:
    """Has the library forget a table, once no reader uses it any more."""
    check(loaded().dali_zarr_table_release(name.encode()))


def keep_credentials(options: dict[str, str]) -> str:
    """Has the library keep secret options of remote stores. Returns the name that arguments use for them.

    Raises:
        ValueError: There are none, or one isn't a secret option.
    """
    name = ctypes.c_char_p()
    check(loaded().dali_zarr_credentials_keep(json.dumps(options).encode(), ctypes.byref(name)))
    return (name.value or b"").decode()


def release_credentials(name: str) -> None:
    """Has the library forget credentials."""
    check(loaded().dali_zarr_credentials_release(name.encode()))


def keep_opening() -> str:
    """Has the library make a name, under which it keeps the first opening with it. Returns the name."""
    name = ctypes.c_char_p()
    check(loaded().dali_zarr_opening_keep(ctypes.byref(name)))
    return (name.value or b"").decode()


def release_opening(name: str) -> None:
    """Has the library forget an opening."""
    check(loaded().dali_zarr_opening_release(name.encode()))


def all_stats() -> list[dict[str, Any]]:
    """Returns the counters of all readers of this process."""
    text = ctypes.c_char_p()
    check(loaded().dali_zarr_all_stats(ctypes.byref(text)))
    return json.loads(text.value or b"[]")


def bad_chunks(reader: int) -> list[dict[str, Any]]:
    """Returns the bad chunks that the reader with this number has found.

    Raises:
        ValueError: There is no such reader.
    """
    text = ctypes.c_char_p()
    check(loaded().dali_zarr_bad_chunks(reader, ctypes.byref(text)))
    return json.loads(text.value or b"[]")


def set_log_level(level: int) -> None:
    """Sets how much the library logs, from 0 (nothing) to 4 (all)."""
    check(loaded().dali_zarr_log_level(level))


def keep_log(kept: bool) -> None:
    """Sets whether records wait for :func:`take_log` or, if not ``kept``, go to stderr."""
    check(loaded().dali_zarr_keep_log(kept))


def wait_log(milliseconds: int) -> bool:
    """Waits for a record, at most this long; returns whether there is one. Other threads of Python run meanwhile."""
    return bool(loaded().dali_zarr_wait_log(milliseconds))


def take_log() -> list[dict[str, str]]:
    """Takes the records that wait: ``level``, ``target`` and ``message`` of each."""
    text = ctypes.c_char_p()
    check(loaded().dali_zarr_take_log(ctypes.byref(text)))
    return json.loads(text.value or b"[]")


def take_described() -> int:
    """Returns, and forgets, the number of the reader that DALI last asked on this thread to describe its epoch; 0 if
    there is none."""
    return loaded().dali_zarr_take_described()
