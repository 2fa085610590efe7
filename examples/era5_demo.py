"""What the demo is made of, beside its training.

For that there are two scripts: `era5_unet.py` by PyTorch and `era5_unet_jax.py` by JAX. Both write a store of made-up weather,
train on its first part, test on its last, and compare with persistence.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from picture import Example, draw
from synthetic_weather import VARIABLES, Statistics, write_store

LEARNING_RATE, WEIGHT_DECAY = 3e-3, 1e-4


@dataclass
class Feed:
    """Batches of a loader as pairs of fields (sample, channel, latitude, longitude), now and an hour later.

    Counts the time that its user waits for them."""

    loader: Any
    finish: Callable[[], object] = field(default=lambda: None)  # waits until the device has done the step's work
    waiting: float = 0.0
    total: float = 0.0
    samples: int = 0

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        begin = time.perf_counter()
        stream = iter(self.loader)
        while True:
            asked = time.perf_counter()
            batch = next(stream, None)
            self.waiting += time.perf_counter() - asked
            if batch is None:
                break
            self.samples += len(batch["now"])
            yield batch["now"], batch["later"]
            # Otherwise the GPU's own work would be counted as waiting for data.
            self.finish()
        self.total += time.perf_counter() - begin


def reader(args: argparse.Namespace, statistics: Statistics, first: int, last: int, shuffle: bool) -> dict[str, Any]:
    """The arguments of a loader of normalised fields from hours [first, last)."""
    return {
        "path": args.store, "arrays": list(VARIABLES), "stack_arrays": True, "dims": ["time"], "offsets": {"now": 0, "later": 1},
        "roi_start": [first], "roi_end": [last], "mean": statistics.mean, "stddev": statistics.stddev,
        "batch_size": args.batch_size, "random_shuffle": shuffle, "seed": args.seed,
    }


def split_of(hours: int) -> int:
    """The first hour to test on."""
    return int(hours * 0.85)


def learning_rate(step: int, steps: int) -> float:
    """One cycle: up for a third of the steps, then down."""
    up = steps / 3
    part = step / up if step < up else (steps - step) / (steps - up)
    return LEARNING_RATE * max(part, 0.02)


def show(text: str, *, final: bool = False) -> None:
    """One line that is written over and over; in a log only its last state."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text}", end="\n" if final else "", flush=True)
    elif final:
        print(text, flush=True)


class Course:
    """The errors of the steps of a training, which it shows."""

    def __init__(self, epochs: int, steps: int):
        self.epochs, self.steps = epochs, steps
        self.losses: list[float] = []

    def add(self, epoch: int, mean_square: float) -> None:
        self.losses.append(mean_square**0.5)
        step = (len(self.losses) - 1) % self.steps + 1
        if step < self.steps:
            show(f"epoch {epoch + 1}/{self.epochs}  step {step:3d}/{self.steps}  RMSE {self.losses[-1]:.4f}")
        else:
            mean = float(np.mean(self.losses[-self.steps :]))
            show(f"epoch {epoch + 1}/{self.epochs}  {self.steps} steps  RMSE {mean:.4f} (mean of the epoch)", final=True)


@dataclass
class Test:
    """Errors over the test part, added up by batches: of the model, and of persistence."""

    model: float = 0.0
    persistence: float = 0.0
    count: int = 0
    example: Example | None = None  # the first sample: now, later, prediction

    def add(self, count: int, model: float, persistence: float) -> None:
        self.model += model * count
        self.persistence += persistence * count
        self.count += count


def arguments(doc: str | None, has_gpu: Callable[[], bool]) -> argparse.Namespace:
    title = (doc or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=title, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto", help="where to decode and to train")
    parser.add_argument("--hours", type=int, help="length of the store; default: 360 on the CPU, 1200 on the GPU")
    parser.add_argument("--grid", type=int, nargs=2, metavar=("LAT", "LON"), help="multiples of 4; default: 48 96 or 180 360")
    parser.add_argument("--epochs", type=int, help="default: 3 on the CPU, 8 on the GPU")
    parser.add_argument("--batch-size", type=int, default=8, help="samples per step")
    parser.add_argument("--output", type=Path, default=Path("example-data/demo"), help="folder for the store and the picture")
    parser.add_argument("--seed", type=int, default=0, help="of the weather, the model and the order")
    args = parser.parse_args()
    if args.device == "auto":
        args.device = "gpu" if has_gpu() else "cpu"
    large = args.device == "gpu"
    args.hours = args.hours or (1200 if large else 360)
    args.grid = tuple(args.grid or ((180, 360) if large else (48, 96)))
    args.epochs = args.epochs or (8 if large else 3)
    if any(n % 4 or n < 16 for n in args.grid):
        parser.error("--grid: both numbers must be multiples of 4 and at least 16")
    if args.hours < 48:
        parser.error("--hours: at least 48, or there is nothing to learn and to test")
    args.store = args.output / "era5.zarr"
    return args


def write(args: argparse.Namespace) -> Statistics:
    """Writes the store, in place of the last one."""
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
    return statistics


def announce(args: argparse.Namespace, weights: int) -> None:
    split = split_of(args.hours)
    print(
        f"training a U-Net of {weights / 1e3:.0f} thousand weights on the {args.device.upper()}: {split} hours to train on, "
        f"{args.hours - split} to test on"
    )


def conclude(args: argparse.Namespace, statistics: Statistics, feed: Feed, losses: list[float], test: Test) -> None:
    """Prints how it went, and draws the picture."""
    rmse, persistence = (test.model / test.count) ** 0.5, (test.persistence / test.count) ** 0.5
    verdict = f"{(1 - rmse / persistence) * 100:.0f} % better" if rmse < persistence else "NOT better"
    share = feed.waiting / feed.total * 100
    print(f"{feed.samples / feed.total:.1f} samples/s; training waited for data {share:.1f} % of the time")
    print(f"test RMSE {rmse:.4f}, persistence {persistence:.4f} (in standard deviations): {verdict} than persistence")
    assert test.example is not None
    file = args.output / "era5_unet.png"
    draw(file, test.example, statistics, losses, len(feed), rmse, persistence)
    print(f"picture: {file}")
