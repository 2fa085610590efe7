"""Trains a forecast of six hours by dates, over several processes, and goes on after a crash. Start it by torchrun."""

import argparse
import os

import dali_zarr.torch
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("store", help="such as example-data/days.zarr, which small_stores.py writes")
parser.add_argument("checkpoint", help="a file, such as example-data/weather.pt; if it exists, the training goes on from it")
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
if "RANK" not in os.environ:
    parser.error("expected to be started by torchrun: torchrun --nproc-per-node 2 weather.py STORE CHECKPOINT")
dist.init_process_group("gloo")


def show(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # one write, so that lines of ranks don't mix


numbers = args.checkpoint + ".stats.json"
parts = dali_zarr.splits(  # only the training part is shuffled
    path=args.store, arrays=["t2m", "z"], sel={"level": [850, 500]}, offsets={"input": 0, "target": 6}, stack_arrays=True,
    batch_size=2, device="cpu", random_shuffle=True, mean=numbers, stddev=numbers,
    train=slice(None, "2020-01-02T11"), validation=slice("2020-01-02T12", None),
)
if not os.path.exists(args.checkpoint):  # later runs normalise by the same numbers
    dali_zarr.statistics(**parts["train"], output=numbers)
training, validation = (dali_zarr.torch.Loader(**parts[name]) for name in ("train", "validation"))
model = torch.nn.parallel.DistributedDataParallel(layer := torch.nn.Conv2d(3, 3, 3, padding=1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
kept = {"model": model, "optimizer": optimizer, "loader": training}
if os.path.exists(args.checkpoint):
    for name, state in torch.load(args.checkpoint).items():
        kept[name].load_state_dict(state)
    going_on = f"goes on in epoch {training.epoch}" if training.epoch < args.epochs else "is complete: give more --epochs"
    if dist.get_rank() == 0:
        show(f"{args.checkpoint} {going_on}")
for epoch in range(training.epoch, args.epochs):
    for batch in training:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch["input"]), batch["target"])
        show(f"epoch {epoch} training loss {loss.item():.3f} on {' '.join(map(str, batch.coords['time'].astype('datetime64[h]')))}")
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            torch.save({name: part.state_dict() for name, part in kept.items()}, args.checkpoint + ".new")
            os.replace(args.checkpoint + ".new", args.checkpoint)
        dist.barrier()  # no rank begins a step before the last one is kept
    sums = torch.zeros(2, dtype=torch.float64)
    for batch in validation:
        squares = (layer(batch["input"]) - batch["target"]).detach().square().mean(dim=(1, 2, 3))
        sums += torch.tensor([squares.sum(), len(squares)])
    dist.all_reduce(sums)
    if dist.get_rank() == 0:
        show(f"epoch {epoch} validation loss {sums[0] / sums[1]:.3f} on {sums[1]:.0f} samples")
dist.destroy_process_group()
