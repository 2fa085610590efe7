"""An epoch that four processes begin, two go on with, and one ends: ranks of torch.distributed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.processes import start
from support.stores import Layout, write_array

SAMPLES = 101

RANK = """
import json, os, sys
import torch
import torch.distributed as dist
import dali_zarr.torch

path, folder, samples, backend, rank, world, state, batches = sys.argv[1:]
rank, world, batches = int(rank), int(world), int(batches)
device = "cpu"
if backend == "nccl":
    # With fewer GPUs than ranks, NCCL is told that they are hosts with the same GPUs: on one host it refuses two ranks on a GPU.
    host, gpu = divmod(rank, torch.cuda.device_count())
    if world > torch.cuda.device_count():
        os.environ |= {"NCCL_HOSTID": f"host-{host}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    torch.cuda.set_device(gpu)
    device = f"cuda:{gpu}"
dist.init_process_group(backend, init_method=f"file://{folder}/rendezvous-{world}", rank=rank, world_size=world)
loader = dali_zarr.torch.Loader(path, arrays=["x"], dims=["n"], batch_size=3, random_shuffle=True, device=device, uneven="exact")
if state != "none":
    loader.load_state_dict(json.load(open(state)))
counts = torch.zeros(int(samples), dtype=torch.int64, device=device)
for number, batch in enumerate(loader, 1):
    counts.index_add_(0, batch["x"].flatten(), torch.ones_like(batch["x"].flatten()))
    if number == batches:
        break
dist.all_reduce(counts)
if rank == 0:
    json.dump(loader.state_dict(), open(f"{folder}/state-{world}", "w"))
    json.dump(counts.tolist(), open(f"{folder}/counts-{world}", "w"))
dist.destroy_process_group()
"""


def run(path: Path, folder: Path, backend: str, world: int, state: str, batches: int) -> list[int]:
    """How often each sample was seen by all ranks together, as they agreed on by a collective."""
    ranks = [
        start(RANK, path, folder, SAMPLES, backend, rank, world, state, batches, imports="torch", env={"OMP_NUM_THREADS": "1"})
        for rank in range(world)
    ]
    try:
        errors = [rank.communicate(timeout=150)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, error in zip(ranks, errors, strict=True):
        assert rank.returncode == 0, error
    return json.loads((folder / f"counts-{world}").read_text())


@pytest.mark.timeout_s(300)
def test_four_ranks_then_two_then_one(tmp_path, device):
    """Each sample of the epoch is seen once."""
    pytest.importorskip("torch")
    backend = "nccl" if device == "gpu" else "gloo"
    path = tmp_path / "store.zarr"
    write_array(path, "x", np.arange(SAMPLES, dtype=np.int64).reshape(-1, 1), layout=Layout(chunks=(2, 1)), dims=("n", "one"))
    seen = np.array(run(path, tmp_path, backend, 4, "none", 3))
    assert seen.sum() == 4 * 3 * 3
    seen += run(path, tmp_path, backend, 2, f"{tmp_path}/state-4", 4)
    assert seen.sum() == 4 * 3 * 3 + 2 * 4 * 3
    seen += run(path, tmp_path, backend, 1, f"{tmp_path}/state-2", 0)
    assert seen.tolist() == [1] * SAMPLES
