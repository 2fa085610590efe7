"""``fill_missing``: data that are missing are filled, and no sample is left out. Against NumPy, for random cuts."""

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
from support.pipelines import batches, build
from support.stores import Layout, write_array
from test_missing_dates import write

STEPS = 23
DATES = (np.datetime64("2020-01-01") + np.arange(STEPS)).astype("datetime64[s]")
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("filled")


def previous(values: np.ndarray, missing: set[int]) -> np.ndarray:
    """The values with the last one before that isn't missing; the first that isn't, where there is none before."""
    there = [i for i in range(len(values)) if i not in missing]
    return np.stack([values[max((i for i in there if i <= k), default=there[0])] for k in range(len(values))])


@given(st.data())
def test_as_numpy(folder, device, data):
    draw = data.draw
    missing = draw(st.sets(st.integers(0, STEPS - 1), max_size=STEPS - 1))
    path = write(folder / f"{next(NUMBERS)}.zarr", [str(DATES[i])[:19] for i in sorted(missing)], DATES)
    values = np.repeat(np.arange(STEPS, dtype="float64"), 6).reshape(-1, 2, 1, 3)
    how = draw(st.sampled_from(["previous", "nan", "mean", float("nan")]))
    filled = values.copy()
    normal: dict[str, Any] = {"mean": 3.0, "stddev": 2.0} if how == "mean" or draw(st.booleans()) else {}
    if normal:
        filled = (filled - 3.0) / 2.0
    if how == "previous":
        filled = previous(filled, missing)
    else:
        filled[sorted(missing)] = 0 if how == "mean" else np.nan
    window, stride, step = draw(st.integers(0, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    offsets = draw(st.sampled_from([[0], [0, 2], [-1]]))
    policy = draw(st.sampled_from(["drop", "pad", "edge"]))
    pad = np.nan if how in ("nan",) or how != how else 0.0
    region = draw(st.sampled_from([(0, STEPS), (4, 19)]))
    args: dict[str, Any] = {
        "window": [window], "stride": [stride], "step": [step], "offsets": offsets, "out_of_bounds_policy": policy,
        "roi_start": [region[0]], "roi_end": [region[1]], "return_mask": True, "return_index": True, "fill_missing": how, **normal,
    }
    if policy == "pad" and pad != pad:
        args["fill_value"] = float("nan")
    pipe = build(device, 1, path=path, arrays=["data"], **args)
    found = batches(pipe)
    reach = (max(window, 1) - 1) * stride
    starts = range(region[0], region[1], step)
    if policy == "drop":
        starts = [k for k in starts if k + min(offsets) >= region[0] and k + max(offsets) + reach < region[1]]
    assert pipe.reader_meta("reader")["epoch_size"] == len(starts)
    for start in starts:
        *outputs, mask, index = (output[0] for output in next(found))
        assert index.tolist() == [start]
        masks = []
        for offset, output in zip(offsets, outputs, strict=True):
            at = start + offset + np.arange(max(window, 1)) * stride
            inside = (at >= region[0]) & (at < region[1])
            near = np.clip(at, region[0], region[1] - 1)
            want = filled[near].astype("float32")
            if policy == "pad":
                want[~inside] = pad
            masks.append(inside & ~np.isin(at, sorted(missing)))
            np.testing.assert_array_equal(output, want if window else want[0])
        want_mask = np.stack(masks) if len(offsets) > 1 else masks[0]
        np.testing.assert_array_equal(mask, want_mask if window else want_mask[..., 0])


def test_only_the_arrays_that_miss_data_are_filled(tmp_path):
    """Each has its own missing dates, also in several stores; a table of starts, and picks in another order."""
    one = write(tmp_path / "a.zarr", [str(DATES[3])[:19]], DATES)
    two = write(tmp_path / "b.zarr", [str(DATES[3])[:19], str(DATES[4])[:19], str(DATES[9])[:19]], DATES, first=100)
    arrays = {"a": str(one / "data"), "b": str(two / "data")}
    pipe = build("cpu", STEPS, arrays=arrays, fill_missing="previous", return_mask=True)
    a, b, mask = (output[:, 0, 0, 0] if output.ndim > 1 else output for output in next(batches(pipe)))
    assert a.tolist() == [i if i != 3 else 2 for i in range(STEPS)]
    assert b.tolist() == [100 + {3: 2, 4: 2, 9: 8}.get(i, i) for i in range(STEPS)]
    assert mask.tolist() == [i not in (3, 4, 9) for i in range(STEPS)]
    later = write(tmp_path / "c.zarr", [str(DATES[0])[:19]], DATES, first=200)
    pipe = build("cpu", 2 * STEPS, path=[one, later], arrays=["data"], fill_missing="previous")
    (joined,) = next(batches(pipe))
    # The element before the first one of the second store is the last one of the first store.
    assert joined[STEPS, 0, 0, 0] == STEPS - 1 and joined[3, 0, 0, 0] == 2
    pipe = build("cpu", 2 * STEPS, path=[one, later], arrays=["data"], fill_missing="previous", concat="samples")
    (apart,) = next(batches(pipe))
    assert apart[STEPS, 0, 0, 0] == 201
    pipe = build("cpu", 3, path=one, arrays=["data"], fill_missing="previous", starts=[[3], [4], [3]])
    assert next(batches(pipe))[0][:, 0, 0, 0].tolist() == [2, 4, 2]
    pipe = build("cpu", 4, path=one, arrays=["data"], fill_missing="previous", pick={"time": [5, 3, 4, 9]})
    assert next(batches(pipe))[0][:, 0, 0, 0].tolist() == [5, 5, 4, 9]


def test_what_align_finds_no_element_for(tmp_path):
    """It is filled too, with what belongs to the label before."""
    hours = pd.date_range("2020-01-01", periods=30, freq="h")
    t2m, sst = np.arange(30, dtype="float32"), np.arange(3, dtype="float32") + 50
    xr.Dataset({"t2m": ("time", t2m)}, coords={"time": hours}).to_zarr(tmp_path / "h.zarr", consolidated=False)
    days = pd.date_range("2020-01-01", periods=3, freq="12h")
    xr.Dataset({"sst": ("time", sst)}, coords={"time": days}).to_zarr(tmp_path / "s.zarr", consolidated=False)
    args: dict[str, Any] = {
        "path": str(tmp_path / "h.zarr"), "arrays": {"t2m": "t2m", "sst": str(tmp_path / "s.zarr/sst")},
        "align": {"sst": {"method": "previous", "tolerance": "2h"}},
    }
    left = [h for h in range(30) if h % 12 <= 2]
    pipe = build("cpu", len(left), **args)
    assert next(batches(pipe))[0].tolist() == left
    pipe = build("cpu", 30, **args, fill_missing="previous", return_mask=True)
    _, found, mask = next(batches(pipe))
    assert found.tolist() == [50.0 + h // 12 for h in range(30)] and mask.tolist() == [h % 12 <= 2 for h in range(30)]


def test_it_is_told(tmp_path):
    path = write(tmp_path / "a.zarr", [str(DATES[3])[:19]], DATES)
    told = dali_zarr.explain(path=str(path), arrays=["data"], fill_missing="previous", offsets=[0, 1])
    assert told["missing_dates"] == {"dates": 1, "samples_left_out": 0, "filled": "previous"} and told["samples"] == STEPS - 1
    assert "missing dates: 1; they are filled" in str(told)
    states = [build("cpu", 1, path=path, arrays=["data"], checkpointing=True, **how) for how in ({"fill_missing": "nan"}, {})]
    states[0].run()
    with pytest.raises(Exception, match="reader of other samples"):
        build("cpu", 1, path=path, arrays=["data"], checkpointing=True, checkpoint=states[0].checkpoint())


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ({"fill_missing": "quadratic"}, "fill_missing"), ({"fill_missing": 0.0}, "fill_missing"),
        ({"fill_missing": "mean"}, "expected a mean"), ({"fill_missing": "nan", "dtype": "int32"}, "floating-point"),
        ({"fill_missing": "nan", "out_of_bounds_policy": "pad", "window": [2]}, "one value for missing and for padded"),
    ],
    ids=str,
)
def test_what_is_refused(tmp_path, args, match):
    path = write(tmp_path / "a.zarr", [str(DATES[3])[:19]], DATES)
    with pytest.raises((ValueError, TypeError), match=match):
        build("cpu", 1, path=path, arrays=["data"], **args)


def test_nothing_is_missing(tmp_path):
    """Then it has no effect, on arrays of whole numbers too."""
    write_array(tmp_path, "n", np.arange(5, dtype="int16"), layout=Layout((2,)), dims=("time",))
    pipe = build("cpu", 5, path=tmp_path, arrays=["n"], fill_missing="previous", return_mask=True)
    found, mask = next(batches(pipe))
    assert found.tolist() == list(range(5)) and mask.all()


def linear(values: np.ndarray, labels: np.ndarray, missing: set[int]) -> np.ndarray:
    """The values with those between the nearest ones that aren't missing; NaN where there is none on one side."""
    there = [i for i in range(len(values)) if i not in missing]
    found = values.astype("float64")
    for k in sorted(missing):
        before, after = max((i for i in there if i < k), default=None), min((i for i in there if i > k), default=None)
        if before is None or after is None:
            found[k] = np.nan
            continue
        w = (labels[k] - labels[before]) / (labels[after] - labels[before])
        found[k] = found[before] + w * (found[after] - found[before])
    return found


@given(st.data())
def test_linear_as_numpy(folder, device, data):
    draw = data.draw
    missing = draw(st.sets(st.integers(0, STEPS - 1), max_size=STEPS - 2))
    # Dates that aren't at equal distances.
    dates = DATES + np.cumsum([draw(st.sampled_from([0, 0, 21600, 86400])) for _ in range(STEPS)]).astype("timedelta64[s]")
    path = write(folder / f"{next(NUMBERS)}.zarr", [str(dates[i])[:19] for i in sorted(missing)], dates)
    values = np.repeat(np.arange(STEPS, dtype="float64"), 6).reshape(-1, 2, 1, 3)
    labels = dates.astype("int64").astype("float64")
    want = linear(values, labels, missing)
    whole = xr.DataArray(values, dims=("time", "v", "e", "c"), coords={"time": dates}).astype("float64")
    whole[sorted(missing)] = np.nan
    np.testing.assert_allclose(want, whole.interpolate_na("time", method="linear").values, rtol=1e-12)
    there = ~np.isnan(want[:, 0, 0, 0])
    normal: dict[str, Any] = {"mean": 3.0, "stddev": 2.0} if draw(st.booleans()) else {}
    if normal:
        want = (want - 3.0) / 2.0
    window, stride, step = draw(st.integers(0, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    offsets = draw(st.sampled_from([[0], [0, 2], [-1]]))
    region = draw(st.sampled_from([(0, STEPS), (4, 19)]))
    args: dict[str, Any] = {
        "window": [window], "stride": [stride], "step": [step], "offsets": offsets, "fill_missing": "linear",
        "roi_start": [region[0]], "roi_end": [region[1]], "return_mask": True, "return_index": True, **normal,
    }
    places = [o + k * stride for o in offsets for k in range(max(window, 1))]
    starts = [k for k in range(region[0], region[1], step) if all(region[0] <= k + p < region[1] and there[k + p] for p in places)]
    if not starts:
        with pytest.raises(RuntimeError, match="missing|window"):
            build(device, 1, path=path, arrays=["data"], **args)
        return
    pipe = build(device, 1, path=path, arrays=["data"], **args)
    found = batches(pipe)
    assert pipe.reader_meta("reader")["epoch_size"] == len(starts)
    for start in starts:
        *outputs, mask, index = (output[0] for output in next(found))
        assert index.tolist() == [start]
        masks = []
        for offset, output in zip(offsets, outputs, strict=True):
            at = start + offset + np.arange(max(window, 1)) * stride
            np.testing.assert_array_equal(output, want[at if window else at[0]].astype(output.dtype))
            masks.append(~np.isin(at, sorted(missing)) if window else at[0] not in missing)
        np.testing.assert_array_equal(mask, masks if len(offsets) > 1 else masks[0])


def test_linear_without_labels_and_what_the_reader_says(tmp_path, caplog):
    path = write(tmp_path / "a.zarr", [str(DATES[i])[:19] for i in (0, 5, 6)], DATES)
    told = dali_zarr.explain(path=path, arrays=["data"], fill_missing="linear")
    assert told["missing_dates"] == {"dates": 3, "samples_left_out": 1, "filled": "linear"}
    assert told["samples"] == STEPS - 1 and told["outputs"][0]["scratch_bytes"] > 0
