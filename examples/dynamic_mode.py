"""DALI's dynamic mode: operators are functions, and a reader is iterated: python dynamic_mode.py [STORE]"""

import sys
from typing import Any

import dali_zarr  # pyright: ignore[reportUnusedImport]  # noqa: F401  (adds readers.Zarr)
import numpy as np
import nvidia.dali.experimental.dynamic

if "--help" in sys.argv:
    sys.exit(print(__doc__))

ndd: Any = nvidia.dali.experimental.dynamic
reader = ndd.readers.Zarr(
    path=sys.argv[1] if len(sys.argv) > 1 else "hours.zarr", arrays=["t2m"], offsets=[0, 6], random_shuffle=True, seed=0,
    device="cpu",
)

for now, later in reader.next_epoch(batch_size=8):
    change = ndd.reductions.max(ndd.math.abs(later - now))  # one number for each sample
    print(now.batch_size, "samples, largest change", np.asarray(ndd.as_tensor(change).cpu()).max())
