"""What the loader for PyTorch costs beside the bare operator.

    python tests/bench/loader.py [--device cpu] [--rounds 100] [--json FILE]

A pipeline of ``fn.zarr_reader``, whose outputs become tensors by DLPack, stands beside ``dali_zarr.torch.Loader`` with
the same arguments. What the loader adds is Python in the thread that takes batches. So that thread's processor time is
measured, while a stand-in answers for DALI: the same batch comes again and again, at once. Rounds take turns, and which
of both comes first changes each time. 95 % of resampled medians of the differences are in the interval. The time that
the operator really takes for a batch is measured apart, by wall time. Compared with it, the loader's part is small or
not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import torch
import zarr
from dali_zarr.torch import Loader
from nvidia.dali.pipeline import Pipeline

SIDE, BATCH, LENGTH = 256, 16, 24
# Batches of a round, and seconds for which the operator reads alone.
ROUND, SECONDS = 10 * LENGTH, 2


class Answers:
    """Stands for DALI's own pipeline: it gives the same batch for ever."""

    def __init__(self, pipe: Any):
        self._outputs, self._real = pipe.outputs(), pipe._pipe

    def Outputs(self, *_: object) -> Any:
        return self._outputs

    ShareOutputs = Outputs

    def Run(self) -> None:
        pass

    ReleaseOutputs = Run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def write(path: Path, sample: int, arrays: int) -> None:
    """Writes arrays with samples of ``sample`` bytes, each a chunk."""
    rows = max(1, sample // (4 * SIDE))
    group = zarr.open_group(path, mode="w")
    for number in range(arrays):
        values = np.random.default_rng(number).standard_normal((BATCH * LENGTH, rows, SIDE), "float32")
        group.create_array(f"a{number}", data=values, chunks=(1, rows, SIDE), compressors=None, dimension_names=["t", "y", "x"])


def built(path: Path, device: str, arguments: dict[str, object]) -> Pipeline:
    pipe = Pipeline(batch_size=BATCH, num_threads=2, device_id=None if device == "cpu" else 0)
    with pipe:
        pipe.set_outputs(*dali_zarr.zarr_reader(device=device, path=str(path), return_index=True, pad_last_batch=True, **arguments))
    pipe.build()
    pipe.schedule_run()
    return pipe


def bare(pipe: Pipeline, device: str) -> Iterator[list[torch.Tensor]]:
    """Yields batches of the operator, by the calls that DALI has for this, in the way that takes PyTorch the least
    time."""
    while True:
        tensors = [output.as_tensor() for output in pipe.share_outputs()]
        found = [torch.from_dlpack(tensor.__dlpack__() if device == "cpu" else tensor) for tensor in tensors]
        pipe.release_outputs()
        pipe.schedule_run()
        yield found


def of_loader(loader: Loader) -> Iterator[dict[str, torch.Tensor]]:
    """Yields batches of all epochs."""
    while True:
        yield from loader


def processor_us(batches: Iterator[object]) -> float:
    """Returns the microseconds of processor time that a batch takes in the calling thread."""
    began = time.thread_time_ns()
    for _ in range(ROUND):
        next(batches)
    return (time.thread_time_ns() - began) / 1e3 / ROUND


def in_turns(one: Iterator[object], other: Iterator[object], rounds: int) -> np.ndarray:
    """Returns microseconds (2, rounds) for a batch of ``one`` and of ``other`` in each round. Three rounds before don't
    count."""
    found = np.empty((2, rounds))
    for number in range(-3, rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            found[which, max(number, 0)] = processor_us((one, other)[which])
    return found


def interval(values: np.ndarray) -> tuple[float, float]:
    random = np.random.default_rng(0)
    low, high = np.quantile([np.median(random.choice(values, len(values))) for _ in range(500)], [0.025, 0.975])
    return float(low), float(high)


def real_ms(batches: Iterator[object]) -> float:
    """Returns milliseconds for each batch, as fast as they come."""
    for _ in range(LENGTH):
        next(batches)
    began, count = time.perf_counter(), 0
    while time.perf_counter() < began + SECONDS:
        next(batches)
        count += 1
    return 1e3 * (time.perf_counter() - began) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = []
    for arrays, nested, kibibytes in ((1, False, 64), (1, False, 1024), (1, False, 16384), (8, False, 1024), (8, True, 1024)):
        folder = Path(tempfile.mkdtemp(prefix="dali-zarr-loader-"))
        try:
            write(folder, kibibytes * 1024 // BATCH // arrays, arrays)
            given = {"arrays": [f"a{n}" for n in range(arrays)], "prefetch_queue_depth": 3}
            loader = Loader(
                str(folder), batch_size=BATCH, device="cuda" if asked.device == "gpu" else "cpu", **given,
                **({"offsets": {"input": 0, "target": 1}} if nested else {}),
            )
            pipe = built(folder, asked.device, given | ({"offsets": [0, 1]} if nested else {}))
            one, other = bare(pipe, asked.device), of_loader(loader)
            alone = real_ms(one)
            next(other)
            for real in (pipe, loader._reading._pipe):
                real._pipe = Answers(real)
            found = in_turns(one, other, asked.rounds)
        finally:
            shutil.rmtree(folder)
        more = found[1] - found[0]
        low, high = interval(more)
        rows.append({
            "tensors": arrays * (1 + nested), "nested": nested, "batch_kib": kibibytes, "operator_ms": alone,
            "operator_us": statistics.median(found[0]), "loader_us": statistics.median(found[1]), "more_us": float(np.median(more)),
            "from_us": low, "to_us": high, "share": max(high, 0) / 1e3 / alone,
        })
        print(
            "{tensors:2} tensors{0} of {batch_kib:5} KiB, read in {operator_ms:.2f} ms: operator {operator_us:.1f} us, loader "
            "{loader_us:.1f}, difference {more_us:+.1f} ({from_us:+.1f} to {to_us:+.1f}): {share:.2%} of a batch at most"
            .format(", nested," if nested else "", **rows[-1]), flush=True,
        )
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
