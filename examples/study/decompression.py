"""zstd over the size of chunks: by numcodecs on all cores, and by this reader on the CPU, with its own kernels and with nvCOMP.

    python examples/study/decompression.py --small
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from common import arguments, gpu_wait, has_gpu, in_process, rate, save
from store import field

SIZES = (64 << 10, 512 << 10, 4 << 20)
WAYS = {"numcodecs": {}, "dali_zarr, CPU": {}, "dali_zarr, GPU": {}, "nvCOMP": {"DALI_ZARR_ZSTD": "nvcomp"}}


def written(data: Path, chunk: int, total: int) -> Path:
    """An array of chunks of so many bytes."""
    import zarr
    from zarr.codecs import ZstdCodec

    path = data / f"zstd-{chunk}-{total}.zarr"
    if not path.exists():
        rows, columns = total // chunk, chunk // 4
        values = np.stack([field(np.random.default_rng(i), 1024, 1024).reshape(-1) for i in range(4)]).reshape(-1)
        array = zarr.create_array(
            str(path) + ".unfinished", shape=(rows, columns), chunks=(1, columns), dtype="f4", compressors=[ZstdCodec(level=3)],
            overwrite=True,
        )
        count = min(rows, len(values) // columns)
        for start in range(0, rows, count):
            stop = min(start + count, rows)
            array[start:stop] = np.roll(values, start)[: (stop - start) * columns].reshape(stop - start, columns)
        os.rename(str(path) + ".unfinished", path)
    return path


def by_numcodecs(path: Path, chunk: int, seconds: float) -> float:
    """Bytes in a second that all cores decode, of chunks in memory."""
    import numcodecs

    codec = numcodecs.Zstd()
    encoded = [file.read_bytes() for file in sorted(path.rglob("c/*/*"))[:256] if file.is_file()]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            list(pool.map(codec.decode, encoded))
            count += len(encoded)
        return count * chunk / (time.perf_counter() - began)


def by_reader(path: Path, chunk: int, total: int, seconds: float, device: str) -> float:
    """Bytes in a second, from the page cache through the reader."""
    from dali_zarr.torch import Loader

    rows = max(1, (32 << 20) // chunk)
    loader = Loader(str(path), batch_size=rows, device="cuda" if device == "gpu" else "cpu", decode_device=device, drop_last=True)

    def batches():
        while True:
            yield from loader

    return rate(batches(), seconds, gpu_wait())["batches_per_second"] * rows * chunk


def main() -> None:
    args = arguments(__doc__)
    total = (64 << 20) if args.small else (4 << 30)
    if args.one:
        way, chunk = args.one[0], int(args.one[1])
        path = written(args.data, chunk, total)
        if way == "numcodecs":
            found = by_numcodecs(path, chunk, args.size.seconds)
        else:
            found = by_reader(path, chunk, total, args.size.seconds, "cpu" if way.endswith("CPU") else "gpu")
        print(json.dumps({"gb_per_second": found / 1e9}))
        return
    args.data.mkdir(parents=True, exist_ok=True)
    rows = []
    for chunk in SIZES:
        written(args.data, chunk, total)
        for way, env in WAYS.items():
            if way in ("dali_zarr, GPU", "nvCOMP") and not has_gpu():
                continue
            rows.append({"way": way, "chunk": chunk, **in_process(args, "decompression.py", way, chunk, env=env)})
            print(rows[-1], flush=True)
    save(args, "decompression", rows)


if __name__ == "__main__":
    main()
