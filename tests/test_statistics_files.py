"""Statistics written as JSON and as Zarr have the same content, which readers find to the bit, and xarray opens the latter."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
import xarray as xr
import zarr
from dali_zarr.__main__ import main
from dali_zarr._statistics import as_zarr
from support.pipelines import build, to_numpy
from support.server import Server
from support.statistics import LEVELS, written
from support.stores import write_array

NUMBERS = ("mean", "stddev", "min", "max", "nan_share", "count", "weight")
# Dimensions of arrays of a second store, and their values; names that are those of statistics, groups and labels of text.
OTHERS: dict[str, tuple[tuple[str, ...] | None, tuple[int, ...]]] = {
    "data/action": (None, (9, 2)), "data/image": (None, (9, 6, 5, 3)), "mean": (("time", "y", "x"), (9, 6, 5)),
    "a": (("time", "count", "offset", "y", "x"), (9, 2, 3, 4, 5)), "b": (("time", "band", "y", "x"), (9, 3, 4, 5)),
    "c": (("time", "band", "y", "x"), (9, 3, 4, 5)), "d": (("time", "mean", "mean_", "y", "x"), (9, 3, 2, 4, 5)),
    "e": (("time", "band", "band_position", "array", "x"), (9, 3, 2, 4, 5)), "empty": (("time", "y", "x"), (9, 4, 5)),
}
BANDS = ["red", "grün", "blue"]

# The store, the arguments of statistics, and those of a reader.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "levels": ("fields", {"arrays": ["t2m", "z", "lsm"]}, {"stack_arrays": True}),
    "other levels": ("fields", {"arrays": ["z", "t2m"]}, {"stack_arrays": True, "sel": {"level": [500, 1000]}}),
    "one number": ("fields", {"arrays": ["z"]}, {}),
    "named": ("fields", {"arrays": ["z", "t2m"], "channels": "level"}, {}),
    "by output": ("fields", {"arrays": {"zz": "z"}, "channels": {"zz": "level"}}, {}),
    "none": ("fields", {"arrays": ["z"], "channels": []}, {}),
    "tendencies": ("fields", {"arrays": ["z", "t2m"], "offsets": [6, -1, 30]}, {"stack_arrays": True}),
    "weights": ("fields", {"arrays": ["z", "t2m"], "weights": "cos_latitude"}, {"stack_arrays": True}),
    "packed": ("fields", {"arrays": ["packed"], "fillna": 3.5}, {}),
    "selected": ("fields", {"arrays": ["z"], "sel": {"level": 850}, "isel": {"time": slice(3, 9)}}, {"sel": {"level": 850}}),
    "groups": ("others", {"arrays": ["data/image", "data/action"]}, {"channels": -1}),
    "names of numbers": ("others", {"arrays": ["mean", "a"], "offsets": 2}, {"channels": {"a": ["count", "offset"]}}),
    "names that collide": ("others", {"arrays": ["d", "e"], "offsets": 2, "channels": {
        "d": ["mean", "mean_"], "e": ["band", "band_position", "array"],
    }}, {}),
    "text": ("others", {"arrays": ["b", "c"], "channels": "band"}, {"sel": {"band": ["blue", "red"]}}),
    "several channels": ("others", {"arrays": ["c", "a"], "channels": ["band", "offset", "x"]}, {}),
    "no numbers": ("others", {"arrays": ["empty", "b"]}, {"arrays": ["b"]}),
    "own stores": ("own", {}, {}),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    written(path / "fields")
    rng = np.random.default_rng(1)
    for name, (dims, shape) in OTHERS.items():
        values = np.full(shape, np.nan) if name == "empty" else rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 9, shape[-1])
        write_array(path / "others", name, values, dims=dims)
    zarr.open_group(path / "others", mode="a").create_array("band", shape=3, dtype=str, dimension_names=["band"])[:] = np.array(
        BANDS, object,
    )
    return path


def arguments_of(stores: Path, where: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if where != "own":
        return {"path": stores / where, **arguments}
    return {"arrays": {name: str(stores / "others" / name) for name in ("b", "c")}, **arguments}


def samples(**arguments: Any) -> list[bytes]:
    return [to_numpy(output)[0].tobytes() for output in build(dtype="float64", **arguments).run()]


@pytest.mark.parametrize("name", CASES)
def test_both_forms(stores, tmp_path, name):
    """The content of the JSON file, and the samples of readers of either."""
    where, given, reading = CASES[name]
    told = arguments_of(stores, where, given)
    found = dali_zarr.statistics(**told, output=tmp_path / "stats.zarr")
    found.save(tmp_path / "stats.json")
    content = json.loads((tmp_path / "stats.json").read_text())
    assert as_zarr.content(zarr.open_group(tmp_path / "stats.zarr", mode="r")) == content == found
    others = ("offsets", "weights", "channels", "isel", "fillna")
    reader = {key: value for key, value in told.items() if key not in others} | reading
    if name == "no numbers":
        for ending in ("json", "zarr"):
            with pytest.raises(ValueError, match="array 'empty': expected a finite number, but there is none"):
                dali_zarr.explain(**{**reader, "arrays": ["empty"]}, mean=tmp_path / f"stats.{ending}")
    read = {
        ending: samples(**reader, mean=tmp_path / f"stats.{ending}", stddev=str(tmp_path / f"stats.{ending}"))
        for ending in ("json", "zarr")
    }
    assert read["json"] == read["zarr"] != samples(**reader)


@pytest.mark.parametrize("ending", ["json", "zarr"])
def test_outputs_with_other_names(stores, tmp_path, ending):
    """Channels that were asked for by output are those of its array, whatever a reader calls it."""
    how = {"path": stores / "fields", "arrays": {"x": "z"}}
    both = how | {"arrays": {"x": "z", "w": "t2m"}}
    found = dali_zarr.statistics(**both, channels={"x": "level"}, output=tmp_path / f"stats.{ending}")
    assert found["channels"] == {"z": ["level"]}
    told = dali_zarr.explain(path=stores / "fields", arrays={"y": "z", "x": "t2m"}, mean=tmp_path / f"stats.{ending}")
    assert [array["channels"] for array in told["arrays"]] == [["level"], []]
    by_output = {**found, "channels": {"x": ["level"]}}
    (tmp_path / "former.json").write_text(json.dumps(by_output))
    assert dali_zarr.explain(**how, mean=tmp_path / "former.json")["arrays"][0]["channels"] == ["level"]


@pytest.mark.parametrize("name", CASES)
def test_xarray_opens_it(stores, tmp_path, name):
    """By xarray's own calls, without a warning: a table of the arrays, and of each its channels with their labels."""
    where, given, _ = CASES[name]
    content = dali_zarr.statistics(**arguments_of(stores, where, given), output=tmp_path / "stats.zarr")

    def same(variable: xr.DataArray, expected: Any) -> None:
        assert variable.dtype == ("int64" if variable.name.endswith("count") else "float64")
        assert np.array_equal(variable.values.reshape(-1), np.array(expected, "f8").reshape(-1), equal_nan=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = xr.open_zarr(tmp_path / "stats.zarr")
        tree = xr.open_datatree(tmp_path / "stats.zarr", engine="zarr")
        groups = {
            array: xr.open_dataset(tmp_path / "stats.zarr", engine="zarr", group=f"arrays/{array}") for array in content["arrays"]
        }
    assert table["array"].values.tolist() == list(content["arrays"])
    assert table.attrs["samples"] == content["samples"] and table.attrs["dim"] == content["dim"]
    for array, entry in content["arrays"].items():
        dataset = groups[array]
        assert dataset.identical(tree[f"arrays/{array}"].to_dataset().drop_vars("array"))
        assert dataset.attrs["dims"] == [axis["dim"] for axis in entry["channels"]]
        for dim, axis in zip(dataset["mean"].dims, entry["channels"], strict=True):
            assert dim.rstrip("_") == axis["dim"].rstrip("_") and dataset[f"{dim}_position"].values.tolist() == axis["positions"]
            assert (dataset[dim].values.tolist() if dim in dataset.coords else None) == axis["labels"]
        for key in NUMBERS:
            same(table[key].sel(array=array), entry[key])
            same(dataset[key], entry["by_channel"][key])
            for offset, tendency in entry["tendencies"].items():
                same(table[f"tendency_{key}"].sel(array=array, offset=int(offset)), tendency[key])
                same(dataset[f"tendency_{key}"].sel(offset=int(offset)), tendency["by_channel"][key])


def test_normalising_by_xarray(stores, tmp_path):
    """As users of xarray do: by names of dimensions and labels."""
    dali_zarr.statistics(stores / "fields", arrays=["z"], output=tmp_path / "stats.zarr")
    z = xr.open_zarr(stores / "fields", consolidated=False)["z"].isel(time=0).sel(level=[500, 1000]).astype("float64")
    stats = xr.open_zarr(tmp_path / "stats.zarr", group="arrays/z")
    expected = ((z - stats["mean"]) / stats["stddev"]).transpose("level", ...)
    assert expected["level"].values.tolist() == [LEVELS[2], LEVELS[0]]
    found = build(
        path=stores / "fields", arrays=["z"], sel={"level": [500, 1000]}, channels="level", dtype="float64",
        mean=tmp_path / "stats.zarr", stddev=tmp_path / "stats.zarr",
    ).run()[0]
    assert to_numpy(found)[0].tobytes() == np.ascontiguousarray(expected.values).tobytes()


def test_command_line(stores, tmp_path, capsys, monkeypatch):
    words = ["statistics", str(stores / "fields"), "--arrays", "t2m", "z", "--offsets", "6", "--output", str(tmp_path / "s.zarr")]
    monkeypatch.setattr(sys, "argv", ["dali_zarr", *words, "--json", "--quiet"])
    assert main() == 0
    content = as_zarr.content(zarr.open_group(tmp_path / "s.zarr", mode="r"))
    assert json.loads(capsys.readouterr().out) == content == dali_zarr.statistics(stores / "fields", arrays=["t2m", "z"], offsets=6)


@pytest.mark.parametrize(
    "coordinates", [[1.0, np.nan, 3.0], [1.0, 3.0, np.inf], np.array(["2000", "NaT", "NaT"], "M8[ns]")], ids=str,
)
@pytest.mark.parametrize("ending", ["json", "zarr"])
def test_coordinates_that_are_no_labels(tmp_path, coordinates, ending):
    """Where one is missing or infinite, channels are found by position."""
    values = np.random.default_rng(0).random((9, 3, 4, 5))
    xr.Dataset(
        {"z": (("time", "level", "y", "x"), values)}, {"level": np.asarray(coordinates)},
    ).to_zarr(tmp_path / "s", zarr_format=3, consolidated=False)
    file = tmp_path / f"stats.{ending}"
    (channels,) = dali_zarr.statistics(tmp_path / "s", arrays=["z"], output=file)["arrays"]["z"]["channels"]
    assert channels == {"dim": "level", "positions": [0, 1, 2], "labels": None}
    for chosen in ([2, 1], [0]):
        found = samples(path=tmp_path / "s", arrays=["z"], isel={"level": chosen}, channels="level", mean=file)
        x = values[:, chosen]
        np.testing.assert_allclose(
            np.frombuffer(found[0]).reshape(x.shape[1:]), x[0] - x.mean(axis=(0, 2, 3))[:, None, None], rtol=1e-9, atol=1e-12,
        )


def test_a_store_with_dimensions_in_another_order(stores, tmp_path):
    """Numbers are found by names of dimensions, whatever their order in the file."""
    values = zarr.open_group(stores / "others", mode="r")["a"][:].swapaxes(1, 2)
    write_array(tmp_path / "s", "a", values, dims=("time", "offset", "count", "y", "x"))
    dali_zarr.statistics(stores / "others", arrays=["a"], channels=["count", "offset"], output=tmp_path / "stats.json")
    (found,) = samples(path=tmp_path / "s", arrays=["a"], stddev=tmp_path / "stats.json")
    expected = values[0] / values.std(axis=(0, 3, 4))[..., None, None]
    np.testing.assert_allclose(np.frombuffer(found).reshape(expected.shape), expected, rtol=1e-9)


def test_what_has_the_name(stores, tmp_path, monkeypatch):
    """Statistics are replaced; other stores and folders never. That is known before the pass."""
    target = tmp_path / "stats.zarr"
    dali_zarr.statistics(stores / "fields", arrays=["t2m", "z"], output=target)
    again = dali_zarr.statistics(stores / "fields", arrays=["t2m"], output=f"{target}/")
    assert as_zarr.content(zarr.open_group(target, mode="r")) == again
    assert [path.name for path in tmp_path.iterdir()] == ["stats.zarr"]
    zarr.open_group(tmp_path / "data.zarr", mode="w").create_array("x", data=np.zeros(3))
    (tmp_path / "file.zarr").write_text("text")
    (tmp_path / "folder").mkdir()
    (tmp_path / "nowhere.zarr").symlink_to(tmp_path / "none/s.zarr")
    monkeypatch.setattr("dali_zarr._statistics.compute._read", lambda *_: pytest.fail("the pass began"))
    for name, kind, message in (
        ("data.zarr", FileExistsError, "output: expected a new name, or that of a Zarr group of statistics, which is replaced"),
        ("file.zarr", FileExistsError, "output: expected a new name, or that of a Zarr group of statistics, which is replaced"),
        ("folder", IsADirectoryError, "output: expected the name of a file, or one that ends in .zarr, but found the folder"),
        ("nowhere.zarr", FileNotFoundError, "output: expected an existing folder, but found none at"),
        ("stats.zarr.zip", OSError, "output: expected a name that ends in .json or .zarr"),
        ("none/s.zarr", FileNotFoundError, "output: expected an existing folder, but found none at"),
    ):
        with pytest.raises(kind, match=message):
            dali_zarr.statistics(stores / "fields", arrays=["t2m"], output=tmp_path / name)
    assert zarr.open_group(tmp_path / "data.zarr", mode="r")["x"].shape == (3,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("z/mean", "its group would be inside that of 'z'"),
        ("../z2", "that isn't a name of a group"),
        ("z2/", "that isn't a name of a group"),
    ],
)
def test_names_that_groups_cannot_have(stores, tmp_path, monkeypatch, name, message):
    """That is known before the pass, and JSON takes them."""
    arrays = {"z": str(stores / "others/b"), name: str(stores / "others/c")}
    found = dali_zarr.statistics(arrays=arrays, output=tmp_path / "stats.json")
    assert list(json.loads((tmp_path / "stats.json").read_text())["arrays"]) == ["z", name]
    with pytest.raises(ValueError, match=f"array '{name}': {message}; give the output another name, or write JSON"):
        found.save(tmp_path / "stats.zarr")
    monkeypatch.setattr("dali_zarr._statistics.compute._read", lambda *_: pytest.fail("the pass began"))
    with pytest.raises(ValueError, match=f"statistics: output: array '{name}': {message}"):
        dali_zarr.statistics(arrays=arrays, output=tmp_path / "stats.zarr")


def test_a_link_and_a_failure(stores, tmp_path, monkeypatch):
    """Where the name is a link, what it leads to is replaced. If that fails, the former numbers stay."""
    (tmp_path / "there").mkdir()
    link = tmp_path / "stats.zarr"
    link.symlink_to(tmp_path / "there/s.zarr")
    for arrays in (["t2m", "z"], ["t2m"]):
        content = dali_zarr.statistics(stores / "fields", arrays=arrays, output=link)
        assert link.is_symlink() and as_zarr.content(zarr.open_group(tmp_path / "there/s.zarr", mode="r")) == content
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if path.name.endswith(".new"):
            raise OSError("no space left")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no space left"):
        dali_zarr.statistics(stores / "fields", arrays=["z"], output=link)
    assert as_zarr.content(zarr.open_group(link, mode="r")) == content
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["s.zarr"]


def test_a_damaged_group(stores, tmp_path):
    dali_zarr.statistics(stores / "fields", arrays=["z"], channels="level", output=tmp_path / "s.zarr")
    (chunk,) = (tmp_path / "s.zarr/arrays/z/mean").rglob("c/*")
    chunk.write_bytes(b"no chunk")
    with pytest.raises(ValueError, match="mean: file .*s.zarr: expected whole arrays, but they can't be read"):
        dali_zarr.explain(path=stores / "fields", arrays=["z"], mean=tmp_path / "s.zarr")


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_a_later_version(stores, tmp_path):
    dali_zarr.statistics(stores / "fields", arrays=["t2m"], output=tmp_path / "s.zarr")
    zarr.open_group(tmp_path / "s.zarr", mode="a").attrs["version"] = 2
    zarr.consolidate_metadata(tmp_path / "s.zarr")
    with pytest.raises(ValueError, match="mean: file .*s.zarr: expected version 1 of the format, but found 2"):
        dali_zarr.explain(path=stores / "fields", arrays=["t2m"], mean=tmp_path / "s.zarr")


def test_what_has_no_end_is_no_file_of_statistics(stores, tmp_path):
    """A pipe, a device, and files and groups that claim more than statistics have."""
    for name in ("pipe.json", "pipe.npy", "pipe.nc"):
        os.mkfifo(tmp_path / name)
    for name in ("zero.json", "zero.npy", "zero.nc"):
        (tmp_path / name).symlink_to("/dev/zero")
    (tmp_path / "large.json").touch()
    os.truncate(tmp_path / "large.json", 2 << 30)
    words = "can't be read: expected a file, but found a folder, a pipe|expected statistics of at most"
    for file in tmp_path.iterdir():
        with pytest.raises(ValueError, match=f"mean: .*({words})"):
            dali_zarr.explain(path=stores / "fields", arrays=["t2m"], mean=file)
    # A header with more numbers than the file has.
    np.save(tmp_path / "few.npy", np.zeros(2, np.float32))
    file = tmp_path / "few.npy"
    file.write_bytes(file.read_bytes().replace(b"(2,), }      ", b"(2222222,), }"))
    with pytest.raises(ValueError, match="mean: "):
        dali_zarr.explain(path=stores / "fields", arrays=["t2m"], mean=file)
    dali_zarr.statistics(stores / "fields", arrays=["t2m"], output=tmp_path / "s.zarr")
    group = zarr.open_group(tmp_path / "s.zarr", mode="a")
    del group["mean"]
    group.create_array("mean", shape=(1 << 40,), chunks=(1 << 20,), dtype="float64", fill_value=0.0, dimension_names=["array"])
    zarr.consolidate_metadata(tmp_path / "s.zarr")
    with pytest.raises(ValueError, match=f"expected statistics of at most {1 << 30} bytes, but found {8 << 40}"):
        dali_zarr.explain(path=stores / "fields", arrays=["t2m"], mean=tmp_path / "s.zarr")


def test_from_a_server(stores, tmp_path):
    """Beside the data, by the same URL."""
    shutil.copytree(stores / "fields", tmp_path / "fields")
    dali_zarr.statistics(stores / "fields", arrays=["z"], channels="level", output=tmp_path / "stats.zarr")
    local = samples(path=stores / "fields", arrays=["z"], mean=tmp_path / "stats.zarr", stddev=tmp_path / "stats.zarr")
    with Server(tmp_path) as server:
        url = f"{server.url}/stats.zarr"
        assert samples(path=f"{server.url}/fields", arrays=["z"], mean=url, stddev=url) == local
        with pytest.raises(ValueError, match="mean: expected numbers or a file of statistics, but 'http.*none.zarr' can't be read"):
            dali_zarr.explain(path=stores / "fields", arrays=["z"], mean=f"{server.url}/none.zarr")
