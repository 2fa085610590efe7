"""Trains a small U-Net to predict the weather an hour ahead, fed by fn.zarr_reader.

Writes an ERA5-like Zarr store (made-up weather, see synthetic_weather.py), trains on its first part, tests on its last, and
compares with persistence, the forecast that nothing changes. Runs on the GPU where there is one, else on the CPU.
Leaves demo-output/era5_unet.png. See --help for what can be changed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Before PyTorch loads: OpenMP's threads otherwise spin between layers on cores that the reader needs for decoding.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from dali_zarr.torch import Loader  # noqa: E402
from synthetic_weather import VARIABLES, Statistics, write_store  # noqa: E402
from torch import nn  # noqa: E402
from unet import UNet  # noqa: E402


@dataclass
class Clock:
    """Where the time of a training goes."""

    waiting: float = 0.0
    total: float = 0.0
    samples: int = 0


class Feed:
    """Normalised fields (channel, latitude, longitude) now and an hour later, from hours [first, last); counts the time that
    its user waits for data."""

    def __init__(self, args: argparse.Namespace, statistics: Statistics, first: int, last: int, shuffle: bool):
        self.device = torch.device("cuda" if args.device == "gpu" else "cpu")
        self.batches = Loader(
            args.store, arrays=list(VARIABLES), stack_arrays=True, dims=["time"], offsets={"now": 0, "later": 1},
            roi_start=[first], roi_end=[last], mean=statistics.mean, stddev=statistics.stddev, batch_size=args.batch_size,
            device=self.device, random_shuffle=shuffle, seed=args.seed,
        )
        self.clock = Clock()

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        begin = time.perf_counter()
        stream = iter(self.batches)
        while True:
            asked = time.perf_counter()
            batch = next(stream, None)
            now = time.perf_counter()
            self.clock.waiting += now - asked
            if batch is None:
                break
            fields = batch["now"], batch["later"]
            self.clock.samples += len(fields[0])
            yield fields
            if self.device.type == "cuda":
                # Without this the GPU's own work would be counted as waiting for data.
                torch.cuda.synchronize()
        self.clock.total += time.perf_counter() - begin


def show(text: str, *, final: bool = False) -> None:
    """One line that is written over and over; in a log only its last state."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text}", end="\n" if final else "", flush=True)
    elif final:
        print(text, flush=True)


def error(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean squared error in units of the variables' variance, rows weighted by the area that they stand for."""
    latitude = torch.linspace(90, -90, target.shape[-2], device=target.device).deg2rad()
    weight = torch.cos(latitude).clamp_min(0) / torch.cos(latitude).clamp_min(0).mean()
    return ((prediction - target) ** 2 * weight[:, None]).mean()


@torch.no_grad()
def test(model: nn.Module, feed: Feed) -> tuple[float, float, list[torch.Tensor]]:
    """RMSE of the model and of persistence over the test part, and one example (now, later, prediction)."""
    model.eval()
    model_error, persistence, count = 0.0, 0.0, 0
    example: list[torch.Tensor] = []
    for now, later in feed:
        prediction = model(now)
        model_error += error(prediction, later).item() * len(now)
        persistence += error(now, later).item() * len(now)
        count += len(now)
        example = example or [t[0].cpu() for t in (now, later, prediction)]
    return (model_error / count) ** 0.5, (persistence / count) ** 0.5, example


def train(model: nn.Module, feed: Feed, epochs: int) -> list[float]:
    """Trains with AdamW and one cycle of the learning rate; returns the RMSE of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * len(feed) + 1)
    losses: list[float] = []
    for epoch in range(epochs):
        model.train()
        step = 0
        for step, (now, later) in enumerate(feed, 1):
            loss = error(model(now), later)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item() ** 0.5)
            show(f"epoch {epoch + 1}/{epochs}  step {step:3d}/{len(feed)}  RMSE {losses[-1]:.4f}")
        recent = float(np.mean(losses[-step:]))
        show(f"epoch {epoch + 1}/{epochs}  {step} steps  RMSE {recent:.4f} (mean of the epoch)", final=True)
    return losses


def arguments() -> argparse.Namespace:
    title = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=title, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto", help="where to decode and to train")
    parser.add_argument("--hours", type=int, help="length of the store; default: 480 on the CPU, 1200 on the GPU")
    parser.add_argument("--grid", type=int, nargs=2, metavar=("LAT", "LON"), help="multiples of 4; default: 72 144 or 180 360")
    parser.add_argument("--epochs", type=int, help="default: 3 on the CPU, 8 on the GPU")
    parser.add_argument("--batch-size", type=int, default=8, help="samples per step")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the store and the picture")
    parser.add_argument("--seed", type=int, default=0, help="of the weather, the model and the order")
    args = parser.parse_args()
    if args.device == "auto":
        args.device = "gpu" if torch.cuda.is_available() else "cpu"
    large = args.device == "gpu"
    args.hours = args.hours or (1200 if large else 480)
    args.grid = tuple(args.grid or ((180, 360) if large else (72, 144)))
    args.epochs = args.epochs or (8 if large else 3)
    if any(n % 4 or n < 16 for n in args.grid):
        parser.error("--grid: both numbers must be multiples of 4 and at least 16")
    if args.hours < 48:
        parser.error("--hours: at least 48, or there is nothing to learn and to test")
    args.store = args.output / "era5.zarr"
    return args


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(os.cpu_count() or 1)
    args.output.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(args.store, ignore_errors=True)

    begin = time.perf_counter()
    statistics = write_store(
        args.store, args.hours, *args.grid, seed=args.seed,
        progress=lambda hour: show(f"writing {args.store}: hour {hour}/{args.hours}"),
    )
    size = sum(f.stat().st_size for f in args.store.rglob("*") if f.is_file())
    show(
        f"wrote {args.store}: {len(VARIABLES)} variables, {args.hours} hours, {args.grid[0]} x {args.grid[1]}, "
        f"{size / 1e6:.0f} MB of zstd chunks, in {time.perf_counter() - begin:.0f} s", final=True,
    )

    split = int(args.hours * 0.85)
    feed = Feed(args, statistics, 0, split, shuffle=True)
    held_back = Feed(args, statistics, split, args.hours, shuffle=False)
    model = UNet(len(VARIABLES)).to(feed.device)
    print(
        f"training a U-Net of {sum(p.numel() for p in model.parameters()) / 1e3:.0f} thousand weights on the "
        f"{args.device.upper()}: {split} hours to train on, {args.hours - split} to test on"
    )
    losses = train(model, feed, args.epochs)
    rmse, persistence, example = test(model, held_back)

    clock = feed.clock
    verdict = f"{(1 - rmse / persistence) * 100:.0f} % better" if rmse < persistence else "NOT better"
    share = clock.waiting / clock.total * 100
    print(f"{clock.samples / clock.total:.1f} samples/s; training waited for data {share:.1f} % of the time")
    print(f"test RMSE {rmse:.4f}, persistence {persistence:.4f} (in standard deviations): {verdict} than persistence")

    from picture import draw

    file = args.output / "era5_unet.png"
    draw(file, example, statistics, losses, len(feed), rmse, persistence)
    print(f"picture: {file}")


if __name__ == "__main__":
    main()
