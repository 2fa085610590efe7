"""Calls of DALI's pipelines and operators that have Zarr readers: what may happen while they wait for a batch.

- Signals: Python runs handlers only in Python code of the main thread. So the wait for a batch is here (:func:`wait`), and DALI
  is asked for it once the readers have made it. Where DALI runs operators on the thread that calls it (synchronous
  pipelines, the dynamic mode), the library runs the handlers while it waits.
- The end of the process: a thread that is in DALI when the interpreter ends would abort the process, since Python ends threads
  that want its lock, and DALI's bindings can't be left so. So threads are stopped here first.
- Forks: a child has no copy of the threads of its parent's pipelines. There every call is an error, and pipelines are never
  destroyed: that would wait for those threads. Nor is what is in device memory: a child can't use its parent's CUDA, and DALI's
  destructors end a process where CUDA fails.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from threading import get_ident, main_thread
from typing import Any, NoReturn, cast

from . import _dali, _errors, _log, _native

# How long operators may be idle before DALI is asked for a batch that they haven't made. It then waits itself, or has an error.
_IDLE_SECONDS = 1.0
# How long the end of the process waits for threads that are in DALI.
_END_SECONDS = 10.0

# Methods of DALI's classes that may wait for a reader; those of them that take a batch; and others that need its threads.
_WAIT = {"Pipeline": ("Outputs", "ShareOutputs", "Run"), "_Operator": ("SetupAndRun", "Run")}
_COUNTED = {"Outputs", "ShareOutputs", "SetupAndRun"}
_NEED = {
    "Pipeline": (
        "ReleaseOutputs", "Prefetch", "GetSerializedCheckpoint", "reader_meta", "executor_statistics", "SetExternalTensorInput",
        "SetExternalTLInput", "InputFeedCount",
    ),
    "_Operator": ("Setup", "GetReaderMeta", "SaveCheckpoint", "RestoreCheckpoint"),
}


class _Readers:
    """The Zarr readers of a pipeline, or the one of an operator in the dynamic mode."""

    def __init__(self, numbers: list[int]):
        # The library's number of each operator, and how many runs it had before it came to this pipeline.
        self.operators = [(number, 0) for number in numbers]
        self.taken = 0


# By DALI's object.
_known: weakref.WeakKeyDictionary[Any, _Readers] = weakref.WeakKeyDictionary()
# The epochs of the dynamic mode.
_epochs: weakref.WeakSet[Any] = weakref.WeakSet()
# In a forked child: the parent's objects, by their ids. They live for ever.
_inherited: set[int] = set()
# While the process forks: what the child must never destroy.
_forking: list[Any] = []
# Not empty if some of that may be on a GPU.
_beside_gpus: list[bool] = []
# Py_TPFLAGS_HAVE_GC.
_IS_TRACKED = 1 << 14
# The threads besides the main one that are in DALI, and how deep; and whether the process ends.
_inside: dict[int, int] = {}
_ends = threading.Event()


def _stop() -> NoReturn:
    """Stops this thread for good. The process ends without it."""
    _inside.pop(get_ident(), None)
    never = threading.Lock()
    never.acquire()
    while True:
        never.acquire()


def _is_main() -> bool:
    return get_ident() == main_thread().ident


class _Inside:
    """Context of a call of DALI. When the process ends, no thread begins or ends one any more, except the main thread."""

    def __enter__(self) -> None:
        self._thread = None if _is_main() else get_ident()
        if self._thread is not None:
            depth = _inside[self._thread] = _inside.get(self._thread, 0) + 1
            # A thread that is in DALI already can't be stopped here: DALI may hold locks.
            if depth == 1 and _ends.is_set():
                _stop()

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        depth = _inside[self._thread] = _inside[self._thread] - 1
        if depth == 0:
            del _inside[self._thread]
            if _ends.is_set():
                _stop()


class _Watched(_Inside):
    """Context of a call that may wait for a batch in an operator. On the main thread, handlers of signals run meanwhile."""

    def __enter__(self) -> None:
        super().__enter__()
        if self._thread is None:
            self._before = _native.watch_signals(True)

    def __exit__(self, kind: object = None, *_: object) -> None:
        if self._thread is None:
            _native.watch_signals(self._before)
            if kind is not None:
                _native.raise_raised()
        super().__exit__()


def _refuse(one: Any) -> None:
    """Raises RuntimeError for an object that a forked process inherited."""
    if id(one) in _inherited:
        what = "pipeline" if type(one).__name__ == "Pipeline" else "reader"
        raise RuntimeError(
            f"zarr_reader: the {what} was made in another process, before this process ({os.getpid()}) was forked, and a forked "
            f"process has no copy of its threads; make the {what} in the process that uses it"
        )


class Epoch:
    """An epoch of a reader of the dynamic mode. In a forked child DALI would ask the parent's GPU before it asks the reader."""

    def __init__(self, operator: Any, batches: Iterator[Any]):
        """``operator``: DALI's object, or None before there is one."""
        _refuse(operator)
        self._batches = batches
        _epochs.add(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        _refuse(self)
        return next(self._batches)


def _made(numbers: list[int], owner: Any) -> None:
    if numbers:
        known = _known.setdefault(owner, _Readers([]))
        known.operators += [(number, 0) for number in numbers]


def _of(pipe: Any) -> _Readers | None:
    """Returns the readers of a pipeline, given by Python's part of it."""
    return None if pipe._pipe is None else _known.get(pipe._pipe)


def wait(pipe: Any) -> None:
    """Waits until the Zarr readers of a pipeline have made their parts of the batch that ``outputs`` gives next. Meanwhile the
    handlers of signals run; if one raises an exception, the pipeline is as before.

    Returns also if DALI doesn't run the readers, for example since another operator failed.
    """
    readers = _of(pipe)
    if readers is None or not pipe._batches_to_consume:
        return
    for number, before in readers.operators:
        runs = before + readers.taken + 1
        if _native.has_run(number, runs):
            continue
        idle = time.monotonic()
        while outlook := _native.wait_run(number, runs):
            if _ends.is_set() and not _is_main():
                _stop()
            if outlook == _native.WAITS:
                idle = time.monotonic()
            elif time.monotonic() > idle + _IDLE_SECONDS:
                return


def _replace(owner: Any, name: str, made: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    method = getattr(owner, name, None)
    if method is None or getattr(method, "_dali_zarr", False):
        return
    replacement = functools.wraps(method)(made(method))
    replacement.__dict__["_dali_zarr"] = True
    setattr(owner, name, replacement)


def _waiting(counted: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns what wraps a method that may wait for a reader."""

    def made(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(one: Any, *positional: Any, **arguments: Any) -> Any:
            readers = _known.get(one)
            if readers is None:
                _refuse(one)
                return _errors.translated(method, one, *positional, **arguments)
            try:
                with _Watched():
                    return _errors.translated(method, one, *positional, **arguments)
            finally:
                readers.taken += counted

        return call

    return made


def _needing(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(one: Any, *positional: Any, **arguments: Any) -> Any:
        _refuse(one)
        return method(one, *positional, **arguments)

    return call


def _building(place: Callable[[str], str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns what wraps a method that makes operators. ``place``: as of :func:`_native.opening`."""

    def made(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(one: Any, *positional: Any, **arguments: Any) -> Any:
            _refuse(one)
            with _log.engine(), _native.opening(place) as numbers:
                found = _errors.translated(method, one, *positional, **arguments)
            _made(numbers, one)
            return found

        return call

    return made


def _moving(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the method that moves an operator of the dynamic mode to a pipeline."""

    def call(pipe: Any, spec: Any, name: str, operator: Any, *more: Any) -> Any:
        found = method(pipe, spec, name, operator, *more)
        moved = _known.get(operator)
        if moved is not None:
            _known.setdefault(pipe, _Readers([])).operators += [(number, moved.taken) for number, _ in moved.operators]
        return found

    return call


def _ending(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the method that ends a pipeline. It may be called when modules are empty, so it uses none of their names."""
    known, inherited, end_waits = _known, _inherited, _native.end_waits

    def call(pipe: Any) -> Any:
        if id(pipe) in inherited:
            return None
        readers = known.pop(pipe, None)
        for number, _ in readers.operators if readers is not None else ():
            end_waits(number)
        return method(pipe)

    return call


def _guarded(gives: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns what wraps a method of Python's part of a pipeline. ``gives``: whether it gives a batch."""

    def made(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(pipe: Any, *positional: Any, **arguments: Any) -> Any:
            if _is_main():
                if gives:
                    wait(pipe)
                return method(pipe, *positional, **arguments)
            if _ends.is_set():
                # DALI ends all pipelines.
                _stop()
            with _Inside():
                if gives:
                    wait(pipe)
                return method(pipe, *positional, **arguments)

        return call

    return made


def _in_pipeline(place: str) -> str:
    """Returns the text that DALI adds when an operator's constructor throws. ``place``: where the operator was made."""
    return f"\n\nCritical error when building pipeline:\n{place}\n\nCurrent pipeline object is no longer valid."


def _end() -> None:
    """Ends all waits, and stops the threads that are in DALI. DALI then ends the pipelines."""
    _ends.set()
    _native.interrupt()
    until = time.monotonic() + _END_SECONDS
    while _inside and time.monotonic() < until:
        time.sleep(0.001)


@functools.cache
def _is_foreign(kind: type) -> bool:
    """Whether destroying an object of this class may call DALI or CUDA."""
    # DALI's classes of C++ aren't tracked by the garbage collector, unlike those of Python, which may be derived from them.
    has_dali = any(str(one.__module__).startswith("nvidia.dali.") and not one.__flags__ & _IS_TRACKED for one in kind.__mro__)
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    return has_dali or (torch is not None and issubclass(kind, torch.Tensor)) or (jax is not None and issubclass(kind, jax.Array))


def _fork() -> None:
    """Finds what a child must never destroy. Before the fork, since the child drops what the other threads have."""
    _forking.extend([*_known, *_epochs])
    _beside_gpus.clear()
    if not _forking or not _dali.module("backend_impl").GetCUDADeviceCount():
        return
    _beside_gpus.append(True)
    _is_foreign.cache_clear()
    frames = list(sys._current_frames().values())  # pyright: ignore[reportPrivateUsage]
    while frames:
        frame = frames.pop()
        _forking.extend(one for one in frame.f_locals.values() if _is_foreign(type(cast(object, one))))
        frames.extend([frame.f_back] if frame.f_back is not None else [])
    found: dict[int, Any] = {}
    holders = gc.get_objects()
    while holders:
        held = gc.get_referents(*holders)
        found |= {id(one): one for one in held if _is_foreign(type(cast(object, one)))}
        # Dictionaries and tuples of what isn't tracked aren't tracked either.
        holders = [one for one in held if type(cast(object, one)) in (dict, tuple) and not gc.is_tracked(one)]
    _forking.extend(found.values())


def _forked() -> None:
    """Keeps what the child inherited from ever being destroyed."""
    if _beside_gpus:
        # DALI's and CUDA's libraries would call CUDA at the end of the process, which ends it by SIGABRT. So it ends before
        # their destructors, with the status and after its files are written.
        libc = ctypes.CDLL(None)
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
        libc.__cxa_atexit(ctypes.cast(libc.fflush, ctypes.c_void_p), None, None)
    for one in _forking:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
        _inherited.add(id(one))
    _epochs.clear()
    _forking.clear()
    _known.clear()
    _inside.clear()


def hook() -> None:
    """Wraps the methods of DALI that make and run readers. Errors are translated, Python's lock is free while stores are opened,
    and what is logged during the build goes to Python's logging. Wraps nothing the second time."""
    backend = _dali.module("backend_impl")
    for owner, names in _WAIT.items():
        for name in names:
            _replace(getattr(backend, owner), name, _waiting(name in _COUNTED))
    for owner, names in _NEED.items():
        for name in names:
            _replace(getattr(backend, owner), name, _needing)
    _replace(backend.Pipeline, "Build", _building(_in_pipeline))
    _replace(backend._Operator, "__init__", _building(lambda _place: ""))
    _replace(backend.Pipeline, "AddOperatorInstance", _moving)
    _replace(backend.Pipeline, "Shutdown", _ending)
    for name in ("outputs", "share_outputs", "release_outputs", "schedule_run", "run", "checkpoint", "_get_checkpoint"):
        _replace(_dali.module("pipeline").Pipeline, name, _guarded(gives="share" in name or name == "outputs"))
    atexit.register(_end)
    os.register_at_fork(before=_fork, after_in_parent=_forking.clear, after_in_child=_forked)
