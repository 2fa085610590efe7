"""Whether the ranks that divide the samples among themselves have one order of them.

Each rank takes its part of one order. With another seed a rank has another order: then some samples come twice, and others
not at all. So ranks compare their orders before the first batch. They do this without a collective, which would hang if
only some ranks make a loader: the first rank leaves its order in the key-value store that the ranks have in common, and
the others compare with it. Nobody waits.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from .._log import log
from . import ranks
from .reading import Plan

# What may differ by mistake between loaders that are one loader on several ranks.
_COMPARED = ("seed", "initial_fill", "samples that share chunks")
_PLACE = ("epoch", "position", "shard_id", "legs", "check", "package")

# Takes a key and a text; returns the text that was left first under this key, on whatever rank.
Leave = Callable[[str, str], str]


class _Left:
    """How often each key was used in a group of processes: ranks that make equal loaders make them in the same order."""

    def __init__(self):
        self._is_group: Callable[[Any], bool] = lambda group: False
        self._groups = 0
        self._counts = Counter[str]()

    def number(self, group: Any, key: str) -> str:
        """Returns the number of this use of a key, with the number of the group: a store may outlive its group."""
        if not self._is_group(group):
            self._is_group, self._groups, self._counts = _same_as(group), self._groups + 1, Counter()
        self._counts[key] += 1
        return f"{self._groups}/{self._counts[key]}"


_left = _Left()
_is_warned = False


class Agreement:
    """Compares the order of a loader with that of the other ranks, once in each group of processes.

    Args:
        group: The process group whose ranks divide the samples; None: that of all processes.
        is_certain: Whether the ranks of the group are those that divide the samples. If ranks were given by numbers,
            several loaders may each have ranks of their own, with their own seeds. Then a difference is only logged.
    """

    def __init__(self, group: Any = None, is_certain: bool = True):
        self._group, self._is_certain = group, is_certain
        self._is_compared: Callable[[Any], bool] = lambda group: False

    def __getstate__(self) -> dict[str, Any]:
        # A process group can't be copied. The copy's ranks are numbers.
        return {"is_certain": self._is_certain and self._group is None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(None, **state)

    def check(self, plan: Plan, state: str) -> None:
        """Compares the order that a reader's state describes.

        Raises:
            ValueError: Another rank has another order.
        """
        if plan.num_shards == 1:
            return
        group = self._group or ranks.group()
        leave = None if group is None else _of_torch(group)
        if leave is None:
            group, leave = _of_jax()
        if self._is_compared(group):
            return
        found = _order(state)
        if found is None:
            return
        if leave is None:
            _warn(plan)
            return
        self._is_compared = _same_as(group)
        key, order = found
        own = {"rank": plan.shard_id, "seed": _shown(plan), "order": order}
        try:
            first = json.loads(leave(f"dali_zarr/{key}/{plan.num_shards}/{_left.number(group, key)}", json.dumps(own)))
        except Exception as error:  # noqa: BLE001  (whatever a store raises: training goes on without it)
            log.debug("the ranks couldn't compare their orders: %s", error)
            return
        if first["order"] != order:
            self._differ(own, first)

    def _differ(self, own: dict[str, Any], first: dict[str, Any]) -> None:
        what = next(name for name in _COMPARED if own["order"][name] != first["order"][name])
        here, there = (one["seed"] if what == "seed" else one["order"][what] for one in (own, first))
        text = (
            f"{what}: expected the same on all ranks, which take parts of one order, but found {here} on rank {own['rank']} and "
            f"{there} on rank {first['rank']}: samples would come twice or not at all"
        )
        if not self._is_certain:
            log.warning("%s, unless these ranks don't divide the samples among themselves", text)
            return
        raise ValueError(
            f"dali_zarr: {text}; give all ranks the same {what}, or, to a loader that only some ranks make, shard_id and num_shards"
        )


def _same_as(group: Any) -> Callable[[Any], bool]:
    """Returns whether another one is this group, without keeping the group alive."""
    try:
        known = weakref.ref(group)
    except TypeError:
        return lambda other: other is group
    return lambda other: other is not None and known() is other


def _order(state: str) -> tuple[str, dict[str, Any]] | None:
    """Returns a name for the samples that a state describes, and what their order depends on beside them; None for an
    order in which nothing is random."""
    told: dict[str, Any] = json.loads(state)
    cut = dict(told["cut"])
    if not (cut["random_shuffle"] or cut["shuffle_after_epoch"] or "weights" in cut):
        return None
    order = {name: cut.pop(name, None) for name in _COMPARED}
    others = {name: value for name, value in told.items() if name not in _PLACE} | {"cut": cut}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()[:16], order


def _shown(plan: Plan) -> str:
    seed = plan.arguments.get("seed")
    return "the default" if seed in (None, -1) else str(seed)


def _warn(plan: Plan) -> None:
    """Says once that ranks need the same seed, where torchrun made them and they can't compare it."""
    global _is_warned
    if _is_warned or _shown(plan) == "the default" or os.environ.get("WORLD_SIZE", "1") == "1":
        return
    _is_warned = True
    log.warning(
        "seed: all ranks must have the same, which they can't compare without torch.distributed.init_process_group; rank %d of %d "
        "has %s",
        plan.shard_id, plan.num_shards, _shown(plan),
    )


def _of_torch(group: Any) -> Leave | None:
    """Returns how to leave something in the store of a process group of PyTorch; None where it has none."""
    try:
        store: Any = sys.modules["torch.distributed.distributed_c10d"]._get_process_group_store(group)
    except (AttributeError, KeyError):
        return None
    # An empty text stands for no text yet.
    return lambda key, text: store.compare_set(key, "", text).decode()


def _of_jax() -> tuple[Any, Leave | None]:
    """Returns JAX's service of several processes, and how to leave something in it; None and None where there is none."""
    distributed: Any = sys.modules.get("jax._src.distributed")
    client: Any = getattr(getattr(distributed, "global_state", None), "client", None)
    if client is None or not hasattr(client, "key_value_try_get"):
        return None, None

    def leave(key: str, text: str) -> str:
        try:
            client.key_value_set(key, text)
        except Exception:  # noqa: BLE001  (another rank was first)
            return client.key_value_try_get(key)
        return text

    return client, leave
