"""The processes of a distributed run, as torchrun starts them; one process without it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


class Ranks:
    """This process's place among all. Processes agree on numbers through gloo, on the CPU: the GPU's streams aren't
    touched."""

    def __init__(self) -> None:
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.local = int(os.environ.get("LOCAL_RANK", 0))
        self.cpu: Any = None

    def start(self, cuda: bool) -> None:
        """Joins the others: NCCL for gradients on GPUs, gloo for all else."""
        if self.world > 1:
            dist.init_process_group("nccl" if cuda else "gloo")
            self.cpu = dist.new_group(backend="gloo")

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier(self.cpu)

    def largest(self, number: float) -> float:
        """Returns, in each process, the largest of all processes' numbers."""
        if self.world == 1:
            return number
        value = torch.tensor([number], dtype=torch.float64)
        dist.all_reduce(value, dist.ReduceOp.MAX, group=self.cpu)
        return float(value.item())

    def first(self, make: Callable[[], Any]) -> Any:
        """Returns, in all processes, what the first one makes."""
        held = [make() if self.rank == 0 else None]
        if self.world > 1:
            dist.broadcast_object_list(held, src=0, group=self.cpu)
        return held[0]

    def gather(self, item: Any) -> list[Any]:
        """Returns the items of all processes in the first one; elsewhere an empty list."""
        if self.world == 1:
            return [item]
        items: list[Any] | None = [None] * self.world if self.rank == 0 else None
        dist.gather_object(item, items, dst=0, group=self.cpu)
        return items or []

    def close(self) -> None:
        if self.world > 1:
            dist.destroy_process_group()
