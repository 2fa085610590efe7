"""Statistics read blocks of their own: any shapes, segments, breaks and selections give what NumPy finds; the parts of splits are
taken as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
import torch
from dali_zarr import _dali
from dali_zarr._statistics import accepted
from dali_zarr._statistics.blocks import Blocks
from dali_zarr.torch import Loader
from support.stores import Layout, write_array


def agrees(entry: dict[str, Any], values: np.ndarray, times: int = 1) -> None:
    assert entry["count"] == values.size * times
    if not values.size:
        assert entry["mean"] is None
        return
    values = values.astype(np.longdouble)
    for key, expected in (("mean", values.mean()), ("stddev", values.std()), ("min", values.min()), ("max", values.max())):
        assert abs(entry[key] - expected) <= 1e-12 * max(abs(expected), 1), key


SHAPES = [(5, 40, 33), (9, 17, 64), (1, 50, 20)]


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[np.ndarray]]:
    folder = tmp_path_factory.mktemp("volumes")
    rng = np.random.default_rng(0)
    values = [rng.normal(i, 1, shape).astype("float32") for i, shape in enumerate(SHAPES)]
    for i, one in enumerate(values):
        write_array(folder / f"{i}.zarr", "0", one, layout=Layout((4, 16, 16)), dims="zyx")
    return [folder / f"{i}.zarr" for i in range(len(values))], values


def test_volumes_of_different_shapes(volumes, monkeypatch):
    """In a few blocks, not one for each voxel."""
    paths, values = volumes
    made: list[Blocks] = []
    init = Blocks.__init__

    def kept(self: Blocks, *arguments: Any) -> None:
        init(self, *arguments)
        made.append(self)

    monkeypatch.setattr(Blocks, "__init__", kept)
    given: dict[str, Any] = {"concat": "samples", "dims": ["z", "y", "x"]}
    found = dali_zarr.statistics(paths, arrays=["0"], **given)
    agrees(found["arrays"]["0"], np.concatenate([one.reshape(-1) for one in values]))
    assert found["samples"] == sum(one.size for one in values)
    (blocks,) = made
    # By the reader's own count: at most a block for each chunk that holds elements.
    chunks = sum(int(np.prod([-(-n // chunk) for n, chunk in zip(shape, (4, 16, 16))])) for shape in SHAPES)
    arguments = {name: value for name, value in blocks.arguments.items() if value is not None}
    # And a batch has no room for more, which would be filled with copies.
    assert blocks.batch_size == dali_zarr.explain(**arguments)["samples"] <= chunks


@pytest.mark.parametrize("offset", [2, -3])
def test_differences_within_volumes(volumes, offset):
    paths, values = volumes
    isel = {"y": slice(3, 15), "x": slice(1, None, 2)}
    found = dali_zarr.statistics(paths, arrays=["0"], concat="samples", dims=["z", "y", "x"], offsets=offset, isel=isel)
    parts = [one[:, 3:15, 1::2].astype("f8") for one in values]
    agrees(found["arrays"]["0"], np.concatenate([one.reshape(-1) for one in parts]))
    shift = abs(offset)
    differences = [((one[shift:] - one[:-shift]) * np.sign(offset)).reshape(-1) for one in parts]
    agrees(found["arrays"]["0"]["tendencies"][str(offset)], np.concatenate(differences))


def test_random_selections(tmp_path):
    """Breaks, segments, regions with steps, several stores, windows of any size, beside NumPy."""
    rng = np.random.default_rng(1)
    for case in range(40):
        lengths = [int(n) for n in rng.integers(3, 40, rng.integers(1, 4))]
        stores = [rng.standard_normal((n, 5)) for n in lengths]
        paths = [tmp_path / f"{case}_{i}" for i in range(len(stores))]
        for path, values in zip(paths, stores, strict=True):
            write_array(path, "a", values, layout=Layout((int(rng.integers(1, 9)), 5)), dims=("t", "c"))
            write_array(path, "b", np.arange(5.0), dims=("c",))
        each = bool(rng.integers(2))
        joined = stores if each else [np.concatenate(stores)]
        shortest = min(map(len, joined))
        arguments: dict[str, Any] = {"concat": "samples"} if each else {"cross_stores": bool(rng.integers(2))}
        start, end, step = int(rng.integers(0, 2)), int(rng.integers(shortest - 1, shortest + 1)), int(rng.integers(1, 4))
        if rng.integers(2):
            arguments["isel"] = {"t": slice(start, end, step)}
        else:
            start, end, step = 0, None, 1
        breaks = sorted({int(b) for b in rng.integers(1, shortest, 3)}) if rng.integers(2) else []
        if breaks:
            arguments["breaks"] = breaks
        offset = int(rng.choice([0, 1, 2, -2]))
        expected: list[np.ndarray] = []
        differences: list[np.ndarray] = []
        chosen: set[int] | None = None
        has_segments = bool(rng.integers(2))
        for values in joined:
            length = len(values)
            borders = [0, *breaks, length]
            if arguments.get("cross_stores") is False:
                borders = sorted({*borders, *np.cumsum(lengths).tolist()})
            if len(borders) > 2 and chosen is None and has_segments:
                chosen = set(rng.choice(len(borders) - 1, rng.integers(1, len(borders)), replace=False).tolist())
            segment = np.repeat(np.arange(len(borders) - 1), np.diff(borders))
            at = np.arange(length)[start:end:step]
            if chosen is not None:
                at = at[np.isin(segment[at], list(chosen))]
            expected.append(values[at])
            other = at + offset * step
            inside = (other >= start) & (other < (length if end is None else end))
            same = inside & (segment[at] == segment[np.clip(other, 0, length - 1)])
            differences.append(values[other[same]] - values[at[same]])
        if chosen is not None:
            arguments["segments"] = sorted(chosen)
        total = np.concatenate(expected)
        told = {"path": paths, "arrays": ["a", "b"], "offsets": [0, offset], **arguments}
        if not len(total):
            continue
        most = rng.choice([None, 1, 3, 8])
        found = dali_zarr.statistics(**told, batch_size=None if most is None else int(most))
        assert found["samples"] == len(total), (lengths, arguments, offset, most)
        agrees(found["arrays"]["a"], total)
        # An array without the dimension comes with each of its elements.
        agrees(found["arrays"]["b"], np.arange(5.0), len(total))
        if offset:
            agrees(found["arrays"]["a"]["tendencies"][str(offset)], np.concatenate(differences))


@pytest.mark.parametrize("breaks", [[12, 15], [3, 5], [1, 2, 3, 4, 5, 20, 21]], ids=str)
@pytest.mark.parametrize("chunk", [1, 4, 25])
def test_segments_that_lie_near_each_other(tmp_path, breaks, chunk):
    """Blocks that reach from one chosen segment into the next count its elements once."""
    values = np.random.default_rng(2).standard_normal((25, 3))
    write_array(tmp_path, "a", values, layout=Layout((chunk, 3)), dims=("t", "c"))
    segment = np.repeat(np.arange(len(breaks) + 1), np.diff([0, *breaks, 25]))
    told = {"path": tmp_path, "arrays": ["a"]}
    for chosen in (segment % 2 == 0, segment % 3 != 1):
        numbers = {"breaks": breaks, "segments": np.unique(segment[chosen]).tolist()}
        for selection in (numbers, {"isel": {"t": chosen}}):
            found = dali_zarr.statistics(**told, **selection, offsets=[0, 1])
            assert found["samples"] == chosen.sum()
            agrees(found["arrays"]["a"], values[chosen])
    of_runs = np.diff(values, axis=0)[chosen[1:] & chosen[:-1]]
    agrees(found["arrays"]["a"]["tendencies"]["1"], of_runs)


def test_latitudes_may_be_cut(tmp_path):
    latitudes = np.linspace(90, -90, 10)
    values = np.random.default_rng(0).standard_normal((6, 10, 8))
    write_array(tmp_path, "t2m", values, layout=Layout((4, 4, 8)), dims=("time", "latitude", "longitude"))
    write_array(tmp_path, "latitude", latitudes, dims=("latitude",))
    whole = dali_zarr.statistics(tmp_path, arrays=["t2m"], weights="cos_latitude", sel={"latitude": slice(80, -50)})
    cut = dali_zarr.statistics(
        tmp_path, arrays=["t2m"], weights="cos_latitude", sel={"latitude": slice(80, -50)}, dims=["time", "latitude", "longitude"],
        batch_size=1,
    )
    for key in ("mean", "stddev", "weight", "count"):
        np.testing.assert_allclose(whole["arrays"]["t2m"][key], cut["arrays"]["t2m"][key], rtol=1e-13)


def test_parts_of_episodes(tmp_path):
    """The parts are given as they are to statistics and to the loader, whose samples are of the same elements."""
    ends = np.array([7, 7, 30, 41, 64])
    actions = np.random.default_rng(0).standard_normal((64, 2))
    write_array(tmp_path, "data/action", actions, layout=Layout((10, 2)))
    write_array(tmp_path, "meta/episode_ends", ends)
    parts = dali_zarr.splits(
        path=tmp_path, arrays={"action": "data/action"}, breaks="meta/episode_ends", window={"dim_0": 4}, step={"dim_0": 1},
        out_of_bounds_policy="edge", pad_before={"dim_0": 1}, pad_after={"dim_0": 2}, return_mask=True, batch_size=16,
        random_shuffle=True, drop_last=True, mean="none.json", stddev="none.json", device="cpu", train=[1, 0, 3],
        validation=slice(4, None),
    )
    read = {"train": np.r_[actions[:7], actions[30:41]], "validation": actions[41:]}
    for name, values in read.items():
        found = dali_zarr.statistics(**parts[name])
        agrees(found["arrays"]["data/action"], values)
        loader = Loader(**{**parts[name], "mean": 0, "stddev": 1, "dtype": "float64", "drop_last": False})
        seen = torch.cat([batch["action"].reshape(-1, 2) for batch in loader])
        assert np.array_equal(np.unique(seen.numpy(), axis=0), np.unique(values, axis=0))


def test_parts_by_labels(small_stores):
    parts = dali_zarr.splits(
        path=small_stores / "era5.zarr", arrays=["t2m", "z"], offsets={"input": 0, "target": 1}, stack_arrays=True, batch_size=64,
        random_shuffle=True, mean="later.json", device="cpu", train=slice(None, "2016"), validation="2017",
    )
    found = dali_zarr.statistics(**parts["train"])
    same = dali_zarr.statistics(
        small_stores / "era5.zarr", arrays=["t2m", "z"], offsets=[0, 1], sel={"time": slice(None, "2016")}, batch_size=64,
    )
    assert found == same and found["offsets"] == [1]


def test_every_argument_has_its_place():
    """It matters, is left out on purpose, or is refused; the documentation lists the latter two."""
    own = {"path", "arrays", "offsets", "channels", "weights", "batch_size", "device", "device_id", "process_group"}
    names = set(_dali.schema().GetArgumentNames()) | {"sel", "isel", "method", "tolerance", "name"}
    loaders = {"drop_last", "transform", "num_threads", "sharding", "collate", "columns", "process_group"}
    kinds = [own, accepted.TAKEN, accepted.IGNORED, set(accepted.REFUSED)]
    for name in {name for name in names if not name.startswith("_")} | loaders:
        assert sum(name in kind for kind in kinds) == 1, name
    page = (Path(__file__).parents[1] / "docs/guides/statistics.md").read_text()
    for name in accepted.IGNORED | accepted.REFUSED.keys():
        assert f"`{name}`" in page, name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"starts": np.zeros((1, 1), "i8")}, "statistics: starts: it chooses samples, which may overlap"),
        ({"ragged": "X/indptr"}, "statistics: ragged: .*leave it out, and name arrays"),
        ({"weights": np.ones(3)}, "weights: expected 'cos_latitude' or None, but found those of samples"),
        ({"windows": [3]}, "statistics: windows: there is no such argument; did you mean window"),
        ({"breaks": [2, 2], "segments": [5]}, "segments: "),
        ({"channels": ["dim_0"]}, "channels: expected dimensions that dims don't name, but found 'dim_0'"),
        ({"device": "tpu"}, "device: expected 'cpu' or 'gpu', but found 'tpu'"),
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1, but found 0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_is_refused(tmp_path, arguments, message):
    write_array(tmp_path, "a", np.zeros((4, 3)))
    with pytest.raises((TypeError, ValueError, IndexError), match=message):
        dali_zarr.statistics(tmp_path, **arguments)
