"""Groups as samples, and stores of different shapes: meshes as PhysicsNeMo writes them, runs in folders as DrivAerML's, plates with
fields of view of several sizes."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
import zarr
from support.pipelines import build, same
from support.ragged import samples
from support.server import Server

MESHES = {"run_1": (1000, 1999), "run_2": (1137, 40), "run_10": (64, 2500), "other": (300, 7)}
RUNS = ["run_1", "run_2", "run_10"]


def write_mesh(group: zarr.Group, points: int, cells: int, seed: int, named: bool = True) -> dict[str, np.ndarray]:
    """Arrays of unlike lengths, as of PhysicsNeMo's meshes."""
    rng = np.random.default_rng(seed)
    values = {
        "coords": rng.standard_normal((points, 3)).astype("float32"),
        "pressure": rng.standard_normal((points, 1)).astype("float32"),
        "areas": rng.random(cells),
        "faces": rng.integers(0, points, (cells, 4)).astype("int32"),
        "angle": np.asarray(rng.random(), "float32"),
    }
    dims = {
        "coords": ("points", "xyz"), "pressure": ("points", "field"), "areas": ("cells",), "faces": ("cells", "corner"),
        "angle": (),
    }
    for name, array in values.items():
        how: dict[str, Any] = {"dimension_names": dims[name]} if named else {}
        chunks = tuple(-(-n // 3) for n in array.shape[:1]) + array.shape[1:]
        group.create_array(name, data=array, chunks=chunks, **how)
    return values


@pytest.fixture(scope="module")
def meshes(tmp_path_factory) -> tuple[Path, dict[str, dict[str, np.ndarray]]]:
    path = tmp_path_factory.mktemp("meshes") / "meshes.zarr"
    root = zarr.create_group(path)
    written = {
        name: write_mesh(root.create_group(name), *sizes, seed) for seed, (name, sizes) in enumerate(MESHES.items())
    }
    root.create_array("scale", data=np.arange(4.0) + 1)
    return path, written


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, dict[str, dict[str, np.ndarray]]]:
    """A folder of stores, whose arrays have no names of dimensions."""
    base = tmp_path_factory.mktemp("runs")
    written = {}
    for seed, (name, sizes) in enumerate(MESHES.items()):
        root = zarr.create_group(base / f"{name}.zarr")
        written[name] = write_mesh(root, *sizes, seed, named=False)
        zarr.consolidate_metadata(root.store)
    (base / "notes").mkdir()
    return base, written


@pytest.fixture(scope="module")
def plate(tmp_path_factory) -> tuple[Path, dict[str, np.ndarray]]:
    """A plate of OME-Zarr with fields of view of two sizes."""
    path = tmp_path_factory.mktemp("plate") / "plate.zarr"
    root = zarr.create_group(path, zarr_format=2)
    rng = np.random.default_rng(1)
    written = {}
    for i, name in enumerate(["A/1/0", "A/1/1", "B/2/0", "B/10/0"]):
        shape = (2, 2, 9, 32, 40) if i % 2 else (2, 2, 9, 48, 36)
        values = rng.integers(1, 999, shape).astype("uint16")
        group = root.create_group(name)
        group.create_array("0", data=values, chunks=(1, 1, 4, 20, 20))
        axes = [{"name": dim} for dim in "tczyx"]
        datasets = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 1, 2, 0.5, 0.5]}]}]
        group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": datasets}]
        written[name] = values
    return path, written


ARRAYS = ["coords", "pressure", "areas", "faces", "angle"]


def test_each_group_is_a_sample(meshes, device):
    path, written = meshes
    pipe = build(device, 3, path=path, arrays=ARRAYS, groups="run_*", return_index=True)
    assert pipe.epoch_size("reader") == 3
    for batch in samples(pipe, 2):
        assert [row.tolist() for row in batch[-1]] == [[0], [1], [2]], "run_2 comes before run_10"
        for name, found in zip(ARRAYS, batch, strict=False):
            for group, one in zip(RUNS, found, strict=True):
                same(one, written[group][name], f"{name} of {group}")


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (True, ["other", *RUNS]), ("*", ["other", *RUNS]), ("run_?", RUNS[:2]), (["run_10", "other"], ["run_10", "other"]),
        (["other", "run_*", "run_1"], ["other", *RUNS]), (("/run_2/",), ["run_2"]), ("*_1*", ["run_1", "run_10"]),
    ],
    ids=str,
)
def test_groups_are_named_or_found(meshes, groups, expected):
    path, written = meshes
    told = dali_zarr.explain(path=path, arrays=["areas"], groups=groups)
    assert told["path"] == [f"{path}/{name}" for name in expected] and told["groups"] == told["samples"] == len(expected)
    pipe = build("cpu", 1, path=path, arrays=["areas"], groups=groups)
    for name, (batch,) in zip(expected, samples(pipe, len(expected)), strict=True):
        same(batch[0], written[name]["areas"], name)


def test_samples_are_named_by_their_groups(meshes):
    from nvidia.dali import fn, pipeline_def

    path, _ = meshes

    @pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def pipe():
        return fn.get_property(dali_zarr.zarr_reader(path=path, arrays=["areas"], groups="run_*"), key="source_info")

    made = pipe()
    made.build()
    (found,) = made.run()
    assert [bytes(np.asarray(found[i])).decode() for i in range(3)] == [f"{path}/{name}" for name in RUNS]


@pytest.mark.parametrize("policy", ["drop", "pad"])
def test_random_contiguous_parts(meshes, device, policy):
    """Each epoch draws other parts, of the same points in all arrays; a reader of the same seed draws the same ones."""
    path, written = meshes
    args: dict[str, Any] = {
        "path": path, "arrays": ["coords", "pressure", "faces"], "groups": "run_*", "window": {"points": 100},
        "random_crop": ["points"], "out_of_bounds_policy": policy, "return_index": True, "return_mask": True, "seed": 3,
    }
    count = 2 if policy == "drop" else 3
    told = dali_zarr.explain(**args)
    assert told["samples"] == count and told["without_samples"] == 3 - count
    assert [output["ragged_dims"] for output in told["outputs"][:2]] == [[], []] and told["outputs"][2]["ragged_dims"] == ["cells"]
    pipe, again = (build(device, count, **args) for _ in range(2))
    starts = []
    for batch, same_batch in zip(samples(pipe, 6), samples(again, 6), strict=True):
        starts.append([int(row[1]) for row in batch[-1]])
        assert starts[-1] == [int(row[1]) for row in same_batch[-1]]
        for coords, pressure, faces, mask, (group, start) in zip(*batch, strict=True):
            mesh = written[RUNS[group]]
            there = min(100, len(mesh["coords"]) - start)
            assert mask.tolist() == [True] * there + [False] * (100 - there)
            same(coords[:there], mesh["coords"][start : start + 100], "coords")
            same(pressure[:there], mesh["pressure"][start : start + 100], "pressure")
            assert not coords[there:].any()
            same(faces, mesh["faces"], "whole arrays")
    assert len({tuple(of) for of in starts}) == 6
    assert count == 2 or all(of[2] == 0 for of in starts)
    from_error = {**args, "out_of_bounds_policy": "error"}
    with pytest.raises(ValueError, match=r"run_10.*windows of 100 elements"):
        build(device, 1, **from_error)


def test_parts_of_two_kinds_of_elements(meshes, device):
    path, written = meshes
    pipe = build(
        device, 2, path=path, arrays=["coords", "faces"], groups=["run_1", "run_10"], window={"points": 50, "cells": 20},
        random_crop=["points", "cells"], samples_per_volume=3, random_shuffle=True, return_index=True,
    )
    seen = []
    for batch in samples(pipe, 3):
        for coords, faces, (group, point, cell) in zip(*batch, strict=True):
            mesh = written[["run_1", "run_10"][group]]
            same(coords, mesh["coords"][point : point + 50], "coords")
            same(faces, mesh["faces"][cell : cell + 20], "faces")
            seen.append(int(group))
    assert sorted(seen) == [0, 0, 0, 1, 1, 1]


def test_arrays_without_names_are_cut_by_output(runs, device):
    """As PhysicsNeMo's coordinated subsampling: some arrays by one random part, others whole, whatever their lengths are."""
    base, written = runs
    part = {"dim_0": 60}
    args: dict[str, Any] = {
        "path": base, "groups": "run_*.zarr", "arrays": ["coords", "pressure", "areas"],
        "window": {"coords": part, "pressure": part}, "random_crop": ["dim_0"], "return_index": True, "random_shuffle": True,
    }
    pipe = build(device, 3, **args)
    for batch in samples(pipe, 3):
        assert sorted(int(row[0]) for row in batch[-1]) == [0, 1, 2]
        for coords, pressure, areas, (group, start) in zip(*batch, strict=True):
            mesh = written[RUNS[group]]
            same(coords, mesh["coords"][start : start + 60], "coords")
            same(pressure, mesh["pressure"][start : start + 60], "pressure")
            same(areas, mesh["areas"], "areas")
    with pytest.raises(ValueError, match=r"length .* in array 'areas'"):
        build(device, 1, **{**args, "window": part})


def test_fields_of_view_of_several_sizes(plate, device):
    path, written = plate
    names = ["A/1/0", "A/1/1", "B/2/0", "B/10/0"]
    pipe = build(
        device, 5, path=path, groups="*/*/*", arrays=["0"], window={"t": 0, "z": 4}, step={"t": 1, "z": 2}, random_shuffle=True,
        return_index=True,
    )
    assert pipe.epoch_size("reader") == 4 * 2 * 3
    seen = set()
    for batch in samples(pipe, 5):
        for image, (fov, t, z) in zip(*batch, strict=True):
            same(image, np.ascontiguousarray(written[names[fov]][t, :, z : z + 4]), "image")
            seen.add((fov, t, z))
    assert seen == set(itertools.product(range(4), range(2), (0, 2, 4)))
    # Crops of all fields of view have one shape.
    crop = {"t": 0, "z": 4, "y": 16, "x": 16}
    told = dali_zarr.explain(path=path, groups="*/*/*", arrays=["0"], window=crop, random_crop=["y", "x"])
    assert told["outputs"][0]["ragged"] is False and told["outputs"][0]["shape"] == [2, 4, 16, 16]


@pytest.mark.parametrize("window", [[-1], [700]], ids=str)
def test_stores_of_unlike_lengths(tmp_path, device, window):
    """Stores, and not groups: windows over the whole length differ."""
    paths, written = [], []
    for i, length in enumerate((1000, 1137)):
        group = zarr.create_group(tmp_path / f"{i}.zarr")
        written.append(write_mesh(group, length, 9, i)["coords"])
        paths.append(tmp_path / f"{i}.zarr")
    args: dict[str, Any] = {"path": paths, "arrays": ["coords"], "concat": "samples", "dims": ["points"], "window": window}
    pipe = build(device, 3, pad_last_batch=True, **args)
    count = 1 if window == [-1] else 3
    assert pipe.epoch_size("reader") == 2
    for (batch,) in samples(pipe, count):
        for i, one in enumerate(batch):
            values = written[min(i, 1)]
            same(one, values if window == [-1] else values[:700], "coords")
    told = dali_zarr.explain(batch_size=3, **args)["outputs"][0]
    assert told["ragged"] == (window == [-1])
    if window == [-1]:
        assert told["shape"] == [1137, 3] and told["batch_bytes"] == 3 * 1137 * 3 * 4


def test_arrays_of_text_names_and_tables(meshes):
    """Starts and weights by tables name groups by number; arrays beside the groups are tables."""
    path, written = meshes
    args: dict[str, Any] = {"path": path, "arrays": ["coords"], "return_index": True}
    table = np.array([[2, 5], [0, 900], [1, 0]])
    pipe = build("cpu", 3, groups="run_*", dims=["points"], window=[40], starts=table, **args)
    (batch,) = samples(pipe, 1)
    assert [row.tolist() for row in batch[-1]] == table.tolist()
    for one, (group, start) in zip(batch[0], table, strict=True):
        same(one, written[RUNS[group]]["coords"][start : start + 40], "coords")
    pipe = build("cpu", 400, groups="*", weights="scale", **args)
    (batch,) = samples(pipe, 1)
    drawn = np.bincount([int(row[0]) for row in batch[-1]], minlength=4)
    assert (np.diff(drawn) > -30).all() and drawn[3] > drawn[0]


@pytest.mark.parametrize("how", ["zip", "consolidated", "v2"])
def test_kinds_of_stores(tmp_path, how):
    path = tmp_path / "s.zarr"
    root = zarr.create_group(path, zarr_format=2 if how == "v2" else 3)
    written = []
    for i in range(3):
        group = root.create_group(f"g{i}")
        values = np.random.default_rng(i).random((5 + i, 2))
        group.create_array("a", data=values, chunks=(2, 2))
        group.create_group("inner").create_array("b", data=values + 1)
        written.append(values)
    if how != "zip":
        zarr.consolidate_metadata(root.store)
    else:
        path = Path(shutil.make_archive(str(tmp_path / "s"), "zip", path))
    pipe = build("cpu", 3, path=path, arrays=["a", "inner/b"], groups="*")
    (batch,) = samples(pipe, 1)
    for values, a, b in zip(written, *batch, strict=True):
        same(a, values, "a")
        same(b, values + 1, "inner/b")
    if how == "consolidated":
        # What is written later isn't there until it is consolidated.
        zarr.open_group(path, mode="a", use_consolidated=False).create_group("g3")
        assert dali_zarr.explain(path=path, arrays=["a"], groups="*")["groups"] == 3


def test_references_and_icechunk(tmp_path):
    icechunk = pytest.importorskip("icechunk")
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    session = repo.writable_session("main")
    root = zarr.create_group(session.store)
    written = {}
    for name, length in {"b": 3, "a": 7}.items():
        written[name] = np.random.default_rng(length).random(length)
        root.create_group(name).create_array("x", data=written[name], chunks=(2,))
    session.commit("two")
    pipe = build("cpu", 2, path=tmp_path / "repo", arrays=["x"], groups="*")
    (batch,) = samples(pipe, 1)
    for name, one in zip("ab", batch[0], strict=True):
        same(one, written[name], name)


def test_stores_of_a_server(plate, meshes):
    """The consolidated metadata are its list. Else groups are named, and their documents are read together."""
    path, written = plate
    zarr.consolidate_metadata(zarr.open_group(path, mode="a").store)
    with Server(path.parent) as server:
        (batch,) = samples(build("cpu", 4, path=f"{server.url}/plate.zarr", arrays=["0"], groups="*/*/*"), 1)
        for name, one in zip(written, batch[0], strict=True):
            same(one, written[name], name)
    path, values = meshes
    with Server(path.parent) as server:
        url = f"{server.url}/meshes.zarr"
        with pytest.raises(ValueError, match="groups: expected names, since the store has no consolidated metadata and can't be"):
            dali_zarr.explain(path=url, arrays=["areas"], groups="run_*")
        (batch,) = samples(build("cpu", 3, path=url, arrays=["areas"], groups=RUNS), 1)
        for name, one in zip(RUNS, batch[0], strict=True):
            same(one, values[name]["areas"], name)


def test_episodes_of_groups(tmp_path, device):
    """Each group has its own ends of segments, and no window reaches across one."""
    root = zarr.create_group(tmp_path / "s.zarr")
    written = []
    for i, ends in enumerate([[3, 9], [5, 6, 14]]):
        group = root.create_group(f"g{i}")
        values = np.random.default_rng(i).integers(1, 99, (ends[-1], 2)).astype("int32")
        group.create_array("x", data=values, chunks=(4, 2), dimension_names=["t", "k"])
        group.create_array("meta/ends", data=np.array(ends), chunks=(2,))
        written.append(values)
    pipe = build(
        device, 4, path=tmp_path / "s.zarr", arrays=["x"], groups="*", window={"t": 3}, step={"t": 1}, breaks="meta/ends",
        return_index=True,
    )
    expected = [[0, 0, 0], *([0, 1, t] for t in range(3, 7)), *([1, 0, t] for t in range(3)), *([1, 2, t] for t in range(6, 12))]
    seen = []
    for batch in samples(pipe, 4):
        for one, row in zip(*batch, strict=True):
            same(one, written[row[0]][row[2] : row[2] + 3], "x")
            seen.append(row.tolist())
    assert seen[:14] == expected


def test_the_same_samples_after_groups_were_added(meshes, tmp_path):
    """A checkpoint of other groups is refused; one of the same groups goes on."""
    path, _ = meshes
    args: dict[str, Any] = {
        "path": path, "arrays": ["coords"], "window": {"points": 30}, "random_shuffle": True, "random_crop": ["points"],
        "samples_per_volume": 4,
    }
    first = build("cpu", 2, checkpointing=True, groups="run_*", **args)
    for _ in range(3):
        first.run()
    state = first.checkpoint()
    expected = [batch[0] for batch in samples(first, 5)]
    rest = build("cpu", 2, checkpointing=True, checkpoint=state, groups=RUNS, **args)
    for one, (other,) in zip(expected, samples(rest, 5), strict=True):
        for a, b in zip(one, other, strict=True):
            same(a, b, "after the checkpoint")
    with pytest.raises(Exception, match="checkpoint"):
        build("cpu", 2, checkpointing=True, checkpoint=state, groups=["run_1", "other", "run_10"], **args)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups": "none_*"}, r"groups: expected a group that matches \"none_\*\", but found only 'other', 'run_1'"),
        ({"groups": ["run_1", "gone"]}, "expected an array 'gone/coords'"),
        ({"groups": "../*"}, "groups: expected names of groups below the root"),
        ({"groups": ""}, "groups: expected names of groups below the root"),
        ({"groups": []}, "groups: expected at least one name or pattern"),
        ({"groups": 3}, "groups: expected names or patterns of groups, or True"),
        ({"groups": False}, "groups: expected names or patterns of groups, or True"),
        ({"groups": "*", "arrays": None}, "arrays: expected the names of arrays in each group"),
        ({"groups": "*", "arrays": ["coords", "./x.zarr"]}, "arrays: expected names relative to each group"),
        ({"groups": "*", "random_crop": ["points"]}, "random_crop: expected dims or window with it, since each group"),
        ({"groups": "*", "breaks": "ends"}, "breaks: expected dims or window with it, since each group"),
        ({"groups": "*", "align": {"coords": "exact"}}, "align: expected none with groups"),
        ({"groups": "*", "ragged": "offsets"}, "ragged: expected none with groups"),
        ({"groups": "*", "window": {"points": 5000}}, r"other.*window: along \"points\" a sample spans 5000 elements"),
        ({"groups": "*", "window": {"pressure": {"xyz": 2}}}, "window: expected a window for an output that has the dimension"),
    ],
    ids=str,
)
def test_errors(meshes, given, message):
    arguments = {"path": meshes[0], "arrays": ["coords", "pressure"], **given}
    with pytest.raises((ValueError, TypeError), match=message):
        dali_zarr.explain(**{name: value for name, value in arguments.items() if value is not None})


def test_groups_that_differ_in_more_than_shapes_are_refused(tmp_path):
    root = zarr.create_group(tmp_path / "s.zarr")
    for name, dtype in {"a": "float32", "b": "float64"}.items():
        root.create_group(name).create_array("x", data=np.ones(3, dtype))
    with pytest.raises(ValueError, match=r"s.zarr/a and .*s.zarr/b, array 'x': expected the same data type"):
        dali_zarr.explain(path=tmp_path / "s.zarr", arrays=["x"], groups="*")
    with pytest.raises(TypeError, match="statistics: groups"):
        dali_zarr.statistics(path=tmp_path / "s.zarr", arrays=["x"], groups="*")


def test_thousands_of_groups(tmp_path):
    """They take bounded time and memory; more than a reader can have are an error."""
    path = tmp_path / "many.zarr"
    path.mkdir()
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    documents: dict[str, Any] = {}
    for i in range(3000):
        array = {
            "zarr_format": 3, "node_type": "array", "shape": [i % 7 + 1], "data_type": "int32", "fill_value": i, "attributes": {},
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        }
        documents |= {f"g{i}": group, f"g{i}/x": array | {"fill_value": 5}}
    root = group | {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": documents}}
    (path / "zarr.json").write_text(json.dumps(root))
    pipe = build("cpu", 100, path=path, arrays=["x"], groups="*", return_index=True)
    for (values, index), first in zip(samples(pipe, 2), (0, 100), strict=True):
        assert [int(i[0]) for i in index] == list(range(first, first + 100))
        for i, one in enumerate(values, first):
            same(one, np.full(i % 7 + 1, 5, "int32"), f"g{i}")
    documents |= {f"h{i}": group for i in range(70000)}
    root["consolidated_metadata"]["metadata"] = documents
    (path / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(ValueError, match="groups: expected at most 65535"):
        dali_zarr.explain(path=path, arrays=["x"], groups="*")
    # Names don't need a list.
    assert dali_zarr.explain(path=path, arrays=["x"], groups=["g7", "g3"])["samples"] == 2


def test_huge_shapes_are_refused(tmp_path):
    root = zarr.create_group(tmp_path / "s.zarr")
    root.create_group("a").create_array("x", shape=(1 << 50, 1), chunks=(1 << 20, 1), dtype="uint8")
    root.create_group("b").create_array("x", shape=(1, 1 << 45), chunks=(1, 1 << 20), dtype="uint8")
    for groups in ("*", "b"):
        with pytest.raises(ValueError, match="too large|more than 524288 chunks|at most"):
            build("cpu", 1, path=tmp_path / "s.zarr", arrays=["x"], groups=groups)
