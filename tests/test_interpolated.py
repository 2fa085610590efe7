"""``align`` with ``"linear"``: values between two elements, against xarray's ``interp`` and the formula that the guide gives."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from dali_zarr.torch import Loader  # noqa: E402

RNG = np.random.default_rng(17)
NUMBERS = itertools.count()
HOURS = 131


def _write(path: Path, name: str, times: Any, shape: tuple[int, ...], dtype: str = "float32", **encoding: Any) -> xr.DataArray:
    dims = ("time", *(f"{axis}_{name}" for axis in "xyz"[: len(shape)]))
    values = RNG.uniform(-90, 90, (len(times), *shape)).astype(dtype)
    ds = xr.Dataset({name: (dims, values)}, coords={"time": times})
    ds.to_zarr(path, zarr_format=3, consolidated=False, encoding={name: encoding})
    return xr.open_zarr(path, consolidated=False)[name].load()


def formula(field: xr.DataArray, times: Any) -> npt.NDArray[np.float64]:
    """The guide's formula: ``a + w * (b - a)`` in float64 with exact distances, NaN where no element belongs."""
    field = field.sortby("time")
    of, at = field.time.values, np.asarray(times)
    values = field.values.astype("float64")
    low = np.searchsorted(of, at, side="right") - 1
    found = np.full((len(at), *values.shape[1:]), np.nan)
    for k, i in enumerate(low):
        if i >= 0 and at[k] == of[i]:
            found[k] = values[i]
        elif 0 <= i < len(of) - 1:
            w = (at[k] - of[i]) / (of[i + 1] - of[i])
            found[k] = values[i] + w * (values[i + 1] - values[i])
    return found


@pytest.fixture(scope="module")
def hourly(tmp_path_factory) -> tuple[Path, xr.DataArray]:
    root = tmp_path_factory.mktemp("interpolated")
    times = pd.date_range("2020-02-26 01:00", periods=HOURS, freq="h")
    return root, _write(root / "hours.zarr", "t2m", times, (3,), chunks=(7, 3))


@given(st.data())
def test_as_xarrays_interp(hourly, device, data):
    root, t2m = hourly
    draw = data.draw
    every = draw(st.sampled_from(["1h", "6h", "7h", "1D", "90min", "37min"]))
    begin = pd.Timestamp("2020-02-26") + pd.Timedelta(minutes=30 * draw(st.integers(-40, 40)))
    times = pd.date_range(begin, periods=draw(st.integers(2, 40)), freq=every)
    if draw(st.booleans()):
        times = times[sorted(draw(st.sets(st.integers(0, len(times) - 1), min_size=2)))]
    if draw(st.booleans()):
        times = times[::-1]
    dtype = draw(st.sampled_from(["float32", "float32", "float64", "int16", "float16"]))
    shape = draw(st.sampled_from([(), (2,), (3, 4), (2, 3, 4)]))
    chunks = (draw(st.integers(1, 9)), *((n + 1) // draw(st.integers(1, 2)) for n in shape))
    name = f"{next(NUMBERS)}.zarr"
    sst = _write(root / name, "sst", times, shape, dtype, chunks=chunks)
    tolerance = draw(st.sampled_from([None, None, "2h", "30min"]))
    window, step, stride = draw(st.integers(0, 6)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    offsets = draw(st.sampled_from([[0], [0, 3], [-2]]))
    region = draw(st.sampled_from([(0, HOURS), (5, 90)]))
    want = formula(sst, t2m.time.values)
    if tolerance is not None:
        of = np.sort(sst.time.values)
        low = np.clip(np.searchsorted(of, t2m.time.values, side="right") - 1, 0, len(of) - 2)
        far = np.maximum(t2m.time.values - of[low], of[low + 1] - t2m.time.values) > pd.Timedelta(tolerance).to_timedelta64()
        want[far & ~np.isin(t2m.time.values, of)] = np.nan
    else:
        found = sst.sortby("time").astype("float64").interp(time=t2m.time, method="linear").values
        np.testing.assert_allclose(want, found, rtol=1e-12, atol=1e-10)
    there = ~np.isnan(want).reshape(HOURS, -1).any(1)
    reach = [o + k * stride for o in offsets for k in range(max(window, 1))]
    starts = [k for k in range(region[0], region[1], step) if all(region[0] <= k + r < region[1] and there[k + r] for r in reach)]
    arguments: dict[str, Any] = {
        "path": root / "hours.zarr", "arrays": {"t2m": "t2m", "sst": str(root / name / "sst")}, "window": {"time": window},
        "step": {"time": step}, "stride": {"time": stride}, "offsets": offsets, "batch_size": 3, "device": device,
        "roi_start": {"time": region[0]}, "roi_end": {"time": region[1]}, "align": {"sst": "linear"},
    }
    arguments |= {"tolerance": tolerance} if tolerance is not None else {}
    normal: dict[str, Any] = {}
    if draw(st.booleans()):
        normal["mean"], normal["stddev"] = {"t2m": 0.0, "sst": 12.5}, {"t2m": 1.0, "sst": 3.25}
        want = (want - 12.5) / 3.25
    out = draw(st.sampled_from([None, "float32", "float64", "int16"]))
    if out is not None:
        normal["dtype"] = {"t2m": out, "sst": out}
    to = out or ("float32" if "mean" in normal else dtype)
    with np.errstate(invalid="ignore"):
        want = np.rint(want).astype(to) if to == "int16" else want.astype(to)
    transpose = draw(st.booleans())
    if transpose:
        arguments["transpose"] = "... time"
        want_order = (lambda x: np.moveaxis(x, 0, -1)) if window else (lambda x: x)
    else:
        want_order = lambda x: x  # noqa: E731
    if not starts:
        with pytest.raises(ValueError, match="align|missing|window"):
            Loader(**arguments, **normal)
        return
    shuffled = draw(st.booleans())
    found = []
    for batch in Loader(**arguments, **normal, random_shuffle=shuffled):
        for i, start in enumerate(batch.index.tolist()):
            k = start[0]
            found.append(k)
            for offset in offsets:
                at = f"{offset:+d}" if len(offsets) > 1 or offset else ""
                at = "" if offset == 0 else at
                places = k + offset + np.arange(window) * stride if window else k + offset
                got = batch[f"sst{at}"][i].cpu().numpy()
                np.testing.assert_array_equal(got, want_order(want[places]))
                assert got.dtype == to
            assert np.ravel(batch.coords["time"][i])[0] == t2m.time.values[k]
    assert (sorted(found) if shuffled else found) == starts


def _pair(root: Path, values: Any, times: Any, hours: Any, **encoding: Any) -> dict[str, Any]:
    _write(root / "h.zarr", "t2m", hours, (2,))
    values = np.asarray(values)
    sst = xr.Dataset({"sst": (("time", "x")[: values.ndim], values)}, coords={"time": times})
    sst.to_zarr(root / "d.zarr", consolidated=False, encoding={"sst": encoding})
    return {"path": root / "h.zarr", "arrays": {"t2m": "t2m", "sst": str(root / "d.zarr/sst")}, "align": {"sst": "linear"}}


DAYS = pd.date_range("2020-03-01", periods=4, freq="D")
SIX = pd.date_range("2020-03-01", periods=13, freq="6h")


def test_missing_elements_give_nan_where_they_weigh(tmp_path, device):
    values = np.array([[1.0, 2.0], [np.nan, 4.0], [5.0, np.inf], [7.0, 9.0]], "float32")
    loader = Loader(**_pair(tmp_path, values, DAYS, SIX), batch_size=13, device=device)
    (batch,) = list(loader)
    got = batch["sst"].cpu().numpy()
    # At the third day the second one, which is missing, has no weight.
    want = [1.0] + 7 * [np.nan] + [5.0, 5.5, 6.0, 6.5, 7.0]
    np.testing.assert_array_equal(got[:, 0], np.array(want, "float32"))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got[:, 1], formula(xr.open_zarr(tmp_path / "d.zarr", consolidated=False)["sst"], SIX)[:, 1])
    filled = Loader(**_pair(tmp_path / "2", values, DAYS, SIX), batch_size=13, device=device, fillna={"sst": -1.0})
    (batch,) = list(filled)
    assert (batch["sst"].cpu().numpy()[1:8, 0] == -1.0).all()


def test_decoded_values_are_interpolated(tmp_path, device):
    values = RNG.uniform(260, 310, (4, 40)).astype("float32")
    values[1, 3] = np.nan
    arguments = _pair(
        tmp_path, values, DAYS, SIX, dtype="int16", scale_factor=0.01, add_offset=280.0, _FillValue=-999, chunks=(1, 40)
    )
    decoded = xr.open_zarr(tmp_path / "d.zarr", consolidated=False)["sst"].load()
    want = formula(decoded, SIX)
    dtype = {"t2m": "float32", "sst": "float64"}
    (batch,) = list(Loader(**arguments, mask_and_scale=True, batch_size=13, device=device, dtype=dtype))
    np.testing.assert_array_equal(batch["sst"].cpu().numpy(), want)
    channels = {"sst": [float(k) for k in range(270, 310)]}
    (batch,) = list(
        Loader(
            **arguments, mask_and_scale=True, batch_size=13, device=device, mean={"t2m": 0.0, **channels},
            stddev={"t2m": 1.0, "sst": 4.0},
        )
    )
    np.testing.assert_array_equal(batch["sst"].cpu().numpy(), ((want - np.arange(270, 310)) / 4.0).astype("float32"))


@pytest.mark.parametrize("order", ["variable ...", "... variable"])
def test_stacks(tmp_path, device, order):
    t2m = _write(tmp_path / "h.zarr", "t2m", SIX, (5, 6), chunks=(4, 3, 6))
    names = {"x_sst": "x_t2m", "y_sst": "y_t2m"}
    values = RNG.standard_normal((4, 5, 6)).astype("float32")
    sst = xr.Dataset({"sst": (("time", *names.values()), values)}, coords={"time": DAYS})
    sst.to_zarr(tmp_path / "d.zarr", consolidated=False, encoding={"sst": {"chunks": (1, 5, 2)}})
    loader = Loader(
        tmp_path / "h.zarr", arrays={"t2m": "t2m", "sst": str(tmp_path / "d.zarr/sst")}, align={"sst": "linear"}, stack_arrays=True,
        window={"time": 3}, step={"time": 1}, batch_size=4, device=device, transpose=order, mean=[1.0, 2.0], stddev=[3.0, 5.0],
    )
    want = np.stack([(t2m.values.astype("float64") - 1) / 3, (formula(sst["sst"], SIX) - 2) / 5], axis=1).astype("float32")
    windows = np.stack([want[k : k + 3] for k in range(11)])
    windows = np.moveaxis(windows, 2, 1) if order.startswith("variable") else np.moveaxis(windows, 2, -1)
    got = np.concatenate([next(iter(batch.values())).cpu().numpy() for batch in loader])
    np.testing.assert_array_equal(got, windows)


def test_outside_of_the_labels_samples_are_left_out_or_filled(tmp_path, device, caplog):
    hours = pd.date_range("2020-02-29", periods=24, freq="6h")
    values = RNG.standard_normal((4, 2)).astype("float32")
    arguments = _pair(tmp_path, values, DAYS, hours)
    want = formula(xr.open_zarr(tmp_path / "d.zarr", consolidated=False)["sst"], hours).astype("float32")
    (batch,) = list(Loader(**arguments, batch_size=13, device=device))
    assert batch.index[:, 0].tolist() == list(range(4, 17))
    np.testing.assert_array_equal(batch["sst"].cpu().numpy(), want[4:17])
    told = dali_zarr.explain(**{name: value for name, value in arguments.items()})
    assert (told["samples"], told["missing_dates"]["samples_left_out"]) == (13, 11)
    for how, outside in (("nan", np.full((24, 2), np.nan, "float32")), ("previous", np.clip(np.arange(24), 4, 16))):
        (batch,) = list(Loader(**arguments, batch_size=24, device=device, fill_missing=how, return_mask=True, window={"time": 1}))
        filled = np.where(np.isnan(want), outside, want) if how == "nan" else want[outside]
        np.testing.assert_array_equal(batch["sst"].cpu().numpy()[:, 0], filled)
        np.testing.assert_array_equal(batch["mask"].cpu().numpy()[:, 0], ~np.isnan(want[:, 0]))


@pytest.mark.parametrize("policy", ["pad", "edge"])
def test_windows_beyond_the_edge(tmp_path, device, policy):
    values = RNG.standard_normal((4, 2)).astype("float32")
    arguments = _pair(tmp_path, values, DAYS, SIX)
    loader = Loader(
        **arguments, batch_size=13, device=device, window={"time": 4}, step={"time": 1}, stride={"time": 2}, breaks=[7],
        out_of_bounds_policy=policy,
    )
    (batch,) = list(loader)
    want = formula(xr.open_zarr(tmp_path / "d.zarr", consolidated=False)["sst"], SIX).astype("float32")
    for k in range(13):
        first, last = (0, 6) if k < 7 else (7, 12)
        at = k + 2 * np.arange(4)
        expected = want[np.clip(at, first, last)]
        if policy == "pad":
            expected[at > last] = 0
        np.testing.assert_array_equal(batch["sst"][k].cpu().numpy(), expected)


def test_joined_stores_and_checkpoints(tmp_path, device):
    hours = pd.date_range("2020-03-01", periods=60, freq="3h")
    paths = []
    for i, part in enumerate((slice(0, 17), slice(17, 41), slice(41, 60))):
        paths.append(tmp_path / f"h{i}.zarr")
        _write(paths[-1], "t2m", hours[part], (3,), chunks=(4, 3))
    joined = {"path": paths, "arrays": {"t2m": "t2m", "sst": str(tmp_path / "d.zarr/sst")}, "align": {"sst": "linear"}}
    sst = _write(tmp_path / "d.zarr", "sst", pd.date_range("2020-03-01", periods=9, freq="D"), (5,), chunks=(2, 5))
    want = formula(sst, hours).astype("float32")
    loader = Loader(**joined, window={"time": 5}, step={"time": 2}, batch_size=4, device=device, random_shuffle=True, seed=3)
    batches = iter(loader)
    first = [next(batches) for _ in range(2)]
    state = loader.state_dict()
    rest = list(batches)
    again = Loader(**joined, window={"time": 5}, step={"time": 2}, batch_size=4, device=device, random_shuffle=True, seed=3)
    again.load_state_dict(state)
    for one, other in zip(rest, again, strict=True):
        np.testing.assert_array_equal(one["sst"].cpu().numpy(), other["sst"].cpu().numpy())
    for batch in [*first, *rest]:
        for i, (k,) in enumerate(batch.index.tolist()):
            np.testing.assert_array_equal(batch["sst"][i].cpu().numpy(), want[k : k + 5])
    other = Loader(**joined | {"align": {"sst": "previous"}}, window={"time": 5}, step={"time": 2}, batch_size=4, device=device,
                   random_shuffle=True, seed=3)
    with pytest.raises(ValueError, match="align|checkpoint"):
        other.load_state_dict(state)


def test_calendars_and_numbers(tmp_path, device):
    hours = xr.date_range("2019-12-20", periods=40, freq="18h", calendar="noleap", use_cftime=True)
    days = xr.date_range("2019-12-20", periods=31, freq="D", calendar="noleap", use_cftime=True)
    values = RNG.standard_normal((31, 2)).astype("float64")
    arguments = _pair(tmp_path, values, days, hours)
    want = xr.open_zarr(tmp_path / "d.zarr", consolidated=False)["sst"].interp(time=hours).values
    (batch,) = list(Loader(**arguments, batch_size=40, device=device))
    np.testing.assert_allclose(batch["sst"].cpu().numpy(), want, rtol=1e-12)
    whole, real = (np.arange(2, 22), np.arange(0, 31) * 3 - 7), (np.linspace(0.1, 7, 20), np.linspace(0, 7.5, 31) ** 1.01)
    for i, (at, of) in enumerate([whole, real]):
        arguments = _pair(tmp_path / str(i), values, of, at)
        want = xr.open_zarr(tmp_path / str(i) / "d.zarr", consolidated=False)["sst"].interp(time=at).values
        (batch,) = list(Loader(**arguments, batch_size=20, device=device))
        np.testing.assert_allclose(batch["sst"].cpu().numpy(), want, rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        (np.array([True, False, True, True]), {}, "numbers for linear interpolation of 'sst', but found bool"),
        (np.arange(4).astype("datetime64[s]"), {"mask_and_scale": False}, None),
        (np.arange(4.0), {"dtype": {"t2m": "float32", "sst": "bool"}}, "found an output of bool"),
    ],
)
def test_what_cannot_be_interpolated_is_refused(tmp_path, values, options, words):
    arguments = _pair(tmp_path, values, DAYS, SIX)
    if words is None:
        list(Loader(**arguments, batch_size=13, device="cpu", **options))  # CF times are stored as numbers.
        return
    with pytest.raises((ValueError, TypeError), match=words):
        Loader(**arguments, batch_size=13, device="cpu", **options)


def test_labels_without_distances_are_refused(tmp_path):
    arguments = _pair(tmp_path, np.arange(4.0), DAYS, SIX)
    with pytest.raises(ValueError, match="0 or more"):
        Loader(**arguments, batch_size=13, device="cpu", tolerance="-1h")
    twice = _pair(tmp_path / "2", np.arange(4.0), DAYS[[0, 1, 1, 2]], SIX)
    with pytest.raises(ValueError, match="each label along 'time' once"):
        Loader(**twice, batch_size=13, device="cpu")
    text = _pair(tmp_path / "3", np.arange(3.0), ["a", "b", "d"], ["a", "c", "d"])
    with pytest.raises(ValueError, match="between which there are others"):
        Loader(**text, batch_size=3, device="cpu")
