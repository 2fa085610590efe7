"""Trains by dates, and goes on after a crash: torchrun --nproc-per-node 2 weather.py STORE CHECKPOINT EPOCHS"""

import os
import sys

import dali_zarr.torch
import torch
import torch.distributed as dist

if "--help" in sys.argv:
    sys.exit(print(__doc__))


def hours(batch: dali_zarr.torch.Batch) -> str:
    return " ".join(map(str, batch.coords["time"].astype("datetime64[h]")))


store, checkpoint, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo")
parts = dali_zarr.splits(  # only the training part is shuffled
    path=store, arrays=["t2m", "z"], sel={"level": [850, 500]}, offsets={"input": 0, "target": 6}, stack_arrays=True,
    batch_size=2, device="cpu", random_shuffle=True, train=slice(None, "2020-01-02T11"), validation=slice("2020-01-02T12", None),
)
training, validation = (dali_zarr.torch.Loader(**parts[name]) for name in ("train", "validation"))
model = torch.nn.parallel.DistributedDataParallel(layer := torch.nn.Conv2d(3, 3, 3, padding=1))
optimizer = torch.optim.Adam(model.parameters())
kept = {"model": model, "optimizer": optimizer, "loader": training}
if os.path.exists(checkpoint):
    for name, state in torch.load(checkpoint).items():
        kept[name].load_state_dict(state)
for epoch in range(training.epoch, epochs):
    for batch in training:
        print(f"train {epoch} {hours(batch)}\n", end="", flush=True)  # one write, so that lines of ranks don't mix
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch["input"]), batch["target"]).backward()
        optimizer.step()
        if dist.get_rank() == 0:
            torch.save({name: part.state_dict() for name, part in kept.items()}, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
        dist.barrier()  # no rank begins a step before the last one is kept
    loss = torch.zeros(1)
    for batch in validation:
        print(f"validation {epoch} {hours(batch)}\n", end="", flush=True)
        loss += torch.nn.functional.mse_loss(layer(batch["input"]), batch["target"], reduction="sum").detach()
    dist.all_reduce(loss)
    print(f"loss {epoch} {loss.item():.0f}\n" * (dist.get_rank() == 0), end="", flush=True)
