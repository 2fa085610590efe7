"""Crops of volumes: many random windows for each start, and stores of different shapes one after the other."""

from __future__ import annotations

import itertools

import dali_zarr
import numpy as np
import pytest
import zarr
from support.pipelines import batches, build, same

SHAPES = [(9, 12, 11), (7, 20, 6), (13, 8, 8)]
NAMES = ["z", "y", "x"]


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """Three volumes of different shapes and chunks: an image, and a mask without the first dimension's chunks."""
    base = tmp_path_factory.mktemp("volumes")
    rng = np.random.default_rng(3)
    written = []
    for i, shape in enumerate(SHAPES):
        root = zarr.create_group(base / f"{i}.zarr")
        image = rng.integers(-999, 999, shape).astype(np.int16)
        mask = rng.integers(0, 2, shape).astype(np.uint8)
        chunks = [(4, 5, 6), (7, 3, 2), (5, 8, 3)][i]
        root.create_array("image", data=image, chunks=chunks, dimension_names=NAMES)
        root.create_array("mask", data=mask, chunks=shape, dimension_names=NAMES)
        written.append({"image": image, "mask": mask})
    return [base / f"{i}.zarr" for i in range(len(SHAPES))], written


def window_at(values: np.ndarray, start: list[int], window: tuple[int, ...]) -> np.ndarray:
    return values[tuple(slice(s, s + w) for s, w in zip(start, window, strict=True))]


def starts_of(shape, window, step):
    return [list(s) for s in itertools.product(*(range(0, n - w + 1, d) for n, w, d in zip(shape, window, step, strict=True)))]


def epoch(pipe, samples):
    """The outputs of an epoch, sample by sample."""
    found = [list(zip(*outputs, strict=True)) for outputs in itertools.islice(batches(pipe), -(-samples // pipe.max_batch_size))]
    return list(itertools.chain(*found))[:samples]


def test_many_crops_of_one_volume(volumes, device):
    paths, written = volumes
    arguments = {
        "path": paths[0], "arrays": ["image", "mask"], "dims": NAMES, "window": [4, 5, 3], "random_crop": NAMES,
        "samples_per_volume": 50, "return_index": True,
    }
    pipe = build(device, 4, seed=5, **arguments)
    assert pipe.epoch_size("reader") == 50
    seen = epoch(pipe, 100)
    for image, mask, index in seen:
        same(image, window_at(written[0]["image"], index, (4, 5, 3)), "image")
        same(mask, window_at(written[0]["mask"], index, (4, 5, 3)), "mask")
    starts = {tuple(index) for *_, index in seen}
    assert len(starts) > 80, "100 draws of 6 * 8 * 9 places differ, within an epoch and between epochs"
    again = epoch(build(device, 4, seed=5, **arguments), 100)
    assert [index.tolist() for *_, index in again] == [index.tolist() for *_, index in seen]
    shuffled = epoch(build(device, 4, seed=5, random_shuffle=True, **arguments), 50)
    assert sorted(index.tolist() for *_, index in shuffled) == sorted(index.tolist() for *_, index in seen[:50])


def test_crops_at_every_time(tmp_path, device):
    values = np.arange(6 * 10 * 9, dtype=np.int32).reshape(6, 10, 9)
    zarr.create_array(tmp_path / "a.zarr", data=values, chunks=(2, 5, 5), dimension_names=["t", "y", "x"])
    pipe = build(
        device, 3, path=tmp_path / "a.zarr", dims=["t", "y", "x"], window=[0, 4, 4], random_crop=["y", "x"], samples_per_volume=7,
        return_index=True,
    )
    assert pipe.epoch_size("reader") == 42
    for k, (crop, (t, y, x)) in enumerate(epoch(pipe, 42)):
        assert t == k // 7
        same(crop, values[t, y : y + 4, x : x + 4], "crop")


def test_volumes_one_after_the_other(volumes, device):
    paths, written = volumes
    window, step = (4, 3, 5), (2, 3, 1)
    pipe = build(
        device, 5, path=paths, arrays=["image", "mask"], dims=NAMES, window=list(window), step=list(step), concat="samples",
        return_index=True,
    )
    expected = [[i, *start] for i, shape in enumerate(SHAPES) for start in starts_of(shape, window, step)]
    assert pipe.epoch_size("reader") == len(expected)
    for place, (image, mask, index) in zip(expected, epoch(pipe, len(expected)), strict=True):
        assert index.tolist() == place
        same(image, window_at(written[place[0]]["image"], place[1:], window), "image")
        same(mask, window_at(written[place[0]]["mask"], place[1:], window), "mask")


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("stick", [False, True])
def test_volumes_shuffled(volumes, device, shards, stick):
    paths, written = volumes
    window, step = (4, 3, 5), (1, 2, 1)
    seen = []
    for shard in range(shards):
        pipe = build(
            device, 4, path=paths, arrays=["image"], dims=NAMES, window=list(window), step=list(step), concat="samples",
            random_shuffle=True, initial_fill=40, return_index=True, shard_id=shard, num_shards=shards, stick_to_shard=stick,
        )
        total = pipe.epoch_size("reader")
        count = total * (shard + 1) // shards - total * shard // shards
        for image, index in epoch(pipe, count):
            place = index.tolist()
            same(image, window_at(written[place[0]]["image"], place[1:], window), "image")
            seen.append(place)
    expected = [[i, *start] for i, shape in enumerate(SHAPES) for start in starts_of(shape, window, step)]
    assert sorted(seen) == expected
    assert seen != expected


def test_crops_of_several_volumes(volumes, device):
    paths, written = volumes
    pipe = build(
        device, 6, path=paths, arrays=["image"], dims=NAMES, window=[4, 5, 3], random_crop=NAMES, samples_per_volume=20,
        concat="samples", return_index=True, random_shuffle=True,
    )
    assert pipe.epoch_size("reader") == 60
    counts = [0, 0, 0]
    for image, index in epoch(pipe, 60):
        counts[index[0]] += 1
        same(image, window_at(written[index[0]]["image"], index[1:], (4, 5, 3)), "image")
    assert counts == [20, 20, 20]


def test_joined_volumes_that_are_cropped(tmp_path, device):
    """Joined to one axis, several volumes are one volume."""
    for i in range(2):
        values = np.arange(5 * 6, dtype=np.int32).reshape(5, 6) + 100 * i
        zarr.create_array(tmp_path / f"{i}.zarr", data=values, chunks=(2, 6), dimension_names=["z", "y"])
    pipe = build(
        device, 4, path=[tmp_path / "0.zarr", tmp_path / "1.zarr"], arrays=None, dims=["z"], window=[3], random_crop=["z"],
        samples_per_volume=12, return_index=True,
    )
    joined = np.concatenate([np.arange(30).reshape(5, 6), np.arange(30).reshape(5, 6) + 100]).astype(np.int32)
    assert pipe.epoch_size("reader") == 12
    for crop, (z,) in epoch(pipe, 12):
        same(crop, joined[z : z + 3], "crop")


def test_checkpoints_and_other_shards(volumes, device):
    paths, _ = volumes
    arguments = {
        "path": paths, "arrays": ["image"], "dims": NAMES, "window": [4, 3, 5], "step": [2, 3, 2], "concat": "samples",
        "random_shuffle": True, "return_index": True, "pad_last_batch": True,
    }
    whole = build(device, 3, **arguments)
    total = whole.epoch_size("reader")
    order = [index.tolist() for _, index in epoch(whole, total)]
    first = build(device, 3, checkpointing=True, **arguments)
    seen = [outputs[1][k].tolist() for outputs in itertools.islice(batches(first), 4) for k in range(3)]
    state = first.checkpoint()
    assert seen == order[:12]
    rest = []
    for shard in range(2):
        pipe = build(device, 3, checkpointing=True, checkpoint=state, shard_id=shard, num_shards=2, **arguments)
        left = total - 12
        count = left * (shard + 1) // 2 - left * shard // 2
        rest += [index.tolist() for _, index in epoch(pipe, count)]
    assert sorted(rest) == sorted(order[12:])


def test_explain_and_the_loader(volumes):
    loaders = pytest.importorskip("dali_zarr.torch")
    paths, written = volumes
    arguments = {
        "path": [str(path) for path in paths], "arrays": ["image"], "window": {"z": 4, "y": 3, "x": 5},
        "concat": "samples",
    }
    found = dali_zarr.explain(**arguments)
    total = sum(len(starts_of(shape, (4, 3, 5), (4, 3, 5))) for shape in SHAPES)
    assert found["samples"] == total
    assert found["reads"]["in_order"]["reads_per_chunk"] == 1
    batch = next(iter(loaders.Loader(batch_size=total, device="cpu", **arguments)))
    for image, place in zip(batch["image"].numpy(), np.asarray(batch.index), strict=True):
        same(image, window_at(written[place[0]]["image"], place[1:], (4, 3, 5)), "image")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples_per_volume": 4, "path": None}, "samples_per_volume: expected random_crop too"),
        ({"samples_per_volume": 0, "random_crop": NAMES}, "samples_per_volume: expected a whole number of at least 1, but found 0"),
        ({"concat": "stores"}, 'concat: expected "dims" or "samples", but found "stores"'),
        ({"concat": "samples", "window": [100, 1, 1]}, "0.zarr"),
        ({}, "array 'image' has length 12 along \"y\" in "),
    ],
    ids=str,
)
def test_errors(volumes, arguments, message):
    window = [4] * len(arguments.get("dims", NAMES))
    given = {"path": [str(p) for p in volumes[0]], "arrays": ["image"], "dims": NAMES, "window": window}
    if "path" in arguments:
        arguments = {**arguments, "path": given["path"][0]}
    for make in (lambda **a: build("cpu", 2, **a), dali_zarr.explain):
        with pytest.raises(ValueError) as found:
            make(**(given | arguments))
        assert message in str(found.value)
