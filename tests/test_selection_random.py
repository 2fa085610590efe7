"""sel and isel in thousands of random cases: what the reader is told to read is what xarray selects."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.windows import samples

xr = pytest.importorskip("xarray", reason="selection by label needs xarray")

from dali_zarr._selection import axes as axes_module  # noqa: E402
from dali_zarr._selection import coordinates, cutting, select  # noqa: E402

CASES = int(os.environ.get("DALI_ZARR_SELECTIONS", "500"))
REFUSALS = (
    "a list says where samples start", "only evenly spaced", "the selection goes backwards", "has no windows",
    "as many elements in each",
)


# Random cases, without stores: what the reader would be told, carried out by NumPy.


def calendar(draw, length: int) -> tuple[np.ndarray, dict[str, Any]]:
    name = draw(st.sampled_from(["standard", "noleap", "360_day", "julian"]))
    start = draw(st.integers(0, 400))
    values = start + np.cumsum([draw(st.sampled_from([1, 6, 24, 24 * 20])) for _ in range(length)])
    return values.astype(draw(st.sampled_from(["int32", "float64"]))), {"units": "hours since 2019-12-30", "calendar": name}


def numbers(draw, length: int) -> tuple[np.ndarray, dict[str, Any]]:
    values = np.array(draw(st.lists(st.integers(-20, 20), min_size=length, max_size=length, unique=draw(st.booleans()))))
    if draw(st.booleans()):
        values = np.sort(values)[:: draw(st.sampled_from([1, -1]))]
    dtype = draw(st.sampled_from(["int16", "int64", "float32", "float64"]))
    packed = {"scale_factor": 0.5, "add_offset": 1.0} if draw(st.booleans()) and dtype == "int16" else {}
    return values.astype(dtype), packed


def labels(draw, values: np.ndarray) -> Any:
    """A label, a list of some, or a slice; mostly of coordinates that there are."""
    is_time = values.dtype.kind in "MO"

    def one():
        value = values[draw(st.integers(0, len(values) - 1))]
        kind = draw(st.sampled_from(["it", "it", "it", "near"]))
        if is_time:
            text = value.isoformat() if values.dtype.kind == "O" else str(value.astype("datetime64[s]"))
            return text[: draw(st.sampled_from([4, 7, 10, 13]))] if kind == "near" else (text if draw(st.booleans()) else value)
        return value if kind == "it" else float(value) + draw(st.sampled_from([0.25, -0.25, 7]))

    match draw(st.sampled_from(["one", "list", "slice", "slice", "slice"])):
        case "one":
            return one()
        case "list":
            return [one() for _ in range(draw(st.integers(1, 4)))]
    start, stop = (draw(st.one_of(st.none(), st.builds(one))) for _ in range(2))
    return slice(start, stop, draw(st.sampled_from([None, None, 1, 2, 3])))


def indices(draw, length: int) -> Any:
    number = st.integers(-length - 1, length)
    match draw(st.sampled_from(["one", "list", "slice", "slice", "bools"])):
        case "one":
            return draw(number)
        case "list":
            return draw(st.lists(number, min_size=1, max_size=4))
        case "bools":
            return np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)))
    return slice(*(draw(st.one_of(st.none(), number)) for _ in range(2)), draw(st.sampled_from([None, 1, 2, 3, -1])))


@st.composite
def cases(draw) -> SimpleNamespace:
    """Stores (joined along time), coordinates, and a selection."""
    stores = draw(st.sampled_from([1, 1, 1, 2, 3]))
    lengths = [draw(st.integers(1, 6)) for _ in range(stores)]
    time, attributes = (calendar if draw(st.booleans()) else numbers)(draw, sum(lengths))
    if stores > 1:
        time = np.unique(time)
        lengths[-1] = len(time) - sum(lengths[:-1])
    if lengths[-1] < 1:
        stores, lengths = 1, [len(time)]
    ends = np.cumsum(lengths)
    coords = [{"time": (time[e - n : e], attributes)} for e, n in zip(ends, lengths)]
    level_length, lat_length = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    level = numbers(draw, level_length) if draw(st.booleans()) else None
    for coord in coords:
        if level is not None:
            coord["level"] = level
            if stores > 1 and draw(st.booleans()):
                coord["level"] = (level[0][np.array(draw(st.permutations(range(level_length))))], level[1])
    variables = [{d: coordinates.decoded(d, *c) for d, c in coord.items()} for coord in coords]
    sel, isel = {}, {}
    for dim, length in (("time", sum(lengths)), ("level", level_length), ("lat", lat_length)):
        match draw(st.sampled_from(["none", "sel", "sel", "isel"])):
            case "sel" if dim in variables[0]:
                among = variables if dim == "time" else variables[:1]
                sel[dim] = labels(draw, np.concatenate([np.asarray(v[dim].values) for v in among]))
            case "sel":
                sel[dim] = indices(draw, length)
            case "isel":
                isel[dim] = indices(draw, length)
    method = draw(st.sampled_from([None, None, "nearest", "ffill", "bfill"]))
    if not any(not isinstance(label, slice) for label in sel.values()):
        method = None
    tolerance = draw(st.sampled_from([None, 0.5])) if method and not any(v["time"].dtype.kind in "MO" for v in variables) else None
    window = draw(st.sampled_from([0, 0, 0, 2, 3, -1]))
    how = {"window": [window]} if window else {}
    if draw(st.booleans()):
        how |= {"stride": [draw(st.integers(1, 2))], "offsets": [0, draw(st.integers(-2, 2))]}
    if draw(st.booleans()):
        how["step"] = [draw(st.integers(1, 3))]
    shapes = [(n, level_length, lat_length) for n in lengths]
    return SimpleNamespace(variables=variables, shapes=shapes, sel=sel, isel=isel, method=method, tolerance=tolerance, how=how)


def in_memory(case, monkeypatch) -> None:
    array = axes_module.Array("a", "a", ("time", "level", "lat"), tuple(case.shapes))
    axes = axes_module.Axes([f"store{i}" for i in range(len(case.shapes))], {}, [array], ["time"], {})
    for store, variables in enumerate(case.variables):
        for dim in ("time", "level", "lat"):
            axes._variables[dim, store] = variables.get(dim)
    monkeypatch.setattr(axes_module.Axes, "of_reader", lambda _: axes)


def values_of(case) -> list[np.ndarray]:
    start, found = 0, []
    for shape in case.shapes:
        found.append(np.arange(start, start + np.prod(shape)).reshape(shape))
        start += np.prod(shape)
    return found


def carried_out(case, told) -> list[np.ndarray]:
    """What a reader with these arguments reads."""
    parts = []
    for store, values in enumerate(values_of(case)):
        for axis, dim in ((1, "level"), (2, "lat")):
            chosen = told.get("pick", {}).get(dim)
            if chosen is not None:
                chosen = chosen[store] if isinstance(chosen[0], list) else chosen
                values = np.take(values, chosen, axis)
        parts.append(values)
    values = np.concatenate(parts)
    dims = told.get("dims", ["time"])
    for i, dim in list(enumerate(dims))[:0:-1]:
        assert told["window"][i] == 0 and told["roi_end"][i] == told["roi_start"][i] + 1
        values = np.take(values, told["roi_start"][i], ["time", "level", "lat"].index(dim))
        if dim == "level":
            values = np.expand_dims(values, 1)
        else:
            values = np.expand_dims(values, 2)
    drop = tuple({"level": 1, "lat": 2}[dim] for dim in dims[1:])
    values = np.squeeze(values, drop) if drop else values
    one = {name: told.get(name, [default])[0] for name, default in (("window", 0), ("stride", 1), ("roi_start", 0))}
    step = told["step"][0] if "step" in told else None
    end = told["roi_end"][0] if "roi_end" in told else len(values)
    offsets = told.get("offsets", [0])
    if "starts" in told:
        starts = np.array(told["starts"])
        assert "step" not in told and (starts[:, 1:] == told["roi_start"][1:]).all()
        return from_starts(values, starts[:, 0], one["window"], one["stride"], offsets)
    if "segments" in told:
        bounds = [0, *told["breaks"], len(values)]
        runs = [(bounds[i], bounds[i + 1]) for i in told["segments"]]
        assert all(bounds[i] < bounds[i + 1] for i in range(len(bounds) - 1))
        return within(values, runs, one["window"], step, one["stride"], offsets, one["roi_start"], end)
    return samples(values, one["window"], step, one["stride"], offsets, one["roi_start"], end)


def within(values, runs, window: int, step: int | None, stride: int, offsets: list[int], first: int, end: int) -> list[np.ndarray]:
    """The windows of one grid of starts that lie in one of the runs, with all of their offsets."""
    width = end - first if window == -1 else window or 1
    fit = [
        s for s in range(first, end, step or width) for begin, stop in runs
        if all(begin <= s + o and s + o + (width - 1) * stride < stop for o in offsets)
    ]
    cut = slice(None) if window else 0
    return [np.array([values[s + o : s + o + (width - 1) * stride + 1 : stride][cut] for s in fit]) for o in offsets]


def from_starts(values, starts, window: int, stride: int, offsets: list[int]) -> list[np.ndarray]:
    """Windows from each of these starts that lie inside."""
    width = window or 1
    fit = [s for s in starts if all(0 <= s + o and s + o + (width - 1) * stride < len(values) for o in offsets)]
    cut = slice(None) if window else 0
    return [np.array([values[s + o : s + o + (width - 1) * stride + 1 : stride][cut] for s in fit]) for o in offsets]


def expected(case) -> list[np.ndarray]:
    """The same by xarray: each store's other dimensions, then time, then windows over what is selected."""
    parts = []
    options = {"method": case.method, "tolerance": case.tolerance} if case.method else {}
    times = [v["time"] for v in case.variables]
    for values, variables in zip(values_of(case), case.variables):
        array = xr.DataArray(values, dims=("time", "level", "lat"), coords={d: v for d, v in variables.items() if d != "time"})
        for dim in ("level", "lat"):
            if dim in case.sel:
                array = array.sel({dim: case.sel[dim]}, **({} if isinstance(case.sel[dim], slice) else options))
            elif dim in case.isel:
                array = array.isel({dim: case.isel[dim]})
        parts.append(array.values)
    dims = ["time"] + [f"d{i}" for i in range(parts[0].ndim - 1)]
    joined = xr.DataArray(np.concatenate(parts), dims=dims, coords={"time": xr.Variable.concat(times, "time")})
    how = case.how
    one = {name: how.get(name, [default])[0] for name, default in (("window", 0), ("stride", 1))}
    chosen = case.sel.get("time", case.isel.get("time"))
    numbers = xr.DataArray(np.arange(len(joined)), dims="time", coords={"time": joined.time})
    is_mask = np.ndim(chosen) > 0 and np.asarray(chosen).dtype.kind == "b"
    if np.ndim(chosen) > 0 and not is_mask:
        # A list says where samples start.
        numbers = numbers.sel(time=chosen, **options) if "time" in case.sel else numbers.isel(time=chosen)
        assert joined.size and len(numbers)
        return from_starts(joined.values, numbers.values, one["window"], one["stride"], how.get("offsets", [0]))
    if "time" in case.sel or is_mask:
        at = np.atleast_1d(numbers.sel(time=chosen, **({} if isinstance(chosen, slice) else options)).values)
        apart = np.diff(at)
        if len(apart) and (apart > 0).all() and ((apart > 1).any() if is_mask else (apart != apart[0]).any()):
            # No window reaches over a gap.
            assert joined.size
            runs = [(run[0], run[-1] + 1) for run in np.split(at, np.flatnonzero(apart > 1) + 1)]
            args = how.get("step", [None])[0], one["stride"], how.get("offsets", [0]), at[0], at[-1] + 1
            return within(joined.values, runs, one["window"], *args)
    if "time" in case.sel:
        joined = joined.sel(time=case.sel["time"], **({} if isinstance(case.sel["time"], slice) else options))
    elif "time" in case.isel:
        joined = joined.isel(time=case.isel["time"])
    if joined.ndim < len(dims):
        joined = joined.expand_dims("time")
    assert joined.size
    return samples(joined.values, one["window"], how.get("step", [None])[0], one["stride"], how.get("offsets", [0]))


OUTCOMES: dict[str, int] = {}


@pytest.mark.timeout_s(900)
@pytest.mark.filterwarnings("ignore")
def test_random_selections(monkeypatch):
    OUTCOMES.clear()

    @settings(max_examples=CASES)
    @given(cases())
    def check(case):
        with monkeypatch.context() as patch:
            in_memory(case, patch)
            patch.setattr(cutting.tables, "named", lambda _, table: table.tolist())
            try:
                want: Any = expected(case)
            except Exception as error:
                want = error
            given_ = {"path": "s", "sel": case.sel, "isel": case.isel, "method": case.method, "tolerance": case.tolerance}
            try:
                told = select.resolved(given_ | case.how)
            except (ValueError, TypeError, IndexError) as error:
                refused = next((text for text in REFUSALS if text in str(error)), None)
                assert refused or isinstance(want, Exception), (case, error)
                OUTCOMES[refused or "both raise"] = OUTCOMES.get(refused or "both raise", 0) + 1
                return
        assert not isinstance(want, Exception), (case, want)
        found = carried_out(case, told if case.sel or case.isel else told | case.how)
        assert [f.tolist() for f in found] == [w.tolist() for w in want], (case, told)
        OUTCOMES["equal"] = OUTCOMES.get("equal", 0) + 1

    check()
    assert OUTCOMES["equal"] > CASES / 3 and OUTCOMES["both raise"] > CASES / 50, OUTCOMES
