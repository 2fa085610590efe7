"""Dates that the stores lack: ``fill_missing`` puts them in. Against xarray's ``reindex``, ``ffill`` and ``interp``."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from dali_zarr.torch import Loader
from hypothesis import given
from hypothesis import strategies as st
from support.pipelines import batches, build

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("absent")


def write(path: Path, dates: Any, first: int = 0) -> Path:
    """Writes x (time, y) with a number for each date, and y, which has no time."""
    values = (first + np.arange(len(dates)))[:, None] + np.array([0.0, 0.25])
    found = xr.Dataset({"x": (("time", "y"), values.astype("float32")), "mask": ("y", np.arange(2.0))}, coords={"time": dates})
    found.to_zarr(path, consolidated=False, zarr_format=2)
    return path


def filled(dataset: xr.Dataset, whole: Any, how: str) -> np.ndarray:
    x = dataset["x"].astype("float64")
    if how == "linear":
        return x.interp(time=whole).values
    return x.reindex(time=whole, method="ffill" if how == "previous" else None).values


@given(st.data())
def test_as_xarray(folder, device, data):
    draw = data.draw
    count = draw(st.integers(10, 30))
    freq = draw(st.sampled_from(["h", "6h", "D"]))
    whole = pd.date_range("2019-12-30", periods=count, freq=freq)
    # Fewer are absent than half of the distances are wide, so that the distance of most is that of all.
    absent = draw(st.sets(st.integers(1, count - 2), max_size=count // 4))
    dates = whole.delete(sorted(absent))
    if not (np.diff(dates) == np.diff(whole)[0]).sum() * 2 >= len(dates) - 1:
        return
    is_joined = draw(st.booleans())
    cut = draw(st.integers(2, len(dates) - 2))
    paths = [folder / f"{next(NUMBERS)}.zarr" for _ in range(1 + is_joined)]
    parts = [(dates[:cut], 0), (dates[cut:], cut)] if is_joined else [(dates, 0)]
    for path, (of, first) in zip(paths, parts, strict=True):
        write(path, of, first)
    how = draw(st.sampled_from(["previous", "nan", "linear"]))
    dataset = xr.Dataset({"x": (("time", "y"), np.arange(len(dates))[:, None] + np.array([0.0, 0.25]))}, coords={"time": dates})
    want = filled(dataset, whole, how)
    window, stride = draw(st.integers(0, 4)), draw(st.integers(1, 2))
    offsets = draw(st.sampled_from([[0], [0, 2]]))
    args: dict[str, Any] = {
        "path": paths, "arrays": ["x", "mask"], "dims": ["time"], "window": [window], "stride": [stride], "step": [1],
        "offsets": offsets, "fill_missing": how, "return_mask": True, "return_index": True,
    }
    pipe = build(device, 1, **args)
    reach = max(offsets) + (max(window, 1) - 1) * stride
    assert pipe.reader_meta("reader")["epoch_size"] == count - reach
    for start, outputs in zip(range(count - reach), batches(pipe), strict=False):
        *outputs, mask, index = (output[0] for output in outputs)
        assert index.tolist() == [start]
        masks = []
        for offset, (x, static) in zip(offsets, zip(outputs[::2], outputs[1::2], strict=True), strict=True):
            at = start + offset + np.arange(max(window, 1)) * stride
            np.testing.assert_array_equal(x, (want[at] if window else want[at[0]]).astype("float32"))
            assert static.tolist() == [0, 1]
            masks.append(~np.isin(at, sorted(absent)))
        wanted = np.stack(masks) if len(offsets) > 1 else masks[0]
        np.testing.assert_array_equal(mask, wanted if window else wanted[..., 0])


def test_labels_selections_and_what_is_told(tmp_path, caplog):
    whole = pd.date_range("2020-01-01", periods=12, freq="6h")
    path = write(tmp_path / "a.zarr", whole.delete([3, 4, 8]))
    loader = Loader(path, arrays=["x"], fill_missing="linear", batch_size=20, device="cpu")
    (batch,) = loader
    assert (batch.coords["time"] == whole.values).all()
    assert batch["x"][:, 0].tolist() == pytest.approx([0, 1, 2, 2 + 1 / 3, 2 + 2 / 3, 3, 4, 5, 5.5, 6, 7, 8])
    told = dali_zarr.explain(path=path, arrays=["x"], fill_missing="previous")
    assert told["missing_dates"] == {"dates": 3, "samples_left_out": 0, "filled": "previous"} and told["samples"] == 12
    assert "lack 3 dates along 'time', in 2 places, the first after 2020-01-01T12" in caplog.text
    # Labels select dates that the store lacks, and steps count all.
    chosen = Loader(
        path, arrays=["x"], fill_missing="previous", sel={"time": slice("2020-01-01T18", "2020-01-03T00")}, step={"time": 2},
        batch_size=20, device="cpu",
    )
    (batch,) = chosen
    assert (batch.coords["time"] == whole.values[[3, 5, 7]]).all() and batch["x"][:, 0].tolist() == [2, 3, 5]
    # Without fill_missing nothing changes.
    assert len(Loader(path, arrays=["x"], device="cpu")) == 9
    assert dali_zarr.explain(path=path, arrays=["x"], breaks="auto", window=[2], step=[1])["samples"] == 6


def test_arrays_of_another_rate_are_aligned_to_all_dates(tmp_path):
    hours = pd.date_range("2020-01-01", periods=24, freq="h")
    path = write(tmp_path / "h.zarr", hours.delete([5, 6, 13]))
    days = xr.Dataset({"sst": ("time", np.array([10.0, 34.0]))}, coords={"time": pd.date_range("2020-01-01", periods=2, freq="D")})
    days.to_zarr(tmp_path / "s.zarr", consolidated=False)
    args: dict[str, Any] = {
        "path": path, "arrays": {"x": "x", "sst": str(tmp_path / "s.zarr/sst")}, "align": {"sst": "linear"},
        "fill_missing": "previous",
    }
    loader = Loader(**args, batch_size=24, device="cpu", return_mask=True)
    (batch,) = loader
    assert batch["sst"].tolist() == [10.0 + h for h in range(24)]
    assert batch["x"][:, 0].tolist() == [0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 9, 10, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]
    assert batch["mask"].tolist() == [h not in (5, 6, 13) for h in range(24)]


def test_checkpoints_and_shuffles(tmp_path):
    whole = pd.date_range("2020-01-01", periods=40, freq="D")
    path = write(tmp_path / "a.zarr", whole.delete([7, 8, 21]))
    args: dict[str, Any] = {
        "arrays": ["x"], "fill_missing": "previous", "random_shuffle": True, "seed": 3, "batch_size": 4, "device": "cpu",
    }
    loader = Loader(path, **args)
    found = [batch.index[:, 0].tolist() for batch in loader]
    assert sorted(itertools.chain(*found)) == list(range(40))
    loader = Loader(path, **args)
    batches_ = iter(loader)
    for _ in range(3):
        next(batches_)
    other = Loader(path, **args)
    other.load_state_dict(loader.state_dict())
    assert [batch.index[:, 0].tolist() for batch in other] == found[3:]
    plain = Loader(path, **{**args, "fill_missing": None})
    with pytest.raises(ValueError, match="other samples"):
        plain.load_state_dict(loader.state_dict())


def test_dates_of_other_calendars_and_descending_ones(tmp_path):
    dates = xr.date_range("2001-02-25", periods=8, freq="D", calendar="noleap", use_cftime=True)
    path = write(tmp_path / "c.zarr", dates.delete(4))
    (batch,) = Loader(path, arrays=["x"], fill_missing="linear", batch_size=8, device="cpu")
    assert batch["x"][:, 0].tolist() == [0, 1, 2, 3, 3.5, 4, 5, 6] and list(batch.coords["time"]) == list(dates)
    down = pd.date_range("2020-01-01", periods=8, freq="D")[::-1]
    path = write(tmp_path / "d.zarr", down.delete([2, 3]))
    (batch,) = Loader(path, arrays=["x"], fill_missing="previous", batch_size=8, device="cpu")
    assert batch["x"][:, 0].tolist() == [0, 1, 1, 1, 2, 3, 4, 5] and (batch.coords["time"] == down.values).all()


@pytest.mark.parametrize(
    "dates",
    [
        pd.date_range("2020-01-01", periods=9, freq="MS"),  # months have no one length
        pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-04", "2020-01-09", "2020-01-20"]),  # hardly regular
        pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-02", "2020-01-03", "2020-01-05"]),  # one comes twice
        pd.to_datetime(["2020-01-01T00", "2020-01-01T01", "2020-01-01T02", "2999-01-01T00"]),  # too many would be filled
    ],
    ids=["months", "irregular", "twice", "endless"],
)
def test_dates_that_are_not_regular_are_as_stored(tmp_path, dates):
    path = write(tmp_path / "a.zarr", dates)
    assert dali_zarr.explain(path=path, arrays=["x"], fill_missing="previous")["samples"] == len(dates)


def test_coordinates_that_cannot_be_read(tmp_path, caplog):
    path = write(tmp_path / "a.zarr", pd.date_range("2020-01-01", periods=10, freq="D").delete(4))
    (path / "time" / "0").write_bytes(b"damaged")
    assert dali_zarr.explain(path=path, arrays=["x"], fill_missing="previous")["samples"] == 9
    assert "dates along 'time' that the stores lack aren't looked for" in caplog.text


def test_breaks(tmp_path):
    """Numbers count all dates; "auto" finds none any more; ends of segments would count others."""
    path = write(tmp_path / "a.zarr", pd.date_range("2020-01-01", periods=10, freq="D").delete(4))
    xr.Dataset({"ends": ("segment", np.array([4, 9]))}).to_zarr(path, mode="a", consolidated=False)
    args: dict[str, Any] = {"path": path, "arrays": ["x"], "fill_missing": "previous", "window": [2], "step": [1]}
    assert dali_zarr.explain(**args, breaks=[5])["samples"] == 8
    assert dali_zarr.explain(**args, breaks="auto")["samples"] == 9
    with pytest.raises(ValueError, match="give breaks as numbers"):
        dali_zarr.explain(**args, breaks="ends")
    # Stores that samples don't cross stay as they are.
    other = write(tmp_path / "b.zarr", pd.date_range("2020-01-21", periods=5, freq="D"))
    assert dali_zarr.explain(**{**args, "path": [path, other]}, cross_stores=False)["samples"] == 12
    assert dali_zarr.explain(**{**args, "path": [path, other]})["samples"] == 24
