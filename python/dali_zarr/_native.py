"""The C ABI of the library (``include/dali_zarr.h``), as far as Python needs it."""

import contextlib
import ctypes
import json
import os
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ._failures import Failure, attach

_ERRORS = {1: ValueError, 2: TypeError, 3: IndexError, 4: RuntimeError, 5: MemoryError}

_POINTER = ctypes.c_void_p
T = TypeVar("T")

# The longest single wait for the library, in milliseconds. Python runs handlers of signals between two waits.
_WAIT_MS = 50
# What :func:`wait_run` returns of a run that waits for a batch.
WAITS = 1

# PyErr_Restore: raises an exception, given by its type, value and traceback.
_restore = ctypes.PYFUNCTYPE(None, _POINTER, _POINTER, _POINTER)(("PyErr_Restore", ctypes.pythonapi))

_library: ctypes.CDLL | None = None
# The same library for calls that return at once. They keep Python's lock: once released, another thread might hold it
# for long.
_library_with_gil: ctypes.PyDLL | None = None


class _Python(ctypes.Structure):
    """The struct ``dali_zarr_python`` of the header."""

    _fields_ = [(name, _POINTER) for name in ("ensure", "release", "check_signals", "fetch")]


class _Epoch(ctypes.Structure):
    """The struct ``dali_zarr_meta`` of the header."""

    _fields_ = [
        ("epoch_size", ctypes.c_int64), ("epoch_size_padded", ctypes.c_int64), ("number_of_shards", ctypes.c_int64),
        ("shard_id", ctypes.c_int64), ("pad_last_batch", ctypes.c_int32), ("stick_to_shard", ctypes.c_int32),
    ]


def bind(path: Path) -> None:
    """Declares the functions of the library, which DALI has loaded already."""
    global _library, _library_with_gil
    library = ctypes.CDLL(str(path))
    text, size = ctypes.c_char_p, ctypes.c_size_t
    library.dali_zarr_last_error_details.restype = text
    library.dali_zarr_operator_error.argtypes = [text, ctypes.POINTER(text)]
    library.dali_zarr_set_nvcomp_dirs.argtypes = [ctypes.POINTER(text), size]
    library.dali_zarr_explain.argtypes = [text, ctypes.POINTER(text)]
    library.dali_zarr_arrays.argtypes = [text, ctypes.POINTER(text)]
    library.dali_zarr_pick_labels.argtypes = [text, text, ctypes.POINTER(ctypes.c_double), size, ctypes.POINTER(text)]
    library.dali_zarr_all_stats.argtypes = [ctypes.POINTER(text)]
    library.dali_zarr_log_level.argtypes = library.dali_zarr_keep_log.argtypes = [ctypes.c_int32]
    library.dali_zarr_wait_log.argtypes = [ctypes.c_uint32]
    library.dali_zarr_take_log.argtypes = library.dali_zarr_opening_keep.argtypes = [ctypes.POINTER(text)]
    library.dali_zarr_opening_release.argtypes = [text]
    library.dali_zarr_table_keep.argtypes = [_POINTER, size, size, ctypes.c_int32, ctypes.POINTER(text)]
    library.dali_zarr_table_release.argtypes = [text]
    library.dali_zarr_open.argtypes = [text, ctypes.POINTER(_POINTER)]
    library.dali_zarr_close.argtypes = [_POINTER]
    library.dali_zarr_close.restype = None
    library.dali_zarr_describe_epoch.argtypes = [_POINTER, ctypes.POINTER(_Epoch)]
    library.dali_zarr_next_batch.argtypes = [_POINTER, ctypes.POINTER(_POINTER)]
    library.dali_zarr_batch_release.argtypes = [_POINTER]
    library.dali_zarr_batch_release.restype = None
    library.dali_zarr_stats.argtypes = [_POINTER, ctypes.POINTER(text)]
    library.dali_zarr_batch_data.argtypes = [_POINTER, size, ctypes.POINTER(_POINTER), ctypes.POINTER(size)]
    library.dali_zarr_labels_open.argtypes = [text, ctypes.POINTER(_POINTER)]
    library.dali_zarr_labels_close.argtypes = [_POINTER]
    library.dali_zarr_labels_close.restype = None
    library.dali_zarr_labels_find.argtypes = [_POINTER, size, size, text, ctypes.c_uint64, ctypes.POINTER(text)]
    library.dali_zarr_labels_attributes.argtypes = [_POINTER, size, size, ctypes.POINTER(text)]
    library.dali_zarr_labels_read.argtypes = [_POINTER, size, size, text, ctypes.POINTER(_POINTER)]
    library.dali_zarr_values_data.argtypes = [
        _POINTER, ctypes.POINTER(_POINTER), ctypes.POINTER(size), ctypes.POINTER(_POINTER), ctypes.POINTER(size),
    ]
    library.dali_zarr_values_release.argtypes = [_POINTER]
    library.dali_zarr_values_release.restype = None
    library.dali_zarr_take_described.argtypes = []
    library.dali_zarr_take_described.restype = ctypes.c_uint64
    library.dali_zarr_defer_opening.argtypes = [ctypes.c_int32]
    library.dali_zarr_wait_opened.argtypes = [ctypes.c_uint32, ctypes.POINTER(ctypes.c_int32)]
    brief = ctypes.PyDLL(str(path))
    brief.dali_zarr_watch_signals.argtypes = [ctypes.c_int32]
    brief.dali_zarr_take_raised.argtypes = [ctypes.POINTER(_POINTER)]
    brief.dali_zarr_end_waits.argtypes = [ctypes.c_uint64]
    for one in (library, brief):
        one.dali_zarr_wait_runs.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int32)]
    library.dali_zarr_operators.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(size)]
    library.dali_zarr_set_python.argtypes = [ctypes.POINTER(_Python)]
    names = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch")
    library.dali_zarr_set_python(_Python(*(ctypes.cast(getattr(ctypes.pythonapi, name), _POINTER) for name in names)))
    _library, _library_with_gil = library, brief


def _loaded() -> ctypes.CDLL:
    if _library is None:
        raise RuntimeError("dali_zarr: the library isn't loaded")
    return _library


def _check(status: int) -> None:
    if status:
        raise _error(status)


def _error(status: int, place: Callable[[str], str] | None = None) -> Exception:
    """Makes the exception of the last call on this thread, which returned ``status``. After its message stands what
    ``place`` returns for the place where the operator was made."""
    failure = Failure(json.loads(_loaded().dali_zarr_last_error_details()))
    after = place(failure.details["operator"] or "") if place else ""
    return attach(_ERRORS.get(status, RuntimeError)(failure.message + after), failure)


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

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001  (raised by the thread that waits)
            errors.append(error)
        ended.set()

    threading.Thread(target=run, name="dali_zarr wait", daemon=True).start()
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
    library, opened = _loaded(), ctypes.c_int32()
    _check(library.dali_zarr_defer_opening(1))
    try:
        numbers: list[int] = []
        yield numbers
        while not opened.value:
            status = library.dali_zarr_wait_opened(_WAIT_MS, ctypes.byref(opened))
            if status:
                raise _error(status, place)
        numbers += _operators()
    finally:
        _check(library.dali_zarr_defer_opening(0))


def _operators() -> list[int]:
    """Returns the numbers of the operators that DALI has made on this thread in :func:`opening`."""
    count = ctypes.c_size_t(0)
    _check(_loaded().dali_zarr_operators(None, ctypes.byref(count)))
    numbers = (ctypes.c_uint64 * count.value)()
    _check(_loaded().dali_zarr_operators(numbers, ctypes.byref(count)))
    return list(numbers)


def _wait_run(library: ctypes.CDLL | None, operator: int, runs: int, milliseconds: int) -> int:
    outlook = ctypes.c_int32()
    if library is not None:
        library.dali_zarr_wait_runs(operator, runs, milliseconds, ctypes.byref(outlook))
    return outlook.value


def has_run(operator: int, runs: int) -> bool:
    """Whether an operator has ended ``runs`` runs since it was made."""
    return not _wait_run(_library_with_gil, operator, runs, 0)


def wait_run(operator: int, runs: int) -> int:
    """Waits for the end of an operator's run, for a short time. Returns 0 if it has ended, :data:`WAITS` if it waits for a
    batch, and another number if it hasn't begun."""
    return _wait_run(_library, operator, runs, _WAIT_MS)


def end_waits(operator: int) -> None:
    """Ends the waits of an operator, whose batches nobody takes any more."""
    if _library_with_gil is not None:
        _library_with_gil.dali_zarr_end_waits(operator)


def watch_signals(watched: bool) -> bool:
    """Sets whether handlers of signals run while an operator waits on this thread, the main one. Returns what was set before."""
    return _library_with_gil is not None and bool(_library_with_gil.dali_zarr_watch_signals(watched))


def raise_raised() -> None:
    """Raises the exception that a handler raised while an operator waited on this thread, if there is one."""
    exception = (_POINTER * 3)()
    if _library_with_gil is not None:
        _library_with_gil.dali_zarr_take_raised(exception)
    if exception[0]:
        try:
            _restore(*exception)
        except BaseException as error:
            # Not DALI's error, which says only that the operator didn't end its run.
            error.__suppress_context__ = True
            raise


def interrupt() -> None:
    """Ends all waits for batches."""
    if _library is not None:
        _library.dali_zarr_interrupt()


def operator_error(text: str) -> Failure | None:
    """Returns the error of an operator whose message is in ``text``, the text of an exception of DALI's; None if it is
    none of the last errors. DALI runs operators on threads of its own, so the last error of this thread is no help."""
    details = ctypes.c_char_p()
    # A C string ends at the first NUL. The library writes NULs as two characters.
    _check(_loaded().dali_zarr_operator_error(text.replace("\0", "\\0").encode("utf-8", "replace"), ctypes.byref(details)))
    return Failure(json.loads(details.value)) if details.value else None


def set_nvcomp_dirs(dirs: list[str]) -> None:
    """Tells the library in which folders to look for nvCOMP before the system's places."""
    array = (ctypes.c_char_p * len(dirs))(*(d.encode() for d in dirs))
    _check(_loaded().dali_zarr_set_nvcomp_dirs(array, len(dirs)))


def explain(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns what a reader of ``spec`` would do.

    Raises:
        ValueError, TypeError, IndexError: as opening the reader does.
    """

    def work() -> dict[str, Any]:
        text = ctypes.c_char_p()
        _check(_loaded().dali_zarr_explain(json.dumps(spec).encode(), ctypes.byref(text)))
        return json.loads(text.value or b"{}")

    return interruptible(work)


def arrays(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the arrays of a store, in the form that the header explains at ``dali_zarr_arrays``.

    Raises:
        ValueError, TypeError, RuntimeError: The store can't be opened or listed, or an array that ``spec`` names isn't there.
    """

    def work() -> dict[str, Any]:
        text = ctypes.c_char_p()
        _check(_loaded().dali_zarr_arrays(json.dumps(spec).encode(), ctypes.byref(text)))
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
        _check(_loaded().dali_zarr_pick_labels(json.dumps(spec).encode(), dim.encode(), array, len(labels), ctypes.byref(text)))
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
    _check(_loaded().dali_zarr_table_keep(table.ctypes.data, rows, columns, dtype, ctypes.byref(name)))
    return (name.value or b"").decode()


def release_table(name: str) -> None:
    """Has the library forget a table, once no reader uses it any more."""
    _check(_loaded().dali_zarr_table_release(name.encode()))


class Labels:
    """The labels of a reader's arrays: coordinates and attributes, from the stores that the library opens for them.

    Stores are opened when they are first needed, and again in a process that was forked.
    """

    def __init__(self, spec: dict[str, Any]):
        """``spec`` has the reader's arguments that decide its stores and arrays, in the operator's form."""
        self._spec = spec
        self._handle: ctypes.c_void_p | None = None
        self._process = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_spec": self._spec, "_handle": None, "_process": 0}

    def _opened(self) -> ctypes.c_void_p:
        if self._handle is None or self._process != os.getpid():
            handle = _POINTER()
            _check(_loaded().dali_zarr_labels_open(json.dumps(self._spec).encode(), ctypes.byref(handle)))
            self._handle, self._process = handle, os.getpid()
            weakref.finalize(self, _close_labels, handle, self._process)
        return self._handle

    def find(self, array: int, store: int, dim: str | None, length: int) -> dict[str, Any] | None:
        """Returns the array with the coordinates along ``dim`` of array number ``array`` in store number ``store``, which has
        ``length`` elements along it; without ``dim`` the array itself. None if there is none.

        The header explains the result, at ``dali_zarr_labels_find``. Here ``dtype`` and ``fill_value`` are NumPy's: objects
        for elements of any length.

        Raises:
            ValueError, TypeError, RuntimeError: The metadata can't be read, or the array is none of labels.
        """
        key = None if dim is None else dim.encode()
        found = self._told(lambda handle, text: _loaded().dali_zarr_labels_find(handle, array, store, key, length, text))
        if found is not None and found["kind"] is not None:
            is_variable = found["dtype"] in ("str", "bytes")
            found["dtype"] = np.dtype(object if is_variable else found["dtype"])
            found["fill_value"] = None if found["fill_value"] is None else _scalar(found)
        return found

    def attributes(self, array: int, store: int) -> dict[str, Any]:
        """Returns the attributes of an array's group; empty where there is no group.

        Raises:
            ValueError, RuntimeError: They can't be read.
        """
        return self._told(lambda handle, text: _loaded().dali_zarr_labels_attributes(handle, array, store, text))

    def _told(self, ask: Callable[[Any, Any], int]) -> Any:
        def work() -> Any:
            text = ctypes.c_char_p()
            _check(ask(self._opened(), ctypes.byref(text)))
            return json.loads(text.value or b"null")

        return interruptible(work)

    def read(self, array: int, store: int, found: Mapping[str, Any]) -> npt.NDArray[Any]:
        """Reads the elements of an array that :meth:`find` told, as they are stored.

        Raises:
            ValueError, TypeError, RuntimeError: They can't be read, or there are too many.
        """

        def work() -> tuple[bytes, list[int]]:
            values, data, ends = _POINTER(), _POINTER(), _POINTER()
            size, count = ctypes.c_size_t(), ctypes.c_size_t()
            name = found["name"].encode()
            _check(_loaded().dali_zarr_labels_read(self._opened(), array, store, name, ctypes.byref(values)))
            try:
                places = (ctypes.byref(one) for one in (data, size, ends, count))
                _check(_loaded().dali_zarr_values_data(values, *places))
                numbers = (ctypes.c_int64 * count.value).from_address(ends.value)[:] if ends.value else []
                return ctypes.string_at(data, size.value), numbers
            finally:
                _loaded().dali_zarr_values_release(values)

        data, ends = interruptible(work)
        if found["kind"] == "numbers":
            return np.frombuffer(bytearray(data), found["dtype"]).reshape(found["shape"])
        parts: list[Any] = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        return np.array([part.decode() for part in parts] if found["kind"] == "text" else parts, found["dtype"])


def _close_labels(handle: ctypes.c_void_p, process: int) -> None:
    # The threads of a handle are in the process that opened it.
    if process == os.getpid():
        _loaded().dali_zarr_labels_close(handle)


def _scalar(found: Mapping[str, Any]) -> Any:
    """Returns the fill value of an array as NumPy's scalar."""
    fill, dtype = found["fill_value"], found["dtype"]
    if found["kind"] == "numbers":
        parts = fill if dtype.kind == "c" else fill[:1]
        size = dtype.itemsize // len(parts)
        return np.frombuffer(b"".join(part.to_bytes(8, "little")[:size] for part in parts), dtype)[0]
    value = bytes(fill) if found["kind"] == "bytes" else fill
    return value if dtype.kind == "O" else dtype.type(value)


def keep_opening() -> str:
    """Has the library make a name, under which it keeps the first opening with it. Returns the name."""
    name = ctypes.c_char_p()
    _check(_loaded().dali_zarr_opening_keep(ctypes.byref(name)))
    return (name.value or b"").decode()


def release_opening(name: str) -> None:
    """Has the library forget an opening."""
    _check(_loaded().dali_zarr_opening_release(name.encode()))


class Reader:
    """A reader on the CPU, without DALI."""

    def __init__(self, spec: dict[str, Any]):
        """Opens the reader.

        Raises:
            ValueError, TypeError, IndexError, MemoryError: As building a pipeline with the reader does.
        """
        self._reader = _POINTER()
        _check(_loaded().dali_zarr_open(json.dumps(spec).encode(), ctypes.byref(self._reader)))

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        _loaded().dali_zarr_close(self._reader)
        self._reader = _POINTER()

    def samples(self) -> int:
        """Returns the number of samples in an epoch, over all shards."""
        epoch = _Epoch()
        _check(_loaded().dali_zarr_describe_epoch(self._reader, ctypes.byref(epoch)))
        return epoch.epoch_size

    def skip(self) -> None:
        """Waits for the next batch. After an error the next call waits for the batch that follows.

        Raises:
            RuntimeError: A chunk of the batch can't be read or decoded.
        """
        batch = _POINTER()
        _check(_loaded().dali_zarr_next_batch(self._reader, ctypes.byref(batch)))
        _loaded().dali_zarr_batch_release(batch)

    def bytes(self) -> bytes:
        """Returns the memory of the first output of the next batch.

        Raises:
            RuntimeError: A chunk of the batch can't be read or decoded.
        """
        batch, data, size = _POINTER(), _POINTER(), ctypes.c_size_t()
        _check(_loaded().dali_zarr_next_batch(self._reader, ctypes.byref(batch)))
        try:
            _check(_loaded().dali_zarr_batch_data(batch, 0, ctypes.byref(data), ctypes.byref(size)))
            return ctypes.string_at(data, size.value)
        finally:
            _loaded().dali_zarr_batch_release(batch)

    def counters(self) -> dict[str, Any]:
        """Returns the counters of this reader up to now."""
        text = ctypes.c_char_p()
        _check(_loaded().dali_zarr_stats(self._reader, ctypes.byref(text)))
        return json.loads(text.value or b"{}")


def all_stats() -> list[dict[str, Any]]:
    """Returns the counters of all readers of this process."""
    text = ctypes.c_char_p()
    _check(_loaded().dali_zarr_all_stats(ctypes.byref(text)))
    return json.loads(text.value or b"[]")


def set_log_level(level: int) -> None:
    """Sets how much the library logs, from 0 (nothing) to 4 (all)."""
    _check(_loaded().dali_zarr_log_level(level))


def keep_log(kept: bool) -> None:
    """Sets whether records wait for :func:`take_log` or, if not ``kept``, go to stderr."""
    _check(_loaded().dali_zarr_keep_log(kept))


def wait_log(milliseconds: int) -> bool:
    """Waits for a record, at most this long; returns whether there is one. Other threads of Python run meanwhile."""
    return bool(_loaded().dali_zarr_wait_log(milliseconds))


def take_log() -> list[dict[str, str]]:
    """Takes the records that wait: ``level``, ``target`` and ``message`` of each."""
    text = ctypes.c_char_p()
    _check(_loaded().dali_zarr_take_log(ctypes.byref(text)))
    return json.loads(text.value or b"[]")


def take_described() -> int:
    """Returns, and forgets, the number of the reader that DALI last asked on this thread to describe its epoch; 0 if
    there is none."""
    return _loaded().dali_zarr_take_described()
