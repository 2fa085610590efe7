"""Reading from a server with latency, beside a plain concurrent downloader of the same bytes and other readers of Zarr.

A server on the loopback (``src/engine/examples/remote_bench.rs``) waits before each answer. The downloader, of the same file,
gets the same objects whole, with as many requests at a time, and throws them away: what it reaches is what the connection
gives. Readers and downloader read the epoch in order, again and again for some seconds; a reader's rate is counted from a second
after its first batch on. Every measurement is a process of its own; server and client share the cores, so ``taskset -c 0,1``
makes it a measurement on two.

With ``--caches``: epochs of a reader with ``cache_size``, of one with ``cache_dir``, and of one of the same files on the disk, all
in the page cache. Epochs alternate between the three, so that whatever else the machine does is shared among them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from stores import STORES, Store, checksum, prepare  # noqa: E402
from support.pipelines import to_numpy  # noqa: E402

DEFAULT = ["v3-none", "v3-zstd", "v3-zstd-shards", "v3-zstd-small"]


def memory(what: str) -> int:
    """Returns ``VmRSS`` or ``VmHWM`` of this process, in bytes."""
    return int(re.search(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


# ---- the readers: each returns an iterator of batches in host memory or on the GPU, and a function for its counters,
# or None ----


def ours(url: str, args: argparse.Namespace) -> tuple[Iterator[Any], Any]:
    import dali_zarr
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    gpu = args.device == "gpu"
    pipe = Pipeline(batch_size=args.batch_size, num_threads=1, device_id=0 if gpu else None, prefetch_queue_depth=1)
    with pipe:
        limits = {"io_concurrency": args.concurrency, "host_memory_limit": args.host_memory_limit}
        pipe.set_outputs(fn.zarr_reader(path=url, arrays=["field"], device=args.device, **limits))
    pipe.build()

    def batches() -> Iterator[Any]:
        while True:
            yield pipe.run()[0]

    return batches(), lambda: dali_zarr.counters(pipe).popitem()[1]


def by_index(args: argparse.Namespace, read, ahead: int) -> Iterator[Any]:
    """Yields batches of a reader of slices, which is asked for ``ahead`` slices in advance. They are copied to the GPU
    if batches go there."""
    if args.device == "gpu":
        from support.cuda import PinnedCopy
    waiting: list[Any] = []
    target = None
    for start in itertools.cycle(range(0, args.epoch, args.batch_size)):
        waiting.append(read(slice(start, start + args.batch_size)))
        if len(waiting) < ahead:
            continue
        batch = waiting.pop(0)
        batch = batch.result() if hasattr(batch, "result") else batch
        if args.device == "gpu":
            target = target or PinnedCopy(batch)
            batch = target.copy(batch)
        yield batch


def zarr_obstore(url: str, args: argparse.Namespace) -> tuple[Iterator[Any], Any]:
    import zarr
    from obstore.store import HTTPStore
    from zarr.storage import ObjectStore

    zarr.config.set({"async.concurrency": args.concurrency})
    store = ObjectStore(HTTPStore.from_url(url, client_options={"allow_http": True}), read_only=True)
    array = zarr.open_array(store, path="field", mode="r")
    # Threads for the batches after this one, as a loader would have them.
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(4)
    return by_index(args, lambda s: pool.submit(array.__getitem__, s), 4), None


def zarrs_obstore(url: str, args: argparse.Namespace) -> tuple[Iterator[Any], Any]:
    import zarr
    import zarrs  # noqa: F401

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True})
    return zarr_obstore(url, args)


def tensorstore(url: str, args: argparse.Namespace) -> tuple[Iterator[Any], Any]:
    import tensorstore as ts

    context = ts.Context({"http_request_concurrency": {"limit": args.concurrency}})
    array = ts.open({"driver": "zarr3", "kvstore": f"{url}/field/"}, context=context, open=True).result()
    return by_index(args, lambda s: array[s].read(), max(4, args.concurrency // args.batch_size)), None


READERS = {
    "dali_zarr": ours, "zarr-python + obstore": zarr_obstore, "zarrs-python + obstore": zarrs_obstore,
    "tensorstore": tensorstore,
}


def one(name: str, reader: str, url: str, args: argparse.Namespace) -> dict[str, Any]:
    """Times a reader, then checks what comes next."""
    (store,) = prepare(args.data, [name], args.fields, args.epoch, 2)
    if args.device == "gpu":
        from support import cuda
    import nvidia.dali  # noqa: F401  (importing counts for nobody)
    import zarr  # noqa: F401

    before, begin = memory("VmRSS"), time.perf_counter()
    stream, counters = READERS[reader](url, args)
    opened = counters()["requests"] if counters else 0
    next(stream)
    first = time.perf_counter() - begin
    number, counted = 1, None
    while (now := time.perf_counter() - begin) < first + 1 + args.seconds:
        if counted is None and now > first + 1:
            counted = (now, number)
        next(stream)
        number += 1
    if args.device == "gpu":
        cuda.synchronize()
    if counted is None:
        raise ValueError("a batch took longer than a second")
    seconds, batches = time.perf_counter() - begin - counted[0], number - counted[1]
    result = {"rate": batches * args.batch_size / seconds, "first": first, "memory": memory("VmHWM") - before}
    if counters:
        c = counters()
        # Requests under way aren't counted: they belong to chunks that aren't counted either.
        ended = opened + c["reads"] + c["index_reads"] + c["requests_retried"] + c["requests_hedged"]
        result |= {"requests": ended / c["chunks_read"], "chunks": c["chunks_read"]}
    for later in range(number, number + 4):
        batch = next(stream)
        values = batch.numpy() if hasattr(batch, "numpy") else to_numpy(batch) if reader == "dali_zarr" else np.asarray(batch)
        seen = tuple(checksum(field) for field in values)
        at = later * args.batch_size % args.epoch
        if seen != store.checksums[at : at + args.batch_size]:
            raise ValueError(f"wrong values in batch {later}")
    return result


# ---- caches ----


def cached(name: str, url: str, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the median seconds and processor seconds of epochs once caches are full, by where chunks come from."""
    import dali_zarr
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    (store,) = prepare(args.data, [name], args.fields, args.epoch, 2)
    room = 2 * args.epoch * store.step_bytes
    limit = max(args.epoch * store.step_bytes // 4, 5 * args.batch_size * store.step_bytes)
    ways = {
        "local": {"path": str(store.path)},
        "cache_size": {"path": url, "cache_size": room},
        "cache_dir": {"path": url, "cache_dir": str(args.data / f"cache-{os.getpid()}"), "cache_dir_size": room},
    }
    readers = {}
    try:
        for way, how in ways.items():
            pipe = Pipeline(args.batch_size, num_threads=1, device_id=0 if args.device == "gpu" else None, prefetch_queue_depth=1)
            with pipe:
                # Small limits: chunks aren't kept decoded, and little is prepared for the next epoch when one ends.
                limits = {"host_memory_limit": limit, "prefetch_queue_depth": 2, "io_concurrency": args.concurrency}
                pipe.set_outputs(fn.zarr_reader(arrays=["field"], device=args.device, **how, **limits))
            pipe.build()
            readers[way] = pipe
        numbers = dict.fromkeys(ways, 0)
        spent: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}

        def epoch(way: str, check: bool) -> None:
            begin, cpu = time.perf_counter(), time.process_time()
            for _ in range(args.epoch // args.batch_size):
                (batch,) = readers[way].run()
                at = numbers[way] * args.batch_size % args.epoch
                numbers[way] += 1
                if check and tuple(map(checksum, to_numpy(batch))) != store.checksums[at : at + args.batch_size]:
                    raise ValueError(f"{way}: wrong values in step {at}")
            if not check:
                spent[way].append((time.perf_counter() - begin, time.process_time() - cpu))

        def counted(way: str, what: str) -> int:
            return dali_zarr.counters(readers[way]).popitem()[1][what]

        for way in ways:
            # A chunk that the disk was too slow to keep in the first epoch is kept in a later one.
            for _ in range(10):
                before = counted(way, "requests")
                epoch(way, check=True)
                time.sleep(1)
                if counted(way, "requests") == before:
                    break
            else:
                raise ValueError(f"{way}: requests were sent in every epoch")
        before = {way: (counted(way, "requests"), counted(way, "chunks_read")) for way in ways}
        for _ in range(args.repeats):
            for way in ways:
                epoch(way, check=False)
        files = sum(f.is_file() for f in (store.path / "field" / "c").rglob("*"))
        for way, (requests, chunks) in before.items():
            if counted(way, "requests") != requests:
                raise ValueError(f"{way}: not everything came from the cache")
            if counted(way, "chunks_read") - chunks < 0.9 * args.repeats * files:
                raise ValueError(f"{way}: chunks stayed decoded; more fields would show what caches do")
    finally:
        readers.clear()
        shutil.rmtree(args.data / f"cache-{os.getpid()}", ignore_errors=True)
    return {way: [statistics.median(numbers) for numbers in zip(*times, strict=True)] for way, times in spent.items()}


def caches(program: Path, store: Store, args: argparse.Namespace) -> bool:
    """Measures cached epochs of one store beside local ones. Returns whether it failed."""
    with serving(program, store.path.parent, 0) as url:
        found = in_process(["--one-cached", store.name, f"{url}/{store.path.name}"], args)
    if "failed" in found:
        print(f"  {store.name}: failed: {found['failed']}")
        return True
    text = f"  {store.name:16} {args.epoch * store.step_bytes / 1e6:.0f} MB decoded"
    local = found["local"]
    for way, (seconds, cpu) in found.items():
        ratio = "" if way == "local" else f" ({seconds / local[0]:.2f} of local; processors {cpu / local[1]:.2f})"
        text += f"  {way} {seconds:.3f} s{ratio}"
    print(text, flush=True)
    return False


# ---- all of them ----


def measure(name: str, reader: str, url: str, args: argparse.Namespace) -> dict[str, Any]:
    return in_process(["--one", name, reader, url], args)


def in_process(what: list[str], args: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, str(HERE), *what]
    for option in ("device", "fields", "epoch", "batch_size", "concurrency", "host_memory_limit", "seconds", "repeats", "data"):
        command += [f"--{option.replace('_', '-')}", str(getattr(args, option))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=args.timeout)
    except subprocess.TimeoutExpired:
        return {"failed": f"took longer than {args.timeout} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(lines[-1][7:]) if lines else {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--fields", type=int, default=64, help="different fields")
    parser.add_argument("--epoch", type=int, default=768, help="fields in all")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--latency", type=int, nargs="+", default=[20, 100], help="milliseconds")
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--host-memory-limit", type=int, default=1 << 30)
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--stores", nargs="+", default=DEFAULT, choices=list(STORES))
    parser.add_argument("--readers", nargs="+", default=list(READERS), choices=list(READERS))
    parser.add_argument("--data", type=Path, default=Path("bench-data"))
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--program", type=Path, help="remote_bench, if it is built already")
    parser.add_argument("--caches", action="store_true", help="measure cached epochs beside local ones instead")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--one-cached", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.one:
        print("RESULT " + json.dumps(one(*args.one, args)))
        return 0
    if args.one_cached:
        print("RESULT " + json.dumps(cached(*args.one_cached, args)))
        return 0
    program = args.program
    if program is None:
        cargo = ["cargo", "build", "--release", "--package", "dali-zarr-engine", "--example", "remote_bench"]
        subprocess.run(cargo, cwd=HERE.parents[2], check=True)
        program = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[2] / "target")) / "release/examples/remote_bench"
    if args.caches:
        # Files with several names would be one on the disk and many in caches.
        args.epoch = args.fields
    stores = prepare(args.data, args.stores, args.fields, args.epoch, 2)
    machine = f"{len(os.sched_getaffinity(0))} cores, device {args.device}, batches of {args.batch_size}"
    failed = False
    if args.caches:
        print(f"{machine}, epochs of {args.epoch} fields from full caches, medians of {args.repeats}")
        for store in stores:
            failed |= caches(program, store, args)
        return int(failed)
    print(f"{machine}, {args.concurrency} requests at a time, medians of {args.repeats} times {args.seconds} s")
    for latency in args.latency:
        for store in stores:
            failed |= run(program, store, latency, args)
    return int(failed)


@contextmanager
def serving(program: Path, root: Path, latency: int) -> Iterator[str]:
    """Starts a server that waits ``latency`` milliseconds before each answer; gives its URL."""
    server = subprocess.Popen([program, "serve", root, str(latency)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().strip()
    finally:
        server.stdin.close()
        server.wait()


def run(program: Path, store: Store, latency: int, args: argparse.Namespace) -> bool:
    """Measures one store at one latency. Returns whether the reader failed."""
    chunks = store.path / "field" / "c"
    objects = [f.relative_to(store.path.parent) for t in range(args.epoch) for f in (chunks / str(t)).rglob("*") if f.is_file()]
    sizes = [(store.path.parent / f).stat().st_size for f in objects]
    with serving(program, store.path.parent, latency) as url:
        rates = []
        # The first download isn't counted: after it the server has the files in memory.
        for number in range(args.repeats + 1):
            done = subprocess.run(
                [program, "download", url, str(args.concurrency), str(args.seconds if number else 1)],
                input="\n".join(map(str, objects)), capture_output=True, text=True, check=True,
            )
            found = json.loads(done.stdout)
            rates.append(found["bytes"] / found["seconds"])
        plain = statistics.median(rates[1:])
        print(f"{store.name}, {latency} ms: plain downloader {plain / 1e9:.2f} GB/s of stored bytes", flush=True)
        results_of: dict[str, list[dict[str, Any]]] = {}
        for _ in range(args.repeats):
            for reader in args.readers:
                results_of.setdefault(reader, []).append(measure(store.name, reader, f"{url}/{store.path.name}", args))
    for reader, results in results_of.items():
        errors = [r["failed"] for r in results if "failed" in r]
        if errors:
            print(f"  {reader:24} failed: {errors[0]}")
            continue
        middle = {k: statistics.median(r[k] for r in results) for k in results[0]}
        stored = middle["rate"] * sum(sizes) / args.epoch
        text = f"  {reader:24} {stored / plain:5.0%}  {middle['rate'] * store.step_bytes / 1e9:5.2f} GB/s decoded"
        text += f"  first batch {middle['first']:.2f} s  memory {middle['memory'] / 1e6:.0f} MB"
        if "requests" in middle:
            text += f"  requests per chunk {middle['requests']:.3f}"
        print(text, flush=True)
    return any("failed" in r for r in results_of.get("dali_zarr", []))


if __name__ == "__main__":
    sys.exit(main())
