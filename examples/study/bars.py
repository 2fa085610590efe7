"""Three bars for each way to load: real data, loading only, synthetic data; and what the GPU does over two seconds of training.

    python examples/study/bars.py --small

The study began with 52 of 558 samples a second, PyTorch's DataLoader over xarray beside the same model on synthetic data.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

from common import Size, arguments, gpu_wait, in_process, rate, save
from readers import READERS
from store import prepare

LOADERS = ("DataLoader", "external_source", "dali_zarr")
STORES = {
    "DataLoader": ("ten-hours", "one-hour"), "external_source": ("one-hour",), "dali_zarr": ("ten-hours", "one-hour", "blosc-lz4"),
}
# Names of kernels, in lower case, that aren't the model's.
DECODING = ("zstd", "lz4", "inflate", "nvcomp", "unshuffle", "assemble", "gather", "decode", "huffman", "fse")
COPIES = ("memcpy", "memset")


def synthetic(size: Size, device: Any) -> Iterator[Any]:
    """The same batch again and again."""
    import torch

    batch = torch.randn(size.batch, 2, size.channels, size.latitudes, size.longitudes, device=device) * 15 + 280
    return itertools.repeat(batch)


def trained(batches: Iterator[Any], step: Any) -> Iterator[None]:
    for batch in batches:
        step(batch)
        yield


def kind_of(kernel: str) -> str:
    """Whose work a kernel is."""
    name = kernel.lower()
    if any(word in name for word in COPIES):
        return "copies"
    return "decoding" if any(word in name for word in DECODING) else "training"


def timeline(steps: Iterator[None], seconds: float = 2.0) -> list[dict[str, Any]]:
    """What ran on the GPU: for each kind the spans in microseconds, those that touch put together."""
    import time

    import torch

    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            next(steps)
        torch.cuda.synchronize()
    spans: dict[str, list[list[float]]] = {"training": [], "decoding": [], "copies": []}
    on_gpu = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    events = sorted(on_gpu, key=lambda event: event.time_range.start)
    first = events[0].time_range.start if events else 0
    for event in events:
        start, end = event.time_range.start - first, event.time_range.end - first
        of_kind = spans[kind_of(event.name)]
        if of_kind and start - of_kind[-1][1] < 50:
            of_kind[-1][1] = max(of_kind[-1][1], end)
        else:
            of_kind.append([start, end])
    return [{"kind": kind, "spans": found} for kind, found in spans.items()]


def measure(
    size: Size, path: Any, loader: str, rank: int = 0, ranks: int = 1, profile: bool = False, most: int | None = None
) -> dict[str, Any]:
    """Samples a second of this process: synthetic, loading only, real, and synthetic again. ``most`` is for several processes,
    which must take the same number of batches."""
    import torch
    from model import trainer

    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    step, wait = trainer(size, device, ranks), gpu_wait()

    def of(batches: Iterator[Any], warm: int = 4) -> float:
        return rate(batches, size.seconds, wait, warm, most)["batches_per_second"] * size.batch

    before = of(trained(synthetic(size, device), step))
    loading = of(READERS[loader](path, size, rank, ranks))
    batches = READERS[loader](path, size, rank, ranks)
    steps = trained(batches, step)
    real = of(steps, 8)
    found = {"loading": loading, "real": real, "timeline": timeline(steps) if profile and device.type == "cuda" else None}
    after = of(trained(synthetic(size, device), step))
    return found | {"synthetic": (before + after) / 2, "synthetic_runs": [before, after], "share": real / ((before + after) / 2)}


def main() -> None:
    args = arguments(__doc__)
    paths = prepare(args.data, args.size)
    if args.one:
        loader, store = args.one
        found = measure(args.size, paths[store], loader, profile=True)
        print(json.dumps(found), flush=True)
        # Workers of data loaders may not end by themselves.
        os._exit(0)
    rows = []
    for loader in LOADERS:
        for store in STORES[loader]:
            rows.append({"loader": loader, "store": store, **in_process(args, "bars.py", loader, store)})
            print({name: value for name, value in rows[-1].items() if name != "timeline"}, flush=True)
    save(args, "bars", rows, study={"real": 52, "synthetic": 558})


if __name__ == "__main__":
    main()
