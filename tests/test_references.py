"""References as stores: what kerchunk and VirtualiZarr write of NetCDF files, as JSON, Parquet and Icechunk, beside xarray."""

from __future__ import annotations

import base64
import json
import shutil
import warnings
from collections import Counter

import numpy as np
import pytest
import zarr
from support.pipelines import build, same, to_numpy
from support.remote import upload
from support.server import Server

SHAPE = (24, 8, 16)
DIMS = ("time", "lat", "lon")
WRITERS = ["kerchunk.json", "kerchunk.parq", "virtualizarr.json", "virtualizarr.parq", "virtualizarr.icechunk"]


def write_hdf(file, values):
    """NetCDF 4 in each way that HDF5 stores arrays."""
    import h5netcdf

    with h5netcdf.File(file, "w") as f:
        f.dimensions = dict(zip(DIMS, SHAPE, strict=True))

        def write(name, data, dims=DIMS, **how):
            variable = f.create_variable(name, dims, data.dtype, **how)
            variable[...] = data
            return variable

        write("time", np.arange(24, dtype="int64"), ("time",))
        write("lat", np.linspace(-90, 90, 8), ("lat",))
        write("contiguous", values)
        write("chunked", values, chunks=(2, 8, 16))
        write("gzip", values, chunks=(2, 4, 16), compression="gzip", compression_opts=4, shuffle=True)
        write("fletcher", values, chunks=(3, 8, 16), fletcher32=True)
        write("all", values, chunks=(3, 8, 16), compression="gzip", shuffle=True, fletcher32=True)
        write("big", values.astype(">f4"), chunks=(1, 8, 16))
        packed = write("packed", (values * 100).astype("int16"), chunks=(5, 3, 7), compression="gzip", fillvalue=-32768)
        packed[3, :, 2] = -32768
        packed.attrs.update({"scale_factor": 0.01, "add_offset": 1.5})
        write("scalar", np.float64(3.5), ())


def write_references(folder, file):
    """With each writer; Parquet files have few rows, so that an array has several."""
    from kerchunk.df import refs_to_dataframe
    from kerchunk.hdf import SingleHdf5ToZarr

    references = SingleHdf5ToZarr(str(file), inline_threshold=120).translate()
    (folder / "kerchunk.json").write_text(json.dumps(references))
    with warnings.catch_warnings():
        # pandas has fastparquet for old; kerchunk writes with it.
        warnings.simplefilter("ignore")
        refs_to_dataframe(references, str(folder / "kerchunk.parq"), record_size=7)
        virtualize(folder, file)


def virtualize(folder, file):
    import icechunk
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_dataset
    from virtualizarr.parsers import HDFParser

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    dataset = open_virtual_dataset(f"file://{file}", registry=registry, parser=HDFParser(), loadable_variables=["time"])
    # Of arrays without dimensions it writes a key that nobody reads.
    dataset = dataset.drop_vars("scalar")
    dataset.vz.to_kerchunk(str(folder / "virtualizarr.json"), format="json")
    dataset.vz.to_kerchunk(
        str(folder / "virtualizarr.parq"), format="parquet", record_size=10, categorical_threshold=2
    )
    container = f"file://{file.parent}/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(container, icechunk.local_filesystem_store(str(file.parent)))
    )
    storage = icechunk.local_filesystem_storage(str(folder / "virtualizarr.icechunk"))
    repository = icechunk.Repository.create(
        storage, config=config, authorize_virtual_chunk_access=icechunk.containers_credentials({container: None})
    )
    session = repository.writable_session("main")
    dataset.vz.to_icechunk(session.store)
    session.commit("virtual")


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


def by_xarray(store, mask_and_scale=False):
    """All variables, with xarray's values."""
    import xarray

    if store.suffix == ".icechunk":
        import icechunk

        container = f"file://{store.parent}/data/"
        repository = icechunk.Repository.open(
            icechunk.local_filesystem_storage(str(store)),
            authorize_virtual_chunk_access=icechunk.containers_credentials({container: None}),
        )
        opened = {"filename_or_obj": repository.readonly_session("main").store}
    else:
        opened = {
            "filename_or_obj": "reference://", "storage_options": {"fo": str(store), "remote_protocol": "file"},
        }
    dataset = xarray.open_dataset(
        **opened, engine="zarr", consolidated=False, decode_times=False, mask_and_scale=mask_and_scale
    )
    return {name: native(variable.values) for name, variable in dataset.variables.items()}


def native(values):
    return np.asarray(values, values.dtype.newbyteorder("="))


def read(device, path, name, count, **args):
    """The first samples, of which there are as many as the first dimension is long."""
    args = {"mask_and_scale": False, "arrays": name if isinstance(name, list) else [name]} | args
    pipe = build(device, count, path=path, dims=[0], **args)
    return [to_numpy(out) for out in pipe.run()]


def check_all(device, path, expected, **args):
    for name, want in expected.items():
        if want.ndim:
            same(read(device, path, name, len(want), **args)[0], want, f"{path}: {name}")


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


def rewritten(refs, old, new):
    """References with other URLs."""
    out = dict(refs)
    for key, value in refs["refs"].items():
        if isinstance(value, list):
            out["refs"][key] = [value[0].replace(str(old), new), *value[1:]]
    return out


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


def document(folder, refs, name="refs.json", **more):
    file = folder / name
    file.write_text(json.dumps({"version": 1, "refs": refs} | more))
    return file


def zarray(shape, chunks, dtype="<f4", **more):
    return json.dumps({
        "zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": dtype, "compressor": None, "fill_value": None,
        "filters": None, "order": "C",
    } | more)


def test_inline_values_whole_files_ranges_and_missing_ones(tmp_path, values, device):
    data = tmp_path / "the data %41"
    data.mkdir()
    for i in range(24):
        (data / f"part {i}").write_bytes(values[i].tobytes())
    (data / "all").write_bytes(b"head" + values.tobytes())
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": zarray(SHAPE, (1, 8, 16), fill_value=-5.0)}
    refs["a/.zattrs"] = {"_ARRAY_DIMENSIONS": list(DIMS)}
    expected = values.copy()
    for i, key in enumerate(f"a/{i}.0.0" for i in range(24)):
        match i % 4:
            case 0:
                refs[key] = "base64:" + base64.b64encode(values[i].tobytes()).decode()
            case 1:
                refs[key] = [f"{data}/part {i}"]
            case 2:
                refs[key] = [f"file://{data}/all", 4 + 512 * i, 512]
            case _:
                expected[i] = -5
    refs |= {"text/.zarray": zarray([8], [8], "|u1"), "text/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]}, "text/0": "01234567"}
    options = {"virtual_chunks": f"file://{str(data).replace('%', '%25')}"}
    version0 = tmp_path / "version-0"
    version0.write_text("\n" + json.dumps(refs))
    for path in (document(tmp_path, refs), version0):
        same(read(device, path, "a", 24, storage_options=options)[0], expected, "a")
        same(read(device, path, "text", 8)[0], np.frombuffer(b"01234567", "u1"), "text")
    same(read("cpu", path, "a", 24, storage_options=options, cache_size=1 << 20)[0], expected, "with a cache")
    (data / "part 5").unlink()
    with pytest.raises(RuntimeError, match=r"a/5\.0\.0.*expected the object file://.*/part 5, but found nothing"):
        read("cpu", path, "a", 24, storage_options=options)
    (data / "part 5").write_bytes(values[5].tobytes())
    (data / "all").write_bytes(bytes(600))
    with pytest.raises(RuntimeError, match=r"a/\d+\.0\.0.*expected 512 bytes at offset \d+, but the value ends before"):
        read("cpu", path, "a", 24, storage_options=options)


def test_templates_and_generators_are_those_of_fsspec(tmp_path, values):
    """Rendered by Jinja there, by own code here."""
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("jinja2")
    data = tmp_path / "data"
    data.mkdir()
    for i in range(4):
        (data / f"part-{i:03}.bin").write_bytes(b"-" * (i + 1) + values[6 * i : 6 * i + 6].tobytes())
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": zarray(SHAPE, (1, 8, 16))}
    refs["a/.zattrs"] = {"_ARRAY_DIMENSIONS": list(DIMS)}
    templates = {"root": f"file://{data}", "file": "file://{{folder}}/part-{{'%03d' % n}}.bin"}
    generators = [
        {
            "key": "a/{{6 * i + j}}.0.0", "url": "{{root}}/part-{{ '%03d' % i }}.bin", "offset": "{{i + 1 + j * 512}}",
            "length": "{{2 ** 9}}", "dimensions": {"i": {"stop": 3}, "j": [0, 1, 2, 3, 4, 5]},
        },
        {
            "key": "a/{{ i }}.0.{{ (i - 18) // 6 }}", "url": f"{{{{ file(folder='{data}', n=3) }}}}",
            "offset": "{{4 + (i % 6) * 512}}", "length": "512", "dimensions": {"i": {"start": 23, "stop": 18, "step": -1}},
        },
        {
            "key": "{{a}}{{ b ~ '-' ~ 1 }}", "url": "x{{ -7 // 2}}",
            "dimensions": {"a": ["p", "q"], "b": {"start": 1, "stop": 6, "step": 2}},
        },
    ]
    refs["a/18.0.0"] = ["{{root}}/part-003.bin", 4, 512]
    path = document(tmp_path, refs, templates=templates, gen=generators)
    theirs = fsspec.filesystem("reference", fo=str(path), simple_templates=False, remote_protocol="file").references
    assert {k for k in theirs if k.startswith("a/")} == {f"a/{i}.0.0" for i in range(24)} | {"a/.zarray", "a/.zattrs"}
    assert theirs["p5-1"] == ["x-4"]
    same(read("cpu", path, "a", 24, storage_options={"virtual_chunks": f"file://{data}"})[0], values, "rendered")


def test_v3_shards_and_groups(tmp_path, device, values):
    """Whole files as shards, of which single inner chunks are read."""
    group = zarr.open_group(tmp_path / "data", mode="w")
    how = {"chunks": (1, 4, 16), "shards": (6, 8, 16), "dimension_names": DIMS}
    array = group.create_array("g/a", shape=SHAPE, dtype="float32", **how)
    array[:] = values
    refs = {}
    for file in (tmp_path / "data").rglob("*"):
        if file.is_file():
            key = str(file.relative_to(tmp_path / "data"))
            refs[key] = file.read_text() if file.name == "zarr.json" else [str(file)]
    path = document(tmp_path, refs)
    options = {"virtual_chunks": f"file://{tmp_path}/data"}
    same(read(device, path, "g/a", 24, storage_options=options)[0], values, "g/a")
    (tmp_path / "group").mkdir()
    with pytest.raises(ValueError, match=r"expected an array 'b', but found only the array 'g/a'"):
        build("cpu", 1, path=path, arrays=["b"])


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


def test_documents_that_are_not_references_are_errors(tmp_path):
    meta = {".zgroup": '{"zarr_format": 2}', "a/.zarray": zarray([4], [1]), "a/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]}}

    def version1(refs=None, **more):
        return {"version": 1, "refs": refs or {}} | more

    def generator(**dims):
        return version1(gen=[{"key": "k{{i}}", "url": "u", "dimensions": dims}])

    doubling = "'x'"
    for i in range(40):
        doubling = f"t{i}(c={doubling})"
    twice = {f"t{i}": "{{c}}{{c}}" for i in range(40)}
    cycle = {"a": "{{b(c=1)}}", "b": "{{a(c=1)}}"}
    for content, words in [
        ('{"a": ', "expected references as JSON, but found other text at line 1"),
        ({"version": 7, "refs": {}}, "expected version 1 of references, or none, but found 7"),
        ({"zarr_format": 3}, 'key "zarr_format": expected a reference'),
        (meta | {"a/0": ["u", 2**64 - 1, 5]}, "expected a range within a file"),
        (meta | {"a/0": ["u", -5, 5]}, "expected a reference"),
        (meta | {"a/0": ["u", 5]}, "expected a reference"),
        (meta | {"a/0": "base64:AAA"}, "expected base64"),
        (version1({"k": ["{{a(c=1)}}"]}, templates=cycle), "the name of a template"),
        (version1({"k": [f"{{{{{doubling}}}}}"]}, templates=twice), "shorter expression|at most 65536 bytes"),
        (version1({"k": ["{{ ''.__class__ }}"]}, templates={"a": "b"}), "but found '.'"),
        (generator(i={"stop": 10**12}), "at most 16777216 references"),
        (generator(**{f"d{i}": {"stop": 10} for i in range(40)}), "at most 16777216 references"),
        (generator(i={"stop": 5, "step": 0}), "start, stop and step"),
    ]:
        (tmp_path / "refs.json").write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(ValueError, match=f"refs.json, as references: .*({words})"):
            build("cpu", 1, path=tmp_path / "refs.json", arrays=["a"])
    with pytest.raises(ValueError, match="expected a JSON document, but found nothing"), Server(tmp_path) as server:
        build("cpu", 1, path=f"{server.url}/none.json", arrays=["a"])


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


def test_netcdf_3(tmp_path, values, device):
    pytest.importorskip("kerchunk")
    scipy_io = pytest.importorskip("scipy.io")
    from kerchunk.netCDF3 import NetCDF3ToZarr

    with scipy_io.netcdf_file(str(tmp_path / "a.nc"), "w") as f:
        f.createDimension("time", None)
        for name, size in zip(DIMS[1:], SHAPE[1:], strict=True):
            f.createDimension(name, size)
        f.createVariable("a", "f4", DIMS)[:] = values
        f.createVariable("b", "i2", DIMS)[:] = (values * 100).astype("int16")
        f.createVariable("lat", "f8", ("lat",))[:] = np.arange(8)
    references = NetCDF3ToZarr(str(tmp_path / "a.nc"), inline_threshold=0).translate()
    path = tmp_path / "refs.json"
    path.write_text(json.dumps(references))
    options = {"virtual_chunks": f"file://{tmp_path}"}
    check_all(device, path, by_xarray(path), storage_options=options)


def test_a_codec_that_the_reader_lacks_is_named(tmp_path):
    """As GRIB messages have: kerchunk gives each to ecCodes as a whole."""
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]}}
    refs["a/.zarray"] = zarray([4], [4], "<f8", filters=[{"id": "grib", "var": "t", "dtype": "float64"}])
    with pytest.raises(ValueError, match="grib"):
        build("cpu", 1, path=document(tmp_path, refs), arrays=["a"])


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


def gets(server, path):
    """The ranges of a file that were asked for."""
    log = server.take_log()
    assert {method for method, _, _ in log} == {"GET"}
    return [range_ for _, found, range_ in log if found == path]


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


def test_far_ranges_and_other_files_are_read_apart(tmp_path, values):
    """Gaps of more than half a megabyte, and chunks that lie in turns in two files."""
    gap = 600_000
    (tmp_path / "far").write_bytes(b"".join(values[i].tobytes() + bytes(gap) for i in range(24)))
    for name in "ab":
        (tmp_path / name).write_bytes(values.tobytes())
    head = {".zgroup": '{"zarr_format": 2}', "v/.zattrs": {"_ARRAY_DIMENSIONS": list(DIMS)}, "v/.zarray": zarray(SHAPE, (1, 8, 16))}
    with Server(tmp_path) as server:
        far = {f"v/{i}.0.0": [f"{server.url}/far", i * (512 + gap), 512] for i in range(24)}
        turns = {f"v/{i}.0.0": [f"{server.url}/{'ab'[i % 2]}", i * 512, 512] for i in range(24)}
        for refs, requests in ((far, {"/far": 24}), (turns, {"/a": 1, "/b": 1})):
            path = document(tmp_path, head | refs)
            server.take_log()
            same(read("cpu", path, "v", 24, storage_options={"virtual_chunks": server.url})[0], values, "values")
            assert dict(Counter(path for _, path, _ in server.take_log())) == requests


def test_a_chunk_that_is_wrong_fails_alone(tmp_path, values):
    """Though it would be read together with others."""
    (tmp_path / "data").write_bytes(values.tobytes())
    refs = {".zgroup": '{"zarr_format": 2}', "v/.zattrs": {"_ARRAY_DIMENSIONS": list(DIMS)}, "v/.zarray": zarray(SHAPE, (1, 8, 16))}
    refs |= {f"v/{i}.0.0": [f"{tmp_path}/data", i * 512 + (100 if i == 23 else 0), 512] for i in range(24)}
    pipe = build(
        "cpu", 6, path=document(tmp_path, refs), arrays=["v"], storage_options={"virtual_chunks": f"file://{tmp_path}"}
    )
    for i in range(3):
        same(to_numpy(pipe.run()[0]), values[6 * i : 6 * i + 6], f"batch {i}")
    with pytest.raises(RuntimeError, match=r"v/23\.0\.0.*expected 512 bytes at offset 11876, but the value ends before"):
        pipe.run()


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
