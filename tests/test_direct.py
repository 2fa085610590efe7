"""Arrays that the tests write file by file have the files that zarr-python writes, to the byte."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from support import direct
from support.stores import CODECS_V2, CODECS_V3, DTYPES, Layout, sample_values, write_array


def files(folder: Path) -> dict[str, bytes]:
    """The content of all files."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def compare(folder: Path, values: np.ndarray, names: str = "a", **how: Any) -> None:
    """Writes an array in both ways, into a new group; as often as it has names."""
    taken = []

    def write(*args, **kwargs):
        taken.append(written(*args, **kwargs))
        return taken[-1]

    written = direct.write
    with pytest.MonkeyPatch.context() as patched:
        # The headers of gzip have the time, and a checksum may cover them.
        patched.setattr("gzip.time", SimpleNamespace(time=lambda: 0))
        patched.setattr(direct, "write", write)
        for name in names:
            write_array(folder / "direct", name, values, **how)
        patched.setattr(direct, "write", lambda *_, **__: False)
        for name in names:
            write_array(folder / "zarr", name, values, **how)
    assert taken == [True] * len(names)
    assert files(folder / "direct") == files(folder / "zarr")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("big_endian", [False, True])
def test_types_and_codecs(tmp_path, zarr_format, order, big_endian):
    """Each codec with each type, with chunks at the edges and chunks that are missing."""
    layout = Layout((3, 2), order=order, big_endian=big_endian)
    codecs = CODECS_V2 if zarr_format == 2 else CODECS_V3
    for number, dtype in enumerate(DTYPES):
        # Each type has other codecs, and each codec three types at least.
        for codec in [*codecs][number % 4 :: 4]:
            how: dict[str, Any] = {"layout": layout, "codec": codec, "dims": ("t", None), "attributes": {"scale": 0.5, "u": "K"}}
            fill = float("nan") if np.dtype(dtype).kind == "f" else 1
            values = sample_values(dtype, (5, 5), seed=number)
            missing = ((0, 1), (1, 0))
            compare(tmp_path / f"{dtype}-{codec}", values, zarr_format=zarr_format, fill_value=fill, missing=missing, **how)


@given(data=st.data())
def test_shapes_and_fill_values(tmp_path_factory, data):
    draw = data.draw
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.integers(1, 6)) for _ in range(draw(st.integers(1, 4))))
    chunks = tuple(draw(st.integers(1, 8)) for _ in shape)
    layout = Layout(chunks, order=draw(st.sampled_from("CF")), big_endian=draw(st.booleans()))
    floats = st.sampled_from([0.1, -1e30, 65504, float("inf"), float("-inf"), float("nan"), 0, -0.0])
    fill = draw(floats) if dtype.kind == "f" else draw(st.integers(0, 1 if dtype.kind == "b" else 100))
    dims = draw(st.sampled_from([None, tuple(f"d{i}" for i in range(len(shape)))]))
    with np.errstate(all="ignore"):
        compare(
            tmp_path_factory.mktemp("direct"), sample_values(dtype.name, shape), "ab", layout=layout, fill_value=fill, dims=dims,
            zarr_format=draw(st.sampled_from([2, 3])), codec=draw(st.sampled_from(["none", "zstd", "blosc-lz4-shuffle"])),
        )


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_is_left_to_zarr_python(tmp_path, zarr_format):
    """What has other files is written by it, into the same group: nothing is written twice, and its errors come."""
    values = np.arange(12, dtype="int32").reshape(3, 4)
    others: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
        "scalar": (np.array(3.0), {}), "empty": (np.zeros((0, 3)), {"layout": Layout((1, 3))}),
        "complex": (values.astype("complex64"), {}), "times": (values.astype("M8[s]"), {}), "in/a/group": (values, {}),
        "filled": (values, {"fill_value": np.int32(7)}),
    }
    if zarr_format == 3:
        others["shards"] = values, {"layout": Layout((1, 2), shards=(2, 4))}
    write_array(tmp_path, "first", values, zarr_format=zarr_format)
    for name, (content, how) in others.items():
        write_array(tmp_path, name, content, zarr_format=zarr_format, **how)
        assert np.array_equal(zarr.open_group(tmp_path, mode="r")[name][...], content)
    with pytest.raises(zarr.errors.ContainsArrayError):
        write_array(tmp_path, "first", values, zarr_format=zarr_format)
    with pytest.raises((TypeError, OverflowError)):
        write_array(tmp_path, "wrong", values, zarr_format=zarr_format, fill_value=1 << 40)
