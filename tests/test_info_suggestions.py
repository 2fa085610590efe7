"""What ``info`` suggests can be called as it is, for stores of each field, written by its own writer where that is installed."""

from __future__ import annotations

import functools
import json
from typing import Any

import dali_zarr.torch
import numpy as np
import pytest
import xarray as xr
from support.command_line import command
from support.stores import Layout, write_array


@pytest.fixture
def run(monkeypatch, capsys):
    return functools.partial(command, monkeypatch, capsys)


def called(run, path) -> tuple[dict[str, Any], Any]:
    """What info says, and the first batch of its call, without a change."""
    status, out, err = run("info", path, "--json")
    assert status == 0, err
    (found,) = json.loads(out)
    _, text, _ = run("info", path)
    # The text has the same call, with the import that it needs.
    assert "".join(f"import dali_zarr.torch loader = {found['suggested']}".split()) in "".join(text.split())
    assert all(len(line) <= 120 for line in text.splitlines() if " " in line.strip())
    assert "The loader delivers to the GPU if there is one." in text
    loader = eval(found["suggested"], {"dali_zarr": dali_zarr})
    assert len(loader) > 0
    return found, next(iter(loader))


def shapes(batch: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in batch.items()}


@pytest.mark.parametrize(
    ("store", "about", "expected"),
    [
        ("era5", None, {"t2m": (64, 12, 20), "z": (64, 5, 12, 20)}),
        ("pusht", "windows of 16 steps within the episodes that meta/episode_ends ends",
         {"data/action": (64, 16, 2), "data/img": (64, 16, 16, 16, 3)}),
        ("cells", "rows of the sparse matrix X", {"X": (64, 500)}),
        ("image", "random crops of 0, the finest of 2 levels, with labels",
         {"image": (8, 2, 12, 32, 32), "label": (8, 12, 32, 32)}),
    ],
)
def test_fields(small_stores, run, store, about, expected):
    found, batch = called(run, small_stores / f"{store}.zarr")
    assert found["about"] == about and shapes(batch) == expected


def test_images_over_time(tmp_path, run):
    """Without labels, in a group; samples are cut along time too."""
    for level, size in enumerate((100, 50)):
        values = np.zeros((3, 2, size, size), "uint16")
        write_array(tmp_path, f"A/1/{level}", values, layout=Layout((1, 1, 50, 50)), dims="tcyx")
    found, batch = called(run, tmp_path)
    assert found["about"] == "random crops of A/1/0, the finest of 2 levels" and shapes(batch) == {"image": (8, 2, 50, 50)}


def test_short_episodes(tmp_path, run):
    write_array(tmp_path, "action", np.zeros((9, 2), "f4"))
    write_array(tmp_path, "episode_ends", np.array([4, 9]))
    found, batch = called(run, tmp_path)
    assert found["about"].startswith("windows of 1 steps") and shapes(batch) == {"action": (8, 1, 2)}


def test_a_matrix_by_columns(tmp_path, run):
    """Its rows can't be read: its arrays are."""
    import zarr

    for name, values in (("data", np.ones(6, "f4")), ("indices", np.zeros(6, "i4")), ("indptr", np.arange(7))):
        write_array(tmp_path, f"X/{name}", values)
    zarr.open_group(str(tmp_path / "X"), mode="a").attrs.update({"encoding-type": "csc_matrix", "shape": [6, 6]})
    found, batch = called(run, tmp_path)
    assert found["about"] is None and len(batch) == 1


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_missing_values_of_xarray(tmp_path, run, zarr_format):
    """In v3 they are in base64: they are told as numbers, and not as packing."""
    dims = ("time", "y")
    values = np.arange(12, dtype="f4").reshape(4, 3)
    dataset = xr.Dataset({"nan": (dims, values), "number": (dims, values), "packed": (dims, values)})
    encoding = {"nan": {"_FillValue": np.float32("nan")}, "number": {"_FillValue": np.float32(-999.5)},
                "packed": {"_FillValue": np.int16(-1), "dtype": "int16", "scale_factor": 0.5}}
    dataset.to_zarr(tmp_path / "s", zarr_format=zarr_format, encoding=encoding, consolidated=False)
    found, batch = called(run, tmp_path / "s")
    arrays = {array["name"]: array for array in found["arrays"]}
    if zarr_format == 3:
        assert (arrays["nan"]["packing"], arrays["number"]["packing"]) == ({"_FillValue": "nan"}, {"_FillValue": -999.5})
        _, text, _ = run("info", tmp_path / "s")
        assert "  missing values: _FillValue nan\n" in text and "  missing values: _FillValue -999.5\n" in text
        assert "  packed: " in text and "AAAA" not in text
    assert shapes(batch) == {"nan": (4, 3), "number": (4, 3), "packed": (4, 3)}


def test_anndata(tmp_path, run):
    anndata, scipy = pytest.importorskip("anndata"), pytest.importorskip("scipy.sparse")
    matrix = scipy.random(40, 30, 0.2, format="csr", dtype="float32", random_state=0)
    for name, values, expected in (("sparse", matrix, {"X": (32, 30)}), ("dense", matrix.toarray(), {"X": (32, 30)})):
        cells = anndata.AnnData(values)
        # Text of pandas 3, which anndata writes on demand.
        cells.obs_names, cells.var_names = cells.obs_names.astype(object), cells.var_names.astype(object)
        cells.write_zarr(tmp_path / name)
        found, batch = called(run, tmp_path / name)
        assert shapes(batch) == expected, found["suggested"]


def test_ome_zarr_py(tmp_path, run):
    writer = pytest.importorskip("ome_zarr.writer")
    import zarr

    group = zarr.open_group(str(tmp_path / "i"), mode="w")
    writer.write_image(np.random.default_rng(0).integers(0, 99, (2, 8, 80, 80), "uint16"), group, axes="czyx")
    writer.write_labels(np.zeros((8, 80, 80), "uint8"), group, name="cells", axes="zyx")
    found, batch = called(run, tmp_path / "i")
    assert "with labels" in found["about"] and batch["image"].shape[1:] == (2, 4, 40, 40)
    assert batch["label"].shape[1:] == (4, 40, 40)
