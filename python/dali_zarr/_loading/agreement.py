"""Whether the ranks that divide the samples among themselves have one order of them.

Each rank takes its part of one order. With another seed a rank has another order: then some samples come twice, and others
not at all. So ranks compare their orders before the first batch. They do this without a collective, which would hang if
only some ranks make a loader: the first rank leaves its order in the key-value store that the ranks have in common, and
the others compare with it. Nobody waits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from .._log import log
from . import common
from .reading import Plan

# What may differ by mistake between loaders that are one loader on several ranks.
_COMPARED = ("seed", "initial_fill", "samples that share chunks")
_PLACE = ("epoch", "position", "shard_id", "legs", "check", "package")
_RANDOM = ("random_shuffle", "shuffle_after_epoch", "weights")
# Arguments of an operator that ranks give differently, though they read the same samples.
_OF_RANKS = frozenset({"seed", "shard_id", "device", "name", "cache_dir"})
_DEFAULT = "the default"
_UNLESS = "%s, unless these ranks don't divide the samples among themselves"


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
        if plan.num_shards == 1 and plan.parts is None:
            return
        shared = common.found(self._group)
        if shared is not None and self._is_compared(shared[0]):
            return
        # Ranks of a read group have parts of the same samples.
        described = _order(state if plan.parts is None else plan.parts.state_of_whole(state))
        if described is None:
            return
        key, order = described
        seed = _shown(plan.arguments.get("seed"))
        if shared is None:
            if seed != _DEFAULT:
                common.warn_of_seed(seed, plan.shard_id, plan.num_shards)
            return
        self._is_compared = common.same_as(shared[0])
        own = {"rank": plan.shard_id, "seed": seed, "order": order}
        first = common.first(*shared, f"{key}/{plan.num_shards}", own)
        if first["order"] != order:
            self._differ(own, first)

    def _differ(self, own: dict[str, Any], first: dict[str, Any]) -> None:
        what = next(name for name in _COMPARED if own["order"][name] != first["order"][name])
        here, there = (one["seed"] if what == "seed" else one["order"][what] for one in (own, first))
        text = _difference(what, here, own["rank"], there, first["rank"])
        if not self._is_certain:
            log.warning(_UNLESS, text)
            return
        raise ValueError(
            f"dali_zarr: {text}; give all ranks the same {what}, or, to a loader that only some ranks make, shard_id and num_shards"
        )


def _order(state: str) -> tuple[str, dict[str, Any]] | None:
    """Returns a name for the samples that a state describes, and what their order depends on beside them; None for an
    order in which nothing is random."""
    told: dict[str, Any] = json.loads(state)
    cut = dict(told["cut"])
    if not (cut["random_shuffle"] or cut["shuffle_after_epoch"] or "weights" in cut):
        return None
    order = {name: cut.pop(name, None) for name in _COMPARED}
    others = {name: value for name, value in told.items() if name not in _PLACE} | {"cut": cut}
    return _digest(others), order


def compare_operators(arguments: Mapping[str, Any]) -> None:
    """Compares the seed of a reader in a pipeline with those of other ranks' readers with the same arguments. A
    difference is only logged: DALI's ranks are numbers, and several readers may each have ranks of their own."""
    world, rank, seed = arguments.get("num_shards") or 1, arguments.get("shard_id") or 0, _shown(arguments.get("seed"))
    is_random = any(arguments.get(name) is not None and arguments.get(name) is not False for name in _RANDOM)
    if not isinstance(world, int) or world < 2 or not is_random or common.is_by_loader():
        return
    shared = common.found()
    if shared is None:
        if seed != _DEFAULT:
            common.warn_of_seed(seed, rank, world)
        return
    others = {name: repr(value) for name, value in arguments.items() if name not in _OF_RANKS}
    first = common.first(*shared, f"operator/{_digest(others)}/{world}", {"rank": rank, "seed": seed})
    if first["seed"] != seed:
        log.warning(_UNLESS, _difference("seed", seed, rank, first["seed"], first["rank"]))


def _difference(what: str, here: str, rank: int, there: str, other: int) -> str:
    return (
        f"{what}: expected the same on all ranks, which take parts of one order, but found {here} on rank {rank} and {there} on "
        f"rank {other}: samples would come twice or not at all"
    )


def _shown(seed: Any) -> str:
    return _DEFAULT if seed in (None, -1) else str(seed)


def _digest(described: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]
