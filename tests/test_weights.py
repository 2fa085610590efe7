"""Weights of samples: how often each is drawn."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from support.pipelines import build, same, to_numpy
from support.starts import VALUES, read, write


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("starts"))


@pytest.mark.parametrize("replacement", [True, False])
def test_weights_are_those_of_the_samples(path, device, replacement):
    weights = np.array([0, 1, 0.5, 0, 3, 2, 0, 8.0])
    pipe = build(
        device, 5, path=path, arrays=["a"], dims=["t"], window=[7], roi_end=[56], weights=weights, num_samples=5,
        replacement=replacement, return_index=True, seed=3,
    )
    assert pipe.reader_meta("reader")["epoch_size"] == 5
    counts: collections.Counter[int] = collections.Counter()
    for _ in range(600):
        values, index = map(to_numpy, pipe.run())
        same(values[0], VALUES[index[0, 0] : index[0, 0] + 7], "a sample")
        drawn = index[:, 0] // 7
        assert replacement or len(set(drawn)) == 5
        counts.update(drawn.tolist())
    if replacement:
        deviation = sum((counts[i] - 3000 * w) ** 2 / (3000 * w) for i, w in enumerate(weights / weights.sum()) if w)
        # Chi-squared with 4 degrees of freedom.
        assert deviation < 4 + 5 * 8**0.5
    assert set(counts) == set(np.flatnonzero(weights).tolist())


@pytest.mark.parametrize("replacement", [True, False])
def test_each_draw_has_a_crop_of_its_own(path, device, replacement):
    """By the seed, the epoch and the position alone: whatever the shards are, and after a checkpoint."""
    weights = np.arange(60) % 3 if not replacement else np.where(np.arange(60) == 7, 1.0, 0.0)
    count = 36
    args = {
        "path": path, "arrays": ["a"], "dims": ["t", "y", "x"], "window": [0, 5, 4], "random_crop": ["y", "x"], "weights": weights,
        "num_samples": count, "replacement": replacement, "return_index": True, "seed": 2,
    }
    values, index = read(build(device, 6, **args), 40 * count, 6)
    for value, (t, y, x) in zip(values, index, strict=True):
        same(value, VALUES[t, y : y + 5, x : x + 4], f"the crop at {t, y, x}")
    if replacement:
        assert (index[:, 0] == 7).all()
        places = [len(set(map(tuple, epoch))) for epoch in index.reshape(40, count, 3)]
        assert min(places) > 20, "17 x 11 places, and 36 draws of one sample"
        times = np.bincount(index[:, 1] * 11 + index[:, 2], minlength=187)
        mean = len(index) / 187
        assert abs(((times - mean) ** 2 / mean).sum() - 186) < 5 * (2 * 186) ** 0.5, "chi-squared"
    of_shards = [read(build(device, 6, shard_id=s, num_shards=3, stick_to_shard=True, **args), 24, 6)[1] for s in range(3)]
    for epoch in range(2):
        together = np.concatenate([found[epoch * 12 : (epoch + 1) * 12] for found in of_shards])
        np.testing.assert_array_equal(together, index[epoch * count : (epoch + 1) * count])
    pipe = build(device, 6, checkpointing=True, **args)
    for _ in range(8):
        pipe.run()
    again = build(device, 6, checkpointing=True, checkpoint=pipe.checkpoint(), **args)
    np.testing.assert_array_equal(read(again, count, 6)[1], index[48 : 48 + count])
