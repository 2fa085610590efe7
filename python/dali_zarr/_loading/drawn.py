"""The course of a loader in its caller's order: what was drawn from the sampler and pushed to the reader, and what of it was
handed out.

Batches are drawn by the thread that asks for a batch, when it asks: so many more than it takes as the reader prepares at a
time. After an error of the sampler nothing more is drawn, and the error is raised where its batch would come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .course import Check, Course, Last, Next, Shared, Stage, Unopened
from .epochs import Ending
from .reading import Plan, Reading
from .samplers import Drawn, Place

# Batches that are drawn beyond those that the reader prepares at a time: two that DALI has taken of it, and two that it plans
# meanwhile. A reader that knows no further batch keeps chunks for it, and copies them once more.
MORE = 4
# If at most this many batches were pushed that nobody takes, they are read and dropped. Otherwise the store is opened anew.
_FEW = 2


class AnyDraws(Protocol):
    """One iteration over a sampler."""

    def next(self) -> Drawn | None:
        """Draws a batch; None where there is none any more."""
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


@dataclass(frozen=True)
class _Failed:
    """Stands for the batch at which the sampler failed."""

    error: Exception


class DrawnCourse(Course):
    """As :class:`Course`, where a sampler says which samples come."""

    def __init__(self, stage: Stage, ending: Ending, source: AnySource, following: Next | None = None, at: Place | None = None):
        super().__init__(stage, ending, following)
        self._source = source
        # After the batch that was handed out last, or that of the state that was loaded.
        self._at = at or Place()
        self._draws: AnyDraws | None = None
        # How many samples of the epoch were drawn.
        self._drawn = 0
        # Batches that were pushed and not handed out, then perhaps one that was drawn while the reader's queue was full.
        self._pushed: deque[Drawn] = deque()
        self._held: Drawn | _Failed | None = None
        # Whether a batch failed, so that the pipeline's next one isn't the first one of ``_pushed``.
        self._is_broken = False

    def is_within(self) -> bool:
        """Whether batches of an epoch were handed out, and others may be left."""
        return self._at.is_ended is False and (self.last is None or not self.last.is_last)

    def state(self) -> dict[str, Any]:
        """Returns the state after the batch that was handed out last."""
        return super().state() | {"sampler": self._at.to_dict()}

    def following(self) -> int:
        """Returns the epoch of the next iteration, where none was set and no batch was handed out."""
        return self._at.epoch + bool(self._at.is_ended)

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
        self._at, self._is_broken = at, False

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
        if self._at.is_ended is not None:
            self._at = Place(self._at.epoch, is_ended=True)
        self.turn += 1

    def begin(self) -> int:
        """Begins an iteration over the sampler, which ends all others. Returns its number."""
        self.turn += 1
        before, wanted = self._at, self._next.epoch
        if self._next.goes_on and before.is_ended is False and wanted in (None, before.epoch):
            at = before
        else:
            epoch = before.epoch + (before.is_ended is not None) if wanted is None else wanted
            at = Place(epoch, is_set=wanted is not None)
        self._drop()
        self._at, self._draws = self._source.begin(at)
        self._drawn = self._at.samples
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
        self._held = self._draws = None

    def sizes(self) -> tuple[int, int] | None:
        """Draws and pushes batches, as far ahead as the reader prepares. Returns the number of samples of the next batch, and how
        many of these don't repeat others; None where there is no batch any more.

        Raises:
            Exception: What the sampler raised, or what is wrong with the samples that it gave, at their batch.
        """
        ahead = self.reading.batches_ahead + MORE
        while len(self._pushed) < ahead:
            if self._held is None:
                self._held = self._drawn_next()
            if not isinstance(self._held, Drawn) or not self._push(self._held):
                break
        if not self._pushed:
            failed, self._held = self._held, None
            if isinstance(failed, _Failed):
                raise failed.error
            return None
        self._is_broken = True
        return len(self._pushed[0].samples), self._pushed[0].own

    def _drawn_next(self) -> Drawn | _Failed | None:
        if self._draws is None:
            return None
        try:
            drawn = self._draws.next()
            if drawn is not None:
                return drawn if drawn.samples.ndim == 1 else drawn._replace(samples=self.reading.numbers(drawn.samples))
        except Exception as error:  # noqa: BLE001  (raised at its batch)
            self._draws = None
            return _Failed(error)
        self._draws = None
        return None

    def _push(self, drawn: Drawn) -> bool:
        """Pushes a batch, or notes why that can't be done. Returns whether it was pushed."""
        try:
            if not self.reading.push(drawn.samples, self._at.epoch, self._drawn + drawn.first):
                return False
        except Exception as error:  # noqa: BLE001  (raised at its batch)
            self._draws, self._held = None, _Failed(error)
            return False
        self._pushed.append(drawn)
        self._drawn += drawn.drawn
        self._held = None
        return True

    def took(self) -> None:
        """Notes that the next batch is handed out."""
        drawn = self._pushed.popleft()
        is_last = not self._pushed and self._held is None and self._draws is None
        self._at = self._at.after(drawn, is_last)
        self.last = Last(self._at.epoch, self._at.batches - 1, is_last)
        self._is_broken = False

    def end(self) -> None:
        """Ends the epoch."""
        self._at = self._at._replace(is_ended=True)

    def copied(self, plan: Plan) -> DrawnCourse:
        """Returns the course of a copy with this plan, which goes on where this one is, with the same sampler."""
        stage = self.stage
        if isinstance(stage, Shared):
            following = replace(self._next, goes_on=True)
            return DrawnCourse(Unopened(plan, self.state()), self._ending, self._source, following, self._at)
        return DrawnCourse(Unopened(plan, stage.start), self._ending, self._source, self._next, self._at)
