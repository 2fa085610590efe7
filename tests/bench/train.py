"""Measures what reading with fn.zarr_reader costs the training of U-Nets.

    python tests/bench/train.py --output bench-train        # every store, model and decoder; on a GPU
    python tests/bench/train.py --small                     # tiny, on the CPU, under a minute
    torchrun --nproc-per-node 2 tests/bench/train.py ...    # one process for each GPU, each with its shard
    python tests/bench/train.py --draw bench-train/results.json

Rows are written to results.json in --output as they are measured. docs/project/training.md says what the numbers mean.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

BEGIN = time.monotonic()
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

# By name: whether samples are pairs of times, the GB/s that the model should ask for, and the patch and the width at
# which the search for the model starts. Patches of 4 x 4 give a model that is bound by matrix products, full resolution
# one that is bound by memory.
DEMANDS: dict[str, tuple[bool, float, int, int]] = {
    "single": (False, 8.9, 2, 64),
    "pairs10": (True, 10.7, 4, 256),
    "pairs26": (True, 26.0, 1, 16),
}
STORES = ("none", "zstd", "blosc-lz4")
ORDERS = ("in-order", "shuffled", "short-epochs")
# The defaults of --small.
SMALL = {
    "grid": (32, 64), "samples": 12, "stores": "none,zstd", "devices": "auto,cpu", "seconds_per_bar": 0.3, "queues": 2,
    "demand_scale": 0.001, "time_limit": 50.0,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--stores", default=",".join(STORES), help=f"of {', '.join(STORES)}")
    add("--demands", default=",".join(DEMANDS), help="models: " + "; ".join(
        f"{name} asks for {gbps} GB/s of {'pairs (t, t+1)' if pairs else 'single times'}"
        for name, (pairs, gbps, _, _) in DEMANDS.items()))
    add("--devices", default="auto,gpu,cpu", help="values of decode_device; stores without compression take the first only")
    add("--memory-limits", default="default", help="bytes, or default; of the GPU, with --device cpu of the host")
    add("--order", choices=ORDERS, default=ORDERS[0], help="pairs in order are decoded once and delivered twice, shuffled about "
        "twice; in short epochs of --samples it depends on memory")
    add("--seconds-per-bar", type=float, default=2.0, help="length of a bar of real data; others take half")
    add("--turns", type=int, default=1, help="bars of copies and of real data, each between two of synthetic data")
    add("--queues", type=int, default=8, help="least length of a real bar in reader's queues, in twice the time at most")
    add("--decode-threads", type=int, help="of the reader; by default half of the cores decode in the GPU's place")
    add("--time-limit", type=float, default=3600.0, help="seconds for everything; no row begins that might not end in time")
    add("--output", type=Path, default=Path("bench-train"), help="folder for results.json and pictures")
    add("--data", type=Path, default=Path("bench-data/train"), help="folder for the stores, better in memory (/dev/shm)")
    add("--samples", type=int, default=32, help="times in a store")
    add("--channels", type=int, default=16)
    add("--grid", type=int, nargs=2, default=(720, 1440), metavar=("LAT", "LON"), help="multiples of 16")
    add("--batch-size", type=int, default=1)
    add("--demand-scale", type=float, default=1.0, help="factor for what the models ask for")
    add("--models", type=Path, help="results.json of an earlier run, whose models are taken instead of a search where it has them")
    add("--loading-only", action="store_true", help="no training: the reader alone, as for a curve over many memory limits")
    add("--cuda-graphs", action="store_true", help="a training step is one CUDA graph")
    add("--high-priority-stream", action="store_true", help="train on a CUDA stream of the highest priority")
    add("--run-ahead", type=int, metavar="STEPS", help="bound on how far the host is ahead of the GPU; 0: none. If it isn't given, "
        "4 with --cuda-graphs, else 0")
    add("--pin-cores", type=int, default=0, metavar="N", help="use the first N cores only; 0: all")
    add("--profile", type=int, default=0, metavar="STEPS", nargs="?", const=20, help="also profile some steps of each row")
    add("--check", type=int, default=4, metavar="BATCHES", help="batches of each row compared with zarr-python, untimed")
    add("--device", choices=["cpu", "gpu"], help="where to train; default: the GPU where there is one")
    add("--small", action="store_true", help="tiny fields on the CPU, in under a minute")
    add("--draw", type=Path, metavar="RESULTS", help="only draw the pictures of earlier results")
    args = parser.parse_args()
    if args.small:
        args.device = args.device or "cpu"
        for name, value in SMALL.items():
            if getattr(args, name) == parser.get_default(name):
                setattr(args, name, value)
    for name, known in (("stores", STORES), ("demands", DEMANDS), ("devices", ("auto", "gpu", "cpu"))):
        given = getattr(args, name).split(",")
        if unknown := [item for item in given if item not in known]:
            parser.error(f"--{name}: expected some of {', '.join(known)}, but found {', '.join(unknown)}")
        setattr(args, name, given)
    try:
        args.memory_limits = [None if t == "default" else int(float(t)) for t in args.memory_limits.split(",")]
    except ValueError as error:
        parser.error(f"--memory-limits: expected numbers of bytes or default, but found {error}")
    if any(n % 16 or n < 16 for n in args.grid):
        parser.error("--grid: expected multiples of 16")
    if args.turns < 1 or args.seconds_per_bar <= 0:
        parser.error("--turns and --seconds-per-bar: expected positive numbers")
    args.grid = tuple(args.grid)
    if args.run_ahead is None:
        # A graph is replayed so fast that the reader would be measured while it decodes for hundreds of steps ahead.
        args.run_ahead = 4 if args.cuda_graphs else 0
    return args


def reason(error: Exception) -> str:
    """Returns the line of an error that says why. DALI puts other lines around the reader's own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in lines if "zarr_reader:" in line), lines[0])[:300]


def write_stores(args: argparse.Namespace) -> None:
    """Writes missing stores in a process of its own: this process must not fork workers once CUDA is initialised."""
    from train_stores import missing

    if not missing(args.data, args.stores, args.samples, args.channels, args.grid):
        return
    command = [sys.executable, str(HERE / "train_stores.py"), "--folder", str(args.data), "--stores", ",".join(args.stores)]
    command += ["--samples", str(args.samples), "--channels", str(args.channels), "--grid", *map(str, args.grid)]
    subprocess.run(command, check=True)


class Runs:
    """All rows of one call. Holds what rows share: the ranks, the models, the clocks, and the file of results."""

    def __init__(self, args: argparse.Namespace):
        import torch
        from bench import machine
        from train_gpu import Clocks
        from train_measure import Plan
        from train_ranks import Ranks

        self.args, self.ranks = args, Ranks()
        cuda = args.device == "gpu" if args.device else torch.cuda.is_available()
        if cuda and not torch.cuda.is_available():
            raise SystemExit("expected a GPU for --device gpu, but PyTorch finds none")
        self.device = torch.device("cuda", self.ranks.local) if cuda else torch.device("cpu")
        if not cuda and (args.cuda_graphs or args.high_priority_stream or args.profile):
            raise SystemExit("--cuda-graphs, --high-priority-stream and --profile need a GPU")
        if cuda:
            torch.cuda.set_device(self.device)
            torch.backends.cudnn.benchmark = True
        self.high = torch.cuda.Stream(priority=torch.cuda.Stream.priority_range()[1]) if args.high_priority_stream else None
        self.ranks.start(cuda)
        args.output.mkdir(parents=True, exist_ok=True)
        if self.ranks.local == 0:
            write_stores(args)
        self.ranks.barrier()
        self.plan = Plan(
            args.seconds_per_bar, args.turns, args.queues, args.run_ahead, self.ranks.largest, self.ranks.barrier
        )
        self.clocks = Clocks(args.output / f"clocks-{self.ranks.rank}.csv", self.ranks.local, cuda)
        self.longest = self.search = 0.0
        self.results: dict[str, Any] = {
            "machine": machine("gpu" if cuda else "cpu"), "device": self.device.type, "torch": torch.__version__,
            "processes": self.ranks.world, "begun": time.strftime("%Y-%m-%d %H:%M:%S"),
            "arguments": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()},
            "models": {}, "rows": [], "left_out": [], "complete": False,
        }

    def left(self) -> float:
        """Returns the seconds until the time limit, the least of all processes."""
        return -self.ranks.largest(-(self.args.time_limit - (time.monotonic() - BEGIN)))

    def save(self) -> None:
        """Writes the results so far. A program that reads the file never finds half of it."""
        if self.ranks.rank == 0:
            new = self.args.output / "results.json.new"
            new.write_text(json.dumps(self.results, indent=1))
            new.replace(self.args.output / "results.json")

    def stream(self) -> Any:
        """Returns a context with the stream that training runs on."""
        import torch

        return torch.cuda.stream(self.high) if self.high else nullcontext()

    def setting(self, demand: str) -> Any:
        from train_model import Setting
        from train_stores import scales

        args = self.args
        mean, stddev = scales(args.channels)
        return Setting(
            args.batch_size, args.channels, args.grid, mean, stddev, self.device, DEMANDS[demand][0], args.cuda_graphs,
            self.ranks.world > 1,
        )

    def model(self, demand: str, setting: Any) -> tuple[Any, Any, float]:
        """Returns the model of a demand, trained a little, its fixed batches, and the seconds of its step."""
        from train_model import ModelSpec, Trainer, calibrate, step_seconds, synthetic

        _, gbps, patch, width = DEMANDS[demand]
        known = json.loads(self.args.models.read_text())["models"] if self.args.models else {}
        if demand in known:
            found = known[demand]["spec"]
        else:
            if self.ranks.rank == 0:
                print(f"{demand}: looking for a model that asks for {gbps * self.args.demand_scale:g} GB/s", flush=True)
            found = self.ranks.first(lambda: calibrate(
                ModelSpec(patch, width if not self.args.small else 8), setting, gbps * self.args.demand_scale,
                min(0.2, self.args.seconds_per_bar / 4),
            )[0].as_dict())
        trainer, fixed = Trainer(ModelSpec(**found), setting), synthetic(setting)
        trainer.warm_up(fixed())
        step = self.ranks.largest(step_seconds(trainer, fixed, self.args.seconds_per_bar / 4, self.ranks.largest))
        self.results["models"][demand] = {
            "spec": found, "weights": trainer.weights, "step_ms": step * 1e3, "wanted_gbps": gbps * self.args.demand_scale,
            "asked_gbps": setting.step_bytes / step / 1e9, "dtype": str(setting.dtype).removeprefix("torch."),
        }
        return trainer, fixed, step

    def row(self, store: str, demand: str, decode: str, limit: int | None, trained: Any) -> dict[str, Any]:
        """Measures one row. If the reader refuses it, its error is the result."""
        import torch
        from train_copies import Copies
        from train_gpu import profile
        from train_measure import loading, training
        from train_source import Oracle, Read, Source, check_in_flight
        from train_stores import folder_of

        args = self.args
        setting = self.setting(demand)
        path = folder_of(args.data, store, args.samples, args.channels, args.grid)
        row: dict[str, Any] = {"store": store, "demand": demand, "decode_device": decode, "memory_limit": limit}
        read = Read(path, decode, limit, args.order, self.ranks.rank, self.ranks.world, args.decode_threads)
        try:
            source = Source(read, setting)
            source.fetch()
        except (ValueError, MemoryError, RuntimeError) as error:
            row["failed"] = reason(error)
        # All processes leave the row if one of them can't read: the others would wait for it.
        if self.ranks.largest(float("failed" in row)):
            return row | {"failed": row.get("failed", "another process failed")}
        if setting.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        log = self.clocks.position()
        trainer, fixed, step = trained or (None, None, 0.0)
        with self.stream():
            if trainer:
                copies = Copies(setting, [fixed() for _ in range(3)], whole=args.order != "in-order")
                row |= training(source, trainer, fixed, copies.fetch, self.plan, step)
                copies.close()
            row |= loading(source, self.plan)
            if trainer and args.profile:
                row["profile"] = profile(lambda: trainer.step(source.fetch()), args.profile)
            if args.check:
                row["checked"] = check_in_flight(source, trainer, Oracle(path), args.check)
        row["clocks"] = self.clocks.since(log)
        row["memory"] = source.memory()
        if setting.device.type == "cuda":
            row["memory"]["training_gpu_bytes"] = torch.cuda.max_memory_allocated()
        source.close()
        return row

    def measure(self) -> None:
        from train_report import line

        todo = [
            (demand, store, decode, limit)
            for demand in self.args.demands for limit in self.args.memory_limits for store in self.args.stores
            for decode in (self.args.devices[:1] if store == "none" else self.args.devices)
        ]
        known, trained = "", None
        for i, (demand, store, decode, limit) in enumerate(todo):
            new = not self.args.loading_only and demand != known
            if self.left() < 1.3 * self.longest + self.search * new:
                self.results["left_out"] = [list(t) for t in todo[i:]]
                break
            begin = time.monotonic()
            if new:
                trained, known = None, demand
                with self.stream():
                    trained = self.model(demand, self.setting(demand))
                self.search = max(self.search, self.ranks.largest(time.monotonic() - begin))
                begin = time.monotonic()
            rows = self.ranks.gather(self.row(store, demand, decode, limit, trained))
            # The longest row counts: a row that was refused took no time, which says nothing about the next one.
            self.longest = max(self.longest, self.ranks.largest(time.monotonic() - begin))
            if self.ranks.rank == 0:
                from train_report import joined

                self.results["rows"].append(joined(rows) | {"seconds": time.monotonic() - begin})
                print(line(self.results["rows"]), flush=True)
            self.save()
        self.results["complete"] = not self.results["left_out"]
        self.results["seconds"] = time.monotonic() - BEGIN
        self.save()

    def close(self) -> None:
        self.clocks.close()
        self.ranks.close()


def drawn(results: Path) -> None:
    """Draws, or says why not."""
    from train_draw import draw

    try:
        for picture in draw(results):
            print(f"wrote {picture}")
    except ImportError:
        print(f"matplotlib isn't installed: draw elsewhere with --draw {results}")


def main() -> int:
    args = arguments()
    if args.draw:
        drawn(args.draw)
        return 0
    if args.pin_cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.pin_cores])
    # Before PyTorch loads: OpenMP's threads otherwise spin between layers on cores that the reader needs for decoding.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import dali_zarr  # noqa: F401  (as its documentation asks: before anything initialises CUDA)

    runs = Runs(args)
    try:
        runs.measure()
    finally:
        runs.close()
    if runs.ranks.rank:
        return 0
    from train_report import table

    print(table(runs.results))
    drawn(args.output / "results.json")
    wrong = [row for row in runs.results["rows"] if row.get("checked", {}).get("wrong")]
    return 1 if wrong or not runs.results["rows"] else 0


if __name__ == "__main__":
    sys.exit(main())
