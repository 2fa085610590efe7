"""``scale_by`` beside what readers do otherwise: crops with labels, checkpoints, shards, joined stores, stacks, pipelines, and what
is refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
import zarr
from support.scales import Along, Image, numbered, write_coordinates, write_levels

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from dali_zarr.torch import Loader  # noqa: E402


def _image(shape: tuple[int, ...], distance: float | str, first: float | str = 0, dims: str = "yx", start: int = 1) -> Image:
    along = {dim: Along(Fraction(first), Fraction(distance), n) for dim, n in zip(dims, shape, strict=True)}
    return Image(numbered(shape, first=start), tuple(dims), along, {})


def _cellmap(path: Path) -> dict[str, np.ndarray]:
    """Raw volumes at 8 and 16 nm, and labels at 8 and 4 nm that are a crop of them, as cellmap-data has them."""
    rng = np.random.default_rng(0)
    raw = rng.integers(1, 255, (48, 64, 80), "uint8")
    raw16 = raw.reshape(24, 2, 32, 2, 40, 2).mean(axis=(1, 3, 5)).astype("uint8")
    labels = rng.integers(1, 9, (24, 32, 40), "uint8")
    fine = np.kron(labels, np.ones((2, 2, 2), "uint8"))
    zarr.open_group(str(path), mode="w", zarr_format=2)

    def image(values: np.ndarray, distance: int, firsts: tuple[int, ...]) -> Image:
        along = zip("zyx", firsts, values.shape, strict=True)
        return Image(values, ("z", "y", "x"), {dim: Along(Fraction(first), Fraction(distance), n) for dim, first, n in along}, {})

    write_levels(path, "raw", [image(raw, 8, (0, 0, 0)), image(raw16, 16, (4, 4, 4))], unit="nanometer")
    write_levels(path, "labels/mito", [image(labels, 8, (128, 160, 192))], unit="nanometer")
    write_levels(path, "fine/mito", [image(fine, 4, (126, 158, 190))], unit="nanometer")
    return {"raw": raw, "raw16": raw16, "labels": labels, "fine": fine}


def test_labels_that_are_a_crop(tmp_path, device):
    """They are read where both are; the context is wider, and at half the resolution."""
    there = _cellmap(tmp_path / "d.zarr")
    base = {"path": tmp_path / "d.zarr", "scale_by": "coordinates", "device": device, "batch_size": 8, "random_shuffle": True}
    loader = Loader(
        **base, arrays={"raw": "raw/s0", "context": "raw/s1", "mito": "labels/mito/s0", "fine": "fine/mito/s0"}, grid="mito",
        window={name: dict.fromkeys("zyx", 128 if name == "context" else 64) for name in ("raw", "context", "mito", "fine")},
        step=dict.fromkeys("zyx", 32), out_of_bounds_policy="drop",
    )
    found = set()
    for batch in loader:
        for i, (z, y, x) in enumerate(batch.index.tolist()):
            found.add((z, y, x))
            a, b, c = z + 16, y + 20, x + 24

            def cut(name: str, at: tuple[int, ...], n: int) -> np.ndarray:
                return there[name][tuple(slice(k, k + n) for k in at)]

            same = np.testing.assert_array_equal
            same(batch["mito"][i].cpu(), cut("labels", (z, y, x), 8))
            same(batch["raw"][i].cpu(), cut("raw", (a, b, c), 8))
            same(batch["fine"][i].cpu(), cut("fine", (2 * z, 2 * y, 2 * x), 16))
            # 128 nm around the centre: 4 voxels of 8 nm more on each side.
            same(batch["context"][i].cpu(), cut("raw16", ((a - 4) // 2, (b - 4) // 2, (c - 4) // 2), 8))
    assert found == {(z, y, x) for z in range(0, 17, 4) for y in range(0, 25, 4) for x in range(0, 33, 4)}
    # Without the labels as the grid, starts are where the labels are too.
    both = {"raw": "raw/s0", "mito": "labels/mito/s0"}
    of_raw = Loader(**base, arrays=both, window=dict.fromkeys("zyx", 64), step=dict.fromkeys("zyx", 8))
    starts = np.concatenate([batch.index.cpu().numpy() for batch in of_raw])
    assert starts.min(0).tolist() == [16, 20, 24] and starts.max(0).tolist() == [32, 44, 56] and len(starts) == 17 * 25 * 33
    # Or everywhere: where there are no labels, they are padded, and their mask says so.
    padded = Loader(
        **base, arrays=both, window=dict.fromkeys("zyx", 64), out_of_bounds_policy="pad", return_mask=True,
        fill_value={"mito": 255},
    )
    assert len(padded) * 8 == 6 * 8 * 10
    for batch in padded:
        for i, (z, y, x) in enumerate(batch.index.tolist()):
            whole = np.full(there["raw"].shape, 255, "uint8")
            whole[16:40, 20:52, 24:64] = there["labels"]
            window = tuple(slice(k, k + 8) for k in (z, y, x))
            np.testing.assert_array_equal(batch["mito"][i].cpu(), whole[window])
            np.testing.assert_array_equal(batch["mito_mask"][i].cpu(), whole[window] != 255)
            np.testing.assert_array_equal(batch["raw"][i].cpu(), there["raw"][window])
            assert batch["raw_mask"][i].all()


@pytest.fixture
def pair(tmp_path) -> Path:
    write_coordinates(tmp_path / "p.zarr", "fine", _image((60, 48), 1))
    write_coordinates(tmp_path / "p.zarr", "coarse", _image((20, 16), 3, 1, start=9000))
    return tmp_path / "p.zarr"


PAIR: dict[str, Any] = {"arrays": {"fine": "fine/v", "coarse": "coarse/v"}, "window": {"y": 12, "x": 6}, "scale_by": "coordinates"}


def test_checkpoints_and_shards(pair):
    arguments: dict[str, Any] = {**PAIR, "path": pair, "grid": "coarse", "step": {"y": 3, "x": 3}, "random_shuffle": True}
    arguments["device"] = "cpu"
    whole = [batch.index.tolist() for batch in Loader(**arguments, batch_size=4)]
    loader = Loader(**arguments, batch_size=4)
    it = iter(loader)
    next(it), next(it)
    state = loader.state_dict()
    restored = Loader(**arguments, batch_size=4)
    restored.load_state_dict(state)
    assert [batch.index.tolist() for batch in restored] == whole[2:]
    # The map of places is a part of what a checkpoint agrees with.
    values = zarr.open_group(str(pair))["coarse/y"]
    values[...] = values[...] + 3  # type: ignore[operator, index]
    moved = Loader(**arguments, batch_size=4)
    with pytest.raises(ValueError, match="checkpoint"):
        moved.load_state_dict(state)
        next(iter(moved))
    values[...] = values[...] - 3  # type: ignore[operator, index]
    shards = [Loader(**arguments, batch_size=4, shard_id=i, num_shards=3) for i in range(3)]
    parts = [row for loader in shards for batch in loader for row in batch.index.tolist()]
    assert sorted(map(tuple, parts)) == sorted(tuple(row) for rows in whole for row in rows)


def test_the_operator_in_a_pipeline(pair, device):
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=4, num_threads=1, device_id=0 if device == "gpu" else None)
    def pipeline():
        return tuple(fn.zarr_reader(
            path=str(pair), device=device, **{**PAIR, "window": {"y": 4.5, "x": 6.0}, "grid": "fine"}, step=[3.0, 6],
            dtype=types.INT64, out_of_bounds_policy="pad", return_mask=True, return_index=True,
        ))

    with pytest.raises(ValueError, match="a multiple of 1.0*, the distance|a multiple of 1,"):
        pipeline().build()
    PAIR_OF_6 = {**PAIR, "window": {"y": 6.0, "x": 6.0}}

    @pipeline_def(batch_size=4, num_threads=1, device_id=0 if device == "gpu" else None)
    def whole():
        return tuple(fn.zarr_reader(path=str(pair), device=device, **PAIR_OF_6, return_mask=True, return_index=True))

    pipe = whole()
    pipe.build()
    outs = [out.as_cpu() if device == "gpu" else out for out in pipe.run()]
    fine, coarse, of_fine, of_coarse, index = (np.asarray(out.as_array()) for out in outs)
    assert fine.shape == (4, 6, 6) and coarse.shape == of_coarse.shape == (4, 2, 2) and of_fine.all() and of_coarse.all()
    for i, (y, x) in enumerate(index.tolist()):
        assert fine[i, 0, 0] == 48 * y + x + 1 and coarse[i, 0, 0] == 9000 + 16 * (y // 3) + x // 3


def test_joined_stores_and_another_dimension_first(tmp_path, device):
    """Samples are cut along time, over stores that are joined, and along places; an array may lack the time."""
    fields = []
    for i, steps in enumerate((3, 4)):
        for name, n, distance in (("fine", 24, 2), ("coarse", 12, 4)):
            along = {"x": Along(Fraction(distance, 2), Fraction(distance), n)}
            values = numbered((steps, n), first=1 + 1000 * i + (500 if name == "coarse" else 0))
            write_coordinates(tmp_path / f"{i}.zarr", name, Image(values, ("t", "x"), along, {}))
            fields.append(values)
    fine, coarse = np.concatenate(fields[::2]), np.concatenate(fields[1::2])
    static = _image((6,), 8, 4, "x", 77)
    write_coordinates(tmp_path / "static.zarr", "s", static)
    loader = Loader(
        [tmp_path / "0.zarr", tmp_path / "1.zarr"], device=device, batch_size=3, random_shuffle=True, scale_by="coordinates",
        arrays={"fine": "fine/v", "coarse": "coarse/v", "static": str(tmp_path / "static.zarr/s/v")},
        window={"t": 2, "x": 16}, step={"t": 1, "x": 8},
    )
    found = set()
    for batch in loader:
        for i, (t, x) in enumerate(batch.index.tolist()):
            found.add((t, x))
            np.testing.assert_array_equal(batch["fine"][i].cpu(), fine[t : t + 2, x : x + 8])
            np.testing.assert_array_equal(batch["coarse"][i].cpu(), coarse[t : t + 2, x // 2 : x // 2 + 4])
            np.testing.assert_array_equal(batch["static"][i].cpu(), static.values[x // 4 : x // 4 + 2])
    assert found == {(t, x) for t in range(6) for x in range(0, 17, 4)}


def test_stacks_of_arrays_with_other_origins(tmp_path):
    """A crop and its image have elements of one size, so they can be channels of one output."""
    write_coordinates(tmp_path / "s.zarr", "image", _image((20, 20), 2))
    write_coordinates(tmp_path / "s.zarr", "crop", _image((8, 10), 2, 8, start=500))
    arguments: dict[str, Any] = {"arrays": ["image/v", "crop/v"], "window": {"y": 8, "x": 8}, "step": {"y": 2, "x": 2}}
    loader = Loader(tmp_path / "s.zarr", **arguments, device="cpu", scale_by="coordinates", stack_arrays=True, batch_size=100)
    (batch,) = loader
    assert batch["stacked"].shape == (5 * 7, 2, 4, 4)
    for stacked, (y, x) in zip(batch["stacked"].numpy(), batch.index.tolist(), strict=True):
        np.testing.assert_array_equal(stacked[0], numbered((20, 20))[y : y + 4, x : x + 4])
        np.testing.assert_array_equal(stacked[1], numbered((8, 10), first=500)[y - 4 : y, x - 4 : x])


def test_selections(tmp_path, pair):
    """A region by label of the grid's coordinates, and one element of a dimension that isn't one of dims."""
    along = {"y": Along(Fraction(0), Fraction(1), 30), "x": Along(Fraction(0), Fraction(1), 30)}
    write_coordinates(tmp_path / "c.zarr", "a", Image(numbered((3, 30, 30)), ("c", "y", "x"), along, {}))
    half = {"y": Along(Fraction(1, 2), Fraction(2), 15), "x": Along(Fraction(1, 2), Fraction(2), 15)}
    write_coordinates(tmp_path / "c.zarr", "b", Image(numbered((15, 15), first=9000), ("y", "x"), half, {}))
    loader = Loader(
        tmp_path / "c.zarr", arrays={"a": "a/v", "b": "b/v"}, dims=["y", "x"], window=[4.0, 4], scale_by="coordinates", step=[2, 2],
        isel={"c": 1}, sel={"y": slice(6, 17)}, batch_size=4, device="cpu", random_shuffle=True,
    )
    found = set()
    for batch in loader:
        for i, (y, x) in enumerate(batch.index[:, :2].tolist()):
            found.add((y, x))
            np.testing.assert_array_equal(batch["a"][i], numbered((3, 30, 30))[1, y : y + 4, x : x + 4])
            np.testing.assert_array_equal(batch["b"][i], numbered((15, 15), first=9000)[y // 2 : y // 2 + 2, x // 2 : x // 2 + 2])
    assert found == {(y, x) for y in range(6, 15, 2) for x in range(0, 27, 2)}


def test_units(tmp_path):
    """Metres and kilometres; the length is in the grid's unit."""
    of = {"y": "m", "x": "m"}
    write_coordinates(tmp_path / "u.zarr", "m", _image((40, 40), 250, 125), units=of)
    write_coordinates(tmp_path / "u.zarr", "km", _image((10, 10), 1000, 500, start=9000), units={"y": "km", "x": "km"}, scale=1e-3)
    write_coordinates(tmp_path / "u.zarr", "degrees", _image((10, 10), 1), units={"y": "degrees_north", "x": "degrees_east"})
    arguments: dict[str, Any] = {"arrays": {"m": "m/v", "km": "km/v"}, "scale_by": "coordinates", "device": "cpu"}
    for grid, window in (("m", 2000), ("km", 2)):
        batch = next(iter(Loader(tmp_path / "u.zarr", **arguments, window={"y": window, "x": window}, grid=grid, batch_size=25)))
        assert batch["m"].shape == (25, 8, 8) and batch["km"].shape == (25, 2, 2)
        np.testing.assert_array_equal(batch["m"][:, 0, 0], [1 + 40 * 8 * y + 8 * x for y in range(5) for x in range(5)])
        np.testing.assert_array_equal(batch["km"][:, 0, 0], [9000 + 20 * y + 2 * x for y in range(5) for x in range(5)])
    with pytest.raises(ValueError, match='found "m" in array .* and "degrees_north"'):
        Loader(tmp_path / "u.zarr", **{**arguments, "arrays": ["m/v", "degrees/v"]}, window={"y": 1000, "x": 1000})


def _spatialdata(path: Path) -> np.ndarray:
    """Levels of an image as spatialdata writes them: transformations of the image lead to coordinate systems with names."""
    full = np.random.default_rng(4).integers(1, 255, (3, 64, 64), "uint8")
    axes = [{"name": "c", "type": "channel"}, *({"name": dim, "type": "space", "unit": "unit"} for dim in "yx")]
    group = zarr.open_group(str(path), mode="w", zarr_format=3)
    datasets = []
    for i in range(3):
        values = full if i == 0 else full.reshape(3, 64 >> i, 1 << i, 64 >> i, 1 << i).mean(axis=(2, 4)).astype("uint8")
        array = group.create_array(f"s{i}", shape=values.shape, dtype="uint8", chunks=(3, 16, 16))
        array[...] = values
        scale = [{"type": "scale", "scale": [1.0, float(1 << i), float(1 << i)]}]
        datasets.append({"path": f"s{i}", "coordinateTransformations": scale})
    ends = {"input": {"name": "cyx", "axes": axes}, "output": {"name": "global", "axes": axes}}
    own = [{"type": "identity", **ends}, {"type": "scale", "scale": [1, 3, 3], **ends, "output": {"name": "slide", "axes": axes}}]
    multiscale = {"axes": axes, "datasets": datasets, "coordinateTransformations": own}
    group.attrs["ome"] = {"version": "0.5-dev-spatialdata", "multiscales": [multiscale]}
    return full


def test_levels_of_spatialdata(tmp_path, device):
    full = _spatialdata(tmp_path / "i.zarr")
    loader = Loader(
        tmp_path / "i.zarr", arrays=["s0", "s1", "s2"], dims=["y", "x"], window=[32, 16], step=[8, 8], scale_by="corners",
        device=device,
    )
    assert len(loader) == 5 * 7
    for batch in loader:
        (y, x) = batch.index[0].tolist()
        np.testing.assert_array_equal(batch["s0"][0].cpu(), full[:, y : y + 32, x : x + 16])
        mean = full[:, y : y + 32, x : x + 16].reshape(3, 8, 4, 4, 4).mean(axis=(2, 4)).astype("uint8")
        np.testing.assert_array_equal(batch["s2"][0].cpu(), mean)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"scale_by": "metres"}, "scale_by"),
    ({"scale_by": None}, 'length 20 in array .* but 60'),
    ({"scale_by": None, "window": {"y": 1.5, "x": 3}}, "window: expected integers"),
    ({"scale_by": None, "window": [12, 6], "grid": "fine", "arrays": {"fine": "fine/v"}}, "grid: expected scale_by too"),
    ({"grid": "fin"}, "there is no output 'fin'; the outputs are 'fine', 'coarse'"),
    ({"window": {"y": 10, "x": 6}}, 'a multiple of 3, the distance of elements along "y" in array \'coarse/v\', but found 10'),
    ({"window": {"y": -3, "x": 6}}, "window: expected a multiple"),
    ({"window": {"y": float("nan"), "x": 6}}, "lengths that are finite"),
    ({"window": {"y": True, "x": 6}}, "expected lengths in units"),
    ({"window": {"y": "12", "x": 6}}, "expected lengths in units"),
    ({"step": {"y": 0.5}}, "step: expected a multiple of 1"),
    ({"overlap": {"y": 12}}, "overlap: expected 0 to 11"),
    ({"stride": {"y": 2}}, "stride, scale_by"),
    ({"pick": {"y": [0, 1, 2]}}, "pick, scale_by"),
    ({"sel": {"y": [3.0, 9.0]}}, "expected a slice without a step beside scale_by"),
    ({"isel": {"y": slice(0, 30, 2)}}, "expected a slice without a step beside scale_by"),
    ({"stack_arrays": True}, "expected as many elements of all arrays of a stack"),
    ({"arrays": {"fine": "fine/v", "coarse": "none/v"}}, "expected coordinates along \"y\" beside array 'none/v'"),
    ({"arrays": {"fine": "fine/v", "coarse": "uneven/v"}}, "expected two evenly spaced coordinates"),
    ({"arrays": {"fine": "fine/v", "coarse": "down/v"}}, "ascend in one and descend in the other"),
    ({"arrays": {"fine": "fine/v", "coarse": "far/v"}}, "no box lies in all arrays"),
    ({"arrays": {"fine": "none/v", "coarse": "coarse/v"}}, "has length 20 in array .* but 60"),
    ({"arrays": {"fine": "none/v"}, "window": {"y": 1.5, "x": 2}}, "a whole number of elements along \"y\", which has neither"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_refused(tmp_path, pair, given, said):
    write_coordinates(pair, "none", Image(numbered((60, 48)), ("y", "x"), {}, {}))
    write_coordinates(pair, "uneven", _image((20, 16), 3, 1))
    uneven = zarr.open_group(str(pair))["uneven/y"]
    uneven[7] = uneven[7] + 1  # type: ignore[operator, index]
    write_coordinates(pair, "down", _image((20, 16), -3, 60))
    write_coordinates(pair, "far", _image((20, 16), 3, 1000))
    with pytest.raises((ValueError, TypeError), match=said):
        Loader(pair, **{**PAIR, **given}, device="cpu")


def test_transformations_that_are_refused(tmp_path):
    levels = [_image((16, 16), 1), _image((8, 8), 2)]
    names = write_levels(tmp_path / "i.zarr", "", levels, "0.6")
    group = zarr.open_group(str(tmp_path / "i.zarr"))
    right = group.attrs["ome"]

    def with_second(transformation: dict[str, Any]) -> None:
        changed = {**right, "multiscales": [{**right["multiscales"][0]}]}  # type: ignore[dict-item, index]
        first, second = changed["multiscales"][0]["datasets"]
        whole = [{**transformation, "input": {"path": "s1"}, "output": {"name": "physical"}}]
        changed["multiscales"][0]["datasets"] = [first, {**second, "coordinateTransformations": whole}]
        group.attrs["ome"] = changed

    for transformation, said in (
        ({"type": "displacements", "path": "field"}, "expected transformations that say where elements lie .*displacements"),
        ({"type": "rotation", "rotation": [[0.8, -0.6], [0.6, 0.8]]}, "turns or drops the dimension"),
        ({"type": "scale", "scale": [2, 0]}, "turns or drops the dimension|a distance of elements"),
        ({"type": "scale", "scale": [2]}, "expected transformations"),
        ({"type": "scale", "scale": [2, -2]}, "ascend in one and descend"),
        ({"type": "scale", "scale": [1e-300, 1e-300]}, "a multiple of 1e-300"),
    ):
        with_second(transformation)
        with pytest.raises(ValueError, match=said):
            Loader(tmp_path / "i.zarr", arrays=names, window={"y": 4, "x": 4}, scale_by="coordinates", device="cpu")
    # A map of axes is understood: the dimensions of the second level are exchanged.
    axes = {"type": "sequence", "transformations": [{"type": "scale", "scale": [2, 2]}, {"type": "mapAxis", "mapAxis": [1, 0]}]}
    with_second(axes)
    (batch,) = Loader(tmp_path / "i.zarr", arrays=names, window={"y": 16, "x": 16}, scale_by="corners", device="cpu")
    assert batch["s1"].shape == (1, 8, 8)


def test_ragged_rows_and_statistics_refuse_it(tmp_path, pair):
    with pytest.raises(TypeError, match="scale_by: arrays of another resolution"):
        dali_zarr.statistics(pair, arrays=PAIR["arrays"], scale_by="coordinates")
    group = zarr.open_group(str(tmp_path / "r.zarr"), mode="w")
    group.create_array("v", data=np.arange(9, dtype="float32"))
    group.create_array("ends", data=np.array([3, 9]))
    with pytest.raises(ValueError, match="scale_by: expected none with ragged"):
        Loader(tmp_path / "r.zarr", arrays=["v"], ragged_ends="ends", scale_by="coordinates", device="cpu")
