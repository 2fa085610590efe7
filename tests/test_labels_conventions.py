"""Labels where stores name them in their own way, name none, or say different things of them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
import zarr
from support.stores import write_array

xarray = pytest.importorskip("xarray")


def outputs(path: Any, name: str | None, sel: Any, **args: Any) -> tuple[int, list[int]]:
    found = dali_zarr.explain(path=path, sel=sel, **({"arrays": [name]} if name else {}), **args)
    return found["samples"], found["outputs"][0]["shape"]


@pytest.fixture(scope="module")
def anemoi(tmp_path_factory) -> Path:
    """Stores as anemoi-datasets writes them: gridded, and with trajectories."""
    base = tmp_path_factory.mktemp("anemoi")
    dates = np.arange("2020-01-01", "2020-01-06", 6, dtype="datetime64[h]").astype("datetime64[s]")
    for store, name, dims, shape in (
        ("gridded", "dates", ("time", "variable", "ensemble", "cell"), (20, 2, 1, 5)),
        ("trajectories", "base_dates", ("time", "variable", "ensemble", "step", "cell"), (20, 2, 1, 3, 5)),
    ):
        root = zarr.open_group(base / store, mode="w", zarr_format=2)
        root.attrs.update(variables=["2t", "msl"])
        root.create_array("data", shape=shape, chunks=(1, *shape[1:]), dtype="float32", attributes={"_ARRAY_DIMENSIONS": dims})
        root.create_array(name, data=dates, attributes={"_ARRAY_DIMENSIONS": ["time"]})
        if store == "trajectories":
            steps = np.array([6, 12, 18], "timedelta64[h]").astype("timedelta64[s]")
            root.create_array("steps", data=steps, attributes={"_ARRAY_DIMENSIONS": ["step"]})
    return base


def test_dates_of_anemoi(anemoi):
    path = anemoi / "gridded"
    assert outputs(path, "data", {"time": slice("2020-01-02", "2020-01-03")}) == (8, [2, 1, 5])
    assert outputs(path, "data", {"time": slice("2020-01-05", None), "variable": "msl"}) == (4, [1, 5])
    # One gap, found by the dates.
    assert dali_zarr.explain(path=path, arrays=["data"], breaks="auto")["segments"]["count"] == 1
    with pytest.raises(ValueError, match="'2021' isn't among the coordinates: 2020-01-01T00:00, "):
        outputs(path, "data", {"time": "2021"})


def test_base_dates_and_steps_of_anemoi(anemoi):
    path = anemoi / "trajectories"
    assert outputs(path, "data", {"time": "2020-01-02", "step": ["6h", "18h"]}) == (4, [2, 1, 2, 5])
    assert outputs(path, "data", {"step": np.timedelta64(12, "h")}) == (20, [2, 1, 5])
    with pytest.raises(ValueError, match="'ensemble': there are no coordinates along it"):
        outputs(path, "data", {"ensemble": "a"})


def test_batches_of_anemoi_have_dates(anemoi):
    torch = pytest.importorskip("dali_zarr.torch")
    batch = next(iter(torch.Loader(anemoi / "trajectories", arrays=["data"], batch_size=2, device="cpu", sel={"step": ["18h"]})))
    assert (batch.coords["time"] == np.array(["2020-01-01T00", "2020-01-01T06"], "datetime64[h]")).all()
    assert (batch.coords["step"] == np.array([18], "timedelta64[h]")).all()


def test_other_stores_have_no_such_names(tmp_path):
    write_array(tmp_path, "data", np.zeros((3, 2), "float32"), dims=("time", "x"))
    write_array(tmp_path, "dates", np.arange(3), dims=("time",))
    with pytest.raises(ValueError, match="'time': there are no coordinates along it"):
        outputs(tmp_path, "data", {"time": "2020"})


@pytest.mark.parametrize(
    "label", ["2020-01-02", slice("2020-01-02", "2020-01-03"), ["a"], [1.5], slice(0.5, 2.5), np.datetime64(0, "s")]
)
def test_labels_without_coordinates(tmp_path, label):
    write_array(tmp_path, "v", np.zeros((6, 4), "float32"), dims=("time", "x"))
    words = r"sel: 'time': there are no coordinates along it \(no array 'time' of one dimension beside the arrays, or in a group"
    with pytest.raises(ValueError, match=words + ".*so that its labels are positions, but found .*; select by position, with isel"):
        outputs(tmp_path, "v", {"time": label})
    for position in (3, slice(1, 4), [0, 2], np.array([True] * 6), np.int32(2)):
        outputs(tmp_path, "v", {"time": position})
    with pytest.raises(ValueError, match="'time': there are no coordinates along it.*but found method; select by position"):
        outputs(tmp_path, "v", {"time": 3}, method="nearest")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore")
def test_consolidated_metadata_that_are_stale(tmp_path, caplog, zarr_format):
    """Arrays and labels follow the same documents, the consolidated ones, as xarray does; the log says that others differ."""

    def days(count: int, first: int) -> Any:
        time = np.datetime64("2020-01-01") + np.arange(first, first + count).astype("timedelta64[D]")
        values = np.zeros((count, 3), "float32")
        return xarray.Dataset({"v": (("time", "x"), values)}, coords={"time": time.astype("datetime64[ns]"), "x": [1.0, 2.0, 3.0]})

    days(10, 0).to_zarr(tmp_path, zarr_format=zarr_format, consolidated=True)
    root = (tmp_path / "zarr.json").read_text() if zarr_format == 3 else None
    days(5, 10).to_zarr(tmp_path, append_dim="time", zarr_format=zarr_format, consolidated=False)
    if root is not None:
        # Some versions of zarr-python keep the consolidated metadata here.
        (tmp_path / "zarr.json").write_text(root)
    with xarray.open_zarr(tmp_path) as dataset:
        assert dataset.sizes["time"] == 10
    with caplog.at_level(logging.WARNING, "dali_zarr"):
        assert outputs(tmp_path, "v", {"time": slice("2020-01-03", "2020-01-05")}) == (3, [3])
    assert outputs(tmp_path, "v", {"time": slice("2020-01-09", None), "x": [2.0]}) == (2, [1])
    with pytest.raises(ValueError, match="the coordinates go from 2020-01-01 to 2020-01-10"):
        outputs(tmp_path, "v", {"time": slice("2020-01-11", "2020-01-14")})
    own, consolidated = (".zarray", ".zmetadata") if zarr_format == 2 else ("zarr.json", "zarr.json")
    for name, shapes in (("v", ("[15,3]", "[10,3]")), ("time", ("[15]", "[10]"))):
        text = f"{name}/{own}: shape is {shapes[0]} here, but {shapes[1]} in the consolidated metadata ({consolidated})"
        assert [text in record.message for record in caplog.records].count(True) == 1, caplog.text
    zarr.consolidate_metadata(tmp_path, zarr_format=zarr_format)
    assert outputs(tmp_path, "v", {"time": slice("2020-01-11", "2020-01-14")}) == (4, [3])


def test_a_store_of_one_array_with_its_coordinates(tmp_path):
    """It is given by its location in ``arrays``. Its coordinates are in the store; those of an array given by its path are
    beside it, whether there is a group or not."""
    for name in ("level", "time"):
        write_array(tmp_path / "loose", name, np.arange(3) * 10, dims=(name,))
    write_array(tmp_path / "loose", "a", np.zeros((3, 3), "float32"), dims=("time", "level"))
    (tmp_path / "loose" / "zarr.json").unlink()
    for location in ("loose/a", "./loose/a"):
        arrays = {"x": f"{tmp_path}/{location}"}
        told = dali_zarr.explain(arrays=arrays, sel={"level": [20, 0], "time": slice(10, 20)})
        assert (told["samples"], told["outputs"][0]["shape"]) == (2, [2])


def test_attributes_with_bare_nan(tmp_path):
    """Python's JSON has NaN without quotes, and so has a fill value among the attributes."""
    write_array(tmp_path, "a", np.zeros((3, 2), "float32"), zarr_format=2, dims=("x", "y"))
    write_array(tmp_path, "x", np.array([1.5, np.nan, 3.5]), zarr_format=2, dims=("x",), fill_value=None)
    attributes = json.loads((tmp_path / "x" / ".zattrs").read_text())
    (tmp_path / "x" / ".zattrs").write_text(json.dumps(attributes | {"missing_value": float("nan"), "valid_max": float("inf")}))
    assert outputs(tmp_path, "a", {"x": [3.5, 1.5]}) == (2, [2])
