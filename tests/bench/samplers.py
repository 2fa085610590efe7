"""What the caller's order costs: a permutation as ``sampler`` beside ``random_shuffle``, over the size of samples.

    python tests/bench/samplers.py [--device cuda] [--kilobytes 16 64 256 1024 4096] [--rounds 7] [--json FILE]

A sample is an uncompressed chunk of float32 values in the page cache, so both orders read and copy the same bytes. Where an epoch
would be more than 2 GB, chunks are links to the same files. A round is an epoch of each of the two loaders, in turns; which comes
first changes each time. Rates are those of the eight tenths in the middle of an epoch: a sampler is asked for its epoch when that
begins (``set_epoch`` may come before), and at its end nothing is prepared any more, while the reader prepares its own next epoch
before the last one ends. What that costs is the time of the first batch, which is given too. In the first epoch each sample is
compared with its number.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dali_zarr  # noqa: F401  (as its documentation asks: before anything initialises CUDA)
import numpy as np
import torch
import zarr
from dali_zarr.torch import Loader


class Permutation:
    """All numbers in a new order in each epoch, as torch's RandomSampler draws them, but from one tensor."""

    def __init__(self, count: int):
        self.count, self.generator = count, torch.Generator().manual_seed(7)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.count, generator=self.generator).tolist())


def write(path: Path, count: int, different: int, values: int) -> None:
    """Writes chunks as files, for many small ones take zarr-python long."""
    zarr.create_array(path, name="x", shape=(count, values), chunks=(1, values), dtype="float32", compressors=None)
    row = np.random.default_rng(3).normal(size=values).astype("<f4")
    for k in range(different):
        row[0] = k
        chunk = path / f"x/c/{k}/0"
        chunk.parent.mkdir(parents=True)
        chunk.write_bytes(row)
    for k in range(different, count):
        chunk = path / f"x/c/{k}/0"
        chunk.parent.mkdir(parents=True)
        os.link(path / f"x/c/{k % different}/0", chunk)


def epoch(loader: Any, wait: Any) -> tuple[float, float]:
    """Seconds until an epoch's first batch, and for each batch between the first tenth and the last one."""
    began = time.perf_counter()
    batches = iter(loader)
    next(batches)
    wait()
    first = time.perf_counter() - began
    warm = len(loader) // 10
    for _ in range(warm):
        next(batches)
    wait()
    began = time.perf_counter()
    between = len(loader) - 1 - 2 * warm
    for _ in range(between):
        next(batches)
    wait()
    each = (time.perf_counter() - began) / between
    for _ in batches:
        pass
    return first, each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--kilobytes", type=int, nargs="+", default=[16, 64, 256, 1024, 4096], help="of a sample")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--batches", type=int, default=1000, help="of an epoch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="io_threads and decode_threads; default: the loader's")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    wait = torch.cuda.synchronize if args.device != "cpu" else lambda: None
    threads = {} if args.threads is None else {"io_threads": args.threads, "decode_threads": args.threads}
    found = []
    print(f"{'KiB':>6} {'random_shuffle':>15} {'sampler':>10}   samples/s, medians; ratio of times; ms to the first batch")
    for kilobytes in args.kilobytes:
        size = kilobytes * 1024
        count = args.batches * args.batch_size
        different = min(count, 2 * 10**9 // size)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "store.zarr"
            write(path, count, different, size // 4)
            same: dict[str, Any] = {
                "arrays": ["x"], "dims": [0], "window": [1], "batch_size": args.batch_size, "device": args.device, **threads
            }
            loaders = {
                "random_shuffle": Loader(str(path), random_shuffle=True, seed=5, **same),
                "sampler": Loader(str(path), sampler=Permutation(count), **same),
            }
            for name, loader in loaders.items():
                seen = torch.cat([batch["x"][:, 0, 0].cpu() for batch in loader])
                numbers = [k % different for k in range(count)]
                assert sorted(seen.tolist()) == sorted(numbers), name
                assert seen.tolist() != numbers, name
            times: dict[str, list[float]] = {name: [] for name in loaders}
            firsts: dict[str, list[float]] = {name: [] for name in loaders}
            for k in range(args.rounds):
                for name in (list(loaders), list(loaders)[::-1])[k % 2]:
                    first, each = epoch(loaders[name], wait)
                    firsts[name].append(first)
                    times[name].append(each)
            del loaders, loader
        rates = {name: args.batch_size / statistics.median(seconds) for name, seconds in times.items()}
        ratios = [a / b for a, b in zip(times["random_shuffle"], times["sampler"], strict=True)]
        first = {name: 1000 * statistics.median(seconds) for name, seconds in firsts.items()}
        print(
            f"{kilobytes:>6} {rates['random_shuffle']:>15,.0f} {rates['sampler']:>10,.0f}   "
            f"{statistics.median(ratios):.3f}  ({min(ratios):.2f} to {max(ratios):.2f})   "
            f"{first['random_shuffle']:.2f}, {first['sampler']:.2f}", flush=True,
        )
        found.append(
            {"kilobytes": kilobytes, "samples": count, "samples_per_second": rates, "ratios": ratios, "first_batch_ms": first}
        )
    if args.json:
        args.json.write_text(json.dumps({"device": args.device, "batch_size": args.batch_size, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
