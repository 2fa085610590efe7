"""The whole store to the GPU, once: by this reader (page cache, past it, GPUDirect Storage), kvikio and zarr-python.

    python examples/study/reading.py --size small

The study read 18.2 GB in 11.9 s by kvikio and in 16.0 s by zarr-python. Without a GPU tensors stay on the CPU. ``--disk`` is for
machines that have the stores in memory: the ways past the page cache then read a copy of some hours on a disk.
"""

from __future__ import annotations

import os
import shutil
import time
from argparse import ArgumentParser
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import Size, arguments, compare, gpu_wait
from readers import opened, to_device
from store import BLOCK, prepare

STORES = ("uncompressed", "one-hour")
# Of the copy on the disk, and of what is read before the clock runs.
DISK_HOURS, WARM_HOURS = 100, 20
# Gives what is iterated over for the first so many hours.
Read = Callable[[int], Any]


def _loader(path: Path, **how: Any) -> Read:
    from dali_zarr.torch import Loader

    return lambda hours: Loader(
        str(path), arrays=["fields"], dims=["time"], window=[1], batch_size=BLOCK, roi_start=[0], roi_end=[hours], **how
    )


def _zarr(path: Path, gpu: bool = False, gds: bool = False) -> Read:
    array = opened(path, gpu, gds)
    return lambda hours: ({"fields": to_device(array[i : min(i + BLOCK, hours)])} for i in range(0, hours, BLOCK))


WAYS: dict[str, Callable[[Path], Read]] = {
    "dali_zarr": _loader,
    "zarr-python": _zarr,
    "zarr-python GPU": lambda path: _zarr(path, gpu=True),
    "kvikio": lambda path: _zarr(path, gpu=True, gds=True),
    "dali_zarr, use_o_direct": lambda path: _loader(path, use_o_direct=True),
    "dali_zarr, gds": lambda path: _loader(path, io="gds"),
}
OF_DISK = ("dali_zarr, use_o_direct", "dali_zarr, gds")


def copied(path: Path, disk: Path, size: Size) -> tuple[Path, int]:
    """The first hours of a store on a disk, and how many they are."""
    target, hours = disk / path.parent.name / path.name, min(DISK_HOURS, size.hours)
    if not target.exists():
        unfinished = target.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(path, unfinished, ignore=lambda folder, names: names if folder.endswith("/fields/c") else [])
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda n: shutil.copytree(path / f"fields/c/{n}", unfinished / f"fields/c/{n}"), range(hours)))
        os.sync()
        unfinished.rename(target)
    return target, hours


def main() -> None:
    def more(parser: ArgumentParser) -> None:
        parser.add_argument("--disk", type=Path, help="folder of a disk, for the ways past the page cache; default: that of --data")

    args = arguments(__doc__, more)
    paths, size, wait = prepare(args.data, args.size), args.size, gpu_wait()

    def timed(batches: Any) -> dict[str, Any]:
        began = time.perf_counter()
        count = sum(batch["fields"].nbytes for batch in batches)
        wait()
        seconds = time.perf_counter() - began
        return {"bytes": count, "seconds": seconds, "gb_per_second": count / 1e9 / seconds}

    def measure(way: str, store: str) -> dict[str, Any]:
        path, hours = paths[store], size.hours
        if way in OF_DISK and args.disk:
            path, hours = copied(path, args.disk, size)
        read = WAYS[way](path)
        timed(read(min(WARM_HOURS, hours)))
        batches = read(hours)
        found = {"hours": hours, **timed(batches)}
        if way.startswith("dali_zarr"):
            # Once more, by the loader that has its memory now; what it keeps of the first time it need not read.
            before = batches.counters()["bytes_read"]
            found["again"] = {**timed(batches), "bytes_read": batches.counters()["bytes_read"] - before}
        return found

    compare(args, __file__, {way: STORES for way in WAYS}, measure)


if __name__ == "__main__":
    main()
