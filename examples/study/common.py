"""What all experiments share: their sizes, the machine, and where results go."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Size:
    """Of the store and of the measurements. A sample is two hours of all channels."""

    hours: int
    channels: int
    latitudes: int
    longitudes: int
    batch: int
    seconds: float
    width: int

    @property
    def sample_bytes(self) -> int:
        return 2 * self.channels * self.latitudes * self.longitudes * 4

    @property
    def bytes(self) -> int:
        return self.hours // 2 * self.sample_bytes


# 18.2 GB, as much as the study read at once; and what a laptop does in minutes.
WHOLE = Size(278, 20, 640, 1280, 2, 10.0, 64)
SMALL = Size(60, 4, 160, 320, 2, 1.5, 8)


def has_gpu() -> bool:
    """Whether there is one that PyTorch sees."""
    import torch

    return torch.cuda.is_available()


def arguments(description: str, more: Callable[[argparse.ArgumentParser], None] | None = None) -> argparse.Namespace:
    """Those of every experiment: ``size``, ``data``, ``out``, and ``one`` for the processes that it starts."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("bench-data/study"), help="folder for the stores")
    parser.add_argument("--out", type=Path, default=Path("bench-data/study/results"), help="folder for JSON and pictures")
    parser.add_argument("--small", action="store_true", help="a small store, for a machine without a GPU")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    if more:
        more(parser)
    found = parser.parse_args()
    found.size = SMALL if found.small else WHOLE
    return found


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    versions: dict[str, str] = {}
    packages = ("dali-zarr", "zarr", "numcodecs", "xarray", "torch", "nvidia-dali-cuda130", "kvikio-cu13", "nvidia-libnvcomp-cu13")
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    cpu = platform.processor() or platform.machine()
    return {"cores": len(os.sched_getaffinity(0)), "cpu": cpu, "gpus": gpus, "load": os.getloadavg()[0], "versions": versions}


def save(args: argparse.Namespace, name: str, rows: list[dict[str, Any]], **more: Any) -> None:
    """Writes ``name.json``."""
    args.out.mkdir(parents=True, exist_ok=True)
    found = {"experiment": name, "small": args.small, "size": asdict(args.size), "machine": machine(), **more, "rows": rows}
    (args.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def in_process(args: argparse.Namespace, script: str, *one: object, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs a script with ``--one`` in a process of its own, so that none has what another left; gives the JSON that it printed.
    What can't run here, for want of a package or a GPU, gives ``error``."""
    words = [sys.executable, str(HERE / script), "--data", str(args.data), "--one", *map(str, one)]
    words += ["--small"] if args.small else []
    process = subprocess.run(words, capture_output=True, text=True, env=os.environ | (env or {}), timeout=1800)
    if process.returncode:
        lines = [line for line in process.stderr.strip().splitlines() if line.strip()] or ["no message"]
        return {"error": lines[-1][:300]}
    return json.loads(process.stdout.strip().splitlines()[-1])


def rate(
    batches: Iterator[Any], seconds: float, wait: Callable[[], None] = lambda: None, warm: int = 2, most: int | None = None
) -> dict[str, float]:
    """How many batches come in a second, over so many seconds after the first few; or over ``most`` batches, whatever they take."""
    for _ in range(warm):
        next(batches)
    wait()
    began, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
        if count == most or (most is None and time.perf_counter() - began > seconds):
            break
    wait()
    took = time.perf_counter() - began
    return {"batches": count, "seconds": took, "batches_per_second": count / took}


def gpu_wait() -> Callable[[], None]:
    """Waits for the GPU, where there is one."""
    import torch

    return torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
