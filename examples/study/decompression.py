"""zstd over the size of chunks: by numcodecs on all cores, and by this reader on the CPU and on the GPU.

    python examples/study/decompression.py --size small
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, compare, gpu_wait, has_gpu, rate
from store import Waves

CHUNKS = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
WAYS = ("numcodecs", "dali_zarr, CPU", "dali_zarr, GPU")
TOTALS = {"whole": 8 << 30, "small": 256 << 20, "tiny": 64 << 20}
# Bytes of an array that are encoded. Files behind them are links to those before.
ENCODED = 1 << 30


@functools.cache
def _values() -> np.ndarray:
    """16 MiB of fields."""
    return np.stack([Waves(1024, 1024, channel).at(0) for channel in range(4)]).reshape(-1)


def written(data: Path, chunk: int, total: int) -> Path:
    """An array of chunks of so many bytes. Its files are written here, for many small ones take zarr-python long."""
    import numcodecs
    import zarr
    from zarr.codecs import ZstdCodec

    path = data / f"zstd-{chunk}-{total}.zarr"
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        rows, columns, encoded = total // chunk, chunk // 4, ENCODED // chunk
        zarr.create_array(
            str(unfinished), shape=(rows, columns), chunks=(1, columns), dtype="f4", compressors=[ZstdCodec(level=3)],
            overwrite=True,
        )
        values, codec = _values(), numcodecs.Zstd(level=3)

        def write(row: int) -> None:
            start = row * columns % len(values)
            part = values[start : start + columns]
            file = unfinished / f"c/{row}/0"
            file.parent.mkdir(parents=True)
            # Values come round again: from then on all are a little higher.
            file.write_bytes(codec.encode(part + np.float32(row * columns // len(values))))

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(write, range(min(rows, encoded))))
        for row in range(encoded, rows):
            link = unfinished / f"c/{row}/0"
            link.parent.mkdir()
            link.hardlink_to(unfinished / f"c/{row % encoded}/0")
        unfinished.rename(path)
    return path


def by_numcodecs(path: Path, chunk: int, seconds: float) -> float:
    """Bytes in a second that all cores decode, of chunks in memory."""
    import numcodecs

    codec = numcodecs.Zstd()
    encoded = [(path / f"c/{row}/0").read_bytes() for row in range(min(256, len(os.listdir(path / "c"))))]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            list(pool.map(codec.decode, encoded))
            count += len(encoded)
        return count * chunk / (time.perf_counter() - began)


def by_reader(path: Path, chunk: int, total: int, seconds: float, device: str) -> float:
    """Bytes in a second that the reader decodes, by its own count: memory for half of the chunks keeps those of
    one epoch from serving the next."""
    from dali_zarr.torch import Loader

    def decoded() -> int:
        counters = loader.counters()
        return counters["chunks_decoded_gpu"] + counters["chunks_decoded_cpu"]

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    limit: Any = {"device_memory_limit" if device == "gpu" else "host_memory_limit": total // 2}
    rows = max(1, total // 128 // chunk)
    loader = Loader(
        str(path), batch_size=rows, device="cuda" if device == "gpu" else "cpu", decode_device=device, drop_last=True, **limit,
    )
    stream = batches()
    next(stream)
    before = decoded()
    found = rate(stream, seconds, gpu_wait(), warm=0)
    return (decoded() - before) * chunk / found["seconds"]


def main() -> None:
    args = arguments(__doc__)
    total = TOTALS[args.size_name]

    def measure(way: str, store: str) -> dict[str, Any]:
        chunk = int(store)
        if way == "dali_zarr, GPU" and not has_gpu():
            raise RuntimeError("no GPU")
        path = written(args.data, chunk, total)
        if way == "numcodecs":
            found = by_numcodecs(path, chunk, args.size.seconds)
        else:
            found = by_reader(path, chunk, total, args.size.seconds, "cpu" if way.endswith("CPU") else "gpu")
        return {"chunk": chunk, "gb_per_second": found / 1e9}

    args.data.mkdir(parents=True, exist_ok=True)
    ways = {way: [str(chunk) for chunk in CHUNKS] for way in WAYS}
    compare(args, __file__, ways, measure)


if __name__ == "__main__":
    main()
