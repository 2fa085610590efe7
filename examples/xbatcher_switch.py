"""Patches of a reanalysis, by xbatcher and by the loader: both give the same."""

import argparse

import dali_zarr
import torch
import xarray as xr
from dali_zarr.torch import Loader
from torch.utils.data import DataLoader
from xbatcher import BatchGenerator
from xbatcher.loaders.torch import MapDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("store", nargs="?", default="example-data/days.zarr", help="default: %(default)s")
args = parser.parse_args()

ds = xr.open_zarr(args.store, chunks=None, consolidated=False)[["t2m"]].sel(time=slice("2020-01-01T06", "2020-01-02T05"))

# Before: all patches in order, eight to a batch.
patches = BatchGenerator(ds, input_dims={"time": 4, "latitude": 6, "longitude": 10}, input_overlap={"time": 2})
before = DataLoader[torch.Tensor](MapDataset(patches), batch_size=8)

# Now: from_xarray takes the store's path and the selection from the dataset, of which nothing may be computed yet.
now = Loader(
    **dali_zarr.from_xarray(ds), window={"time": 4, "latitude": 6, "longitude": 10}, overlap={"time": 2},
    batch_size=8, device="cpu",
)

for expected, batch in zip(before, now, strict=True):
    same = torch.equal(batch["t2m"], expected)
    print(batch.coords["time"][0, 0].astype("datetime64[h]"), len(expected), "same" if same else "different")
