"""Patches of a reanalysis, by xbatcher and by the loader: xbatcher_switch.py STORE"""

import sys

import dali_zarr
import numpy as np
import xarray as xr
import xbatcher
from dali_zarr.torch import Loader

fields = xr.open_zarr(sys.argv[1], chunks=None, consolidated=False)[["t2m"]].sel(time=slice("2020-01-01T06", "2020-01-02T05"))

# Before: all patches in order, eight to a batch.
patches = xbatcher.BatchGenerator(
    fields, input_dims={"time": 4, "latitude": 6, "longitude": 10}, input_overlap={"time": 2}, preload_batch=True,
)

# Now: the same dataset, decoded ahead of time.
loader = Loader(
    **dali_zarr.from_xarray(fields), window={"time": 4, "latitude": 6, "longitude": 10}, overlap={"time": 2},
    batch_size=8, device="cpu", host_memory_limit="64MB",
)

old = iter(patches)
for batch in loader:
    for field, times in zip(batch["t2m"].numpy(), batch.coords["time"], strict=True):
        patch = next(old)
        same = np.array_equal(field, patch["t2m"]) and np.array_equal(times, patch["time"])
        print(times[0].astype("datetime64[h]"), "same" if same else "another")
print(len(list(old)), "left")
