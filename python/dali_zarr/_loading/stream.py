"""A stream: batches of the samples that a program pushes, in the order of its pushes."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from .._bad_chunks import BadChunk
from .reading import Reading
from .samplers import Numbers, to_numbers

B = TypeVar("B")

# How long a push that waits for room sleeps before it looks again, in seconds.
_PAUSE = 0.001


class Stream(Generic[B]):
    """Batches of the samples that are pushed: made by ``loader.stream()``.

    Batches are prepared ahead, as many as were pushed and as the reader prepares at a time (``prefetch_queue_depth``). At
    least 1024 batches, or 131072 samples, may wait beyond these. One thread may push while another one gets.
    """

    def __init__(self, reading: Callable[[], Reading], taken: Callable[[list[Any], int], B]):
        """``reading`` opens the reader when it is first needed. ``taken`` makes a batch of DALI's outputs and the number of
        samples that count."""
        self._open, self._taken = reading, taken
        self._opened: Reading | None = None
        # Guards what is below, and tells of pushes.
        self._changed = threading.Condition()
        # The batches that were pushed and not taken, with their places; and whether the reader has them.
        self._waiting: deque[tuple[Numbers, int]] = deque()
        self._is_behind = False
        self._samples = 0
        self._is_closed = False
        self._sleepers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        # Batches that were got for somebody who was cancelled meanwhile.
        self._returned: deque[B] = deque()
        # Held by the thread that takes a batch.
        self._taking = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Batches that were pushed and not taken."""
        with self._changed:
            return len(self._waiting) + len(self._returned)

    def push(self, samples: Any, timeout: float | None = 0) -> None:
        """Pushes the samples of the next batch, which is prepared at once.

        Args:
            samples: From 1 to ``batch_size`` samples: their numbers, or for each its row of ``batch.index``. Lists, arrays of NumPy
                or tensors.
            timeout: How many seconds to wait for room if as much waits as may wait; None: for ever.

        Raises:
            TypeError, ValueError: They are no samples, or there are too many.
            IndexError: There is no such sample.
            queue.Full: There is no room.
            RuntimeError: The stream is closed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        samples = to_numbers(samples, "push")
        while True:
            with self._changed:
                reading = self._reading()
                numbers = reading.numbers(samples)
                # The reader has all batches before this one, unless it lost them by an error.
                self._catch_up(reading)
                if reading.push(numbers, 0, self._samples):
                    self._waiting.append((numbers, self._samples))
                    self._samples += len(numbers)
                    self._wake()
                    return
            if until is not None and time.monotonic() >= until:
                raise queue.Full("dali_zarr: push: as many batches wait as may wait; get some first")
            time.sleep(_PAUSE)

    def get(self, timeout: float | None = None) -> B:
        """Waits for the next batch, in the order of pushes, and returns it. The next call returns the batch after it, also if this
        one failed.

        Args:
            timeout: How many seconds to wait for a push; None: for ever. A batch that was pushed is waited for in any case.

        Raises:
            queue.Empty: Nothing was pushed.
            RuntimeError: The stream is closed; or a chunk of the batch can't be read or decoded.
        """
        with self._taking:
            with self._changed:
                if not self._changed.wait_for(lambda: self._waiting or self._returned or self._is_closed, timeout):
                    raise queue.Empty("dali_zarr: get: nothing was pushed")
                if self._returned:
                    return self._returned.popleft()
                reading = self._reading()
                self._catch_up(reading)
                count = len(self._waiting[0][0])
            try:
                batch = reading.next(lambda found: self._taken(found, count))
            except BaseException:
                with self._changed:
                    # The pipeline can't go on. The batches after this one are pushed again, to a new one.
                    reading.close()
                    self._is_behind = True
                    if self._waiting:
                        self._waiting.popleft()
                raise
            with self._changed:
                self._waiting.popleft()
            return batch

    async def aget(self) -> B:
        """As :meth:`get`, without blocking the event loop. If it is cancelled, the next call gets the batch."""
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._waiting or self._returned or self._is_closed:
                    break
                sleeper = loop.create_future()
                self._sleepers.append((loop, sleeper))
            await sleeper
        getting = asyncio.ensure_future(asyncio.to_thread(self.get))
        try:
            return await asyncio.shield(getting)
        except asyncio.CancelledError:
            getting.add_done_callback(self._give_back)
            raise

    def _give_back(self, got: asyncio.Future[B]) -> None:
        if not got.cancelled() and got.exception() is None:
            with self._changed:
                self._returned.append(got.result())
                self._wake()

    def close(self) -> None:
        """Ends the stream. Waits end with errors; batches that were handed out stay valid."""
        with self._changed:
            self._is_closed = True
            self._wake()
        # A thread that takes a batch gets it, which was pushed before.
        with self._taking, self._changed:
            self._waiting.clear()
            self._returned.clear()
            if self._opened is not None:
                self._opened.close()

    @property
    def bad_chunks(self) -> list[BadChunk]:
        """The bad chunks that the stream has found so far, as ``bad_chunks`` of a loader."""
        with self._changed:
            return self._reading().bad_chunks()

    def counters(self) -> dict[str, Any]:
        """The reader's counters, as :func:`dali_zarr.counters` returns them."""
        with self._changed:
            return self._reading().counters()

    def _reading(self) -> Reading:
        if self._is_closed:
            raise RuntimeError("dali_zarr: the stream is closed")
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _catch_up(self, reading: Reading) -> None:
        """Pushes the batches again that a reader lost."""
        if self._is_behind:
            for numbers, place in self._waiting:
                reading.push(numbers, 0, place)
            self._is_behind = False

    def _wake(self) -> None:
        self._changed.notify_all()
        for loop, sleeper in self._sleepers:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_end, sleeper)
        self._sleepers.clear()


def _end(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
