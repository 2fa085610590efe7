"""What dali_zarr.torch.Loader costs beside the bare pipeline, as the median of the ratios of pairs of epochs.

    python tests/bench/loader.py [--device cpu] [--fields 64] [--pairs 31]

Epochs of both alternate, the first of a pair in turns. Beside wall time stands processor time, of the whole process and of the
thread that takes the batches: on a machine that does other work the last one is the steadiest, and the loader works in no other.
The interval holds the median in 95 of 100 such measurements (by the ranks of a binomial distribution). ``bare`` runs the operator
with the arguments that the loader gives it, and drops its outputs.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from dali_zarr.torch import Loader
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline
from support.stores import Layout, write_array


def bare(args: dict, device: str, batch_size: int, batches: int) -> Callable[[], None]:
    """A function that runs an epoch of the operator, and waits for each batch."""
    pipe = Pipeline(batch_size=batch_size, num_threads=2, device_id=0 if device == "gpu" else None, enable_checkpointing=True)
    with pipe:
        pipe.set_outputs(*fn.zarr_reader(device=device, name="reader", pad_last_batch=True, return_index=True, **args))
    pipe.build()
    pipe.schedule_run()

    def epoch() -> None:
        for _ in range(batches):
            pipe.share_outputs()
            pipe.release_outputs()
            pipe.schedule_run()

    return epoch


def seconds(epoch: Callable[[], None]) -> tuple[float, ...]:
    """Of the wall clock, of this process's threads together, and of this thread."""
    clocks = (time.perf_counter, time.process_time, time.thread_time)
    began = [clock() for clock in clocks]
    epoch()
    return tuple(clock() - start for clock, start in zip(clocks, began, strict=True))


def interval(values: list[float]) -> tuple[float, float]:
    """Between which two of the values the median is, with 95 % confidence."""
    ordered, n = sorted(values), len(values)
    below = 0
    while sum(math.comb(n, k) for k in range(below + 1)) / 2**n < 0.025:
        below += 1
    return ordered[max(below - 1, 0)], ordered[min(n - below, n - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--fields", type=int, default=64)
    parser.add_argument("--shape", type=int, nargs=2, default=[721, 1440])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=31)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fields = np.random.default_rng(0).standard_normal((given.fields, *given.shape)).astype("float32")
        write_array(folder, "a", fields, codec="none", layout=Layout((1, *given.shape)), dims=("time", "lat", "lon"))
        args = {"path": folder, "arrays": ["a"]}
        loader = Loader(device=given.device, batch_size=given.batch_size, **args)
        batches = len(loader)
        epochs: dict[str, Callable[[], None]] = {
            "bare": bare(args, given.device, given.batch_size, batches), "loader": lambda: [None for _ in loader] and None,
        }
        for epoch in epochs.values():
            epoch()
        load = os.getloadavg()[0]
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in epochs}
        for number in range(given.pairs):
            for name in list(epochs)[:: 1 if number % 2 else -1]:
                found[name].append(seconds(epochs[name]))
    print(f"{given.device}, {given.pairs} pairs of {batches} batches; load {load:.1f} on {os.cpu_count()} cores before")
    clocks = ("wall time", "processor time", "of the thread that takes batches")
    for clock, what in enumerate(clocks):
        ratios = [one[clock] / other[clock] - 1 for one, other in zip(found["loader"], found["bare"], strict=True)]
        costs = [(one[clock] - other[clock]) / batches * 1e6 for one, other in zip(found["loader"], found["bare"], strict=True)]
        low, high = interval(ratios)
        medians = {name: statistics.median(one[clock] for one in values) / batches * 1e6 for name, values in found.items()}
        print(
            f"{what}: bare {medians['bare']:.1f} us a batch, loader {medians['loader']:.1f}; overhead "
            f"{statistics.median(ratios):+.1%} ({low:+.1%} to {high:+.1%}), {statistics.median(costs):+.1f} us a batch"
        )


if __name__ == "__main__":
    main()
