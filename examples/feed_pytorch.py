"""Feeds a training loop with pairs of fields, now and one step later."""

import argparse

from dali_zarr.torch import Loader

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("store", help="such as example-data/hours.zarr, which small_stores.py writes")
parser.add_argument("array", nargs="+", help="such as t2m; all must have the same latitudes and longitudes")
args = parser.parse_args()

# (channel, latitude, longitude) now and one step later: decoded on the GPU, if there is one, and each chunk once.
loader = Loader(
    args.store, arrays=args.array, stack_arrays=True, offsets={"now": 0, "next": 1}, batch_size=16, random_shuffle=True, seed=0,
)

for batch in loader:
    print(batch["now"].shape, batch["now"].device)  # your training step goes here
