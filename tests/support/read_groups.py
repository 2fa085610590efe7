"""Ranks of a read group as processes of this machine, and what they read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.processes import start
from support.stores import Layout, write_array

TIMES, LEVELS, CELLS = 19, 3, 23

# Each rank is told the backend, its place, and what to do: a function that gets the group's ranks.
RANK = """
import json, os, sys
from datetime import timedelta
import numpy as np
import torch
import torch.distributed as dist
from dali_zarr.torch import Batch, Dataset, Loader

path, folder, backend, rank, world, told = sys.argv[1:]
rank, world, told = int(rank), int(world), json.loads(told)
device = "cpu" if backend == "gloo" else f"cuda:{rank}"
if backend == "nccl":
    torch.cuda.set_device(rank)
place = {"init_method": f"file://{folder}/rendezvous", "rank": rank, "world_size": world}
dist.init_process_group(backend, timeout=timedelta(seconds=60), **place)
OWN = {"device": device, "host_memory_limit": "64MiB"} | ({} if backend == "gloo" else {"device_memory_limit": "128MiB"})

def groups(lists):
    '''Makes process groups; returns this rank's, with its number.'''
    made = [dist.new_group(ranks) for ranks in lists]
    number = next(i for i, ranks in enumerate(lists) if rank in ranks)
    return made[number], number

def make(**arguments):
    return Loader(path, **{"dims": ["time"], **OWN, **arguments})

def same(one, other, cut=lambda name, tensor: tensor):
    '''Whether batches have equal entries, bit by bit.'''
    assert list(one) == list(other), (list(one), list(other))
    for name, tensor in one.items():
        if isinstance(tensor, Batch):
            same(tensor, other[name], cut)
            continue
        wanted = cut(name, other[name])
        assert tensor.dtype == wanted.dtype and tensor.shape == wanted.shape, (name, tensor.dtype, tensor.shape, wanted.shape)
        own, wanted = (one.contiguous().view(torch.uint8).cpu().numpy() for one in (tensor[..., None], wanted[..., None]))
        assert np.array_equal(own, wanted), name
    assert torch.equal(one.index, other.index) and torch.equal(one.is_repeated, other.is_repeated)

def told_of_all(value):
    '''What all ranks have.'''
    found = [None] * world
    if backend == "gloo":
        dist.all_gather_object(found, value)
    else:
        dist.all_gather_object(found, value, group=hosts)
    return found

hosts = dist.new_group(backend="gloo") if backend == "nccl" else None
"""


def run(script: str, path: Path, folder: Path, world: int, told: object = None, backend: str = "gloo") -> list[tuple[int, str]]:
    """Runs a script on several ranks; returns the status of each, and its errors."""
    folder.mkdir(exist_ok=True)
    words = path, folder, backend
    ranks = [
        start(RANK + script, *words, rank, world, json.dumps(told), imports="torch", env={"OMP_NUM_THREADS": "1"})
        for rank in range(world)
    ]
    try:
        errors = [rank.communicate(timeout=150)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, error) for rank, error in zip(ranks, errors, strict=True)]


def passes(*args, **more) -> None:
    """The same, where all must end well."""
    done = run(*args, **more)
    assert all(status == 0 for status, _ in done), "\n".join(error[:3000] for _, error in done)


def write(base: Path) -> Path:
    """Fields on cells, in chunks that end at other cells."""
    random = np.random.default_rng(5)
    fields = random.standard_normal((TIMES, LEVELS, CELLS)).astype("float32")
    write_array(base, "field", fields, layout=Layout((1, 2, 5)), dims=("time", "level", "cell"))
    write_array(base, "other", fields[::-1] * 3, layout=Layout((1, 3, 4)), dims=("time", "level", "cell"))
    surface = random.integers(1, 60000, (TIMES, CELLS)).astype("uint16")
    write_array(base, "surface", surface, layout=Layout((1, 10)), dims=("time", "cell"))
    write_array(base, "hour", random.standard_normal(TIMES), layout=Layout((2,)), dims=("time",))
    write_array(base, "cell", np.arange(CELLS, dtype=np.int64) * 10, dims=("cell",))
    attributes = {"units": "hours since 2020-01-01", "calendar": "standard"}
    write_array(base, "time", np.arange(TIMES, dtype=np.int64), dims=("time",), attributes=attributes)
    return base


def backends():
    """gloo on the CPU, and nccl where there are two GPUs."""
    import torch

    few = torch.cuda.device_count() < 2
    return ["gloo", pytest.param("nccl", marks=pytest.mark.skipif(few, reason="it needs two GPUs"))]
