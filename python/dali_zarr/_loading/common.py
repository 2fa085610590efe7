"""What ranks leave for each other in the key-value store that they have in common.

A collective would hang if only some ranks take part. Here the first rank leaves a text, and the others read it. Nobody
waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any

from .._log import log
from . import ranks

# Takes a key and a text; returns the text that was left first under this key, on whatever rank.
Leave = Callable[[str, str], str]


class _Uses:
    """How often each key was used in a group of processes: ranks that make equal readers make them in the same order."""

    def __init__(self):
        self._is_group: Callable[[Any], bool] = lambda group: False
        self._groups = 0
        self._counts = Counter[str]()

    def number(self, group: Any, key: str) -> str:
        """Returns the number of this use of a key, with the number of the group: a store may outlive its group."""
        if not self._is_group(group):
            self._is_group, self._groups, self._counts = same_as(group), self._groups + 1, Counter()
        self._counts[key] += 1
        return f"{self._groups}/{self._counts[key]}"


_uses = _Uses()
_is_loader = ContextVar("_is_loader", default=False)
_is_warned = False


@contextlib.contextmanager
def by_loader() -> Generator[None, None, None]:
    """Context in which a loader makes an operator. Loaders compare more than operators do, and later."""
    before = _is_loader.set(True)
    try:
        yield
    finally:
        _is_loader.reset(before)


def is_by_loader() -> bool:
    """Returns whether a loader makes an operator now."""
    return _is_loader.get()


def found(group: Any = None) -> tuple[Any, Leave] | None:
    """Returns the processes that have a store in common, and how to leave something in it; None where there are none.
    ``group``: a process group of PyTorch; None: all its ranks, else JAX's processes."""
    group = group or ranks.group()
    leave = None if group is None else _of_torch(group)
    return _of_jax() if leave is None else (group, leave)


def first(group: Any, leave: Leave, key: str, own: dict[str, Any]) -> dict[str, Any]:
    """Leaves something under a key; returns what was left there first, which may be the same."""
    try:
        return json.loads(leave(f"dali_zarr/{key}/{_uses.number(group, key)}", json.dumps(own)))
    except Exception as error:  # noqa: BLE001  (whatever a store raises: training goes on without it)
        log.debug("the ranks couldn't compare what they read: %s", error)
        return own


def same_as(group: Any) -> Callable[[Any], bool]:
    """Returns whether another one is this group, without keeping the group alive."""
    try:
        known = weakref.ref(group)
    except TypeError:
        return lambda other: other is group
    return lambda other: other is not None and known() is other


def warn_of_seed(seed: str, rank: int, world: int) -> None:
    """Says once that ranks need the same seed, where torchrun made them and they can't compare it."""
    global _is_warned
    if _is_warned or os.environ.get("WORLD_SIZE", "1") == "1":
        return
    _is_warned = True
    log.warning(
        "seed: all ranks must have the same, which they can't compare without torch.distributed.init_process_group; rank %d of %d "
        "has %s",
        rank, world, seed,
    )


def _of_torch(group: Any) -> Leave | None:
    """Returns how to leave something in the store of a process group of PyTorch; None where it has none."""
    try:
        store: Any = sys.modules["torch.distributed.distributed_c10d"]._get_process_group_store(group)
    except (AttributeError, KeyError):
        return None
    # An empty text stands for no text yet.
    return lambda key, text: store.compare_set(key, "", text).decode()


def _of_jax() -> tuple[Any, Leave] | None:
    """Returns JAX's service of several processes, and how to leave something in it; None where there is none."""
    distributed: Any = sys.modules.get("jax._src.distributed")
    client: Any = getattr(getattr(distributed, "global_state", None), "client", None)
    if client is None or not hasattr(client, "key_value_try_get"):
        return None

    def leave(key: str, text: str) -> str:
        try:
            client.key_value_set(key, text)
        except Exception:  # noqa: BLE001  (another rank was first)
            return client.key_value_try_get(key)
        return text

    return client, leave
