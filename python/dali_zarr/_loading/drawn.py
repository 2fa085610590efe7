"""The course of a loader in its caller's order: what was drawn from the sampler and pushed to the reader, and what of it was
handed out.

Batches are drawn by the thread that asks for a batch, when it asks, a few at a time: so many more than it takes as the reader
prepares at a time. After an error of the sampler nothing more is drawn, and the error is raised where its batch would come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from .course import Check, Course, Last, Next, Shared, Stage, Unopened
from .epochs import Ending
from .reading import Plan, Reading
from .samplers import Drawn, Place

# Batches that are drawn beyond those that the reader prepares at a time: two that DALI has taken of it, and two that it plans
# meanwhile. A reader that knows no further batch keeps chunks for it, and copies them once more.
MORE = 4
# Batches that are drawn and pushed at a time, which takes less time than one by one. At least ``MORE - AT_ONCE + 1`` more than the
# reader prepares are known to it at any time: with one of them, it kept and copied 7 % of chunks, with two none.
AT_ONCE = 3
# If at most this many batches were pushed that nobody takes, they are read and dropped. Otherwise the store is opened anew.
_FEW = 2


class AnyDraws(Protocol):
    """One iteration over a sampler."""

    def next(self, most: int) -> list[Drawn]:
        """Draws the next batches: ``most``, or fewer if the end or an error follows. Without a batch it is the end."""
        ...


class AnySource(Protocol):
    """What batches are drawn from."""

    def length(self) -> int:
        """Returns the number of batches in an epoch."""
        ...

    def samples(self) -> int | None:
        """Returns the number of samples in an epoch; None where that isn't known."""
        ...

    def begin(self, place: Place) -> tuple[Place, AnyDraws]:
        """Begins an iteration at a place."""
        ...


class DrawnCourse(Course):
    """As :class:`Course`, where a sampler says which samples come."""

    def __init__(self, stage: Stage, ending: Ending, source: AnySource, following: Next | None = None, at: Place | None = None):
        super().__init__(stage, ending, following)
        self._source = source
        self._stand(at or Place())
        self._draws: AnyDraws | None = None
        # How many samples of the epoch were drawn.
        self._drawn = 0
        # Batches that were pushed and not handed out, then those that were drawn and not pushed, since the reader's queue was full.
        # Then comes an error, if there is one.
        self._pushed: deque[Drawn] = deque()
        self._held: deque[Drawn] = deque()
        self._error: Exception | None = None
        # With so many in ``_pushed`` nothing is drawn.
        self._enough = 1
        # Whether a batch failed, so that the pipeline's next one isn't the first one of ``_pushed``.
        self._is_broken = False

    def _stand(self, at: Place) -> None:
        """Notes the place after the batch that was handed out last, or that of the state that was loaded."""
        self._at, self._batches, self._samples, self._is_ended, self._state = at, at.batches, at.samples, at.is_ended, at.state

    def _reached(self) -> Place:
        """Returns the place after the batch that was handed out last."""
        return self._at._replace(batches=self._batches, samples=self._samples, is_ended=self._is_ended, state=self._state)

    def is_within(self) -> bool:
        """Whether batches of an epoch were handed out, and others may be left."""
        return self._is_ended is False and (self.last is None or not self.last.is_last)

    def state(self) -> dict[str, Any]:
        """Returns the state after the batch that was handed out last."""
        return super().state() | {"sampler": self._reached().to_dict()}

    def following(self) -> int:
        """Returns the epoch of the next iteration, where none was set and no batch was handed out."""
        return self._at.epoch + bool(self._is_ended)

    def samples(self) -> int | None:
        """Returns the number of samples in an epoch; None where that isn't known."""
        return self._source.samples()

    def length(self) -> int:
        """Returns how many batches the epoch has.

        Raises:
            TypeError: The sampler doesn't tell it.
        """
        return self._source.length()

    def load(self, plan: Plan, state: Mapping[str, Any], check: Check) -> None:
        """Goes on where a state was taken."""
        if "sampler" not in state:
            raise ValueError("dali_zarr: load_state_dict: expected the state of a loader with a sampler, but that one had none")
        at = Place.of_dict(state["sampler"])
        super().load(plan, state, check)
        self._forget()
        self._stand(at)
        self._is_broken = False

    def renew(self, renewed: Callable[[Plan], Plan], check: Check) -> None:
        """Opens the store anew with the plan that ``renewed`` makes of the old one. The next iteration is a whole epoch."""
        stage = self.stage
        assert not isinstance(stage, Unopened)
        plan = renewed(self.plan)
        stage.reading.close()
        reading = Reading(plan)
        check(reading)
        self.stage = stage.renewed(reading)
        self._next = Next(self._next.epoch)
        self._forget()
        if self._is_ended is not None:
            self._stand(Place(self._at.epoch, is_ended=True))
        self.turn += 1

    def begin(self) -> int:
        """Begins an iteration over the sampler, which ends all others. Returns its number."""
        self.turn += 1
        before, wanted = self._reached(), self._next.epoch
        if self._next.goes_on and before.is_ended is False and wanted in (None, before.epoch):
            at = before
        else:
            epoch = before.epoch + (before.is_ended is not None) if wanted is None else wanted
            at = Place(epoch, is_set=wanted is not None)
        self._drop()
        begun, self._draws = self._source.begin(at)
        self._stand(begun)
        self._drawn = begun.samples
        return self.turn

    def _drop(self) -> None:
        """Drops what was pushed and not handed out."""
        reading, left = self.reading, len(self._pushed)
        self._forget()
        if self._is_broken or left > _FEW or not reading.is_open:
            reading.close()
            reading.resume()
            left = 0
        self._is_broken = False
        try:
            for _ in range(left):
                reading.next(lambda _found: None)
        except Exception:  # noqa: BLE001  (of a batch that nobody takes)
            reading.close()
            reading.resume()

    def _forget(self) -> None:
        self._pushed.clear()
        self._held.clear()
        self._error = self._draws = None

    def sizes(self) -> tuple[int, int] | None:
        """Draws and pushes batches, as far ahead as the reader prepares. Returns the number of samples of the next batch, and how
        many of these don't repeat others; None where there is no batch any more.

        Raises:
            Exception: What the sampler raised, or what is wrong with the samples that it gave, at their batch.
        """
        if len(self._pushed) < self._enough:
            self._draw_ahead()
        if not self._pushed:
            error, self._error = self._error, None
            if error is not None:
                raise error
            return None
        self._is_broken = True
        drawn = self._pushed[0]
        return drawn.size, drawn.own

    def _draw_ahead(self) -> None:
        """Draws and pushes as many batches as may be."""
        ahead = self.reading.batches_ahead + MORE
        # With more of them, there is no room for as many as are drawn at once.
        self._enough = ahead - AT_ONCE + 1
        while len(self._pushed) < ahead:
            # The reader begins with the first batch while the next ones are drawn.
            most = min(AT_ONCE if self._pushed else 1, ahead - len(self._pushed))
            if not (self._held or self._draw(most)) or not self._push():
                return

    def _push(self) -> bool:
        """Pushes the batches that are held, or notes why that can't be done. Returns whether one was pushed."""
        samples: list[Any] = []
        sizes: list[int] = []
        places: list[int] = []
        place = self._drawn
        for drawn in self._held:
            samples.append(drawn.samples)
            sizes.append(drawn.size)
            places.append(place + drawn.first)
            place += drawn.drawn
        try:
            count = self.reading.push_batches(samples, sizes, self._at.epoch, places)
        except Exception as error:  # noqa: BLE001  (raised at its batch)
            self._held.clear()
            self._draws, self._error = None, error
            return False
        for _ in range(count):
            drawn = self._held.popleft()
            self._pushed.append(drawn)
            self._drawn += drawn.drawn
        return count > 0

    def _draw(self, most: int) -> bool:
        """Draws batches, which are held until they are pushed. Returns whether there is one."""
        if self._draws is None:
            return False
        try:
            for drawn in self._draws.next(most):
                rows = drawn.samples
                found = rows if isinstance(rows, bytes) else self.reading.numbers(rows).tobytes()
                self._held.append(drawn if found is rows else drawn._replace(samples=found))
        except Exception as error:  # noqa: BLE001  (raised at its batch)
            self._draws, self._error = None, error
        if not self._held:
            self._draws = None
        return bool(self._held)

    def took(self) -> None:
        """Notes that the next batch is handed out."""
        drawn = self._pushed.popleft()
        is_last = self._error is None and not (self._pushed or self._held or self._draws)
        self.last = Last(self._at.epoch, self._batches, is_last)
        self._batches += 1
        self._samples += drawn.drawn
        self._state, self._is_ended, self._is_broken = drawn.state, is_last, False

    def end(self) -> None:
        """Ends the epoch."""
        self._is_ended = True

    def copied(self, plan: Plan) -> DrawnCourse:
        """Returns the course of a copy with this plan, which goes on where this one is, with the same sampler."""
        stage = self.stage
        if isinstance(stage, Shared):
            following = replace(self._next, goes_on=True)
            return DrawnCourse(Unopened(plan, self.state()), self._ending, self._source, following, self._reached())
        return DrawnCourse(Unopened(plan, stage.start), self._ending, self._source, self._next, self._reached())
