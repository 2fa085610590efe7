"""Stores of anemoi-datasets: dates that they declare missing, and the rows of their tabular data."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
import zarr
from support.pipelines import batches, build
from support.stores import Layout, write_array

DATES = np.arange("2020-01-01", "2020-01-09", dtype="datetime64[D]").astype("datetime64[s]")
# Element 3 and element 6.
MISSING = ["2020-01-04T00:00:00", "2020-01-07T00:00:00"]


def write(path: Path, missing: list[str], dates: np.ndarray = DATES, first: int = 0, name: str = "dates") -> Path:
    """Fields that are numbered from ``first`` on, NaN at missing dates, as anemoi-datasets writes them."""
    values = np.repeat(np.arange(first, first + len(dates), dtype="float32"), 6).reshape(-1, 2, 1, 3)
    values[np.isin(dates, np.array([date[:10] for date in missing], "datetime64[s]"))] = np.nan
    dims = ("time", "variable", "ensemble", "cell")
    write_array(path, "data", values, zarr_format=2, layout=Layout((1, 2, 1, 3)), dims=dims)
    group = zarr.open_group(str(path), mode="a", zarr_format=2)
    array = group.create_array(name, shape=dates.shape, dtype=dates.dtype, chunks=dates.shape)
    array[...] = dates
    array.attrs["_ARRAY_DIMENSIONS"] = ["time"]
    group.attrs.update({"missing_dates": missing, "frequency": "24h", "variables": ["2t", "msl"]})
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("anemoi") / "a.zarr", MISSING)


def starts(path: Any, **args: Any) -> list[list[int]]:
    """The index of each sample of an epoch. No sample may have a NaN."""
    pipe = build("cpu", 1, path=path, **{"arrays": ["data"]} | args, return_index=True)
    found = batches(pipe)
    index: list[list[int]] = []
    for _ in range(pipe.reader_meta("reader")["epoch_size"]):
        *outputs, at = next(found)
        assert not any(np.isnan(output).any() for output in outputs)
        index.append(at[0].tolist())
    return index


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, [0, 1, 2, 4, 5, 7]),
        ({"offsets": [0, 1]}, [0, 1, 4]),
        # Between two offsets may lie what is missing.
        ({"offsets": [0, 2]}, [0, 2, 5]),
        ({"offsets": [-1, 0]}, [1, 2, 5]),
        ({"window": {"time": 2}, "step": {"time": 1}}, [0, 1, 4]),
        ({"window": {"time": 2}, "stride": {"time": 2}, "step": {"time": 1}}, [0, 2, 5]),
        ({"window": {"time": 2}}, [0, 4]),
        ({"roi_start": {"time": 3}, "roi_end": {"time": 6}}, [4, 5]),
        ({"isel": {"time": slice(1, None, 2)}}, [1, 5, 7]),
        ({"isel": {"time": slice(2, None)}, "offsets": [0, 1]}, [4]),
        ({"pick": {"time": [7, 6, 5, 3, 2]}}, [0, 2, 4]),
        ({"breaks": [1], "offsets": [0, 1]}, [[1, 1], [1, 4]]),
        ({"window": {"time": 3}, "step": {"time": 1}, "out_of_bounds_policy": "pad"}, [0, 7]),
        ({"window": {"time": 2}, "step": {"time": 1}, "out_of_bounds_policy": "edge"}, [0, 1, 4, 7]),
        ({"starts": [[7], [3], [4], [4]]}, [7, 4, 4]),
        ({"starts": [[0], [2], [5]], "offsets": [0, 1]}, [0]),
        ({"step": {"time": 3}}, [0]),
        # Samples are cut along another dimension.
        ({"dims": ["cell"], "isel": {"time": slice(0, 3)}}, [0, 1, 2]),
    ],
    ids=str,
)
def test_samples_that_read_missing_dates_are_left_out(store, args, expected):
    found = starts(store, **args)
    assert [at if len(at) > 1 and "breaks" in args else at[0] for at in found] == expected


def test_at_the_edge(tmp_path):
    """An element that is repeated is read."""
    path = write(tmp_path / "a.zarr", [str(DATES[0]), str(DATES[-1])])
    how: dict[str, Any] = {"offsets": [-1, 1], "out_of_bounds_policy": "edge"}
    assert starts(path, **how) == [[2], [3], [4], [5]]
    assert starts(path, **how | {"out_of_bounds_policy": "pad"}) == [[0], [2], [3], [4], [5], [7]]


def test_they_can_be_kept(store):
    """By name. Else a table with such a start is an error where the policy forbids it."""
    pipe = build("cpu", 8, path=store, arrays=["data"], missing_dates="keep")
    (values,) = next(batches(pipe))
    assert np.isnan(values).all(axis=(1, 2, 3)).nonzero()[0].tolist() == [3, 6]
    pairs = build("cpu", 1, path=store, arrays=["data"], missing_dates="keep", offsets=[0, 1])
    assert pairs.reader_meta("reader")["epoch_size"] == 7
    with pytest.raises(ValueError, match="starts: row 1 starts at 6 .* data are missing"):
        build("cpu", 1, path=store, arrays=["data"], starts=[[0], [6]], out_of_bounds_policy="error")
    with pytest.raises(ValueError, match="missing_dates"):
        build("cpu", 1, path=store, arrays=["data"], missing_dates="fill")


def test_several_stores(tmp_path):
    """Each has its own missing dates, joined or one after the other."""
    later = DATES + np.timedelta64(8, "D")
    paths = [write(tmp_path / "a.zarr", MISSING), write(tmp_path / "b.zarr", [str(later[0])], later, first=8)]
    assert [at for (at,) in starts(paths, offsets=[0, 1])] == [0, 1, 4, *range(9, 15)]
    one_by_one = starts(paths, offsets=[0, 1], concat="samples")
    assert one_by_one == [[0, at] for at in (0, 1, 4)] + [[1, at] for at in range(1, 7)]
    assert starts(paths, starts=[[0, 3], [1, 3], [1, 0]], concat="samples") == [[1, 3]]
    # An array with a store of its own has the dates beside it.
    own = {"arrays": {"x": str(paths[0] / "data")}}
    pipe = build("cpu", 1, **own, return_index=True)
    assert pipe.reader_meta("reader")["epoch_size"] == 6


def test_base_dates(tmp_path):
    """Those of trajectories, with fractions and zones in the attribute."""
    path = write(tmp_path / "a.zarr", ["2020-01-04T00:00:00", "2020-01-07T01:00:00+01:00"], name="base_dates")
    pipe = build("cpu", 1, path=path, arrays=["data"])
    assert pipe.reader_meta("reader")["epoch_size"] == 6


def test_it_is_told(tmp_path, caplog):
    """In the log and in explanations, with numbers."""
    store = write(tmp_path / "a.zarr", MISSING)
    caplog.set_level(logging.INFO, "dali_zarr")
    build("cpu", 1, path=store, arrays=["data"], offsets=[0, 1], roi_end=[7])
    (told,) = {r.getMessage() for r in caplog.records if "missing" in r.getMessage()}
    assert "the data of 2 dates are missing" in told and "3 samples read some of them" in told
    explained = dali_zarr.explain(path=str(store), arrays=["data"], offsets=[0, 1])
    assert explained["missing_dates"] == {"dates": 2, "samples_left_out": 4, "filled": None} and explained["samples"] == 3
    assert "missing dates: 2; 4 samples" in str(explained)
    assert explained["segments"]["count"] == explained["segments"]["read"] == 1
    for how in ({"missing_dates": "keep"}, {"roi_end": [3]}):
        assert dali_zarr.explain(path=str(store), arrays=["data"], **how)["missing_dates"] is None


def test_states_tell_samples_apart(store):
    """A state of a reader with the missing dates isn't one of a reader without them."""
    kept = build("cpu", 1, path=store, arrays=["data"], missing_dates="keep", checkpointing=True)
    kept.run()
    with pytest.raises(Exception, match="reader of other samples: starts"):
        build("cpu", 1, path=store, arrays=["data"], checkpointing=True, checkpoint=kept.checkpoint())


@pytest.mark.parametrize(
    ("attribute", "dates", "match"),
    [
        (["2020-01-04"], None, "no"),
        (["soon"], DATES, "'soon'|\"soon\""),
        (["2020-01-04"], np.arange(8), "int64|no units"),
        (["2020-01-04"], DATES[:5], r"\[5\]"),
        # Other attributes of this name.
        ("2020-01-04", DATES, None), ([4], DATES, None), ({"a": 1}, DATES, None), ([], DATES, None),
    ],
    ids=str,
)
def test_odd_declarations(tmp_path, attribute, dates, match):
    """A declaration that can't be followed is an error that says how to read all; another attribute has no effect."""
    path = write(tmp_path / "a.zarr", MISSING)
    group = zarr.open_group(str(path), mode="a")
    group.attrs["missing_dates"] = attribute
    del group["dates"]
    if dates is not None:
        write_array(path, "dates", dates, zarr_format=2, dims=("time",)) if dates.dtype.kind == "i" else None
        if dates.dtype.kind != "i":
            array = group.create_array("dates", shape=dates.shape, dtype=dates.dtype, chunks=dates.shape)
            array[...] = dates
            array.attrs["_ARRAY_DIMENSIONS"] = ["time"]
    if match is None:
        assert build("cpu", 1, path=path, arrays=["data"]).reader_meta("reader")["epoch_size"] == 8
        return
    with pytest.raises(ValueError, match="missing_dates=\"keep\"") as raised:
        build("cpu", 1, path=path, arrays=["data"])
    assert "a.zarr" in str(raised.value)
    assert build("cpu", 1, path=path, arrays=["data"], missing_dates="keep").reader_meta("reader")["epoch_size"] == 8


def test_no_sample_is_left(tmp_path):
    path = write(tmp_path / "a.zarr", [str(date) for date in DATES])
    with pytest.raises(ValueError, match="each of the 8 samples reads a date whose data are missing"):
        build("cpu", 1, path=path, arrays=["data"])


def test_statistics_and_checks_see_all(store):
    """What isn't a sample is still part of the store."""
    found = dali_zarr.statistics(path=str(store), arrays=["data"])
    assert found["arrays"]["data"]["mean"] == pytest.approx(np.mean([0, 1, 2, 4, 5, 7]))


# Tabular data.


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tabular") / "t.zarr"
    lengths = [3, 1, 4]
    write_array(path, "data", np.arange(16, dtype="float32").reshape(8, 2), zarr_format=2, layout=Layout((3, 2)))
    ranges = np.array([[1_577_836_800 + 3600 * i, sum(lengths[:i]), n] for i, n in enumerate(lengths)])
    write_array(path, "date_index_ranges", ranges, zarr_format=2, dims=("epoch", "start_idx", "length"))
    return path


@pytest.mark.parametrize("location", [False, True])
def test_rows_of_dates(table, device, location):
    """By name and by location; a sample has the observations of one date."""
    ragged = str(table / "date_index_ranges") if location else "date_index_ranges"
    pipe = build(device, 1, path=table, arrays=["data"], ragged=ragged)
    assert pipe.reader_meta("reader")["epoch_size"] == 3
    found = batches(pipe)
    values = np.arange(16, dtype="float32").reshape(8, 2)
    for first, end in ((0, 3), (3, 4), (4, 8)):
        (sample,), = next(found)
        np.testing.assert_array_equal(sample, values[first:end])


@pytest.mark.parametrize("row", [(1, 4, 1), (1, 2, 1), (1, 3, -1), (1, -3, 1), (1, 3, 2**62)], ids=str)
def test_ranges_that_do_not_follow_each_other(tmp_path, table, row):
    path = tmp_path / "t.zarr"
    write_array(path, "data", np.zeros((8, 2), "float32"), zarr_format=2)
    write_array(path, "date_index_ranges", np.array([[0, 0, 3], row, [2, 4, 4]]), zarr_format=2)
    with pytest.raises(ValueError, match="date_index_ranges"):
        build("cpu", 1, path=path, arrays=["data"], ragged="date_index_ranges")
    with pytest.raises(ValueError, match="one dimension"):
        build("cpu", 1, path=table, arrays=["data"], ragged_ends="date_index_ranges")
