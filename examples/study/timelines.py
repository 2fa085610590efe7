"""What the GPU does over two seconds of training, for some ways to load: kernels of training, kernels of decoding, copies.

    python examples/study/timelines.py
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bars import Bars, synthetic, trained
from common import arguments, compare, has_gpu
from readers import READERS
from store import prepare

WAYS = {"dali_zarr": ("one-hour",), "DataLoader": ("one-hour",), "external_source": ("one-hour",)}
# Seconds of a profile, and of a point of the timeline.
SECONDS, POINT = 2.0, 0.005
Event = tuple[str, float, float]


def kind_of(kernel: str, of_model: Iterable[str]) -> str:
    """Whose work a kernel is: the model's are those that also run on synthetic data."""
    if kernel in of_model:
        return "training"
    return "copies" if kernel.startswith(("Memcpy", "Memset")) else "decoding"


def shares(events: Sequence[Event], of_model: Iterable[str], seconds: float, point: float) -> dict[str, list[int]]:
    """From (kernel, start, end) in microseconds: for each kind the percentage of each point's time in which it ran."""
    count, width = round(seconds / point), point * 1e6
    first = min((event[1] for event in events), default=0.0)
    busy = {kind: [0.0] * count for kind in ("training", "decoding", "copies")}
    until = dict.fromkeys(busy, 0.0)
    for name, start, end in sorted(events, key=lambda event: event[1]):
        kind = kind_of(name, of_model)
        # Kernels of a kind may run side by side.
        start, until[kind] = max(start, until[kind]), max(end, until[kind])
        at = start
        while at < end and (n := int((at - first) // width)) < count:
            stop = min(end, first + (n + 1) * width)
            busy[kind][n] += stop - at
            at = stop
    return {kind: [min(100, round(100 * time / width)) for time in times] for kind, times in busy.items()}


def on_gpu(trace: Mapping[str, Any]) -> list[Event]:
    """What ran on the GPU, from a trace as PyTorch's profiler exports it."""
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    events = [event for event in trace["traceEvents"] if event.get("cat") in kinds]
    return [(event["name"], event["ts"], event["ts"] + event["dur"]) for event in events]


def profiled(steps: Iterator[None], seconds: float) -> list[Event]:
    """What ran on the GPU during training."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            next(steps)
        torch.cuda.synchronize()
    # profile.events() would take a minute for as many.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return on_gpu(json.loads(path.read_text()))


def main() -> None:
    args = arguments(__doc__)
    paths = prepare(args.data, args.size)

    def measure(loader: str, store: str) -> dict[str, Any]:
        if not has_gpu():
            raise RuntimeError("no GPU")
        bars = Bars(args.size)
        batches = READERS[loader](paths[store], args.size, 0, 1)
        steps = trained(batches, bars.step)
        for _ in range(8):
            next(steps)
        events = profiled(steps, SECONDS)
        of_model = {event[0] for event in profiled(trained(synthetic(args.size, bars.device), bars.step), 0.2)}
        found = shares(events, of_model, SECONDS, POINT)
        return {"busy": {kind: sum(values) / len(values) / 100 for kind, values in found.items()}, "timeline": found}

    compare(args, __file__, WAYS, measure, point=POINT)


if __name__ == "__main__":
    main()
