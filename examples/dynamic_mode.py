"""DALI's dynamic mode: operators are functions, and a reader is iterated: python dynamic_mode.py [STORE]"""

import sys
from typing import Any

import dali_zarr  # noqa: F401  (adds readers.Zarr)
import nvidia.dali.experimental.dynamic

ndd: Any = nvidia.dali.experimental.dynamic
reader = ndd.readers.Zarr(
    path=sys.argv[1] if len(sys.argv) > 1 else "hours.zarr", arrays=["t2m"], offsets=[0, 6], random_shuffle=True, seed=0,
    device="cpu",
)

for now, later in reader.next_epoch(batch_size=8):
    change = later - now
    print(now.batch_size, "samples of", tuple(now.shape[0]), "largest change", max(float(ndd.as_tensor(ndd.reductions.max(change)).cpu()[0]), 0))
