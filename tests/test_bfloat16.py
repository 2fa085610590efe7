"""``dtype="bfloat16"``: any array as bfloat16, rounded once, to the nearest and ties to even."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import dali_zarr
import ml_dtypes
import numpy as np
import pytest
import torch
import xarray as xr
from dali_zarr.torch import Loader
from nvidia.dali import types
from support.pipelines import batches, build
from support.stores import Layout, write_array

BFLOAT = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(5)


def of_floats(values: np.ndarray) -> np.ndarray:
    """The bits of the nearest bfloat16 of each float64. ml_dtypes rounds float64 twice, by way of float32, so that comes first with
    a bit that shows on which side of a tie it was."""
    values = values.astype("float64")
    with np.errstate(over="ignore"):
        near = values.astype("float32")
    exact = (near.astype("float64") == values) | np.isnan(values)
    bits = near.view("uint32") - (np.abs(near.astype("float64")) > np.abs(values)).astype("uint32")
    return np.where(exact, near, (bits | 1).view("float32")).astype("float32").astype(BFLOAT).view("uint16")


def of_whole(values: np.ndarray) -> np.ndarray:
    """The bits of the nearest bfloat16 of each integer, by exact fractions."""

    def one(value: int) -> int:
        near = int(np.array(float(value)).astype("float32").astype(BFLOAT).view("uint16"))
        around = [at for at in (near - 1, near, near + 1) if 0 <= at <= 0xFFFF]
        finite = {at: float(np.uint16(at).view(BFLOAT)) for at in around}
        return min((at for at in around if np.isfinite(finite[at])), key=lambda at: (abs(Fraction(finite[at]) - value), at & 1))

    return np.array([one(int(value)) for value in values.ravel()], "uint16").reshape(values.shape)


def ties(dtype: str) -> np.ndarray:
    """Integers that lie at and beside the middle of two bfloat16."""
    top = np.iinfo(dtype).max
    found = [m + d for bits in range(9, top.bit_length()) for m in [(1 << bits) + (1 << (bits - 8))] for d in (-1, 0, 1)]
    kept = [value for value in found if value <= top] + [0, 1, top]
    return np.array(kept + ([] if dtype.startswith("u") else [-value for value in kept]), dtype)


def floats(dtype: str, count: int = 4000) -> np.ndarray:
    values = RNG.normal(280, 30, count).astype(dtype)
    middle = np.arange(256, 512, dtype="float64") + 0.5
    hair = np.nextafter(middle.astype(dtype), np.inf, dtype=dtype)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, np.finfo(dtype).max, -np.finfo(dtype).tiny, np.finfo(dtype).eps], dtype)
    return np.concatenate([values, middle.astype(dtype) / 256, hair / 256, -hair / 256, special])


@pytest.mark.parametrize("stored", ["float16", "float32", "float64", "int8", "uint16", "int32", "int64", "uint64", "bool"])
def test_it_is_rounded_once(tmp_path, device, stored):
    kind = np.dtype(stored).kind
    values = floats(stored) if kind == "f" else RNG.integers(0, 2, 300).astype(bool) if kind == "b" else ties(stored)
    write_array(tmp_path, "a", values, layout=Layout((17,)))
    want = of_floats(values) if kind == "f" else of_whole(values)
    pipe = build(device, 64, path=tmp_path, arrays=["a"], dtype="bfloat16")
    found = np.concatenate([batch[0] for batch in itertools.islice(batches(pipe), -(-len(values) // 64))])
    nan = np.isnan(values.astype("float64"))
    np.testing.assert_array_equal(found[: len(values)][~nan], want[~nan])
    assert np.isnan(found[: len(values)][nan].view(BFLOAT)).all()


@pytest.mark.parametrize("layout", [Layout((2, 5)), Layout((3, 4), shards=(6, 8)), Layout((3, 5), big_endian=True)])
@pytest.mark.parametrize(
    "how", [{}, {"mean": [280.0], "stddev": [30.0]}, {"transpose": [1, 0], "window": {"0": 4}, "step": [2]}], ids=str,
)
def test_it_is_made_as_other_types_are(tmp_path, device, layout, how: dict[str, Any]):
    """From what float64 has, as it is normalised, cut and turned."""
    write_array(tmp_path, "a", RNG.normal(280, 30, (12, 8)).astype("float32"), layout=layout)
    args: dict[str, Any] = {"path": tmp_path, "arrays": ["a"], **how}
    both = [batches(build(device, 3, **args, dtype=dtype)) for dtype in ("bfloat16", "float64")]
    for (half,), (exact,) in itertools.islice(zip(*both, strict=True), 5):
        np.testing.assert_array_equal(np.asarray(half), of_floats(np.asarray(exact)))


def write(path: Path) -> np.ndarray:
    values = RNG.normal(280, 30, (10, 6)).astype("float32")
    xr.Dataset({"t2m": (("time", "x"), values), "n": ("time", np.arange(10))}).to_zarr(path, consolidated=False)
    return values


@pytest.mark.parametrize("asked", ["bfloat16", torch.bfloat16, BFLOAT, ml_dtypes.bfloat16, "torch.bfloat16"], ids=str)
def test_torch_has_its_own(tmp_path, device, asked):
    values = write(tmp_path / "a.zarr")
    loader = Loader(tmp_path / "a.zarr", arrays=["t2m", "n"], dtype={"t2m": asked}, batch_size=5, device=device)
    batch = next(iter(loader))
    assert (batch["t2m"].dtype, batch["n"].dtype) == (torch.bfloat16, torch.int64)
    assert torch.equal(batch["t2m"].cpu(), torch.from_numpy(values[:5]).to(torch.bfloat16))
    whole = Loader(tmp_path / "a.zarr", arrays=["t2m"], dtype=asked, mean=280, stddev=30, batch_size=5, device=device)
    assert next(iter(whole))["t2m"].dtype == torch.bfloat16
    told = dali_zarr.explain(path=tmp_path / "a.zarr", arrays=["t2m"], dtype=asked)["outputs"][0]
    assert (told["dtype"], told["bits_of"], told["sample_bytes"]) == ("uint16", "bfloat16", 12)


@pytest.mark.parametrize("collate", [None, "padded", "list"])
def test_jax_has_its_own(tmp_path, collate):
    jax = pytest.importorskip("jax")
    from dali_zarr.jax import Loader as JaxLoader

    values = write(tmp_path / "a.zarr")
    xr.Dataset({"t2m": (("time", "x"), values[:4, :5])}).to_zarr(tmp_path / "b.zarr", consolidated=False)
    paths = [tmp_path / "a.zarr", tmp_path / "b.zarr"] if collate else tmp_path / "a.zarr"
    more: dict[str, Any] = {"collate": collate, "concat": "samples"} if collate else {}
    loader = JaxLoader(paths, arrays=["t2m"], dtype=jax.numpy.bfloat16, batch_size=14 if collate else 10, device="cpu", **more)
    found = next(iter(loader))["t2m"]
    first = found[0] if collate == "list" else found
    assert first.dtype == jax.numpy.bfloat16
    np.testing.assert_array_equal(np.asarray(first if collate == "list" else first[0])[:6], values[0].astype(BFLOAT))
    if collate == "padded":
        assert np.asarray(found[10])[5:].tolist() == [0.0] and found.shape == (14, 6)


def test_dali_has_its_bits(tmp_path, device):
    write(tmp_path / "a.zarr")
    pipe = build(device, 2, path=tmp_path / "a.zarr", arrays=["t2m"], dtype="bfloat16")
    (output,) = pipe.run()
    assert output.dtype == types.UINT16


def test_it_is_filled_and_padded(tmp_path, device):
    values = write(tmp_path / "a.zarr")
    args: dict[str, Any] = {
        "path": tmp_path / "a.zarr", "arrays": ["t2m"], "window": [4], "step": [4], "dtype": "bfloat16", "fill_value": 2.7,
        "out_of_bounds_policy": "pad",
    }
    *_, (last,) = itertools.islice(batches(build(device, 1, **args)), 3)
    want = np.concatenate([values[8:].astype(BFLOAT), np.full((2, 6), 2.7, BFLOAT)]).view("uint16")
    np.testing.assert_array_equal(np.asarray(last)[0], want)
