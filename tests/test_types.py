"""Types that DALI lacks: bfloat16 as its bits or converted, complex as two floats, datetime64 with its unit."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import zarr
from support.oracle import cast
from support.pipelines import batches, build, same
from support.stores import Layout, write_array

BFLOAT = np.dtype(ml_dtypes.bfloat16)


def _write_bfloat16(root: Path, name: str, values: np.ndarray, fill: object = 0.0, **how: object) -> None:
    """As zarr-extensions has it: zarr-python writes the bits, and the metadata get the other name."""
    write_array(root, name, values.view(np.uint16), **how)
    file = root / name / "zarr.json"
    metadata = json.loads(file.read_text())
    assert metadata["data_type"] == "uint16"
    file.write_text(json.dumps(metadata | {"data_type": "bfloat16", "fill_value": fill}))


def _bfloats(shape: tuple[int, ...]) -> np.ndarray:
    """All kinds: zeros, subnormals, infinities, a NaN, and many bits."""
    bits = np.random.default_rng(4).integers(0, 1 << 16, shape).astype(np.uint16)
    special = [0, 0x8000, 1, 0x8001, 0x7F80, 0xFF80, 0x7FC0, 0x7F7F, 0x3F80]
    bits.reshape(-1)[: len(special)] = special
    is_nan = (bits & 0x7FFF) > 0x7F80
    return np.where(is_nan, np.uint16(0x7FC0), bits).astype(np.uint16).view(BFLOAT)


def _batches(device: str, batch_size: int, **arguments: object) -> list[list[np.ndarray]]:
    """Those of one epoch, by output."""
    pipe = build(device, batch_size, **arguments)
    found = batches(pipe)
    samples = pipe.reader_meta("reader")["epoch_size"]
    return [next(found) for _ in range(samples // batch_size)]


def refused(device: str, error: type[Exception], *parts: str, **arguments: object) -> None:
    """Asserts that building the pipeline raises this error, with these parts in its message."""
    with pytest.raises(error) as raised:
        build(device, 2, **arguments)
    assert all(part in str(raised.value) for part in parts), str(raised.value)


LAYOUTS = {
    "plain": {"layout": Layout((2, 3))},
    "zstd": {"layout": Layout((3, 2)), "codec": "zstd"},
    "blosc": {"layout": Layout((4, 5)), "codec": "blosc-lz4-shuffle"},
    "big-endian": {"layout": Layout((3, 5), big_endian=True)},
    "shards": {"layout": Layout((2, 3), shards=(4, 6))},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bfloat16_comes_as_its_bits_or_converted(tmp_path, device, layout):
    """By default the bits; with a dtype as ml_dtypes converts, and NumPy from there."""
    values = _bfloats((8, 5))
    _write_bfloat16(tmp_path, "a", values, **LAYOUTS[layout])
    found = np.concatenate([one for (one,) in _batches(device, 2, path=tmp_path, arrays=["a"])])
    same(found, values.view(np.uint16), "bits")
    for dtype in ("float32", "float64", "float16", "int32", "uint8", "bool"):
        found = np.concatenate([one for (one,) in _batches(device, 2, path=tmp_path, arrays=["a"], dtype=dtype)])
        with np.errstate(all="ignore"):
            same(found, cast(values.astype(np.float64), dtype), dtype)


def test_bfloat16_is_computed_with_as_numbers(tmp_path, device):
    """Normalised, padded, filled and stacked."""
    values = np.linspace(-3, 3, 24, dtype=np.float32).reshape(6, 4).astype(BFLOAT)
    _write_bfloat16(tmp_path, "a", values, fill=1.5, layout=Layout((2, 4)))
    (tmp_path / "a" / "c" / "1" / "0").unlink()
    values[2:4] = 1.5
    exact = values.astype(np.float64)
    (found,), *_ = _batches(device, 6, path=tmp_path, arrays=["a"], mean=[0.25], stddev=[3.0])
    same(found, ((exact - 0.25) / 3.0).astype(np.float32), "normalised: float32 by default")
    # The fill value is one of the output, which is of bfloat16.
    padded = {"dims": [0], "window": [4], "step": [4], "out_of_bounds_policy": "pad", "fill_value": 2.7}
    (found,), *_ = _batches(device, 2, path=tmp_path, arrays=["a"], **padded)
    same(found[1], np.concatenate([values[4:], np.full((2, 4), 2.7, BFLOAT)]).view(np.uint16), "padded")
    (found,), *_ = _batches(device, 6, path=tmp_path, arrays=["a", "a"], stack_arrays=True)
    same(found, np.stack([values, values], 1).view(np.uint16), "stacked")
    write_array(tmp_path, "b", np.ones((6, 4), np.uint16), layout=Layout((2, 4)))
    refused(device, TypeError, "bfloat16", path=tmp_path, arrays=["a", "b"], stack_arrays=True)


def test_bfloat16_with_attributes(tmp_path, device):
    """Decoded as float32 data are."""
    values = np.array([[1, 2, -999, 4]] * 2, np.float32).astype(BFLOAT)
    _write_bfloat16(tmp_path, "a", values, layout=Layout((1, 4)))
    write_array(tmp_path, "b", values.astype(np.float32), layout=Layout((1, 4)))
    for attributes in ({"missing_value": float(values[0, 2])}, {"missing_value": -999, "scale_factor": 0.5, "add_offset": 3.0}):
        for name in ("a", "b"):
            file = tmp_path / name / "zarr.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"attributes": attributes}))
        (bfloat, single), *_ = _batches(device, 2, path=tmp_path, arrays=["a", "b"], mask_and_scale=True, dtype="float32")
        same(bfloat, single, str(attributes))


def test_bfloat16_of_tensorstore(tmp_path, device):
    """Written by tensorstore, values and metadata."""
    tensorstore = pytest.importorskip("tensorstore")
    values = _bfloats((6, 4))
    store = tensorstore.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a")}}, create=True,
        dtype=tensorstore.bfloat16, shape=(6, 4), chunk_layout=tensorstore.ChunkLayout(chunk_shape=(3, 4)),
    ).result()
    store.write(values).result()
    (found,), *_ = _batches(device, 6, path=tmp_path, arrays=["a"])
    same(found, values.view(np.uint16), "bits")


def _parts(values: np.ndarray) -> np.ndarray:
    """Real and imaginary part as one more dimension, by NumPy."""
    return np.stack([values.real, values.imag], -1)


FILLS = [0, complex(1.5, 1.5), complex(np.nan, 1.5), complex(-0.0, np.inf)]
COMPLEX_LAYOUTS = {
    "plain": Layout((2, 3, 4)), "ragged": Layout((3, 2, 3)), "fortran": Layout((2, 3, 3), order="F"),
    "big-endian": Layout((3, 3, 4), big_endian=True), "fortran-big-endian": Layout((2, 2, 4), order="F", big_endian=True),
    "shards": Layout((1, 3, 2), shards=(2, 3, 4)), "fortran-shards": Layout((1, 3, 2), shards=(2, 3, 4), order="F"),
}


def _write_complex(root: Path, dtype: str, zarr_format: int, fill: complex, layout: Layout, name: str = "a") -> np.ndarray:
    """An array of (6, 3, 4) by zarr-python, of which some chunks are missing; what zarr-python reads."""
    random = np.random.default_rng(3)
    values = (random.standard_normal((6, 3, 4)) + 1j * random.standard_normal((6, 3, 4))).astype(dtype)
    values[0, 0, :3] = [complex(np.nan, -0.0), complex(np.inf, 1), complex(-0.0, np.nan)]
    write_array(root, name, values, zarr_format=zarr_format, layout=layout, fill_value=fill, dims=("t", "y", "x"))
    chunks = sorted(file for file in (root / name).rglob("*") if file.is_file() and not file.name.startswith((".z", "zarr")))
    for file in chunks[1::2]:
        file.unlink()
    return _parts(zarr.open_array(str(root / name), mode="r")[...])


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(
    ("zarr_format", "layout"),
    [(3, name) for name in COMPLEX_LAYOUTS] + [(2, name) for name in COMPLEX_LAYOUTS if "shards" not in name],
)
def test_complex_comes_as_two_floats(tmp_path, device, dtype, zarr_format, layout):
    """Real and imaginary part, last; also of chunks that are missing."""
    for i, fill in enumerate(FILLS):
        expected = _write_complex(tmp_path, dtype, zarr_format, fill, COMPLEX_LAYOUTS[layout], f"a{i}")
        (found,), *_ = _batches(device, 6, path=tmp_path, arrays=[f"a{i}"])
        same(found, expected, f"whole, fill value {fill}")
        window = {"dims": ["t", "x"], "window": [3, 2], "step": [2, 1], "stride": [1, 2]}
        (found, index), *_ = _batches(device, 4, path=tmp_path, arrays=[f"a{i}"], return_index=True, **window)
        for sample, (t, x) in zip(found, index, strict=True):
            same(sample, expected[t : t + 3, :, x : x + 3 : 2], f"window, fill value {fill}")


@pytest.mark.parametrize("fill", FILLS, ids=str)
def test_a_part_of_complex_numbers(tmp_path, device, fill):
    """The dimension is called complex: one part is picked, both are stacked and normalised one by one."""
    expected = _write_complex(tmp_path, "complex64", 3, fill, COMPLEX_LAYOUTS["plain"])
    for pick in ([1], [0], [1, 0]):
        (found,), *_ = _batches(device, 6, path=tmp_path, arrays=["a"], pick=f"complex={','.join(map(str, pick))}")
        same(found, expected[..., pick], f"picked {pick}")
    write_array(tmp_path, "b", np.ones((6, 3, 4), "float32"), layout=Layout((2, 3, 4)), dims=("t", "y", "x"))
    how = {"stack_arrays": True, "mean": [1.0, 2.0, 3.0], "stddev": [2.0, 4.0, 8.0]}
    (found,), *_ = _batches(device, 6, path=tmp_path, arrays=["a", "b"], **how)
    channels = np.concatenate([np.moveaxis(expected, -1, 1), np.ones((6, 1, 3, 4), "float32")], 1).astype(np.float64)
    means, deviations = (np.array(how[name]).reshape(3, 1, 1) for name in ("mean", "stddev"))
    with np.errstate(all="ignore"):
        same(found, ((channels - means) / deviations).astype(np.float32), "stacked")


def test_complex_cut_along_its_parts(tmp_path, device):
    """As along any dimension, unless the parts of the fill value differ."""
    expected = _write_complex(tmp_path, "complex64", 3, 0, COMPLEX_LAYOUTS["plain"], "same")
    (found,), *_ = _batches(device, 2, path=tmp_path, arrays=["same"], dims=["complex"])
    same(found, np.moveaxis(expected, -1, 0), "cut")
    _write_complex(tmp_path, "complex64", 3, 1j, COMPLEX_LAYOUTS["plain"], "other")
    refused(device, ValueError, "complex", path=tmp_path, arrays=["other"], dims=["complex"])


def test_complex_in_shards_within_shards(tmp_path, device):
    """The outer shard is opened, the inner ones are decoded whole, transpositions within them too."""
    random = np.random.default_rng(5)
    values = (random.standard_normal((4, 6)) + 1j * random.standard_normal((4, 6))).astype("complex128")
    inner = zarr.codecs.ShardingCodec(
        chunk_shape=(1, 3), codecs=[zarr.codecs.TransposeCodec(order=(1, 0)), zarr.codecs.BytesCodec(), zarr.codecs.ZstdCodec()],
    )
    for name, serializer in (("one", inner), ("two", zarr.codecs.ShardingCodec(chunk_shape=(2, 6), codecs=[inner]))):
        how = {"serializer": serializer, "compressors": None, "filters": None}
        zarr.create_array(str(tmp_path / name), shape=(4, 6), chunks=(4, 6), dtype="complex128", **how)[...] = values
        (found,), *_ = _batches(device, 4, path=tmp_path / name)
        same(found, _parts(values), name)
    file = tmp_path / "two" / "zarr.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"fill_value": [0.0, 1.0]}))
    refused(device, ValueError, "two equal parts", path=tmp_path / "two")


def test_complex_isnt_decoded(tmp_path, device):
    """What xarray would do with attributes isn't done silently in another way."""
    _write_complex(tmp_path, "complex64", 3, 0, COMPLEX_LAYOUTS["plain"])
    file = tmp_path / "a" / "zarr.json"
    plain = json.loads(file.read_text())
    check_values = _batches(device, 6, path=tmp_path, arrays=["a"], mask_and_scale=True)[0][0]
    file.write_text(json.dumps(plain | {"attributes": {"scale_factor": 2.0}}))
    for mask_and_scale in ({}, {"mask_and_scale": True}):
        refused(device, ValueError, "scale_factor", path=tmp_path, arrays=["a"], **mask_and_scale)
    same(_batches(device, 6, path=tmp_path, arrays=["a"], mask_and_scale=False)[0][0], check_values, "as stored")
    _write_complex(tmp_path, "complex64", 2, 0, COMPLEX_LAYOUTS["plain"], "old")
    refused(device, ValueError, "fill value", path=tmp_path, arrays=["old"], mask_and_scale=True)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("stored", ["datetime64[ns]", "datetime64[10s]", "timedelta64[D]", "datetime64[us]"])
def test_units_of_times_are_explained(tmp_path, device, zarr_format, stored):
    """Values are int64, NaT is the smallest of them; explain and info have the unit."""
    import dali_zarr
    from dali_zarr._commands.info import info, text

    values = np.array([5, -7, 2**40, 0], "int64").astype(stored)
    values[3] = "NaT"
    layout = Layout((2,), big_endian=stored == "datetime64[us]")
    write_array(tmp_path, "t", values, zarr_format=zarr_format, layout=layout, dims=("time",))
    (found,), *_ = _batches(device, 4, path=tmp_path, arrays=["t"])
    same(found, values.view("int64"), stored)
    explained = dali_zarr.explain(path=str(tmp_path), arrays=["t"])
    (array,) = explained["arrays"]
    assert (array["dtype"], array["stored"], explained["outputs"][0]["dtype"]) == ("int64", stored, "int64")
    assert f"int64 (stored as {stored})" in str(explained)
    assert f"int64 (stored as {stored})" in text(info(str(tmp_path), {}))


def test_types_that_are_explained(tmp_path):
    """The bits of bfloat16, the parts of complex numbers."""
    import dali_zarr

    _write_bfloat16(tmp_path, "a", _bfloats((6, 3)), layout=Layout((2, 3)), dims=("t", "y"))
    _write_complex(tmp_path, "complex64", 3, 0, COMPLEX_LAYOUTS["plain"], "b")
    explained = dali_zarr.explain(path=str(tmp_path), arrays=["a", "b"], dims=["t"])
    assert [(one["dtype"], one["bits_of"]) for one in explained["outputs"]] == [("uint16", "bfloat16"), ("float32", None)]
    assert [one["stored"] for one in explained["arrays"]] == ["bfloat16", "complex64"]
    assert explained["arrays"][1]["dims"] == ["t", "y", "x", "complex"]
    assert "uint16 (the bits of bfloat16)" in str(explained)


def test_stores_of_other_types_arent_joined(tmp_path, device):
    """int64 isn't datetime64, and units differ."""
    for i, dtype in enumerate(("datetime64[s]", "datetime64[ns]", "int64")):
        write_array(tmp_path / str(i), "t", np.arange(4).astype(dtype), layout=Layout((2,)), dims=("time",))
    for one, other in ((0, 1), (0, 2)):
        refused(device, ValueError, "datetime64[s]", path=[tmp_path / str(one), tmp_path / str(other)], arrays=["t"])


def test_the_loader_has_torchs_types(tmp_path, device):
    """bfloat16 where an output is one of the reader's own and no dtype was asked; unsigned types."""
    torch = pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    values = _bfloats((8, 3))
    _write_bfloat16(tmp_path, "a", values, layout=Layout((2, 3)), dims=("t", "y"))
    for name, dtype in (("b", "uint16"), ("c", "uint32"), ("d", "uint64")):
        write_array(tmp_path, name, np.arange(24).reshape(8, 3).astype(dtype), layout=Layout((2, 3)), dims=("t", "y"))
    on = "cuda" if device == "gpu" else "cpu"
    names = ["a", "b", "c", "d"]
    found = list(Loader(str(tmp_path), arrays=names, batch_size=3, device=on))
    assert [found[0][name].dtype for name in names] == [torch.bfloat16, torch.uint16, torch.uint32, torch.uint64]
    assert [len(batch["a"]) for batch in found] == [3, 3, 2]
    read = torch.cat([batch["a"] for batch in found])
    same(read.view(torch.uint16).cpu().numpy(), values.view(np.uint16), "bits")
    assert next(iter(Loader(str(tmp_path), arrays=["a"], device=on, dtype="float32")))["a"].dtype == torch.float32
    same_bits = Loader(str(tmp_path), arrays=["a"], device=on, transform=lambda outputs: dict(outputs))
    assert next(iter(same_bits))["a"].dtype == torch.uint16
