"""Real and synthetic training with torchrun on one and two GPUs; without GPUs on as many processes of the CPU.

    python examples/study/gpus.py --small
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bars import measure
from common import arguments, save
from store import prepare


def rank_of(args, store: str) -> None:
    """The work of a process that torchrun started."""
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if gpu else "gloo")
    found = measure(args.size, prepare(args.data, args.size)[store], "dali_zarr", rank, ranks, most=20 if args.small else 200)
    rates = torch.tensor([found["real"], found["loading"], found["synthetic"]], device="cuda" if gpu else "cpu")
    dist.all_reduce(rates)
    if rank == 0:
        real, loading, synthetic = rates.tolist()
        print(json.dumps({"real": real, "loading": loading, "synthetic": synthetic, "share": real / synthetic}), flush=True)
    dist.barrier()
    os._exit(0)


def main() -> None:
    args = arguments(__doc__)
    if args.one:
        rank_of(args, args.one[0])
        return
    prepare(args.data, args.size)
    import torch

    counts = [n for n in (1, 2) if n <= (torch.cuda.device_count() or 2)]
    rows = []
    for store in ("uncompressed", "one-hour") if args.small else ("uncompressed", "blosc-lz4", "one-hour"):
        for count in counts:
            words = [
                sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), str(Path(__file__)),
                "--data", str(args.data), "--one", store, *(["--small"] if args.small else []),
            ]
            env = os.environ | {"OMP_NUM_THREADS": "1"}
            process = subprocess.run(words, capture_output=True, text=True, env=env, timeout=1800)
            lines = [line for line in process.stdout.splitlines() if line.startswith("{")]
            failed = {"error": process.stderr.strip().splitlines()[-1] if process.stderr.strip() else "no output"}
            rows.append({"store": store, "processes": count, **(json.loads(lines[-1]) if lines else failed)})
            print(rows[-1], flush=True)
    save(args, "gpus", rows)


if __name__ == "__main__":
    main()
