"""Feeds a training loop from a Zarr store: python feed_pytorch.py STORE ARRAY [ARRAY ...]"""

import sys

from dali_zarr.torch import Loader

if "--help" in sys.argv:
    sys.exit(print(__doc__))

# (channel, latitude, longitude) now and one step later: decoded on the GPU, if there is one, and each chunk once.
loader = Loader(
    sys.argv[1], arrays=sys.argv[2:], stack_arrays=True, offsets={"now": 0, "next": 1}, batch_size=16, random_shuffle=True, seed=0,
)

for batch in loader:
    print(batch["now"].shape, batch["now"].device)  # your training step goes here
