"""DALI's dynamic mode: operators are functions, and a reader is iterated."""

import argparse
from typing import Any

import dali_zarr  # pyright: ignore[reportUnusedImport]  # noqa: F401  (adds readers.Zarr)
import numpy as np
import nvidia.dali.experimental.dynamic

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("store", nargs="?", default="example-data/hours.zarr", help="default: %(default)s")
args = parser.parse_args()

ndd: Any = nvidia.dali.experimental.dynamic
reader = ndd.readers.Zarr(
    path=args.store, arrays=["t2m"], offsets=[0, 6], random_shuffle=True, seed=0, device="cpu",
)

for now, later in reader.next_epoch(batch_size=8):
    change = ndd.reductions.max(ndd.math.abs(later - now))  # one number for each sample
    print(now.batch_size, "samples, largest change", np.asarray(ndd.as_tensor(change).cpu()).max())
