"""Three bars for each way to load: real data, loading only, synthetic data; and what the GPU does over two seconds of training.

    python examples/study/bars.py --size small

The study began with 52 of 558 samples a second, PyTorch's DataLoader over xarray beside the same model on synthetic data.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import Size, arguments, attempt, compare, gpu_wait, has_gpu, rate
from readers import READERS
from store import prepare

WAYS = {
    "DataLoader": ("ten-hours", "one-hour"), "external_source": ("one-hour",),
    "dali_zarr": ("ten-hours", "one-hour", "blosc-lz4", "uncompressed"),
}
# Names of kernels, in lower case, that aren't the model's.
DECODING = ("zstd", "lz4", "inflate", "nvcomp", "unshuffle", "assemble", "gather", "decode", "huffman", "fse")
COPIES = ("memcpy", "memset")
# Spans that are nearer than this are drawn as one, in microseconds.
TOUCH = 100


def synthetic(size: Size, device: Any) -> Iterator[Any]:
    """The same batch again and again."""
    import torch

    batch = torch.randn(size.batch, 2, size.channels, size.latitudes, size.longitudes, device=device) * 15 + 280
    return itertools.repeat(batch)


def trained(batches: Iterator[Any], step: Callable[[Any], None]) -> Iterator[None]:
    for batch in batches:
        step(batch)
        yield


def kind_of(kernel: str) -> str:
    """Whose work a kernel is."""
    name = kernel.lower()
    if any(word in name for word in COPIES):
        return "copies"
    return "decoding" if any(word in name for word in DECODING) else "training"


def spans_of(events: list[tuple[str, float, float]]) -> dict[str, Any]:
    """From (kernel, start, end) in microseconds: for each kind the spans in which it ran, and the share of the time that is in
    its kernels."""
    spans: dict[str, list[list[int]]] = {"training": [], "decoding": [], "copies": []}
    busy, until = dict.fromkeys(spans, 0.0), dict.fromkeys(spans, 0.0)
    events = sorted(events, key=lambda event: event[1])
    first, last = (events[0][1], max(event[2] for event in events)) if events else (0.0, 1.0)
    for name, start, end in events:
        kind = kind_of(name)
        # Kernels of a kind may run side by side.
        busy[kind] += max(0.0, end - max(start, until[kind]))
        until[kind] = max(until[kind], end)
        of_kind, begins, ends = spans[kind], round(start - first), round(end - first)
        if of_kind and begins - of_kind[-1][1] < TOUCH:
            of_kind[-1][1] = max(of_kind[-1][1], ends)
        else:
            of_kind.append([begins, ends])
    return {"busy": {kind: found / (last - first) for kind, found in busy.items()}, "timeline": spans}


def profiled(steps: Iterator[None], seconds: float) -> dict[str, Any]:
    """What ran on the GPU during training."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            next(steps)
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    # Marks of the optimizer aren't work of the GPU.
    events = [event for event in profile.events() if event.device_type == cuda and not event.name.startswith("Optimizer.")]
    return spans_of([(event.name, event.time_range.start, event.time_range.end) for event in events])


class Bars:
    """One model, and the bars of a process with it. ``most`` batches are for several processes, which must take equally many."""

    def __init__(self, size: Size, rank: int = 0, ranks: int = 1, most: int | None = None):
        import torch
        from model import trainer

        self.size, self.rank, self.ranks, self.most = size, rank, ranks, most
        self.device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
        self.step, self.wait = trainer(size, self.device, ranks), gpu_wait()
        # Libraries choose their kernels in the first steps.
        self.synthetic = self._rate(trained(synthetic(size, self.device), self.step), 10)

    def _rate(self, batches: Iterator[Any], warm: int) -> float:
        return rate(batches, self.size.seconds, self.wait, warm, self.most)["batches_per_second"] * self.size.batch

    def measure(self, loader: str, path: Path) -> dict[str, Any]:
        """Samples a second on a store. Synthetic data come before and after the real ones."""
        batches = READERS[loader](path, self.size, self.rank, self.ranks)
        loading = self._rate(batches, 4)
        steps = trained(batches, self.step)
        real = self._rate(steps, 8)
        profile: dict[str, Any] = {}
        if has_gpu() and self.ranks == 1:
            profile = attempt(lambda: profiled(steps, 2.0))
            # The bars are there all the same.
            profile = {"no_timeline": profile["error"]} if "error" in profile else profile
        # Its processes and threads must not run on beside the next bar.
        steps.close()
        batches.close()
        before, self.synthetic = self.synthetic, self._rate(trained(synthetic(self.size, self.device), self.step), 4)
        mean = (before + self.synthetic) / 2
        return {"synthetic": mean, "synthetic_runs": [before, self.synthetic], "loading": loading, "real": real,
                "share": real / mean, **profile}


def main() -> None:
    args = arguments(__doc__)
    paths = prepare(args.data, args.size)
    bars: list[Bars] = []

    def measure(loader: str, store: str) -> dict[str, Any]:
        bars[:] = bars or [Bars(args.size)]
        return bars[0].measure(loader, paths[store])

    compare(args, __file__, WAYS, measure, study={"real": 52, "synthetic": 558})
    # A file of its own for what is long.
    file = args.out / "bars.json"
    found = json.loads(file.read_text())
    profiles = [row for row in found["rows"] if "timeline" in row]
    lines = [{"way": row["way"], "store": row["store"], "timeline": row.pop("timeline")} for row in profiles]
    file.write_text(json.dumps(found, indent=1) + "\n")
    (args.out / "timelines.json").write_text(json.dumps({**found, "experiment": "timelines", "rows": lines}) + "\n")


if __name__ == "__main__":
    main()
