"""Accelerate's gradient accumulation: ``accumulate`` synchronises gradients at the end of an epoch if it knows that the
batch is the last one. It asks the loader that is iterated over, which Accelerate's own loaders tell it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

B = TypeVar("B")


class _Place:
    """Where an iteration is, as Accelerate asks for it."""

    end_of_dataloader = False
    # How many samples of the last batch count, over all processes: what is gathered is cut there. 0: all of a full batch. -1: not
    # known. With several processes repeated samples aren't at the end of what is gathered, but of each rank's part, and
    # ``Batch.is_repeated`` tells them.
    remainder = -1


def _gradient_state() -> Any:
    """Returns Accelerate's gradient state; None where Accelerate isn't in use."""
    kind: Any = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if kind is None or not kind._shared_state:
        return None
    state = kind()
    return state if hasattr(state, "_add_dataloader") and hasattr(state, "_remove_dataloader") else None


def _is_alone() -> bool:
    """Returns whether Accelerate gathers from this process alone."""
    kind: Any = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    return kind is not None and bool(kind._shared_state) and kind().num_processes == 1


def told(batches: Iterator[B], is_last: Callable[[], bool], own: Callable[[B], int], batch_size: int) -> Iterator[B]:
    """Yields the batches, and tells Accelerate which is the last one, and how many of its samples count. ``is_last``: whether the
    batch that came last is. ``own``: how many samples of a batch don't repeat others."""
    state = _gradient_state()
    if state is None:
        yield from batches
        return
    place = _Place()
    state._add_dataloader(place)
    try:
        for batch in batches:
            place.end_of_dataloader = is_last()
            if place.end_of_dataloader and _is_alone() and (count := own(batch)):
                # A batch of repetitions alone keeps -1: Accelerate can't cut to nothing, and 0 would say that all count.
                place.remainder = count % batch_size
            yield batch
    finally:
        state._remove_dataloader(place)
