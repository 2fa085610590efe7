"""Stores on web servers that weren't written for these tests: their ranges, tags, connections and refusals.

nginx's tests are skipped where it isn't installed; aiohttp's always run.
"""

from __future__ import annotations

import os
import time
import zipfile
from collections import Counter
from urllib.parse import quote

import numpy as np
import pytest
import zarr
from support.pipelines import build, check, same, settled, to_numpy
from support.real_servers import KINDS, RealServer, why_not
from support.remote import asked_at_most
from support.stores import Layout, chunk_files, write_array

DIMS = ("time", "lat", "lon")
SHAPE = (24, 8, 16)
TIGHT = {"prefetch_queue_depth": 1, "dali_queue": 1}
STORES = {
    "v2": {"codec": "blosc-lz4-shuffle", "layout": Layout((1, 8, 16)), "zarr_format": 2},
    "v3": {"codec": "zstd", "layout": Layout((1, 8, 16))},
    "v3-none": {"codec": "none", "layout": Layout((5, 3, 7))},
    "v3-shards": {"codec": "zstd", "layout": Layout((1, 4, 8), shards=(12, 8, 16))},
    "v3-shards-index-first": {"codec": "none", "layout": Layout((1, 4, 8), shards=(12, 8, 16), index_location="start")},
}


@pytest.fixture(scope="module", params=KINDS)
def running(request, tmp_path_factory):
    """A server for all tests of this file, and the directory that it serves."""
    if reason := why_not(request.param):
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("served")
    with RealServer(request.param, root, tmp_path_factory.mktemp("server")) as server:
        yield server, root


@pytest.fixture
def place(running, request):
    """The server, a directory of the test's own, and its URL. The name isn't one that URLs have as it is."""
    server, root = running
    own = root / f"{len(list(root.iterdir()))} {request.node.originalname} 100% ä+b"
    own.mkdir()
    server.take_log()
    return server, own, f"{server.url}/{quote(own.name)}"


def of_chunks(log):
    """Those for chunks and shards."""
    return [r for r in log if "/a/" in r.path and not r.path.endswith(("zarr.json", ".zarray", ".zattrs", ".zgroup"))]


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("kind", STORES)
def test_values_are_those_of_zarr_python(place, device, values, kind, consolidated):
    server, root, url = place
    for name in ("a", "group/b"):
        write_array(root, name, values, dims=DIMS, **STORES[kind])
    if consolidated:
        zarr.consolidate_metadata(root, zarr_format=STORES[kind].get("zarr_format", 3))
    args = {"arrays": ["a", "group/b"], "dims": ["time"], "window": [2], "step": [1], "offsets": [0, 1]}
    check(device, epochs=2, path=url, local=root, **args)
    assert {r.method for r in server.take_log()} == {"GET"}


@pytest.mark.parametrize("kind", ["v2", "v3", "v3-shards"])
def test_what_the_server_does_not_have_is_the_fill_value(place, device, values, kind):
    server, root, url = place
    write_array(root, "a", values, dims=DIMS, fill_value=-7.5, **STORES[kind])
    missing = chunk_files(root, "a")[::2]
    for file in missing:
        file.unlink()
    since = time.monotonic()
    check(device, 4, epochs=2, path=url, local=root, arrays=["a"])
    log = server.take_log()
    assert {r.status for r in of_chunks(log)} == {404, 206 if kind == "v3-shards" else 200}
    asked = Counter(r.path.rpartition("/")[2] for r in log if r.method == "HEAD")
    assert set(asked) == {".zarray" if kind == "v2" else "zarr.json"} and asked.total() <= asked_at_most(since)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
@pytest.mark.parametrize("kind", ["smaller", "larger"])
def test_zip_archives(place, device, values, kind, compression):
    """Than what is read of its end first, which is 256 KiB."""
    server, root, url = place
    store = root / "store"
    how = STORES["v2"]
    if kind == "larger":
        values = np.random.default_rng(0).standard_normal((24, 64, 64)).astype("float32")
        how = {"codec": "zstd", "layout": Layout((1, 32, 64), shards=(12, 64, 64))}
    write_array(store, "a", values, dims=DIMS, **how)
    with zipfile.ZipFile(root / "x.zarr.zip", "w", compression) as archive:
        for file in sorted(f for f in store.rglob("*") if f.is_file()):
            archive.write(file, file.relative_to(store))
    check(device, 4, epochs=2, path=f"{url}/x.zarr.zip", local=store, arrays=["a"])
    log = server.take_log()
    assert {r.path for r in log} == {f"/{root.name}/x.zarr.zip"}
    assert {(r.method, r.status) for r in log} == {("GET", 206)}


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("kind", STORES)
def test_a_chunk_is_a_request_in_the_log(place, values, kind, shuffled):
    """A shard is one more for its index, though not for each chunk; nothing is asked for twice, and no length before a value."""
    server, root, url = place
    values = np.concatenate([values] * 4)
    layout = STORES[kind]["layout"]
    write_array(root, "a", values, dims=DIMS, **STORES[kind])
    order = {"random_shuffle": True, "initial_fill": 1000} if shuffled else {}
    # Without second requests for slow ones, which a busy machine takes its own delays for.
    once = {"storage_options": {"hedge": False}, "host_memory_limit": 64 << 20}
    pipe = build("cpu", 4, path=url, arrays=["a"], **once, **order)
    for _ in range(24):
        pipe.run()
    counters, log = settled(pipe), server.take_log()
    assert {r.method for r in log} == {"GET"} and {r.status for r in log} <= {200, 206, 404}
    documents = [r for r in log if r not in of_chunks(log)]
    assert Counter(r.path for r in documents).most_common(1)[0][1] == 1, "each document is asked for once"
    asked = of_chunks(log)
    assert len(asked) <= 1.05 * counters["chunks_read"], (len(asked), counters)
    assert len(log) == counters["requests"] and counters["requests_retried"] == 0
    if layout.shards:
        size = 16 * 12 * 2 * 2 + 4
        index = f"bytes=-{size}" if layout.index_location == "end" else f"bytes=0-{size - 1}"
        assert Counter(r.path for r in asked if r.range == index) == {
            f"/{root.name}/{f.relative_to(root)}": 1 for f in chunk_files(root, "a")
        }


@pytest.mark.parametrize("kind", ["v3", "v3-shards"])
def test_connections_are_kept(place, values, kind):
    server, root, url = place
    write_array(root, "a", np.concatenate([values] * 8), dims=DIMS, **STORES[kind])
    few = {"io_concurrency": 3, "storage_options": {"hedge": False}}
    pipe = build("cpu", 4, path=url, arrays=["a"], random_shuffle=True, initial_fill=1, **few, **TIGHT)
    for _ in range(48):
        pipe.run()
    settled(pipe)
    log = server.take_log()
    connections = Counter(r.connection for r in log if r.connection)
    assert len(log) > 100 and len(connections) <= 4, connections


def test_a_chunk_that_is_replaced_comes_anew(place, device, values):
    """Whole values have no version that they would have to have. A chunk may stay in memory for an epoch or more, but a new one is
    never followed by the old one, and all are new in the end."""
    _, root, url = place
    write_array(root, "a", values, dims=DIMS, **STORES["v3"])
    write_array(root / "new", "a", values + 1, dims=DIMS, **STORES["v3"])
    pipe = build(device, 1, path=url, arrays=["a"], **TIGHT)
    same(to_numpy(pipe.run()[0]), values[:1], "as it was")
    replace(root)
    new = [False] * 24
    for number in range(1, 24 * 50):
        at = number % 24
        (found,) = to_numpy(pipe.run()[0])
        if not new[at] and np.array_equal(found, values[at]):
            continue
        same(found, values[at] + 1, f"sample {at} in epoch {number // 24}")
        new[at] = True
        if all(new):
            break
    assert all(new)


def replace(root):
    """Puts the files of the array below ``new`` in the places of those of the old one."""
    for new in chunk_files(root / "new", "a"):
        make_later(new)
        new.replace(root / new.relative_to(root / "new"))


def make_later(file):
    """Dates a file so that its tag is another one: nginx makes tags of the length and whole seconds."""
    os.utime(file, (time.time() + 5,) * 2)


def test_a_shard_that_is_replaced_in_an_epoch_is_noticed(place, device, values):
    server, root, url = place
    store = {"codec": "none", "dims": DIMS, "layout": Layout((1, 8, 16), shards=(24, 8, 16))}
    write_array(root, "a", values, **store)
    write_array(root / "new", "a", values + 1, **store)
    pipe = build(device, 1, path=url, arrays=["a"], random_shuffle=True, initial_fill=1, **TIGHT)
    pipe.run()
    server.take_log()
    replace(root)
    with pytest.raises(RuntimeError, match="replaced since its index was read"):
        for _ in range(48):
            pipe.run()
    # The server compared the tags: nothing of the new one was sent.
    assert 412 in {r.status for r in server.take_log()}
    # Another reader reads it.
    check(device, 1, path=url, local=root, arrays=["a"])


def test_an_archive_that_is_replaced_in_an_epoch_is_noticed(place, values):
    _, root, url = place
    for name, what in (("x", values), ("y", values + 1)):
        write_array(root / name, "a", what, dims=DIMS, **STORES["v3-none"])
        with zipfile.ZipFile(root / f"{name}.zip", "w") as archive:
            for file in sorted(f for f in (root / name).rglob("*") if f.is_file()):
                archive.write(file, file.relative_to(root / name))
    pipe = build("cpu", 1, path=f"{url}/x.zip", arrays=["a"], **TIGHT)
    pipe.run()
    make_later(root / "y.zip")
    (root / "y.zip").replace(root / "x.zip")
    with pytest.raises(RuntimeError, match="x.zip.*replaced"):
        for _ in range(48):
            pipe.run()


# ---- the cache on disk, and whether it is still so ----


def cached(url, folder, expected, **args):
    """An epoch and a half with a cache on disk; the counters."""
    pipe = build("cpu", 4, path=url, arrays=["a"], cache_dir=folder, return_index=True, **TIGHT | args)
    for number in range(9):
        out, index = (to_numpy(o) for o in pipe.run())
        same(out, expected[index[:, 0]], f"batch {number}")
    return settled(pipe)


@pytest.mark.parametrize("kind", ["v2", "v3", "v3-shards"])
def test_what_the_disk_holds_is_checked_by_tags(place, tmp_path, values, kind):
    server, root, url = place
    write_array(root, "a", values, dims=DIMS, **STORES[kind])
    objects = len(chunk_files(root, "a"))
    cached(url, tmp_path, values)
    server.take_log()
    again = cached(url, tmp_path, values)
    asked = of_chunks(server.take_log())
    assert {(r.method, r.status) for r in asked} == {("HEAD", 200)} and len(asked) == len({r.path for r in asked}) == objects
    assert again["bytes_read"] == 0 and again["cache_dir_misses"] == 0 and again["cache_dir_checks"] == objects

    # One of them is replaced by one of the same length, another one touched: its bytes are the same, its tag isn't.
    replaced, touched = chunk_files(root, "a")[:2]
    array = zarr.open(root, mode="r+")["a"]
    first = slice(0, (array.shards or array.chunks)[0])
    array[first] = values[first] + 1
    expected = values.copy()
    expected[first] += 1
    make_later(replaced)
    make_later(touched)
    cached(url, tmp_path, expected)
    gets = {r.path for r in of_chunks(server.take_log()) if r.method == "GET"}
    assert gets == {f"/{root.name}/{f.relative_to(root)}" for f in (replaced, touched)}
    cached(url, tmp_path, expected)
    assert {r.method for r in of_chunks(server.take_log())} == {"HEAD"}, "kept anew"

    cached(url, tmp_path, expected, cache_validate=False)
    assert of_chunks(server.take_log()) == []


def test_a_second_epoch_from_memory_sends_nothing(place, device, values):
    server, root, url = place
    write_array(root, "a", values, dims=DIMS, **STORES["v3"])
    pipe = build(device, 4, path=url, arrays=["a"], cache_size=16 << 20, **TIGHT)
    for number in range(18):
        same(to_numpy(pipe.run()[0]), values[number * 4 % 24 :][:4], f"batch {number}")
    settled(pipe)
    assert sorted(Counter(r.path for r in of_chunks(server.take_log())).values()) == [1] * 24


# ---- what is told when something is wrong ----


def test_a_missing_store_is_told(place, values):
    server, root, url = place
    with pytest.raises(ValueError, match="found none of zarr.json, .zmetadata") as caught:
        build("cpu", 1, path=f"{url}/nothing/here", arrays=["a"])
    assert "nothing/here" in str(caught.value)
    write_array(root, "a", values, dims=DIMS, **STORES["v3"])
    with pytest.raises(ValueError, match="expected an array 'b', but found none of that name"):
        build("cpu", 1, path=url, arrays=["b"])
    with pytest.raises(ValueError, match="can't be listed; give arrays"):
        build("cpu", 1, path=url)
    with pytest.raises(ValueError, match="expected a zip archive, but found nothing; check the URL"):
        build("cpu", 1, path=f"{url}/no.zip", arrays=["a"])
    assert {r.status for r in server.take_log()} <= {200, 404}


def test_a_shard_that_is_cut_is_an_error(place, values):
    """Its index lies beyond its end, or what the index says does."""
    _, root, url = place
    for name, cut in (("a", 5), ("b", 3000)):
        write_array(root, name, values, dims=DIMS, **STORES["v3-shards-index-first"])
        file = chunk_files(root, name)[0]
        os.truncate(file, cut)
        pipe = build("cpu", 1, path=url, arrays=[name], storage_options={"max_retries": 1}, **TIGHT)
        with pytest.raises(RuntimeError, match=rf"'{name}', chunk {name}/c/0/0/0"):
            for _ in range(24):
                pipe.run()
