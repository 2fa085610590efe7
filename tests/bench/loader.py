"""What the loader for PyTorch costs beside the bare operator.

    python tests/bench/loader.py [--device cpu] [--rounds 15] [--json FILE]

Both read the same uncompressed store from the page cache: a pipeline of ``fn.zarr_reader`` whose outputs become tensors by DLPack,
and ``dali_zarr.torch.Loader`` with the same arguments. Epochs take turns, and which of both comes first changes each round. What
counts is the median over the rounds of the loader's time divided by the operator's. The operator beside itself tells the noise.
Few batches are prepared ahead, so that an epoch is read while it is timed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dali_zarr
import numpy as np
import torch
import zarr
from dali_zarr.torch import Loader
from nvidia.dali.pipeline import Pipeline

SIDE, BATCH = 256, 16
# Of each measurement, about.
SECONDS = 0.3
ARGUMENTS = {"arrays": ["a"], "prefetch_queue_depth": 3}


def write(path: Path, sample: int, batches: int) -> None:
    """Samples of so many bytes, each a chunk."""
    rows = max(1, sample // (4 * SIDE))
    values = np.random.default_rng(0).standard_normal((BATCH * batches, rows, SIDE), "float32")
    group = zarr.open_group(path, mode="w")
    group.create_array("a", data=values, chunks=(1, rows, SIDE), compressors=None, dimension_names=["t", "y", "x"])


def bare(path: Path, device: str, batches: int) -> Callable[[], float]:
    """Seconds of an epoch of the operator alone."""
    pipe = Pipeline(batch_size=BATCH, num_threads=2, device_id=None if device == "cpu" else 0)
    with pipe:
        out, index = dali_zarr.zarr_reader(device=device, path=str(path), return_index=True, pad_last_batch=True, **ARGUMENTS)
        pipe.set_outputs(out, index)
    pipe.build()
    pipe.schedule_run()

    def epoch() -> float:
        began = time.perf_counter()
        for _ in range(batches):
            found = [torch.from_dlpack(output.as_tensor()) for output in pipe.share_outputs()]
            assert len(found[0]) == BATCH
            del found
            pipe.release_outputs()
            pipe.schedule_run()
        return time.perf_counter() - began

    return epoch


def loader(path: Path, device: str) -> Callable[[], float]:
    """Seconds of an epoch of the loader."""
    made = Loader(str(path), batch_size=BATCH, device="cuda" if device == "gpu" else "cpu", **ARGUMENTS)

    def epoch() -> float:
        began = time.perf_counter()
        for batch in made:
            assert len(batch["a"]) == BATCH
        return time.perf_counter() - began

    return epoch


def in_turns(one: Callable[[], float], other: Callable[[], float], rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of an epoch of both, in turns, after two that don't count. Short epochs are repeated."""
    for epoch in (one, other, one):
        epoch()
    repeats = max(1, round(SECONDS / other()))
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            found[which].append(sum((one, other)[which]() for _ in range(repeats)) / repeats)
    return found


def ratio(of: list[float], to: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = []
    for megabytes in (0.0625, 1, 16, 64):
        folder = Path(tempfile.mkdtemp(prefix="dali-zarr-loader-"))
        try:
            batches = max(24, min(400, int(256 / megabytes)))
            write(folder, int(megabytes * (1 << 20)) // BATCH, batches)
            one, other = bare(folder, asked.device, batches), loader(folder, asked.device)
            alone, wrapped = in_turns(one, other, asked.rounds)
            again, first = in_turns(bare(folder, asked.device, batches), one, asked.rounds)
        finally:
            shutil.rmtree(folder)
        rows.append({
            "batch_mib": megabytes, "operator_ms": 1e3 * statistics.median(alone) / batches,
            "loader_ms": 1e3 * statistics.median(wrapped) / batches, "ratio": ratio(wrapped, alone), "noise": ratio(first, again),
        })
        row = "{batch_mib:7.3f} MiB: operator {operator_ms:7.3f} ms, loader {loader_ms:7.3f} ms, ratio {ratio:.4f} ({noise:.4f})"
        print(row.format(**rows[-1]), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
