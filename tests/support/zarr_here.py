"""zarr-python's work in the thread that asks for it.

zarr-python hands each call to a thread with an event loop, each step on a small chunk to another thread, and makes a
task of it. All of that takes longer than the step. Files and memory never make a step wait: its coroutines run to their
end without a loop. Where a coroutine does wait, for a server or a task, the calling thread's own loop goes on with it.
Programs that tests start, among them dali-zarr's commands, have zarr-python's own loop and threads.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from pathlib import Path
from typing import Any

import zarr
import zarr.core.common
import zarr.core.sync
import zarr.storage._local

_gather, _concurrent_map = asyncio.gather, zarr.core.common.concurrent_map
_sync, _put_aside = zarr.core.sync.sync, zarr.storage._local._put
_of_thread = threading.local()
# zarr-python from 3.3 on reads parts of shards in groups of tasks, which begin in a task only.
_IN_TASKS = importlib.util.find_spec("zarr.core._coalesce") is not None


async def _to_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _loop() -> asyncio.AbstractEventLoop:
    if not hasattr(_of_thread, "loop"):
        _of_thread.loop = asyncio.new_event_loop()
    return _of_thread.loop


class _Rest:
    """What a coroutine still has to do, from the future that it waits for."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], future: Any) -> None:
        self.coroutine, self.future = coroutine, future

    def __await__(self) -> Generator[Any, Any, Any]:
        future = self.future
        while True:
            try:
                came = yield future
            except BaseException as error:
                step, given = self.coroutine.throw, error
            else:
                step, given = self.coroutine.send, came
            try:
                future = step(given)
            except StopIteration as end:
                return end.value


async def _finish(rest: _Rest) -> Any:
    return await rest


def sync(coroutine: Coroutine[Any, Any, Any], loop: Any = None, timeout: float | None = None) -> Any:
    """Runs a coroutine to its end in this thread."""
    if loop is not None or timeout is not None or asyncio._get_running_loop() is not None:
        return _sync(coroutine, loop, timeout)
    own = _loop()
    if _IN_TASKS:
        return own.run_until_complete(coroutine)
    asyncio._set_running_loop(own)
    try:
        future = coroutine.send(None)
    except StopIteration as end:
        return end.value
    finally:
        asyncio._set_running_loop(None)
    return own.run_until_complete(_finish(_Rest(coroutine, future)))


def _is_here() -> bool:
    """Returns whether this coroutine runs in the thread that asked for it."""
    return asyncio._get_running_loop() is getattr(_of_thread, "loop", threading)


async def _in_turn(steps: list[Any], return_exceptions: bool) -> list[Any]:
    done = []
    try:
        while steps:
            try:
                done.append(await steps.pop(0))
            except Exception as error:
                if not return_exceptions:
                    raise
                done.append(error)
    finally:
        for step in steps:
            if asyncio.iscoroutine(step):
                step.close()
    return done


def gather(*steps: Any, return_exceptions: bool = False) -> Any:
    """Runs steps one after another. They begin only when the result is awaited, as zarr-python does at once."""
    if _is_here():
        return _in_turn(list(steps), return_exceptions)
    return _gather(*steps, return_exceptions=return_exceptions)


async def concurrent_map(items: Iterable[Any], function: Callable[..., Any], limit: int | None = None) -> list[Any]:
    """Runs steps one after another."""
    if _is_here():
        return [await function(*item) for item in items]
    return await _concurrent_map(items, function, limit)


def _put(path: Path, value: Any, exclusive: bool = False) -> int:
    """Writes a file that isn't there without a temporary name: no test's thread reads it meanwhile."""
    how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        try:
            file = os.open(path, how, 0o666)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, how, 0o666)
    except FileExistsError:
        return _put_aside(path, value, exclusive)
    with open(file, "wb", buffering=0) as opened:
        content = memoryview(value.as_buffer_like())
        written = opened.write(content)
        assert written == content.nbytes, "the disk is full"
        return written


def work_here() -> None:
    """Has zarr-python work in the calling threads of this process from now on."""
    asyncio.to_thread, asyncio.gather = _to_thread, gather
    zarr.storage._local._put = _put
    here = {"sync": (_sync, sync), "gather": (_gather, gather), "concurrent_map": (_concurrent_map, concurrent_map)}
    for name, module in list(sys.modules.items()):
        if name.startswith("zarr."):
            for attribute, (theirs, ours) in here.items():
                if getattr(module, attribute, None) is theirs:
                    setattr(module, attribute, ours)
    zarr.config.set({"codec_pipeline.batch_size": 1000})
