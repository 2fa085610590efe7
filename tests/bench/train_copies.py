"""The least that any loader must do: a thread copies the bytes of each step from pinned memory to the GPU, on its own stream."""

from __future__ import annotations

import queue
import threading

import torch
from train_model import Setting

# Batches on the device: one that is trained on, and those that are copied ahead.
AHEAD = 4


class Copies:
    """An endless stream of batches, each of which was copied to the device since it was last trained on.

    Of pairs in order only the later time is copied (``whole`` is false): the earlier one was copied for the pair before.
    Nothing is read, decoded or normalised. On the CPU the same copies are made in its memory.
    """

    def __init__(self, setting: Setting, batches: list[list[torch.Tensor]], *, whole: bool):
        self.cuda, self.device = setting.device.type == "cuda", setting.device
        first = 0 if whole or not setting.pairs else 1
        # As many sources as there are fixed batches: together they exceed the caches.
        self.sources = [[self._pinned(t) for t in batch[first:]] for batch in batches]
        self.places = [[t.clone() for t in batches[i % len(batches)]] for i in range(AHEAD)]
        self.copied = [threading.Semaphore(0) for _ in self.places]
        self.events: list[torch.cuda.Event | None] = [None] * AHEAD
        # What the thread may write to, with the event after which the GPU no longer reads it.
        self.free: queue.SimpleQueue[tuple[int, torch.cuda.Event | None] | None] = queue.SimpleQueue()
        for place in range(AHEAD):
            self.free.put((place, None))
        self.first, self.at, self.lent = first, 0, False
        self.thread = threading.Thread(target=self._copy, daemon=True)
        self.thread.start()

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self.cuda)
        host.copy_(tensor)
        return host

    def _copy(self) -> None:
        stream = torch.cuda.Stream(self.device) if self.cuda else None
        number = 0
        while (item := self.free.get()) is not None:
            place, read = item
            source = self.sources[number % len(self.sources)]
            number += 1
            if stream is None:
                for to, values in zip(self.places[place][self.first :], source, strict=True):
                    to.copy_(values)
            else:
                if read is not None:
                    read.synchronize()
                with torch.cuda.stream(stream):
                    for to, values in zip(self.places[place][self.first :], source, strict=True):
                        to.copy_(values, non_blocking=True)
                    self.events[place] = torch.cuda.Event()
                    self.events[place].record()
            self.copied[place].release()

    def fetch(self) -> list[torch.Tensor]:
        """The next batch, valid on the current stream. It gives back the one before."""
        if self.lent:
            read = None
            if self.cuda:
                read = torch.cuda.Event(blocking=True)
                read.record()
            self.free.put(((self.at - 1) % AHEAD, read))
        place = self.at % AHEAD
        self.copied[place].acquire()
        if (event := self.events[place]) is not None:
            torch.cuda.current_stream().wait_event(event)
        self.at, self.lent = self.at + 1, True
        return self.places[place]

    def close(self) -> None:
        """Ends the thread."""
        self.free.put(None)
        self.thread.join()
