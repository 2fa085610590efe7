"""``align``: arrays of another rate, against xarray's ``reindex``, for random labels, stores, windows and orders."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from dali_zarr.torch import Loader  # noqa: E402

METHODS: dict[str, str | None] = {"previous": "ffill", "nearest": "nearest", "exact": None}
RNG = np.random.default_rng(11)
NUMBERS = itertools.count()


def _write(path: Path, name: str, times: Any, width: int, dim: str = "time", chunk: int = 5) -> xr.DataArray:
    values = RNG.standard_normal((len(times), width)).astype("float32")
    ds = xr.Dataset({name: ((dim, f"x_{name}"), values)}, coords={dim: times} if dim == "time" else {})
    ds.to_zarr(path, zarr_format=3, consolidated=False, encoding={name: {"chunks": (chunk, width)}})
    return ds[name]


def _samples(loader: Any) -> list[dict[str, np.ndarray]]:
    return [{name: batch[name][i].cpu().numpy() for name in batch} for batch in loader for i in range(len(batch.index))]


@pytest.fixture(scope="module")
def hourly(tmp_path_factory) -> tuple[Path, xr.DataArray]:
    root = tmp_path_factory.mktemp("align")
    times = pd.date_range("2020-02-26 01:00", periods=131, freq="h")
    return root, _write(root / "hours.zarr", "t2m", times, 3, chunk=7)


@given(st.data())
def test_as_xarrays_reindex(hourly, device, data):
    root, t2m = hourly
    draw = data.draw
    method = draw(st.sampled_from(sorted(METHODS)))
    every = draw(st.sampled_from(["1h", "6h", "7h", "1D", "90min"]))
    begin = pd.Timestamp("2020-02-26") + pd.Timedelta(minutes=30 * draw(st.integers(-40, 40)))
    times = pd.date_range(begin, periods=draw(st.integers(1, 60)), freq=every)
    if draw(st.booleans()):
        times = times[sorted(draw(st.sets(st.integers(0, len(times) - 1), min_size=1)))]
    if draw(st.booleans()):
        times = times[::-1]
    tolerance = draw(st.sampled_from([None, "2h", "30min"])) if method != "exact" else None
    name = f"{next(NUMBERS)}.zarr"
    sst = _write(root / name, "sst", times, 2, chunk=draw(st.integers(1, 9)))
    window, step = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    offset = draw(st.sampled_from([0, 0, 3]))
    want = sst.sortby("time").reindex(time=t2m.time, method=METHODS[method], tolerance=tolerance).values
    there = ~np.isnan(want).any(1)
    region = draw(st.sampled_from([(0, 131), (5, 90)]))
    reach = range(region[0], region[1] - offset - window + 1, step)
    starts = [k for k in reach if there[k + offset : k + offset + window].all()]
    arguments: dict[str, Any] = {
        "path": root / "hours.zarr", "arrays": {"t2m": "t2m", "sst": str(root / name / "sst")}, "window": {"time": window},
        "step": {"time": step}, "offsets": [offset], "batch_size": 3, "device": device,
        "roi_start": {"time": region[0]}, "roi_end": {"time": region[1]},
    }
    # A tolerance for all outputs, or for one.
    of_one = tolerance is not None and draw(st.booleans())
    arguments |= {"align": {"sst": {"method": method, "tolerance": tolerance} if of_one else method}}
    arguments |= {"tolerance": tolerance} if tolerance is not None and not of_one else {}
    if not starts:
        with pytest.raises(ValueError, match="align|missing"):
            Loader(**arguments)
        return
    shuffled = draw(st.booleans())
    at = f"{offset:+d}" if offset else ""
    found = []
    for batch in Loader(**arguments, random_shuffle=shuffled):
        for i, (k,) in enumerate(batch.index.tolist()):
            found.append(k)
            np.testing.assert_array_equal(batch[f"sst{at}"][i].cpu().numpy(), want[k + offset : k + offset + window])
            np.testing.assert_array_equal(batch[f"t2m{at}"][i].cpu().numpy(), t2m.values[k + offset : k + offset + window])
            assert batch.coords["time"][i][0] == t2m.time.values[k]
    assert (sorted(found) if shuffled else found) == starts


@pytest.mark.parametrize(
    ("length", "calendar", "place"),
    [
        (12, "standard", lambda t: t.month - 1), (365, "standard", lambda t: _day_of(t, 28)),
        (366, "standard", lambda t: _day_of(t, 29)),
        (1460, "standard", lambda t: _day_of(t, 28) * 4 + t.hour // 6), (8784, "standard", lambda t: _day_of(t, 29) * 24 + t.hour),
        (365, "noleap", lambda t: _day_of(t, 28)), (360, "360_day", lambda t: (t.month - 1) * 30 + t.day - 1),
    ],
)
def test_cycles(tmp_path, device, length, calendar, place):
    times = xr.date_range("2019-12-20", periods=700, freq="18h", calendar=calendar, use_cftime=calendar != "standard")
    t2m = _write(tmp_path / "h.zarr", "t2m", times, 2)
    clim = _write(tmp_path / "c.zarr", "clim", range(length), 3, dim="step_of_year", chunk=17)
    loader = Loader(
        tmp_path / "h.zarr", arrays={"t2m": "t2m", "clim": str(tmp_path / "c.zarr" / "clim")}, window={"time": 2}, device=device,
        align={"clim": {"method": "cyclic", "dim": "step_of_year"}}, batch_size=16,
    )
    samples = _samples(loader)
    assert len(samples) == 350
    places = np.array([place(t) for t in t2m.indexes["time"]])
    for k, sample in enumerate(samples):
        np.testing.assert_array_equal(sample["clim"], clim.values[places[2 * k : 2 * k + 2]])
        np.testing.assert_array_equal(sample["t2m"], t2m.values[2 * k : 2 * k + 2])


def _day_of(time: Any, february: int) -> int:
    lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    return sum(lengths[: time.month - 1]) + min(time.day, lengths[time.month - 1]) - 1


def test_the_29th_of_february(tmp_path):
    times = pd.DatetimeIndex(["2020-02-28", "2020-02-29", "2020-03-01", "2021-02-28", "2021-03-01"])
    _write(tmp_path / "h.zarr", "t2m", times, 1)
    for length, wanted in ((365, [58, 58, 59, 58, 59]), (366, [58, 59, 60, 58, 60])):
        clim = _write(tmp_path / f"{length}.zarr", "clim", range(length), 1, dim="day")
        loader = Loader(
            tmp_path / "h.zarr", arrays={"t2m": "t2m", "clim": str(tmp_path / f"{length}.zarr/clim")}, device="cpu",
            align={"clim": "cyclic"}, batch_size=5,
        )
        np.testing.assert_array_equal(next(iter(loader))["clim"].numpy(), clim.values[wanted])


def test_the_order_of_a_cycle_is_that_of_its_coordinates(tmp_path):
    times = pd.date_range("2020-01-15", periods=12, freq="MS")
    _write(tmp_path / "h.zarr", "t2m", times, 1)
    months = np.array([12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    values = RNG.standard_normal((12, 2)).astype("float32")
    xr.Dataset({"clim": (("month", "y"), values)}, coords={"month": months}).to_zarr(tmp_path / "c.zarr", consolidated=False)
    loader = Loader(
        tmp_path / "h.zarr", arrays={"t2m": "t2m", "clim": str(tmp_path / "c.zarr/clim")}, device="cpu", align={"clim": "cyclic"},
        batch_size=12,
    )
    wanted = values[[list(months).index(t.month) for t in times]]
    np.testing.assert_array_equal(next(iter(loader))["clim"].numpy(), wanted)


@pytest.fixture
def joined(tmp_path) -> tuple[list[Path], xr.DataArray]:
    """Three stores of hours that are joined, each with fields of its own that are static."""
    paths, fields = [], []
    for i, periods in enumerate((30, 17, 41)):
        begin = fields[-1].time.values[-1] + np.timedelta64(1, "h") if fields else np.datetime64("2020-01-01")
        paths.append(tmp_path / f"{i}.zarr")
        fields.append(_write(paths[-1], "t2m", pd.date_range(begin, periods=periods, freq="h"), 2, chunk=8))
    return paths, xr.concat(fields, "time")


def test_arrays_with_stores_of_their_own_beside_joined_ones(tmp_path, joined, device):
    """A static field, a daily one in two joined stores' place, and a climatology, all beside joined hours."""
    paths, t2m = joined
    static = RNG.standard_normal((4, 3)).astype("float32")
    xr.Dataset({"orog": (("lat", "lon"), static)}).to_zarr(tmp_path / "static.zarr", consolidated=False)
    daily = _write(tmp_path / "daily.zarr", "sst", pd.date_range("2020-01-01", periods=4, freq="D"), 3, chunk=1)
    clim = _write(tmp_path / "clim.zarr", "clim", range(366), 2, dim="day")
    loader = Loader(
        paths, arrays={
            "t2m": "t2m", "orog": str(tmp_path / "static.zarr/orog"), "sst": str(tmp_path / "daily.zarr/sst"),
            "clim": str(tmp_path / "clim.zarr/clim"),
        },
        window={"time": 3}, step={"time": 1}, random_shuffle=True, batch_size=8, device=device,
        align={"sst": "previous", "clim": "cyclic"},
    )
    seen = []
    want = daily.reindex(time=t2m.time, method="ffill").values
    for batch in loader:
        for i, (k,) in enumerate(batch.index.tolist()):
            seen.append(k)
            np.testing.assert_array_equal(batch["orog"][i].cpu().numpy(), static)
            np.testing.assert_array_equal(batch["sst"][i].cpu().numpy(), want[k : k + 3])
            np.testing.assert_array_equal(batch["t2m"][i].cpu().numpy(), t2m.values[k : k + 3])
            days = t2m.time.dt.dayofyear.values[k : k + 3] - 1
            np.testing.assert_array_equal(batch["clim"][i].cpu().numpy(), clim.values[days])
    assert sorted(seen) == list(range(len(t2m) - 2))


def test_joined_arrays_are_aligned_over_all_their_stores(tmp_path, joined):
    paths, t2m = joined
    daily = []
    for i, path in enumerate(paths):
        group = path.rename(tmp_path / f"both{i}.zarr")
        paths[i] = group
        begin = pd.Timestamp("2020-01-01") + pd.Timedelta(days=2 * i)
        daily.append(_write(group / "daily", "sst", pd.date_range(begin, periods=2, freq="D"), 2, chunk=1))
    want = xr.concat(daily, "time").reindex(time=t2m.time, method="ffill").values
    loader = Loader(paths, arrays={"t2m": "t2m", "sst": "daily/sst"}, align={"sst": "previous"}, batch_size=5, device="cpu")
    samples = _samples(loader)
    assert len(samples) == len(t2m)
    for k, sample in enumerate(samples):
        np.testing.assert_array_equal(sample["sst"], want[k])


def test_what_composes(tmp_path, hourly):
    """A selection by label, statistics, a checkpoint in the middle, shards, explain, and a pipeline."""
    from nvidia.dali import fn, pipeline_def

    root, t2m = hourly
    sst = _write(tmp_path / "s.zarr", "sst", pd.date_range("2020-02-25", periods=40, freq="6h"), 2)
    arguments: dict[str, Any] = {
        "path": root / "hours.zarr", "arrays": {"t2m": "t2m", "sst": str(tmp_path / "s.zarr/sst")}, "align": {"sst": "previous"},
        "sel": {"time": slice("2020-02-27", "2020-02-29")}, "window": {"time": 4}, "step": {"time": 2},
        "mean": {"sst": 2.0}, "stddev": {"sst": 0.5},
    }
    chosen = t2m.sel(time=slice("2020-02-27", "2020-02-29"))
    first = int(np.flatnonzero(t2m.time.values == chosen.time.values[0])[0])
    want = ((sst.reindex(time=t2m.time, method="ffill").values.astype("float64") - 2) / 0.5).astype("float32")
    loader = Loader(**arguments, batch_size=4, random_shuffle=True, seed=5, device="cpu")
    whole = [(batch.index[:, 0].tolist(), batch["sst"].numpy()) for batch in loader]
    places = sorted(k for of, _ in whole for k in of)
    assert places == list(range(first, first + len(chosen) - 3, 2))
    for of, values in whole:
        for k, value in zip(of, values, strict=True):
            np.testing.assert_array_equal(value, want[k : k + 4])
    # What was decided for the state is found in a new loader.
    other = Loader(**arguments, batch_size=4, random_shuffle=True, seed=5, device="cpu")
    it = iter(other)
    next(it), next(it)
    restored = Loader(**arguments, batch_size=4, random_shuffle=True, seed=5, device="cpu")
    restored.load_state_dict(other.state_dict())
    assert [batch.index[:, 0].tolist() for batch in restored] == [of for of, _ in whole[2:]]
    changed = Loader(**{**arguments, "align": {"sst": "nearest"}}, batch_size=4, random_shuffle=True, seed=5, device="cpu")
    with pytest.raises(ValueError, match="checkpoint"):
        changed.load_state_dict(other.state_dict())
        next(iter(changed))
    told = dali_zarr.explain(**arguments, batch_size=4)
    assert told["samples"] == len(places)

    @pipeline_def(batch_size=4, num_threads=1, device_id=None)
    def pipeline():
        return tuple(fn.zarr_reader(**{**arguments, "path": str(arguments["path"])}, name="reader"))

    pipe = pipeline()
    pipe.build()
    _, values = pipe.run()
    for i in range(4):
        k = places[i]
        np.testing.assert_array_equal(np.asarray(values[i]), want[k : k + 4])


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"align": "previous"}, "expected a dictionary from outputs"), ({"align": {"sts": "previous"}}, "did you mean sst"),
        ({"align": {"sst": "previos"}}, "did you mean previous"),
        ({"align": {"sst": {"how": "previous"}}}, "expected method, tolerance"),
        ({"align": {"sst": {"method": "exact", "tolerance": "1h"}}}, "tolerance with 'previous', 'nearest' or 'linear'"),
        ({"align": {"sst": {"method": "previous", "dim": "month"}}}, "expected a dimension of array"),
        ({"align": {"sst": "cyclic"}}, "expected 12 months"),
        ({"align": {"sst": "previous", "t2m": "previous"}}, "all of them in align"),
        ({"align": {"sst": "previous"}, "tolerance": "near"}, "expected a duration"),
        ({}, "same coordinates|length"),
    ],
    ids=str,
)
def test_what_is_refused(tmp_path, hourly, given_, said):
    root, _ = hourly
    _write(tmp_path / "s.zarr", "sst", pd.date_range("2020-02-25", periods=40, freq="6h"), 2)
    with pytest.raises((ValueError, TypeError), match=said):
        Loader(root / "hours.zarr", arrays={"t2m": "t2m", "sst": str(tmp_path / "s.zarr/sst")}, device="cpu", **given_)
