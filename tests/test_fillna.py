"""fillna gives what xarray's fillna gives, before normalisation and cast, and counts what it replaced."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import dali_zarr
import ml_dtypes
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from support.oracle import Oracle, cast, load
from support.pipelines import batches, build, check, same, settled, to_numpy
from support.stores import Layout, read_back, write_array

SHAPE = (12, 35, 73)
DIMS = ("time", "lat", "lon")
CHUNKS = (3, 20, 28)
LAYOUT = Layout(CHUNKS)
BFLOAT = np.dtype(ml_dtypes.bfloat16)


def holed(dtype: str, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    """Numbers with infinities, and NaN in a third of the places and in whole rows."""
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal(shape) * 50).astype(dtype)
    values[rng.random(shape) < 0.3] = np.nan
    values[..., 5::11] = np.inf
    values[1::4, : shape[1] // 2] = np.nan
    return values


def packed(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    """int16 of which a third is -999."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < 0.3, np.int16(-999), rng.integers(-30000, 30000, shape).astype(np.int16))


PACKING = {"scale_factor": 0.01, "add_offset": 273.15, "missing_value": -999}


def counted(device: str, batch_size: int, rounds: int, fillna: Any, load: Any = load, **args: Any) -> None:
    """Asserts that ``nans_replaced`` has as many elements for each output as batches without ``fillna`` have NaNs."""
    pipe = build(device, batch_size, fillna=fillna, **args)
    for _ in range(rounds):
        pipe.run()
    found = settled(pipe)
    del pipe
    values = {k: v for k, v in args.items() if k not in ("mean", "stddev", "fill_value", "device_memory_limit", "decode_device")}
    plain = Oracle(batch_size, load=load, **(values | {"dtype": "float64"})).batches()
    outputs = args["arrays"] if not args.get("stack_arrays") else ["all"]
    expected = dict.fromkeys(outputs, 0)
    for _ in range(found["batches"]):
        batch = next(plain)
        for i, output in enumerate(batch[: len(batch) - bool(args.get("return_index"))]):
            expected[outputs[i % len(outputs)]] += int(np.isnan(output).sum())
    told = found["nans_replaced"]
    if args.get("stack_arrays"):
        told = {"all": sum(told.values())}
    by_output = set(fillna) if isinstance(fillna, dict) else set(outputs)
    assert told == {name: n for name, n in expected.items() if name in by_output and (name in told or n)}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "packed"])
@pytest.mark.parametrize("value", [0.0, 0.1, -271.15, float("inf")])
def test_as_xarray(tmp_path, device, zarr_format, kind, value):
    """Stored NaNs, masked values, and missing chunks whose fill value is NaN."""
    missing = ((0, 0, 1), (2, 1, 0))
    how = {"zarr_format": zarr_format, "layout": LAYOUT, "dims": DIMS, "missing": missing}
    if kind == "packed":
        write_array(tmp_path, "a", packed(), attributes=PACKING, fill_value=-999, **how)
    else:
        write_array(tmp_path, "a", holed(kind), fill_value=float("nan"), **how)
    with xr.open_zarr(tmp_path, consolidated=False) as ds:
        expected = ds.fillna(value)["a"].values
    pipe = build(device, 4, path=tmp_path, arrays=["a"], fillna=value)
    for i, (found,) in zip(range(3), batches(pipe), strict=False):
        same(found, expected[4 * i : 4 * i + 4], f"batch {i}")
    args = {"path": tmp_path, "arrays": ["a"], "fillna": value}
    read = functools.cache(load)  # the store stays as it is
    told = {"load": read}
    if np.isfinite(value):
        check(device, 3, told=told, mean=[3.5], stddev=[2.5], **args)
        check(device, 3, told=told, mean=[3.5], stddev=[2.5], dtype="float64", **args)
    for dtype in ("int16", "uint8", "bool", "float16"):
        check(device, 3, told=told, dtype=dtype, **args)
    counted(device, 4, 3, value, read, path=tmp_path, arrays=["a"])


CODECS = ["none", "zstd", "gzip", "blosc-lz4-shuffle", "blosc-zstd-bitshuffle", "crc32c"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "packed"])
def test_any_codec_and_byte_order(tmp_path, device, codec, big_endian, kind):
    """All ways of the assembly: shuffled or not, elements side by side or strided, with types that have ways of their own."""
    how = {"layout": Layout(CHUNKS, big_endian=big_endian), "dims": DIMS, "codec": codec}
    values = packed() if kind == "packed" else holed(kind)
    write_array(tmp_path, "a", values, attributes=PACKING if kind == "packed" else {}, fill_value=0, **how)
    args: dict[str, Any] = {"path": tmp_path, "arrays": ["a"], "dims": ["time", "lat", "lon"]}
    cuts: list[dict[str, Any]] = [
        {"window": [2, 31, 57], "step": [2, 2, 9]}, {"window": [0, 20, 73], "stride": [1, 1, 1], "roi_start": [0, 1, 0]},
        {"window": [2, 10, 18], "step": [3, 25, 50], "stride": [1, 3, 2], "offsets": [0, 1]},
    ]
    read = functools.cache(load)  # the store stays as it is
    for cut in cuts:
        for more in ({}, {"mean": [1.5], "stddev": [3.0]}, {"dtype": "float32"}, {"dtype": "int16"}):
            check(device, 2, epochs=0.5, told={"load": read}, fillna=-7.25, **args, **cut, **more)
        counted(device, 2, 2, -7.25, read, **args, **cut)


def _group(path: Path) -> dict[str, np.ndarray]:
    written = {"sst": holed("float32"), "ice": holed("float64", seed=1), "t2m": packed(seed=2)}
    write_array(path, "sst", written["sst"], layout=LAYOUT, dims=DIMS)
    write_array(path, "ice", written["ice"], layout=Layout((5, *SHAPE[1:])), dims=DIMS, codec="blosc-lz4-shuffle")
    write_array(path, "t2m", written["t2m"], layout=LAYOUT, dims=DIMS, attributes=PACKING)
    write_array(path, "count", np.arange(np.prod(SHAPE), dtype=np.int32).reshape(SHAPE), layout=LAYOUT, dims=DIMS)
    return written


def test_by_output(tmp_path, device):
    """As xarray with each variable: outputs that aren't named keep their NaNs."""
    _group(tmp_path)
    fillna = {"sst": 271.35, "t2m": 1e300}
    with xr.open_zarr(tmp_path, consolidated=False) as ds:
        # A dictionary for the dataset would make integers that it doesn't name float64.
        expected = {name: (ds[name].fillna(fillna[name]) if name in fillna else ds[name]).values for name in ds}
    names = ["ice", "sst", "t2m", "count"]
    args = {"path": tmp_path, "arrays": names}
    pipe = build(device, 6, fillna=fillna, **args)
    for i, outputs in zip(range(2), batches(pipe), strict=False):
        for name, found in zip(names, outputs, strict=True):
            same(found, expected[name][6 * i : 6 * i + 6], name)
    counted(device, 6, 2, fillna, **args)
    renamed = {"water": "sst", "sst": "ice"}
    (found, kept), = [[to_numpy(out) for out in build(device, 12, path=tmp_path, arrays=renamed, fillna={"water": 1.0}).run()]]
    with xr.open_zarr(tmp_path, consolidated=False) as ds:
        same(found, ds.fillna(1.0)["sst"].values, "named by output")
        same(kept, ds["ice"].values, "an array's name is not an output's")


def test_stacks(tmp_path, device):
    """Channels of their own means, and the same counts."""
    _group(tmp_path)
    args = {
        "path": tmp_path, "arrays": ["sst", "ice", "count"], "stack_arrays": True, "mean": [1.0, 2.0, 3.0], "stddev": [2.0],
        "window": [2], "offsets": [0, 2],
    }
    check(device, 2, fillna=0.0, **args)
    counted(device, 2, 3, 0.0, dtype="float32", **args)
    fillna = {"ice": 5.0}
    check(device, 2, fillna=fillna, **args)


@pytest.mark.parametrize("policy", ["pad", "edge"])
def test_elements_out_of_bounds(tmp_path, device, policy):
    """What is padded has fill_value, which is a value of the output, also if that is NaN; what is repeated is replaced."""
    _group(tmp_path)
    args = {"path": tmp_path, "arrays": ["sst", "t2m"], "window": [5], "step": [4], "out_of_bounds_policy": policy}
    for fill in (float("nan"), 3.0):
        for more in ({}, {"mean": [1.5], "stddev": [3.0]}):
            check(device, 2, fillna=-1.0, fill_value=fill, **args, **more)
    counted(device, 2, 2, -1.0, fill_value=float("nan"), **args)


def test_what_has_no_nan_stays(tmp_path, device):
    """Integers are accepted as by xarray, and nothing is counted; NaT is a number of int64."""
    _group(tmp_path)
    times = np.array(["2000-01-01", "NaT"] * 6, "datetime64[ns]")
    write_array(tmp_path, "when", times.view(np.int64), dims=("time",))
    args = {"path": tmp_path, "arrays": ["count", "when"], "fillna": 1.0}
    check(device, 4, **args)
    pipe = build(device, 4, **args)
    pipe.run()
    assert settled(pipe)["nans_replaced"] == {}
    assert [array["fillna"] for array in dali_zarr.explain(**args)["arrays"]] == [None, None]


def _bfloat16(path: Path, values: np.ndarray, fill: object) -> None:
    write_array(path, "a", values.view(np.uint16), layout=LAYOUT, dims=DIMS)
    file = path / "a" / "zarr.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"data_type": "bfloat16", "fill_value": fill}))
    (path / "a" / "c" / "1" / "0" / "1").unlink()


def test_bfloat16(tmp_path, device):
    """As its bits, or converted; the value is rounded to the array's type."""
    values = holed("float32").astype(BFLOAT)
    _bfloat16(tmp_path, values, "NaN")
    values[3:6, :20, 28:56] = np.nan
    expected = np.where(np.isnan(values.astype(np.float32)), np.array(0.1, BFLOAT), values)
    for more in ({}, {"dtype": "float32"}, {"dtype": "int16"}, {"mean": [0.5], "stddev": [3.0]}):
        (found,) = build(device, 12, path=tmp_path, arrays=["a"], fillna=0.1, **more).run()
        want = expected.astype(np.float64)
        if "mean" in more:
            want = (want - 0.5) / 3.0
        bits = expected.view(np.uint16)
        same(to_numpy(found), cast(want, more.get("dtype", "float32")) if more else bits, str(more))
    pipe = build(device, 12, path=tmp_path, arrays=["a"], fillna=0.1)
    pipe.run()
    counters = settled(pipe)
    nans = int(np.isnan(values.astype(np.float32)).sum())
    assert counters["nans_replaced"] == {"a": nans * counters["batches"]}


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("fill", [complex(np.nan, 1.0), complex(np.nan, np.nan)], ids=str)
def test_parts_of_complex_numbers(tmp_path, device, dtype, fill):
    """Each part is a number of its own, also of the fill value."""
    values = (holed("float64") + 1j * holed("float64", seed=1)).astype(dtype)
    write_array(tmp_path, "a", values, layout=LAYOUT, dims=DIMS, fill_value=fill, missing=((0, 0, 0), (2, 1, 1)))
    values = read_back(tmp_path, "a")
    parts = np.stack([values.real, values.imag], -1)
    filled = np.where(np.isnan(parts), parts.dtype.type(0.1), parts)
    pipe = build(device, 12, path=tmp_path, arrays=["a"], fillna=0.1)
    same(to_numpy(pipe.run()[0]), filled, "parts")
    counters = settled(pipe)
    assert counters["nans_replaced"] == {"a": int(np.isnan(parts).sum()) * counters["batches"]}
    (found,) = build(device, 12, path=tmp_path, arrays=["a"], fillna=0.1, mean=[1.0], stddev=[2.0], dtype="float64").run()
    same(to_numpy(found), (filled.astype(np.float64) - 1.0) / 2.0, "normalised")


@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning", "ignore:invalid value:RuntimeWarning")
@given(data=st.data())
def test_random_values(device, data):
    """Decoding, fillna, mean, stddev and dtype together, with chunks that are missing."""
    draw = data.draw
    is_packed = draw(st.booleans())
    shape = tuple(draw(st.integers(1, 9)) for _ in DIMS)
    dtype = draw(st.sampled_from([*(["int8", "uint16", "int32"] if is_packed else []), "float16", "float32", "float64"]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    values = rng.integers(-3, 4, shape).astype(dtype)
    if values.dtype.kind == "f":
        values[rng.random(shape) < 0.4] = rng.choice([np.nan, np.inf, -np.inf])
    attributes: dict[str, Any] = {"missing_value": draw(st.sampled_from([0, 1, 2]))} if is_packed else {}
    if is_packed and draw(st.booleans()):
        attributes |= {"scale_factor": draw(st.sampled_from([0.1, 0.0, 2.5])), "add_offset": draw(st.sampled_from([0.0, 1.7]))}
    layout = Layout(tuple(draw(st.integers(1, n)) for n in shape), big_endian=draw(st.booleans()))
    counts = [-(-n // c) for n, c in zip(shape, layout.chunks, strict=True)]
    missing = tuple(draw(st.sets(st.tuples(*(st.integers(0, n - 1) for n in counts)), max_size=4)))
    fill = draw(st.sampled_from([0, 1, float("nan")] if values.dtype.kind == "f" else [0, 1]))
    args: dict[str, Any] = {
        "arrays": ["a"], "window": [draw(st.integers(0, shape[0]))], "dims": ["time"], "mask_and_scale": is_packed,
        "out_of_bounds_policy": draw(st.sampled_from(["drop", "pad", "edge"])),
        "fill_value": draw(st.sampled_from([0.0, float("nan")])),
    }
    fillna = draw(st.sampled_from([0.0, 0.1, -1e6, 1e300, float("-inf")]))
    if draw(st.booleans()):
        args["mean"] = [draw(st.sampled_from([0.0, 0.3, -300.0]))]
    if draw(st.booleans()):
        args["stddev"] = [draw(st.sampled_from([1.0, 0.3, 1e4]))]
    if draw(st.booleans()):
        args["dtype"] = draw(st.sampled_from(["float16", "float32", "float64", "int8", "uint32", "int64", "bool"]))
    with tempfile.TemporaryDirectory() as path:
        write_array(
            path, "a", values, zarr_format=draw(st.sampled_from([2, 3])), layout=layout, dims=DIMS, fill_value=fill,
            missing=missing, attributes=attributes, codec=draw(st.sampled_from(["zstd", "none", "blosc-lz4-shuffle", "gzip"])),
        )
        check(device, 2, path=path, fillna=fillna, **args)


def test_readers_without_it_are_as_before(tmp_path, device):
    """NaNs stay, and nothing is counted."""
    _group(tmp_path)
    check(device, 4, path=tmp_path, arrays=["sst", "ice"])
    pipe = build(device, 4, path=tmp_path, arrays=["sst", "ice"])
    pipe.run()
    assert settled(pipe)["nans_replaced"] == {}


def test_precision(tmp_path, device):
    """float64 keeps all digits of the value, also by output."""
    write_array(tmp_path, "a", np.full((4, 3), np.nan), dims=("t", "x"))
    for fillna in (1 / 3, {"a": 1 / 3}, np.float64(1 / 3)):
        (found,) = build(device, 4, path=tmp_path, arrays=["a"], fillna=fillna).run()
        same(to_numpy(found), np.full((4, 3), 1 / 3), "values")


def test_refused(tmp_path):
    _group(tmp_path)
    args = {"path": tmp_path, "arrays": ["sst", "ice"]}
    with pytest.raises(ValueError, match="fillna: there is no output 'ssst'; the outputs are 'sst', 'ice'; did you mean sst"):
        dali_zarr.explain(fillna={"ssst": 0.0}, **args)
    for nan in (float("nan"), {"ice": float("nan")}):
        with pytest.raises(ValueError, match="fillna: expected a number that takes the place of NaN, found NaN"):
            dali_zarr.explain(fillna=nan, **args)
    with pytest.raises(ValueError, match="fillna: expected one value for 'ice', found 2"):
        dali_zarr.explain(fillna={"ice": [1.0, 2.0]}, **args)


def test_explained(tmp_path):
    _group(tmp_path)
    found = dali_zarr.explain(path=tmp_path, arrays=["sst", "ice", "t2m"], fillna={"sst": 0.1, "t2m": float("-inf")})
    assert [array["fillna"] for array in found["arrays"]] == [float(np.float32(0.1)), None, "-inf"]
    assert "NaN replaced by 0.1" in str(found) and "NaN replaced by -inf" in str(found)
    assert "NaN replaced" not in str(dali_zarr.explain(path=tmp_path, arrays=["sst"]))


def test_checkpoints_of_other_values_are_refused(tmp_path):
    _group(tmp_path)
    args = {"path": tmp_path, "arrays": ["sst", "count"], "checkpointing": True}
    pipe = build("cpu", 2, fillna=0.0, **args)
    pipe.run()
    checkpoint = pipe.checkpoint()
    expected = to_numpy(pipe.run()[0])
    again = build("cpu", 2, fillna={"sst": 0.0}, checkpoint=checkpoint, **args)
    same(to_numpy(again.run()[0]), expected, "the same values, asked for by output")
    for other, told in (({"fillna": 1.0}, "1.0"), ({}, "")):
        with pytest.raises(ValueError, match=rf"fillna.*0\.0.*{told}"):
            build("cpu", 2, checkpoint=checkpoint, **args, **other)


def test_statistics_are_of_replaced_values(tmp_path):
    """With fillna they are what the model sees; without it NaNs are left out."""
    written = _group(tmp_path)
    finite = np.where(np.isinf(written["sst"]), np.float32(1), written["sst"])
    write_array(tmp_path, "b", finite, layout=LAYOUT, dims=DIMS)
    found = dali_zarr.statistics(tmp_path, arrays=["b"], fillna={"b": 4.0})["arrays"]["b"]
    filled = np.where(np.isnan(finite), np.float32(4), finite).astype(np.longdouble)
    assert found["fillna"] == 4.0 and found["nan_share"] == 0 and found["count"] == filled.size
    np.testing.assert_allclose([found["mean"], found["stddev"]], [float(filled.mean()), float(filled.std())], rtol=1e-12)
    plain = dali_zarr.statistics(tmp_path, arrays=["b"])["arrays"]["b"]
    assert "fillna" not in plain and plain["nan_share"] == pytest.approx(np.isnan(finite).mean())
    np.testing.assert_allclose(plain["mean"], np.nanmean(finite.astype(np.float64)), rtol=1e-12)


def test_loader(tmp_path):
    """The loader passes it on."""
    pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    written = _group(tmp_path)
    loader = Loader(tmp_path, arrays=["sst"], batch_size=6, device="cpu", fillna=0.0)
    found = np.concatenate([batch["sst"].numpy() for batch in loader])
    same(found, np.where(np.isnan(written["sst"]), np.float32(0), written["sst"]), "values")
    assert loader.counters()["nans_replaced"]["sst"] >= int(np.isnan(written["sst"]).sum())
