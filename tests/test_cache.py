"""Caches of encoded chunks: which requests a second epoch and a second process send, and what is never served."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import zipfile
from pathlib import Path

import dali_zarr
import numpy as np
import pytest
import zarr
from support.pipelines import at_rest, build, same, settled, to_numpy
from support.processes import start
from support.server import Server
from support.stores import Layout, chunk_files, write_array

DIMS = ("time", "lat", "lon")
SHAPE = (48, 8, 16)
MIB = 1 << 20
STORES = {
    "chunks": {"codec": "zstd", "layout": Layout((1, 8, 16))},
    "none": {"codec": "none", "layout": Layout((1, 8, 16))},
    "shards": {"codec": "zstd", "layout": Layout((1, 4, 16), shards=(8, 8, 16))},
}
OBJECTS = {"chunks": 48, "none": 48, "shards": 6}
# Chunks are forgotten by the reader itself as soon as may be, so that every epoch reads them.
TIGHT = {"prefetch_queue_depth": 1, "dali_queue": 1, "random_shuffle": True, "initial_fill": 1}


def run(url, values, batches, device="cpu", **args):
    """Compares so many batches of four with the values at their indices, and gives the reader's counters."""
    pipe = build(device, 4, path=url, arrays=["a"], return_index=True, **args)
    for number in range(batches):
        out, index = (to_numpy(o) for o in pipe.run())
        same(out, values[index[:, 0]], f"batch {number}")
    return settled(pipe)


def chunk_requests(server):
    """Requests by method and path, those for metadata left out."""
    return {key: n for key, n in server.counts().items() if "/c/" in key[1]}


@pytest.mark.parametrize("kind", STORES)
def test_a_second_epoch_from_memory_sends_no_request(tmp_path, device, values, kind):
    write_array(tmp_path, "a", values, dims=DIMS, **STORES[kind])
    with Server(tmp_path) as server:
        counters = run(server.url, values, 36, device, cache_size=64 * MIB, **TIGHT)
        requests = chunk_requests(server)
    if kind == "shards":
        # An index each, and ranges as they came to be needed together: fewer than chunks, none of them twice.
        assert counters["requests"] <= 2 + 6 + 96, counters
        assert counters["bytes_read"] < 2 * sum(f.stat().st_size for f in chunk_files(tmp_path, "a"))
    else:
        assert set(requests.values()) == {1} and len(requests) == 48
    assert counters["cache_hits"] > 48 and counters["cache_bytes"] > 0 and counters["cache_evictions"] == 0


def test_local_stores_are_kept_too(tmp_path, device, values):
    write_array(tmp_path, "a", values, dims=DIMS, **STORES["shards"])
    counters = run(tmp_path, values, 36, device, cache_size=64 * MIB, **TIGHT)
    assert counters["cache_hits"] > 96
    assert counters["bytes_read"] < 2 * sum(f.stat().st_size for f in chunk_files(tmp_path, "a"))


def test_a_folder_in_the_home_directory(tmp_path, values, monkeypatch):
    """Python replaces ~ as a shell does; the engine, which other hosts call too, refuses it."""
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES["chunks"])
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with Server(tmp_path / "s") as server:
        settled(build("cpu", 1, path=server.url, arrays=["a"], cache_dir="~/c"))
    assert any((tmp_path / "home" / "c").iterdir())


def test_ranges_of_local_archives_are_kept_as_pieces(tmp_path, device, values):
    """Shuffled epochs merge ranges of shards in other ways each; what one read serves the next all the same."""
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES["shards"])
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        for file in (f for f in (tmp_path / "s").rglob("*") if f.is_file()):
            archive.write(file, file.relative_to(tmp_path / "s"))
    args = TIGHT | {"cache_size": 64 * MIB, "random_shuffle": True, "initial_fill": 4, "arrays": ["a"]}
    pipe = build(device, 4, path=tmp_path / "s.zip", **args)
    expected = build(device, 4, path=tmp_path / "s", **TIGHT | args | {"cache_size": 0})
    for number in range(60):
        same(to_numpy(pipe.run()[0]), to_numpy(expected.run()[0]), f"batch {number}")
    counters = dali_zarr.counters(pipe)["reader"]
    assert counters["bytes_read"] < 2 * sum(f.stat().st_size for f in chunk_files(tmp_path / "s", "a")), counters


def test_a_cache_of_half_the_size_serves_nearly_half(tmp_path):
    values = np.random.default_rng(0).standard_normal((96, 64, 128)).astype("float32")
    write_array(tmp_path, "a", values, dims=DIMS, codec="none", layout=Layout((1, 64, 128)))
    half = values.nbytes // 2 * 105 // 100 + 65536
    with Server(tmp_path) as server:
        for shuffled in (False, True):
            counters = run(server.url, values, 24 * 6, cache_size=half, **TIGHT | {"random_shuffle": shuffled})
            rate = counters["cache_hits"] / (counters["cache_hits"] + counters["cache_misses"])
            assert 0.33 < rate < 0.5, "five sixths of 0.4 to 0.5"
            assert counters["cache_evictions"] > 0


@pytest.mark.parametrize("kind", STORES)
def test_a_second_process_asks_once_for_each_object(tmp_path, device, values, kind):
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES[kind])
    with Server(tmp_path / "s") as server:
        first = run(server.url, values, 24, device, cache_dir=tmp_path / "cache", **TIGHT)
        assert first["cache_dir_writes"] > 0 and first["cache_dir_errors"] == first["cache_dir_dropped"] == 0
        server.take_log()
        counters = run(server.url, values, 24, device, cache_dir=tmp_path / "cache", **TIGHT)
        requests = chunk_requests(server)
        assert {method for method, _ in requests} == {"HEAD"}
        assert set(requests.values()) == {1} and len(requests) == OBJECTS[kind] == counters["cache_dir_checks"]
        assert counters["reads"] == counters["index_reads"] == counters["bytes_read"] == 0
        assert counters["cache_dir_bytes"] > 0 and counters["cache_dir_misses"] == 0

        run(server.url, values, 24, device, cache_dir=tmp_path / "cache", cache_validate=False, **TIGHT)
        assert chunk_requests(server) == {}


def pieces(folder):
    return [p for p in (folder / "dali-zarr-1").glob("??/*") if p.is_file()]


@pytest.mark.parametrize("kind", STORES)
def test_replaced_objects_are_noticed(tmp_path, device, values, kind):
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES[kind])
    with Server(tmp_path / "s") as server:
        run(server.url, values, 12, device, cache_dir=tmp_path / "cache", **TIGHT)
        time.sleep(0.05)
        zarr.open(tmp_path / "s", mode="r+")["a"][:] = values + 1
        server.take_log()
        run(server.url, values + 1, 12, device, cache_dir=tmp_path / "cache", **TIGHT)
        assert any(method == "GET" for method, _ in chunk_requests(server))
        server.take_log()
        run(server.url, values + 1, 12, device, cache_dir=tmp_path / "cache", **TIGHT)
        assert {method for method, _ in chunk_requests(server)} == {"HEAD"}, "and kept anew"


def test_what_the_disk_has_of_a_range_is_not_read_again(tmp_path, device, values):
    """Of each shard every other inner chunk is kept; the others come with later reads, and all are served by the next."""
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES["shards"] | {"codec": "none"})
    how = {"path": None, "dims": ["lat"], "window": [4], "arrays": ["a"], "cache_dir": tmp_path / "cache"}
    with Server(tmp_path / "s") as server:
        how["path"] = server.url
        came = []
        for roi in ({"roi_start": [4]}, {}, {}):
            pipe = build(device, 1, dali_queue=1, prefetch_queue_depth=1, **how, **roi)
            for at in (4,) if roi else (0, 4):
                same(to_numpy(pipe.run()[0])[0], values[:, at : at + 4], f"from {at}")
            came.append(settled(pipe))
            del pipe
    half = 6 * 8
    assert [c["cache_dir_writes"] >= half for c in came[:2]] == [True, True] and came[2]["cache_dir_writes"] == 0
    assert came[1]["cache_dir_hits"] >= half, "what the first one kept"
    # Gaps between inner chunks are read with them.
    assert 0 < came[1]["bytes_read"] < values.nbytes and came[2]["bytes_read"] == 0


def test_an_archive_is_one_object_whose_version_is_known_when_it_is_open(tmp_path, values):
    """Its entries need no questions of their own, and none are counted."""
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES["chunks"])
    (tmp_path / "served").mkdir()
    with zipfile.ZipFile(tmp_path / "served/x.zip", "w") as archive:
        for file in sorted(f for f in (tmp_path / "s").rglob("*") if f.is_file()):
            archive.write(file, file.relative_to(tmp_path / "s"))
    with Server(tmp_path / "served") as server:
        run(f"{server.url}/x.zip", values, 12, cache_dir=tmp_path / "cache", **TIGHT)
        server.take_log()
        counters = run(f"{server.url}/x.zip", values, 24, cache_dir=tmp_path / "cache", **TIGHT)
        opening = server.take_log()
        assert counters["cache_dir_hits"] >= 48 and counters["cache_dir_checks"] == counters["bytes_read"] == 0
        assert len(opening) <= 2 + 2 and {method for method, *_ in opening} == {"GET"}, "its end, and metadata"


def test_an_old_index_never_meets_a_new_shard(tmp_path, values):
    """Unasked, an index that is kept is believed; but not to lie in another version of its shard."""
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES["shards"])
    how = {"arrays": ["a"], "cache_dir": tmp_path / "cache", "cache_validate": False}
    with Server(tmp_path / "s") as server:
        pipe = build("cpu", 4, path=server.url, roi_end=[4], **how)
        same(to_numpy(pipe.run()[0]), values[:4], "kept")
        settled(pipe)
        del pipe
        zarr.open(tmp_path / "s", mode="r+")["a"][:] = values + 1
        pipe = build("cpu", 4, path=server.url, roi_end=[4], **how)
        same(to_numpy(pipe.run()[0]), values[:4], "as it was")
        pipe = build("cpu", 4, path=server.url, roi_start=[4], roi_end=[8], **how)
        with pytest.raises(RuntimeError, match="it was replaced since its index was read"):
            pipe.run()
        at_rest(dali_zarr.counters)
        del pipe
        pipe = build("cpu", 4, path=server.url, roi_start=[4], roi_end=[8], **how)
        same(to_numpy(pipe.run()[0]), values[4:8] + 1, "the index is read again")


def test_missing_chunks_are_not_kept(tmp_path, values):
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES["chunks"])
    gone = chunk_files(tmp_path / "s", "a")[7]
    kept = gone.read_bytes()
    gone.unlink()
    args = TIGHT | {"cache_dir": tmp_path / "cache", "cache_size": 4 * MIB}
    with Server(tmp_path / "s") as server:
        run(server.url, zarr.open(tmp_path / "s", mode="r")["a"][:], 24, **args)
        gone.write_bytes(kept)
        run(server.url, values, 24, **args)


@pytest.mark.parametrize("codec", ["gzip", "numcodecs-bz2", "none"])
def test_a_damaged_object_is_not_kept(tmp_path, values, device, codec):
    """What can't be decoded is read again by the next process, whoever decodes it; and what is too short."""
    write_array(tmp_path / "s", "a", values, dims=DIMS, codec=codec, layout=Layout((1, 8, 16)))
    chunk = chunk_files(tmp_path / "s", "a")[0]
    good, stat = chunk.read_bytes(), chunk.stat()
    chunk.write_bytes(good[:30] if codec == "none" else good[:30] + bytes(len(good) - 30))
    os.utime(chunk, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    args = {"path": None, "arrays": ["a"], "cache_dir": tmp_path / "cache", "cache_size": 4 * MIB}
    with Server(tmp_path / "s") as server:
        args["path"] = server.url
        pipe = build(device, 48, **args)
        with pytest.raises(RuntimeError, match="/c/"):
            pipe.run()
        at_rest(dali_zarr.counters)
        del pipe
        assert len(pieces(tmp_path / "cache")) < 48
        # The same length and date: the server can't tell them apart.
        chunk.write_bytes(good)
        os.utime(chunk, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        same(to_numpy(build(device, 48, **args).run()[0]), values, "read again")


@pytest.mark.parametrize("kind", ["chunks", "shards"])
def test_damaged_files_are_misses(tmp_path, values, kind):
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES[kind])
    dice = random.Random(1)
    with Server(tmp_path / "s") as server:
        run(server.url, values, 12, cache_dir=tmp_path / "cache", **TIGHT)
        files = pieces(tmp_path / "cache")
        assert len(files) >= 48
        for number, file in enumerate(sorted(files)):
            data = bytearray(file.read_bytes())
            match number % 5:
                case 0:
                    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
                    file.write_bytes(data)
                case 1:
                    file.write_bytes(data[: dice.randrange(len(data))])
                case 2:
                    file.write_bytes(dice.randbytes(100))
                case 3:
                    file.unlink()
                    file.symlink_to("/etc/passwd")
                case _:
                    file.unlink()
                    file.mkdir()
        counters = run(server.url, values, 24, cache_dir=tmp_path / "cache", **TIGHT)
        assert counters["cache_dir_errors"] > len(files) // 2
        assert counters["cache_dir_hits"] > 0, "those that could be written again"


def folder_bytes(folder):
    return sum(-(-p.lstat().st_size // 4096) * 4096 for p in folder.rglob("*") if p.is_file() and p.name != "usage")


READER = """
import sys, json
import numpy as np
from support.pipelines import build, to_numpy
url, cache, limit, epochs, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
values = np.load(sys.argv[6])
pipe = build("cpu", 8, path=url, arrays=["a"], cache_dir=cache, cache_dir_size=limit, random_shuffle=True, seed=seed,
             return_index=True, initial_fill=1, prefetch_queue_depth=2)
print("ready", flush=True)
for _ in range(epochs * len(values) // 8):
    out, index = pipe.run()
    assert to_numpy(out).tobytes() == values[to_numpy(index)[:, 0]].tobytes()
import dali_zarr
print(json.dumps(dali_zarr.counters(pipe)["reader"]))
"""


@pytest.fixture
def large(tmp_path):
    values = np.random.default_rng(0).standard_normal((64, 64, 128)).astype("float32")
    write_array(tmp_path / "s", "a", values, dims=DIMS, codec="none", layout=Layout((1, 64, 128)))
    np.save(tmp_path / "values.npy", values)
    return tmp_path


def test_processes_share_a_folder_and_its_limit(large):
    """Two at a time, on a folder that holds half of the store; the limit holds at every moment, but for a chunk each."""
    limit = MIB
    with Server(large / "s") as server:
        both = [start(READER, server.url, large / "cache", limit, 6, seed, large / "values.npy") for seed in (1, 2)]
        most = 0
        while any(p.poll() is None for p in both):
            try:
                most = max(most, folder_bytes(large / "cache"))
            except FileNotFoundError:
                pass
            time.sleep(0.02)
        counters = []
        for process in both:
            out, err = process.communicate()
            assert process.returncode == 0, err
            counters.append(json.loads(out.splitlines()[-1]))
    assert limit // 2 < most <= limit + 2 * 36864, most
    assert all(c["cache_dir_hits"] > 0 and c["cache_dir_errors"] == 0 for c in counters), counters
    assert sum(c["cache_dir_evictions"] for c in counters) > 0


def test_killed_while_writing(large):
    """Whatever a killed process left, the next ones get right values, and the folder keeps its limit."""
    with Server(large / "s") as server:
        for seed in range(4):
            process = start(READER, server.url, large / "cache", 1 << 30, 50, seed, large / "values.npy")
            assert process.line() == "ready\n"
            time.sleep(0.02 + 0.05 * seed)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        process = start(READER, server.url, large / "cache", 1 << 30, 2, 9, large / "values.npy")
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        counters = json.loads(out.splitlines()[-1])
        assert counters["cache_dir_errors"] == 0 and counters["cache_dir_hits"] > 0
    left = list((large / "cache/dali-zarr-1/tmp").iterdir())
    assert len(left) <= 4, "one for each that was killed, until they are old"
    for file in left:
        os.utime(file, (0, 0))
    with Server(large / "s") as server:
        build("cpu", 8, path=server.url, arrays=["a"], cache_dir=large / "cache").run()
        for _ in range(100):
            if not [f for f in left if f.exists()]:
                break
            time.sleep(0.05)
    assert not [f for f in left if f.exists()]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, values):
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES["chunks"])
    (tmp_path / "file").write_bytes(b"")
    with Server(tmp_path / "s") as server:
        for folder in (tmp_path / "file", tmp_path / "file/below", Path("/proc/none")):
            with pytest.raises(ValueError, match="cache_dir: expected a folder on a local disk"):
                build("cpu", 4, path=server.url, arrays=["a"], cache_dir=str(folder))


def test_a_folder_that_fails_later_only_costs_requests(tmp_path, values):
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES["chunks"])
    with Server(tmp_path / "s") as server:
        how = TIGHT | {"random_shuffle": False, "cache_dir": tmp_path / "cache"}
        pipe = build("cpu", 4, path=server.url, arrays=["a"], **how)
        base = tmp_path / "cache/dali-zarr-1"
        (tmp_path / "cache").rename(tmp_path / "away")
        (tmp_path / "cache").write_bytes(b"no folder")
        for number in range(24):
            same(to_numpy(pipe.run()[0]), values[number * 4 % 48 :][:4], f"batch {number}")
        counters = settled(pipe)
    assert not base.exists() and counters["cache_dir_errors"] > 0 and counters["cache_dir_dropped"] > 0


def test_explain_says_what_fits(tmp_path, values):
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES["chunks"])
    with Server(tmp_path / "s") as server:
        args = {"path": server.url, "arrays": ["a"], "batch_size": 4}
        assert dali_zarr.explain(**args)["cache"] is None
        e = dali_zarr.explain(**args, cache_size=MIB, cache_dir=tmp_path / "cache", cache_dir_size=2 * MIB)
        assert e["cache"]["epoch_bytes"] == values.nbytes
        assert (e["cache"]["memory"], e["cache"]["disk"]) == (MIB, 2 * MIB)
        assert e["cache"]["memory_ratio"] < 1 and e["cache"]["disk_ratio"] < 1
        assert "cache: 1.0 MiB in host memory; an epoch's chunks are 24.0 KiB decoded: they fit" in str(e)
        assert not (tmp_path / "cache").exists()
        free = os.statvfs(tmp_path)
        e = dali_zarr.explain(**args, cache_dir=tmp_path / "cache")
        assert e["cache"]["disk"] == pytest.approx(free.f_bavail * free.f_frsize / 2, rel=0.05)
        with pytest.raises(ValueError, match="cache_size: expected 0, or at least"):
            dali_zarr.explain(**args, cache_size=5)
