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
    # How many samples of the last batches count, which Accelerate cuts from the end. Unknown: repeated samples are at
    # the end of each rank's batch, and ``Batch.is_repeated`` tells them.
    remainder = -1


def _gradient_state() -> Any:
    """Returns Accelerate's gradient state; None where Accelerate isn't in use."""
    kind: Any = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if kind is None or not kind._shared_state:
        return None
    state = kind()
    return state if hasattr(state, "_add_dataloader") and hasattr(state, "_remove_dataloader") else None


def told(batches: Iterator[B], is_last: Callable[[], bool]) -> Iterator[B]:
    """Yields the batches, and tells Accelerate which is the last one. ``is_last``: whether the batch that came last is."""
    state = _gradient_state()
    if state is None:
        yield from batches
        return
    place = _Place()
    state._add_dataloader(place)
    try:
        for batch in batches:
            place.end_of_dataloader = is_last()
            yield batch
    finally:
        state._remove_dataloader(place)
