"""Measures fn.zarr_reader beside what people use today, end to end to tensors, on the same stores in the same run.

    python tests/bench/bench.py                      # GPU where there is one; 256 fields, 1.06 GB a store
    python tests/bench/bench.py --device cpu --fields 32

Every reader runs in a process of its own, in turn: it is checked against the checksum of
every field, warms up, and is timed. The page cache is warm. GB/s count decoded bytes; the median of the repeats is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

if "dali_zarr" in sys.argv:
    import dali_zarr  # noqa: F401  (as its documentation asks: before anything initialises CUDA)

HERE = Path(__file__).resolve().parent
# Arguments of fn.zarr_reader that can be varied.
TUNED = ("device_memory_limit", "prefetch_queue_depth")
sys.path[:0] = [str(HERE), str(HERE.parent)]

from readers import ARGUMENTS, OF_GPU, READERS, to_host  # noqa: E402
from stores import DEFAULT, STORES, Store, checksum, prepare  # noqa: E402
from support import cuda  # noqa: E402
from support.pipelines import why_no_gpu  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu" if why_no_gpu() else "gpu", help="where tensors end up")
    parser.add_argument(
        "--stores", nargs="+", choices=list(STORES), default=DEFAULT, metavar="NAME", help=f"of {', '.join(STORES)}"
    )
    parser.add_argument(
        "--readers", nargs="+", choices=list(READERS), metavar="NAME", help=f"of {', '.join(READERS)}; default: all for the device"
    )
    parser.add_argument("--fields", type=int, default=256, help="fields of 721 x 1440 in each store")
    parser.add_argument("--epoch", type=int, help="steps of each store, by repeating its fields (2048 on a GPU, else 512)")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each reader")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each repeat takes, roughly")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads or workers that each reader may use"
    )
    parser.add_argument("--device-memory-limit", type=int, default=8 << 30, help="of fn.zarr_reader, in bytes; 0: its default")
    parser.add_argument("--prefetch-queue-depth", type=int, default=0, help="of fn.zarr_reader; 0: its default")
    parser.add_argument("--data", type=Path, default=Path("bench-data"), help="folder for the stores")
    parser.add_argument("--timeout", type=int, default=600, help="seconds that one reader may take on one store")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write everything that was measured")
    parser.add_argument("--commit", help="which sources these are, for --json; by default git tells")
    parser.add_argument("--one", nargs=2, metavar=("STORE", "READER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.readers = args.readers or [name for name in READERS if args.device == "gpu" or name not in OF_GPU]
    args.epoch = args.epoch or (2048 if args.device == "gpu" else 512)
    if args.epoch < args.fields or args.epoch % args.batch_size:
        parser.error("--epoch must be a multiple of --batch-size and at least --fields")
    if args.device == "gpu" and (reason := why_no_gpu()):
        parser.error(reason)
    return args


def measure(store: Store, reader: str, args: argparse.Namespace) -> dict[str, Any]:
    """Checks the first fields, then times others. Returns GB/s of each repeat, or why there are none."""
    batch_size = STORES[store.name].get("batch_size", args.batch_size)
    ARGUMENTS.update({name: getattr(args, name) for name in TUNED if getattr(args, name)})
    checked = max(1, min(store.fields, max(args.fields, 128), (2 << 30) // store.step_bytes) // batch_size)
    try:
        stream = READERS[reader](store, args.device, batch_size, args.threads)
        seen = []
        for _ in range(checked):
            seen += [checksum(field) for field in to_host(next(stream))]
    except ImportError as e:
        return {"skipped": f"not installed ({e.name or e})"}
    except Exception as e:  # noqa: BLE001  (whatever a peer raises is its result)
        return {"failed": f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"[:200]}
    expected = store.checksums[: len(seen)]
    if tuple(seen) != expected:
        wrong = sum(a != b for a, b in zip(seen, expected, strict=True))
        return {"failed": f"wrong values in {wrong} of {len(seen)} fields"}

    def timed(batches: int) -> float:
        begin = time.perf_counter()
        for _ in range(batches):
            next(stream)
        if args.device == "gpu":
            cuda.synchronize()
        return time.perf_counter() - begin

    # The queues were filled while batches were checked. The warm-up empties them, so that batches are timed as fast as
    # they are made. Then each repeat takes about a second and many batches, so that a queue's content is a small part.
    warm = 64 if store.fields // batch_size > 64 else 8
    rate = 8 / timed(8) if reader != "dali_zarr" else warm / timed(warm)
    batches = max(8 if reader != "dali_zarr" else 2 * warm, round(rate * args.seconds))
    seconds = [timed(batches) for _ in range(args.repeats)]
    decoded = batches * batch_size * store.step_bytes
    result = {"gbps": [decoded / s / 1e9 for s in seconds], "timed_fields": batches * batch_size}
    if reader == "dali_zarr":
        import dali_zarr

        (counters,) = dali_zarr.counters()
        result["stats"] = {name: value for name, value in counters.items() if isinstance(value, int | float)}
    return result


def in_process(store: Store, reader: str, args: argparse.Namespace) -> dict[str, Any]:
    """Runs :func:`measure` in a fresh process; one reader's crash, leak or hang doesn't touch the next."""
    command = [sys.executable, str(HERE / "bench.py"), "--one", store.name, reader]
    for name in ("device", "fields", "epoch", "batch_size", "repeats", "seconds", "threads", "data", *TUNED):
        command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"took longer than {args.timeout} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        tail = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"failed": f"exit status {done.returncode}: {tail}"[:200]}
    return json.loads(lines[-1].removeprefix("RESULT "))


def commit() -> str:
    """Returns the version of the sources; empty where they are no git repository."""
    try:
        command = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def version() -> dict[str, str]:
    """Returns the versions of the package that was measured, and of DALI."""
    found: dict[str, str] = {}
    for name, package in (("version", "dali_zarr"), ("dali_version", "nvidia.dali")):
        command = [sys.executable, "-c", f"import {package}; print({package}.__version__)"]
        found[name] = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return found


def machine(device: str) -> str:
    """Describes the machine in a few words."""
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as f:
            cpu = next(line.split(":")[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    text = f"{len(os.sched_getaffinity(0))} cores of {cpu}"
    if device == "gpu":
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"]
        try:
            text += ", " + subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            text += ", a GPU"
    return text


def report(results: dict[str, dict[str, dict[str, Any]]], stores: list[Store]) -> None:
    """Prints the table of GB/s, the ratios, and where the reader's time goes."""
    names = list(next(iter(results.values())))
    width = max(map(len, names)) + 2
    print(f"\n{'GB/s, decoded, median':22}" + "".join(f"{n:>{max(width, 10)}}" for n in names) + f"  {'ratio to best peer':>26}")
    for store in stores:
        row = results[store.name]
        medians = {n: statistics.median(r["gbps"]) for n, r in row.items() if "gbps" in r}
        cells = "".join(
            f"{medians[n]:>{max(width, 10)}.2f}"
            if n in medians
            else f"{'skipped' if 'skipped' in row[n] else 'error':>{max(width, 10)}}"
            for n in names
        )
        peers = {n: v for n, v in medians.items() if n != "dali_zarr"}
        ratio = ""
        if "dali_zarr" in medians and peers:
            best = max(peers, key=peers.get)
            ratio = f"{medians['dali_zarr'] / peers[best]:.2f} x {best}"
        print(f"{store.name:22}{cells}  {ratio:>26}")
    for store in stores:
        for name, result in results[store.name].items():
            for kind in ("skipped", "failed"):
                if kind in result:
                    print(f"{store.name}, {name}: {kind}: {result[kind]}")
    print("\nWhere the time of dali_zarr goes (seconds, summed over its threads, all epochs):")
    for store in stores:
        stats = results[store.name].get("dali_zarr", {}).get("stats")
        if stats:
            times = "  ".join(f"{k.removesuffix('_seconds')} {v:.2f}" for k, v in stats.items() if k.endswith("_seconds"))
            counts = "  ".join(f"{k} {v}" for k, v in stats.items() if not k.endswith("_seconds"))
            print(f"  {store.name:18} {times}\n  {'':18} {counts}")
        else:
            print(f"  {store.name:18} no counters were written")


def main() -> int:
    args = arguments()
    if args.one:
        (store,) = prepare(args.data, [args.one[0]], args.fields, args.epoch, args.threads)
        print("RESULT " + json.dumps(measure(store, args.one[1], args)), flush=True)
        return 0
    stores = prepare(args.data, args.stores, args.fields, args.epoch, args.threads)
    where = machine(args.device)
    print(
        f"{where}; device {args.device}, {args.epoch} steps ({args.fields} different fields), batches of {args.batch_size}, "
        f"{args.threads} threads, {args.repeats} repeats"
    )
    sizes = {s.name: {"decoded_bytes": s.fields * s.step_bytes, "encoded_bytes": s.encoded_bytes} for s in stores}
    how = {k: getattr(args, k) for k in ("device", "fields", "batch_size", "repeats", "threads")}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    what = {"date": date, "commit": args.commit or commit(), "machine": where} | version()
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for store in stores:
        results[store.name] = {}
        for reader in args.readers:
            result = in_process(store, reader, args)
            results[store.name][reader] = result
            text = (
                f"{statistics.median(result['gbps']):.2f} GB/s"
                if "gbps" in result
                else next(f"{k}: {v}" for k, v in result.items())
            )
            print(f"  {store.name}, {reader}: {text}", flush=True)
        if args.json:
            # What was measured stays where the rest is cut off.
            args.json.write_text(json.dumps(what | how | {"stores": sizes, "results": results}, indent=1))
    report(results, stores)
    if args.json:
        print(f"wrote {args.json}")
    # Only the reader's own failures count; peers may lack a codec.
    return int(any("failed" in row.get("dali_zarr", {}) for row in results.values()))


if __name__ == "__main__":
    sys.exit(main())
