"""``rechunk``: what is written equals the source by zarr-python, to the bit; options, stores, errors."""

from __future__ import annotations

import functools
import json
import warnings

import dali_zarr
import numpy as np
import pytest
import xarray
import zarr
from dali_zarr._rechunk import execute
from support.command_line import command
from support.references import write_hdf, write_references
from support.remote import upload
from support.stores import CODECS_V2, CODECS_V3, DTYPES, Layout, sample_values, write_array, write_era5

pytest.importorskip("dask")
# zarr-python warns of consolidated metadata in Zarr v3.
pytestmark = pytest.mark.filterwarnings("ignore")

DIMS = ("time", "lat", "lon")
SHAPE = (24, 8, 16)


@pytest.fixture
def run(monkeypatch, capsys):
    return functools.partial(command, monkeypatch, capsys, "rechunk")


def bits(values):
    return np.ascontiguousarray(values).tobytes()


def done(run, *words):
    """Runs the command, which must succeed; gives its report."""
    status, out, err = run(*words, "--json", "--quiet")
    assert status == 0, err
    return json.loads(out)


def same(source, target, names=None):
    """Asserts that arrays of two stores have the same bits; gives the target's group."""
    one, other = zarr.open_group(str(source), mode="r"), zarr.open_group(str(target), mode="r")
    arrays = sorted(name for name, member in one.members(max_depth=None) if isinstance(member, zarr.Array))
    assert names is not None or arrays == sorted(name for name, m in other.members(max_depth=None) if isinstance(m, zarr.Array))
    for name in names or arrays:
        want, got = one[name][...], other[name][...]
        assert want.shape == got.shape and np.dtype(want.dtype).newbyteorder("=") == got.dtype, name
        assert bits(want.astype(got.dtype)) == bits(got), name
    return other


def test_the_function(tmp_path, run, capsys):
    """It does what the command does; its messages name its own arguments."""
    write_era5(tmp_path / "s", hours=20, chunk_hours=10, consolidated=True)
    found = dali_zarr.rechunk(
        tmp_path / "s", tmp_path / "t", chunks={"time": 1, "level": 1}, codec="zstd", arrays=["z"], isel={"time": slice(5, 12)},
        dtype="float16", memory="64MiB", workers=np.int64(1), verify=True,
    )
    words = "--chunks time=1,level=1 --codec zstd --arrays z --isel time=5:12 --dtype float16 --verify".split()
    by_command = done(run, tmp_path / "s", tmp_path / "u", *words)
    assert found["arrays"] == by_command["arrays"] and found["verified"] and not found["was_complete"] and found["why"] == []
    same(tmp_path / "t", tmp_path / "u")
    assert capsys.readouterr().err == ""
    chosen = dali_zarr.rechunk(tmp_path / "s", tmp_path / "v", for_reader={"window": 2, "batch_size": 4}, arrays="t2m")
    assert len(chosen["why"]) == 3 and chosen["why"][0].startswith("chunks time=2 (")
    for arguments, message in (
        ({"chunks": {"time": 0}}, "^dali_zarr: rechunk: chunks: expected DIM=EXTENT"),
        ({"zarr_format": 4}, "rechunk: zarr_format: expected 2 or 3, but found 4"),
        ({"arrays": []}, "rechunk: arrays: expected names of arrays, but found none"),
        ({"codec": 3}, "rechunk: codec: expected a codec's name"),
        ({"verify": "no"}, "rechunk: verify: expected true or false"),
        ({"workers": 2, "scheduler": "tcp://a:1"}, "rechunk: workers: expected workers or scheduler"),
        ({"for_reader": {"sel": {}}}, "rechunk: for_reader: expected arguments that say how samples are cut, but found sel"),
    ):
        with pytest.raises(ValueError, match=message):
            dali_zarr.rechunk(tmp_path / "s", tmp_path / "w", **arguments)


def test_chunks_by_dimension(tmp_path, run):
    """Those that are named, the rest whole; coordinates in one chunk; nothing else is left in the target."""
    write_era5(tmp_path / "s", hours=20, chunk_hours=10, consolidated=True)
    report = done(run, tmp_path / "s", tmp_path / "t", "--chunks", "time=1,level=1", "--verify")
    group = same(tmp_path / "s", tmp_path / "t")
    chunks = {name: group[name].chunks for name in ("t2m", "z", "lsm", "time")}
    assert chunks == {"t2m": (1, 12, 20), "z": (1, 1, 12, 20), "lsm": (12, 20), "time": (20,)}
    assert report["verified"] and not report["was_complete"]
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["lsm", "t2m", "time", "z", "zarr.json"]
    assert zarr.open_consolidated(str(tmp_path / "t"))["z"].metadata.dimension_names == ("time", "level", "latitude", "longitude")
    assert group["t2m"].compressors == zarr.open_group(str(tmp_path / "s"))["t2m"].compressors


@pytest.mark.parametrize("dtype", [*DTYPES, "complex64", "complex128"])
@pytest.mark.parametrize("formats", [(2, 2), (2, 3), (3, 2), (3, 3)], ids=str)
def test_types_keep_their_bits(tmp_path, run, dtype, formats):
    """In both directions between formats, with NaN, infinities, -0.0, the other byte order and chunks of nothing but -0.0."""
    before, after = formats
    kind = dtype if dtype != "complex64" and dtype != "complex128" else {"complex64": "float32", "complex128": "float64"}[dtype]
    values = sample_values(kind, SHAPE)
    if kind != dtype:
        values = (values + 1j * values[::-1]).astype(dtype)
    if values.dtype.kind in "fc":
        values[:8] = -0.0
    layout = Layout((5, 3, 7), order="F", big_endian=kind == dtype and values.itemsize > 1)
    write_array(tmp_path / "s", "a", values, zarr_format=before, codec="zstd", layout=layout, dims=DIMS)
    done(run, tmp_path / "s", tmp_path / "t", "--chunks", "time=4,lat=8", "--format", after)
    group = same(tmp_path / "s", tmp_path / "t")
    assert group["a"].metadata.zarr_format == after and group["a"].chunks == (4, 8, 16)
    assert bits(group["a"][...]) == bits(values)


@pytest.mark.parametrize("zarr_format, codec", [*((2, name) for name in CODECS_V2), *((3, name) for name in CODECS_V3)])
def test_codecs_of_the_source_are_kept(tmp_path, run, values, zarr_format, codec):
    write_array(tmp_path / "s", "a", values, zarr_format=zarr_format, codec=codec, layout=Layout((5, 3, 7)), dims=DIMS)
    done(run, tmp_path / "s", tmp_path / "t", "--chunks", "time=6")
    one, other = zarr.open_group(str(tmp_path / "s"))["a"], same(tmp_path / "s", tmp_path / "t")["a"]
    assert one.compressors == other.compressors and one.serializer == other.serializer


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "codec", ["none", "zstd", "zstd:-3", "gzip:1", "blosc-lz4", "blosc-zstd-bitshuffle:7", "blosc-lz4hc-noshuffle", "blosc-zlib"]
)
def test_codecs_by_name(tmp_path, run, values, zarr_format, codec):
    write_array(tmp_path / "s", "a", values, codec="gzip", layout=Layout((5, 3, 7)), dims=DIMS)
    done(run, tmp_path / "s", tmp_path / "t", "--codec", codec, "--format", zarr_format)
    array = same(tmp_path / "s", tmp_path / "t")["a"]
    assert array.chunks == (5, 3, 7)
    name, _, level = codec.partition(":")
    configs = [c.get_config() if zarr_format == 2 else c.to_dict()["configuration"] for c in array.compressors]
    if name == "none":
        assert not configs
        return
    (config,) = configs
    if name.startswith("blosc"):
        assert config["cname"] == name.split("-")[1]
    assert not level or int(level) == config["clevel" if "clevel" in config else "level"]


def test_checksums_and_lz4(tmp_path, run, values):
    write_array(tmp_path / "s", "a", values, layout=Layout((5, 3, 7)), dims=DIMS)
    done(run, tmp_path / "s", tmp_path / "t", "--codec", "zstd:1+crc32c")
    assert [type(c).__name__ for c in same(tmp_path / "s", tmp_path / "t")["a"].compressors] == ["ZstdCodec", "Crc32cCodec"]
    done(run, tmp_path / "s", tmp_path / "u", "--codec", "lz4", "--format", "2")
    assert same(tmp_path / "s", tmp_path / "u")["a"].compressors[0].codec_id == "lz4"


def test_filters_that_lose_nothing_are_kept(tmp_path, run):
    import numcodecs

    values = np.arange(24 * 8 * 16, dtype="i4").reshape(SHAPE)
    write_array(
        tmp_path / "s", "a", values, zarr_format=2, layout=Layout((5, 3, 7)), dims=DIMS, filters=[numcodecs.Delta("i4")],
    )
    quantised = [numcodecs.FixedScaleOffset(offset=0, scale=10, dtype="f4", astype="i2")]
    write_array(
        tmp_path / "s", "b", values.astype("f4") / 10, zarr_format=2, layout=Layout((5, 3, 7)), dims=DIMS, filters=quantised,
    )
    done(run, tmp_path / "s", tmp_path / "t", "--chunks", "time=2")
    group = same(tmp_path / "s", tmp_path / "t")
    assert [one.codec_id for one in group["a"].filters] == ["delta"] and not group["b"].filters


def test_shards(tmp_path, run, values):
    """Of whole arrays and of parts; sources in shards keep them, as far as they fit."""
    write_array(tmp_path / "s", "a", values, layout=Layout((5, 3, 7)), dims=DIMS)
    done(run, tmp_path / "s", tmp_path / "t", "--chunks", "time=1,lat=4", "--shards", "time=6")
    array = same(tmp_path / "s", tmp_path / "t")["a"]
    assert (array.chunks, array.shards) == ((1, 4, 16), (6, 8, 16))
    done(run, tmp_path / "t", tmp_path / "u", "--codec", "none")
    assert same(tmp_path / "s", tmp_path / "u")["a"].shards == (6, 8, 16)
    done(run, tmp_path / "t", tmp_path / "v", "--isel", "time=0..3")
    array = zarr.open_group(str(tmp_path / "v"))["a"]
    assert (array.shape, array.shards) == ((3, 8, 16), (3, 8, 16)) and bits(array[...]) == bits(values[:3])
    done(run, tmp_path / "t", tmp_path / "w", "--format", "2")
    assert same(tmp_path / "s", tmp_path / "w")["a"].chunks == (1, 4, 16)
    done(run, tmp_path / "t", tmp_path / "x", "--chunks", "time=7,lat=3,lon=16", "--shards", "time=7,lat=6,lon=16")
    assert same(tmp_path / "s", tmp_path / "x")["a"].shards == (7, 6, 16)


def test_types(tmp_path, run, values):
    """Numbers become others by NumPy's rules, labels and flags stay; fill values and missing values come along."""
    write_array(tmp_path / "s", "a", values.astype("f8"), layout=Layout((5, 3, 7)), dims=DIMS, fill_value=-1.5)
    write_array(tmp_path / "s", "i", (values * 100).astype("i2"), layout=Layout((5, 3, 7)), dims=DIMS)
    write_array(tmp_path / "s", "flag", values > 0, layout=Layout((5, 3, 7)), dims=DIMS)
    write_array(tmp_path / "s", "lat", np.linspace(-90, 90, 8), dims=("lat",))
    done(run, tmp_path / "s", tmp_path / "t", "--dtype", "float32", "--verify")
    one, other = zarr.open_group(str(tmp_path / "s")), zarr.open_group(str(tmp_path / "t"))
    assert {name: str(other[name].dtype) for name in ("a", "i", "flag", "lat")} == {
        "a": "float32", "i": "float32", "flag": "bool", "lat": "float64",
    }
    for name in ("a", "i"):
        assert bits(one[name][...].astype("f4")) == bits(other[name][...])
    assert other["a"].fill_value == np.float32(-1.5)


@pytest.mark.parametrize("formats", [(2, 2), (2, 3), (3, 2), (3, 3)], ids=str)
def test_packing_and_attributes_are_kept(tmp_path, run, formats):
    """xarray decodes source and target to the same values, attributes of all groups are equal, and missing chunks stay missing."""
    before, after = formats
    values = np.arange(24 * 8 * 16).reshape(SHAPE) * 0.5
    values[:5, :3] = np.nan
    clean = xarray.Dataset(
        {"packed": (DIMS, values, {"units": "K", "long_name": "höhe"}), "plain": (DIMS, values.astype("f4")),
         "count": (DIMS, np.arange(24 * 8 * 16).reshape(SHAPE))},
        {"time": xarray.date_range("2020-01-01", periods=24, freq="h", use_cftime=False), "lat": np.linspace(-90, 90, 8)},
        {"title": "a title", "history": ["a", {"b": 1}]},
    )
    encoding = {
        "packed": {"dtype": "int16", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -999, "chunks": (5, 3, 7)},
        "plain": {"_FillValue": -1e30, "chunks": (5, 3, 7)}, "count": {"chunks": (5, 3, 7)},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clean.to_zarr(tmp_path / "s", zarr_format=before, encoding=encoding)
        clean[["plain"]].to_zarr(tmp_path / "s", zarr_format=before, group="deep/er", mode="a")
    done(run, tmp_path / "s", tmp_path / "t", "--chunks", "time=1", "--format", after)
    same(tmp_path / "s", tmp_path / "t")
    for group in (None, "deep/er"):
        one, other = (xarray.open_zarr(tmp_path / path, group=group, consolidated=False) for path in "st")
        xarray.testing.assert_identical(one.load(), other.load())
        if before == after:
            raw = [xarray.open_zarr(tmp_path / path, group=group, consolidated=False, decode_cf=False).load() for path in "st"]
            xarray.testing.assert_identical(*raw)


def test_missing_chunks_stay_missing(tmp_path, run, values):
    """A sparse store doesn't grow: what equals the fill value to the bit isn't written. What only compares equal is."""
    values[8:] = 0
    values[16:] = -0.0
    write_array(tmp_path / "s", "a", values, layout=Layout((4, 8, 16)), dims=DIMS, missing=tuple((i, 0, 0) for i in (2, 3)))
    done(run, tmp_path / "s", tmp_path / "t", "--chunks", "time=2,lat=4")
    same(tmp_path / "s", tmp_path / "t")
    written = {int(file.parent.parent.name) for file in (tmp_path / "t/a/c").rglob("*") if file.is_file()}
    assert written == {0, 1, 2, 3, 8, 9, 10, 11}


def test_selection_by_label_and_position(tmp_path, run, values):
    """As xarray selects: slices, lists, steps, single elements, whose dimension is dropped; nearest labels."""
    write_array(tmp_path / "s", "a", values, layout=Layout((5, 3, 7)), dims=DIMS)
    write_array(tmp_path / "s", "time", np.arange(24), dims=("time",), attributes={"units": "hours since 2020-01-01"})
    write_array(tmp_path / "s", "lat", np.linspace(-70, 70, 8), dims=("lat",))
    dataset = xarray.open_zarr(tmp_path / "s", consolidated=False)
    for number, (words, expected) in enumerate({
        "--sel time=2020-01-01T05..2020-01-01T12": dataset.sel(time=slice("2020-01-01T05", "2020-01-01T12")),
        "--sel lat=-70,30": dataset.sel(lat=[-70, 30]),
        "--sel lat=31 --method nearest --isel time=3..20..4": dataset.sel(lat=31, method="nearest").isel(time=slice(3, 20, 4)),
        "--isel time=7 lon=15,0,3": dataset.isel(time=7, lon=[15, 0, 3]),
        "--isel time=-1 lat=0 lon=2": dataset.isel(time=-1, lat=0, lon=2),
    }.items()):
        target = tmp_path / str(number)
        done(run, tmp_path / "s", target, "--chunks", "lon=5", *words.split(), "--verify")
        xarray.testing.assert_identical(xarray.open_zarr(target, consolidated=False).load(), expected.load())


def test_some_arrays_and_their_coordinates(tmp_path, run):
    write_era5(tmp_path / "s", hours=6)
    write_array(tmp_path / "s", "deep/b", np.zeros((6, 12)), dims=("time", "latitude"))
    done(run, tmp_path / "s", tmp_path / "t", "--arrays", "t2m", "deep/b")
    found = zarr.open_group(str(tmp_path / "t"))
    assert sorted(name for name, m in found.members(max_depth=None) if isinstance(m, zarr.Array)) == ["deep/b", "t2m", "time"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_store_that_is_an_array(tmp_path, run, values, zarr_format):
    zarr.create_array(tmp_path / "s", data=values, chunks=(5, 3, 7), zarr_format=zarr_format, attributes={"k": [1]})
    done(run, tmp_path / "s", tmp_path / "t", "--chunks", "dim_0=1", "--verify")
    array = zarr.open_array(str(tmp_path / "t"))
    assert (array.chunks, dict(array.attrs), bits(array[...])) == ((1, 8, 16), {"k": [1]}, bits(values))


def test_arrays_of_other_kinds(tmp_path, run):
    """Scalars, empty arrays, text, bytes and times."""
    group = zarr.open_group(str(tmp_path / "s"))
    group.create_array("scalar", shape=(), dtype="f4")[...] = 3.5
    group.create_array("empty", shape=(0, 3), dtype="f4")
    group.create_array("text", data=np.array(["a", "", "ö" * 9], "T"))
    group.create_array("bytes", data=np.array([b"ab", b""], "S3"))
    group.create_array("times", data=np.array(["2020", "NaT"], "M8[h]"))
    done(run, tmp_path / "s", tmp_path / "t", "--codec", "zstd", "--verify")
    found = zarr.open_group(str(tmp_path / "t"))
    for name in ("scalar", "empty", "text", "bytes", "times"):
        assert np.array_equal(group[name][...], found[name][...], equal_nan=name == "times"), name


def test_stores_of_fsspec(tmp_path, run, values):
    """From memory and to it."""
    write_array(tmp_path / "s", "a", values, layout=Layout((5, 3, 7)), dims=DIMS)
    write_array(tmp_path / "s", "lat", np.linspace(-70, 70, 8), dims=("lat",))
    done(run, tmp_path / "s", "memory://rechunk/t", "--chunks", "time=2", "--verify")
    done(run, "memory://rechunk/t", tmp_path / "u", "--sel", "lat=-70..0", "--verify")
    assert bits(zarr.open_group(str(tmp_path / "u"))["a"][...]) == bits(values[:, :4])
    again = done(run, tmp_path / "s", "memory://rechunk/t", "--chunks", "time=2")
    assert again["was_complete"]


def test_object_stores(tmp_path, run, values, s3, s3_options):
    """S3 as source and target, by obstore."""
    write_array(tmp_path / "s", "a", values, layout=Layout((5, 3, 7)), dims=DIMS)
    upload(s3, tmp_path / "s", "rechunk-source")
    options = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in s3_options.items()]
    target = "s3://bucket/rechunk-target"
    done(
        run, "s3://bucket/rechunk-source", target, "--chunks", "time=2", "--verify", "--storage_options", *options,
        "--target_options", *options,
    )
    done(run, target, tmp_path / "t", "--storage_options", *options)
    same(tmp_path / "s", tmp_path / "t")


def test_zip_archives(tmp_path, run, values):
    with zarr.storage.ZipStore(tmp_path / "s.zip", mode="w") as store:
        zarr.create_array(store, name="a", data=values, chunks=(5, 3, 7))
    done(run, tmp_path / "s.zip", tmp_path / "t", "--chunks", "dim_0=1", "--verify")
    assert bits(zarr.open_group(str(tmp_path / "t"))["a"][...]) == bits(values)


def test_icechunk(tmp_path, run, values):
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "s")))
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", data=values, chunks=(5, 3, 7), dimension_names=DIMS)
    first = session.commit("first")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 0
    session.commit("second")
    done(run, tmp_path / "s", tmp_path / "t", "--chunks", "time=1", "--storage_options", f"snapshot_id={first}", "--verify")
    assert bits(zarr.open_group(str(tmp_path / "t"))["a"][...]) == bits(values)
    status, _, err = run(tmp_path / "t", tmp_path / "s", "--chunks", "time=1")
    assert status == 1 and "found an Icechunk repository" in err


@pytest.mark.parametrize("kind", ["json", "parq"])
def test_references(tmp_path, run, values, kind):
    """What kerchunk writes of a NetCDF file, packed, becomes a store of its own."""
    write_hdf(tmp_path / "a.nc", values)
    write_references(tmp_path, tmp_path / "a.nc")
    names = ["chunked", "gzip", "packed"]
    done(run, tmp_path / f"kerchunk.{kind}", tmp_path / "t", "--arrays", *names, "--chunks", "time=1", "--format", "3", "--codec",
         "blosc-lz4", "--verify")
    want = xarray.open_dataset(tmp_path / "a.nc", engine="h5netcdf")
    got = xarray.open_zarr(tmp_path / "t", consolidated=True)
    for name in names:
        assert bits(want[name].values) == bits(got[name].values), name


def test_memory_asks_for_a_second_copy(tmp_path, run):
    """Fields become time series within 24 MiB, through an intermediate array that is gone afterwards."""
    values = np.random.default_rng(0).standard_normal((200, 100, 400)).astype("f4")
    write_array(tmp_path / "s", "a", values, layout=Layout((1, 100, 400)), dims=DIMS, codec="none")
    report = done(
        run, tmp_path / "s", tmp_path / "t", "--chunks", "lat=10,lon=10", "--memory", "12MiB", "--workers", "2", "--verify",
    )
    (array,) = report["arrays"]
    assert array["intermediate"] is not None and array["intermediate"] != array["chunks"]
    assert same(tmp_path / "s", tmp_path / "t")["a"].chunks == (200, 10, 10)
    assert not (tmp_path / "t/.rechunk").exists()
    report = done(run, tmp_path / "s", tmp_path / "u", "--chunks", "lat=10,lon=10", "--memory", "1GiB", "--workers", "2")
    assert report["arrays"][0]["intermediate"] is None


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_complete_target_is_left_as_it_is(tmp_path, run, zarr_format):
    write_era5(tmp_path / "s", hours=6)
    words = (tmp_path / "s", tmp_path / "t", "--chunks", "time=2", "--format", zarr_format)
    done(run, *words)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "t").rglob("*")}
    assert done(run, *words, "--verify")["was_complete"]
    assert before == {file: file.stat().st_mtime_ns for file in (tmp_path / "t").rglob("*")}
    status, _, err = run(tmp_path / "s", tmp_path / "t", "--chunks", "time=3")
    assert status == 1 and "expected nothing there, but found other data" in err


def test_verify_finds_a_changed_value(tmp_path, run, values):
    write_array(tmp_path / "s", "a", values, layout=Layout((5, 3, 7)), dims=DIMS)
    words = (tmp_path / "s", tmp_path / "t", "--chunks", "time=2", "--verify", "--quiet")
    done(run, *words)
    # Only the sign of zero, or the bits of NaN.
    for place, wrong in (((3, 1, 2), -0.0), ((23, 7, 15), np.nan)):
        for path, value in (("s", abs(wrong)), ("t", wrong)):
            zarr.open_group(str(tmp_path / path))["a"][place] = np.float32(value) if value == value else np.float32(
                np.frombuffer((0x7FC00000 if path == "s" else 0xFFC00001).to_bytes(4, "little"), "f4")[0]
            )
        status, _, err = run(*words)
        assert status == 1 and f"array 'a': the element at {place} isn't the source's" in err
        zarr.open_group(str(tmp_path / "t"))["a"][place] = zarr.open_group(str(tmp_path / "s"))["a"][place]
    assert run(*words)[0] == 0


ERRORS = {
    "--chunks tim=1": "no array has a dimension 'tim'; did you mean time?",
    "--chunks time": "--chunks: expected DIM=EXTENT",
    "--chunks time=0": "with extents from 1 on, or -1 for all",
    "--chunks time=1,time=2": "expected each dimension once, but found 'time' twice",
    "--shards time=3 --chunks time=2": "expected a multiple of the chunk's 2 elements along 'time', but found 3",
    "--shards time=4 --format 2": "expected --format 3 with shards",
    "--format 4": "--format: expected 2 or 3, but found 4",
    "--codec zstandard": "--codec: expected one of none, zstd,",
    "--codec zstd:99": "zstd: expected a level from -131072 to 22, found 99",
    "--codec none:3": "none: expected no level, found 3",
    "--codec lz4": "expected blosc-lz4 in Zarr v3",
    "--codec zstd+crc32c --format 2": "expected no +crc32c in Zarr v2",
    "--dtype text": "--dtype: expected a type of NumPy's",
    "--dtype int8 --arrays a": "expected a floating-point type for float32 values, found int8",
    "--dtype float32": "array 'packed': its values are packed",
    "--dtype float16 --arrays large": "fill_value 1.0000000150474662e+30 is too large for float16",
    "--arrays b": "has no array 'b'",
    "--sel time=2021": "sel: 'time': ",
    "--isel time=30": "isel: 'time': index 30 is out of bounds",
    "--isel time=5..5": "expected at least one element",
    "--sel tme=3": "did you mean time?",
    "--sel time=3 --isel time=3": "expected one of both for each dimension",
    "--memory much": "--memory: expected a number of bytes",
    "--memory 3KB": "at least 1MiB for one chunk of 24x8x16 and the source's chunks of 24x8x16, but found 2.9 KiB",
    "--workers 0": "--workers: expected a number of tasks",
    "--workers 2 --scheduler tcp://h:1": "expected --workers or --scheduler",
    "--scheduler here": "--scheduler: expected an address",
    "--for window=": "--for: expected arguments of the reader",
    "--for winndow=3": "winndow",
    "--for path=3": "expected arguments that say how samples are cut, but found path",
    "--storage_options x": "expected NAME=VALUE",
}


@pytest.mark.parametrize("words", ERRORS)
def test_errors_come_before_the_first_byte(tmp_path, run, values, words):
    write_array(tmp_path / "s", "a", values, layout=Layout((5, 3, 7)), dims=DIMS)
    write_array(tmp_path / "s", "packed", values.astype("i2"), dims=DIMS, attributes={"scale_factor": 0.1})
    write_array(tmp_path / "s", "large", values, dims=DIMS, fill_value=1e30)
    write_array(tmp_path / "s", "time", np.arange(24), dims=("time",), attributes={"units": "hours since 2020-01-01"})
    status, out, err = run(tmp_path / "s", tmp_path / "t", *words.split())
    assert status in (1, 2) and ERRORS[words] in err and not out, err
    assert "Traceback" not in err and not (tmp_path / "t").exists()


def test_errors_of_places(tmp_path, run, values, monkeypatch):
    monkeypatch.setattr(execute, "_CONNECTING", 0.5)
    write_array(tmp_path / "s", "a", values, layout=Layout((5, 3, 7)), dims=DIMS)
    (tmp_path / "file").write_text("")
    for words, message in (
        ((tmp_path / "s",), "expected SOURCE and TARGET"),
        ((tmp_path / "none", tmp_path / "t"), "it can't be opened"),
        ((tmp_path / "s", tmp_path / "s"), "outside of the source"),
        ((tmp_path / "s", tmp_path / "s/t"), "outside of the source"),
        ((tmp_path / "s", tmp_path), "outside of the source"),
        ((tmp_path / "s", tmp_path / "file"), "but found a file"),
        ((tmp_path / "s", "https://host/t"), "expected a folder or a URL of an object store"),
        ((tmp_path / "s", tmp_path / "t.zip"), "expected a folder or a URL of an object store"),
        ((tmp_path / "s", tmp_path / "t", "--scheduler", "tcp://127.0.0.1:1"), "scheduler"),
        ((tmp_path / "s", tmp_path / "t", "--device", "gpu"), "this command has no such argument"),
    ):
        status, out, err = run(*words)
        assert status in (1, 2) and message in err and not out, (words, err)
        assert "Traceback" not in err and not (tmp_path / "t").exists() and not (tmp_path / "s/t").exists()


def test_what_people_see(tmp_path, run, values):
    """A bar while it works, then what was written, and at what rate."""
    write_array(tmp_path / "s", "a", values, layout=Layout((5, 3, 7)), dims=DIMS)
    status, out, err = run(tmp_path / "s", tmp_path / "t", "--chunks", "time=2", "--verify")
    assert status == 0 and "rechunk" in err and "verify" in err
    assert "a: 24x8x16 float32 in chunks of 2x8x16, before 5x3x7" in out and "all values are those of the source" in out
