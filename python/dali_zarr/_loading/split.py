"""Divides the batches of a sampler among devices: each has a loader of its own, and all run in step."""

from __future__ import annotations

import collections

from .samplers import Drawn, Draws, Place, Source


class Split:
    """Divides the batches of a sampler among devices, whose loaders run in step."""

    def __init__(self, source: Source, devices: int):
        self.source, self._devices = source, devices
        self._waiting: list[collections.deque[Drawn]] = []
        self._draws: tuple[Place, Draws] | None = None
        # The devices that have joined the current iteration.
        self._joined: set[int] = set()

    def part(self, device: int) -> PartOfSource:
        """Returns the source of one device's batches."""
        return PartOfSource(self, device)

    def begin(self, device: int, place: Place) -> tuple[Place, _PartOfDraws]:
        """Lets a device join the iteration of the others, or begin one."""
        if self._draws is None or device in self._joined:
            self._draws, self._joined = self.source.begin(place), set()
            self._waiting = [collections.deque() for _ in range(self._devices)]
        self._joined.add(device)
        return self._draws[0], _PartOfDraws(self, device)

    def next(self, device: int, most: int) -> list[Drawn]:
        """Returns a device's parts of its next batches."""
        mine = self._waiting[device]
        if not mine and self._draws is not None:
            for drawn in self._draws[1].next(most):
                for i, waiting in enumerate(self._waiting):
                    waiting.append(self._part(drawn, i))
        return [mine.popleft() for _ in range(min(most, len(mine)))]

    def _part(self, drawn: Drawn, device: int) -> Drawn:
        size = self.source.batch_size // self._devices
        before = device * size
        each = 8 if isinstance(drawn.samples, bytes) else 1
        samples = drawn.samples[each * before : each * (before + size)]
        held, own = (min(max(count - before, 0), size) for count in (drawn.size, drawn.own))
        return Drawn(samples, held, own, drawn.drawn, before, drawn.state)


class PartOfSource:
    """One device's part of a source."""

    def __init__(self, split: Split, device: int):
        self._split, self._device = split, device

    def length(self) -> int:
        """As :meth:`Source.length`."""
        return self._split.source.length()

    def samples(self) -> int | None:
        """As :meth:`Source.samples`."""
        return self._split.source.samples()

    def begin(self, place: Place) -> tuple[Place, _PartOfDraws]:
        """As :meth:`Source.begin`."""
        return self._split.begin(self._device, place)


class _PartOfDraws:
    """One device's part of an iteration."""

    def __init__(self, split: Split, device: int):
        self._split, self._device = split, device

    def next(self, most: int) -> list[Drawn]:
        """As :meth:`Draws.next`."""
        return self._split.next(self._device, most)
