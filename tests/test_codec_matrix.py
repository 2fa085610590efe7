"""Every codec and filter that zarr-python and numcodecs write for arrays of numbers is read to the bit: codec x dtype x
format, with chunks that don't divide the array, F order, both byte orders, inside shards, and behind one another."""

from __future__ import annotations

import json
import platform
import warnings
from contextlib import nullcontext
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from support.pipelines import build, check, same, stats_of, to_numpy
from support.stores import chunk_files, metadata, read_back, sample_values
from zarr.codecs import BytesCodec
from zarr.codecs import numcodecs as zn

SHAPE, CHUNKS, SHARDS = (5, 7, 4), (3, 4, 3), (3, 8, 6)
DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "float16", "int32", "uint32", "float32", "int64", "uint64", "float64")
FLOATS = tuple(d for d in DTYPES if np.dtype(d).kind == "f")
RAW_LZMA = [{"id": 3, "dist": 4}, {"id": 33, "preset": 1}]

# Codecs of bytes, for every dtype: the identifier and the configuration that numcodecs takes.
BYTES: dict[str, dict[str, Any]] = {
    "lz4": {"id": "lz4"},
    "zlib": {"id": "zlib", "level": 1},
    "gzip": {"id": "gzip", "level": 1},
    "zstd": {"id": "zstd", "level": 1},
    "blosc": {"id": "blosc", "cname": "zstd", "clevel": 1, "shuffle": 2},
    "bz2": {"id": "bz2", "level": 1},
    "lzma-xz": {"id": "lzma", "preset": 1},
    "lzma-check": {"id": "lzma", "format": 1, "check": 4, "preset": 0},
    "lzma-alone": {"id": "lzma", "format": 2, "preset": 1},
    "lzma-raw": {"id": "lzma", "format": 3, "filters": RAW_LZMA},
    "crc32": {"id": "crc32"},
    "crc32-end": {"id": "crc32", "location": "end"},
    "crc32c": {"id": "crc32c"},
    "crc32c-start": {"id": "crc32c", "location": "start"},
    "adler32": {"id": "adler32"},
    "adler32-end": {"id": "adler32", "location": "end"},
    "fletcher32": {"id": "fletcher32"},
    "jenkins": {"id": "jenkins_lookup3"},
    "jenkins-seeded": {"id": "jenkins_lookup3", "initval": 1234567},
}


def _filters(d: np.dtype) -> dict[str, dict[str, Any]]:
    """The filters that make sense for elements of type and byte order ``d``."""
    out: dict[str, dict[str, Any]] = {"shuffle": {"id": "shuffle", "elementsize": d.itemsize}}
    if d.kind == "b":
        return out | {"packbits": {"id": "packbits"}, "astype-i4": {"id": "astype", "encode_dtype": "i4", "decode_dtype": "?"}}
    out["delta"] = {"id": "delta", "dtype": d.str}
    for other in ("i1", "u4", "i8", "f4", "f8"):
        if d.kind in "iu" or np.dtype(other).kind == "f":
            out[f"delta-{other}"] = {"id": "delta", "dtype": d.str, "astype": other}
    for other in ("u1", "i2", "u8", "f2", "f4", "f8"):
        out[f"astype-{other}"] = {"id": "astype", "encode_dtype": other, "decode_dtype": d.str}
    for other in ("u1", "i2", "i8", "f2", "f4", "f8"):
        out[f"scaled-{other}"] = {"id": "fixedscaleoffset", "offset": 3, "scale": 7.3, "dtype": d.str, "astype": other}
    out["scaled-same"] = {"id": "fixedscaleoffset", "offset": -1.25, "scale": 10, "dtype": d.str}
    if d.kind == "f":
        out["bitround"] = {"id": "bitround", "keepbits": 5}
        for other in ("f2", "f4", "f8"):
            out[f"quantize-{other}"] = {"id": "quantize", "digits": 1, "dtype": d.str, "astype": other}
    return out


def _v3_codec(config: dict[str, Any]) -> Any:
    classes = {
        "lz4": zn.LZ4, "zlib": zn.Zlib, "gzip": zn.GZip, "zstd": zn.Zstd, "blosc": zn.Blosc, "bz2": zn.BZ2, "lzma": zn.LZMA,
        "crc32": zn.CRC32, "crc32c": zn.CRC32C, "adler32": zn.Adler32, "fletcher32": zn.Fletcher32,
        "jenkins_lookup3": zn.JenkinsLookup3, "shuffle": zn.Shuffle, "delta": zn.Delta, "astype": zn.AsType,
        "fixedscaleoffset": zn.FixedScaleOffset, "quantize": zn.Quantize, "bitround": zn.BitRound, "packbits": zn.PackBits,
    }
    return classes[config["id"]](**{k: v for k, v in config.items() if k != "id"})


def _write(
    path: Any, name: str, values: np.ndarray, zarr_format: int, filters: list[dict[str, Any]], packers: list[dict[str, Any]],
    *, order: str = "C", big_endian: bool = False, shards: bool = False,
) -> None:
    """Writes ``values`` through the codecs."""
    in_bytes = {"shuffle", *(c["id"] for c in BYTES.values())}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        zarr.open_group(str(path), mode="a", zarr_format=zarr_format)
        kwargs: dict[str, Any] = {
            "store": str(path), "name": name, "shape": SHAPE, "chunks": CHUNKS, "zarr_format": zarr_format,
            "dtype": values.dtype.newbyteorder(">") if big_endian and zarr_format == 2 else values.dtype,
            "fill_value": 0, "config": {"write_empty_chunks": True},
        }
        if zarr_format == 2:
            all_codecs = [numcodecs.get_codec(c) for c in (*filters, *packers)]
            last = all_codecs.pop() if packers else None
            kwargs |= {"filters": all_codecs or None, "compressors": last, "order": order}
        else:
            before = [c for c in filters if c["id"] not in in_bytes]
            after = [c for c in filters if c["id"] in in_bytes]
            kwargs |= {
                "filters": [_v3_codec(c) for c in before],
                "serializer": BytesCodec(endian="big" if big_endian else "little"),
                "compressors": [_v3_codec(c) for c in (*after, *packers)],
            }
            if shards:
                kwargs["shards"] = SHARDS
        array = zarr.create_array(**kwargs)
        array[...] = values


def _check_all(device: str, path: Any, names: list[str]) -> None:
    """Compares the arrays; if something is wrong, one by one, so that the error names the codec."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            check(device, 5, path=path, arrays=names)
        except Exception:
            for name in names:
                try:
                    check(device, 5, path=path, arrays=[name])
                except Exception as e:
                    raise AssertionError(f"array {name}: {e}") from e
            raise


LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "v2": (2, {}),
    "v2-fortran-big-endian": (2, {"order": "F", "big_endian": True}),
    "v3": (3, {}),
    "v3-shards": (3, {"shards": True}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float32", "int64"])
def test_codecs_of_bytes(tmp_path, device, layout, dtype):
    """Compressors and checksums alone, with every width of element."""
    zarr_format, how = LAYOUTS[layout]
    values = sample_values(dtype, SHAPE, seed=1)
    for name, config in BYTES.items():
        _write(tmp_path, name, values, zarr_format, [], [config], **how)
    _check_all(device, tmp_path, list(BYTES))


def _refusal(filter_: str, d: np.dtype, values: str, zarr_format: int) -> type[Exception] | None:
    """What zarr-python or numcodecs raises for a filter of :func:`_filters` over these values. None: it writes them."""
    kind, _, other = filter_.partition("-")
    if kind == "bitround" and d.byteorder == ">":
        return KeyError  # numcodecs rounds the bits of native floats only
    narrower = (other == "i1" and d.str[1:] != "i1") or (other == "i8" and d.str[1:] == "u8")
    if kind == "delta" and values == "wide" and narrower:
        return OverflowError  # the first value doesn't fit
    if zarr_format == 3 and other not in ("", "same"):
        if d.itemsize == 1 and np.dtype(other).itemsize > 1 and zarr.__version__.startswith("3.1."):
            return ValueError  # elements of one byte have no byte order, and what is made of them gets none
        if kind == "quantize" and other != d.str[1:]:
            return ValueError  # the size of the encoded chunk is taken for that of the decoded one
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["v2", "v2-fortran-big-endian", "v3-shards"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_filters(tmp_path, device, layout, dtype):
    """Every filter that numcodecs applies to the dtype, before a compressor, over the whole range of values and small ones."""
    zarr_format, how = LAYOUTS[layout]
    wide = sample_values(dtype, SHAPE, seed=2)
    small = (np.arange(wide.size).reshape(SHAPE) % 90).astype(dtype)
    names = []
    # In the other byte order NaNs would be read as numbers, and which NaN a sum gives is the processor's choice.
    d = np.dtype(dtype).newbyteorder(">") if how.get("big_endian") else np.dtype(dtype)
    for name, config in _filters(d).items():
        for kind, values in (("wide", wide), ("small", small))[: 1 if how.get("big_endian") else 2]:
            if kind == "wide" and d.kind in "iu" and "-f" in name and platform.machine() != "x86_64":
                continue  # NumPy leaves floats that no integer holds to the processor; the reader does what x86-64 does
            refusal = _refusal(name, d, kind, zarr_format)
            with pytest.raises(refusal) if refusal else nullcontext():
                _write(tmp_path, f"{name}-{kind}", values, zarr_format, [config], [BYTES["zlib"]], **how)
                if refusal:
                    # Some are refused when they are read. The others are read by the oracle.
                    read_back(tmp_path, f"{name}-{kind}")
            if not refusal:
                names.append(f"{name}-{kind}")
    _check_all(device, tmp_path, names)


# One behind the other: (dtype, filters in the order of encoding, bytes codecs behind).
CHAINS: dict[str, tuple[str, list[dict[str, Any]], list[dict[str, Any]]]] = {
    "checksum of a compressor": ("float32", [], [BYTES["zlib"], BYTES["crc32"]]),
    "compressor of a checksum": ("float32", [], [BYTES["adler32"], BYTES["lz4"]]),
    "two compressors": ("int32", [], [BYTES["lz4"], BYTES["zlib"]]),
    "three compressors": ("int32", [], [BYTES["blosc"], BYTES["zstd"], BYTES["gzip"]]),
    "bz2 of lzma": ("int16", [], [BYTES["lzma-xz"], BYTES["bz2"]]),
    "lzma of bz2": ("int16", [], [BYTES["bz2"], BYTES["lzma-alone"]]),
    "blosc of zstd": ("int16", [], [BYTES["zstd"], BYTES["blosc"]]),
    "lz4 of bz2": ("int16", [], [BYTES["bz2"], BYTES["lz4"]]),
    "lz4 of lz4": ("int16", [], [BYTES["lz4"], BYTES["lz4"], BYTES["fletcher32"]]),
    "all checksums": (
        "uint8", [], [BYTES[n] for n in ("crc32", "crc32c", "adler32", "fletcher32", "jenkins", "crc32-end", "crc32c-start")],
    ),
    "no compressor": ("int32", [{"id": "delta", "dtype": "<i4", "astype": "<i2"}], []),
    "only a checksum": ("float64", [], [BYTES["jenkins"]]),
    "scaled, then differences": (
        "float32",
        [{"id": "fixedscaleoffset", "offset": -4, "scale": 10, "dtype": "<f4", "astype": "<i4"}, {"id": "delta", "dtype": "<i4"}],
        [BYTES["zstd"]],
    ),
    "quantised, then narrower": (
        "float64",
        [{"id": "quantize", "digits": 2, "dtype": "<f8"}, {"id": "astype", "encode_dtype": "<f4", "decode_dtype": "<f8"}],
        [{"id": "shuffle", "elementsize": 4}, BYTES["bz2"]],
    ),
    "bits, then differences": (
        "bool", [{"id": "packbits"}, {"id": "delta", "dtype": "|u1"}], [BYTES["lz4"], BYTES["crc32"]],
    ),
    "differences of differences": (
        "int64", [{"id": "delta", "dtype": "<i8"}, {"id": "delta", "dtype": "<i8", "astype": "<i4"}], [BYTES["blosc"]],
    ),
    "wider than the array": (
        "int16", [{"id": "astype", "encode_dtype": "<f8", "decode_dtype": "<i2"}], [BYTES["lzma-raw"]],
    ),
}


@pytest.mark.parametrize("layout", ["v2", "v3", "v3-shards"])
def test_chains(tmp_path, device, layout):
    """Filters, compressors and checksums in rows."""
    zarr_format, how = LAYOUTS[layout]
    names = []
    for number, (dtype, filters, packers) in enumerate(CHAINS.values()):
        values = (np.arange(np.prod(SHAPE)).reshape(SHAPE) % 90).astype(dtype)
        _write(tmp_path, f"a{number}", values, zarr_format, filters, packers, **how)
        names.append(f"a{number}")
    _check_all(device, tmp_path, names)


# Around one compressor, or none: (dtype, filters in the order of encoding, bytes codecs behind). All of it on the GPU.
ON_GPU: dict[str, tuple[str, list[dict[str, Any]], list[dict[str, Any]]]] = {
    "sealed zstd": ("float32", [], [BYTES["zstd"], BYTES["crc32c"]]),
    "sealed blosc": ("uint16", [], [BYTES["blosc"], BYTES["crc32c"]]),
    "sealed twice": ("int64", [], [BYTES["gzip"], BYTES["crc32"], BYTES["adler32"]]),
    "sealed at the start": ("int16", [], [BYTES["lz4"], BYTES["crc32c-start"]]),
    "sealed by HDF5": ("float64", [], [BYTES["zlib"], BYTES["fletcher32"], BYTES["jenkins"]]),
    "only sealed": ("float32", [], [BYTES["crc32c"]]),
    "shuffled zlib": ("float32", [{"id": "shuffle", "elementsize": 4}], [BYTES["zlib"]]),
    "shuffled zstd": ("float64", [{"id": "shuffle", "elementsize": 8}], [BYTES["zstd"]]),
    "shuffled lz4": ("uint16", [{"id": "shuffle", "elementsize": 2}], [BYTES["lz4"]]),
    "shuffled in pairs": ("int16", [{"id": "shuffle", "elementsize": 4}], [BYTES["gzip"]]),
    "shuffled in thirds": ("uint8", [{"id": "shuffle", "elementsize": 3}], [BYTES["zlib"]]),
    "shuffled in halves": ("int64", [{"id": "shuffle", "elementsize": 4}], [BYTES["zlib"]]),
    "shuffled and sealed": ("float32", [{"id": "shuffle", "elementsize": 4}], [BYTES["zlib"], BYTES["fletcher32"]]),
    "only shuffled": ("int32", [{"id": "shuffle", "elementsize": 4}], []),
    "rounded": ("float32", [{"id": "bitround", "keepbits": 5}], [BYTES["zstd"]]),
    "quantised": ("float32", [{"id": "quantize", "digits": 1, "dtype": "<f4"}], [BYTES["zlib"]]),
}


def _write_around(path: Any, layout: str) -> list[str]:
    """Writes an array for each of ``ON_GPU``; its names."""
    zarr_format, how = LAYOUTS[layout]
    names = []
    for number, (dtype, filters, packers) in enumerate(ON_GPU.values()):
        big = [f | {"dtype": f["dtype"].replace("<", ">")} if how.get("big_endian") and "dtype" in f else f for f in filters]
        if how.get("big_endian") and filters and filters[0]["id"] == "bitround":
            continue  # numcodecs rounds the bits of native floats only
        values = sample_values(dtype, SHAPE, seed=number)
        _write(path, f"a{number}", values, zarr_format, big, packers, **how)
        names.append(f"a{number}")
    return names


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checksums_and_shuffles_around_compressors(tmp_path, device, layout):
    """What the GPU decodes with its surroundings, on both devices; the CPU is not asked to help."""
    names = _write_around(tmp_path / "s", layout)
    _check_all(device, tmp_path / "s", names)
    if device == "gpu":
        stats = stats_of(4, device, 5, path=tmp_path / "s", arrays=names, decode_device="gpu")
        assert stats["cpu_fallbacks"] == 0 and stats["chunks_decoded_cpu"] == 0, stats


@pytest.mark.parametrize("elements", [(1, 1000, 4099), (3, 123, 457)])
def test_shuffles_of_large_chunks(tmp_path, device, elements):
    """Shuffled as a whole, however large the chunk is, whether wide loads fit it or not."""
    steps = max(2, elements[0])
    values = np.random.default_rng(5).standard_normal((steps, *elements[1:]), "float32").round(2)
    array = zarr.create_array(
        str(tmp_path), name="a", shape=values.shape, chunks=elements, dtype="f4", zarr_format=2,
        filters=[numcodecs.Shuffle(4)], compressors=numcodecs.Zlib(1),
    )
    array[...] = values
    check(device, 2, path=tmp_path, arrays=["a"])


def test_a_wrong_checksum_around_a_compressor_is_named(tmp_path, device):
    """By the CPU, which decodes what the GPU isn't given."""
    _write(tmp_path, "a", sample_values("int32", SHAPE), 3, [], [BYTES["zstd"], BYTES["crc32c"]])
    file = chunk_files(tmp_path, "a")[0]
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(bytes(damaged))
    with pytest.raises(RuntimeError, match="chunk a/c/.*crc32c checksum.*damaged"):
        build(device, 5, path=tmp_path, arrays=["a"]).run()


@pytest.mark.parametrize("blocksize", [0, 20 << 20])
def test_large_blosc_blocks(tmp_path, device, blocksize):
    """Blocks of more than 16 MiB are read where the metadata ask for them."""
    values = np.arange(6 << 20, dtype="int32").reshape(2, -1)
    blosc = numcodecs.Blosc(cname="zstd", clevel=1, shuffle=1, blocksize=blocksize)
    codecs = {"filters": None, "compressors": blosc} if blocksize else {"filters": [blosc], "compressors": numcodecs.CRC32()}
    array = zarr.create_array(
        str(tmp_path), name="a", shape=values.shape, chunks=values.shape, dtype="i4", zarr_format=2, **codecs,
    )
    array[...] = values
    limits = {"host_memory_limit": 512 << 20} | ({"device_memory_limit": 512 << 20} if device == "gpu" else {})
    check(device, 1, path=tmp_path, arrays=["a"], **limits)


def test_v2_filters_keep_their_own_byte_order(tmp_path, device):
    """A filter's types have byte orders that needn't be the array's."""
    values = (np.arange(np.prod(SHAPE)).reshape(SHAPE) % 90).astype("int32")
    filters = [{"id": "delta", "dtype": ">i4", "astype": ">i2"}, {"id": "fixedscaleoffset", "offset": 0, "scale": 1,
               "dtype": ">i2", "astype": "<f8"}]
    _write(tmp_path, "a", values, 2, filters, [BYTES["zlib"]], big_endian=True)
    _write(tmp_path, "b", values, 2, filters[:1], [BYTES["lz4"]], order="F", big_endian=True)
    _check_all(device, tmp_path, ["a", "b"])


def test_v3_big_endian_filters(tmp_path, device):
    """Filters of v3 see numbers, whatever the codec "bytes" makes of them. (zarr-python 3.1 reads these wrongly: it lets
    filters see the bytes. So what was written is the oracle.)"""
    values = (np.arange(np.prod(SHAPE)).reshape(SHAPE) % 90).astype("int32")
    _write(tmp_path, "a", values, 3, [{"id": "delta", "dtype": "int32"}], [BYTES["zlib"]], big_endian=True)
    same(to_numpy(build(device, 5, path=tmp_path, arrays=["a"]).run()[0]), values, "delta")


def _reinterpret(path: Any, name: str, data_type: str, codecs: list[dict[str, Any]], shards: bool) -> None:
    """Puts array-to-array ``codecs`` before those of a stored array, and lets it have another type."""
    file, document = metadata(path, name)
    document["data_type"] = data_type
    inner = document["codecs"][0]["configuration"] if shards else document
    inner["codecs"] = codecs + inner["codecs"]
    file.write_text(json.dumps(document))


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("packer", ["blosc", "zstd", "crc32c"])
def test_scale_offset_and_cast_value(tmp_path, device, shards, packer):
    """The codecs of zarr-extensions that Sentinel-2's GeoZarr has in its shards. zarr-python 3.1 can't write them, so their
    encoded values are written, and the metadata afterwards; the expected values are the specification's arithmetic."""
    stored = sample_values("uint16", SHAPE, seed=3)
    scale_offset = {"name": "scale_offset", "configuration": {"offset": -0.1, "scale": 10000.0}}
    cast = {"name": "cast_value", "configuration": {
        "data_type": "uint16", "rounding": "nearest-even", "out_of_range": "clamp",
        "scalar_map": {"encode": [["NaN", 0]], "decode": [[0, "NaN"]]},
    }}
    plain = {"name": "cast_value", "configuration": {"data_type": "uint16"}}
    nan = np.where(stored == 0, np.nan, stored)
    cases = {
        "float32": ([scale_offset, cast], nan.astype("f4") / np.float32(10000) + np.float32(-0.1)),
        "float64": ([scale_offset, cast], nan / 10000.0 + -0.1),
        "int64": ([{"name": "scale_offset", "configuration": {"offset": 1000}}, plain], stored.astype("i8") + 1000),
        "uint16": ([{"name": "scale_offset"}], stored),
        "uint8": ([{"name": "cast_value", "configuration": {"data_type": "uint16", "out_of_range": "wrap"}}], stored.astype("u1")),
    }
    for dtype, (codecs, expected) in cases.items():
        _write(tmp_path, dtype, stored, 3, [], [BYTES[packer]], shards=shards)
        _reinterpret(tmp_path, dtype, dtype, codecs, shards)
        same(to_numpy(build(device, 5, path=tmp_path, arrays=[dtype]).run()[0]), expected, dtype)


def test_a_value_that_cast_value_has_no_rule_for(tmp_path, device):
    stored = np.full(SHAPE, 300, "uint16")
    _write(tmp_path, "a", stored, 3, [], [BYTES["zstd"]])
    _reinterpret(tmp_path, "a", "uint8", [{"name": "cast_value", "configuration": {"data_type": "uint16"}}], False)
    with pytest.raises(RuntimeError, match="cast_value.*300"):
        build(device, 5, path=tmp_path, arrays=["a"]).run()


@pytest.mark.parametrize("name", ["crc32", "crc32c", "adler32", "fletcher32", "jenkins"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_wrong_checksum_is_named(tmp_path, device, zarr_format, name):
    _write(tmp_path, "a", sample_values("int32", SHAPE), zarr_format, [], [BYTES[name]])
    file = chunk_files(tmp_path, "a")[0]
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(bytes(damaged))
    with pytest.raises(RuntimeError, match=f"{BYTES[name]['id']} checksum.*damaged"):
        build(device, 5, path=tmp_path, arrays=["a"]).run()


@pytest.mark.parametrize("name", ["bz2", "lzma-xz", "lzma-alone", "lzma-raw", "blosc"])
def test_truncated_chunks_are_errors(tmp_path, device, name):
    _write(tmp_path, "a", sample_values("int32", SHAPE), 2, [], [BYTES[name]])
    file = chunk_files(tmp_path, "a")[0]
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(RuntimeError, match="damaged|truncated"):
        build(device, 5, path=tmp_path, arrays=["a"]).run()


@pytest.mark.parametrize("codec", ["json2", "msgpack2", "pickle", "vlen-utf8", "vlen-bytes", "vlen-array", "categorize"])
def test_codecs_without_numbers_are_refused_by_name(tmp_path, device, codec):
    """They encode objects or text: a TypeError when the pipeline is built, that says what to do."""
    for zarr_format in (2, 3):
        _write(tmp_path, f"a{zarr_format}", sample_values("int32", SHAPE), zarr_format, [], [])
        file, document = metadata(tmp_path, f"a{zarr_format}")
        if zarr_format == 2:
            document["filters"] = [{"id": codec}]
        else:
            document["codecs"].append({"name": f"numcodecs.{codec}", "configuration": {}})
        file.write_text(json.dumps(document))
        with pytest.raises(TypeError, match=f"{codec}.*leave it out"):
            build(device, 2, path=tmp_path, arrays=[f"a{zarr_format}"])
