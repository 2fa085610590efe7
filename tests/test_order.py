"""Which sample comes when: shards, epochs, padding, shuffling, by the arithmetic of DALI's readers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from support.oracle import Oracle
from support.pipelines import build, check, to_numpy
from support.stores import Layout, write_array

STEPS = 23


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """23 steps whose value is their number, in chunks of 4."""
    base = tmp_path_factory.mktemp("order")
    write_array(base, "n", np.arange(STEPS, dtype=np.int32), layout=Layout((4,)), dims=("time",))
    return base


def delivered(path, count: int, batch_size: int = 4, device: str = "cpu", **args) -> list[int]:
    """The numbers of the first ``count`` samples (rounded up to batches)."""
    pipe = build(device, batch_size, path=path, arrays=["n"], **args)
    numbers = []
    while len(numbers) < count:
        numbers += to_numpy(pipe.run()[0]).tolist()
    return numbers


def epochs(path, shards: int, number: int, batch_size: int = 4, device: str = "cpu", **args) -> list[list[list[int]]]:
    """What each shard's reader delivers, cut into its epochs: [shard][epoch] -> sample numbers."""
    out = []
    for shard in range(shards):
        spec = Oracle(batch_size, path=path, arrays=["n"], num_shards=shards, shard_id=shard, **args)
        lengths = [spec.epoch_length(e) for e in range(number)]
        stream = delivered(path, sum(lengths), batch_size, device, num_shards=shards, shard_id=shard, **args)
        edges = [0, *itertools.accumulate(lengths)]
        out.append([stream[a:b] for a, b in itertools.pairwise(edges)])
    return out


ORDERS = {
    "in-order": {},
    "shuffled": {"random_shuffle": True, "seed": 7},
    "after-epoch": {"shuffle_after_epoch": True, "seed": 7},
}


@pytest.mark.parametrize("stick", [False, True])
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shards", [1, 2, 3, 5, 23])
def test_each_sample_once_per_epoch(path, device, shards, order, pad, stick):
    """Over all shards, each of two epochs holds every sample exactly once; padding repeats the shard's last one."""
    if order == "after-epoch" and stick:
        pytest.skip("refused: see test_shuffle_after_epoch_excludes")
    args = ORDERS[order] | {"pad_last_batch": pad, "stick_to_shard": stick}
    got = epochs(path, shards, 2, device=device, **args)
    for epoch in range(2):
        seen = []
        for shard in range(shards):
            numbers = got[shard][epoch]
            held = shard if stick or order == "after-epoch" else (shard + epoch) % shards
            real = STEPS * (held + 1) // shards - STEPS * held // shards
            assert all(n == numbers[real - 1] for n in numbers[real:]), "padding repeats the last sample"
            seen += numbers[:real]
        assert sorted(seen) == list(range(STEPS)), f"epoch {epoch}"


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("stick", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_shards_in_order(path, device, shards, pad, stick, batch_size):
    """Batch by batch as DALI's arithmetic has it, over more than one turn of the shards."""
    for shard in range(shards):
        check(
            device, batch_size, epochs=shards + 1, path=path, arrays=["n"], num_shards=shards, shard_id=shard,
            pad_last_batch=pad, stick_to_shard=stick,
        )


def test_a_batch_may_span_epochs(path, device):
    """Without padding the samples run on: a batch larger than the epoch holds several."""
    assert delivered(path, 50, 50, device) == [i % STEPS for i in range(50)]


def test_shuffle_differs_by_epoch_and_seed(path, device):
    """Each epoch and each seed has its own order."""
    one = delivered(path, 4 * STEPS, 1, device, random_shuffle=True, seed=1)
    orders = [one[i * STEPS : (i + 1) * STEPS] for i in range(4)]
    orders.append(delivered(path, STEPS, 1, device, random_shuffle=True, seed=2))
    assert all(sorted(o) == list(range(STEPS)) for o in orders)
    assert len({tuple(o) for o in orders}) == 5
    assert all(o != list(range(STEPS)) for o in orders)


def test_shuffle_is_the_same_in_each_run(path, device):
    """The order is a function of seed and epoch: neither threads, batch size nor queue depth matter."""
    first = delivered(path, 3 * STEPS, 1, device, random_shuffle=True, seed=42)
    for batch_size, how in ((1, {}), (3, {"io_threads": 1, "decode_threads": 1}), (23, {"prefetch_queue_depth": 1})):
        again = delivered(path, 3 * STEPS, batch_size, device, random_shuffle=True, seed=42, **how)
        assert again[: 3 * STEPS] == first


def test_devices_agree_on_the_order(path, gpu):
    assert delivered(path, 60, device=gpu, random_shuffle=True, seed=3) == delivered(path, 60, random_shuffle=True, seed=3)


def test_shuffle_mixes_shards(path, device):
    """Without stick_to_shard a shard's epoch is a part of a permutation of everything, not of its own range."""
    got = epochs(path, 2, 1, device=device, random_shuffle=True, seed=5)
    assert set(got[0][0]) != set(range(STEPS // 2))


def test_stick_to_shard_keeps_its_samples(path, device):
    """With stick_to_shard each epoch is another permutation of the same range."""
    got = epochs(path, 2, 3, device=device, random_shuffle=True, stick_to_shard=True, seed=5)
    for shard, (lo, hi) in enumerate([(0, 11), (11, 23)]):
        assert all(sorted(e) == list(range(lo, hi)) for e in got[shard])
        assert len({tuple(e) for e in got[shard]}) == 3


def test_shuffle_after_epoch(path, device):
    """The first epoch is in order, later ones are not and differ."""
    got = epochs(path, 1, 3, device=device, shuffle_after_epoch=True, seed=9)[0]
    assert got[0] == list(range(STEPS))
    assert got[1] != got[0] and got[2] != got[0] and got[1] != got[2]


@pytest.mark.parametrize("other", ["random_shuffle", "stick_to_shard"])
def test_shuffle_after_epoch_excludes(path, device, other):
    with pytest.raises(ValueError, match=f"shuffle_after_epoch.*{other}|{other}.*shuffle_after_epoch"):
        build(device, 2, path=path, arrays=["n"], shuffle_after_epoch=True, **{other: True})


def test_shuffled_samples_are_whole(tmp_path, device):
    """A shuffled reader delivers the oracle's samples, each with its own index."""
    values = np.random.default_rng(0).standard_normal((17, 3, 4)).astype("float32")
    write_array(tmp_path, "a", values, layout=Layout((5, 3, 4)), dims=("time", "lat", "lon"))
    args = {"path": tmp_path, "arrays": ["a"], "dims": ["time"], "window": [2], "step": [1], "return_index": True}
    samples = {tuple(s[-1]): s[0] for s in Oracle(**args).all_samples()}
    pipe = build(device, 4, random_shuffle=True, seed=1, **args)
    seen = set()
    for _ in range(4):
        for window, index in zip(*(to_numpy(o) for o in pipe.run())):
            np.testing.assert_array_equal(window, samples[tuple(index)])
            seen.add(tuple(index))
    assert seen == set(samples)


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 23])
@pytest.mark.parametrize("stick", [False, True])
def test_shards_share_few_chunks(path, device, shards, stick):
    """In order, a chunk is needed by one shard more for each border between shards that lies within it, and by no other."""
    chunk = 4
    borders = [STEPS * s // shards for s in range(1, shards)]
    got = epochs(path, shards, 2, device=device, stick_to_shard=stick)
    for epoch in range(2):
        needed = sum(len({n // chunk for n in got[shard][epoch]}) for shard in range(shards))
        assert needed == math.ceil(STEPS / chunk) + sum(border % chunk != 0 for border in borders)
        assert needed <= math.ceil(STEPS / chunk) + shards - 1


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("stick", [False, True])
def test_reader_meta(path, device, shards, pad, stick):
    """The six numbers that DALI's iterators ask for."""
    pipe = build(
        device, 4, path=path, arrays=["n"], num_shards=shards, shard_id=shards - 1, pad_last_batch=pad, stick_to_shard=stick,
    )
    meta = pipe.reader_meta("reader")
    assert meta["epoch_size"] == STEPS
    assert meta["epoch_size_padded"] == (math.ceil(STEPS / shards) * shards if pad else STEPS)
    assert pipe.epoch_size("reader") == meta["epoch_size_padded"]
    assert (meta["number_of_shards"], meta["shard_id"]) == (shards, shards - 1)
    assert (bool(meta["pad_last_batch"]), bool(meta["stick_to_shard"])) == (pad, stick)


def test_more_shards_than_samples(path, device):
    with pytest.raises(ValueError, match="23"):
        build(device, 2, path=path, arrays=["n"], num_shards=24)


@pytest.mark.parametrize(("shard", "shards"), [(2, 2), (-1, 2), (0, 0), (0, -3)])
def test_shards_that_make_no_sense(path, device, shard, shards):
    with pytest.raises(ValueError, match="shard"):
        build(device, 2, path=path, arrays=["n"], num_shards=shards, shard_id=shard)


def test_a_huge_epoch_shuffles_at_once(tmp_path, device):
    """The order takes no memory per sample: 10^9 samples build and deliver as quickly as ten."""
    import zarr

    zarr.create_array(
        str(tmp_path), name="a", shape=(1_000_000_000,), chunks=(1 << 16,), dtype="u1", fill_value=3, compressors=None,
    )
    pipe = build(device, 8, path=tmp_path, arrays=["a"], random_shuffle=True, seed=1, return_index=True)
    values, index = (to_numpy(o) for o in pipe.run())
    assert values.tolist() == [3] * 8
    assert len(set(index[:, 0].tolist())) == 8 and index.max() > 1_000_000
