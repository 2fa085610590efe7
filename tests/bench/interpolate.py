"""What ``align={"sst": "linear"}`` costs beside elements that are only copied (``"previous"``), and beside PyTorch.

    python tests/bench/interpolate.py [--small] [--device cpu] [--store DIR] [--threads 1]

``t2m`` is a number for each hour, and ``sst`` float32 (time, 721, 1440) for each day, a day in each chunk, without compression,
so that little but the finishing pass is measured. A sample is a window of 6 hours, normalised. Three readers give it: one that
interpolates, one that takes the day before, and one that takes both days, between which PyTorch interpolates (``lerp`` in
float32, which isn't as exact). What counts is the least time of a sample over the rounds, from first to last batch. Beside it
stand the seconds of the reader's finishing pass (``assemble_seconds``).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

HOURS = 6


def write(path: Path, days: int) -> None:
    import zarr

    rng = np.random.default_rng(0)
    for name, shape, unit in (("t2m", (24 * days,), "hours"), ("sst", (days + 1, 721, 1440), "days")):
        group = zarr.create_group(path / f"{name}.zarr", overwrite=True)
        dims = ["time", "y", "x"][: len(shape)]
        chunks = (1, *shape[1:]) if len(shape) > 1 else shape
        found = group.create_array(name, shape=shape, chunks=chunks, dtype="float32", compressors=None, dimension_names=dims)
        for at in range(shape[0]) if len(shape) > 1 else [slice(None)]:
            found[at] = rng.normal(290, 10, shape[1:] or shape).astype("float32")
        times = group.create_array("time", shape=shape[:1], dtype="int64", dimension_names=["time"])
        times[:] = np.arange(shape[0])
        times.attrs["units"] = f"{unit} since 2020-01-01"


def measured(path: Path, device: str, threads: int, how: str) -> dict[str, float]:
    """Returns seconds of a sample: of a round from first to last batch, and of the finishing pass."""
    from dali_zarr.torch import Loader

    arguments: dict[str, Any] = {"batch_size": 4, "device": device, "decode_threads": threads, "random_shuffle": False}
    normal = {"mean": {"sst": 290.0}, "stddev": {"sst": 10.0}}
    if how == "torch":
        loader = Loader(path / "sst.zarr", arrays=["sst"], offsets=[0, 1], step=[1], **normal, **arguments)
    else:
        arrays = {"t2m": str(path / "t2m.zarr/t2m"), "sst": str(path / "sst.zarr/sst")}
        loader = Loader(arrays=arrays, align={"sst": how}, window={"time": HOURS}, **normal, **arguments)
    whole: list[float] = []
    before, samples = 0.0, 0
    for round_ in range(4):
        begun, count = time.perf_counter(), 0
        for batch in loader:
            tensors = list(batch.values())
            if how == "torch":
                one, other = tensors
                for first in range(0, 24, HOURS):
                    weights = torch.arange(first, first + HOURS, device=one.device)[:, None, None] / 24
                    torch.lerp(one[:, None], other[:, None], weights)
                if device == "cuda":
                    torch.cuda.synchronize()
            count += len(tensors[0]) * (24 // HOURS if how == "torch" else 1)
        if round_ == 0:
            before = loader.counters()["assemble_seconds"]
            continue
        samples += count
        whole.append((time.perf_counter() - begun) / count)
    return {"whole": min(whole), "pass": (loader.counters()["assemble_seconds"] - before) / samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="few days")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--store", type=Path, help="where the stores are, or are written; default: a temporary folder")
    parser.add_argument("--threads", type=int, default=1, help="threads of the reader that decode, and of PyTorch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folder = args.store or Path(tempfile.mkdtemp(prefix="interpolate-"))
    try:
        if not (folder / "sst.zarr").exists():
            write(folder, 8 if args.small else 120)
        found = {how: measured(folder, args.device, args.threads, how) for how in ("linear", "previous", "torch")}
        for how, seconds in found.items():
            print(f"{how}: {1e3 * seconds['whole']:.3f} ms a sample, {1e3 * seconds['pass']:.3f} ms of it in the finishing pass")
        print(f"linear takes {found['linear']['pass'] / found['previous']['pass']:.2f} times the finishing pass of previous")
    finally:
        if args.store is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
