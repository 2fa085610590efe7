"""Writes arrays with zarr-python and xarray, reads them with the example read_chunks, and compares to the bit.

Usage: python compare_with_zarr_python.py PATH/TO/read_chunks
Needs zarr, numcodecs, xarray. Prints one line per group of cases; exits with 1 on any difference.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numcodecs
import numpy as np
import xarray as xr
import zarr
from zarr.codecs import (
    BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec,
)
from zarr.codecs import numcodecs as zn

warnings.filterwarnings("ignore")
rng = np.random.default_rng(7)
DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "M8[ns]", "m8[s]"]
SHAPE, CHUNKS = (7, 10, 5), (3, 4, 5)
cases = []  # (group, store, array name, expected)


def data(dtype, shape=SHAPE):
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind == "f":
        a = rng.standard_normal(shape).astype(dtype)
        a[0] = 0
        a.reshape(-1)[:4] = [np.nan, np.inf, -np.inf, -0.0]
        return a
    if dtype.kind in "Mm":
        return rng.integers(0, 10**15, shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype=dtype.newbyteorder("="), endpoint=True).astype(dtype)


def add(group, store, name, array, a, skip=()):
    """Writes all chunks of `a` but those at `skip`, and remembers what a reader must find."""
    if a is not None:
        if skip:
            array[: CHUNKS[0]] = a[: CHUNKS[0]]
        else:
            array[...] = a
    cases.append((group, str(store), name, zarr.open_array(store, path=name, mode="r")[...]))


def v2_cases(root):
    compressors = {
        "none": None, "zstd": numcodecs.Zstd(5), "zstd-checksum": numcodecs.Zstd(1, checksum=True),
        "gzip": numcodecs.GZip(6), "zlib": numcodecs.Zlib(1), "lz4": numcodecs.LZ4(), "bz2": numcodecs.BZ2(),
        "blosc-lz4": numcodecs.Blosc("lz4", 5, 1), "blosc-zstd-bit": numcodecs.Blosc("zstd", 3, 2),
        "blosc-auto": numcodecs.Blosc("lz4", 5, -1), "blosc-lz": numcodecs.Blosc("blosclz", 9, 0),
        "blosc-zlib": numcodecs.Blosc("zlib", 2, 1),
    }
    for (cname, c), dtype, order, endian, sep in itertools.product(
        compressors.items(), DTYPES, "CF", "<>", "./"
    ):
        dt = np.dtype(dtype).newbyteorder(endian)
        if (endian == ">" and dt.itemsize == 1) or (sep == "/" and cname != "zstd"):
            continue
        if dt.kind in "Mm":
            fill = dt.type("NaT")
        else:
            fill = data(dtype).reshape(-1)[11]
        store = root / f"v2-{cname}-{dtype}-{order}-{endian == '>'}-{sep == '.'}.zarr"
        g = zarr.open_group(store, mode="w", zarr_format=2)
        z = g.create_array("a", shape=SHAPE, chunks=CHUNKS, dtype=dt, compressors=c, order=order, fill_value=fill,
                           chunk_key_encoding={"name": "v2", "separator": sep})
        add(f"v2 {cname}", store, "a", z, data(dt), skip=(1,) if cname in ("gzip", "none") else ())


def v3_cases(root):
    compressors = {
        "none": [], "zstd": [ZstdCodec()], "zstd-checksum": [ZstdCodec(level=3, checksum=True)], "gzip": [GzipCodec()],
        "blosc-zstd": [BloscCodec(cname="zstd", shuffle="bitshuffle")], "blosc-lz4": [BloscCodec(cname="lz4")],
        "n.zlib": [zn.Zlib(level=3)], "n.lz4": [zn.LZ4()], "n.zstd": [zn.Zstd(level=2)], "n.gzip": [zn.GZip(level=2)],
        "n.bz2": [zn.BZ2(level=1)], "crc32c": [Crc32cCodec()], "zstd+crc32c": [ZstdCodec(), Crc32cCodec()],
        "n.lz4+crc32c": [zn.LZ4(), Crc32cCodec()], "crc32c+zstd": [Crc32cCodec(), ZstdCodec()],
    }
    orders = [None, (2, 0, 1), (2, 1, 0)]
    for (cname, c), dtype, order, endian, shards in itertools.product(
        compressors.items(), DTYPES, orders, ["little", "big"], [None, "end", "start"]
    ):
        if endian == "big" and np.dtype(dtype).itemsize == 1:
            continue
        if cname not in ("none", "zstd", "n.lz4", "blosc-lz4") and shards == "start":
            continue
        filters = [TransposeCodec(order=order)] if order else []
        bytes_codec = BytesCodec(endian=endian) if np.dtype(dtype).itemsize > 1 else BytesCodec(endian=None)
        inner = [*filters, bytes_codec, *c]
        if shards:
            outer = [6, 8, 5]
            codecs = [ShardingCodec(
                chunk_shape=CHUNKS, codecs=inner, index_location=shards,
                index_codecs=[BytesCodec(endian=endian)] + ([Crc32cCodec()] if order != (2, 1, 0) else []))]
        else:
            outer, codecs = CHUNKS, inner
        a = data(dtype)
        store = root / f"v3-{cname}-{dtype}-{order}-{endian}-{shards}.zarr"
        kind = np.dtype(dtype).kind
        fill = np.dtype(dtype).type("NaT") if kind in "Mm" else a.reshape(-1)[11]
        z = zarr.create_array(
            store, name="g/a", shape=SHAPE, chunks=tuple(outer), dtype=a.dtype, fill_value=fill, zarr_format=3,
            filters=None if shards else filters, compressors=None if shards else c,
            serializer=codecs[0] if shards else bytes_codec, config={"write_empty_chunks": False})
        if shards:
            a[:3] = fill  # inner chunks that are missing in a shard that isn't
        zarr.open_group(store, mode="a")
        add(f"v3 {cname}{' sharded' if shards else ''}", store, "g/a", z, a, skip=(1,) if cname == "gzip" else ())


def special_cases(root):
    for fmt in (2, 3):
        for shape, chunks in [((), ()), ((0,), (3,)), ((5, 0), (2, 2)), ((3,), (10,)), ((1, 1, 1, 1, 1), (1,) * 5)]:
            store = root / f"shape-{fmt}-{len(shape)}-{sum(shape)}.zarr"
            z = zarr.create_array(store, shape=shape, chunks=chunks, dtype="f4", zarr_format=fmt, fill_value=3)
            add("shapes", store, "", z, np.full(shape, 1.5, "f4"))
        store = root / f"consolidated-{fmt}.zarr"
        g = zarr.open_group(store, mode="w", zarr_format=fmt)
        z = g.create_array("sub/a", shape=SHAPE, chunks=CHUNKS, dtype="i4", fill_value=1)
        zarr.consolidate_metadata(store)
        add("consolidated", store, "sub/a", z, data("i4"))
        z = g.create_array("later", shape=SHAPE, chunks=CHUNKS, dtype="i4", fill_value=1)
        z[...] = 5
        cases.append(("not consolidated", str(store), "later", np.full(SHAPE, 5, "i4")))
    for bits, dt in [(0x7FC00123, "f4"), (0xFFF8000000000123, "f8"), (0x7E01, "f2")]:
        fill = np.array(bits, f"u{np.dtype(dt).itemsize}").view(dt)[()]
        store = root / f"nan-{dt}.zarr"
        z = zarr.create_array(store, shape=SHAPE, chunks=CHUNKS, dtype=dt, fill_value=fill, zarr_format=3)
        add("NaN fill values", store, "", z, None)
    # Chains of sharding with something around it are decoded whole.
    store = root / "sharding-outer.zarr"
    z = zarr.create_array(store, shape=SHAPE, chunks=(6, 8, 5), dtype="i4", fill_value=2, zarr_format=3,
                          serializer=ShardingCodec(chunk_shape=CHUNKS, codecs=[BytesCodec(), zn.LZ4()]),
                          compressors=[Crc32cCodec()])
    add("sharding with crc32c around it", store, "", z, data("i4"))
    store = root / "sharding-nested.zarr"
    inner = ShardingCodec(chunk_shape=(3, 2, 5), codecs=[BytesCodec(), ZstdCodec()])
    z = zarr.create_array(store, shape=SHAPE, chunks=(6, 8, 5), dtype="i4", fill_value=2, zarr_format=3,
                          serializer=ShardingCodec(chunk_shape=(3, 4, 5), codecs=[inner]), compressors=None)
    add("nested shards", store, "", z, data("i4"))


def run(binary, rows):
    text = "".join(f"{store}\t{name}\t{out}\n" for store, name, out in rows)
    lines = subprocess.run([binary], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(rows)
    return [json.loads(line) for line in lines]


def compare_values(binary, root):
    reports = run(binary, [(s, n, root / f"{i}.raw") for i, (_, s, n, _) in enumerate(cases)])
    good, bad = Counter(), Counter()
    for i, ((group, store, name, expected), report) in enumerate(zip(cases, reports)):
        dt = expected.dtype.newbyteorder("=")
        ok = "error" not in report and report["shape"] == list(expected.shape)
        if ok:
            found = (root / f"{i}.raw").read_bytes()
            ok = found == expected.astype(dt).tobytes()
        (good if ok else bad)[group] += 1
        if not ok and bad[group] <= 2:
            print("WRONG", store, report)
    for group in dict.fromkeys(c[0] for c in cases):
        print(f"{group:40} {good[group]:5} equal {bad[group]:5} different")
    return sum(bad.values())


def emulate(raw, cf):
    """What the reader will do with `cf`."""
    x = raw.view(cf["src"]) if raw.ndim else raw.reshape(1).view(cf["src"]).reshape(())
    missing = np.array(cf["missing"], "u8").astype(f"u{x.itemsize}").view(x.dtype)
    mask = np.isin(x.astype("f8"), missing.astype("f8")) if len(missing) else np.zeros(x.shape, bool)
    if cf["int_scale"] is not None:
        return x.astype("i8") * np.int64(cf["int_scale"])
    if not cf["missing"] and cf["scale"] is None and cf["offset"] is None:
        return x.astype(cf["decoded"])
    if cf["decoded"] == "bool":
        return (x != 0) | mask
    kind = np.dtype(cf["decoded"]).type
    y = x.astype(kind)
    y[mask] = np.nan
    if cf["scale"] is not None:
        y = y * kind(cf["scale"])
    if cf["offset"] is not None:
        y = y + kind(cf["offset"])
    return y


def compare_cf(binary, root):
    nan = float("nan")
    values = [{}, {"_FillValue": 5}, {"missing_value": 5}, {"missing_value": 5, "_FillValue": 7}, {"missing_value": [5]},
              {"missing_value": [5, 7]}, {"missing_value": [5, 7, 0], "_FillValue": 3}, {"missing_value": -1}, {"_FillValue": -1}, {"missing_value": nan},
              {"missing_value": 5.5}, {"missing_value": 0.1}, {"_FillValue": 0.0}, {"missing_value": "x"},
              {"_FillValue": nan}, {"missing_value": 1e20}, {"_FillValue": 255}, {"missing_value": 5.0, "_FillValue": 5},
              {"missing_value": None}, {"missing_value": []}, {"missing_value": True}]
    scales = [{}, {"scale_factor": 0.1}, {"add_offset": 10.5}, {"scale_factor": 0.1, "add_offset": 273.15},
              {"scale_factor": 2}, {"scale_factor": 2, "add_offset": 3}, {"add_offset": 3}, {"scale_factor": [0.1]},
              {"scale_factor": [0.1], "add_offset": [1.5]}, {"scale_factor": [0.1, 0.2]}, {"scale_factor": "0.1"},
              {"scale_factor": None}, {"scale_factor": True}]
    others = [{}, {"_Unsigned": "true"}, {"_Unsigned": "false"}, {"dtype": "bool"}]
    fills = {"none": None, "zero": 0, "five": 5, "nan": nan}
    rows, expected = [], []
    number = 0
    combos = list(itertools.product(["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?"], (2, 3), values,
                                    scales, others, fills))
    rng.shuffle(combos)
    for dt, fmt, value, scale, other, fill in combos[:6000]:
        if (fmt == 3 and fill == "none") or (fill == "nan" and np.dtype(dt).kind != "f") or (fill == "five" and dt == "?"):
            continue
        store = root / f"cf-{number}.zarr"
        number += 1
        attrs = {**value, **scale, **other}
        if fmt == 3 and np.dtype(dt).kind == "f" and isinstance(attrs.get("_FillValue"), (int, float)) and number % 4:
            attrs["_FillValue"] = xr.backends.zarr.FillValueCoder.encode(float(attrs["_FillValue"]), np.dtype("f8"))
        z = zarr.create_array(store, name="a", shape=(16,), chunks=(16,), dtype=dt, zarr_format=fmt, attributes=attrs,
                              fill_value=fills[fill], compressors=None, dimension_names=["x"] if fmt == 3 else None)
        if fmt == 2:
            z.attrs["_ARRAY_DIMENSIONS"] = ["x"]
            attrs = z.attrs.asdict()
        zarr.open_group(store, mode="a", zarr_format=fmt)
        a = np.array([0, 1, 5, 7, 255, -1, 127, -128, 100, 3, 2, 0, 5, 9, 11, 13]).astype(dt)
        if a.dtype.kind == "f":
            a[3:6] = [np.nan, -0.0, np.inf]
        z[...] = a
        try:
            with xr.open_zarr(store, decode_times=False, consolidated=False) as ds:
                want = ds["a"].values
        except Exception as e:
            want = e
        rows.append((store, "a", root / "cf.raw"))
        expected.append((a, want, attrs, fmt, fill))
    reports = run(binary, rows)
    equal, both, refused, wrong = 0, 0, Counter(), 0
    for report, (a, want, attrs, fmt, fill) in zip(reports, expected):
        cf = report.get("cf", report)
        if isinstance(want, Exception) or want.dtype == object:
            if "error" in cf:
                both += 1
            else:
                wrong += 1
                print("ACCEPTED", a.dtype, fmt, attrs, fill, cf, repr(want)[:200])
        elif "error" in cf:
            refused[cf["error"].split("but found ")[-1][:110]] += 1
        else:
            got = emulate(a, cf)
            if got.dtype == want.dtype and np.array_equal(got, want, equal_nan=got.dtype.kind == "f"):
                equal += 1
            else:
                wrong += 1
                if wrong < 15:
                    print("DIFFERENT", a.dtype, fmt, attrs, fill, cf, want.dtype, want[:8], got.dtype, got[:8])
    print(f"{'decoding as xarray':40} {equal:5} equal {wrong:5} different {both:5} refused by both, refused here only:")
    for reason, count in refused.most_common():
        print(f"    {count:5} {reason}")
    return wrong


with tempfile.TemporaryDirectory() as directory:
    root = Path(directory)
    v2_cases(root)
    v3_cases(root)
    special_cases(root)
    failures = compare_values(sys.argv[1], root) + compare_cf(sys.argv[1], root)
sys.exit(failures > 0)
