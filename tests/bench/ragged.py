"""Shuffled rows of a CSR matrix as AnnData stores it, beside annbatch and zarr-python with scipy, in one run.

    python tests/bench/ragged.py [--small] [--device cpu] [--cores 2] [--store DIR] [--annbatch PYTHON]

The store has a million rows of about 2,000 stored values (``--small``: 100,000 rows), float32 with int32 indices, in shards of
Blosc-LZ4 chunks of 32,768 values, which are annbatch's own. All readers give batches of 4,096 rows as CSR matrices, each row
drawn among 16,384: annbatch and zarr-python take 32 runs of 512 consecutive rows at random places, mix their rows and cut them
into batches; dali_zarr draws (``initial_fill``) from as many rows of 128 blocks at random places, each of the 128 rows or so
that begin in eight chunks. Each reader has a process of its own and reads epoch after epoch, of which the first fills the page
cache and touches memory; what counts is the median of the others. Beside the rate stands the processor time of a row, which
other processes disturb less. annbatch needs Python 3.12: ``--annbatch`` names an interpreter that has it, which runs this file;
without it annbatch is left out.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

BATCH, RUN, RUNS = 4096, 512, 32
# The longest time of a measurement.
MAX_SECONDS = 30
GENES = 20_000
CHUNK, SHARD = 1 << 15, 1 << 24


def write(path: Path, rows: int, mean: int) -> None:
    """Writes the store by zarr-python, in the layout of AnnData."""
    import zarr
    from zarr.codecs import BloscCodec

    rng = np.random.default_rng(0)
    lengths = np.clip(rng.normal(mean, mean / 4, rows), 0, GENES // 4).astype("int64")
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    group = zarr.open_group(path, mode="w", zarr_format=3)
    group.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    x = group.create_group("X", attributes={"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [rows, GENES]})
    total = int(offsets[-1])
    shards = (min(SHARD, -(-total // CHUNK) * CHUNK),)

    def array(name: str, dtype: str) -> Any:
        codec = BloscCodec(cname="lz4", clevel=3, shuffle="shuffle", typesize=4)
        return x.create_array(name, shape=(total,), chunks=(CHUNK,), shards=shards, dtype=dtype, compressors=[codec])

    data, indices = array("data", "float32"), array("indices", "int32")
    x.create_array("indptr", data=offsets, chunks=(1 << 20,))
    group.create_array("number", data=np.arange(rows), chunks=(1 << 16,))
    # Whole shards at a time: each is written once. Indices ascend within a row.
    def write_shard(start: int) -> None:
        end = min(start + shards[0], total)
        rng = np.random.default_rng([0, start])
        gaps = rng.integers(1, max(2 * GENES // (mean + mean // 2), 2), end - start)
        of = np.cumsum(gaps)
        first, last = np.searchsorted(offsets, (start, end))
        begins = offsets[first:last] - start
        lows = np.zeros(end - start, "int64")
        begins = begins[begins < end - start]
        lows[begins] = of[begins] - gaps[begins]
        np.maximum.accumulate(lows, out=lows)
        indices[start:end] = ((of - lows) % GENES).astype("int32")
        data[start:end] = rng.poisson(1.5, end - start).astype("float32") + 1

    with ThreadPoolExecutor() as pool:
        list(pool.map(write_shard, range(0, total, shards[0])))


def ours(path: Path, device: str, rows: int) -> Callable[[], Iterator[Any]]:
    from dali_zarr.torch import Loader

    loader = Loader(
        path, arrays=["X/data", "X/indices"], ragged="X/indptr", collate="csr", batch_size=BATCH, device=device,
        random_shuffle=True, initial_fill=RUN * RUNS, drop_last=True,
    )
    return lambda: iter(loader)


def with_scipy(path: Path, device: str, rows: int) -> Callable[[], Iterator[Any]]:
    """zarr-python reads runs of rows, scipy mixes them."""
    import scipy.sparse as sp
    import torch
    import zarr

    group = zarr.open_group(path, mode="r")["X"]
    data, indices, offsets = group["data"], group["indices"], group["indptr"][:]
    rng = np.random.default_rng(1)

    def run(start: int) -> Any:
        own = offsets[start : start + RUN + 1]
        part = slice(int(own[0]), int(own[-1]))
        return sp.csr_matrix((data[part], indices[part], own - own[0]), shape=(len(own) - 1, GENES))

    def epoch() -> Iterator[Any]:
        starts = rng.permutation(np.arange(0, rows, RUN))
        for at in range(0, len(starts), RUNS):
            mixed = sp.vstack([run(int(start)) for start in starts[at : at + RUNS]], format="csr")
            mixed = mixed[rng.permutation(mixed.shape[0])]
            for first in range(0, mixed.shape[0] - BATCH + 1, BATCH):
                batch = mixed[first : first + BATCH]
                if device == "cpu":
                    yield batch
                else:
                    parts = (torch.from_numpy(part).to("cuda") for part in (batch.indptr, batch.indices, batch.data))
                    yield torch.sparse_csr_tensor(*parts, size=batch.shape, check_invariants=False)

    return epoch


def annbatch(path: Path, device: str, rows: int) -> Callable[[], Iterator[Any]]:
    import anndata
    import zarr
    import zarrs  # noqa: F401
    from annbatch import Loader

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    matrix = anndata.io.sparse_dataset(zarr.open_group(path, mode="r")["X"])
    given: dict[str, Any] = {
        "shuffle": True, "batch_size": BATCH, "chunk_size": RUN, "preload_nchunks": RUNS, "preload_to_gpu": device != "cpu",
        "drop_last": True,
    }
    # Later versions of annbatch don't have this argument.
    if "to_torch" in inspect.signature(Loader).parameters:
        given["to_torch"] = False
    loader = Loader(**given)
    loader.add_dataset(matrix)
    return lambda: iter(loader)


READERS = {"dali_zarr": ours, "zarr-python + scipy": with_scipy, "annbatch": annbatch}


def measured(epoch: Callable[[], Iterator[Any]], device: str) -> tuple[float, float]:
    """Returns rows a second and microseconds of processor time for a row, of an epoch or of the part that a slow reader
    manages."""
    began, busy, rows = time.perf_counter(), time.process_time(), 0
    for batch in epoch():
        matrix = batch["X"] if hasattr(batch, "keys") and "X" in batch.keys() else batch  # noqa: SIM118
        rows += matrix.shape[0]
        if time.perf_counter() - began > MAX_SECONDS:
            break
    if device == "gpu":
        import torch

        torch.cuda.synchronize()
    return rows / (time.perf_counter() - began), (time.process_time() - busy) / rows * 1e6


def in_rounds(name: str, path: Path, device: str, rows: int, rounds: int) -> list[tuple[float, float]]:
    """Measures each epoch of a reader except the first. Epochs follow each other, as in training: work for the next
    epoch that is done during this one counts for this one."""
    epoch = READERS[name](path, device, rows)
    return [measured(epoch, device) for _ in range(rounds + 1)][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--values", type=int, default=2000, help="stored values of a row, on average")
    parser.add_argument("--small", action="store_true", help="100,000 rows")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--cores", type=int, default=2, help="processors that all readers have; 0: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", type=Path, help="where the store is kept; it is written if it isn't there")
    parser.add_argument("--annbatch", metavar="PYTHON", help="an interpreter that has annbatch, anndata, zarrs and scipy")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    rows = 100_000 if asked.small else asked.rows
    if asked.cores:
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: asked.cores]))
    if asked.only:
        print(json.dumps(in_rounds(asked.only, asked.store, asked.device, rows, asked.rounds)))
        return
    folder = Path(tempfile.mkdtemp(prefix="dali-zarr-ragged-")) if asked.store is None else None
    path = asked.store or folder / "cells.zarr"
    pythons = {name: sys.executable for name in READERS if name != "annbatch"}
    if asked.annbatch:
        pythons["annbatch"] = asked.annbatch
    found: dict[str, list[tuple[float, float]]] = {}
    try:
        if not path.exists():
            write(path, rows, asked.values)
        for name, python in pythons.items():
            command = [python, __file__, "--only", name, "--store", str(path), "--rows", str(rows)]
            command += ["--device", asked.device, "--cores", str(asked.cores), "--rounds", str(asked.rounds)]
            told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            found[name] = json.loads(told.splitlines()[-1])
    finally:
        if folder is not None:
            shutil.rmtree(folder)
    rates = {name: [rate for rate, _ in rounds] for name, rounds in found.items()}
    medians = {name: statistics.median(own) for name, own in rates.items()}
    print(f"{rows} rows of about {asked.values} values, to the {asked.device.upper()}, {asked.cores or os.cpu_count()} cores")
    for name, rate in sorted(medians.items(), key=lambda item: -item[1]):
        spread = f"{min(rates[name]):,.0f} to {max(rates[name]):,.0f}"
        busy = statistics.median(busy for _, busy in found[name])
        print(f"{name:20} {rate:12,.0f} rows/s {rate * asked.values * 8 / 1e9:8.2f} GB/s {busy:8.1f} us/row   ({spread})")
    others = [rate for name, rate in medians.items() if name != "dali_zarr"]
    print(f"dali_zarr is {medians['dali_zarr'] / max(others):.2f} times as fast as the fastest of the others")


if __name__ == "__main__":
    main()
