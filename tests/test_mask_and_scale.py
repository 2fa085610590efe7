"""mask_and_scale gives what xarray gives: the same masks, the same products to the bit, the same data type."""

from __future__ import annotations

import base64
import struct

import numpy as np
import pytest
from support.pipelines import build, check, to_numpy
from support.stores import Layout, read_back, sample_values, write_array

SHAPE = (6, 4, 5)
DIMS = ("time", "lat", "lon")
LAYOUT = Layout((2, 4, 3))


def _write(path, dtype, zarr_format, attributes, fill_value=0, name="a", seed=0):
    values = sample_values(dtype, SHAPE, seed)
    if np.dtype(dtype).kind in "iu":
        # Some of everything that may be masked.
        values[::2, 1] = fill_value if fill_value is not None else 0
        values[1::2, 2] = 7
    write_array(
        path, name, values, zarr_format=zarr_format, layout=LAYOUT, dims=DIMS, fill_value=fill_value, attributes=attributes,
        missing=((1, 0, 0),),
    )


def _v3_fill(value, dtype):
    """The _FillValue attribute as xarray writes it into v3: base64 of a double for floats, a number otherwise."""
    if np.dtype(dtype).kind == "f":
        return base64.standard_b64encode(struct.pack("<d", value)).decode()
    return value


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"scale_factor": 0.01, "add_offset": 273.15},
        {"scale_factor": 0.1},
        {"add_offset": -5.5},
        {"scale_factor": 2, "add_offset": 1},
        {"scale_factor": [0.25], "add_offset": [3.0]},
        {},
    ],
    ids=["scale-offset", "scale", "offset", "integers", "lists", "nothing"],
)
def test_scale_and_offset(tmp_path, device, zarr_format, dtype, attributes):
    """Packed data of every type; what the float type of the result is depends on the packed type and the attributes."""
    _write(tmp_path, dtype, zarr_format, attributes)
    check(device, 2, path=tmp_path, arrays=["a"], mask_and_scale=True)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "float32", "float64"])
@pytest.mark.parametrize("scale", [{}, {"scale_factor": 0.01, "add_offset": 1.0}], ids=["plain", "packed"])
def test_v2_fill_value_is_the_mask(tmp_path, device, dtype, scale):
    """In v2 the array's own fill value is CF's _FillValue."""
    _write(tmp_path, dtype, 2, scale, fill_value=100)
    check(device, 2, path=tmp_path, arrays=["a"], mask_and_scale=True)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "float32", "float64"])
@pytest.mark.parametrize("scale", [{}, {"scale_factor": 0.01, "add_offset": 1.0}], ids=["plain", "packed"])
def test_v3_fill_value_attribute(tmp_path, device, dtype, scale):
    """In v3 the attribute is the mask, and the array's fill value is a value like others."""
    _write(tmp_path, dtype, 3, scale | {"_FillValue": _v3_fill(7, dtype)}, fill_value=100)
    check(device, 2, path=tmp_path, arrays=["a"], mask_and_scale=True)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_missing_value(tmp_path, device, zarr_format, dtype):
    """missing_value masks as well; where both are given and differ, both do."""
    fill = {"_FillValue": _v3_fill(100, dtype)} if zarr_format == 3 else {}
    _write(tmp_path, dtype, zarr_format, {"missing_value": 7} | fill, fill_value=100)
    check(device, 2, path=tmp_path, arrays=["a"], mask_and_scale=True)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("dtype", "unsigned"), [("int8", "true"), ("int16", "true"), ("uint8", "false"), ("uint16", "false")])
@pytest.mark.parametrize("scale", [{}, {"scale_factor": 0.5}], ids=["plain", "packed"])
def test_unsigned(tmp_path, device, zarr_format, dtype, unsigned, scale):
    """netCDF's _Unsigned turns the bits over before anything else; the fill value with them."""
    fill = {"_FillValue": 7} if zarr_format == 3 else {}
    _write(tmp_path, dtype, zarr_format, {"_Unsigned": unsigned} | scale | fill, fill_value=7)
    check(device, 2, path=tmp_path, arrays=["a"], mask_and_scale=True)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_nan_as_fill_value(tmp_path, device, zarr_format):
    """NaN as _FillValue changes nothing but is legal."""
    fill = {"_FillValue": _v3_fill(float("nan"), "float32")} if zarr_format == 3 else {}
    _write(tmp_path, "float32", zarr_format, fill, fill_value=float("nan"))
    check(device, 2, path=tmp_path, arrays=["a"], mask_and_scale=True)


def test_rounding_is_that_of_two_operations(tmp_path, device):
    """Product, then sum, each rounded: a fused multiply-add would differ in the last bit for some of 60000 values."""
    values = np.arange(-30000, 30000, dtype="int16").reshape(6, 100, 100)
    attributes = {"scale_factor": 0.0012345678901234567, "add_offset": 7.654321098765432}
    write_array(tmp_path, "a", values, layout=Layout((1, 100, 100)), dims=DIMS, attributes=attributes)
    check(device, 3, path=tmp_path, arrays=["a"], mask_and_scale=True)
    check(device, 3, path=tmp_path, arrays=["a"], mask_and_scale=True, dtype="float64")
    check(device, 3, path=tmp_path, arrays=["a"], mask_and_scale=True, mean=[1.1], stddev=[0.3])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int16", "uint8"])
def test_with_normalisation_and_cast(tmp_path, device, dtype):
    """Decoding comes first, then mean and stddev, then the cast; a masked value is 0 as an integer."""
    _write(tmp_path, "int16", 2, {"scale_factor": 0.01, "add_offset": 5.0}, fill_value=-1)
    args = {"path": tmp_path, "arrays": ["a"], "mask_and_scale": True, "dtype": dtype}
    check(device, 2, **args)
    check(device, 2, mean=[3.0], stddev=[1.7], **args)


def test_off(tmp_path, device):
    """With mask_and_scale=False the stored integers come through."""
    _write(tmp_path, "int16", 2, {"scale_factor": 0.01}, fill_value=100)
    written = read_back(tmp_path, "a")
    out = to_numpy(build(device, 6, path=tmp_path, arrays=["a"], mask_and_scale=False).run()[0])
    assert out.dtype == np.int16
    np.testing.assert_array_equal(out, written)


def test_stacks_and_windows(tmp_path, device):
    """Differently packed arrays in one stack, through windows that cross chunks."""
    _write(tmp_path, "int16", 2, {"scale_factor": 0.01, "add_offset": 5.0}, fill_value=-1, name="a", seed=1)
    _write(tmp_path, "int16", 2, {"scale_factor": 0.5}, fill_value=3, name="b", seed=2)
    check(
        device, 2, path=tmp_path, arrays=["a", "b"], mask_and_scale=True, stack_arrays=True, dtype="float32",
        dims=["time"], window=[3], step=[1], mean=[1.0, 2.0], stddev=[3.0, 4.0],
    )
