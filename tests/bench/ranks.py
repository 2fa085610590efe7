"""Checks that the ranks of one host share each epoch, and that a checkpoint suits another number of them; counts their reads.

    torchrun --nproc-per-node 4 tests/bench/ranks.py --save FOLDER --json FILE    # 4 GPUs (NCCL), and a checkpoint in mid-epoch
    torchrun --nproc-per-node 2 tests/bench/ranks.py --resume FOLDER              # 2 GPUs, which also go on from the checkpoint
    torchrun --nproc-per-node 2 tests/bench/ranks.py --device cpu                 # 2 processes of the CPU (gloo)

Ranks are in step: after each batch they tell each other its samples. The exit status is 1, with a sentence for each promise of
docs/guides/loader.md, shards.md and shuffling.md that isn't kept.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import dali_zarr  # before anything initialises CUDA
import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import zarr
from dali_zarr.torch import Batch, Loader
from nvidia import dali

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from bench import commit, machine  # noqa: E402
from ranks_checks import CASES, CHUNKS, RESUMED, STATIC, Case, not_equal, not_once, too_many, write  # noqa: E402
from support.pipelines import at_rest  # noqa: E402

T = TypeVar("T")

# Batches that a rank's reader prepares ahead. Few: when an epoch ends, those of the next one are read already.
QUEUE = 2
# Epochs that are run; reads are counted in the first two. Of so many batches, one is compared with zarr-python.
EPOCHS, COMPARED = 3, 16
COUNTERS = ("chunks_read_again", "evictions")


def flat(lists: Iterable[list[T]]) -> list[T]:
    return [item for items in lists for item in items]


class Run:
    """A rank's part of one call."""

    def __init__(self, args: argparse.Namespace):
        self.args, local = args, int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", local) if args.device == "gpu" else torch.device("cpu")
        if args.device == "gpu":
            torch.cuda.set_device(self.device)
        # A rank with fewer batches than others is an error after this time; without one, they would wait for ever.
        dist.init_process_group("nccl" if args.device == "gpu" else "gloo", timeout=timedelta(seconds=120))
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        # For objects that aren't tensors of the device.
        self.group: Any = dist.new_group(backend="gloo")
        self.wrong = list[str]()
        # Several shuffling windows in an epoch, each of several chunks.
        self.window = max(2 * CHUNKS["t2m"], args.samples // 6)
        self.temporary = None if args.data or self.rank else tempfile.TemporaryDirectory(prefix="dali-zarr-ranks-")
        folder = Path(self.temporary.name) if self.temporary else args.data
        self.path: Path = self.everyone(folder and folder / f"hours-{args.samples}.zarr")[0]
        if self.rank == 0 and not self.path.exists():
            new = self.path.with_suffix(".new")
            write(new, args.samples)
            new.rename(self.path)
        dist.barrier(group=self.group)
        self.fields: dict[str, npt.NDArray[Any]] = {
            name: np.asarray(zarr.open_array(self.path / name, mode="r")[...]) for name in (*CHUNKS, STATIC)
        }

    def everyone(self, item: T) -> list[T]:
        """Returns, in all ranks, what each rank gives."""
        items: list[Any] = [None] * self.ranks
        dist.all_gather_object(items, item, group=self.group)
        return items

    def samples(self, case: Case) -> int:
        return self.args.samples - max(case.offsets)

    def arguments(self, case: Case) -> dict[str, Any]:
        return {
            "path": str(self.path), "arrays": list(case.arrays), "dims": ["time"], "offsets": list(case.offsets),
            "random_shuffle": case.shuffled, "initial_fill": self.window, "batch_size": self.args.batch_size,
            "prefetch_queue_depth": QUEUE,
        }

    def loader(self, case: Case) -> Loader:
        # "cuda" is the process's current device.
        device = "cuda" if self.args.device == "gpu" else "cpu"
        return Loader(**self.arguments(case), device=device, return_index=True, uneven="exact")

    def epoch(self, loader: Loader, case: Case, batches: int | None = None) -> tuple[list[list[int]], list[int]]:
        """Runs an epoch, or its first ``batches``. Returns this rank's samples, by batch, and the samples of all
        ranks."""
        own, all_ranks = list[list[int]](), list[torch.Tensor]()
        for number, batch in enumerate(loader):
            index = batch["index"][:, 0]
            mine = torch.full((self.args.batch_size,), -1, dtype=torch.int64, device=self.device)
            mine[: len(index)] = index
            parts = [torch.empty_like(mine) for _ in range(self.ranks)]
            dist.all_gather(parts, mine)
            all_ranks += parts
            own.append(index.tolist())
            if number % COMPARED == 0:
                self.compare(batch, case, own[-1])
            if number + 1 == batches:
                break
        seen: Any = torch.cat(all_ranks)
        return own, seen[seen >= 0].tolist()

    def compare(self, batch: Batch, case: Case, index: Sequence[int]) -> None:
        """Compares some of a batch's tensors with zarr-python's values."""
        for array in case.arrays:
            for offset in case.offsets:
                name = f"{array}+{offset}" if offset else array
                tensor, field = batch[name], self.fields[array]
                where = f"{case.name}, rank {self.rank}, {name} of the samples {index}"
                if tensor.device != self.device:
                    self.wrong.append(f"{where}: expected a tensor on {self.device}, but it is on {tensor.device}.")
                places = np.array(index, np.int64) + offset
                wanted = np.repeat(field[None], len(index), 0) if array == STATIC else field[places]
                self.wrong += not_equal(tensor.cpu().numpy(), wanted, where)

    def once(self, seen: list[int], case: Case, where: str) -> None:
        # All ranks know the same. One tells it.
        self.wrong += not_once(seen, self.samples(case), f"{case.name}, {where}") if self.rank == 0 else []

    def counted(self, case: Case) -> dict[str, Any]:
        """Checks that each epoch has every sample once. Returns what all ranks read for the first two epochs."""
        loader, own, counters = self.loader(case), list[list[list[int]]](), list[dict[str, Any]]()
        for number in range(EPOCHS):
            batches, seen = self.epoch(loader, case)
            self.once(seen, case, f"epoch {number}")
            own.append(batches)
            counters.append(at_rest(lambda: dali_zarr.counters(loader)))
        explain: Any = dali_zarr.explain
        kept = int(explain(**self.arguments(case), device=self.args.device)["memory"]["batches_planned_ahead"]) + QUEUE
        needs = [len(case.needs(flat(batches))) for batches in own]
        until, unclear = [0], list[int]()
        for number in range(EPOCHS - 1):
            # These batches of the next epoch have been read already. Perhaps chunks that were kept served them without
            # a read.
            prepared = own[number + 1][: counters[number]["batches"] - sum(map(len, own[: number + 1]))]
            ahead = case.needs(flat(prepared))
            held = ahead & case.needs(flat(own[number][-kept:]))
            until.append(counters[number]["chunks_read"] - len(ahead - held))
            unclear.append(len(held))
        # A rank that begins reads what it needs at least once.
        until[1] = max(until[1], needs[0])
        found = {"needs": needs[0], "unclear": unclear[0], "first": until[1], "second": until[2] - until[1]}
        told = self.everyone(found | {name: counters[-1][name] for name in COUNTERS})
        row: dict[str, Any] = {"samples": case.name, "chunks": len(case.needs(range(self.samples(case))))}
        row |= {name: sum(one[name] for one in told) for name in told[0]}
        row["most"] = case.most(row["chunks"], self.ranks, self.window)
        least = row["first"] - row["unclear"]
        self.wrong += too_many(least, row["most"], row["evictions"], case.name) if self.rank == 0 else []
        return row

    def save(self, case: Case) -> None:
        """Stops in the middle of the second epoch. Each rank writes its state and the samples that it had of this epoch."""
        loader = self.loader(case)
        self.epoch(loader, case)
        own, _ = self.epoch(loader, case, len(loader) // 2)
        found = {"ranks": self.ranks, "epoch": loader.epoch, "own": flat(own), "state": loader.state_dict()}
        (self.args.save / f"{case.file}-{self.rank}.json").write_text(json.dumps(found))

    def resume(self, case: Case) -> dict[str, Any]:
        """Goes on from the states of other ranks. Each new rank takes that of another old one. The next epoch follows."""
        first = json.loads((self.args.resume / f"{case.file}-0.json").read_text())
        saved = [json.loads((self.args.resume / f"{case.file}-{rank}.json").read_text()) for rank in range(first["ranks"])]
        loader = self.loader(case)
        loader.load_state_dict(saved[(self.rank + 1) % len(saved)]["state"])
        if loader.epoch != first["epoch"]:
            self.wrong.append(f"{case.name}: expected to go on in epoch {first['epoch']}, but found {loader.epoch}.")
        before: list[int] = flat(one["own"] for one in saved)
        _, after = self.epoch(loader, case)
        self.once(before + after, case, f"epoch {loader.epoch} of {len(saved)} ranks and then {self.ranks}")
        self.once(self.epoch(loader, case)[1], case, f"the epoch after that of {len(saved)} ranks and then {self.ranks}")
        return {"samples": case.name, "ranks": len(saved), "before": len(before), "after": len(after)}

    def close(self) -> None:
        """Waits for the other ranks, which may still read, and cleans up."""
        dist.barrier(group=self.group)
        dist.destroy_process_group()
        if self.temporary:
            self.temporary.cleanup()


def report(run: Run, found: dict[str, Any]) -> None:
    """Prints what was found, with where it was measured, and writes it."""
    words, wrong = ["torchrun", "--nproc-per-node", str(run.ranks), *sys.argv], found["wrong"]
    what: dict[str, Any] = {
        "command": shlex.join(words), "machine": machine(run.args.device), "ranks": run.ranks, "backend": dist.get_backend(),
        "commit": commit(), "dali_zarr": dali_zarr.__version__, "dali": dali.__version__, "torch": torch.__version__,
        "zarr": zarr.__version__, "hours": run.args.samples, "batch_size": run.args.batch_size, "initial_fill": run.window,
    }
    if run.args.device == "gpu":
        nccl: Any = importlib.import_module("torch.cuda.nccl")
        what["nccl"] = ".".join(map(str, nccl.version()))
    print("\n".join(f"{name}: {value}" for name, value in what.items()), end="\n\n")
    heads = ("samples", "chunks", "needed by ranks", "read, first epoch", "at most", "more than once", "read, second epoch")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for row in found["reads"]:
        row = row | {"twice": f"{row['first'] / row['chunks'] - 1:.1%}"}
        print("| {samples} | {chunks} | {needs} | {first} | {most} | {twice} | {second} |".format(**row))
    for row in found["resumed"]:
        print("{samples}: {before} samples by {ranks} ranks, and after the checkpoint".format(**row), row["after"], "by", run.ranks)
    print("\n".join(wrong) or "All is as promised: each sample once an epoch, and zarr-python's values.", flush=True)
    if run.args.json:
        run.args.json.write_text(json.dumps(what | found, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", choices=["gpu", "cpu"], default="gpu" if torch.cuda.is_available() else "cpu")
    add("--samples", type=int, default=401, help="hours in the store (default: 401)")
    add("--batch-size", type=int, default=2, help="of each rank (default: 2)")
    add("--data", type=Path, metavar="FOLDER", help="where the store is kept; default: a temporary folder")
    add("--save", type=Path, metavar="FOLDER", help="write a checkpoint in mid-epoch")
    add("--resume", type=Path, metavar="FOLDER", help="go on from such a checkpoint")
    add("--json", type=Path, metavar="FILE", help="also write what was found")
    args = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        parser.error("expected ranks: start it with torchrun --nproc-per-node N")
    for folder in filter(None, (args.save, args.data)):
        folder.mkdir(parents=True, exist_ok=True)
    run = Run(args)
    found: dict[str, Any] = {"reads": [run.counted(case) for case in CASES]}
    found["resumed"] = [run.resume(case) for case in RESUMED] if args.resume else []
    for case in RESUMED if args.save else ():
        run.save(case)
    found["wrong"] = flat(run.everyone(run.wrong))
    if run.rank == 0:
        report(run, found)
    run.close()
    return int(bool(found["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
