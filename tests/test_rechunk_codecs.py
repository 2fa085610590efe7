"""``rechunk`` and codecs: chains that are taken over from the source are kept, told as left out, or refused; values are always
the source's."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from dali_zarr._rechunk import chains
from support.command_line import command
from support.foreign import tensorstore

pytest.importorskip("dask")
pytestmark = pytest.mark.filterwarnings("ignore")

DTYPES = ("bool", "int8", "uint16", "int32", "float32", "float64")
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
CRC32C = {"name": "crc32c"}


@pytest.fixture
def run(monkeypatch, capsys):
    return functools.partial(command, monkeypatch, capsys, "rechunk")


def done(run, *words):
    """Runs the command, which must succeed; gives what it tells of the only array."""
    status, out, err = run(*words, "--json", "--quiet")
    assert status == 0, err
    return json.loads(out)["arrays"][0]


def transpose(*order):
    return {"name": "transpose", "configuration": {"order": list(order)}}


def shards(chunk_shape, codecs, **more):
    index = {"index_codecs": [LITTLE, CRC32C], "index_location": "end"}
    return {"name": "sharding_indexed", "configuration": {"chunk_shape": list(chunk_shape), "codecs": codecs} | index | more}


def numcodec(name, **configuration):
    return {"name": f"numcodecs.{name}", "configuration": configuration}


def write(path, values, chunks, codecs, **more):
    """Writes the array a. ``codecs``: metadata of Zarr v3."""
    at = next(i for i, codec in enumerate(codecs) if codec["name"] in ("bytes", "sharding_indexed"))
    how = {"filters": codecs[:at], "serializer": codecs[at], "compressors": codecs[at + 1 :]}
    group = zarr.open_group(str(path), mode="a")
    group.create_array("a", shape=values.shape, chunks=chunks, dtype=values.dtype, **how, **more)[...] = values


def stored(path):
    """The metadata of the codecs of the array a."""
    return json.loads((path / "a/zarr.json").read_text())["codecs"]


def values_of(path):
    return zarr.open_group(str(path), mode="r")["a"][...]


def same(path, values):
    """Asserts that zarr-python reads these values from the array a; and tensorstore, which wants no codecs beside shards."""
    assert values_of(path).tobytes() == values.tobytes()
    if len(stored(path)) == 1:
        assert tensorstore(path, "a").tobytes() == values.tobytes()


SHAPE = (12, 10, 8)
NUMBERS = np.arange(math.prod(SHAPE), dtype="u2").reshape(SHAPE)
NESTED = {
    "between shards": (
        (6, 10, 8), [shards((3, 10, 4), [transpose(2, 0, 1), shards((2, 3, 5), [transpose(1, 2, 0), LITTLE, ZSTD])])],
    ),
    "before shards": ((6, 10, 8), [transpose(2, 0, 1), shards((2, 2, 2), [BIG])]),
    "in shards": ((6, 10, 8), [shards((3, 5, 4), [transpose(2, 0, 1), BIG, ZSTD])]),
    "under a compressor": ((6, 10, 8), [shards((3, 5, 4), [LITTLE]), ZSTD]),
    "an index without a checksum": ((6, 10, 8), [shards((3, 5, 4), [LITTLE], index_codecs=[BIG], index_location="start")]),
    "larger than the array": ((24, 10, 16), [shards((12, 10, 16), [shards((4, 5, 4), [LITTLE])])]),
}


@pytest.mark.parametrize("name", NESTED)
def test_shards_within_shards_are_kept(tmp_path, run, name):
    chunks, codecs = NESTED[name]
    write(tmp_path / "s", NUMBERS, chunks, codecs)
    assert done(run, tmp_path / "s", tmp_path / "t", "--verify")["codecs_left_out"] == []
    assert stored(tmp_path / "t") == stored(tmp_path / "s")
    same(tmp_path / "t", NUMBERS)


def test_shards_within_shards_in_another_layout(tmp_path, run):
    """They stay where they divide the new chunks, and lose the dimension that a selection drops."""
    chunks, codecs = NESTED["between shards"]
    write(tmp_path / "s", NUMBERS, chunks, codecs)
    done(run, tmp_path / "s", tmp_path / "t", "--chunks", "dim_0=6,dim_1=5,dim_2=2", "--shards", "dim_0=12,dim_1=10,dim_2=4")
    assert stored(tmp_path / "t") == [shards((6, 5, 2), codecs[0]["configuration"]["codecs"])]
    same(tmp_path / "t", NUMBERS)
    done(run, tmp_path / "s", tmp_path / "u", "--isel", "dim_0=7")
    within = shards((2, 5), [transpose(1, 0), LITTLE, ZSTD])
    assert stored(tmp_path / "u") == [shards((10, 4), [transpose(1, 0), within])]
    same(tmp_path / "u", NUMBERS[7])
    done(run, tmp_path / "s", tmp_path / "v", "--dtype", "float64")
    assert stored(tmp_path / "v") == stored(tmp_path / "s")
    same(tmp_path / "v", NUMBERS.astype("f8"))
    done(run, tmp_path / "s", tmp_path / "w", "--chunks", "dim_0=5", "--codec", "zstd:1")
    assert stored(tmp_path / "w") == [LITTLE, ZSTD]
    same(tmp_path / "w", NUMBERS)
    for number, (words, message) in enumerate([
        (("--chunks", "dim_0=5"), "--chunks: array 'a': expected chunks that its shards within shards divide, but found 8x5x10"),
        (("--format", "2"), "--format: array 'a': expected --codec too, since its codecs (transpose) aren't the same in Zarr v2"),
    ]):
        status, _, err = run(tmp_path / "s", tmp_path / f"x{number}", *words)
        assert status == 1 and message in err and not (tmp_path / f"x{number}").exists()


def test_shards_that_nothing_divides_are_refused(tmp_path, run):
    """zarr-python 3.1 writes and reads them without a word, with other values."""
    try:
        write(tmp_path / "s", NUMBERS, (6, 10, 8), [shards((3, 10, 4), [shards((2, 3, 4), [LITTLE])])])
    except ValueError as error:
        pytest.skip(f"zarr-python {zarr.__version__} refuses to write them: {error}")
    status, _, err = run(tmp_path / "s", tmp_path / "t", "--codec", "zstd")
    assert status == 1 and "array 'a': expected shards of whole chunks, but found shards of 3x10x4 and chunks of 2x3x4" in err


@pytest.mark.parametrize("formats", [(2, 2), (2, 3), (3, 2), (3, 3)], ids=str)
def test_the_order_of_elements_is_kept(tmp_path, run, formats):
    before, after = formats
    group = zarr.open_group(str(tmp_path / "s"), zarr_format=before)
    turned = {"order": "F"} if before == 2 else {"filters": [transpose(2, 1, 0)]}
    group.create_array("a", data=NUMBERS, chunks=(4, 5, 6), **turned)
    done(run, tmp_path / "s", tmp_path / "t", "--format", after)
    assert values_of(tmp_path / "t").tobytes() == NUMBERS.tobytes()
    found = zarr.open_group(str(tmp_path / "t"))["a"]
    assert found.metadata.order == "F" if after == 2 else found.filters[0].order == (2, 1, 0)
    done(run, tmp_path / "s", tmp_path / "u", "--format", after, "--isel", "dim_1=3")
    assert values_of(tmp_path / "u").tobytes() == np.ascontiguousarray(NUMBERS[:, 3]).tobytes()
    found = zarr.open_group(str(tmp_path / "u"))["a"]
    assert found.metadata.order == "F" if after == 2 else found.filters[0].order == (1, 0)


@pytest.mark.parametrize("compressor", [
    numcodecs.Zstd(level=2, checksum=True), numcodecs.GZip(level=3), numcodecs.Blosc("lz4", 4, shuffle=-1, blocksize=512),
    numcodecs.Blosc("zstd", 2, shuffle=0),
], ids=str)
def test_all_of_a_compressor_is_kept_in_the_other_format(tmp_path, run, compressor):
    zarr.open_group(str(tmp_path / "s"), zarr_format=2).create_array("a", data=NUMBERS, chunks=(4, 5, 6), compressors=compressor)
    done(run, tmp_path / "s", tmp_path / "t", "--format", "3")
    done(run, tmp_path / "t", tmp_path / "u", "--format", "2")
    same(tmp_path / "t", NUMBERS)
    (found,) = zarr.open_group(str(tmp_path / "u"))["a"].compressors
    # Zarr v3 says which shuffle it is.
    wanted = compressor.get_config()
    assert found.get_config() == wanted | ({"shuffle": 1} if wanted.get("shuffle") == -1 else {})


FILTERS = {
    # What the filters are, the type of the array, and those that are left out.
    "delta": ([numcodecs.Delta("i4")], "i4", []),
    "of the other byte order": ([numcodecs.Delta(">i4")], ">i4", []),
    "into a smaller type": ([numcodecs.Delta("i4", astype="i2")], "i4", ["delta"]),
    "of floats": ([numcodecs.Delta("f4")], "f4", ["delta"]),
    "behind one that loses values": (
        [numcodecs.FixedScaleOffset(0, 1, "f4", "i4"), numcodecs.Delta("i4")], "f4", ["fixedscaleoffset", "delta"],
    ),
    "a shuffle behind it": ([numcodecs.Quantize(1, "f8", "f4"), numcodecs.Shuffle(4)], "f8", ["quantize"]),
    "bits": ([numcodecs.PackBits()], "?", []),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_of_v2(tmp_path, run, name):
    """Differences of floats and of types that are too small for a first element don't give back what they got."""
    filters, dtype, left_out = FILTERS[name]
    values = np.random.default_rng(0).integers(-30000, 30000, 60).cumsum().astype(dtype)
    if values.dtype.kind == "f":
        values = (values * 0.37).astype(dtype)
    values = np.sort(values) % 30000 if "smaller" in name else values
    group = zarr.open_group(str(tmp_path / "s"), zarr_format=2)
    group.create_array("a", shape=(60,), chunks=(20,), dtype=dtype, filters=filters, compressors=numcodecs.Zstd())[...] = values
    expected = values_of(tmp_path / "s")
    report = done(run, tmp_path / "s", tmp_path / "t", "--chunks", "dim_0=7", "--verify")
    assert values_of(tmp_path / "t").tobytes() == expected.astype(expected.dtype.newbyteorder("=")).tobytes()
    assert report["codecs_left_out"] == left_out
    found = [one.codec_id for one in zarr.open_group(str(tmp_path / "t"))["a"].filters or ()]
    assert found == [one.codec_id for one in filters if one.codec_id not in left_out]
    if left_out:
        _, out, _ = run(tmp_path / "s", tmp_path / "u", "--quiet")
        assert f"left out, since they lose values or don't fit: {', '.join(left_out)}" in out


def test_codecs_that_are_not_known(tmp_path, run):
    """Such as one of pictures, whose values change when they are encoded again."""
    group = zarr.open_group(str(tmp_path / "s"), zarr_format=2)
    array = group.create_array("a", shape=(60,), chunks=(20,), dtype="i4", filters=[numcodecs.Base64()], compressors=None)
    array[...] = np.arange(60)
    status, _, err = run(tmp_path / "s", tmp_path / "t")
    assert status == 1 and "array 'a': expected codecs that give back all values, but found base64" in err
    done(run, tmp_path / "s", tmp_path / "t", "--codec", "zstd", "--verify")


@pytest.mark.parametrize("formats", [(2, 2), (2, 3), (3, 2), (3, 3)], ids=str)
def test_bytes_of_any_length(tmp_path, run, formats):
    """They are no text."""
    values = np.array([b"a", b"\xff\x00", b"", b"bcd"], object)
    group = zarr.open_group(str(tmp_path / "s"), zarr_format=formats[0])
    group.create_array("a", shape=(4,), chunks=(2,), dtype=zarr.dtype.VariableLengthBytes())[...] = values
    done(run, tmp_path / "s", tmp_path / "t", "--format", formats[1], "--chunks", "dim_0=3")
    assert values_of(tmp_path / "t").tolist() == values.tolist()


def _chain(rng, dtype, shape, depth=0):
    """A chain of Zarr v3 for chunks of this shape, with shards within shards."""
    codecs: list[dict[str, Any]] = []
    for _ in range(int(rng.integers(0, 3))):
        order = [int(axis) for axis in rng.permutation(len(shape))]
        codecs.append(transpose(*order))
        shape = [shape[axis] for axis in order]
    if depth < 2 and rng.random() < 0.5:
        chunk = [int(rng.choice([part for part in range(1, n + 1) if n % part == 0])) for n in shape]
        index = [[LITTLE, CRC32C], [BIG]][int(rng.integers(2))]
        where = str(rng.choice(["start", "end"]))
        codecs.append(shards(chunk, _chain(rng, dtype, chunk, depth + 1), index_codecs=index, index_location=where))
    else:
        filters = {
            "b": [numcodec("packbits")], "i": [numcodec("delta", dtype=dtype, astype=dtype)],
            "f": [numcodec("bitround", keepbits=5), numcodec("delta", dtype=dtype, astype=dtype)],
        }
        some = filters["i" if np.dtype(dtype).kind == "u" else np.dtype(dtype).kind]
        if rng.random() < 0.25:
            codecs.append(some[int(rng.integers(len(some)))])
        codecs.append(LITTLE if rng.random() < 0.6 else BIG)
    blosc = {"cname": "lz4", "clevel": 3, "shuffle": "shuffle", "typesize": np.dtype(dtype).itemsize, "blocksize": 0}
    after = [ZSTD, CRC32C, {"name": "gzip", "configuration": {"level": 1}}, {"name": "blosc", "configuration": blosc}]
    return codecs + [after[int(i)] for i in rng.permutation(4)[: int(rng.integers(0, 3))]]


def _array(rng, path):
    """A random array of either format; its type and shape."""
    dtype = str(rng.choice(DTYPES))
    shape = [int(n) for n in rng.integers(1, 10, int(rng.integers(1, 4)))]
    values = (rng.integers(-100, 100, shape) * 0.75).astype(dtype)
    chunks = [int(rng.choice([2, 4, 6])) for _ in shape]
    if rng.random() < 0.7:
        write(path, values, chunks, _chain(rng, dtype, chunks), fill_value=dtype == "bool" or 3)
        return values, chunks
    match values.dtype.kind:
        case "b":
            some = [numcodecs.PackBits()]
        case "f":
            some = [numcodecs.Quantize(1, dtype), numcodecs.Shuffle(4)]
        case _:
            some = [numcodecs.Delta(dtype), numcodecs.Shuffle(values.itemsize)]
    compressors = [None, numcodecs.Zlib(), numcodecs.LZ4(), numcodecs.Blosc(), numcodecs.Zstd(checksum=True), numcodecs.GZip()]
    dtype = values.dtype.newbyteorder(str(rng.choice(["<", ">"])))
    array = zarr.open_group(str(path), zarr_format=2).create_array(
        "a", shape=shape, chunks=chunks, dtype=dtype, order=str(rng.choice(["C", "F"])),
        filters=[one for one in some if rng.random() < 0.5] or None, compressors=compressors[int(rng.integers(6))],
    )
    array[...] = values
    return values, chunks


def _words(rng, values, chunks):
    """Random options of the command."""
    words: list[object] = []
    if rng.random() < 0.4:
        extents = [int(rng.choice([chunk, 2 * chunk, int(rng.integers(1, 10))])) for chunk in chunks]
        words += ["--chunks", ",".join(f"dim_{i}={extent}" for i, extent in enumerate(extents))]
        if rng.random() < 0.5:
            words += ["--shards", ",".join(f"dim_{i}={2 * extent}" for i, extent in enumerate(extents))]
    if rng.random() < 0.3:
        words += ["--format", str(rng.choice([2, 3]))]
    if rng.random() < 0.15 and values.dtype.kind != "b":
        words += ["--dtype", "float64"]
    if rng.random() < 0.2:
        words += ["--isel", f"dim_{rng.integers(values.ndim)}=0"]
    if rng.random() < 0.15:
        words += ["--codec", str(rng.choice(["zstd:1", "blosc-lz4", "none"]))]
    return words


def _names(codecs):
    """The names of codecs of either format, those within shards after their shards."""
    found: list[str] = []
    for codec in codecs:
        found.append(str(codec.get("id") or codec["name"]).removeprefix("numcodecs."))
        found += _names(codec.get("configuration", {}).get("codecs", []) if "name" in codec else [])
    return found


def _chunk_codecs(path):
    """The names of the codecs of the array's chunks, within its own shards."""
    array = zarr.open_group(str(path), mode="r")["a"]
    metadata = array.metadata.to_dict()
    if array.metadata.zarr_format == 2:
        compressor = [metadata["compressor"]] if metadata["compressor"] else []
        return _names([*(metadata["filters"] or []), *compressor])
    codecs = metadata["codecs"]
    return _names(codecs[0]["configuration"]["codecs"] if array.shards else codecs)


def test_random_chains(tmp_path, run):
    """Whatever the source's codecs are: values are the source's, and its codecs are there or are told as left out; or an error
    says why not, and nothing is written."""
    written = refused = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        source, target = tmp_path / f"s{seed}", tmp_path / f"t{seed}"
        try:
            values, chunks = _array(rng, source)
        except ValueError as error:
            # zarr-python looks at the shape before the transposition.
            assert "divisible" in str(error)
            continue
        words = _words(rng, values, chunks)
        status, out, err = run(source, target, *words, "--json", "--quiet")
        if status:
            refused += 1
            assert any(why in err for why in ("array 'a': ", "--shards: expected --format 3")), (seed, words, err)
            assert not target.exists(), (seed, words)
            continue
        written += 1
        expected = values_of(source)
        if "--isel" in words:
            expected = expected.take(0, int(str(words[words.index("--isel") + 1])[4]))
        if "--dtype" in words:
            expected = expected.astype("f8")
        found = values_of(target)
        assert found.shape == expected.shape and found.tobytes() == expected.astype(found.dtype).tobytes(), (seed, words)
        if "--codec" not in words and "--format" not in words:
            left_out = json.loads(out)["arrays"][0]["codecs_left_out"]
            kept = [name for name in _chunk_codecs(source) if name not in left_out]
            assert kept == [name for name in _chunk_codecs(target) if name not in left_out], (seed, words)
    # Most have no reason to be refused.
    assert written > refused > 2, (written, refused)


def test_what_zarr_python_misreads(tmp_path, run, monkeypatch):
    """Its version 3.1 gives filters of numcodecs other bytes behind a transposition, so it reads other values than it wrote."""
    delta = numcodec("delta", dtype="<i4", astype="<i4")
    write(tmp_path / "s", NUMBERS.astype("i4"), (4, 5, 6), [transpose(1, 0, 2), delta, LITTLE])
    monkeypatch.setattr(chains, "_reads_filters", lambda: False)
    status, _, err = run(tmp_path / "s", tmp_path / "t", "--codec", "zstd")
    assert status == 1 and "array 'a': zarr-python" in err and "reads wrong values where a filter of numcodecs" in err
    monkeypatch.undo()
    if chains._reads_filters():
        done(run, tmp_path / "s", tmp_path / "t")
        assert values_of(tmp_path / "t").tobytes() == NUMBERS.astype("i4").tobytes()


RECTILINEAR = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[4, 8], 5, [3, 5]]}}


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("change", [{"chunk_grid": RECTILINEAR}, {"data_type": "int17"}, {"codecs": [{"name": "bites"}]}], ids=str)
def test_arrays_that_zarr_python_refuses(tmp_path, run, consolidated, change):
    """They are named; the others can be chosen."""
    path = tmp_path / "s"
    for name in ("a", "deep/b", "deep/c"):
        zarr.open_group(str(path)).create_array(name, data=NUMBERS, chunks=(4, 5, 8), dimension_names=["x", "y", "z"])
    zarr.open_group(str(path)).create_array("deep/z", data=np.arange(8), dimension_names=["z"])
    if consolidated:
        zarr.consolidate_metadata(str(path))
    for file in [path / "deep/b/zarr.json", *([path / "zarr.json"] if consolidated else [])]:
        document = json.loads(file.read_text())
        (document["consolidated_metadata"]["metadata"]["deep/b"] if file.parent == path else document).update(change)
        file.write_text(json.dumps(document))
    for words in ((), ("--arrays", "deep/b", "a")):
        status, out, err = run(path, tmp_path / "t", *words)
        assert (status, out) == (1, "") and "array 'deep/b'" in err and "--arrays" in err and "Traceback" not in err, err
        assert len(err.splitlines()) < 5 and not (tmp_path / "t").exists()
    report = done(run, path, tmp_path / "t", "--arrays", "a")
    assert report["name"] == "a"
    done(run, path, tmp_path / "u", "--arrays", "deep/c")
    assert (zarr.open_group(str(tmp_path / "u"))["deep/z"][...] == np.arange(8)).all()
    assert (zarr.open_group(str(tmp_path / "u"))["deep/c"][...] == NUMBERS).all()


def test_a_rectilinear_source_where_zarr_python_reads_it(tmp_path, run):
    try:
        with zarr.config.set({"array.rectilinear_chunks": True}):
            group = zarr.open_group(str(tmp_path / "s"))
            group.create_array("a", shape=(12,), chunks=[[4, 8]], dtype="i4")
            group.create_array("b", shape=(12,), chunks=(4,), dtype="i4")[...] = np.arange(12)
    except TypeError:
        pytest.skip(f"zarr-python {zarr.__version__} has no rectilinear grids")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        status, _, err = run(tmp_path / "s", tmp_path / "t")
        assert status == 1 and "array 'a': expected a regular chunk grid, but found one that is rectilinear" in err
        done(run, tmp_path / "s", tmp_path / "t", "--arrays", "b")
