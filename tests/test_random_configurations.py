"""Random ways to store arrays, above all with Blosc, against zarr-python. `python tests/random_configurations.py` runs more."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from support.configurations import Configuration, configuration
from support.pipelines import build, same, to_numpy

STEPS = 6
TOGETHER = 8


def compare(device: str, folder, configurations: list[Configuration], **how) -> None:
    """Writes arrays, reads all of them with one reader, and compares every value."""
    names = [f"a{c.seed}" for c in configurations]
    zarr.open_group(str(folder), mode="w", zarr_format=3)
    for name, config in zip(names, configurations, strict=True):
        config.write(folder, name)
    pipes = [build(device, 2, path=str(folder / name), dims=["0"], window=[1], **how) for name in names]
    for step in range(0, STEPS, 2):
        for name, config, pipe in zip(names, configurations, pipes, strict=True):
            (out,) = pipe.run()
            want = zarr.open_array(str(folder / name), mode="r")[step : step + 2]
            want = np.asarray(want).astype(want.dtype.newbyteorder("="))[:, None]
            same(to_numpy(out), want, f"{config.text}, steps from {step}")


@pytest.mark.parametrize("first", range(0, 240, TOGETHER))
def test_random_configurations(tmp_path, device, first):
    """A fixed sample: every value of every array."""
    compare(device, tmp_path, [configuration(seed) for seed in range(first, first + TOGETHER)])
