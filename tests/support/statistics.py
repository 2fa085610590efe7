"""The store that tests of statistics read, and a reader's first sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from support.pipelines import build, to_numpy
from support.stores import Layout, write_array

LEVELS = [1000.0, 850.0, 500.0]
LATITUDES = np.linspace(90, -60, 6)
HOURS = 23
DIMS = ("time", "level", "latitude", "longitude")


def written(path: Path, seed: int = 0, hours: int = HOURS) -> dict[str, np.ndarray]:
    """Writes a store with a field that has NaNs, a field on levels of very different sizes, packed data and a mask.
    Returns the values of the first three."""
    rng = np.random.default_rng(seed)
    t2m = (280 + rng.standard_normal((hours, 6, 7))).astype("float32")
    t2m[rng.random(t2m.shape) < 0.1] = np.nan
    z = (rng.standard_normal((hours, 3, 6, 7)) * [[[[1]], [[1e3]], [[1e-3]]]] + [[[[5e4]], [[1e4]], [[-3]]]]).astype("float32")
    packed = rng.integers(0, 1000, (hours, 6, 7)).astype("int16")
    for name, values, dims, attributes in (
        ("t2m", t2m, (DIMS[0], *DIMS[2:]), {}), ("z", z, DIMS, {}),
        ("packed", packed, (DIMS[0], *DIMS[2:]), {"scale_factor": 0.01, "add_offset": 250.0, "missing_value": 7}),
        ("lsm", rng.random((6, 7)).astype("float32"), DIMS[2:], {}),
        ("level", np.array(LEVELS), ("level",), {}), ("latitude", LATITUDES, ("latitude",), {}),
    ):
        layout = Layout((5, *values.shape[1:]) if len(dims) > 2 else values.shape)
        write_array(path, name, values, layout=layout, dims=dims, attributes=attributes)
    return {"t2m": t2m, "z": z, "packed": packed}


def normalised(path: Path, **arguments: Any) -> np.ndarray:
    """Returns the first sample of a reader, stacked."""
    return to_numpy(build(path=path, stack_arrays=True, **arguments).run()[0])[0]
