"""Measures `dali-zarr rechunk` beside rechunker and plain xarray over Dask: the same data, chunks, codec, cores and memory.

    python tests/bench/rechunk.py                                         # rechunker only where it works with this zarr-python
    python tests/bench/rechunk.py --rechunker-python OTHER/bin/python     # of an environment with rechunker and zarr-python 2

Every run is a process of its own; imports don't count. Runs alternate, so that other work of the machine disturbs all
alike. Ratios are of neighbouring runs, and their median is reported. Stores are Zarr v2, which all tools write. Page
caches are warm. Memory is the most that a run takes beyond what the process holds after its imports.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DIMS = ("time", "latitude", "longitude")
# Chunks of the source and of the target; and the memory that each may use, in bytes.
CASES: dict[str, tuple[tuple[int, int, int], tuple[int, int, int], int]] = {
    "split": ((10, 721, 1440), (1, 721, 1440), 1 << 30),
    "merge": ((1, 721, 1440), (10, 721, 1440), 1 << 30),
    "cross": ((1, 721, 1440), (1 << 30, 72, 72), 2 << 30),
    # Memory for a part of the data. xarray over Dask doesn't keep to the limit.
    "tight": ((1, 721, 1440), (1 << 30, 72, 72), 256 << 20),
}
TOOLS = ("dali_zarr", "xarray", "rechunker")


def write(path: Path, fields: int, chunks: tuple[int, int, int]) -> None:
    """Writes weather-like fields: smooth, quantised to 16 bits as GRIB packing does."""
    import numcodecs
    import numpy as np
    import zarr

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from support.fields import weather_fields

    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    shape = (fields, 721, 1440)
    array = group.create_array(
        "a", shape=shape, chunks=chunks, dtype="f4", compressors=numcodecs.Blosc("lz4", 5, 1), fill_value=None,
        attributes={"_ARRAY_DIMENSIONS": list(DIMS)},
    )
    some = weather_fields(16, 721, 1440, seed=1)
    for start in range(0, fields, 10):
        count = min(10, fields - start)
        array[start : start + count] = np.stack([some[(start + i) % 16] + np.float32(start + i) for i in range(count)])


def dali_zarr(source: str, target: str, chunks: tuple[int, ...], memory: int, workers: int) -> float:
    from dali_zarr._rechunk.options import Options
    from dali_zarr._rechunk.run import rechunk

    began = time.perf_counter()
    extents = {dim: min(n, 1 << 30) for dim, n in zip(DIMS, chunks, strict=True)}
    rechunk(source, target, Options(chunks=extents, memory=memory, workers=workers), show=False)
    return time.perf_counter() - began


def xarray(source: str, target: str, chunks: tuple[int, ...], memory: int, workers: int) -> float:
    import dask
    import numcodecs
    import xarray

    began = time.perf_counter()
    dataset = xarray.open_zarr(source, chunks={}, mask_and_scale=False, consolidated=False)
    extents = {dim: min(n, dataset.sizes[dim]) for dim, n in zip(DIMS, chunks, strict=True)}
    dataset = dataset.chunk(extents).drop_encoding()
    how = {"chunks": tuple(extents.values()), "compressors": numcodecs.Blosc("lz4", 5, 1)}
    with dask.config.set(scheduler="threads", num_workers=workers):
        dataset.to_zarr(target, zarr_format=2, consolidated=True, encoding={"a": how})
    return time.perf_counter() - began


def rechunker(source: str, target: str, chunks: tuple[int, ...], memory: int, workers: int) -> float:
    import dask
    import numcodecs
    import rechunker
    import zarr

    began = time.perf_counter()
    array = zarr.open_group(source, mode="r")["a"]
    extents = tuple(min(n, length) for n, length in zip(chunks, array.shape, strict=True))
    plan = rechunker.rechunk(
        # rechunker takes the memory of each task.
        array, extents, memory // workers, target, temp_store=target + ".temporary",
        target_options={"compressor": numcodecs.Blosc("lz4", 5, 1)},
    )
    with dask.config.set(scheduler="threads", num_workers=workers):
        plan.execute()
    return time.perf_counter() - began


def resident(field: str) -> int:
    """Returns the bytes of this process in memory: now (``VmRSS``), or at most so far (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))


def imported(tool: str) -> None:
    """Imports what a tool needs."""
    names = {
        "dali_zarr": ("dask", "dali_zarr._rechunk.run"), "xarray": ("dask.array", "xarray"),
        "rechunker": ("dask.array", "rechunker.executors.dask"),
    }
    for name in (*names[tool], "numcodecs", "zarr"):
        importlib.import_module(name)


def one(args: argparse.Namespace) -> None:
    """A run in this process: prints seconds, and the most memory that it takes beyond what the process holds after imports."""
    tool, case = args.one
    _, chunks, memory = CASES[case]
    run = {"dali_zarr": dali_zarr, "xarray": xarray, "rechunker": rechunker}[tool]
    imported(tool)
    before = resident("VmRSS")
    # Resets VmHWM: imports may have taken more memory for a moment.
    Path("/proc/self/clear_refs").write_text("5")
    warm = args.data / f"warm-{tool}"
    for path in (warm, Path(f"{warm}.temporary")):
        shutil.rmtree(path, ignore_errors=True)
    run(str(args.data / "small"), str(warm), (1, 721, 1440), 1 << 30, args.workers)
    cpu = time.process_time()
    seconds = run(str(args.data / case), str(args.data / f"target-{tool}"), chunks, memory, args.workers)
    cpu = time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "peak_bytes": resident("VmHWM") - before}))


def same(one: Path, other: Path, name: str) -> bool:
    """Returns whether the target has the bits of the source."""
    import zarr

    source = zarr.open_group(str(one), mode="r", zarr_format=2)["a"]
    found = zarr.open(str(other), mode="r", zarr_format=2)
    target = found if name == "rechunker" else found["a"]
    return all(source[i : i + 32].tobytes() == target[i : i + 32].tobytes() for i in range(0, source.shape[0], 32))


def measured(tool: str, case: str, args: argparse.Namespace) -> dict[str, Any]:
    target = args.data / f"target-{tool}"
    for path in (target, Path(f"{target}.temporary")):
        shutil.rmtree(path, ignore_errors=True)
    python = args.rechunker_python if tool == "rechunker" and args.rechunker_python else sys.executable
    command = [python, __file__, "--one", tool, case, "--data", str(args.data), "--workers", str(args.workers)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if process.returncode:
        raise RuntimeError(process.stderr.strip().splitlines()[-1])
    return json.loads(process.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("bench-data/rechunk"), help="folder for the stores")
    parser.add_argument("--fields", type=int, default=120, help="fields of 721 x 1440 in each store")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rechunker-python", metavar="PYTHON", help="of an environment with rechunker and zarr-python 2")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write everything that was measured")
    parser.add_argument("--one", nargs=2, metavar=("TOOL", "CASE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(args)
        return
    write(args.data / "small", 2, (1, 721, 1440))
    rows: list[dict[str, Any]] = []
    for case in args.cases:
        write(args.data / case, args.fields, CASES[case][0])
        runs: dict[str, dict[int, dict[str, Any]]] = {tool: {} for tool in TOOLS}
        for repeat in range(args.repeats):
            for tool in TOOLS:
                try:
                    runs[tool][repeat] = measured(tool, case, args)
                except RuntimeError as error:
                    print(f"{case} {tool}: {error}", file=sys.stderr)
                    continue
                if not repeat and not same(args.data / case, args.data / f"target-{tool}", tool):
                    raise RuntimeError(f"{case}: the target of {tool} isn't the source")
        size = args.fields * 721 * 1440 * 4
        own = runs["dali_zarr"]
        for tool, by_repeat in runs.items():
            ratios = [by_repeat[repeat]["seconds"] / own[repeat]["seconds"] for repeat in by_repeat.keys() & own.keys()]
            if not ratios:
                continue
            found = list(by_repeat.values())
            row = {
                "case": case, "tool": tool, "seconds": statistics.median(run["seconds"] for run in found),
                "cpu_seconds": statistics.median(run["cpu_seconds"] for run in found),
                "mb_per_second": size / 1e6 / statistics.median(run["seconds"] for run in found),
                "peak_mib": max(run["peak_bytes"] for run in found) / (1 << 20), "limit_mib": CASES[case][2] / (1 << 20),
                "times_as_long": statistics.median(ratios), "runs": found,
            }
            rows.append(row)
            print(
                f"{case:6} {tool:10} {row['seconds']:6.2f} s  {row['cpu_seconds']:6.2f} s of cores  "
                f"{row['mb_per_second']:6.0f} MB/s  {row['peak_mib']:5.0f} of {row['limit_mib']:.0f} MiB  "
                f"{row['times_as_long']:.2f} times as long", flush=True,
            )
        shutil.rmtree(args.data / case)
    if args.json:
        machine = {"machine": platform.processor() or platform.machine(), "cores": args.workers, "fields": args.fields}
        args.json.write_text(json.dumps({**machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
