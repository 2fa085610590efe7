"""Feeds a training loop with pairs of fields, by a DALI pipeline and DALI's iterator. It needs a GPU."""

import argparse
from typing import Any

import dali_zarr
from nvidia.dali.pipeline import pipeline_def
from nvidia.dali.plugin.pytorch import DALIGenericIterator

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("store", help="such as example-data/hours.zarr, which small_stores.py writes")
parser.add_argument("array", nargs="+", help="such as t2m; all must have the same latitudes and longitudes")
args = parser.parse_args()


@pipeline_def(batch_size=16, num_threads=2, device_id=0)
def pairs(path: str, arrays: list[str]) -> Any:
    now, later = dali_zarr.zarr_reader(
        device="gpu", name="reader", path=path, arrays=arrays, stack_arrays=True, offsets=[0, 1], random_shuffle=True, seed=0,
        pad_last_batch=True,
    )
    return now, later


for (batch,) in DALIGenericIterator([pairs(args.store, args.array)], ["now", "next"], reader_name="reader"):
    print(batch["now"].shape, batch["now"].device)
