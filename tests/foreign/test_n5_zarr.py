"""What n5-zarr (Java) writes: fill values are text, filters an empty list. No registry of packages here has it, so that its
metadata are written by hand, to the letter, around chunks of numcodecs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from support.configurations import values as random_values
from support.foreign import Foreign, compare, zarr_python
from support.pipelines import build
from support.stores import chunk_files, metadata

SHAPE, CHUNKS = (9, 14, 20), (4, 5, 20)


def _write(path: Path, values: np.ndarray, fill: object, separator: str = ".") -> np.ndarray:
    """Writes all but the chunks along the first dimension's end; returns what the array then holds, where ``fill`` can be read."""
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    array = group.create_array(
        "setup0/timepoint0/s0", shape=values.shape, chunks=CHUNKS, dtype=values.dtype, compressors=None, fill_value=0,
        chunk_key_encoding={"name": "v2", "separator": separator}, config={"write_empty_chunks": True},
    )
    array[:8] = values[:8]
    file, document = metadata(path, "setup0/timepoint0/s0")
    # The order of the keys is that of n5-zarr's class.
    written = {
        "zarr_format": 2, "shape": list(SHAPE), "chunks": list(CHUNKS), "dtype": document["dtype"], "compressor": None,
        "fill_value": fill, "order": "C", "filters": [], "dimension_separator": separator,
    }
    file.write_text(json.dumps(written))
    return array[...]


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("int8", "-3"), ("uint8", "255"), ("int16", "0"), (">u2", "7"), ("int32", "0"), ("uint32", "4294967295"), ("int64", "0"),
        ("uint64", "18446744073709551615"), ("float32", "0"), ("float32", "1.5"), (">f4", "nan"), ("float64", "NaN"),
        ("float64", "inf"), ("float32", "-Infinity"), ("float64", "1e3"), ("int16", True), ("float32", True),
    ],
)
def test_text_fill_values(tmp_path, device, dtype, fill):
    """zarr-python takes the text for the number."""
    values = random_values(np.random.default_rng(0), dtype, SHAPE)
    _write(tmp_path / "a", values, fill)
    expected = values.astype(np.dtype(dtype).newbyteorder("="))
    expected[8:] = np.dtype(expected.dtype).type(float(fill) if expected.dtype.kind == "f" else int(fill))
    references = {"what was written": expected, "zarr-python": zarr_python(tmp_path / "a", "setup0/timepoint0/s0")}
    compare(device, Foreign(tmp_path / "a", "setup0/timepoint0/s0", references))


@pytest.mark.parametrize(
    ("dtype", "fill"), [("uint8", "256"), ("int16", "seven"), ("int16", "1.5"), ("float32", ""), ("int32", "nan")],
)
def test_other_text_is_an_error(tmp_path, device, dtype, fill):
    """Text that is no value of the type names itself."""
    _write(tmp_path / "a", np.zeros(SHAPE, dtype), fill)
    with pytest.raises(ValueError, match="fill_value: expected"):
        build(device, 1, path=tmp_path / "a", arrays=["setup0/timepoint0/s0"])


@pytest.mark.parametrize("separator", [".", "/"])
def test_nested_keys_and_no_filters(tmp_path, device, separator):
    """`filters` is an empty list, not null, and keys are nested for BigDataViewer."""
    values = random_values(np.random.default_rng(1), "uint16", SHAPE)
    expected = _write(tmp_path / "a", values, 0, separator)
    assert len(chunk_files(tmp_path / "a", "setup0/timepoint0/s0")) == 6
    references = {"what was written": expected, "zarr-python": zarr_python(tmp_path / "a", "setup0/timepoint0/s0")}
    compare(device, Foreign(tmp_path / "a", "setup0/timepoint0/s0", references))
