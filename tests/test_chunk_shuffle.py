"""Shuffling where chunks hold many samples: each chunk is read once or nearly so, and the order is as random as it says."""

from __future__ import annotations

import math
import tempfile

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.pipelines import build, stats_of, to_numpy
from support.stores import Layout, chunk_files, write_array

DIMS = ("time", "lat", "lon")
STEPS = 960
BATCH = 16


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """960 small fields: ``a`` with 12 of them in a chunk, ``b`` with 5, ``tiles`` cut in space too, and a number for each."""
    path = tmp_path_factory.mktemp("shuffle")
    values = np.random.default_rng(0).standard_normal((STEPS, 8, 16)).astype("float32")
    write_array(path, "a", values, codec="zstd", layout=Layout((12, 8, 16)), dims=DIMS)
    write_array(path, "b", values, codec="none", layout=Layout((5, 8, 16)), dims=DIMS)
    write_array(path, "tiles", values, codec="zstd", layout=Layout((12, 4, 8)), dims=DIMS)
    write_array(path, "sharded", values, codec="zstd", layout=Layout((12, 8, 16), shards=(96, 8, 16)), dims=DIMS)
    write_array(path, "n", np.arange(STEPS, dtype=np.int64), codec="none", layout=Layout((STEPS,)), dims=DIMS[:1])
    return path


def order(path, count=STEPS, batch_size=BATCH, device="cpu", **args):
    """The starts of the first ``count`` samples along the first of dims."""
    pipe = build(device, batch_size, path=path, return_index=True, random_shuffle=True, **{"arrays": ["a"], "seed": 4} | args)
    starts = [to_numpy(pipe.run()[-1]) for _ in range(-(-count // batch_size))]
    return np.concatenate(starts)[:count]


def reads(store, device="cpu", epochs=1, **args):
    """The counters of a reader over whole epochs."""
    args = {"arrays": ["a"], "random_shuffle": True, "seed": 4, "prefetch_queue_depth": 2, "batch_size": BATCH} | args
    batch_size = args.pop("batch_size")
    samples = args.pop("samples", STEPS)
    return stats_of(epochs * samples // batch_size, device, batch_size, path=store, **args)


@pytest.mark.parametrize("fill", [60, 120, 240, 480])
@pytest.mark.parametrize("array", ["a", "sharded"])
def test_each_chunk_is_read_once(store, device, array, fill):
    """Over ten epochs, so that what is read ahead of the eleventh hardly counts. Chunks that are still there when the next
    epoch needs them aren't read for it, which is more likely in a small store."""
    stats = reads(store, device, epochs=10, arrays=[array], initial_fill=fill)
    assert 400 <= stats["chunks_read"] <= 800 + 80, stats


@pytest.mark.parametrize("fill", [{"initial_fill": 1024}, {}], ids=["windows", "default"])
@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_small_batches_keep_their_chunks(tmp_path, batch_size, fill):
    """Overlapping windows: few samples of a chunk need the next one too, long after the others. With the default all samples are
    shuffled together, and memory holds all chunks."""
    samples = 24 * 100 - 15
    write_array(tmp_path, "a", np.zeros((24 * 100, 4), "float32"), layout=Layout((100, 4)), dims=("time", "x"))
    stats = reads(
        tmp_path, samples=samples // batch_size * batch_size, batch_size=batch_size, dims=["time"], window=[16], step=[1], **fill,
    )
    # What is read ahead for the next epoch counts too.
    assert 24 <= stats["chunks_read"] <= 2 * 24 + 12, stats
    assert stats["evictions"] == stats["chunks_read_again"] == 0, stats


def test_without_it_chunks_are_read_again(store):
    """What the blocks are good for: with as little memory, drawing among all samples reads chunks many times."""
    limit = {"host_memory_limit": 250_000, "io_threads": 1, "decode_threads": 1, "epochs": 4}
    grouped = reads(store, initial_fill=120, **limit)["chunks_read"]
    among_all = reads(store, initial_fill=STEPS, **limit)["chunks_read"]
    assert grouped <= 1.3 * 4 * 80
    assert among_all > 3 * grouped


def test_memory_that_cant_hold_a_window_costs_reads_and_nothing_else(store, device):
    """40 chunks of 6 KiB in a window, memory for a few: values and order stay, chunks are read again."""
    small = {"device_memory_limit": 24 << 20} if device == "gpu" else {"host_memory_limit": 150_000}
    small |= {"io_threads": 1, "decode_threads": 1, "prefetch_queue_depth": 1}
    expected = order(store, initial_fill=480)
    np.testing.assert_array_equal(order(store, device=device, initial_fill=480, **small), expected)
    if device == "cpu":
        stats = reads(store, epochs=2, initial_fill=480, **small)
        assert stats["chunks_read"] > 2 * 160, stats


@pytest.mark.parametrize(
    ("args", "once", "samples"),
    [
        # Windows of four steps at every step: those that start in a chunk's last three steps need the next one too.
        ({"dims": ["time"], "window": [4], "step": [1]}, 2, 957),
        ({"offsets": [0, 6]}, 2, 954),
        # Of several arrays the one with the longest chunks decides; the other's chunks don't end where blocks do.
        ({"arrays": ["a", "b"]}, 2, 960),
        # Tiles that share a chunk: 3 x 6 of them for each of 12 steps.
        ({"dims": ["time", "lat", "lon"], "window": [0, 4, 6], "step": [1, 2, 2]}, 1, 960 * 18),
        ({"arrays": ["tiles"], "dims": ["time", "lat", "lon"], "window": [0, 4, 8]}, 1, 960 * 4),
        ({"arrays": ["a", "n"]}, 1, 960),
    ],
    ids=str,
)
def test_windows_and_arrays_that_share_chunks(store, args, once, samples):
    """A chunk that several blocks need is read for each of them at most, and less where they meet in a window."""
    arrays = args.get("arrays", ["a"])
    chunks = sum(len(chunk_files(store, a)) for a in arrays)
    epochs = 6 if samples < 2000 else 1
    stats = reads(store, epochs=epochs, samples=samples, initial_fill=min(240, samples // 4), **args)
    # What is read ahead of the epoch after the last may be all chunks; what is kept from one to the next isn't read for it.
    assert epochs * chunks / 2 <= stats["chunks_read"] <= (once * epochs + 1) * chunks, stats


def episodes(path, lengths, chunk):
    """A store of episodes with one chunk for many of them; the values, and the first element of each episode."""
    ends = np.cumsum(lengths)
    values = np.random.default_rng(1).standard_normal((int(ends[-1]), 16)).astype("float32")
    write_array(path, "a", values, codec="zstd", layout=Layout((chunk, 16)), dims=("step", "joint"))
    write_array(path, "ends", ends, codec="none", layout=Layout((len(ends),)), dims=("episode",))
    return values, ends - lengths


@pytest.mark.parametrize("fits", [True, False], ids=["chunks of whole episodes", "across chunks"])
@pytest.mark.parametrize("pads", [{}, {"out_of_bounds_policy": "edge", "pad_before": [2], "pad_after": [1]}], ids=["drop", "edge"])
def test_short_episodes_share_chunks(tmp_path, device, fits, pads):
    """1,000 episodes in 20 chunks of 32 KiB, in memory for some of these: a chunk is read for all its episodes at once, and again
    at most for each sample that starts in the chunk before it."""
    lengths = np.full(1000, 10) if fits else np.random.default_rng(0).integers(5, 16, 1000)
    values, firsts = episodes(tmp_path, lengths, 500)
    before, after = (2, 1) if pads else (0, 0)
    expected = {(e, int(first) + s) for e, first in enumerate(firsts) for s in range(-before, int(lengths[e]) - 4 + after + 1)}
    args = {
        "arrays": ["a"], "dims": ["step"], "window": [4], "step": [1], "breaks": "ends", "random_shuffle": True, "seed": 4,
        "return_index": True, "initial_fill": 1200, **pads,
    }
    chunks = len(chunk_files(tmp_path, "a"))
    pipe = build(device, BATCH, path=tmp_path, **args)
    assert pipe.epoch_size("reader") == len(expected)
    seen = set()
    for _ in range(len(expected) // BATCH):
        windows, index = map(to_numpy, pipe.run())
        of, starts = index.T
        steps = np.clip(starts[:, None] + np.arange(4), firsts[of, None], (firsts + lengths - 1)[of, None])
        np.testing.assert_array_equal(windows, values[steps])
        seen |= set(map(tuple, index.tolist()))
    assert seen <= expected and len(seen) == len(expected) // BATCH * BATCH, "each sample once"
    small = {} if device == "gpu" else {"host_memory_limit": 600_000, "io_threads": 1, "decode_threads": 1}
    stats = reads(tmp_path, device, epochs=3, samples=len(expected), **args, **small)
    across = sum(max(s, int(firsts[e])) // 500 < min(s + 3, int(firsts[e] + lengths[e]) - 1) // 500 for e, s in expected)
    assert (across == 0) == fits and across < 4 * chunks
    # What is read ahead of the fourth epoch may be a few windows.
    assert 3 * chunks / 2 <= stats["chunks_read"] <= 3 * (chunks + across) + chunks / 2, stats


@pytest.mark.parametrize(("fill", "batch_size"), [(120, 16), (240, 32), (480, 16)])
def test_as_random_as_documented(store, fill, batch_size):
    """Of its batch, (B - 1) (b - 1) / (F - 1) samples share a chunk with a sample; its place says nothing of its number."""
    starts = order(store, 40 * STEPS, batch_size, arrays=["n", "a"], initial_fill=fill)[:, 0]
    chunk = starts // 12
    pairs = sum((np.bincount(c) * (np.bincount(c) - 1)).sum() for c in chunk.reshape(-1, batch_size))
    expected = (batch_size - 1) * 11 / (fill - 1)
    assert pairs / len(starts) == pytest.approx(expected, rel=0.05)

    places = np.tile(np.arange(STEPS), 40)
    assert abs(np.corrcoef(places, starts)[0, 1]) < 5 / math.sqrt(40 * STEPS / 12)
    distance = np.abs(np.diff(starts)).mean() / STEPS
    # Neighbours that come from different chunks are a third apart, those of one chunk hardly at all.
    assert distance == pytest.approx(1 / 3 * (1 - 11 / (fill - 1)), abs=0.01)
    for epoch in starts.reshape(-1, STEPS):
        assert sorted(epoch) == list(range(STEPS))


def test_the_order_is_the_same_however_it_is_read(store, device):
    """Neither threads, batches, queues nor budgets matter; of the arguments only those that say what samples are."""
    expected = order(store, 2 * STEPS, initial_fill=100)
    for how in (
        {"batch_size": 7}, {"io_threads": 1, "decode_threads": 1}, {"prefetch_queue_depth": 1}, {"batch_size": 50, "io_threads": 3},
        {"host_memory_limit": 64 << 20, "mean": [1.0]},
    ):
        np.testing.assert_array_equal(order(store, 2 * STEPS, device=device, initial_fill=100, **how), expected)
    assert (order(store, 2 * STEPS, initial_fill=150) != expected).any()


def test_chunks_that_begin_outside_of_the_region(store):
    """The region begins in the middle of a chunk: blocks still end where chunks do."""
    stats = reads(store, epochs=10, samples=900, dims=["time"], roi_start=[30], roi_end=[930], initial_fill=120)
    # 30 to 930 touch chunks 2 to 77; some are still there in the next epoch, some are read ahead of the last.
    assert 5 * 76 <= stats["chunks_read"] <= 10 * 76 + 76, stats


def test_shards_share_few_chunks(store):
    """A border between shards splits a window at most: no more chunks are shared than a window holds."""
    fill = 96
    held = []
    for shard in range(5):
        starts = order(store, STEPS // 5, num_shards=5, shard_id=shard, initial_fill=fill)[:, 0]
        held.append(set((starts // 12).tolist()))
    assert sum(len(h) for h in held) - 80 <= 4 * (fill // 12)


def test_sticking_to_a_shard_keeps_whole_tiles(store):
    """Cut along several dimensions, a shard consists of whole chunks' samples but for its ends."""
    tiles = {"arrays": ["tiles"], "dims": ["time", "lat", "lon"], "window": [0, 4, 8], "initial_fill": 64}
    seen, chunks = [], []
    for shard in range(3):
        starts = order(store, 2 * 1280, num_shards=3, shard_id=shard, stick_to_shard=True, **tiles)
        first, second = ([tuple(s) for s in half.tolist()] for half in (starts[:1280], starts[1280:]))
        assert sorted(first) == sorted(second) and first != second
        seen += first
        chunks.append({(t // 12, y, x) for t, y, x in first})
    assert len(set(seen)) == len(seen) == 4 * STEPS
    assert sum(map(len, chunks)) <= 320 + 2


@given(data=st.data())
def test_each_sample_once(data):
    """Whatever the geometry, chunks, shards and windows: each sample once in each epoch."""
    shape = tuple(data.draw(st.integers(1, 20)) for _ in range(data.draw(st.integers(1, 3))))
    dims = [f"d{i}" for i in range(len(shape))]
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    args = {
        "dims": dims, "window": [data.draw(st.integers(0, min(3, n))) for n in shape],
        "step": [data.draw(st.integers(1, 3)) for _ in shape], "initial_fill": data.draw(st.integers(1, 60)),
        "breaks": [] if shape[0] < 2 else data.draw(st.lists(st.integers(1, shape[0] - 1), max_size=2)),
        "pad_last_batch": data.draw(st.booleans()), "seed": data.draw(st.integers(0, 5)),
    }
    batch_size = data.draw(st.integers(1, 6))
    shards = data.draw(st.integers(1, 4))
    stick = data.draw(st.booleans())
    if data.draw(st.booleans()) and not stick:
        args["shuffle_after_epoch"] = True
    else:
        args |= {"random_shuffle": True, "stick_to_shard": stick}
    keeps = stick or "shuffle_after_epoch" in args
    with tempfile.TemporaryDirectory() as path:
        write_array(path, "a", np.zeros(shape, np.uint8), layout=Layout(chunks), dims=tuple(dims), codec="none")
        try:
            pipes = [
                build("cpu", batch_size, path=path, arrays=["a"], return_index=True, num_shards=shards, shard_id=s, **args)
                for s in range(shards)
            ]
        except ValueError as refused:
            assert "no sample" in str(refused) or "shards" in str(refused)
            return
        n = pipes[0].reader_meta("reader")["epoch_size"]
        assume(n < 2000)
        for epoch in range(2):
            seen = []
            for s, pipe in enumerate(pipes):
                held = s if keeps else (s + epoch) % shards
                real = n * (held + 1) // shards - n * held // shards
                # Without padding the reader's epochs aren't whole batches: read the first ones again.
                if not args["pad_last_batch"]:
                    earlier = sum(
                        n * ((s + e) % shards + 1) // shards - n * ((s + e) % shards) // shards if not keeps else real
                        for e in range(epoch)
                    )
                    pipe = build("cpu", 1, path=path, arrays=["a"], return_index=True, num_shards=shards, shard_id=s, **args)
                    all_of = [tuple(to_numpy(pipe.run()[-1])[0].tolist()) for _ in range(earlier + real)]
                    seen += all_of[earlier:]
                    continue
                length = math.ceil(math.ceil(n / shards) / batch_size) * batch_size
                got = [tuple(x) for _ in range(length // batch_size) for x in to_numpy(pipe.run()[-1]).tolist()]
                assert all(g == got[real - 1] for g in got[real:]), "padding repeats the last sample"
                seen += got[:real]
            assert len(seen) == n == len(set(seen))
