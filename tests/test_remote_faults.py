"""Stores on servers, and disks under their caches, that fail: right values or the right error, and nothing left behind."""

from __future__ import annotations

import json
import os
import random
import shutil

import numpy as np
import pytest
import zarr
from support.memory import growth
from support.pipelines import build, run_script, settled
from support.remote import DIMS, HASTY, STORES, compare, drain
from support.server import BODY, CLOSE, HEADERS, STALL, Server
from support.stores import Layout, chunk_files, write_array


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


@pytest.mark.parametrize("gone", ["store", "array"])
@pytest.mark.parametrize("consolidated", [True, False])
def test_what_is_deleted_is_not_fill_values(tmp_path, values, gone, consolidated):
    write_array(tmp_path / "s", "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    if consolidated:
        zarr.consolidate_metadata(tmp_path / "s")
    with Server(tmp_path) as server:
        pipe = build("cpu", 1, path=f"{server.url}/s", arrays=["a"], dali_queue=1, prefetch_queue_depth=1)
        pipe.run()
        # A chunk that is looked for after it was deleted, but before the metadata were, says that there are metadata for a while.
        settled(pipe)
        shutil.rmtree(tmp_path / "s" if gone == "store" else tmp_path / "s/a")
        with pytest.raises(RuntimeError, match="both are gone"):
            for _ in range(24):
                pipe.run()


@pytest.mark.parametrize("kind", ["v2", "v3-shards"])
def test_a_status_may_stand_for_missing_keys(tmp_path, device, values, kind):
    """Of metadata and of chunks, where the user says so."""
    root = tmp_path / "s"
    write_array(root, "a", values, dims=DIMS, **STORES[kind])
    for file in chunk_files(root, "a")[::3]:
        file.unlink()
    with Server(root, fault=lambda _n, _m, path: None if os.path.isfile(f"{root}{path}") else 403) as server:
        with pytest.raises((ValueError, RuntimeError), match="see the option missing_status"):
            drain(server.url, 24, arrays=["a"])
        for status in (403, [410, 403], "403,410"):
            compare(device, root, server.url, storage_options={"missing_status": status})
        for status in (410, True, "403;", 500):
            with pytest.raises((ValueError, RuntimeError), match="missing_status"):
                drain(server.url, 24, arrays=["a"], storage_options={"missing_status": status})


@pytest.mark.parametrize("what", [BODY, HEADERS])
@pytest.mark.parametrize("status", [403, 500, 200])
def test_answers_without_end_take_little_memory(tmp_path, values, status, what):
    write_array(tmp_path, "a", values, dims=DIMS, codec="none", layout=Layout((1, 8, 16)))
    how = {"arrays": ["a"], "host_memory_limit": "64MiB", "storage_options": {"max_retries": 1, "timeout": "2s"}}
    with Server(tmp_path) as server:
        # What is made once doesn't count.
        drain(server.url, 2, **how)
    for place in ("/zarr.json", "/c/5/"):
        with Server(tmp_path, fault=lambda _n, _m, path, place=place: (status, what) if place in path else None) as server:

            def failing(server=server):
                with pytest.raises((ValueError, RuntimeError), match=f"store {server.url}"):
                    drain(server.url, 12, **how)

            assert growth(failing) < 48 << 20


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


FULL_DISK = '''
import ctypes, json, os, sys

url, folder, values, fill, limit, disk = sys.argv[1:]

def mount_disk():
    # Only this process sees it. No thread may run yet.
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, line in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
    if libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, disk.encode()):
        raise OSError(ctypes.get_errno(), "mount")

try:
    mount_disk()
except OSError as error:
    print(json.dumps({"no disk": str(error)}))
    sys.exit()

import numpy as np
from support.pipelines import build, same, settled, to_numpy

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
print(json.dumps(settled(pipe)))
'''


@pytest.mark.parametrize("limit", ["", str(1 << 24)], ids=["default", "limit"])
@pytest.mark.parametrize("fill", ["fill", "later", "no folder"])
def test_a_full_disk_under_the_cache_costs_nothing_but_requests(tmp_path, values, fill, limit):
    """Whether it is full when the pipeline is built, or while it runs."""
    write_array(tmp_path / "s", "a", values, dims=DIMS, codec="none", layout=Layout((1, 8, 16)))
    np.save(tmp_path / "values.npy", values)
    (tmp_path / "cache").mkdir()
    with Server(tmp_path / "s") as server:
        # Its one entry is the root.
        disk = "size=64k,nr_inodes=1" if fill == "no folder" else "size=64k"
        out = run_script(FULL_DISK, server.url, str(tmp_path / "cache"), str(tmp_path / "values.npy"), fill, limit, disk)
    counters = json.loads(out.splitlines()[-1])
    if "no disk" in counters:
        pytest.skip(f"no file system can be mounted here: {counters['no disk']}")
    assert (counters["cache_dir_writes"] == 0) == (fill != "later"), counters
    assert counters["cache_dir_writes"] < 24 and counters["reads"] > 24, counters
    # Without a limit of its own, the cache leaves some of the disk free.
    if limit:
        assert counters["cache_dir_errors"] + counters["cache_dir_dropped"] > 0, counters


SOAK = """
import gc, os, random, sys, threading, time
from pathlib import Path
import numpy as np
from support.pipelines import build
from support.server import BODY, CLOSE, HEADERS, STALL, Server

root, rounds = Path(sys.argv[1]), int(sys.argv[2])

def name(task):
    try:
        return Path(task, "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""

def threads_end():
    gc.collect()
    # The kernel lists a thread for a moment longer than it takes to join it.
    for _ in range(200):
        if not any(name(task).startswith("dali-zarr") for task in Path("/proc/self/task").iterdir()):
            return True
        time.sleep(0.05)
    return False

# Connections of the server's own side end when it hears of it.
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
        assert threads_end(), f"round {number}: threads are left"
    assert right and failed, (right, failed)
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
