"""Makes a data set with anemoi-datasets, in whose environment it runs. The arguments are a folder, the dates that are missing,
and any others of the recipe, as JSON. The folder gets the source (source.nc), the values that are written (values.npy) and the
data set (data.zarr)."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import xarray
from anemoi.datasets.__main__ import main

folder, missing, more = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
names = {"2t": ("K", "air_temperature"), "msl": ("Pa", "air_pressure_at_mean_sea_level")}
times = np.arange("2020-01-01T00", "2020-01-04T00", 6, dtype="M8[h]").astype("M8[ns]")
fields = np.random.default_rng(0).standard_normal((len(times), len(names), 5, 7)).astype("f4")
dims = ("time", "latitude", "longitude")
source = xarray.Dataset(
    {
        name: (dims, fields[:, i], {"standard_name": kind, "units": units})
        for i, (name, (units, kind)) in enumerate(names.items())
    },
    coords={
        "time": times,
        "latitude": ("latitude", np.linspace(60, 40, 5), {"standard_name": "latitude", "units": "degrees_north"}),
        "longitude": ("longitude", np.linspace(0, 30, 7), {"standard_name": "longitude", "units": "degrees_east"}),
    },
)
os.chdir(folder)
source.to_netcdf("source.nc", engine="h5netcdf")
values = fields.reshape(len(times), len(names), 1, 35)
values[np.isin(times, np.array(missing, "M8[ns]"))] = np.nan
np.save("values.npy", values)
recipe = {
    "dates": {"start": "2020-01-01T00:00:00", "end": "2020-01-03T18:00:00", "frequency": "6h", "missing": missing},
    "input": {"netcdf": {"path": "source.nc", "param": list(names)}}, **more,
}
# JSON is YAML.
Path("recipe.yaml").write_text(json.dumps(recipe))
sys.argv = ["anemoi-datasets", "create", "recipe.yaml", "data.zarr"]
main()
