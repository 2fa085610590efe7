"""Stores on servers: values, which requests are made for them, how many at a time, and what is said of mistakes."""

from __future__ import annotations

import re
import socket
import time

import numpy as np
import pytest
import zarr
from support.pipelines import build, same, settled, to_numpy
from support.remote import DIMS, SHAPE, STORES, asked_at_most, compare, drain, present
from support.server import Server
from support.stores import Layout, chunk_files, write_array


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
        (2, False, ["/zarr.json", "/.zmetadata", "/.zarray", "/.zgroup", "/.zattrs"]
         + [f"/{a}/{f}" for a in "abc" for f in (".zarray", ".zattrs")]),
    ],
)
def test_metadata_requests(tmp_path, values, zarr_format, consolidated, requests):
    """Consolidated metadata are one request (two in version 2, whose other name is tried first); else one for each document.
    Attributes of the group may be those of an image."""
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
    with Server(tmp_path, gather=(20, "/a")) as server:
        build("cpu", 2, path=server.url, arrays=names)
        assert server.most_in_flight >= 20


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
    for file in chunk_files(tmp_path, "a"):
        ranges = [r for _, path, r in log if path == f"/{file.relative_to(tmp_path)}"]
        # 48 inner chunks of 16 + 16 bytes in the index, and its checksum.
        index = 48 * 16 + 4
        assert ranges.count(f"bytes=-{index}") == 1, ranges
        # Those that are dropped before the next epoch is planned are read again, perhaps not all together.
        assert ranges[:2] == [f"bytes=-{index}", f"bytes=0-{file.stat().st_size - index - 1}"], ranges
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
    wanted = sorted((int(o), int(o) + int(n)) for o, n in index[:, 0])
    expected: list[tuple[int, int]] = []
    for start, end in wanted:
        if expected and expected[-1][1] == start:
            expected[-1] = (expected[-1][0], end)
        else:
            expected.append((start, end))
    assert len(expected) > 1
    # Neighbours are read together, unless one of them was dropped and is read again. Nothing that isn't wanted is ever read.
    assert all(any(start <= first and last <= end for start, end in read) for first, last in wanted)
    for start, end in read:
        assert any(first <= start and end <= last for first, last in expected), (start, end)
        assert start in {first for first, _ in wanted} and end in {last for _, last in wanted}, (start, end)


def test_missing_chunks_are_fill_values_and_ask_once_after_the_array(tmp_path, values):
    write_array(tmp_path, "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    for file in chunk_files(tmp_path, "a")[::2]:
        file.unlink()
    with Server(tmp_path) as server:
        since = time.monotonic()
        compare("cpu", tmp_path, server.url, 4, arrays=["a"])
        counts = server.counts()
    assert {path for method, path in counts if method == "HEAD"} == {"/a/zarr.json"}
    assert counts["HEAD", "/a/zarr.json"] <= asked_at_most(since)


@pytest.mark.parametrize("status", [403, 405, 501])
def test_servers_that_refuse_head(tmp_path, values, status):
    """Arrays with missing chunks are read from them, and what a disk keeps is checked: by a byte."""
    write_array(tmp_path / "s", "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    for file in chunk_files(tmp_path / "s", "a")[::2]:
        file.unlink()
    with Server(tmp_path / "s", fault=lambda _number, method, _path: status if method == "HEAD" else None) as server:
        for first in (True, False):
            compare("cpu", tmp_path / "s", server.url, 4, arrays=["a"], cache_dir=str(tmp_path / "cache"))
            log = server.take_log()
            assert 1 <= sum(method == "HEAD" for method, _, _ in log) <= 16, "tasks may find out at the same time, but once"
            chunks = {range_ for method, path, range_ in log if method == "GET" and path in present(tmp_path / "s")}
            assert chunks == ({""} if first else {"bytes=0-0"})
            assert ("GET", "/a/zarr.json", "bytes=0-0") in log


def test_many_requests_are_under_way_at_a_time(tmp_path, values):
    big = np.repeat(values, 8, axis=0)
    write_array(tmp_path, "a", big, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    for limit in (5, 100):
        with Server(tmp_path, gather=(limit, "/a/c/")) as server:
            # A second request for a slow one is beside the limit.
            build("cpu", 192, path=server.url, arrays=["a"], io_concurrency=limit, storage_options={"hedge": False}).run()
            assert server.most_in_flight == limit


@pytest.mark.parametrize("codec", ["zstd", "bz2"])
def test_a_batch_does_not_wait_for_what_a_later_one_needs(tmp_path, device, values, codec):
    """Also not where the GPU, or the CPU for it, decodes chunks together."""
    write_array(tmp_path, "a", values, dims=DIMS, codec=codec, zarr_format=2, layout=Layout((1, 8, 16)))
    allowed = tmp_path / "allowed"

    def hold(_number, _method, path):
        while path.endswith("/9.0.0") and not allowed.exists():
            time.sleep(0.02)

    with Server(tmp_path, fault=hold) as server:
        pipe = build(device, 2, path=server.url, arrays=["a"], dali_queue=1)
        for i in range(4):
            same(to_numpy(pipe.run()[0]), values[2 * i : 2 * i + 2], f"batch {i}")
        allowed.touch()
        same(to_numpy(pipe.run()[0]), values[8:10], "batch 4")


def test_counters_tell_of_requests(tmp_path, values):
    write_array(tmp_path / "s", "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    with Server(tmp_path, fault=lambda n, *_: 503 if n % 9 == 0 else None) as server:
        pipe = build("cpu", 24, path=f"{server.url}/s", arrays=["a"])
        pipe.run()
        stats, log = settled(pipe), server.take_log()
    # A second request for a slow one isn't made again.
    assert stats["requests"] == len(log)
    assert len(log) // 9 - stats["requests_hedged"] <= stats["requests_retried"] <= len(log) // 9
    assert stats["requests_bytes"] >= stats["bytes_read"] >= stats["chunks_read"] > 0


# ---- what is said of mistakes ----


def test_a_wrong_url_is_told_soon(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/store"
        start = time.monotonic()
        with pytest.raises(ValueError, match=re.escape(url)):
            build("cpu", 1, path=url, arrays=["a"])
        assert time.monotonic() - start < 30
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


def test_credentials_that_no_request_can_carry(monkeypatch):
    """A secret with the end of a line, as it may be mounted."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_S3_US_EAST_1_REGIONAL_ENDPOINT", "regional")  # other programs' business
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2\n")
    with pytest.raises(ValueError, match="AWS_SECRET_ACCESS_KEY: expected letters") as caught:
        build("cpu", 1, path="s3://bucket/x", arrays=["a"])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("consolidated", [True, False])
def test_servers_that_refuse_what_is_not_there(tmp_path, values, consolidated):
    """As S3 does where listing isn't allowed: which version a store has is found out all the same."""
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES["v2"])
    if consolidated:
        zarr.consolidate_metadata(tmp_path / "s")
    with Server(tmp_path, fault=lambda _n, _m, path: None if (tmp_path / path[1:]).exists() else 403) as server:
        compare("cpu", tmp_path / "s", f"{server.url}/s")
        with pytest.raises(ValueError, match="403"):
            build("cpu", 1, path=f"{server.url}/none", arrays=["a"])


@pytest.mark.parametrize("lacking", ["a/2.0.0", "a/.zattrs"])
def test_what_is_refused_and_perhaps_not_there(tmp_path, values, lacking):
    """A missing chunk can't be told from a forbidden one, nor missing attributes: an error names the permission that tells them."""
    write_array(tmp_path / "s", "a", values, dims=DIMS, **STORES["v2"])
    (tmp_path / "s" / lacking).unlink()
    with (
        Server(tmp_path, fault=lambda _n, _m, path: None if (tmp_path / path[1:]).exists() else 403) as server,
        pytest.raises((RuntimeError, ValueError), match=f'key "{lacking}".* 403 Forbidden.* allow s3:ListBucket'),
    ):
        drain(f"{server.url}/s", 12, arrays=["a"])


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        ("s3://bucket/x", {"aws_secret_access_key": "hunter2"}, "aws_secret_access_key is a secret"),
        ("az://bucket/x", {"azure_storage_sas_token": "hunter2"}, "is a secret"),
        ("http://127.0.0.1:1/x", {"nonsense": "1"}, "nonsense isn't an option of HTTP stores"),
        ("http://me:hunter2@127.0.0.1:1/x", {}, "without user and password"),
        ("ftp://127.0.0.1/x", {}, 'the scheme "ftp"'),
        ("s3://bucket/x", {"timeout": "soon"}, "timeout: expected a time"),
        ("s3://bucket/x", {"aws_endpoint": "localhost:9000"}, 'aws_endpoint: expected a URL such as "http://host:9000"'),
        ("s3://bucket/x", {"aws_region": "eu central"}, "aws_region: expected letters"),
        ("gs://bucket/x", {"google_base_url": "localhost:9000"}, "google_base_url: expected a URL"),
        ("az://bucket/x", {"azure_storage_endpoint": "127.0.0.1:10000"}, "azure_storage_endpoint: expected a URL"),
        ("s3://bucket/x", {"aws_region": "a", "region": "b"}, "aws_region and region are the same option of S3 stores"),
        ("http://127.0.0.1:1/x", ["timeout=1s", "timeout=2s"], "timeout and timeout are the same option"),
        ("gcs://bucket/x", {}, "write gs://"),
        ("s3a://bucket/x", {}, "write s3://"),
        ("http://hunter2@127.0.0.1:1/x", {}, "without user and password"),
        ("https://me:hunter2@127.0.0.1:99999/x", {}, "expected a URL"),
        ("s3://me:hun/ter2@bucket/hunter2@x", {}, "expected a URL"),
        ("http://127.0.0.1:1/x#hunter2", {}, "without query and fragment"),
        ("http://127.0.0.1:1/x.zip/inner?sig=hunter2", {}, "without query and fragment"),
    ],
)
def test_wrong_options(path, options, words):
    with pytest.raises(ValueError) as caught:
        build("cpu", 1, path=path, arrays=["a"], storage_options=options)
    assert words in str(caught.value) and "hunter2" not in str(caught.value)
