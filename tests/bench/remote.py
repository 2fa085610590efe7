"""Reading from a server with latency, beside a plain concurrent downloader of the same bytes and other readers of Zarr.

A server on the loopback (``src/engine/examples/remote_bench.rs``) waits before each answer. The downloader, of the same file,
gets all objects whole with as many requests at a time and throws them away: what it reaches is what the connection gives. Every
measurement is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
SHAPE = (721, 1440)
STORES = {
    "v3-none": {"chunks": (1, *SHAPE), "compressors": None},
    "v3-zstd": {"chunks": (1, *SHAPE)},
    "v3-zstd-shards": {"chunks": (1, 103, 160), "shards": (1, *SHAPE)},
}


def make(path: Path, fields: int, **layout) -> None:
    """Fields that compress as packed weather does, one in a chunk or shard."""
    import zarr

    y, x = np.mgrid[0 : SHAPE[0], 0 : SHAPE[1]].astype("float32")
    noise = np.random.default_rng(0)
    group = zarr.open_group(path, mode="w", zarr_format=3)
    array = group.create_array("a", shape=(fields, *SHAPE), dtype="float32", dimension_names=["time", "lat", "lon"], **layout)
    for i in range(fields):
        field = np.sin(y / 40 + i) * np.cos(x / 60) * 20 + 280 + noise.standard_normal(SHAPE) * 0.2
        array[i] = np.round(field * 64).astype("float32") / 64
    zarr.consolidate_metadata(path)


def ours(url: str, epochs: int, fields: int, concurrency: int) -> dict:
    start = time.perf_counter()
    import dali_zarr  # noqa: F401
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    imported = time.perf_counter()
    pipe = Pipeline(batch_size=8, num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipe:
        pipe.set_outputs(fn.zarr_reader(path=url, arrays=["a"], io_concurrency=concurrency, random_shuffle=True))
    pipe.build()
    batches = epochs * fields // 8
    pipe.run()
    first = time.perf_counter() - imported
    for _ in range(batches - 1):
        pipe.run()
    return {"seconds": time.perf_counter() - imported, "first": first, "import": imported - start}


def zarr_obstore(url: str, epochs: int, fields: int, concurrency: int) -> dict:
    import zarr
    from obstore.store import HTTPStore
    from zarr.storage import ObjectStore

    zarr.config.set({"async.concurrency": concurrency})
    start = time.perf_counter()
    store = HTTPStore.from_url(url, client_options={"allow_http": True})
    array = zarr.open_group(ObjectStore(store, read_only=True), mode="r")["a"]
    return in_batches(lambda i: array[i : i + 8], start, epochs, fields)


def tensorstore(url: str, epochs: int, fields: int, concurrency: int) -> dict:
    import tensorstore as ts

    start = time.perf_counter()
    context = ts.Context({"http_request_concurrency": {"limit": concurrency}})
    array = ts.open({"driver": "zarr3", "kvstore": f"{url}/a/"}, context=context, open=True).result()
    return in_batches(lambda i: array[i : i + 8].read(), start, epochs, fields, ahead=4)


def in_batches(read, start: float, epochs: int, fields: int, ahead: int = 1) -> dict:
    first, waiting = None, []
    for number in range(epochs * fields // 8):
        waiting.append(read(number * 8 % fields))
        if len(waiting) >= ahead:
            done = waiting.pop(0)
            done.result() if hasattr(done, "result") else done
            first = first or time.perf_counter() - start
    for done in waiting:
        done.result() if hasattr(done, "result") else done
    return {"seconds": time.perf_counter() - start, "first": first or time.perf_counter() - start}


READERS = {"dali_zarr": ours, "zarr-python + obstore": zarr_obstore, "tensorstore": tensorstore}


def measure(reader: str, *arguments, env: dict[str, str] | None = None) -> dict | None:
    command = [sys.executable, str(HERE), "--one", reader, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | (env or {}), check=False)
    if done.returncode:
        print(f"  {reader}: {done.stderr.strip().splitlines()[-1:]}")
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fields", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--latency", type=int, nargs="+", default=[20, 100], help="milliseconds")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--stores", nargs="+", default=list(STORES), choices=list(STORES))
    parser.add_argument("--readers", nargs="+", default=list(READERS), choices=list(READERS))
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        reader, url, epochs, fields, concurrency = args.one
        print(json.dumps(READERS[reader](url, int(epochs), int(fields), int(concurrency))))
        return
    cargo = ["cargo", "build", "--release", "--package", "dali-zarr-engine", "--example", "remote_bench"]
    subprocess.run(cargo, cwd=HERE.parents[2], check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[2] / "target"))
    program = target / "release/examples/remote_bench"
    with tempfile.TemporaryDirectory() as folder:
        for name in args.stores:
            make(Path(folder) / name, args.fields, **STORES[name])
        for latency in args.latency:
            for name in args.stores:
                run(program, Path(folder), name, latency, args)


def run(program: Path, folder: Path, name: str, latency: int, args: argparse.Namespace) -> None:
    objects = [str(f.relative_to(folder)) for f in sorted((folder / name / "a" / "c").rglob("*")) if f.is_file()]
    server = subprocess.Popen(
        [program, "serve", folder, str(latency)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    try:
        url = server.stdout.readline().strip()
        command = [program, "download", url, str(args.concurrency)]
        # Once before, so that the server has the files in memory.
        for _ in range(2):
            lines = "\n".join(objects * args.epochs)
            done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
        plain = json.loads(done.stdout)
        rate = plain["bytes"] / plain["seconds"]
        print(f"{name}, {latency} ms: plain downloader {rate / 1e9:.2f} GB/s of stored bytes, {plain['seconds']:.2f} s")
        for reader in args.readers:
            stats = folder / "stats.json"
            found = measure(
                reader, f"{url}/{name}", args.epochs, args.fields, args.concurrency,
                env={"DALI_ZARR_STATS_FILE": str(stats)},
            )
            if not found:
                continue
            share = plain["seconds"] / found["seconds"]
            text = f"  {reader}: {found['seconds']:.2f} s, {share:.0%} of it, first batch after {found['first']:.2f} s"
            if reader == "dali_zarr":
                counted = json.loads(stats.read_text())
                # What was read beyond the batches that were asked for is counted on both sides.
                per_object = counted["requests"] / max(1, counted["reads"] + counted["index_reads"])
                text += f", {counted['requests']} requests, {per_object:.3f} for each read or index,"
                text += f" {counted['requests'] / counted['chunks_read']:.3f} for each chunk"
            print(text, flush=True)
    finally:
        server.stdin.close()
        server.wait()


if __name__ == "__main__":
    main()
