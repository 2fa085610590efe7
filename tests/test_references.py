"""References as stores: what kerchunk and VirtualiZarr write of NetCDF files, as JSON, Parquet and Icechunk, beside xarray."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
import zarr
from support.pipelines import build, same, to_numpy
from support.references import DIMS, SHAPE, WRITERS, by_xarray, check_all, read, rewritten, write_hdf, write_references
from support.remote import upload
from support.server import Server


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A NetCDF file in ``data``, and references to it."""
    for module in ("h5netcdf", "h5py", "kerchunk", "fastparquet", "virtualizarr", "icechunk"):
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("references")
    (folder / "data").mkdir()
    values = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    write_hdf(folder / "data/a.nc", values)
    write_references(folder, folder / "data/a.nc")
    return folder


@pytest.mark.parametrize("writer", WRITERS)
def test_values_are_those_of_xarray(files, device, writer):
    store = files / writer
    options = {"virtual_chunks": f"file://{files}/data"}
    expected = by_xarray(store)
    assert {"time", "lat", "contiguous", "chunked", "gzip", "packed", "big"} <= set(expected)
    assert ("all" in expected) == ("virtualizarr" in writer), "kerchunk leaves it out"
    check_all(device, store, expected, storage_options=options)
    decoded = by_xarray(store, mask_and_scale=True)["packed"]
    assert np.isnan(decoded).any()
    same(read(device, store, "packed", 24, mask_and_scale=True, storage_options=options)[0], decoded, "decoded")
    if "scalar" in expected:
        _, scalar = read(device, store, ["chunked", "scalar"], 24, storage_options=options)
        same(scalar, np.full(24, expected["scalar"]), "the scalar")


def test_from_and_to_servers(files, tmp_path, device, s3, s3_options):
    """References on a disk, a server and S3, to files on each of them."""
    from kerchunk.df import refs_to_dataframe

    expected = {k: v for k, v in by_xarray(files / "virtualizarr.json").items() if k in ("gzip", "chunked", "time")}
    prefix = f"references-{device}"
    upload(s3, files / "data", f"{prefix}/data")
    with Server(tmp_path) as server:
        shutil.copytree(files / "data", tmp_path / "data")
        for number, where in enumerate((f"file://{files}/data", f"{server.url}/data", f"s3://bucket/{prefix}/data")):
            folder = tmp_path / f"references{number}"
            folder.mkdir()
            refs = json.loads((files / "virtualizarr.json").read_text())
            refs = rewritten(refs, files / "data", where)
            (folder / "refs.json").write_text(json.dumps(refs))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                refs_to_dataframe(refs, str(folder / "refs.parq"), record_size=5)
            upload(s3, folder, f"{prefix}/{number}")
            for name in ("refs.json", "refs.parq"):
                for path in (f"{folder}/{name}", f"{server.url}/{folder.name}/{name}", f"s3://bucket/{prefix}/{number}/{name}"):
                    options = {"virtual_chunks": where} | (s3_options if "s3:" in where + path else {})
                    check_all(device, path, expected, storage_options=options)
        assert {method for method, _ in server.counts()} == {"GET"}, "nothing is listed, nothing asked for its size"


def test_files_are_read_only_where_they_may_be(files, tmp_path, monkeypatch):
    refs = json.loads((files / "kerchunk.json").read_text())
    absolute = f"{files}/data/a.nc"
    monkeypatch.chdir(files)
    for url in (absolute, f"file://{absolute}", f"local://{absolute}", "data/a.nc", "./data/../data/a.nc"):
        document = tmp_path / "refs.json"
        document.write_text(json.dumps(rewritten(json.loads(json.dumps(refs)), absolute, url)))
        message = rf"chunked/\d+\.0\.0.*found a virtual one, at file://{absolute}; .*\"virtual_chunks\": \"file://{files}/data/\""
        for options in ({}, {"storage_options": {"virtual_chunks": f"file://{tmp_path}"}}):
            with pytest.raises(RuntimeError, match=message):
                read("cpu", document, "chunked", 24, **options)
            # What is inline needs no permission.
            same(read("cpu", document, "lat", 8, **options)[0], by_xarray(files / "kerchunk.json")["lat"], "inline")
        options = {"storage_options": {"virtual_chunks": f"file://{files}/data/"}}
        check_all("cpu", document, {"chunked": by_xarray(files / "kerchunk.json")["chunked"]}, **options)


def test_what_a_path_may_be(files, tmp_path, monkeypatch):
    """By its name, its content, or the scheme; joined with other stores."""
    monkeypatch.chdir(tmp_path)
    options = {"storage_options": {"virtual_chunks": f"file://{files}/data"}}
    want = {"chunked": by_xarray(files / "kerchunk.json")["chunked"]}
    shutil.copy(files / "kerchunk.json", "document")
    shutil.copytree(files / "kerchunk.parq", "folder")
    for path in ("document", "reference://document", f"reference://{tmp_path}/document", "reference::document",
                 f"reference://file://{tmp_path}/document", "folder", "reference://folder", f"file://{tmp_path}/folder"):
        check_all("cpu", path, want, **options)
    with Server(tmp_path) as server:
        for path in (f"reference://{server.url}/document", f"{server.url}/folder"):
            check_all("cpu", path, want, **options)
    # Found to be references when their metadata are read.
    with pytest.raises(RuntimeError, match="virtual_chunks"):
        check_all("cpu", "folder", want)
    same(read("cpu", "folder", "lat", 8)[0], by_xarray(files / "kerchunk.json")["lat"], "inline, without options")
    array = zarr.open_group(tmp_path / "z", mode="w").create_array(
        "chunked", shape=SHAPE, dtype="float32", chunks=(1, 8, 16), dimension_names=DIMS
    )
    array[:] = want["chunked"] + 1
    joined = build("cpu", 48, path=["document", tmp_path / "z", "folder"], arrays=["chunked"], dims=["time"], **options)
    found = np.concatenate([to_numpy(joined.run()[0]) for _ in range(2)])[:72]
    same(found, np.concatenate([want["chunked"], array[:], want["chunked"]]), "joined")
    for path, options, words in [
        ("reference://", {}, "expected a path or URL behind reference://"),
        ("reference://z", {}, r"expected references, a JSON document or a directory with \.zmetadata"),
        ("reference://none", {}, "there is nothing"),
        ("document", {"tag": "v1"}, "expected an Icechunk repository"),
    ]:
        with pytest.raises(ValueError, match=words):
            build("cpu", 1, path=path, arrays=["chunked"], storage_options=options)


def test_damaged_parquet_is_an_error(files, tmp_path):
    options = {"virtual_chunks": f"file://{files}/data"}

    def fails(words, kind=RuntimeError, rebuild=lambda _: None):
        folder = tmp_path / "refs.parq"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(files / "virtualizarr.parq", folder)
        rebuild(folder)
        with pytest.raises(kind, match=words):
            read("cpu", folder, "chunked", 24, storage_options=options)

    def replaced(bytes_):
        return lambda folder: (folder / "chunked/refs.0.parq").write_bytes(bytes_)

    whole = (files / "virtualizarr.parq/chunked/refs.0.parq").read_bytes()
    fails(r"chunked/\d\.0\.0.*chunked/refs\.0\.parq: expected a Parquet file", rebuild=replaced(b"something else" * 9))
    fails("it is truncated", rebuild=replaced(whole[:-9]))
    fails("the Parquet file is damaged", rebuild=replaced(whole[:4] + bytes(60) + whole[64:]))
    # A page that claims two billion values, as the first one's number is the count of URLs.
    at = whole.index(b"\x4c\x15", 4)
    fails("the Parquet file is damaged", rebuild=replaced(whole[: at + 2] + b"\xfe\xff\xff\xff\x0f" + whole[at + 3 :]))

    def metadata(**change):
        def change_it(folder):
            file = folder / ".zmetadata"
            file.write_text(json.dumps(json.loads(file.read_text()) | change))

        return change_it

    fails("expected row 9, but found 10 rows|expected row", rebuild=metadata(record_size=1000))
    fails(r'expected an integer "record_size"', ValueError, metadata(record_size="many"))
    fails(r'expected an object "metadata"', ValueError, metadata(metadata=7))

    def all_gone(folder):
        (folder / "chunked/refs.0.parq").unlink()

    # A file that isn't there has no references: fsspec takes it so too.
    folder = tmp_path / "refs.parq"
    shutil.rmtree(folder)
    shutil.copytree(files / "virtualizarr.parq", folder)
    all_gone(folder)
    found = read("cpu", folder, "chunked", 24, storage_options=options)[0]
    same(found, by_xarray(folder)["chunked"], "as xarray")
    assert (found[:20] == 0).all() and (found[20:] != 0).any()


def test_checkpoints_go_on(files):
    options = {"storage_options": {"virtual_chunks": f"file://{files}/data"}, "arrays": ["gzip"], "checkpointing": True}
    want = by_xarray(files / "kerchunk.json")["gzip"]
    pipe = build("cpu", 2, path=files / "kerchunk.json", **options)
    for _ in range(3):
        pipe.run()
    resumed = build("cpu", 2, path=files / "kerchunk.parq", checkpoint=pipe.checkpoint(), **options)
    same(to_numpy(resumed.run()[0]), want[6:8], "goes on, whichever references are read")


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_caches(files, tmp_path, cache):
    shutil.copytree(files / "data", tmp_path / "data")
    want = by_xarray(files / "virtualizarr.json")["gzip"]
    with Server(tmp_path) as server:
        refs = rewritten(json.loads((files / "virtualizarr.json").read_text()), files / "data", f"{server.url}/data")
        (tmp_path / "refs.json").write_text(json.dumps(refs))
        folder = {"cache_dir": str(tmp_path / "cache"), "cache_dir_size": 1 << 24}
        args = {"cache_size": 1 << 22} if cache == "memory" else folder
        args |= {"storage_options": {"virtual_chunks": server.url}, "arrays": ["gzip"], "dims": [0]}
        for path in (tmp_path / "refs.json", f"{server.url}/refs.json"):
            pipe = build("cpu", 24, path=path, dali_queue=1, prefetch_queue_depth=1, **args)
            for epoch in range(3):
                same(to_numpy(pipe.run()[0]), want, f"epoch {epoch}")
            del pipe
        server.take_log()
        if cache == "disk":
            pipe = build("cpu", 24, path=f"{server.url}/refs.json", cache_validate=False, **args)
            same(to_numpy(pipe.run()[0]), want, "from the disk")
            assert [path for _, path, _ in server.take_log() if path.startswith("/data")] == []


@pytest.mark.parametrize("form", ["json", "parq"])
@pytest.mark.parametrize("validate", [True, False])
def test_a_cached_chunk_is_that_of_the_reference(tmp_path, form, validate):
    """References that are written anew and lead elsewhere, though no file has changed."""
    pytest.importorskip("fastparquet")
    from kerchunk.df import refs_to_dataframe

    array = {
        "zarr_format": 2, "shape": [4, 4], "chunks": [1, 4], "dtype": "<i4", "order": "C", "compressor": None, "filters": None,
        "fill_value": 0,
    }
    values = np.arange(32, dtype="<i4").reshape(2, 4, 4)
    for name, part in zip("xy", values, strict=True):
        part.tofile(tmp_path / name)
    path = tmp_path / f"refs.{form}"

    def write(places) -> None:
        refs = {".zgroup": json.dumps({"zarr_format": 2}), "t/.zarray": json.dumps(array)}
        refs |= {f"t/{i}.0": [f"{server.url}/{name}", 16 * row, 16] for i, (name, row) in enumerate(places)}
        if form == "json":
            path.write_text(json.dumps(refs))
        else:
            shutil.rmtree(path, ignore_errors=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                refs_to_dataframe(refs, str(path), record_size=10)

    with Server(tmp_path) as server:
        args = {"storage_options": {"virtual_chunks": server.url}, "cache_dir": str(tmp_path / "cache"), "cache_validate": validate}
        for places, asked in (
            ([("x", 0), ("x", 1), ("x", 2), ("x", 3)], 4), ([("x", 0), ("x", 1), ("x", 3), ("y", 3)], 2),
            ([("x", 0), ("x", 1), ("x", 3), ("y", 3)], 0),
        ):
            write(places)
            server.take_log()
            want = np.stack([values["xy".index(name)][row] for name, row in places])
            same(read("cpu", path, "t", 4, **args)[0], want, f"{places}")
            log = [method for method, _, _ in server.take_log()]
            assert log.count("GET") == asked, log
            assert validate or "HEAD" not in log, "it asks"


@pytest.mark.parametrize("form", ["json", "parq"])
def test_near_ranges_are_one_request(files, tmp_path, form):
    """Of a variable whose twelve chunks lie back to back. Each Parquet file of references is read once."""
    from kerchunk.df import refs_to_dataframe

    shutil.copytree(files / "data", tmp_path / "data")
    want = by_xarray(files / "virtualizarr.json")["chunked"]
    with Server(tmp_path) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        name = f"refs.{form}"
        refs = rewritten(json.loads((files / "virtualizarr.json").read_text()), files / "data", f"{server.url}/data")
        if form == "json":
            (tmp_path / name).write_text(json.dumps(refs))
        else:
            refs_to_dataframe(refs, str(tmp_path / name), record_size=10)
        options = {"virtual_chunks": server.url}
        for path in (tmp_path / name, f"{server.url}/{name}"):
            for how in ({}, {"cache_size": 1 << 20}):
                server.take_log()
                same(read("cpu", path, "chunked", 24, storage_options=options, **how)[0], want, f"{path}")
                log = server.take_log()
                assert {method for method, _, _ in log} <= {"GET"}
                ranges = [range_ for _, path, range_ in log if path == "/data/a.nc"]
                # One for the chunks of each of the two Parquet files, or one for all, if both were read before.
                assert 1 <= len(ranges) <= (2 if form == "parq" else 1), ranges
                for i in range(2):
                    assert sum(path.endswith(f"chunked/refs.{i}.parq") for _, path, _ in log) <= 1, log


def test_near_virtual_chunks_of_icechunk_are_one_read(files):
    import dali_zarr

    options = {"virtual_chunks": f"file://{files}/data"}
    pipe = build("cpu", 24, path=files / "virtualizarr.icechunk", arrays=["chunked"], storage_options=options)
    same(to_numpy(pipe.run()[0]), by_xarray(files / "virtualizarr.json")["chunked"], "values")
    counters = dali_zarr.counters(pipe)["reader"]
    assert (counters["chunks_read"], counters["reads"]) == (12, 1), counters


@pytest.mark.parametrize("writer", ["kerchunk.json", "kerchunk.parq"])
def test_explain(files, writer):
    """Reads no data, and needs no permission to."""
    import dali_zarr

    found = dali_zarr.explain(path=str(files / writer), arrays=["gzip"], batch_size=4, random_shuffle=True)
    assert found["samples"] == 24 and found["reads"]["in_order"]["chunks"] == 24


@pytest.mark.parametrize("writer", WRITERS)
def test_labels(files, writer):
    """Coordinates are references, too."""
    options = {"virtual_chunks": f"file://{files}/data"}
    expected = by_xarray(files / writer)
    label = float(expected["lat"][5])
    found = read("cpu", files / writer, "chunked", 24, pick={"lat": [label]}, storage_options=options)[0]
    same(found, expected["chunked"][:, 5:6], "the latitude")
