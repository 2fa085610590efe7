"""Random attributes of the CF conventions: values and types are those that xarray decodes, and what it refuses is refused."""

from __future__ import annotations

import base64
import json
import struct
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from hypothesis import given
from hypothesis import strategies as st
from support.pipelines import build, same, to_numpy
from support.stores import DTYPES, Layout, sample_values, write_array

ARRAYS = 8
ELEMENTS = 40


def _write(path: Path, version: int, name: str, dtype: str, fill: Any, attributes: dict[str, Any], values: np.ndarray) -> None:
    """An array of one chunk, written by hand: thousands of them would take zarr-python minutes."""
    folder = path / name
    folder.mkdir()
    big = values.dtype.byteorder == ">"
    if version == 2:
        document = {
            "zarr_format": 2, "shape": values.shape, "chunks": values.shape, "dtype": values.dtype.str, "fill_value": fill,
            "order": "C", "filters": None, "compressor": None,
        }
        (folder / ".zarray").write_text(json.dumps(document))
        (folder / ".zattrs").write_text(json.dumps(attributes | {"_ARRAY_DIMENSIONS": ["t", "x"]}))
        (folder / "0.0").write_bytes(values.tobytes())
        return
    document = {
        "zarr_format": 3, "node_type": "array", "shape": values.shape, "data_type": dtype, "fill_value": fill,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": values.shape}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "big" if big else "little"}}],
        "dimension_names": ["t", "x"], "attributes": attributes,
    }
    (folder / "zarr.json").write_text(json.dumps(document))
    (folder / "0.0").write_bytes(values.tobytes())


def _numbers(dtype: str) -> st.SearchStrategy:
    """What writers put into attributes: numbers that an element may equal, or that none does."""
    few = [0, 1, -1, 2, 5, 7, 100, 127, 128, -128, 255, 32767, -32768, 65535]
    wide = [2**31 - 1, -(2**31), 2**32 - 1, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]
    floats = [0.0, -0.0, 0.5, 0.1, -999.0, 7.0, 1e20, 9.969209968386869e36, float("nan"), float("inf")]
    weights = [st.sampled_from(few)] * 4 + [st.sampled_from(floats)] * (4 if np.dtype(dtype).kind == "f" else 1)
    return st.one_of(*weights, st.sampled_from(wide))


@st.composite
def _attributes(draw: st.DrawFn, version: int, dtype: str) -> tuple[Any, dict[str, Any]]:
    """The array's own fill value, and its attributes."""
    kind = np.dtype(dtype).kind
    numbers = _numbers(dtype)
    attributes: dict[str, Any] = {}
    if draw(st.booleans()):
        lists, pairs = st.lists(numbers, max_size=7), st.lists(st.tuples(numbers, numbers).map(list), max_size=3)
        attributes["missing_value"] = draw(st.one_of(numbers, lists, lists, pairs))
    factors = [2, 3, -1, 0, 10**6, 2**40, 0.01, 0.1, 1.0, -2.5, [0.25], None]
    scales = draw(st.sampled_from(["", "", "scale", "scale", "offset", "both"]))
    if scales in ("scale", "both"):
        attributes["scale_factor"] = draw(st.sampled_from(factors))
    if scales in ("offset", "both"):
        attributes["add_offset"] = draw(st.sampled_from([1, -3, 2**40, 273.15, 0.0, [1.5], None]))
    fits = st.one_of(st.just(0), st.sampled_from([1, 5, 7, 100]))
    if kind == "b":
        fits = st.booleans()
    elif kind == "f":
        fits = st.one_of(fits, st.sampled_from(["NaN", -1.5, "Infinity"]))
    elif kind == "i":
        fits = st.one_of(fits, st.sampled_from([-1, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)]))
    fill = draw(fits)
    if version == 2 and draw(st.booleans()):
        fill = None
    if draw(st.integers(0, 2)) == 0 and not (version == 2 and fill is not None):
        value = draw(numbers)
        if version == 3 and kind == "f":
            attributes["_FillValue"] = base64.standard_b64encode(struct.pack("<d", float(value))).decode()
        elif version == 3 and kind == "b":
            attributes["_FillValue"] = bool(value)
        elif version == 2 or np.isfinite(value):
            attributes["_FillValue"] = value
    if kind in "iu" and draw(st.integers(0, 4)) == 0:
        attributes["_Unsigned"] = "true" if kind == "i" else "false"
    return fill, attributes


def _values(dtype: str, attributes: dict[str, Any], seed: int) -> np.ndarray:
    """Elements over the whole range, of which many equal one of the attributes' numbers."""
    rng = np.random.default_rng(seed)
    values = sample_values(dtype, (ELEMENTS,), seed)
    if values.dtype.kind in "iu":
        values[1::2] = rng.integers(0, 8, len(values[1::2]))
    elif values.dtype.kind == "f":
        values[1::4] = rng.integers(-3, 8, len(values[1::4])) / 2
    with np.errstate(all="ignore"):
        for i, number in enumerate(np.ravel(np.array(attributes.get("missing_value", 5), object))):
            try:
                values[(3 + 5 * i) % ELEMENTS] = number
            except (OverflowError, ValueError, TypeError):
                pass
    return values.reshape(1, ELEMENTS)


def _decoded(path: Path) -> dict[str, np.ndarray | None]:
    """Each array as xarray decodes it; None where it raises, or gives objects."""
    found: dict[str, np.ndarray | None] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        with xarray.open_zarr(path, consolidated=False, decode_cf=False, chunks=None) as raw:
            for name, variable in raw.variables.items():
                try:
                    values = xarray.conventions.decode_cf_variable(name, variable, decode_times=False).values
                except (ValueError, TypeError, OverflowError):
                    found[name] = None
                else:
                    found[name] = None if values.dtype == object else values.astype(values.dtype.newbyteorder("="))
    return found


def _is_beyond(value, dtype):
    """Whether a float is no integer that the type has."""
    if dtype.kind not in "iu" or not isinstance(value, float):
        return False
    return not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max


@given(data=st.data())
def test_random_attributes(device, data):
    version = data.draw(st.sampled_from([2, 3]))
    told, beyond = {}, []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        group = {"zarr_format": version} | ({"node_type": "group", "attributes": {}} if version == 3 else {})
        (path / ("zarr.json" if version == 3 else ".zgroup")).write_text(json.dumps(group))
        for i in range(ARRAYS):
            dtype = data.draw(st.sampled_from(DTYPES))
            fill, attributes = data.draw(_attributes(version, dtype))
            # xarray views the fill value of big-endian data in v2 in the wrong order.
            big = data.draw(st.booleans()) and not (version == 2 and "_Unsigned" in attributes)
            values = _values(dtype, attributes, data.draw(st.integers(0, 999)))
            values = values.astype(values.dtype.newbyteorder(">" if big else "<"))
            _write(path, version, f"a{i}", dtype, fill, attributes, values)
            told[f"a{i}"] = f"v{version} {values.dtype.str} fill {fill} {attributes}"
            if version == 3 and _is_beyond(attributes.get("_FillValue"), values.dtype):
                beyond.append(f"a{i}")
        # NumPy casts such a fill value to any integer, by chance. What the reader does isn't compared with that.
        expected = {name: values for name, values in _decoded(path).items() if name not in beyond}
        for name in (name for name, values in expected.items() if values is None):
            with pytest.raises((ValueError, TypeError), match="zarr_reader|mask_and_scale"):
                build(device, 1, path=path, arrays=[name], mask_and_scale=True)
                pytest.fail(f"xarray refuses {told[name]}")
        names = [name for name, values in expected.items() if values is not None]
        if not names:
            return
        try:
            outputs = build(device, 1, path=path, arrays=names, dims=["t"], mask_and_scale=True).run()
        except ValueError as error:
            raise AssertionError({name: told[name] for name in names}) from error
        for name, output in zip(names, outputs, strict=True):
            same(to_numpy(output)[0], expected[name][0], told[name])


def test_unsigned_values_of_the_other_byte_order(tmp_path, device):
    """The value that means missing is the fill value, where xarray takes its bytes in the wrong order and masks 128."""
    values = np.array([[-(2**15), 128, -1, 5]], ">i2")
    write_array(
        tmp_path, "a", values.astype("i2"), zarr_format=2, codec="none", layout=Layout((1, 4), big_endian=True), dims=("t", "x"),
        fill_value=-(2**15), attributes={"_Unsigned": "true"},
    )
    (found,) = build(device, 1, path=tmp_path, arrays=["a"], mask_and_scale=True).run()
    np.testing.assert_array_equal(to_numpy(found)[0], np.array([np.nan, 128, 65535, 5], "float32"))
    with xarray.open_zarr(tmp_path, consolidated=False) as ds:
        assert np.isnan(ds["a"].values).tolist() in ([[False, True, False, False]], [[True, False, False, False]])
