"""``mean`` and ``stddev`` take the files of other programs: makani's, GraphCast's, anemoi's."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
import xarray as xr
import zarr
from support.pipelines import build, to_numpy
from support.statistics import normalised, written


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("foreign") / "s"
    written(path)
    return path


def test_makani(fields, tmp_path):
    """global_means.npy and global_stds.npy, of shape (1, channel, 1, 1)."""
    means, stds = (np.random.default_rng(i).random((1, 4, 1, 1)) + 1 for i in range(2))
    np.save(tmp_path / "global_means.npy", means)
    np.save(tmp_path / "global_stds.npy", stds)
    files = {"mean": tmp_path / "global_means.npy", "stddev": tmp_path / "global_stds.npy"}
    found = normalised(fields, arrays=["t2m", "z"], **files)
    assert found.tobytes() == normalised(fields, arrays=["t2m", "z"], mean=means.ravel(), stddev=stds.ravel()).tobytes()
    with pytest.raises(ValueError, match="expected 3 numbers, one for each of the channels of the stack, but found 4"):
        dali_zarr.explain(path=fields, arrays=["t2m", "z"], pick={"level": [0, 1]}, stack_arrays=True, **files)
    np.save(tmp_path / "global_means.npy", means[:, :3])
    sample = to_numpy(build(path=fields, arrays=["z"], mean=tmp_path / "global_means.npy").run()[0])[0]
    assert sample.tobytes() == to_numpy(build(path=fields, arrays=["z"], mean=means.ravel()[:3]).run()[0])[0].tobytes()


def test_netcdf_by_level(fields, tmp_path):
    """GraphCast's files, whose levels may come in another order."""
    dataset = xr.Dataset(
        {"z": ("level", [5.0, 8.5, 10.0, 9.0]), "t2m": ((), 280.0)}, coords={"level": np.array([500, 850, 1000, 925], "i4")},
    )
    file = tmp_path / "mean_by_level.nc"
    dataset.to_netcdf(file)
    found = normalised(fields, arrays=["t2m", "z"], mean=file)
    assert found.tobytes() == normalised(fields, arrays=["t2m", "z"], mean=[280, 10, 8.5, 5]).tobytes()
    alone = to_numpy(build(path=fields, arrays=["z"], mean=file).run()[0])[0]
    assert alone.tobytes() == found[1:].tobytes()
    with pytest.raises(ValueError, match="expected one number, but found one for each of 3 elements of 'level'"):
        dali_zarr.explain(path=fields, arrays=["z"], mean=file, channels=[])



NAMES = ["2t", "10u", "z_500", "lsm", "q_850"]


def write_anemoi(path: Path, values: np.ndarray, names: list[str], attribute: str = "variables", zarr_format: int = 2) -> Path:
    """The layout of anemoi-datasets (its version 0.5.47), written by zarr-python: ``data`` (time, variable, ensemble, cell) and
    float64 statistics by variable, with dimensions in ``_ARRAY_DIMENSIONS`` and the variables' names in an attribute."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    group.attrs.update({
        "dimensions": ["dates", "variables", "ensembles", "values"], "layout": "gridded", "frequency": "6h",
        attribute: names if attribute == "variables" else {name: i for i, name in enumerate(names)},
    })

    def add(name: str, content: np.ndarray, dims: list[str], chunks: tuple[int, ...]) -> None:
        fill_value = np.nan if name == "data" else None
        group.create_array(name, data=content, chunks=chunks, fill_value=fill_value).attrs["_ARRAY_DIMENSIONS"] = dims

    times, variables, members, cells = values.shape
    add("data", values, ["time", "variable", "ensemble", "cell"], (1, variables, members, cells))
    add("dates", np.datetime64("2020-01-01", "s") + np.arange(times) * np.timedelta64(6, "h"), ["time"], (times,))
    add("latitudes", np.linspace(90, -90, cells), ["cell"], (cells,))
    add("longitudes", np.linspace(0, 360, cells), ["cell"], (cells,))
    doubles = values.astype("f8")
    for prefix, of in (("", doubles), ("statistics_tendencies_6h_", np.diff(doubles, axis=0))):
        for name, function in (("mean", np.mean), ("stdev", np.std), ("minimum", np.min), ("maximum", np.max)):
            add(prefix + name, function(of, axis=(0, 2, 3)), ["variable"], (variables,))
    return path


@pytest.fixture(scope="module")
def anemoi(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    values = np.random.default_rng(0).standard_normal((6, 5, 2, 40)) * np.array([1, 10, 1e3, 0.2, 1e-3])[:, None, None]
    values = (values + np.array([280, 0, 5e4, 0.5, 1e-2])[:, None, None]).astype("f4")
    return write_anemoi(tmp_path_factory.mktemp("anemoi") / "aifs.zarr", values, NAMES), values


@pytest.mark.parametrize("channels", [None, "variable", 1, {"data": "variable"}], ids=str)
@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"pick": {"variable": [3, 0]}}, [3, 0]),
        ({"pick": {"variable": [-1]}}, [4]),
        ({"sel": {"variable": ["q_850", "2t", "lsm"]}}, [4, 0, 3]),
        ({"sel": {"variable": "z_500"}}, [2]),
        ({"isel": {"variable": slice(1, None, 2)}}, [1, 3]),
    ],
    ids=str,
)
def test_anemoi(anemoi, selection, chosen, channels):
    """What NumPy makes of the store's own arrays, to the bit in float64."""
    path, values = anemoi
    group = zarr.open_group(path, mode="r")
    mean, stdev = (group[name][:][chosen][:, None, None] for name in ("mean", "stdev"))
    expected = (values[:2, chosen].astype("f8") - mean) / stdev
    told = {} if channels is None else {"channels": channels}
    found = to_numpy(build(path=path, arrays=["data"], mean=path, stddev=str(path), dtype="float64", **selection, **told).run()[0])
    assert np.stack(found).reshape(expected.shape).tobytes() == expected.tobytes()


def test_anemoi_of_another_store(anemoi, tmp_path):
    """By name, where the reader's store has names: one of anemoi with others, in another order. By position where it has none."""
    path, values = anemoi
    mean = zarr.open_group(path, mode="r")["mean"][:]
    order = [3, 1, 0]
    other = write_anemoi(tmp_path / "o.zarr", values[:, order], [NAMES[i] for i in order], "variables", 3)
    with pytest.raises(ValueError, match="expected statistics of variable tp, but found those of 2t, 10u"):
        dali_zarr.explain(path=write_anemoi(tmp_path / "n.zarr", values[:, :1], ["tp"]), arrays=["data"], mean=path)
    plain = tmp_path / "p.zarr"
    zarr.open_group(plain, mode="w").create_array("x", data=values, dimension_names=["time", "variable", "ensemble", "cell"])
    for arguments, names, rows in (
        ({"path": other, "arrays": ["data"]}, order, values[0, order]), ({"path": plain, "arrays": ["x"]}, range(5), values[0]),
        ({"arrays": {"x": str(other / "data")}}, order, values[0, order]),
    ):
        found = to_numpy(build(mean=path, dtype="float64", **arguments).run()[0])[0]
        assert found.tobytes() == (rows.astype("f8") - mean[list(names)][:, None, None]).tobytes()
    zarr.open_group(plain, mode="a").create_array("y", data=values[:, :4], dimension_names=["time", "variable", "ensemble", "cell"])
    with pytest.raises(ValueError, match="expected names of its 4 elements along 'variable', or as many as the file has .* 5"):
        dali_zarr.explain(path=plain, arrays=["y"], mean=path)


def test_anemoi_as_it_was_or_is_packed(anemoi, tmp_path):
    """Names in ``name_to_index``, as of old stores; a zip file."""
    path, values = anemoi
    old = write_anemoi(tmp_path / "old.zarr", values, NAMES, "name_to_index")
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as packed:
        for file in sorted(path.rglob("*")):
            packed.write(file, str(file.relative_to(path)))
    files = [old, tmp_path / "s.zip"]
    pick = {"variable": [2, 1]}
    samples = [to_numpy(build(path=path, arrays=["data"], pick=pick, mean=f, stddev=f).run()[0])[0] for f in [path, *files]]
    assert samples[0].tobytes() == samples[1].tobytes() == samples[2].tobytes()
    # The reader's own store may be as old, with the variables in another order.
    order = [3, 1, 0, 4, 2]
    data = write_anemoi(tmp_path / "data.zarr", values[:, order], [NAMES[i] for i in order], "name_to_index")
    found = to_numpy(build(path=data, arrays=["data"], mean=path, dtype="float64").run()[0])[0]
    mean = zarr.open_group(path, mode="r")["mean"][:]
    assert found.tobytes() == (values[0, order].astype("f8") - mean[order][:, None, None]).tobytes()


def test_anemoi_has_no_numbers(anemoi, tmp_path):
    path, values = anemoi
    constant = values.copy()
    constant[:, 3] = 1
    constant[:, 4] = np.nan
    odd = write_anemoi(tmp_path / "odd.zarr", constant, NAMES)
    zarr.open_group(tmp_path / "none.zarr", mode="w").create_array("mean", data=values[0, 0, 0])
    twice = write_anemoi(tmp_path / "twice.zarr", values, ["2t", "10u", "2t", "lsm", "q_850", "z_500"][:5])
    damaged = write_anemoi(tmp_path / "damaged.zarr", values, NAMES)
    (damaged / "mean/0").write_bytes(b"no chunk")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"stddev": odd, "pick": {"variable": [0, 3]}}, "variable lsm: expected a stddev other than 0"),
        ({"mean": odd}, "variable q_850: expected a finite number, but there is none"),
        ({"mean": path, "channels": []}, "expected one number, but found one for each of 5 elements of 'variable'"),
        ({"mean": path, "channels": "ensemble"}, "expected statistics for each element of 'ensemble', but found those along"),
        ({"mean": tmp_path / "none.zarr"}, "expected a Zarr group that dali_zarr.statistics wrote, or a store of anemoi-datasets"),
        ({"mean": tmp_path / "missing.zarr"}, "expected numbers or a file of statistics, but .*missing.zarr' can't be read"),
        ({"mean": twice}, "expected each label along 'variable' once, but the file has 2t twice"),
        ({"mean": damaged}, "expected whole arrays, but they can't be read"),
        ({"mean": path, "arrays": ["latitudes"]}, "'latitudes': expected a dimension 'variable', as the file has it"),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            dali_zarr.explain(**{"path": path, "arrays": ["data"], **arguments})


def test_statistics_of_anemoi_are_its_own(anemoi, tmp_path):
    """The variables are channels by their names; members and cells aren't."""
    path, values = anemoi
    group = zarr.open_group(path, mode="r")
    entry = dali_zarr.statistics(path, arrays=["data"], offsets=1, output=tmp_path / "s.zarr")["arrays"]["data"]
    assert entry["channels"] == [{"dim": "variable", "positions": [0, 1, 2, 3, 4], "labels": NAMES}]
    for theirs, ours in (("mean", "mean"), ("stdev", "stddev"), ("minimum", "min"), ("maximum", "max")):
        np.testing.assert_allclose(entry["by_channel"][ours], group[theirs][:], rtol=1e-12)
        tendency = entry["tendencies"]["1"]["by_channel"][ours]
        # Differences of means nearly cancel.
        np.testing.assert_allclose(tendency, group[f"statistics_tendencies_6h_{theirs}"][:], rtol=1e-9, atol=1e-10)
    dataset = xr.open_zarr(tmp_path / "s.zarr", group="arrays/data")
    assert dataset["mean"].sel(variable="10u").values == entry["by_channel"]["mean"][1]
