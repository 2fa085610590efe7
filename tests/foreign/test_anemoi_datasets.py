"""What anemoi-datasets writes: variables as one array, whose dates are labels. Some dates may be missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.foreign import Foreign, compare, missing, zarr_python

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE.parents[1] / "build" / "foreign" / "anemoi"
if not ENVIRONMENT.is_dir():
    missing("anemoi-datasets")

torch = pytest.importorskip("torch")

DIMS = ["time", "variable", "ensemble", "cell"]
# The sixth and the seventh of twelve, six hours apart.
MISSING = ["2020-01-02T06:00:00", "2020-01-02T12:00:00"]
# Chunks of one date, and of several.
RECIPES = {"": {}, "chunks of three dates": {"output": {"chunking": {"dates": 3, "ensembles": 1}}}}


def _written(folder: Path, lost: list[str], more: dict[str, object]) -> Path:
    words = [sys.executable, str(HERE / "write_anemoi.py"), str(folder), json.dumps(lost), json.dumps(more)]
    environment = os.environ | {"PYTHONPATH": str(ENVIRONMENT)}
    done = subprocess.run(words, env=environment, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / "data.zarr"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A data set with all dates."""
    return _written(tmp_path_factory.mktemp("whole"), [], {})


@pytest.fixture(scope="module", params=RECIPES)
def holed(tmp_path_factory, request):
    """A data set with missing dates."""
    return _written(tmp_path_factory.mktemp("holed"), MISSING, RECIPES[request.param])


def _values(path: Path) -> np.ndarray:
    return np.load(path.parent / "values.npy")


def _batches(path: Path, **arguments):
    """The batches of a loader on the CPU, as NumPy's arrays."""
    from dali_zarr.torch import Loader

    return [np.asarray(batch["data"]) for batch in Loader(str(path), arrays=["data"], device="cpu", **arguments)]


def test_values(whole, device):
    values = {"what was written": _values(whole), "zarr-python": zarr_python(whole, "data")}
    compare(device, Foreign(whole, "data", values, DIMS))


def test_values_with_missing_dates(holed, device):
    """By position along other dimensions, so that all dates are read."""
    values = {"what was written": _values(holed), "zarr-python": zarr_python(holed, "data")}
    assert np.isnan(values["what was written"]).any()
    compare(device, Foreign(holed, "data", values, DIMS))


def test_variables_by_name(whole):
    (found,) = _batches(whole, batch_size=12, sel={"variable": ["msl"]})
    assert np.array_equal(found, _values(whole)[:, 1:])


def test_statistics_of_the_store(whole):
    """Its mean and stdev, which are by variable."""
    (found,) = _batches(whole, batch_size=12, mean=str(whole), stddev=str(whole))
    mean, stdev = (zarr_python(whole, name).reshape(1, 2, 1, 1) for name in ("mean", "stdev"))
    assert np.allclose(found, (_values(whole) - mean) / stdev, rtol=1e-5, atol=1e-6)


def test_dates_are_labels(whole):
    """Both ends of a range of days are in it."""
    days = slice("2020-01-01", "2020-01-02")
    assert np.array_equal(np.concatenate(_batches(whole, batch_size=4, sel={"time": days})), _values(whole)[:8])
    (found,) = _batches(whole, batch_size=1, sel={"time": "2020-01-03T06"})
    assert np.array_equal(found.reshape(2, 1, 35), _values(whole)[9])


def test_missing_dates_are_skipped(holed):
    """No sample has an element of one."""
    values = _values(holed)
    found = _batches(holed, batch_size=1)
    assert np.array_equal(np.concatenate(found), values[~np.isnan(values).any(axis=(1, 2, 3))])
    pairs = _batches(holed, batch_size=1, offsets=[0, 1])
    starts = [0, 1, 2, 3, 7, 8, 9, 10]
    assert len(pairs) == len(starts)
    for start, pair in zip(starts, pairs, strict=True):
        assert np.array_equal(pair[0], values[start : start + 2])
