"""Real and synthetic training with torchrun on one and two GPUs; without GPUs on as many processes of the CPU.

    python examples/study/gpus.py --size small
"""

from __future__ import annotations

import os
import time

from bars import Bars
from common import arguments, run, save, tell
from store import prepare

STORES = ("uncompressed", "blosc-lz4", "one-hour")
BATCHES = {"whole": 150, "small": 20, "tiny": 4}


def rank_of(args) -> None:
    """The work of a process that torchrun started."""
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if gpu else "gloo")
    paths = prepare(args.data, args.size)
    bars = Bars(args.size, rank, ranks, BATCHES[args.size_name])
    for store in args.one:
        found = bars.measure("dali_zarr", paths[store])
        rates = torch.tensor([found["real"], found["loading"], found["synthetic"]], device="cuda" if gpu else "cpu")
        dist.all_reduce(rates)
        if rank == 0:
            real, loading, synthetic = rates.tolist()
            tell({"real": real, "loading": loading, "synthetic": synthetic, "share": real / synthetic})
    dist.barrier()
    os._exit(0)


def main() -> None:
    args = arguments(__doc__)
    if args.one:
        rank_of(args)
        return
    prepare(args.data, args.size)
    import torch

    rows, began = [], time.monotonic()
    for count in (n for n in (1, 2) if n <= (torch.cuda.device_count() or 2)):
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), __file__, "--data", str(args.data)]
        words += ["--size", args.size_name, "--seconds", str(args.size.seconds), "--one", *STORES]
        found, why = run(words, args.budget - (time.monotonic() - began), {"OMP_NUM_THREADS": "1"})
        found += [{"error": why}] * (len(STORES) - len(found))
        rows += [{"store": store, "way": str(count), **one} for store, one in zip(STORES, found, strict=True)]
        for row in rows[-len(STORES) :]:
            print(f"{time.monotonic() - began:6.1f} s", row, flush=True)
        save(args, "gpus", rows)


if __name__ == "__main__":
    main()
