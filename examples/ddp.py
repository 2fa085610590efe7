"""DistributedDataParallel, on GPUs by NCCL or on CPUs by Gloo: torchrun --nproc-per-node 2 ddp.py STORE CHECKPOINT

It writes a checkpoint every few batches. Started again, with any number of processes, it goes on from there.
"""

import argparse
import os

import torch
import torch.distributed as dist
from dali_zarr.torch import Loader
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("store", help="such as example-data/hours.zarr, which small_stores.py writes")
parser.add_argument("checkpoint", help="a file, such as example-data/ddp.pt; if it exists, the training goes on from it")
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--every", type=int, default=5, help="batches between checkpoints")
args = parser.parse_args()
if "RANK" not in os.environ:
    parser.error("expected to be started by torchrun: torchrun --nproc-per-node 2 ddp.py STORE CHECKPOINT")

if args.device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if args.device == "cuda" else "gloo")

# It asks torch.distributed for the rank and the number of ranks. On GPUs it delivers to the current one.
loader = Loader(
    args.store, arrays=["t2m"], stack_arrays=True, offsets={"input": 0, "target": 1}, mean=280, stddev=10, batch_size=2,
    device=args.device, random_shuffle=True, drop_last=True, return_index=True,
)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Conv2d(1, 1, 3, padding=1).to(args.device))
optimizer = torch.optim.Adam(model.parameters())
if os.path.exists(args.checkpoint):
    saved = torch.load(args.checkpoint, map_location=args.device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])

if loader.epoch >= args.epochs and dist.get_rank() == 0:
    print(f"{args.checkpoint} has {loader.epoch} epochs already: give more --epochs, or another checkpoint")
for epoch in range(loader.epoch, args.epochs):
    for number, batch in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch["input"]), batch["target"])
        loss.backward()  # averages the gradients of all ranks
        optimizer.step()
        hours = batch["index"].flatten().tolist()
        print(f"epoch {epoch} rank {dist.get_rank()} loss {loss.item():.6f} hours {hours}\n", end="", flush=True)
        if number % args.every == 0:
            if dist.get_rank() == 0:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
                torch.save(states, args.checkpoint + ".new")
                os.replace(args.checkpoint + ".new", args.checkpoint)
            dist.barrier()
dist.destroy_process_group()
