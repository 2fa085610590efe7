"""Stores behind HTTP and S3: the values of local ones, by as few requests as the plan allows, whatever servers do."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from urllib.parse import quote

import numpy as np
import pytest
import zarr
from support.oracle import Oracle
from support.pipelines import build, run_script, same, to_numpy
from support.server import CLOSE, STALL, Server
from support.stores import Layout, chunk_files, write_array

DIMS = ("time", "lat", "lon")
SHAPE = (24, 8, 16)
# Requests that fail are repeated at once, and for not long.
HASTY = {"timeout": "500ms", "retry_timeout": "20s"}


@pytest.fixture
def values():
    return np.random.default_rng(0).standard_normal(SHAPE).astype("float32")


def compare(device, local, url, batch_size=2, epochs=1.0, name_arrays=True, **args):
    """Asserts that a remote store gives what the local one holds."""
    how = {k: args.pop(k) for k in ("storage_options", "io_concurrency", "cache_dir") if k in args}
    args = {"arrays": ["a"]} | args
    oracle = Oracle(batch_size, path=local, **args)
    expected = oracle.batches()
    if not name_arrays:
        del args["arrays"]
    pipe = build(device, batch_size, path=url, **how, **args)
    for number in range(max(1, int(np.ceil(oracle.epoch_length(0) * epochs / batch_size)))):
        for i, (out, want) in enumerate(zip(pipe.run(), next(expected), strict=True)):
            same(to_numpy(out), want, f"batch {number}, output {i}")


def drain(url, batches, **args):
    """Reads so many batches and closes the reader."""
    pipe = build("cpu", 2, path=url, dali_queue=1, prefetch_queue_depth=1, **args)
    for _ in range(batches):
        pipe.run()


STORES = {
    "v3": {"codec": "zstd", "layout": Layout((1, 8, 16))},
    "v3-none": {"codec": "none", "layout": Layout((5, 3, 7))},
    "v3-shards": {"codec": "zstd", "layout": Layout((1, 4, 16), shards=(6, 8, 16))},
    "v2": {"codec": "zstd", "layout": Layout((1, 8, 16)), "zarr_format": 2},
}


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("kind", STORES)
def test_http_gives_what_the_files_hold(tmp_path, device, values, kind, consolidated):
    root = tmp_path / "a store"
    for name in ("a", "group/b"):
        write_array(root, name, values, dims=DIMS, **STORES[kind])
    if consolidated:
        zarr.consolidate_metadata(root)
    with Server(tmp_path) as server:
        args = {"arrays": ["a", "group/b"], "dims": ["time"], "window": [2], "step": [1], "offsets": [0, 1]}
        compare(device, root, f"{server.url}/a%20store", epochs=2, **args)


# ---- which requests ----


def expect(counts, expected):
    assert dict(counts) == {("GET", path): 1 for path in expected}


@pytest.mark.parametrize(
    ("zarr_format", "consolidated", "requests"),
    [
        (3, True, ["/zarr.json"]),
        (3, False, ["/zarr.json", "/a/zarr.json", "/b/zarr.json", "/c/zarr.json"]),
        (2, True, ["/zarr.json", "/.zmetadata"]),
        (2, False, ["/zarr.json", "/.zmetadata", "/.zarray", "/.zgroup"]
         + [f"/{a}/{f}" for a in "abc" for f in (".zarray", ".zattrs")]),
    ],
)
def test_metadata_requests(tmp_path, values, zarr_format, consolidated, requests):
    """Consolidated metadata are one request (two in version 2, whose other name is tried first); else one for each document."""
    for name in "abc":
        write_array(tmp_path, name, values, dims=DIMS, codec="zstd", layout=Layout(SHAPE), zarr_format=zarr_format)
    if consolidated:
        zarr.consolidate_metadata(tmp_path)
    with Server(tmp_path) as server:
        pipe = build("cpu", 24, path=server.url, arrays=["a", "b", "c"], dali_queue=1)
        pipe.run()
        chunks = ["/" + str(chunk_files(tmp_path, name)[0].relative_to(tmp_path)) for name in "abc"]
        counts = server.counts()
    # The reader goes on with the next epoch, for which chunks are read again if they were dropped before it was planned.
    assert all(counts.pop(("GET", chunk)) >= 1 for chunk in chunks)
    expect(counts, requests)


def test_documents_of_many_arrays_are_read_together(tmp_path, values):
    names = [f"a{i}" for i in range(20)]
    for name in names:
        write_array(tmp_path, name, values, dims=DIMS, codec="zstd", layout=Layout(SHAPE))
    with Server(tmp_path, latency=0.1) as server:
        start = time.monotonic()
        build("cpu", 2, path=server.url, arrays=names)
        assert time.monotonic() - start < 1.5, "twenty-one requests of 0.1 s, one after the other, take 2.1 s"


def test_each_chunk_is_one_request(tmp_path, values):
    write_array(tmp_path, "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    zarr.consolidate_metadata(tmp_path)
    with Server(tmp_path) as server:
        drain(server.url, 12, arrays=["a"], dims=["time"], window=[3], step=[1], roi_end=[20])
        counts = server.counts()
    assert all(method == "GET" for method, _ in counts)
    chunks = {path: n for (_, path), n in counts.items() if path != "/zarr.json"}
    assert set(chunks) == {f"/a/c/{t}/0/0" for t in range(20)}
    # The window goes around into the next epoch.
    assert max(chunks.values()) <= 2 and sum(chunks.values()) <= 20 + 20, chunks


def test_a_shard_is_one_index_and_merged_ranges(tmp_path, values):
    """All inner chunks of a shard that are needed at a time are one range; the index is read once, by its suffix."""
    write_array(tmp_path, "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 4, 8), shards=(12, 8, 16)))
    zarr.consolidate_metadata(tmp_path)
    with Server(tmp_path) as server:
        drain(server.url, 2, arrays=["a"], dims=["time"], window=[12])
        log = server.take_log()
    for shard in ("/a/c/0/0/0", "/a/c/1/0/0"):
        ranges = [r for _, path, r in log if path == shard]
        # 48 inner chunks of 16 + 16 bytes in the index, and its checksum.
        assert ranges.count(f"bytes=-{48 * 16 + 4}") == 1, ranges
        assert 1 <= len(ranges) - 1 <= 4, ranges  # again for the next epoch, perhaps in two
    assert [path for _, path, _ in log].count("/zarr.json") == 1


def test_far_ranges_of_a_shard_stay_apart(tmp_path):
    """What lies between two inner chunks isn't read where that costs more than a request."""
    values = np.random.default_rng(0).integers(0, 256, (4, 4 << 20), dtype="uint8")
    write_array(tmp_path, "a", values, dims=("time", "x"), codec="none", layout=Layout((1, 1 << 20), shards=(4, 4 << 20)))
    with Server(tmp_path) as server:
        compare("cpu", tmp_path, server.url, 1, arrays=["a"], dims=["x"], window=[1 << 20], roi_end=[1 << 20])
        ranges = [r for _, path, r in server.take_log() if "/c/" in path and not r.startswith("bytes=-")]
    read = sorted((int(a), int(b) + 1) for a, b in (r.removeprefix("bytes=").split("-") for r in ranges))
    index = np.frombuffer(chunk_files(tmp_path, "a")[0].read_bytes()[-16 * 16 - 4 : -4], "<u8").reshape(4, 4, 2)
    expected: list[tuple[int, int]] = []
    for offset, size in sorted((int(o), int(n)) for o, n in index[:, 0]):
        if expected and expected[-1][1] == offset:
            expected[-1] = (expected[-1][0], offset + size)
        else:
            expected.append((offset, offset + size))
    assert sorted(set(read)) == expected, "inner chunks with a megabyte between them are read one by one, neighbours together"
    assert len(expected) > 1


def test_missing_chunks_are_fill_values_and_ask_once_after_the_array(tmp_path, values):
    write_array(tmp_path, "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    for file in chunk_files(tmp_path, "a")[::2]:
        file.unlink()
    with Server(tmp_path) as server:
        compare("cpu", tmp_path, server.url, 4, arrays=["a"])
        counts = server.counts()
    # Once in 10 s; the machine may be slow.
    assert {path for method, path in counts if method == "HEAD"} == {"/a/zarr.json"}
    assert counts["HEAD", "/a/zarr.json"] <= 3


@pytest.mark.parametrize("status", [403, 405, 501])
def test_servers_that_refuse_head(tmp_path, values, status):
    """Arrays with missing chunks are read from them, and what a disk keeps is checked: by a byte."""
    write_array(tmp_path / "s", "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    for file in chunk_files(tmp_path / "s", "a")[::2]:
        file.unlink()
    with Server(tmp_path / "s", fault=lambda _number, method, _path: status if method == "HEAD" else None) as server:
        for first in (True, False):
            compare("cpu", tmp_path / "s", server.url, 4, arrays=["a"], cache_dir=str(tmp_path / "cache"))
            time.sleep(0.5)  # writing is done behind
            log = server.take_log()
            assert 1 <= sum(method == "HEAD" for method, _, _ in log) <= 16, "tasks may find out at the same time, but once"
            chunks = {range_ for method, path, range_ in log if method == "GET" and path in present(tmp_path / "s")}
            assert chunks == ({""} if first else {"bytes=0-0"})
            assert ("GET", "/a/zarr.json", "bytes=0-0") in log


FULL_DISK = '''
import json, sys, time
from pathlib import Path
import dali_zarr, numpy as np
from support.pipelines import build, same, to_numpy

url, folder, values, fill, limit = sys.argv[1:]
values = np.load(values)
if fill == "fill":
    with open(f"{folder}/other", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError as error:
            assert error.errno == 28, error
limits = {"cache_dir_size": int(limit)} if limit else {}
pipe = build("cpu", 2, path=url, arrays=["a"], dali_queue=1, prefetch_queue_depth=1, cache_dir=folder, **limits)
for i in range(36):
    at = 2 * (i % 12)
    same(to_numpy(pipe.run()[0]), values[at : at + 2], f"batch {i}")
counters = {}
for _ in range(100):
    before, counters = counters, dali_zarr.stats(pipe)["reader"]
    if before == counters:
        break
    time.sleep(0.05)
print(json.dumps(counters))
'''


def on_small_disk(size, folder, *argv):
    """Runs a script that sees a disk of this size at ``folder``."""
    mount = 'mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", str(size), str(folder)]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    return run_script("import os, sys; os.execvp(sys.argv[1], sys.argv[1:])", *command, sys.executable, *argv)


@pytest.mark.parametrize("limit", ["", str(1 << 24)], ids=["default", "limit"])
@pytest.mark.parametrize("fill", ["fill", "later", "no folder"])
def test_a_full_disk_under_the_cache_costs_nothing_but_requests(tmp_path, values, fill, limit):
    """Whether it is full when the pipeline is built, or while it runs."""
    write_array(tmp_path / "s", "a", values, dims=DIMS, codec="none", layout=Layout((1, 8, 16)))
    np.save(tmp_path / "values.npy", values)
    (tmp_path / "cache").mkdir()
    with Server(tmp_path / "s") as server:
        argv = [server.url, str(tmp_path / "cache"), str(tmp_path / "values.npy"), fill, limit]
        # Its one entry is the root.
        size = "64k,nr_inodes=1" if fill == "no folder" else "64k"
        out = on_small_disk(size, tmp_path / "cache", "-c", FULL_DISK, *argv)
    counters = json.loads(out.splitlines()[-1])
    assert (counters["cache_dir_writes"] == 0) == (fill != "later"), counters
    assert counters["cache_dir_writes"] < 24 and counters["reads"] > 24, counters
    # Without a limit of its own, the cache leaves some of the disk free.
    if limit:
        assert counters["cache_dir_errors"] + counters["cache_dir_dropped"] > 0, counters


def present(store):
    return {f"/{file.relative_to(store)}" for file in chunk_files(store, "a")}


def test_many_requests_are_under_way_at_a_time(tmp_path, values):
    big = np.repeat(values, 8, axis=0)
    write_array(tmp_path, "a", big, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    for limit in (5, 100):
        with Server(tmp_path, latency=0.2) as server:
            build("cpu", 192, path=server.url, arrays=["a"], io_concurrency=limit).run()
            assert limit * 0.8 <= server.most_in_flight <= limit


@pytest.mark.parametrize("codec", ["zstd", "bz2"])
def test_a_batch_does_not_wait_for_what_a_later_one_needs(tmp_path, device, values, codec):
    """Also not where the GPU, or the CPU for it, decodes chunks together."""
    write_array(tmp_path, "a", values, dims=DIMS, codec=codec, zarr_format=2, layout=Layout((1, 8, 16)))
    with Server(tmp_path, fault=lambda _number, _method, path: 6.0 if path.endswith("/9.0.0") else None) as server:
        pipe = build(device, 2, path=server.url, arrays=["a"], dali_queue=1)
        start = time.monotonic()
        for i in range(4):
            same(to_numpy(pipe.run()[0]), values[2 * i : 2 * i + 2], f"batch {i}")
        assert time.monotonic() - start < 5
        same(to_numpy(pipe.run()[0]), values[8:10], "batch 4")


# ---- faults ----


def test_faults_that_pass(tmp_path, device, values):
    """Errors of the server, cut connections and stalled bodies cost time, not values."""
    write_array(tmp_path, "a", values, dims=DIMS, codec="none", layout=Layout((1, 8, 16)))
    write_array(tmp_path, "b", values, dims=DIMS, codec="zstd", layout=Layout((1, 4, 16), shards=(6, 8, 16)))
    dice = random.Random(0)
    faults = [503, 500, 429, (100, CLOSE), (0, CLOSE), (7, STALL), 0.02, None, None, None, None, None]
    with Server(tmp_path, fault=lambda *_: dice.choice(faults)) as server:
        args = {"arrays": ["a", "b"], "dims": ["time"], "window": [2], "step": [1]}
        compare(device, tmp_path, server.url, 4, storage_options=HASTY | {"hedge": False}, **args)


@pytest.mark.parametrize("status", [403, 401, 400, 405])
def test_refusals_are_errors_at_once(tmp_path, values, status):
    write_array(tmp_path, "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    with Server(tmp_path, fault=lambda _n, _m, path: status if "/c/5/" in path else None) as server:
        with pytest.raises(RuntimeError) as caught:
            drain(server.url, 12, arrays=["a"])
        for word in ("zarr_reader", "'a'", "a/c/5/0/0", str(status), server.url):
            assert word in str(caught.value), caught.value
        assert sum(n for (_, path), n in server.counts().items() if "/c/5/" in path) == 1


def test_the_last_failure_is_an_error_that_tells_of_all(tmp_path, values):
    write_array(tmp_path, "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    with Server(tmp_path, fault=lambda _n, _m, path: 503 if "/c/3/" in path else None) as server:
        with pytest.raises(RuntimeError, match=r"3 tries failed within .* the last answer: .*503"):
            drain(server.url, 12, arrays=["a"], storage_options={"max_retries": 2})


def test_a_store_that_is_deleted_is_not_fill_values(tmp_path, values):
    write_array(tmp_path / "s", "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    with Server(tmp_path) as server:
        pipe = build("cpu", 1, path=f"{server.url}/s", arrays=["a"], dali_queue=1, prefetch_queue_depth=1)
        pipe.run()
        shutil.rmtree(tmp_path / "s")
        with pytest.raises(RuntimeError, match="both are gone"):
            for _ in range(24):
                pipe.run()


def test_a_shard_that_is_replaced_is_an_error_or_read_anew_but_never_mixed(tmp_path, values):
    store = {"codec": "none", "dims": DIMS, "layout": Layout((1, 8, 16), shards=(24, 8, 16))}
    write_array(tmp_path, "a", values, **store)
    write_array(tmp_path / "new", "a", values + 1, **store)
    with Server(tmp_path) as server:
        pipe = build("cpu", 1, path=server.url, arrays=["a"], dali_queue=1, prefetch_queue_depth=1)
        pipe.run()
        chunk_files(tmp_path / "new", "a")[0].replace(chunk_files(tmp_path, "a")[0])
        with pytest.raises(RuntimeError, match="replaced since its index was read"):
            for _ in range(48):
                pipe.run()


def test_a_wrong_url_is_told_soon(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/store"
        start = time.monotonic()
        with pytest.raises(ValueError, match=re.escape(url)):
            build("cpu", 1, path=url, arrays=["a"])
        assert time.monotonic() - start < 20
    with Server(tmp_path) as server, pytest.raises(ValueError, match=r"found none of zarr.json, .zmetadata"):
        build("cpu", 1, path=server.url, arrays=["a"])


def test_arrays_must_be_named_where_nothing_can_be_listed(tmp_path, values):
    write_array(tmp_path, "a", values, dims=DIMS, codec="zstd", layout=Layout(SHAPE))
    with Server(tmp_path) as server:
        with pytest.raises(ValueError, match="can't be listed; give arrays"):
            build("cpu", 1, path=server.url)
        with pytest.raises(ValueError, match="expected an array 'b', but found none of that name"):
            build("cpu", 1, path=server.url, arrays=["b"])
        zarr.consolidate_metadata(tmp_path)
        compare("cpu", tmp_path, server.url, name_arrays=False)


def test_labels_are_looked_up_in_remote_stores(tmp_path, values):
    write_array(tmp_path, "a", values, dims=DIMS, codec="zstd", layout=Layout(SHAPE))
    write_array(tmp_path, "lat", np.arange(8, dtype="float64") / 10, dims=("lat",), codec="none", layout=Layout((8,)))
    with Server(tmp_path) as server:
        pick = {"path": server.url, "arrays": ["a"], "pick": {"lat": [0.3]}, "storage_options": {"user_agent": "me"}}
        same(to_numpy(build("cpu", 1, **pick).run()[0]), values[:1, 3:4], "the picked latitude")


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        ("s3://bucket/x", {"aws_secret_access_key": "hunter2"}, "aws_secret_access_key is a secret"),
        ("az://bucket/x", {"azure_storage_sas_token": "hunter2"}, "is a secret"),
        ("http://127.0.0.1:1/x", {"nonsense": "1"}, "nonsense isn't an option of HTTP stores"),
        ("http://me:hunter2@127.0.0.1:1/x", {}, "without user and password"),
        ("ftp://127.0.0.1/x", {}, 'the scheme "ftp"'),
        ("s3://bucket/x", {"timeout": "soon"}, "timeout: expected a time"),
    ],
)
def test_wrong_options(path, options, words):
    with pytest.raises(ValueError) as caught:
        build("cpu", 1, path=path, arrays=["a"], storage_options=options)
    assert words in str(caught.value) and "hunter2" not in str(caught.value)


SOAK = """
import gc, os, random, sys, threading
from pathlib import Path
import numpy as np
from support.pipelines import build
from support.server import CLOSE, STALL, Server

root, rounds = Path(sys.argv[1]), int(sys.argv[2])

def count():
    gc.collect()
    threads = [Path(t, "comm").read_text().strip() for t in Path("/proc/self/task").iterdir()]
    # Connections of the server's own side end when it hears of it.
    return sum(t.startswith("dali-zarr") for t in threads)

def sockets():
    return sum(os.path.exists(f"/proc/self/fd/{f}") and "socket" in os.readlink(f"/proc/self/fd/{f}")
               for f in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{f}"))

dice = random.Random(1)
expected = np.load(root / "values.npy")
right = failed = 0
faults = [503, (100, CLOSE), (50, STALL), 0.05, 403, *[None] * 40]
with Server(root, fault=lambda *_: dice.choice(faults)) as server:
    options = {"timeout": "300ms", "retry_timeout": "2s", "max_retries": 3}
    for number in range(rounds):
        try:
            pipe = build("cpu", 4, path=server.url, arrays=["a", "b"], storage_options=options, return_index=True)
        except ValueError as error:
            assert "127.0.0.1" in str(error), error
            failed += 1
            continue
        for _ in range(dice.randrange(5)):
            try:
                a, b, index = (np.asarray(o.as_tensor()) for o in pipe.run())
            except RuntimeError as error:
                assert "127.0.0.1" in str(error), error
                failed += 1
                break
            want = expected[index[:, 0]]
            assert (a == want).all() and (b == want).all(), number
            right += 1
        del pipe
        assert count() == 0, f"round {number}: threads are left"
    assert right > rounds / 2 and failed > 0, (right, failed)
import time
for _ in range(100):
    if sockets() <= 1:
        break
    time.sleep(0.1)
assert sockets() <= 1, sockets()
print(right, failed)
"""


@pytest.mark.timeout_s(170)
def test_nothing_is_left_behind(tmp_path, values):
    """Readers that are closed while requests hang, fail or wait: no thread and no connection stays."""
    write_array(tmp_path, "a", values, dims=DIMS, codec="none", layout=Layout((1, 8, 16)))
    write_array(tmp_path, "b", values, dims=DIMS, codec="zstd", layout=Layout((1, 4, 16), shards=(6, 8, 16)))
    np.save(tmp_path / "values.npy", values)
    print(run_script(SOAK, str(tmp_path), os.environ.get("DALI_ZARR_SOAK_ROUNDS", "40"), timeout=160))


# ---- S3 ----


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """moto's S3, in a process of its own, with one bucket; gives its URL."""
    pytest.importorskip("moto.server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path_factory.mktemp("moto") / "log").open("w")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                put(f"{url}/bucket")
                break
            except OSError:
                assert process.poll() is None, "moto's server ended"
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def put(url, data=b""):
    headers = {"Content-Type": "application/octet-stream"}
    urllib.request.urlopen(urllib.request.Request(url, data=data, method="PUT", headers=headers), timeout=30).close()


def upload(url, root, prefix):
    for file in root.rglob("*"):
        if file.is_file():
            put(f"{url}/bucket/{prefix}/{quote(str(file.relative_to(root)))}", file.read_bytes())


@pytest.fixture
def s3_options(s3, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    return {"aws_endpoint": s3, "aws_region": "us-east-1", "aws_allow_http": True}


@pytest.mark.parametrize("kind", STORES)
def test_s3_gives_what_the_files_hold(tmp_path, device, values, s3, s3_options, kind):
    write_array(tmp_path, "a", values, dims=DIMS, **STORES[kind])
    prefix = f"{kind}-{device}/deep/store"
    upload(s3, tmp_path, prefix)
    compare(device, tmp_path, f"s3://bucket/{prefix}", arrays=["a"], storage_options=s3_options)
    # Here listing is possible: the only array needs no name.
    compare(device, tmp_path, f"s3://bucket/{prefix}/", storage_options=s3_options, name_arrays=False)


def test_s3_missing_chunks_and_stores(tmp_path, values, s3, s3_options):
    write_array(tmp_path, "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    for file in chunk_files(tmp_path, "a")[::3]:
        file.unlink()
    upload(s3, tmp_path, "missing")
    compare("cpu", tmp_path, "s3://bucket/missing", arrays=["a"], storage_options=s3_options)
    with pytest.raises(ValueError, match="expected a Zarr group or array"):
        build("cpu", 1, path="s3://bucket/nothing", arrays=["a"], storage_options=s3_options)
    with pytest.raises(ValueError, match="expected an array 'b', but found only the array 'a'"):
        build("cpu", 1, path="s3://bucket/missing", arrays=["b"], storage_options=s3_options)


def test_a_profile_gives_credentials(tmp_path, values, s3, monkeypatch):
    write_array(tmp_path / "store", "a", values, dims=DIMS, codec="zstd", layout=Layout(SHAPE))
    upload(s3, tmp_path / "store", "profile")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    credentials = tmp_path / "credentials"
    credentials.write_text("[lab]\naws_access_key_id = testing\naws_secret_access_key = testing\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    options = {"aws_endpoint": s3, "aws_region": "us-east-1", "aws_allow_http": "true"}
    compare("cpu", tmp_path / "store", "s3://bucket/profile", arrays=["a"], storage_options=options)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ValueError, match="AWS_PROFILE: expected a profile \"nobody\""):
        build("cpu", 1, path="s3://bucket/profile", arrays=["a"], storage_options=options)


# ---- Google and Azure: their URLs and ranges, by a server that speaks as they do ----


def test_google_and_azure(tmp_path, values):
    """Azure gives no suffixes: the length of a shard is asked for, and only there."""
    write_array(tmp_path / "bucket/s", "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 4, 16), shards=(6, 8, 16)))
    with Server(tmp_path) as server:
        google = {"google_base_url": server.url, "google_skip_signature": True, "allow_http": True}
        compare("cpu", tmp_path / "bucket/s", "gs://bucket/s", arrays=["a"], storage_options=google)
        assert all(method == "GET" for method, _ in server.counts())
        azure = {"azure_endpoint": server.url, "azure_skip_signature": True, "azure_allow_http": True}
        azure["azure_storage_account_name"] = "account"
        compare("cpu", tmp_path / "bucket/s", "az://bucket/s", arrays=["a"], storage_options=azure)
        counts = server.counts()
        assert {path for method, path in counts if method == "HEAD"} == {f"/bucket/s/a/c/{i}/0/0" for i in range(4)}


def test_counters_tell_of_requests(tmp_path, values):
    write_array(tmp_path / "s", "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    file = tmp_path / "stats.json"
    script = (
        "import sys\nfrom support.pipelines import build\n"
        "pipe = build('cpu', 24, path=sys.argv[1], arrays=['a'])\npipe.run()\ndel pipe\n"
    )
    with Server(tmp_path, fault=lambda n, *_: 503 if n % 9 == 0 else None) as server:
        run_script(script, f"{server.url}/s", env={"DALI_ZARR_STATS_FILE": str(file)})
        stats, log = json.loads(file.read_text()), server.take_log()
    # Of what was under way when the reader was closed only one side may know.
    assert abs(stats["requests"] - len(log)) <= 2 and abs(stats["requests_retried"] - len(log) // 9) <= 1
    assert stats["requests_bytes"] >= stats["bytes_read"] >= stats["chunks_read"] > 0
