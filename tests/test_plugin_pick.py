"""What Python adds to `pick`: dictionaries, with indices as whole numbers and labels as floating-point numbers."""

from __future__ import annotations

from pathlib import Path

import dali_zarr  # noqa: F401  (loads the operator)
import numpy as np
import pytest
import zarr
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline

LEVELS = [1000.0, 850.0, 500.0, 250.1]


@pytest.fixture(scope="module", params=["", "era5/"])
def store(request, tmp_path_factory):
    """A store with levels, at its root or in a group; gives its path and the name of the array."""
    path = tmp_path_factory.mktemp("pick") / "store.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=3)
    z = group.create_array(
        f"{request.param}z", shape=(6, 4, 5), chunks=(1, 4, 5), dtype="float32", dimension_names=["time", "level", "lat"]
    )
    z[:] = np.arange(120, dtype="float32").reshape(6, 4, 5)
    level = group.create_array(f"{request.param}level", shape=(4,), chunks=(4,), dtype="float32", dimension_names=["level"])
    level[:] = LEVELS
    return path, f"{request.param}z"


def read(path, array, pick):
    pipeline = Pipeline(batch_size=2, num_threads=1, device_id=None)
    with pipeline:
        pipeline.set_outputs(fn.zarr_reader(path=path, arrays=[array], dims=["time"], pick=pick))
    pipeline.build()
    return np.asarray(pipeline.run()[0].as_array())


@pytest.mark.parametrize(
    "pick, indices",
    [
        ({"level": [0, 2]}, [0, 2]),
        ({"level": np.array([3, -4])}, [3, 0]),
        ({"level": 1}, [1]),
        ({"level": [500.0, 1000.0]}, [2, 0]),
        ({"level": np.array([250.1, 850.0])}, [3, 1]),
        ({"level": 850.0}, [1]),
        ({1: [850.0, 250.1]}, [1, 3]),
        (["level=2,1"], [2, 1]),
    ],
)
def test_indices_and_labels(store, pick, indices):
    path, array = store
    assert isinstance(path, Path)
    expected = zarr.open_group(path, mode="r")[array][:2][:, indices]
    np.testing.assert_array_equal(read(path, array, pick), expected)


def test_a_label_that_is_no_coordinate_lists_those_there_are(store):
    words = r'pick: 300\.0 isn\'t a coordinate of dimension "level" in store .*: 1000\.0, 850\.0, 500\.0, 250\.1'
    with pytest.raises(ValueError, match=words):
        read(*store, {"level": [300.0]})


def test_labels_are_deprecated(store):
    with pytest.warns(DeprecationWarning, match="pick: 'level': labels in pick are deprecated; write sel="):
        read(*store, {"level": [500.0]})


def test_labels_without_coordinates_say_why(store):
    words = "labels of dimension \"lat\" can't be looked up.* no array 'lat' with its coordinates beside the arrays; give indices"
    with pytest.raises(ValueError, match=words):
        read(*store, {"lat": [1.0]})


@pytest.mark.parametrize("items", [["500"], "500", [1, 2.0], [True], [None]])
def test_other_types_are_refused(store, items):
    with pytest.raises(TypeError, match="pick: 'level': expected whole numbers"):
        read(*store, {"level": items})
