"""What tests of stores on servers share: arrays, comparisons with the files behind a server, and an S3 server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import numpy as np

from .oracle import Oracle
from .pipelines import build, same, settled, to_numpy
from .stores import Layout, chunk_files

DIMS = ("time", "lat", "lon")
SHAPE = (24, 8, 16)
# A request that isn't answered within 500 ms is repeated, for at most 90 s.
HASTY = {"timeout": "500ms", "retry_timeout": "90s"}
STORES = {
    "v3": {"codec": "zstd", "layout": Layout((1, 8, 16))},
    "v3-none": {"codec": "none", "layout": Layout((5, 3, 7))},
    "v3-shards": {"codec": "zstd", "layout": Layout((1, 4, 16), shards=(6, 8, 16))},
    "v2": {"codec": "zstd", "layout": Layout((1, 8, 16)), "zarr_format": 2},
}


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
    if "cache_dir" in how:
        settled(pipe)


def drain(url, batches, **args):
    """Reads this many batches and closes the reader."""
    pipe = build("cpu", 2, path=url, dali_queue=1, prefetch_queue_depth=1, **args)
    for _ in range(batches):
        pipe.run()


def asked_at_most(since):
    """Returns how often a store may have been asked since then whether an array is still there: at once, and once in 10
    s."""
    return 1 + (time.monotonic() - since) // 10


def present(store):
    """Returns the paths of the stored chunks of an array ``a``, as a server of the store has them."""
    return {f"/{file.relative_to(store)}" for file in chunk_files(store, "a")}


@contextmanager
def s3_server(log: Path, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """moto's S3, in a process of its own, with one bucket; gives its URL. ``environment`` has settings of moto's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as out:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | (environment or {}))
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
    """Puts all files of a directory into the bucket of :func:`s3_server`."""
    for file in root.rglob("*"):
        if file.is_file():
            put(f"{url}/bucket/{prefix}/{quote(str(file.relative_to(root)))}", file.read_bytes())
