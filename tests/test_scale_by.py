"""``scale_by``: arrays of other resolutions beside each other, against exact fractions and NumPy, for random places, crops,
windows, units, orders and stores."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scales import Along, Image, numbered, sample, starts, write_coordinates, write_levels

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from dali_zarr.torch import Loader  # noqa: E402

NUMBERS = itertools.count()
UNITS = [Fraction(1), Fraction(10), Fraction("0.65"), Fraction("0.1"), Fraction(1, 3), Fraction("2.62")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("scales")


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    """Images over one place, and how samples are cut of them."""
    unit = draw(st.sampled_from(UNITS))
    dims = draw(st.sampled_from([("y",), ("y", "x"), ("z", "y", "x")]))
    names = ["a", "b", "c"][: draw(st.integers(2, 3))]
    grid = draw(st.sampled_from(names))
    descending = {dim: draw(st.booleans()) for dim in dims}
    is_pyramid = draw(st.booleans())
    common = draw(st.booleans())
    distances: dict[tuple[str, str], int] = {}
    for name, dim in itertools.product(names, dims):
        distances[name, dim] = draw(st.sampled_from([1, 2, 4, 6] if is_pyramid else list(range(1, 13))))
    whole = {dim: lcm(*(distances[name, dim] for name in names)) for dim in dims}
    images = {}
    for number, name in enumerate(names):
        along, windows = {}, {}
        for dim in dims:
            distance = distances[name, dim]
            # Quarters of the unit, so that centres and edges fall anywhere.
            quarters = Fraction(draw(st.integers(-40, 60)), 4)
            first = Fraction(distance - 1, 2) + draw(st.integers(0, 9)) if is_pyramid else quarters
            length = draw(st.integers(2, max(60 // distance, 6)))
            sign = -1 if descending[dim] else 1
            along[dim] = Along(sign * first * unit, sign * distance * unit, length)
            windows[dim] = whole[dim] // distance if common else draw(st.integers(0, 6))
        values = numbered([along[dim].length for dim in dims] + ([2] if number == 1 else []), first=1 + 10_000 * number)
        images[name] = Image(values, (*dims, *(["c"] if number == 1 else [])), along, windows)
    if common:
        window: Any = {dim: float(whole[dim] * unit) for dim in dims}
    else:
        window = {
            name: {dim: float(image.windows[dim] * abs(image.along[dim].distance)) for dim in dims}
            for name, image in images.items()
        }
    steps = {dim: draw(st.integers(1, 5)) for dim in dims}
    regions = {}
    for dim in dims:
        length = images[grid].along[dim].length
        low = draw(st.sampled_from([0, 0, 1, 2]))
        high = draw(st.integers(max(low + 1, length - 3), length)) if low < length else length
        regions[dim] = (min(low, length - 1), max(high, min(low, length - 1) + 1))
    policy = draw(st.sampled_from(["drop", "drop", "pad", "edge"]))
    offsets = draw(st.sampled_from([[0], [0], [0, 2], [-1]])) if policy == "drop" else [0]
    return {
        "unit": unit, "dims": dims, "grid": grid, "images": images, "window": window, "steps": steps, "regions": regions,
        "policy": policy, "offsets": offsets, "shuffled": draw(st.booleans()),
        "method": draw(st.sampled_from(["nearest", "previous"])), "names_grid": grid != "a" or draw(st.booleans()),
    }


def check(case: dict[str, Any], device: str, arrays: dict[str, str], path: Any) -> int:
    """Compares all samples of a reader with the oracle; returns how many there are."""
    images, grid, dims, policy = case["images"], case["grid"], case["dims"], case["policy"]
    method = case.get("method", "nearest")
    distances = {dim: float(abs(images[grid].along[dim].distance)) for dim in dims}
    arguments: dict[str, Any] = {
        "path": path, "arrays": arrays, "dims": list(dims), "window": case["window"], "scale_by": "coordinates",
        "step": [case["steps"][dim] * distances[dim] for dim in dims], "out_of_bounds_policy": policy, "offsets": case["offsets"],
        "roi_start": [case["regions"][dim][0] for dim in dims], "roi_end": [case["regions"][dim][1] for dim in dims],
        "random_shuffle": case["shuffled"], "batch_size": 5, "device": device, "fill_value": 77, "return_mask": True,
        "scale_method": method,
    }
    if case["names_grid"]:
        arguments["grid"] = grid
    expected = starts(images, grid, case["steps"], case["regions"], policy, case["offsets"], method)
    if not expected:
        with pytest.raises(ValueError, match="no sample"):
            Loader(**arguments)
        return 0
    found = []
    for batch in Loader(**arguments):
        for i, row in enumerate(batch.index.tolist()):
            found.append(tuple(row))
            for name, image in images.items():
                for number, offset in enumerate(case["offsets"]):
                    at = dict(zip(dims, row, strict=True))
                    at[dims[0]] += offset
                    want = sample(image, images[grid], at, case["regions"], policy, 77, method)
                    assert want is not None
                    values, mask = want
                    output = f"{name}{offset:+d}" if offset else name
                    np.testing.assert_array_equal(batch[output][i].cpu().numpy(), values, err_msg=f"{output} at {row}")
                    told = batch[f"{name}_mask"][i].cpu().numpy()
                    told = told[number] if len(case["offsets"]) > 1 else told
                    np.testing.assert_array_equal(told, mask, err_msg=f"mask of {output} at {row}")
    assert (sorted(found) if case["shuffled"] else found) == expected
    return len(found)


@given(cases(), st.sampled_from([2, 3]))
def test_coordinates(folder, device, case, zarr_format):
    root = folder / f"{next(NUMBERS)}.zarr"
    arrays = {name: write_coordinates(root, name, image, zarr_format) for name, image in case["images"].items()}
    check(case, device, arrays, root)


@given(
    cases(), st.sampled_from(["0.4", "0.5", "0.6"]), st.sampled_from(["dataset", "image", "affine", "byDimension"]), st.booleans(),
)
def test_transformations(folder, device, case, version, how, is_apart):
    """Each array is an image of its own; a second one may have other units."""
    root = folder / f"{next(NUMBERS)}.zarr"
    arrays = {}
    for name, image in case["images"].items():
        values = image.values if image.dims == case["dims"] else image.values[..., 0]
        plain = Image(values, case["dims"], image.along, image.windows)
        case["images"][name] = plain
        unit, scale = ("nanometer", Fraction(1000)) if name == "b" and is_apart else ("micrometer", Fraction(1))
        (of_level,) = write_levels(root, name, [plain], version, how, unit, scale)
        arrays[name] = str(root / of_level) if is_apart else of_level
    if is_apart and case["grid"] == "b":
        # The unit is that of the grid.
        case["window"] = _times(case["window"], 1000)
        case["images"] = {
            name: Image(
                image.values, image.dims,
                {dim: Along(one.first * 1000, one.distance * 1000, one.length) for dim, one in image.along.items()}, image.windows,
            ) for name, image in case["images"].items()
        }
    check(case, device, arrays, None if is_apart else root)


@pytest.mark.parametrize("policy", ["edge", "pad"])
@pytest.mark.parametrize("region", [(1, 2), (0, 2), (1, 3), (2, 3), (0, 3)])
def test_regions_without_an_element_of_a_coarser_array(tmp_path, device, region, policy):
    """Between two elements of a coarser array no element begins. The one nearest to the region's start is repeated there."""
    fine = Image(numbered([3]), ("y",), {"y": Along(Fraction(0), Fraction(1), 3)}, {"y": 0})
    coarse = Image(numbered([2, 2], first=10_001), ("y", "c"), {"y": Along(Fraction(0), Fraction(2), 2)}, {"y": 0})
    images = {"a": fine, "b": coarse}
    arrays = {name: write_coordinates(tmp_path / "r.zarr", name, image) for name, image in images.items()}
    case = {
        "images": images, "grid": "a", "dims": ("y",), "window": {"a": {"y": 0.0}, "b": {"y": 0.0}}, "steps": {"y": 1},
        "regions": {"y": region}, "policy": policy, "offsets": [0], "shuffled": False, "names_grid": True,
    }
    assert check(case, device, arrays, tmp_path / "r.zarr") == region[1] - region[0]


def _times(window: Any, factor: int) -> Any:
    return {key: _times(value, factor) for key, value in window.items()} if isinstance(window, dict) else window * factor


@given(st.data())
def test_tables_of_starts_and_random_crops(folder, device, data):
    """Rows of a table, and starts that are drawn, are elements of the grid array."""
    case = data.draw(cases())
    images, grid, dims = case["images"], case["grid"], case["dims"]
    whole = {dim: (0, images[grid].along[dim].length) for dim in dims}
    root = folder / f"{next(NUMBERS)}.zarr"
    arrays = {name: write_coordinates(root, name, image) for name, image in images.items()}
    common: dict[str, Any] = {
        "path": root, "arrays": arrays, "dims": list(dims), "window": case["window"], "scale_by": "coordinates", "grid": grid,
        "device": device, "batch_size": 4, "scale_method": case["method"],
    }
    every = dict.fromkeys(dims, 1)
    fitting = starts(images, grid, every, whole, "drop", method=case["method"])
    if not fitting:
        return
    crops = Loader(**common, random_crop=list(dims), samples_per_volume=20)
    rows = [data.draw(st.tuples(*(st.integers(-3, whole[dim][1] + 2) for dim in dims))) for _ in range(12)]
    table = np.array(rows + fitting[:3])
    dropped = Loader(**common, starts=table)
    padded = Loader(**common, starts=table, out_of_bounds_policy="pad", random_shuffle=True)
    for loader, policy, expected in (
        (crops, "drop", None), (dropped, "drop", [row for row in map(tuple, table.tolist()) if row in set(fitting)]),
        (padded, "pad", sorted(map(tuple, table.tolist()))),
    ):
        found = []
        for batch in loader:
            for i, row in enumerate(batch.index.tolist()):
                found.append(tuple(row))
                for name, image in images.items():
                    values, _ = sample(image, images[grid], dict(zip(dims, row, strict=True)), whole, policy, 0, case["method"])  # type: ignore[misc]
                    np.testing.assert_array_equal(batch[name][i].cpu().numpy(), values)
        if expected is None:
            assert len(found) == 20 and set(found) <= set(fitting)
        else:
            assert (sorted(found) if loader is padded else found) == expected


@given(st.data())
def test_labels_are_those_of_each_array(folder, data):
    case = data.draw(cases())
    images, grid, dims = case["images"], case["grid"], case["dims"]
    root = folder / f"{next(NUMBERS)}.zarr"
    is_ome = data.draw(st.booleans())
    arrays = {}
    for name, image in images.items():
        if is_ome:
            images[name] = image = Image(
                image.values if image.dims == dims else image.values[..., 0], dims, image.along, image.windows,
            )
            (arrays[name],) = write_levels(root, name, [image], "0.5")
        else:
            arrays[name] = write_coordinates(root, name, image)
    policy = data.draw(st.sampled_from(["drop", "pad", "edge"]))
    method = case["method"]
    if not starts(images, grid, case["steps"], case["regions"], policy, method=method):
        return
    distances = {dim: float(abs(images[grid].along[dim].distance)) for dim in dims}
    loader = Loader(
        root, arrays=arrays, dims=list(dims), window=case["window"], scale_by="coordinates", grid=grid, device="cpu", batch_size=7,
        step=[case["steps"][dim] * distances[dim] for dim in dims], out_of_bounds_policy=policy,
        roi_start=[case["regions"][dim][0] for dim in dims], roi_end=[case["regions"][dim][1] for dim in dims],
        scale_method=method,
    )
    batch = next(iter(loader))
    for name, image in images.items():
        coords = batch.coords_of(name)
        for dim in dims:
            # What the oracle reads of the centres instead of the values.
            centres = Image(image.along[dim].centres(), (dim,), {dim: image.along[dim]}, image.windows)
            for i, row in enumerate(batch.index.tolist()):
                at = dict(zip(dims, row, strict=True))
                values, mask = sample(centres, images[grid], at, case["regions"], policy, np.nan, method)  # type: ignore[misc]
                np.testing.assert_allclose(coords[dim][i], values, rtol=1e-9, atol=1e-9)
                assert (~np.isnan(coords[dim][i]) == mask).all() or policy != "pad"
    np.testing.assert_array_equal(batch.coords[dims[0]], batch.coords_of(grid)[dims[0]])


def _halves(values: np.ndarray, times: int) -> np.ndarray:
    """Means of neighbours, as writers of pyramids make them."""
    for _ in range(times):
        cut = values[tuple(slice(n // 2 * 2) for n in values.shape)]
        values = cut.reshape([part for n in cut.shape for part in (n // 2, 2)]).mean(axis=tuple(range(1, 2 * cut.ndim, 2)))
    return values


@pytest.mark.parametrize("grid", ["s0", "s2"])
@pytest.mark.parametrize("says", ["translations", "none, meant as corners", "none, elements left out"])
@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
def test_pyramids(tmp_path, device, version, says, grid):
    """Levels that tell their translation, and such that don't: what they mean is said by scale_by."""
    full = np.random.default_rng(3).standard_normal((64, 96))
    is_mean = "left out" not in says
    levels = [_halves(full, i) if is_mean else full[:: 2**i, :: 2**i] for i in range(3)]
    images = []
    for i, values in enumerate(levels):
        distance = Fraction(2**i, 4)
        first = (distance - Fraction(1, 4)) / 2 if says == "translations" else Fraction(0)
        along = {dim: Along(first, distance, n) for dim, n in zip("yx", values.shape, strict=True)}
        images.append(Image(values, ("y", "x"), along, {}))
    names = write_levels(tmp_path / "i.zarr", "", images, version)
    loader = Loader(
        tmp_path / "i.zarr", arrays=names, window={"y": 4, "x": 8}, step={"y": 2, "x": 2}, device=device, batch_size=4, grid=grid,
        scale_by="corners" if "corners" in says else "coordinates", random_shuffle=True,
    )
    count = 0
    for batch in loader:
        for i in range(len(batch.index)):
            count += 1
            s0, s1, s2 = (batch[name][i].cpu().numpy() for name in names)
            assert s0.shape == (16, 32) and s1.shape == (8, 16) and s2.shape == (4, 8)
            if is_mean:
                # The same box: its means are those of the other level.
                np.testing.assert_allclose(_halves(s0, 1), s1, rtol=1e-12)
                np.testing.assert_allclose(_halves(s0, 2), s2, rtol=1e-12)
            else:
                # Around one centre, a box of twice as many elements begins half an element earlier or later.
                first = 0 if grid == "s0" else 1
                np.testing.assert_array_equal(s0[first::2, first::2], s1)
                np.testing.assert_array_equal(s0[first::4, first::4], s2)
    assert count == (7 if is_mean or grid == "s0" else 6) * (9 if is_mean or grid == "s0" else 8)


def test_which_meaning_is_told(tmp_path, caplog):
    along = [Along(Fraction(0), Fraction(64 // n), n) for n in (64, 32)]
    levels = [Image(numbered((of.length, of.length)), ("y", "x"), dict.fromkeys("yx", of), {}) for of in along]
    write_levels(tmp_path / "same.zarr", "", levels)
    with caplog.at_level("WARNING", logger="dali_zarr"):
        Loader(tmp_path / "same.zarr", arrays=["s0", "s1"], window={"y": 8, "x": 8}, scale_by="coordinates", device="cpu")
    assert "same translation" in caplog.text and 'scale_by="corners"' in caplog.text


def _product(path: Path, rng: np.random.Generator, n: int = 366, x0: float = 300000.0, y0: float = 5000000.0) -> dict[str, Any]:
    """Sentinel-2 in EOPF's layout: packed bands of 10, 20 and 60 m in groups of their own, with the centres of pixels."""
    xr = pytest.importorskip("xarray")
    found = {}
    for metres, bands in ((10, ["b02", "b08"]), (20, ["b05"]), (60, ["b01"])):
        m = n * 10 // metres
        coords = {"y": y0 - metres * (np.arange(m) + 0.5), "x": x0 + metres * (np.arange(m) + 0.5)}
        ds = xr.Dataset({band: (("y", "x"), rng.integers(1, 9000, (m, m)) * 1e-4 - 0.1) for band in bands}, coords=coords)
        packing = {"dtype": "u2", "scale_factor": 1e-4, "add_offset": -0.1, "_FillValue": 0, "chunks": (61, 61)}
        group = f"measurements/reflectance/r{metres}m"
        ds.to_zarr(path, group=group, mode="a", zarr_format=2, consolidated=False, encoding=dict.fromkeys(bands, packing))
        found |= {band: xr.open_zarr(path, group=group, consolidated=False)[band].load() for band in bands}
    return found


METRES = {"b02": 10, "b08": 10, "b05": 20, "b01": 60}
ARRAYS = {band: f"measurements/reflectance/r{metres}m/{band}" for band, metres in METRES.items()}


def test_sentinel_2(tmp_path, device):
    """Boxes in metres, on the grid of 60 m pixels, against xarray's selection by label."""
    rng = np.random.default_rng(5)
    bands = _product(tmp_path / "s2.zarr", rng)
    loader = Loader(**loader_arguments(tmp_path), random_shuffle=True, device=device, dtype="float64")
    shapes = {"b02": (60, 120), "b08": (60, 120), "b05": (30, 60), "b01": (10, 20)}
    count = 0
    for batch in loader:
        labels = {band: batch.coords_of(band) for band in shapes}
        for i, (y, x) in enumerate(batch.index.tolist()):
            count += 1
            top, left = 5000000.0 - 60 * y, 300000.0 + 60 * x
            for band, shape in shapes.items():
                want = bands[band].sel(y=slice(top, top - 600), x=slice(left, left + 1200))
                assert want.shape == shape
                np.testing.assert_allclose(batch[band][i].cpu().numpy(), want.values, rtol=1e-12)
                np.testing.assert_array_equal(labels[band]["y"][i], want.y.values)
                np.testing.assert_array_equal(labels[band]["x"][i], want.x.values)
    assert count == 11 * 42
    told = {array["output"]: array["scaled"][0] for array in dali_zarr.explain(**loader_arguments(tmp_path))["arrays"]}
    assert all(told[band][dim]["beside"] == 0 for band in shapes for dim in "yx")


def loader_arguments(folder: Path) -> dict[str, Any]:
    return {
        "path": folder / "s2.zarr", "arrays": ARRAYS, "window": {"y": 600, "x": 1200}, "step": {"y": 300, "x": 60},
        "scale_by": "coordinates", "grid": "b01", "batch_size": 16,
    }


def test_what_explain_says(tmp_path):
    _product(tmp_path / "s2.zarr", np.random.default_rng(5))
    arguments = {**loader_arguments(tmp_path), "grid": "b02", "step": {"y": 10, "x": 20}}
    explained = dali_zarr.explain(**arguments)
    told = {array["output"]: array["scaled"][0] for array in explained["arrays"]}
    # Starts at every 10 m are up to half a pixel of 20 m, and three sixths of one of 60 m, beside a pixel's edge.
    assert told["b05"]["y"]["beside"] == 0.5 and told["b05"]["x"]["beside"] == 0.0
    assert told["b01"]["y"]["beside"] == 0.5 and told["b01"]["x"]["beside"] == pytest.approx(1 / 3)
    assert told["b02"]["y"]["window"] == 60 and told["b01"]["x"]["window"] == 20
    assert told["b05"]["y"]["distance"] == -20 and told["b05"]["y"]["first"] == 4999990
    text = str(explained)
    assert "b05" in text and "0.50 elements beside its box" in text


def test_two_products_one_after_the_other(tmp_path, device):
    """Each store has places of its own."""
    rng = np.random.default_rng(6)
    products = [_product(tmp_path / "a.zarr", rng), _product(tmp_path / "b.zarr", rng, 246, 600030.0)]
    loader = Loader(
        [tmp_path / "a.zarr", tmp_path / "b.zarr"], arrays=ARRAYS, window={"y": 600, "x": 600}, scale_by="coordinates",
        grid="b01", concat="samples", random_shuffle=True, batch_size=8, device=device, dtype="float64",
        sel={"x": slice(300600.0, 700000.0)},
    )
    found = set()
    for batch in loader:
        labels = batch.coords_of("b05")
        for i, (store, y, x) in enumerate(batch.index.tolist()):
            found.add((store, y, x))
            want = products[store]["b05"].values[3 * y : 3 * y + 30, 3 * x : 3 * x + 30]
            np.testing.assert_allclose(batch["b05"][i].cpu().numpy(), want, rtol=1e-12)
            want = products[store]["b02"].values[6 * y : 6 * y + 60, 6 * x : 6 * x + 60]
            np.testing.assert_allclose(batch["b02"][i].cpu().numpy(), want, rtol=1e-12)
            np.testing.assert_array_equal(labels["x"][i], products[store]["b05"].x.values[3 * x : 3 * x + 30])
    of_first = {(0, y, x) for y in range(0, 51, 10) for x in range(10, 51, 10)}
    assert found == of_first | {(1, y, x) for y in range(0, 31, 10) for x in range(0, 31, 10)}


def test_boxes_between_elements_by_hand(tmp_path, device):
    """An image of 8 nm and its level of 16 nm, whose first corners are one place, as cellmap's."""
    fine, coarse = np.arange(32, dtype="int32"), np.arange(16, dtype="int32") + 100
    levels = [
        Image(values, ("x",), {"x": Along(Fraction(0), Fraction(distance), len(values))}, {})
        for values, distance in ((fine, 8), (coarse, 16))
    ]
    names = write_levels(tmp_path / "i.zarr", "", levels)
    common: dict[str, Any] = {
        "path": tmp_path / "i.zarr", "arrays": names, "scale_by": "corners", "window": {"x": 32}, "step": {"x": 8}, "batch_size": 6,
        "device": device,
    }
    for method, first in (("nearest", [0, 1, 1, 2, 2, 3]), ("previous", [0, 0, 1, 1, 2, 2])):
        batch = next(iter(Loader(**common, scale_method=method)))
        assert batch["s0"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
        assert batch["s1"].tolist() == [[100 + at, 101 + at] for at in first]
        told = dali_zarr.explain(**{name: value for name, value in common.items() if name != "device"}, scale_method=method)
        assert told["arrays"][1]["scaled"][0]["x"]["beside"] == 0.5
    # The last box that lies in both arrays: from 28 elements of 8 nm on, or from 27, which would begin at the 14th of 16 nm.
    assert [len(Loader(**common | {"batch_size": 1}, scale_method=method)) for method in ("nearest", "previous")] == [29, 29]
    # A window of three quarters of the coarser elements' distance isn't one of them.
    with pytest.raises(ValueError, match="window: expected a multiple of 16"):
        Loader(**common | {"window": {"x": 24}}, scale_method="previous")
    # Regions are bounded as boxes are: here all that begin at an odd element.
    odd = Loader(**common | {"batch_size": 1}, scale_method="previous", roi_start=[3], roi_end=[9])
    assert [batch["s1"][0].tolist() for batch in odd] == [[101, 102], [102, 103], [102, 103]]


def test_wrong_methods(tmp_path):
    images = {
        name: Image(numbered([n]), ("y",), {"y": Along(Fraction(0), Fraction(60 // n), n)}, {"y": 0})
        for name, n in (("a", 12), ("b", 6))
    }
    arrays = {name: write_coordinates(tmp_path / "r.zarr", name, image) for name, image in images.items()}
    with pytest.raises(ValueError, match='scale_method: expected .*"previous"|scale_method: .*previous'):
        dali_zarr.explain(tmp_path / "r.zarr", arrays=arrays, scale_by="coordinates", window={"y": 10}, scale_method="floor")
    with pytest.raises(ValueError, match="scale_method: expected scale_by too, which it is for"):
        dali_zarr.explain(tmp_path / "r.zarr", arrays={"a": arrays["a"]}, window={"y": 2}, scale_method="previous")
    with pytest.raises(TypeError, match="scale_method: it is for scale_by"):
        dali_zarr.statistics(tmp_path / "r.zarr", arrays={"a": arrays["a"]}, scale_method="previous")


def test_states_tell_the_method(tmp_path):
    images = {
        name: Image(numbered([n]), ("y",), {"y": Along(Fraction(60 // n - 1, 2), Fraction(60 // n), n)}, {"y": 0})
        for name, n in (("a", 12), ("b", 6))
    }
    arrays = {name: write_coordinates(tmp_path / "r.zarr", name, image) for name, image in images.items()}
    made = lambda method: Loader(  # noqa: E731
        tmp_path / "r.zarr", arrays=arrays, scale_by="coordinates", window={"y": 10}, step={"y": 5}, device="cpu",
        scale_method=method,
    )
    loader = made("previous")
    next(iter(loader))
    state = loader.state_dict()
    made("previous").load_state_dict(state)
    other = made("nearest")
    with pytest.raises(ValueError, match="scale_by"):
        other.load_state_dict(state)
