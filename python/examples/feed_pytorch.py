"""Feeds a training loop from a Zarr store: python feed_pytorch.py STORE ARRAY [ARRAY ...]"""

import sys

import dali_zarr  # noqa: F401  (makes fn.zarr_reader exist)
from nvidia.dali import fn, pipeline_def
from nvidia.dali.plugin.pytorch import DALIGenericIterator


@pipeline_def(batch_size=16, num_threads=2, device_id=0)
def pairs(path, arrays):
    # (channel, latitude, longitude) now and one step later: decoded on the GPU, each chunk once.
    return tuple(fn.zarr_reader(
        device="gpu", name="reader", path=path, arrays=arrays, stack_arrays=True, offsets=[0, 1], random_shuffle=True,
        seed=0, pad_last_batch=True,
    ))


for (batch,) in DALIGenericIterator([pairs(sys.argv[1], sys.argv[2:])], ["now", "next"], reader_name="reader"):
    print(batch["now"].shape, batch["now"].device)  # your training step goes here
