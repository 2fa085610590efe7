"""Which part of the samples a process reads."""

import os
import sys
from typing import Any

from .._arguments.values import check_integer


def rank_and_world(process_group: Any, shard_id: int | None, num_shards: int | None) -> tuple[int, int]:
    """Returns the rank and the number of ranks: as given; else of the process group; else of ``torch.distributed``, if
    it is initialised; else of torchrun's environment; else 0 of 1.

    Raises:
        ValueError: Only one of both is given, or a group beside them, or there is no such rank.
        TypeError: A number isn't whole.
    """
    if (shard_id is None) != (num_shards is None):
        raise ValueError("dali_zarr: expected both shard_id and num_shards, or neither")
    if shard_id is not None and num_shards is not None:
        if process_group is not None:
            raise ValueError("dali_zarr: expected process_group, or shard_id and num_shards, but found both")
        check_integer("shard_id", shard_id)
        check_integer("num_shards", num_shards)
        if not 0 <= shard_id < num_shards:
            message = f"expected a number from 0 to num_shards - 1 = {num_shards - 1}, found {shard_id}"
            raise ValueError(f"dali_zarr: shard_id: {message}")
        return shard_id, num_shards
    if process_group is not None:
        import torch.distributed

        return torch.distributed.get_rank(process_group), torch.distributed.get_world_size(process_group)
    return told() or (0, 1)


def group() -> Any:
    """The process group of ``torch.distributed``; None before it is initialised and after it was destroyed."""
    distributed = sys.modules.get("torch.distributed")
    return distributed.group.WORLD if distributed is not None and distributed.is_available() else None


def told() -> tuple[int, int] | None:
    """Returns the rank and the number of ranks as the process group or torchrun's environment says now; None without
    both."""
    if group() is not None:
        distributed = sys.modules["torch.distributed"]
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return of_environment("RANK"), of_environment("WORLD_SIZE")
    return None


def of_environment(name: str) -> int:
    """Returns the number in an environment variable that torchrun sets.

    Raises:
        ValueError: It isn't a whole number.
    """
    text = os.environ[name]
    if not text.isdecimal():
        raise ValueError(
            f"dali_zarr: expected a whole number in the environment variable {name}, as torchrun sets it, but found {text!r}; "
            "unset it, or give shard_id and num_shards"
        )
    return int(text)
