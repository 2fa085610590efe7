"""The stores of the benchmark of training: samples of 16 ERA5-like float32 fields, each field a chunk of its own.

    python tests/bench/train_stores.py --folder bench-data/train --stores none,zstd,blosc-lz4

Runs as a process of its own, because it forks its workers: a process that has initialised CUDA must not fork.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import zarr
from zarr import codecs as zc

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from support.fields import grib_pack, spectral_field  # noqa: E402

COMPRESSORS = {
    "none": None,
    "zstd": zc.ZstdCodec(level=3),
    "blosc-lz4": zc.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4),
}
# Mean and standard deviation of channel c are those of entry c % 6: temperatures, winds, geopotential, humidity.
SCALES = ((280.0, 15.0), (5.0, 12.0), (0.5, 9.0), (255.0, 12.0), (54000.0, 3000.0), (2e-3, 1e-3))


def scales(channels: int) -> tuple[list[float], list[float]]:
    """Returns the mean and the standard deviation of each channel."""
    pairs = [SCALES[c % len(SCALES)] for c in range(channels)]
    return [m for m, _ in pairs], [s for _, s in pairs]


def folder_of(folder: Path, name: str, samples: int, channels: int, grid: tuple[int, int]) -> Path:
    """Returns where the store of this name and size lies."""
    return folder / f"{name}-{samples}x{channels}x{grid[0]}x{grid[1]}.zarr"


def sample(seed: int, time_step: int, channels: int, grid: tuple[int, int]) -> np.ndarray:
    """Makes the fields (channel, latitude, longitude) of one time, all different."""
    out = np.empty((channels, *grid), np.float32)
    for c, (mean, stddev) in enumerate(zip(*scales(channels))):
        rng = np.random.default_rng([seed, time_step, c])
        out[c] = grib_pack(mean + stddev * spectral_field(rng, *grid))
    return out


def _write(paths: list[str], time_step: int, channels: int, grid: tuple[int, int]) -> None:
    """Writes one time into every store, so that its fields are made once."""
    fields = sample(0, time_step, channels, grid)
    with zarr.config.set({"threading.max_workers": 1, "async.concurrency": 1}):
        for path in paths:
            zarr.open_array(path, path="field", mode="r+")[time_step] = fields


def missing(folder: Path, names: list[str], samples: int, channels: int, grid: tuple[int, int]) -> dict[str, Path]:
    """Returns the stores that aren't there yet."""
    paths = {name: folder_of(folder, name, samples, channels, grid) for name in names}
    return {name: path for name, path in paths.items() if not path.with_suffix(".json").exists()}


def prepare(folder: Path, names: list[str], samples: int, channels: int, grid: tuple[int, int], workers: int) -> None:
    """Writes the stores that aren't there yet: ``samples`` times of ``channels`` fields, one field a chunk."""
    folder.mkdir(parents=True, exist_ok=True)
    new = missing(folder, names, samples, channels, grid)
    if not new:
        return
    begin = time.perf_counter()
    for name, path in new.items():
        shutil.rmtree(path, ignore_errors=True)
        zarr.create_array(
            str(path), name="field", shape=(samples, channels, *grid), chunks=(1, 1, *grid), dtype="float32", zarr_format=3,
            compressors=COMPRESSORS[name], dimension_names=("time", "channel", "latitude", "longitude"),
        )
    where = [str(p) for p in new.values()]
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        list(pool.map(_write, *zip(*((where, t, channels, grid) for t in range(samples)))))
    for path in new.values():
        size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        path.with_suffix(".json").write_text(json.dumps({"encoded_bytes": size}))
        print(f"wrote {path.name}: {size / 1e6:.1f} MB", flush=True)
    print(f"made {samples} samples of {channels} fields in {time.perf_counter() - begin:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--stores", default=",".join(COMPRESSORS))
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--grid", type=int, nargs=2, default=(720, 1440), metavar=("LAT", "LON"))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    prepare(args.folder, args.stores.split(","), args.samples, args.channels, tuple(args.grid), args.workers)


if __name__ == "__main__":
    main()
