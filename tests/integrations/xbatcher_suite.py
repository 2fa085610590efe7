"""A plugin of pytest for xbatcher's own tests: makes their generators the adapter's, of datasets that were written and opened."""

from __future__ import annotations

import tempfile
from typing import Any

import xarray
import xbatcher.tests.test_generators as theirs
from dali_zarr.integrations.xbatcher import BatchGenerator


def of_a_store(ds: Any, *args: Any, **how: Any) -> BatchGenerator:
    path = tempfile.mkdtemp(suffix=".zarr")
    whole = ds.to_dataset(name=ds.name) if isinstance(ds, xarray.DataArray) else ds
    whole.to_zarr(path, consolidated=False, mode="w")
    opened = xarray.open_zarr(path, consolidated=False)
    return BatchGenerator(opened if whole is ds else opened[ds.name], *args, host_memory_limit="64MiB", **how)


theirs.BatchGenerator = of_a_store
