"""Icechunk repositories as stores: what the package icechunk (1 or 2, as Python allows) writes, on disk and in S3."""

from __future__ import annotations

import datetime
import hashlib
import os

import google_crc32c
import numpy as np
import pytest
import zarr
from support.pipelines import build, same, to_numpy
from support.remote import upload
from support.server import Server

icechunk = pytest.importorskip("icechunk")

SHAPE = (24, 8, 16)
DIMS = ("time", "lat", "lon")


def create(folder, split=None):
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 128
    if split:
        of_array = {icechunk.ManifestSplitDimCondition.Any(): split}
        condition = icechunk.ManifestSplitCondition.AnyArray()
        splitting = icechunk.ManifestSplittingConfig.from_dict({condition: of_array})
        config.manifest = icechunk.ManifestConfig(splitting=splitting)
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)), config=config)


def commit(repo, change, branch="main"):
    session = repo.writable_session(branch)
    change(zarr.open_group(session.store, mode="a"))
    return session.commit("a change")


def write(values):
    """A change that writes arrays in chunks, in shards, and so small that they are inline."""

    def change(group):
        for name, how in {
            "a": {"chunks": (1, 8, 16)}, "group/b": {"chunks": (1, 4, 16), "shards": (6, 8, 16)},
            "raw": {"chunks": (5, 3, 7), "compressors": None},
        }.items():
            array = group.create_array(
                name, shape=values.shape, dtype=values.dtype, dimension_names=DIMS, config={"write_empty_chunks": True}, **how
            )
            array[:] = values
        time = group.create_array("time", shape=(24,), chunks=(3,), dtype="int64", dimension_names=("time",))
        time[:] = np.arange(24) * 10

    return change


def read(repo, name, **version):
    """By zarr-python."""
    version = version or {"branch": "main"}
    return zarr.open_group(repo.readonly_session(**version).store, mode="r")[name][:]


def compare(device, path, expected, name="a", epochs=1, **args):
    pipe = build(device, 4, path=path, arrays=[name], dims=["time"], window=[2], step=[2], **args)
    for i in range(3 * epochs):
        want = expected[8 * (i % 3) : 8 * (i % 3) + 8].reshape(4, 2, *expected.shape[1:])
        same(to_numpy(pipe.run()[0]), want, f"{name}, batch {i}")


@pytest.mark.parametrize("split", [None, 5], ids=["one-manifest", "split"])
def test_values_are_those_of_zarr_python(tmp_path, device, values, split):
    repo = create(tmp_path / "r", split)
    commit(repo, write(values))
    with Server(tmp_path) as server:
        for path in (tmp_path / "r", f"{server.url}/r"):
            for name in ("a", "group/b", "raw", "time"):
                compare(device, path, read(repo, name), name, epochs=2)


def test_branches_tags_and_snapshots(tmp_path, values):
    repo = create(tmp_path / "r", 3)
    first = commit(repo, write(values))
    repo.create_tag("v1", first)

    def rewrite(group):
        group["a"][5:9] = 7
        del group["time"]

    second = commit(repo, rewrite)
    repo.create_branch("dev", second)

    def grow(group):
        group["a"].resize((30, 8, 16))
        group["a"][24:] = -1

    commit(repo, grow, "dev")
    path = tmp_path / "r"
    compare("cpu", path, read(repo, "a"))
    compare("cpu", path, values, storage_options={"tag": "v1"})
    compare("cpu", path, values, storage_options={"snapshot_id": first})
    compare("cpu", path, np.arange(24) * 10, "time", storage_options={"tag": "v1"})
    grown = build("cpu", 30, path=path, arrays=["a"], storage_options={"branch": "dev"})
    same(to_numpy(grown.run()[0]), read(repo, "a", branch="dev"), "the branch dev")
    with pytest.raises(ValueError, match="expected an array 'time', but found the arrays"):
        build("cpu", 1, path=path, arrays=["time"])
    for options, words in [
        ({"branch": "none"}, 'expected the branch "none", but found only "dev", "main"'),
        ({"tag": "v2"}, 'the tag "v2"'),
        ({"snapshot_id": "0" * 20}, "0" * 20),
        ({"snapshot_id": "short"}, "expected the name of a snapshot"),
        ({"tag": "v1", "branch": "dev"}, "expected one of branch, tag and snapshot_id"),
        ({"aws_region": "x"}, "every path is local"),
    ]:
        with pytest.raises(ValueError, match=words):
            build("cpu", 1, path=path, arrays=["a"], storage_options=options)
    repo.delete_tag("v1")
    with pytest.raises(ValueError, match='the tag "v1"'):
        build("cpu", 1, path=path, arrays=["a"], storage_options={"tag": "v1"})


def test_a_running_reader_stays_at_its_snapshot(tmp_path, values):
    repo = create(tmp_path / "r")
    commit(repo, write(values))
    pipe = build("cpu", 2, path=tmp_path / "r", arrays=["a"], dali_queue=1, prefetch_queue_depth=1)
    same(to_numpy(pipe.run()[0]), values[:2], "before")
    commit(repo, lambda group: group["a"].__setitem__(slice(None), 0))
    for i in range(1, 24):
        at = 2 * (i % 12)
        same(to_numpy(pipe.run()[0]), values[at : at + 2], f"batch {i}")


def test_a_checkpoint_is_of_one_snapshot(tmp_path, values):
    repo = create(tmp_path / "r")
    first = commit(repo, write(values))
    args = {"path": tmp_path / "r", "arrays": ["a"], "checkpointing": True}
    pipe = build("cpu", 2, **args)
    pipe.run()
    state = pipe.checkpoint()
    commit(repo, lambda group: group["a"].__setitem__(slice(None), 0))
    with pytest.raises(ValueError, match="snapshot_id"):
        build("cpu", 2, checkpoint=state, **args).run()
    resumed = build("cpu", 2, checkpoint=state, storage_options={"snapshot_id": first}, **args)
    same(to_numpy(resumed.run()[0]), values[2:4], "goes on")


def test_each_of_several_repositories_has_its_snapshot(tmp_path, values):
    """Joined with one another, and with a Zarr store."""
    firsts = []
    for number in range(2):
        repo = create(tmp_path / f"r{number}")

        def change(group, number=number):
            write(values + 10 * number)(group)
            lat = group.create_array("lat", shape=(8,), chunks=(8,), dtype="float64", dimension_names=("lat",))
            lat[:] = np.arange(8) / 10

        firsts.append(commit(repo, change))

        def rewrite(group):
            group["a"][...] = -1
            group["lat"][...] = 0

        commit(repo, rewrite)
    write(values + 20)(zarr.open_group(tmp_path / "z", mode="w"))
    old, new = [values, values + 10], -np.ones_like(values)
    a, b = firsts
    with Server(tmp_path) as server:
        for root in (tmp_path, server.url):
            paths = [f"{root}/r0", f"{root}/r1", f"{root}/z"]

            def joined(ids, paths=paths, **args):
                args = {"arrays": ["a"], "dims": ["time"], "window": [1], "storage_options": {"snapshot_id": ids}} | args
                return build("cpu", 24 * len(paths), path=paths, **args)

            for ids, expected in [
                ([a, b], old), ([a, None], [old[0], new]), (["", b], [new, old[1]]), (f"{a},{b}", old),
                ([a, b, None], [*old, values + 20]), ([None] * 3, [new, new, values + 20]),
            ]:
                some = paths[: len(expected)]
                same(to_numpy(joined(ids, some).run()[0])[:, 0], np.concatenate(expected), f"{ids}")
            both = {"snapshot_id": [a, b, None], "virtual_chunks": ["file:///", f"file://{tmp_path}"]}
            same(to_numpy(joined(None, storage_options=both).run()[0])[:, 0], np.concatenate([*old, values + 20]), "virtual")
            picked = joined([a, b], paths[:2], pick={"lat": [0.3]})
            same(to_numpy(picked.run()[0])[:, 0], np.concatenate(old)[:, 3:4], "the latitude in the first one's snapshot")
            for ids, some, words in [
                ([a, b], paths, r"one for all paths, or as many as there are in path \(3\), but found 2"),
                ([a, b, None], paths[:2], r"in path \(2\), but found 3"),
                ([a, None], paths[0], r"in path \(1\), but found 2"),
                ([b, a], paths[:2], "r0, as an Icechunk repository: .*" + b),
                ([a, b, a], paths, "/z, as an Icechunk repository: .*whether the path is that of an Icechunk repository"),
            ]:
                with pytest.raises(ValueError, match=words):
                    build("cpu", 1, path=some, arrays=["a"], storage_options={"snapshot_id": ids})
    args = {"path": [f"{tmp_path}/r0", f"{tmp_path}/r1"], "arrays": ["a"], "checkpointing": True}
    pipe = build("cpu", 24, **args, storage_options={"snapshot_id": [a, b]})
    pipe.run()
    with pytest.raises(ValueError, match=f"snapshot_id.*{a}.*{b}"):
        build("cpu", 24, checkpoint=pipe.checkpoint(), **args).run()
    resumed = build("cpu", 24, checkpoint=pipe.checkpoint(), **args, storage_options={"snapshot_id": [a, b]})
    same(to_numpy(resumed.run()[0]), old[1], "goes on")


def test_missing_chunks_and_labels(tmp_path, values):
    repo = create(tmp_path / "r")

    def change(group):
        array = group.create_array("a", shape=SHAPE, chunks=(1, 8, 16), dtype="float32", fill_value=-5, dimension_names=DIMS)
        array[4:6] = values[4:6]
        lat = group.create_array("lat", shape=(8,), chunks=(8,), dtype="float64", dimension_names=("lat",))
        lat[:] = np.arange(8) / 10

    first = commit(repo, change)
    expected = read(repo, "a")
    with Server(tmp_path) as server:
        for path in (tmp_path / "r", f"{server.url}/r"):
            compare("cpu", path, expected)
            for options in ({}, {"storage_options": {"snapshot_id": first}}):
                picked = build("cpu", 24, path=str(path), arrays=["a"], pick={"lat": [0.3]}, **options)
                same(to_numpy(picked.run()[0]), expected[:, 3:4], "the picked latitude")
        assert {method for method, _ in server.counts()} == {"GET"}


def test_requests(tmp_path, values):
    """Zarr's names are tried first; then a file or three, the snapshot, each manifest once, each chunk once an epoch."""
    repo = create(tmp_path / "r", 8)
    commit(repo, write(values))
    with Server(tmp_path) as server:
        pipe = build("cpu", 2, path=f"{server.url}/r", arrays=["a"], dali_queue=1, prefetch_queue_depth=1)
        for _ in range(12):
            pipe.run()
        log = [path.removeprefix("/r/").split("/")[0] for _, path, _ in server.take_log()]
    assert log.count("snapshots") == 1 and log.count("manifests") == 3, log
    assert 24 <= log.count("chunks") <= 48
    before = log.index("snapshots")
    assert before <= 6, log[:before]


def test_s3(tmp_path, values, device, s3, s3_options):
    repo = create(tmp_path / "r")
    first = commit(repo, write(values))
    commit(repo, lambda group: group["a"].__setitem__(slice(3, 6), 1))
    prefix = f"icechunk-{device}/deep/repo"
    upload(s3, tmp_path / "r", prefix)
    for name in ("a", "group/b"):
        compare(device, f"s3://bucket/{prefix}", read(repo, name), name, storage_options=s3_options)
    compare(device, f"s3://bucket/{prefix}", values, storage_options=s3_options | {"snapshot_id": first})


def virtual(folder, url, **checks):
    """A repository of an array whose chunks are parts of the file at ``url``, but for the last, which is in the repository."""
    repo = create(folder)
    session = repo.writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    array = group.create_array("a", shape=SHAPE, chunks=(1, 8, 16), dtype="float32", compressors=None, dimension_names=DIMS)
    array[23] = 5
    for i in range(23):
        where = {"offset": 100 + 512 * i, "length": 512}
        session.store.set_virtual_ref(f"a/c/{i}/0/0", url, **where, **checks, validate_container=False)
    session.commit("virtual")


@pytest.fixture
def with_virtual(tmp_path, values):
    data = tmp_path / "data"
    data.mkdir()
    (data / "some file.bin").write_bytes(bytes(100) + values.tobytes())
    values[23] = 5
    return data


def test_virtual_chunks_are_read_where_they_may_be(tmp_path, values, with_virtual, device, s3, s3_options):
    file = with_virtual / "some file.bin"
    prefix = f"virtual-{device}"
    upload(s3, with_virtual, f"{prefix}/data")
    for name, url, allowed in [
        ("local", f"file://{with_virtual}/some file.bin", f"file://{with_virtual}"),
        ("root", f"file://{with_virtual}/some file.bin", "file:///"),
        ("remote", f"s3://bucket/{prefix}/data/some file.bin", f"s3://bucket/{prefix}/data/"),
    ]:
        virtual(tmp_path / name, url)
        upload(s3, tmp_path / name, f"{prefix}/{name}")
        for path in (tmp_path / name, f"s3://bucket/{prefix}/{name}"):
            options = s3_options if "s3" in f"{path}{url}" else {}
            both = f"file://{tmp_path}/{name}, {allowed}"
            compare(device, path, values, storage_options=options | {"virtual_chunks": both})
            options = s3_options if str(path).startswith("s3") else {}
            for wrong in ({}, {"virtual_chunks": f"file://{tmp_path}/{name}"}):
                with pytest.raises(RuntimeError, match=r"a/c/\d+/0/0.*found a virtual one, at .*some.*virtual_chunks"):
                    build("cpu", 2, path=path, arrays=["a"], storage_options=options | wrong).run()
    options = {"virtual_chunks": f"file://{with_virtual}"}
    file.write_bytes(b"short")
    with pytest.raises(RuntimeError, match=r"a/c/\d+/0/0.*some file\.bin.*ends before"):
        build("cpu", 2, path=tmp_path / "local", arrays=["a"], storage_options=options).run()
    file.unlink()
    with pytest.raises(RuntimeError, match=r"expected the object .*some.*file\.bin, but found nothing"):
        build("cpu", 2, path=tmp_path / "local", arrays=["a"], storage_options=options).run()
    with pytest.raises(ValueError, match="virtual_chunks: expected URLs"):
        build("cpu", 2, path=tmp_path / "local", arrays=["a"], storage_options={"virtual_chunks": "/data"})


def test_virtual_chunks_of_another_version_are_errors(tmp_path, values, with_virtual, s3, s3_options):
    file = with_virtual / "some file.bin"
    upload(s3, with_virtual, "versions")
    url = "s3://bucket/versions/some file.bin"
    tag = f'"{hashlib.md5(file.read_bytes()).hexdigest()}"'
    later = datetime.datetime.fromtimestamp(file.stat().st_mtime + 60, datetime.UTC)
    before = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    stat = file.stat()
    of_file = f"{stat.st_ino:x}-{stat.st_mtime_ns // 1000:x}-{stat.st_size:x}"
    options = s3_options | {"virtual_chunks": f"file://{with_virtual},s3://bucket/versions"}
    for i, (where, checksum, right) in enumerate([
        (f"file://{file}", later, True), (f"file://{file}", before, False),
        (f"file://{file}", of_file, True), (f"file://{file}", "other", False),
        (url, later, True), (url, before, False), (url, tag, True), (url, '"other"', False),
    ]):
        virtual(tmp_path / f"r{i}", where, checksum=checksum)
        if right:
            compare("cpu", tmp_path / f"r{i}", values, storage_options=options)
        else:
            with pytest.raises(RuntimeError, match="changed since|replaced since"):
                build("cpu", 2, path=tmp_path / f"r{i}", arrays=["a"], storage_options=options).run()


def test_damage_is_an_error(tmp_path, values):
    repo = create(tmp_path / "r")
    commit(repo, write(values))
    snapshots = sorted((tmp_path / "r/snapshots").iterdir(), key=lambda f: f.stat().st_size)
    whole = snapshots[-1].read_bytes()
    newer = whole[:36] + b"\x09" + whole[37:]
    for bad, words in [(whole[:60], "the file is damaged"), (b"x" * 100, "expected a file of Icechunk"), (newer, "older")]:
        snapshots[-1].write_bytes(bad)
        with pytest.raises(ValueError, match=words):
            build("cpu", 2, path=tmp_path / "r", arrays=["a"])
    snapshots[-1].write_bytes(whole)
    for manifest in (tmp_path / "r/manifests").iterdir():
        manifest.write_bytes(manifest.read_bytes()[:50])
    with pytest.raises(RuntimeError, match=r"a/c/.*manifests/.*the file is damaged"):
        build("cpu", 2, path=tmp_path / "r", arrays=["a"]).run()


def test_a_cache_never_gives_another_snapshots_chunks(tmp_path, values):
    """Though a server's tags may be the same for different objects: here all have one date and one size."""
    repo = create(tmp_path / "r")
    others = values + 1
    snapshots = [commit(repo, write(values)), commit(repo, lambda group: group["raw"].__setitem__(..., others))]
    for file in (tmp_path / "r").rglob("*"):
        os.utime(file, (1e9, 1e9))
    cache = {"cache_dir": str(tmp_path / "cache"), "cache_dir_size": 1 << 24}
    with Server(tmp_path) as server:
        for snapshot, expected in zip(snapshots * 2, [values, others] * 2, strict=True):
            repo.reset_branch("main", snapshot)
            compare("cpu", f"{server.url}/r", expected, "raw", **cache)
            compare("cpu", f"{server.url}/r", expected, "raw", cache_validate=False, **cache)


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_a_virtual_shard_that_is_replaced_is_never_mixed(tmp_path, remote):
    """One of which the repository tells no version: the index and the chunks are of one file all the same."""
    values = np.arange(8 * 16 * 64, dtype="int32").reshape(8, 16, 64)
    how = {"chunks": (1, 16, 64), "shards": (8, 16, 64), "compressors": None, "dimension_names": ("time", "y", "x")}
    for name in ("old", "new"):
        array = zarr.create_array(tmp_path / name, shape=values.shape, dtype="int32", **how)
        array[:] = values
    (tmp_path / "data").mkdir()
    old, file = tmp_path / "old/c/0/0/0", tmp_path / "data/shard"
    file.write_bytes(old.read_bytes())
    base = f"file://{tmp_path}/data/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(base, icechunk.local_filesystem_store(str(tmp_path / "data")))
    )
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "r")), config=config)
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a").create_array("a", shape=values.shape, dtype="int32", **how)
    size = file.stat().st_size
    spec = icechunk.VirtualChunkSpec(index=[0, 0, 0], location=f"{base}shard", offset=0, length=size)
    session.store.set_virtual_refs("a", [spec], validate_containers=False)
    session.commit("virtual")
    with Server(tmp_path) as server:
        path = f"{server.url}/r" if remote else tmp_path / "r"
        pipe = build(
            "cpu", 1, path=path, arrays=["a"], storage_options={"virtual_chunks": base}, dali_queue=1,
            prefetch_queue_depth=1, host_memory_limit=200_000, io_threads=1, decode_threads=1,
        )
        same(to_numpy(pipe.run()[0]), values[:1], "before")
        # The inner chunks in the opposite order, with an index that says so.
        raw, n = file.read_bytes(), 16 * 64 * 4
        index = np.frombuffer(raw, "<u8", 16, size - 4 - 128).reshape(8, 2).copy()
        body = b"".join(raw[int(start) : int(start + length)] for start, length in index[::-1])
        index[:, 0] = np.arange(7, -1, -1) * n
        encoded = index.tobytes()
        (tmp_path / "data/new").write_bytes(body + encoded + google_crc32c.value(encoded).to_bytes(4, "little"))
        os.replace(tmp_path / "data/new", file)
        with pytest.raises(RuntimeError, match="replaced since its index was read"):
            for i in range(1, 24):
                same(to_numpy(pipe.run()[0]), values[i % 8 : i % 8 + 1], f"batch {i}")


@pytest.mark.skipif(int(icechunk.__version__.split(".")[0]) < 2, reason="containers have names since Icechunk 2")
@pytest.mark.parametrize("spec_version", [1, 2])
def test_virtual_chunks_in_named_containers(tmp_path, spec_version):
    (tmp_path / "data").mkdir()
    values = np.arange(96, dtype="<i4").reshape(24, 4)
    (tmp_path / "data" / "ü b.bin").write_bytes(b"HEAD" + values.tobytes())
    url = f"file://{tmp_path}/data/"
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(str(tmp_path / "data"))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(url, store, name="cont"))
    storage = icechunk.local_filesystem_storage(str(tmp_path / "r"))
    repo = icechunk.Repository.create(
        storage, config=config, authorize_virtual_chunk_access={url: None}, spec_version=spec_version,
    )
    repo.save_config()
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array(
        "a", shape=(24, 4), chunks=(24, 4), dtype="<i4", compressors=None, filters=None, dimension_names=("time", "x"),
    )
    session.store.set_virtual_ref("a/c/0/0", "vcc://cont/ü b.bin", offset=4, length=values.nbytes)
    session.commit("a")
    np.testing.assert_array_equal(read(repo, "a"), values)
    compare("cpu", tmp_path / "r", values, storage_options={"virtual_chunks": url})
    with pytest.raises(RuntimeError, match=f"a virtual one, at {url}"):
        compare("cpu", tmp_path / "r", values)
