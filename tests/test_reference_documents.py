"""Documents of references that were written by hand: every form that fsspec reads, and those that are errors."""

from __future__ import annotations

import base64
import json
from collections import Counter

import numpy as np
import pytest
import zarr
from support.pipelines import build, same, to_numpy
from support.references import DIMS, SHAPE, by_xarray, check_all, document, read, zarray
from support.server import Server


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
