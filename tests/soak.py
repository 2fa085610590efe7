"""Epochs from a server with faults, for an hour or as long as is asked for: right values, and no growth of anything.

    python tests/soak.py --minutes 60

One reader runs all the time; beside it, others are built, read for a while and dropped in the middle. Each minute a line tells of
batches, memory, threads and descriptors. It fails if a value is wrong, or if memory, threads or descriptors are more at the end
than they were after the first tenth of the time.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support.pipelines import build, to_numpy  # noqa: E402
from support.server import CLOSE, STALL, Server  # noqa: E402
from support.stores import Layout, write_array  # noqa: E402

SHAPE = (96, 64, 96)
BATCH = 8
# More than the allocator's noise; an hour makes hundreds of thousands of requests.
ALLOWED_BYTES = 24 << 20


def usage() -> dict[str, int]:
    """Resident bytes, threads and descriptors of this process."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    fds = len(os.listdir("/proc/self/fd"))
    return {"memory": int(status["VmRSS"].split()[0]) << 10, "threads": int(status["Threads"]), "descriptors": fds}


def faults(seed: int):
    """What a bad day looks like: two of a hundred requests fail in one way or another, and some are slow."""
    dice = random.Random(seed)

    def fault(_number: int, method: str, path: str) -> object:
        roll = dice.random()
        if roll < 0.02 and method == "GET" and not path.endswith(".json"):
            return dice.choice([500, 503, 429, (0, CLOSE), (100, CLOSE), (1000, CLOSE), (7, STALL)])
        return 0.05 if roll < 0.05 else None

    return fault


def check(out, arrays: list[np.ndarray]) -> None:
    index = to_numpy(out[-1])
    for got, values in zip(out, arrays, strict=False):
        for sample, (start, *_) in zip(to_numpy(got), index, strict=True):
            if not np.array_equal(sample, values[start]):
                raise ValueError(f"wrong values at {start}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", action="store_true", help="with cache_size and cache_dir")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    values = [np.round(rng.standard_normal(SHAPE) * 64).astype("float32") for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        write_array(root, "a", values[0], dims=("time", "lat", "lon"), codec="zstd", layout=Layout((1, 64, 96)))
        write_array(root, "b", values[1], dims=("time", "lat", "lon"), codec="zstd", layout=Layout((1, 16, 48), shards=(8, 64, 96)))
        caches = {"cache_size": 1 << 20, "cache_dir": str(Path(folder) / "cache"), "cache_dir_size": 1 << 20} if args.cache else {}
        with Server(root, latency=0.005, fault=faults(args.seed)) as server:
            how = {
                "path": server.url, "arrays": ["a", "b"], "random_shuffle": True, "return_index": True,
                "host_memory_limit": 64 << 20, "io_concurrency": 16,
                "storage_options": {"timeout": "500ms", "retry_timeout": "60s"},
            } | caches
            return soak(args, server, how, values)


def soak(args: argparse.Namespace, server: Server, how: dict, values: list[np.ndarray]) -> int:
    dice = random.Random(args.seed)
    lasting = build(args.device, BATCH, **how)
    begin, batches, readers = time.monotonic(), 0, 0
    first, line, requests = None, 1, 0
    while (minutes := (time.monotonic() - begin) / 60) < args.minutes:
        for _ in range(SHAPE[0] // BATCH):
            check(lasting.run(), values)
            batches += 1
        other = build(args.device, BATCH, seed=dice.randrange(1 << 30), **how)
        for _ in range(dice.randrange(SHAPE[0] // BATCH)):
            check(other.run(), values)
            batches += 1
        del other
        readers += 1
        gc.collect()
        now = usage()
        if first is None and minutes > args.minutes / 10:
            first = now
        if minutes >= line * min(1.0, args.minutes / 10):
            requests += len(server.take_log())
            counts = f"{batches} batches  {readers} readers  {requests} requests  "
            print(f"{minutes:5.1f} min  {counts}" + "  ".join(f"{k} {v}" for k, v in now.items()), flush=True)
            line += 1
    grown = {k: now[k] - first[k] for k in now}
    print(f"growth since the first tenth: {grown}")
    # One reader's threads and connections may be on their way out.
    bad = grown["memory"] > ALLOWED_BYTES or grown["threads"] > 4 or grown["descriptors"] > 40
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
