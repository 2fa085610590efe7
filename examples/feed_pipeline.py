"""The same in a DALI pipeline, with DALI's iterator: python feed_pipeline.py STORE ARRAY [ARRAY ...]"""

import sys
from typing import Any

import dali_zarr
from nvidia.dali.pipeline import pipeline_def
from nvidia.dali.plugin.pytorch import DALIGenericIterator

if "--help" in sys.argv:
    sys.exit(print(__doc__))


@pipeline_def(batch_size=16, num_threads=2, device_id=0)
def pairs(path: str, arrays: list[str]) -> Any:
    now, later = dali_zarr.zarr_reader(
        device="gpu", name="reader", path=path, arrays=arrays, stack_arrays=True, offsets=[0, 1], random_shuffle=True, seed=0,
        pad_last_batch=True,
    )
    return now, later


for (batch,) in DALIGenericIterator([pairs(sys.argv[1], sys.argv[2:])], ["now", "next"], reader_name="reader"):
    print(batch["now"].shape, batch["now"].device)
