"""Lightning's states of loaders: those that Lightning has read, but not loaded.

Lightning loads the states of training loaders when it sets up its data. If ``configure_optimizers`` asks for
``trainer.estimated_stepping_batches``, the data are set up before the checkpoint is read, and not again (Lightning's issue
20550). States that were saved at the end of an epoch aren't loaded either. In both cases the loop still holds the states
when it asks for the first batch.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, cast

from .._loading.loader import BaseLoader

_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
# How many callers are searched. Lightning's loop is about the tenth.
_CALLERS = 40


def load_forgotten_states(loader: BaseLoader[Any]) -> None:
    """Loads the states that Lightning's loop holds, if the loop is asking ``loader`` for the first batch of an epoch.

    Raises:
        RuntimeError: The epoch has another number of batches than Lightning counted before.
    """
    loops = tuple(sys.modules[name]._FitLoop for name in _LOOPS if hasattr(sys.modules.get(name), "_FitLoop"))
    loop: Any = _caller(loops) if loops else None
    states: Any = getattr(loop, "_combined_loader_states_to_load", None)
    every: list[Any] = getattr(getattr(loop, "_combined_loader", None), "flattened", [])
    stateful = [one for one in every if hasattr(one, "state_dict") and hasattr(one, "load_state_dict")]
    if not states or len(stateful) != len(states) or not any(one is loader for one in stateful):
        return
    # As Lightning does when it has loaded them: a later run must not load them again.
    loop._combined_loader_states_to_load = []
    for one, state in zip(stateful, states, strict=True):
        if isinstance(one, BaseLoader):
            _load(cast("BaseLoader[Any]", one), state)


def _load(loader: BaseLoader[Any], state: Any) -> None:
    counted = _length(loader)
    loader.load_state_dict(state)
    if _length(loader) != counted:
        raise RuntimeError(
            f"dali_zarr: Lightning counted {counted} batches in the epoch before it read the loader's state, but the epoch that "
            f"goes on has {_length(loader)}, since it began with another number of ranks or another batch size: don't ask for "
            "trainer.estimated_stepping_batches in configure_optimizers; compute the steps from len(loader)"
        )


def _length(loader: BaseLoader[Any]) -> int | None:
    """Returns the number of batches; None where a sampler doesn't tell it."""
    try:
        return len(loader)
    except TypeError:
        return None


def _caller(kinds: tuple[type, ...]) -> Any:
    """Returns the object of one of these types whose method ``advance`` led here; None if there is none."""
    frame = inspect.currentframe()
    for _ in range(_CALLERS):
        if frame is None:
            return None
        if frame.f_code.co_name == "advance" and isinstance(frame.f_locals.get("self"), kinds):
            return frame.f_locals["self"]
        frame = frame.f_back
    return None
