"""Three bars for each way to load: real data, loading only, synthetic data.

    python examples/study/bars.py --size small

The study began with 52 of 558 samples a second, PyTorch's DataLoader over xarray beside the same model on synthetic data.
timelines.py shows what the GPU does meanwhile: not here, for a profiler makes all that comes after it slower.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import Size, arguments, compare, gpu_wait, rate
from readers import READERS
from store import prepare

WAYS = {
    "DataLoader": ("ten-hours", "one-hour"), "external_source": ("one-hour",),
    "dali_zarr": ("ten-hours", "one-hour", "blosc-lz4", "uncompressed"),
}


def synthetic(size: Size, device: Any) -> Iterator[Any]:
    """The same batch again and again."""
    import torch

    batch = torch.randn(size.batch, 2, size.channels, size.latitudes, size.longitudes, device=device) * 15 + 280
    return itertools.repeat(batch)


def trained(batches: Iterator[Any], step: Callable[[Any], None]) -> Iterator[None]:
    for batch in batches:
        step(batch)
        yield


def end_workers() -> None:
    """A loader's processes must not run on beside what is measured next."""
    gc.collect()
    until = time.monotonic() + 3
    for process in multiprocessing.active_children():
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


class Bars:
    """One model, and the bars of a process with it. ``most`` batches are for several processes, which must take equally many."""

    def __init__(self, size: Size, rank: int = 0, ranks: int = 1, most: int | None = None, cuda_graph: bool = False):
        import torch
        from model import trainer

        self.size, self.rank, self.ranks, self.most = size, rank, ranks, most
        self.device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
        self.step, self.wait = trainer(size, self.device, ranks, cuda_graph), gpu_wait()
        # Libraries choose their kernels in the first steps.
        self.synthetic = self._rate(trained(synthetic(size, self.device), self.step), 10)

    def _rate(self, batches: Iterator[Any], warm: int) -> float:
        return rate(batches, self.size.seconds, self.wait, warm, self.most)["batches_per_second"] * self.size.batch

    def measure(self, loader: str, path: Path) -> dict[str, Any]:
        """Samples a second on a store. Synthetic data come before and after the real ones: the faster of the two tells what
        the model can do."""
        batches = READERS[loader](path, self.size, self.rank, self.ranks)
        loading = self._rate(batches, 4)
        steps = trained(batches, self.step)
        real = self._rate(steps, 8)
        steps.close()
        batches.close()
        end_workers()
        runs = [self.synthetic, self._rate(trained(synthetic(self.size, self.device), self.step), 8)]
        self.synthetic = runs[1]
        return {"synthetic": max(runs), "synthetic_runs": runs, "loading": loading, "real": real, "share": real / max(runs)}


def main() -> None:
    args = arguments(__doc__, lambda parser: parser.add_argument(
        "--cuda-graph", action="store_true", help="a training step is one CUDA graph, which the host launches at once"))
    paths = prepare(args.data, args.size)
    bars: list[Bars] = []

    def measure(loader: str, store: str) -> dict[str, Any]:
        bars[:] = bars or [Bars(args.size, cuda_graph=args.cuda_graph)]
        return bars[0].measure(loader, paths[store])

    compare(args, __file__, WAYS, measure, study={"real": 52, "synthetic": 558})


if __name__ == "__main__":
    main()
