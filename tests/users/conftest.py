"""What users write, as they write it: each script of examples/ that takes processes, servers or a kernel is run as a program.

There is a file for each kind of user.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from support.stores import write_array, write_era5


@pytest.fixture(scope="session")
def reanalysis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 48 hours from 2020-01-01 on. Nobody writes to it."""
    path = tmp_path_factory.mktemp("users") / "era5.zarr"
    write_era5(path, hours=48)
    zarr.open_group(path)["time"].attrs.update({"units": "hours since 2020-01-01", "calendar": "standard"})
    write_array(path, "level", np.array([1000, 850, 500, 300, 100]), dims=("level",))
    return path
