"""Trains by dates, and goes on after a crash: torchrun --nproc-per-node 2 weather.py STORE CHECKPOINT EPOCHS"""

import os
import sys

import dali_zarr
import torch
import torch.distributed as dist
from dali_zarr.torch import Batch, Loader


def hours(batch: Batch) -> str:
    return " ".join(map(str, batch.coords["time"].astype("datetime64[h]")))

store, checkpoint, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo")
parts = dali_zarr.splits(
    path=store, arrays=["t2m", "z"], sel={"level": [850, 500]}, offsets={"input": 0, "target": 6}, stack_arrays=True,
    batch_size=2, device="cpu", random_shuffle=True, host_memory_limit="256MB",
    train=slice(None, "2020-01-02T11"), validation=slice("2020-01-02T12", None),
)
training, validation = Loader(**parts["train"]), Loader(**parts["validation"])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Conv2d(3, 3, 3, padding=1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    training.load_state_dict(saved["loader"])
for epoch in range(training.epoch, epochs):
    for batch in training:
        print(f"train {epoch} {hours(batch)}\n", end="", flush=True)
        torch.nn.functional.mse_loss(model(batch["input"]), batch["target"]).backward()
        optimizer.step()
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "loader": training.state_dict()}, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
        dist.barrier()
    for batch in validation:
        print(f"validation {epoch} {hours(batch)}\n", end="", flush=True)
