"""Zip archives as stores, local and remote: as zarr-python and others write them, by as few requests as directories take."""

from __future__ import annotations

import io
import subprocess
import zipfile

import pytest
import zarr
from support.oracle import Oracle
from support.pipelines import build, same, to_numpy
from support.server import Server
from support.stores import Layout, write_array

DIMS = ("time", "lat", "lon")
SHAPE = (24, 8, 16)

STORES = {
    "v3": {"codec": "zstd", "layout": Layout((1, 8, 16))},
    "v3-none": {"codec": "none", "layout": Layout((5, 3, 7))},
    "v3-shards": {"codec": "zstd", "layout": Layout((1, 4, 16), shards=(6, 8, 16))},
    "v2": {"codec": "zstd", "layout": Layout((1, 8, 16)), "zarr_format": 2},
}


def folder(root, values, kind="v3"):
    for name in ("a", "group/b"):
        write_array(root, name, values, dims=DIMS, **STORES[kind])
    return root


def files(root):
    return [(str(f.relative_to(root)), f.read_bytes()) for f in sorted(root.rglob("*")) if f.is_file()]


def by_zarr(root, target, compression):
    """What zarr-python's ZipStore makes of a hierarchy; consolidating replaces the top's metadata, which stay in the archive."""
    with zarr.storage.ZipStore(target, mode="w", compression=compression) as store:
        source = zarr.open_group(root, mode="r")
        top = zarr.create_group(store, zarr_format=source.metadata.zarr_format)
        for name in ("a", "group/b"):
            a = source[name]
            array = top.create_array(
                name, shape=a.shape, dtype=a.dtype, chunks=a.chunks, shards=getattr(a, "shards", None),
                dimension_names=DIMS if a.metadata.zarr_format == 3 else None, config={"write_empty_chunks": True},
                attributes=dict(a.attrs),
            )
            array[:] = a[:]
        with pytest.warns(UserWarning, match="Duplicate name"):
            zarr.consolidate_metadata(store)


class Pipe(io.RawIOBase):
    """Can't seek: what is written before is out of reach."""

    def __init__(self, file):
        self.file = file

    def writable(self):
        return True

    def write(self, data):
        return self.file.write(data)


def by_stream(root, target, compression):
    with target.open("wb") as file, zipfile.ZipFile(Pipe(file), "w", compression) as archive:
        for name, data in files(root):
            with archive.open(name, "w") as entry:
                entry.write(data)


def by_zip64(root, target, compression):
    with zipfile.ZipFile(target, "w", compression) as archive:
        archive.comment = b"a comment"
        for name, data in files(root):
            archive.mkdir(name.rpartition("/")[0] + "/") if name.endswith("zarr.json") and "/" in name else None
            with archive.open(name, "w", force_zip64=True) as entry:
                entry.write(data)


def behind_something(root, target, compression):
    by_stream(root, target, compression)
    target.write_bytes(b"#!/bin/sh\n" * 50 + target.read_bytes())


WRITERS = {f.__name__: f for f in (by_zarr, by_stream, by_zip64, behind_something)}


def compare(device, directory, path, batch_size=2, epochs=2, **args):
    """Asserts that an archive gives what the directory gives."""
    how = {k: args.pop(k) for k in ("storage_options",) if k in args}
    args = {"arrays": ["a", "group/b"], "dims": ["time"], "window": [2], "step": [1]} | args
    oracle = Oracle(batch_size, path=directory, **args)
    expected = oracle.batches()
    pipe = build(device, batch_size, path=path, **how, **args)
    for number in range(-(-oracle.epoch_length(0) * epochs // batch_size)):
        for i, (out, want) in enumerate(zip(pipe.run(), next(expected), strict=True)):
            same(to_numpy(out), want, f"batch {number}, output {i}")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", STORES)
def test_archives_give_what_directories_hold(tmp_path, device, values, kind, writer, compression):
    root = folder(tmp_path / "store.zarr", values, kind)
    target = tmp_path / "served/store.zarr.zip"
    target.parent.mkdir()
    WRITERS[writer](root, target, compression)
    compare(device, root, target, epochs=1)
    with Server(target.parent) as server:
        compare(device, root, f"{server.url}/store.zarr.zip", epochs=1)
        assert {method for method, _ in server.counts()} == {"GET"}


def test_a_chunk_is_one_request_and_the_metadata_are_few(tmp_path, values):
    root = folder(tmp_path / "s", values)
    target = tmp_path / "served/s.zip"
    target.parent.mkdir()
    by_zarr(root, target, zipfile.ZIP_STORED)
    with Server(target.parent) as server:
        pipe = build("cpu", 2, path=f"{server.url}/s.zip", arrays=["a"], dali_queue=1, prefetch_queue_depth=1)
        for _ in range(12):
            pipe.run()
        ranges = [r for _, _, r in server.take_log()]
    # The end of the archive, all of it since it is small, the consolidated metadata; and chunks, of the next epoch too.
    assert ranges[0].startswith("bytes=-") and len(ranges) <= 3 + 24 + 24, ranges
    assert all(ranges.count(r) <= 2 for r in ranges[2:]), ranges


def test_arrays_are_listed_and_named(tmp_path, values):
    write_array(tmp_path / "s", "only", values, dims=DIMS, **STORES["v3"])
    array = zarr.create_array(tmp_path / "t", shape=SHAPE, chunks=(1, 8, 16), dtype="float32", dimension_names=DIMS)
    array[:] = values
    for name in "st":
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            for key, data in files(tmp_path / name):
                archive.writestr(f"deep/{key}", data)
    with Server(tmp_path) as server:
        local = str(tmp_path)
        for path in (f"{local}/s.zip/deep", f"file://{local}/s.zip/deep/", f"{server.url}/s.zip/deep", f"{local}/t.zip/deep"):
            same(to_numpy(build("cpu", 2, path=path).run()[0]), values[:2], path)
        with pytest.raises(ValueError, match="expected a Zarr group or array"):
            build("cpu", 2, path=f"{server.url}/s.zip", arrays=["only"])
        with pytest.raises(ValueError, match=r"s\.zip/deep.*expected an array 'x', but found only the array 'only'"):
            build("cpu", 2, path=f"{server.url}/s.zip/deep", arrays=["x"])


def test_missing_chunks_are_fill_values(tmp_path, values):
    root = folder(tmp_path / "s", values)
    for name in ("3", "7"):
        (root / f"a/c/{name}/0/0").unlink()
    by_stream(root, tmp_path / "s.zip", zipfile.ZIP_STORED)
    compare("cpu", root, tmp_path / "s.zip")


def test_several_archives_are_joined(tmp_path, values):
    parts = []
    for i, name in enumerate(("x", "y")):
        root = folder(tmp_path / name, values + i)
        by_stream(root, tmp_path / f"{name}.zip", zipfile.ZIP_STORED)
        parts.append(root)
    compare("cpu", parts, [tmp_path / "x.zip", tmp_path / "y.zip"], epochs=1)


def test_damage_is_an_error(tmp_path, values):
    root = folder(tmp_path / "s", values, "v3-none")
    target = tmp_path / "s.zip"
    by_stream(root, target, zipfile.ZIP_STORED)
    whole = target.read_bytes()
    with zipfile.ZipFile(target) as archive:
        chunk = archive.getinfo("a/c/0/0/0").header_offset + 60
    target.write_bytes(whole[:chunk] + bytes([whole[chunk] ^ 1]) + whole[chunk + 1 :])
    with pytest.raises(RuntimeError, match=r"a/c/0/0/0.*expected the CRC-32"):
        build("cpu", 2, path=target, arrays=["a"]).run()
    target.write_bytes(whole[:-5])
    with pytest.raises(ValueError, match="expected a zip archive, but found no end of one"):
        build("cpu", 2, path=target, arrays=["a"])
    (tmp_path / "no.zip").write_bytes(b"")
    with pytest.raises(ValueError, match="expected a zip archive"):
        build("cpu", 2, path=tmp_path / "no.zip", arrays=["a"])
    with Server(tmp_path) as server, pytest.raises(ValueError, match="expected a zip archive, but found nothing"):
        build("cpu", 2, path=f"{server.url}/nothing.zip", arrays=["a"])


def test_a_replaced_archive_is_an_error(tmp_path, values):
    root = folder(tmp_path / "s", values)
    (tmp_path / "served").mkdir()
    target = tmp_path / "served/s.zip"
    by_stream(root, target, zipfile.ZIP_STORED)
    with Server(target.parent) as server:
        pipe = build("cpu", 1, path=f"{server.url}/s.zip", arrays=["a"], dali_queue=1, prefetch_queue_depth=1)
        pipe.run()
        by_stream(folder(tmp_path / "t", values + 1), tmp_path / "new.zip", zipfile.ZIP_STORED)
        (tmp_path / "new.zip").replace(target)
        with pytest.raises(RuntimeError, match="replaced since"):
            for _ in range(48):
                pipe.run()


@pytest.mark.skipif(subprocess.run("command -v zip", shell=True, capture_output=True, check=False).returncode != 0, reason="no zip")
def test_the_program_zip(tmp_path, values):
    root = folder(tmp_path / "s", values, "v3-shards")
    subprocess.run(["zip", "-q", "-r", "-0", tmp_path / "s.zip", "."], cwd=root, check=True)
    compare("cpu", root, tmp_path / "s.zip")
    with Server(tmp_path) as server:
        compare("cpu", root, f"{server.url}/s.zip")
