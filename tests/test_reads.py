"""Each chunk is read and decoded once for all that need it, and of a shard only what is needed: counted, not claimed.

The counters are read when the reader is at rest: it has then also read ahead as far as its queue goes.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.oracle import Oracle
from support.pipelines import stats_of
from support.stores import Layout, chunk_files, write_array

DIMS = ("time", "lat", "lon")
STEPS = 48
SHAPE = (STEPS, 8, 16)


def decoded(stats) -> int:
    return stats["chunks_decoded_cpu"] + stats["chunks_decoded_gpu"]


@pytest.mark.parametrize(
    "args",
    [
        {}, {"offsets": [0, 1]}, {"offsets": [-2, 0, 2]}, {"dims": ["time"], "window": [4], "step": [1]},
        {"dims": ["time"], "window": [4], "step": [1], "offsets": [0, 4]},
        {"dims": ["time", "lat"], "window": [0, 2]}, {"arrays": ["a", "a"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("chunk", [1, 4, 7])
def test_a_chunk_is_read_once_per_epoch(tmp_path, device, values, args, chunk):
    """However many samples, offsets and windows overlap in it. Read-ahead past the epoch may add what the queue holds."""
    write_array(tmp_path / "s", "a", values, codec="zstd", layout=Layout((chunk, 8, 16)), dims=DIMS)
    args = {"arrays": ["a"]} | args
    batches = Oracle(1, path=tmp_path / "s", **args).num_samples // 4
    stats = stats_of(batches, device, 4, path=tmp_path / "s", prefetch_queue_depth=1, **args)
    chunks = -(-STEPS // chunk)
    # One batch in the reader's queue, one in DALI's, one being made: at most so many samples of the next epoch.
    reach = 3 * 4 + 12
    ahead = min(chunks, -(-reach // chunk) + 1)
    # What is left of the epoch after its whole batches is fewer than four samples.
    assert chunks - 4 <= stats["chunks_read"] <= chunks + ahead, stats
    assert decoded(stats) <= stats["chunks_read"], stats


def test_an_array_without_the_sample_dimension_is_read_once(tmp_path, device, values):
    """Three epochs, one read of the land-sea mask."""
    write_array(tmp_path / "s", "a", values, codec="none", layout=Layout((48, 8, 16)), dims=DIMS)
    write_array(tmp_path / "s", "lsm", values[0], codec="zstd", layout=Layout((8, 16)), dims=DIMS[1:])
    alone = stats_of(36, device, 4, path=tmp_path / "s", arrays=["a"], prefetch_queue_depth=1)
    both = stats_of(36, device, 4, path=tmp_path / "s", arrays=["a", "lsm"], prefetch_queue_depth=1)
    assert both["chunks_read"] - alone["chunks_read"] <= 1


def test_bytes_are_those_of_the_files(tmp_path, device, values):
    """Uncompressed and compressed chunks are read whole and once: the bytes are the files' bytes."""
    write_array(tmp_path / "s", "a", values, codec="zstd", layout=Layout((2, 8, 16)), dims=DIMS)
    stats = stats_of(12, device, 4, path=tmp_path / "s", arrays=["a"], prefetch_queue_depth=1)
    sizes = [f.stat().st_size for f in chunk_files(tmp_path / "s", "a")]
    assert sum(sizes) <= stats["bytes_read"] <= sum(sizes) + 14 * max(sizes)


def test_only_the_region_of_interest_is_read(tmp_path, device, values):
    write_array(tmp_path / "s", "a", values, codec="zstd", layout=Layout((1, 8, 16)), dims=DIMS)
    stats = stats_of(
        50, device, 2, path=tmp_path / "s", arrays=["a"], dims=["time"], roi_start=[10], roi_end=[12],
    )
    assert stats["chunks_read"] >= 2
    sizes = {f.name: f.stat().st_size for f in chunk_files(tmp_path / "s", "a")}
    assert stats["bytes_read"] <= stats["chunks_read"] * max(sizes.values())


def test_only_picked_levels_are_read(tmp_path, device):
    """Chunks of levels that nobody asked for stay on disk."""
    z = np.random.default_rng(1).standard_normal((12, 10, 8, 8)).astype("float32")
    write_array(tmp_path / "s", "z", z, codec="none", layout=Layout((1, 1, 8, 8)), dims=("time", "level", "lat", "lon"))
    stats = stats_of(6, device, 2, path=tmp_path / "s", arrays=["z"], pick=["level=2,7"], prefetch_queue_depth=1)
    assert 24 <= stats["chunks_read"] <= 24 + 2 * 8, stats


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_only_the_needed_inner_chunks_of_a_shard(tmp_path, device, values, index_location):
    """One shard, one index read; of 48 x 4 inner chunks only those of the region of interest and of one latitude band."""
    layout = Layout((1, 2, 16), shards=(48, 8, 16), index_location=index_location)
    write_array(tmp_path / "s", "a", values, codec="zstd", layout=layout, dims=DIMS)
    stats = stats_of(
        4, device, 2, path=tmp_path / "s", arrays=["a"], dims=["time", "lat"], window=[0, 2], roi_start=[4, 2],
        roi_end=[12, 4], prefetch_queue_depth=1,
    )
    assert stats["index_reads"] == 1, stats
    assert 8 <= stats["chunks_read"] <= 16, stats
    (shard,) = chunk_files(tmp_path / "s", "a")
    assert stats["bytes_read"] < shard.stat().st_size / 4, stats


def test_a_shard_index_is_read_once(tmp_path, device, values):
    """Six shards, three epochs in random order: six index reads."""
    write_array(tmp_path / "s", "a", values, codec="zstd", layout=Layout((1, 8, 16), shards=(8, 8, 16)), dims=DIMS)
    stats = stats_of(36, device, 4, path=tmp_path / "s", arrays=["a"], random_shuffle=True, seed=1)
    assert stats["index_reads"] == 6, stats


def test_missing_chunks_are_not_decoded(tmp_path, device, values):
    write_array(
        tmp_path / "s", "a", values, codec="zstd", layout=Layout((2, 8, 16)), dims=DIMS,
        missing=tuple((i, 0, 0) for i in range(20)),
    )
    stats = stats_of(6, device, 8, path=tmp_path / "s", arrays=["a"], prefetch_queue_depth=1)
    assert 4 <= decoded(stats) <= 8, stats


@pytest.mark.parametrize("decode_device", ["cpu", "gpu", "auto"])
def test_where_chunks_are_decoded(tmp_path, gpu, values, decode_device):
    """The counters tell which decoder did the work; "cpu" and "gpu" leave no choice."""
    write_array(tmp_path / "s", "a", values, codec="zstd", layout=Layout((1, 8, 16)), dims=DIMS)
    stats = stats_of(12, gpu, 4, path=tmp_path / "s", arrays=["a"], decode_device=decode_device)
    assert decoded(stats) >= 48
    if decode_device != "auto":
        other = {"cpu": "gpu", "gpu": "cpu"}[decode_device]
        assert stats[f"chunks_decoded_{other}"] == 0, stats


def test_times_are_told(tmp_path, device, values):
    """All seconds are there and plausible: none is negative, none longer than a minute of threads."""
    write_array(tmp_path / "s", "a", values, codec="zstd", layout=Layout((1, 8, 16)), dims=DIMS)
    stats = stats_of(12, device, 4, path=tmp_path / "s", arrays=["a"])
    for name in ("wait_seconds", "read_seconds", "decode_seconds", "assemble_seconds"):
        assert 0 <= stats[name] < 60, (name, stats)
