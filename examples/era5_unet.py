"""Trains a small U-Net by PyTorch to predict the weather an hour ahead, fed by fn.zarr_reader.

Writes an ERA5-like Zarr store (made-up weather, see synthetic_weather.py), trains on its first part, tests on its last, and
compares with persistence, the forecast that nothing changes. Runs on the GPU where there is one, else on the CPU.
Leaves example-data/demo/era5_unet.png. See --help for what can be changed.
"""

from __future__ import annotations

import os

# Before PyTorch loads: OpenMP's threads otherwise spin between layers on cores that the reader needs for decoding.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import era5_demo as demo  # noqa: E402
import torch  # noqa: E402
from dali_zarr.torch import Loader  # noqa: E402
from synthetic_weather import VARIABLES  # noqa: E402
from torch import nn  # noqa: E402
from unet import UNet  # noqa: E402


def error(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean squared error in units of the variables' variance, rows weighted by the area that they stand for."""
    latitude = torch.linspace(90, -90, target.shape[-2], device=target.device).deg2rad()
    weight = torch.cos(latitude).clamp_min(0) / torch.cos(latitude).clamp_min(0).mean()
    return ((prediction - target) ** 2 * weight[:, None]).mean()


@torch.no_grad()
def test(model: nn.Module, feed: demo.Feed) -> demo.Test:
    model.eval()
    found = demo.Test()
    for now, later in feed:
        prediction = model(now)
        found.add(len(now), error(prediction, later).item(), error(now, later).item())
        if found.example is None:
            first, second, third = (fields[0].cpu().numpy() for fields in (now, later, prediction))
            found.example = first, second, third
    return found


def train(model: nn.Module, feed: demo.Feed, epochs: int) -> list[float]:
    """Trains with AdamW and one cycle of the learning rate; returns the RMSE of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=demo.LEARNING_RATE, weight_decay=demo.WEIGHT_DECAY)
    course = demo.Course(epochs, len(feed))
    model.train()
    for epoch in range(epochs):
        for now, later in feed:
            for group in optimizer.param_groups:
                group["lr"] = demo.learning_rate(len(course.losses), epochs * len(feed))
            loss = error(model(now), later)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            course.add(epoch, loss.item())
    return course.losses


def main() -> None:
    args = demo.arguments(__doc__, torch.cuda.is_available)
    torch.manual_seed(args.seed)
    torch.set_num_threads(os.cpu_count() or 1)
    statistics = demo.write(args)
    device = torch.device("cuda" if args.device == "gpu" else "cpu")
    finish = torch.cuda.synchronize if args.device == "gpu" else lambda: None
    split = demo.split_of(args.hours)
    parts = (0, split, True), (split, args.hours, False)
    feed, held_back = (
        demo.Feed(Loader(**demo.reader(args, statistics, *part), device=device), finish) for part in parts
    )
    model = UNet(len(VARIABLES)).to(device)
    demo.announce(args, sum(p.numel() for p in model.parameters()))
    losses = train(model, feed, args.epochs)
    demo.conclude(args, statistics, feed, losses, test(model, held_back))


if __name__ == "__main__":
    main()
