"""Exchanges results between the processes of one run."""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import os
import sys
from typing import Any

# How long one process may be behind another.
_WAIT = datetime.timedelta(days=7)
_calls = itertools.count()


def gathered(mine: Any, rank: int, world: int, process_group: Any) -> list[Any]:
    """Returns, in all processes, what each process gave, in the order of ranks. ``mine`` must be something that JSON
    can hold.

    Uses ``torch.distributed`` where it is initialised, else the key-value store that torchrun's environment names.

    Raises:
        ImportError: PyTorch isn't installed.
        RuntimeError, ValueError: A process is gone, or the environment is incomplete; as PyTorch tells it.
    """
    if world == 1:
        return [mine]
    distributed = sys.modules.get("torch.distributed")
    if process_group is not None or (distributed is not None and distributed.is_available() and distributed.is_initialized()):
        import torch.distributed as group

        found: list[Any] = [None] * world
        group.all_gather_object(found, mine, group=process_group)
        return found
    return _by_store(mine, rank, world)


@functools.cache
def _store(rank: int, world: int) -> Any:
    """The key-value store of the run. One for all calls: of several, processes that come early would meet the one that ends."""
    try:
        import torch.distributed as distributed
    except ImportError as error:
        raise ImportError(
            f"dali_zarr: statistics: RANK and WORLD_SIZE ({os.environ['WORLD_SIZE']}) are set; several processes need torch, which "
            "isn't installed: pip install torch"
        ) from error
    module: Any = distributed
    store, _, _ = next(module.rendezvous("env://", rank=rank, world_size=world))
    store.set_timeout(_WAIT)
    return store


def _by_store(mine: Any, rank: int, world: int) -> list[Any]:
    store = _store(rank, world)
    import torch.distributed as distributed

    module: Any = distributed
    # Each call has keys of its own; all processes make the same calls.
    own = module.PrefixStore(f"dali_zarr_statistics_{next(_calls)}", store)
    own.set(f"part_{rank}", json.dumps(mine))
    found = [json.loads(own.get(f"part_{other}")) for other in range(world)]
    # The process that serves the store stays until all have read.
    own.set(f"done_{rank}", "1")
    if rank == 0:
        own.wait([f"done_{other}" for other in range(world)])
    return found
