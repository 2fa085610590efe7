"""What all experiments share: their sizes, the machine, the loop over ways and stores, and where results go."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_RESULT = "RESULT "


@dataclass(frozen=True)
class Size:
    """Of the store and of the measurements. A sample is two hours of all channels."""

    hours: int
    channels: int
    latitudes: int
    longitudes: int
    batch: int
    seconds: float
    width: int

    @property
    def sample_bytes(self) -> int:
        return 2 * self.channels * self.latitudes * self.longitudes * 4

    @property
    def bytes(self) -> int:
        return self.hours // 2 * self.sample_bytes


# 18.2 GB, as much as the study read at once; what a laptop does in minutes; and what shows in seconds that everything runs. The
# smaller stores fit into memory, where this reader keeps decoded chunks, so that their numbers mean nothing.
SIZES = {
    "whole": Size(278, 20, 640, 1280, 2, 3.0, 64),
    "small": Size(60, 4, 160, 320, 2, 1.0, 8),
    "tiny": Size(40, 2, 32, 64, 2, 0.1, 4),
}


def has_gpu() -> bool:
    """Whether there is one that PyTorch sees."""
    import torch

    return torch.cuda.is_available()


def gpu_wait() -> Callable[[], None]:
    """Waits for the GPU, where there is one."""
    import torch

    return torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


def arguments(description: str | None, more: Callable[[argparse.ArgumentParser], None] | None = None) -> argparse.Namespace:
    """Those of every experiment, and ``one`` for the processes that it starts. ``size`` becomes a :class:`Size`."""
    parser = argparse.ArgumentParser(
        description=(description or "").splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("bench-data/study"), help="folder for the stores")
    parser.add_argument("--out", type=Path, default=Path("bench-data/study/results"), help="folder for JSON and pictures")
    parser.add_argument("--size", choices=list(SIZES), default="whole", help="of the store: whole is 18.2 GB, for a GPU")
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--budget", type=float, default=1800, help="seconds for an experiment; what is left then isn't measured")
    parser.add_argument("--ways", nargs="+", help="only these of the ways that are compared; default: all")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    if more:
        more(parser)
    found = parser.parse_args()
    found.size_name, found.size = found.size, SIZES[found.size]
    if found.seconds is not None:
        found.size = replace(found.size, seconds=found.seconds)
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    import dali_zarr
    import torch

    packages = ("zarr", "numcodecs", "xarray", "torch", "nvidia-dali-cuda130", "kvikio-cu13", "nvidia-libnvcomp-cu13")
    versions = {"dali-zarr": dali_zarr.__version__} | {name: found for name in packages if (found := _version(name))}
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    names = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cores": len(os.sched_getaffinity(0)), "cpu": names[0] if names else "", "gpus": gpus, "load": os.getloadavg()[0],
        "python": sys.version.split()[0], "versions": versions,
    }


def save(args: argparse.Namespace, name: str, rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """Writes ``name.json``."""
    args.out.mkdir(parents=True, exist_ok=True)
    found = {"experiment": name, "size_name": args.size_name, "size": asdict(args.size), "machine": machine(), **more, "rows": rows}
    (args.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def run(words: Sequence[str], seconds: float) -> tuple[list[dict[str, Any]], str]:
    """The results that a process tells, and why there are no more: its last error. It and all that it started end within
    these seconds."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([sys.executable, *words], stdout=out, stderr=errors, start_new_session=True)
        late = ""
        try:
            process.wait(max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            late = "not measured: the experiment's time is used up"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        errors.seek(0)
        found = [json.loads(line.removeprefix(_RESULT)) for line in out if line.startswith(_RESULT)]
        lines = [line.strip() for line in errors if line.strip()]
        lines = [line for line in lines if "Error: " in line] or lines
    return found, late or (lines[-1][:300] if lines else "no result")


def tell(found: Mapping[str, Any]) -> None:
    """Hands a result to the process that waits for it in :func:`run`."""
    print(_RESULT + json.dumps(found), flush=True)


def attempt(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What can't be measured here, for want of a package or a GPU, has ``error`` as its result."""
    try:
        return measure()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]}


def compare(
    args: argparse.Namespace, script: str, ways: Mapping[str, Sequence[str]], measure: Callable[[str, str], dict[str, Any]],
    **more: Any,
) -> None:
    """Measures each way on each of its stores. A way has a process of its own, so that none has what another left. Results are
    written after each way, with CUDA graphs to a file of their own."""
    if args.one:
        way, *stores = args.one
        for store in stores:
            tell(attempt(lambda store=store: measure(way, store)))
        # Workers of data loaders may not end by themselves.
        os._exit(0)
    name, rows, began = Path(script).stem, [], time.monotonic()
    cuda_graph = ["--cuda-graph"] if getattr(args, "cuda_graph", False) else []
    name += "".join(cuda_graph).removeprefix("-")
    same = ["--data", str(args.data), "--size", args.size_name, "--seconds", str(args.size.seconds)]
    same += ["--disk", str(args.disk)] if getattr(args, "disk", None) else []
    same += cuda_graph
    for way in args.ways or ways:
        stores = ways[way]
        left = args.budget - (time.monotonic() - began)
        found, why = run([script, *same, "--one", way, *stores], left)
        found += [{"error": why}] * (len(stores) - len(found))
        rows += [{"store": store, "way": way, **one} for store, one in zip(stores, found, strict=True)]
        for row in rows[-len(stores) :]:
            print(f"{time.monotonic() - began:6.1f} s", {key: row[key] for key in row if key != "timeline"}, flush=True)
        # In the order in which they are compared, whatever is measured first.
        save(args, name, sorted(rows, key=lambda row: list(ways).index(row["way"])), **more)


def rate(
    batches: Iterator[Any], seconds: float, wait: Callable[[], None] = lambda: None, warm: int = 2, most: int | None = None
) -> dict[str, float]:
    """How many batches come in a second, over so many seconds after the first few; or over ``most`` batches, whatever they take."""
    for _ in range(warm):
        next(batches)
    wait()
    began, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
        if count == most or (most is None and time.perf_counter() - began > seconds):
            break
    wait()
    took = time.perf_counter() - began
    return {"batches": count, "seconds": took, "batches_per_second": count / took}
