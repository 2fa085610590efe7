"""What zarr-python reads, the reader reads, to the bit: format x codec x dtype x chunk layout x shard layout x window."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support.oracle import load
from support.pipelines import batches, build, check, same
from support.stores import CODECS_V2, CODECS_V3, DTYPES, GPU_CODECS, Layout, read_back, sample_values, write_array, write_era5

SHAPE = (7, 5, 6)
DIMS = ("time", "lat", "lon")
LAYOUTS = {
    "one-per-step": Layout((1, 5, 6)),
    "one-chunk": Layout(SHAPE),
    "dividing": Layout((7, 5, 3)),
    "ragged": Layout((3, 4, 5)),
    "tiny": Layout((1, 1, 2)),
    "fortran": Layout((3, 5, 4), order="F"),
    "big-endian": Layout((2, 5, 6), big_endian=True),
    "fortran-big-endian": Layout((2, 3, 6), order="F", big_endian=True),
}
SHARDED = {
    "index-end": Layout((1, 5, 3), shards=(2, 5, 6)),
    "index-start": Layout((2, 2, 3), shards=(4, 4, 6), index_location="start"),
    "ragged": Layout((2, 3, 4), shards=(4, 6, 8)),
    "one-shard": Layout((3, 2, 2), shards=(9, 6, 6)),
    "one-inner-chunk": Layout((2, 5, 6), shards=(2, 5, 6)),
    "fortran-big-endian": Layout((1, 2, 3), shards=(2, 6, 6), order="F", big_endian=True),
}
# Sample shapes: a step dropped; a window that crosses chunk borders; a strided box along all dimensions.
WINDOWS = {
    "step": {},
    "window": {"dims": ["time"], "window": [3], "step": [2]},
    "box": {"dims": ["time", "lat", "lon"], "window": [2, 2, 3], "step": [2, 1, 2], "stride": [2, 2, 1]},
}


EVERY_CODEC = pytest.mark.parametrize(("zarr_format", "codec"), [(3, c) for c in CODECS_V3] + [(2, c) for c in CODECS_V2])


# One reader for many arrays: an array costs a hundredth of what a pipeline costs. Failures name the array.


@EVERY_CODEC
def test_codecs_and_layouts(tmp_path, device, zarr_format, codec):
    """Each codec with each chunk layout, in float32 with special values and through all windows."""
    values = sample_values("float32", SHAPE, seed=1)
    for name, layout in LAYOUTS.items():
        write_array(tmp_path, name, values, zarr_format=zarr_format, codec=codec, layout=layout, dims=DIMS)
    read = functools.cache(load)  # the store stays as it is
    for window in WINDOWS.values():
        check(device, 3, told={"load": read}, path=tmp_path, arrays=list(LAYOUTS), **window)


@EVERY_CODEC
def test_codecs_and_dtypes(tmp_path, device, zarr_format, codec):
    """Each codec with each dtype: shuffles, byte orders and typesizes depend on it."""
    names = []
    for dtype in DTYPES:
        values = sample_values(dtype, SHAPE, seed=2)
        for layout in ("ragged", "fortran-big-endian"):
            names.append(f"{dtype}-{layout}")
            write_array(tmp_path, names[-1], values, zarr_format=zarr_format, codec=codec, layout=LAYOUTS[layout], dims=DIMS)
    check(device, 2, path=tmp_path, arrays=names, dims=["time"], window=[2])


@pytest.mark.parametrize("codec", CODECS_V3)
def test_shards(tmp_path, device, codec):
    """Each codec inside each shard layout."""
    values = sample_values("int16", SHAPE, seed=3)
    for name, layout in SHARDED.items():
        write_array(tmp_path, name, values, codec=codec, layout=layout, dims=DIMS)
    read = functools.cache(load)  # the store stays as it is
    for window in WINDOWS.values():
        check(device, 3, told={"load": read}, path=tmp_path, arrays=list(SHARDED), **window)


FILLS = [("float32", np.nan), ("float32", -9999.0), ("float64", np.inf), ("int16", -7), ("uint64", 2**64 - 1), ("int64", -(2**63)),
         ("bool", True), ("float16", 0.5), ("uint8", 0)]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_missing_chunks_have_the_fill_value(tmp_path, device, zarr_format):
    """A chunk that was never written reads as the fill value."""
    names = [f"{dtype} {fill}" for dtype, fill in FILLS]
    for name, (dtype, fill) in zip(names, FILLS):
        write_array(
            tmp_path, name, sample_values(dtype, SHAPE, seed=4), zarr_format=zarr_format, layout=Layout((2, 5, 3)), dims=DIMS,
            fill_value=fill, missing=((0, 0, 0), (1, 0, 1), (3, 0, 0)),
        )
    check(device, 2, path=tmp_path, arrays=names, dims=["time"], window=[3], step=[1])


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_missing_inner_chunks(tmp_path, device, index_location):
    """Inner chunks that a shard's index marks as absent, a shard that doesn't exist, and an array without any chunk."""
    import zarr

    layout = Layout((1, 5, 3), shards=(3, 5, 6), index_location=index_location)
    values = sample_values("float32", SHAPE, seed=5)
    write_array(tmp_path, "a", values, layout=layout, dims=DIMS, fill_value=np.nan, missing=((0, 0, 0), (1, 0, 0), (2, 0, 0)))
    array = zarr.open_array(str(tmp_path), path="a", mode="r+")
    array[0, :, 0:3] = 1.5
    array[5, :, 3:6] = 2.5
    write_array(tmp_path, "empty", values, dims=DIMS, fill_value=-1, missing=((0, 0, 0),))
    check(device, 2, path=tmp_path, arrays=["a", "empty"])


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_era5_group(tmp_path, device, zarr_format, consolidated):
    """Four arrays of one group, of different ranks, as separate outputs; with consolidated metadata and without."""
    write_era5(tmp_path, zarr_format=zarr_format, consolidated=consolidated)
    check(device, 4, path=tmp_path, arrays=["t2m", "z", "lsm", "time"], epochs=1.5)


def test_consolidated_attributes_count(tmp_path, device):
    """Attributes (here the dimensions' names) may stand in v2's consolidated document alone."""
    write_era5(tmp_path, zarr_format=2, consolidated=True)
    (tmp_path / "t2m" / ".zattrs").unlink()
    assert check(device, 1, path=tmp_path, arrays=["t2m"]).layouts() == ["HW"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_nested_groups_and_a_path_to_an_array(tmp_path, device, zarr_format):
    """Names with slashes reach into groups; a path may also be an array itself."""
    values = sample_values("int32", SHAPE, seed=6)
    write_array(tmp_path, "deep/er/a", values, zarr_format=zarr_format, layout=Layout((2, 5, 6)), dims=DIMS)
    check(device, 2, path=tmp_path, arrays=["deep/er/a"])
    pipe = build(device, 2, path=tmp_path / "deep" / "er" / "a")
    same(next(batches(pipe))[0], values[:2], "an array's own path")
    pipe = build(device, 2, path=tmp_path / "deep" / "er")
    same(next(batches(pipe))[0], values[:2], "a group with one array")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", ["datetime64[ns]", "timedelta64[s]"])
def test_times_come_as_int64(tmp_path, device, zarr_format, kind):
    """datetime64 and timedelta64 are delivered as the integers that they are stored as."""
    values = (np.arange(9, dtype="int64") * 3600 - 5).astype(kind)
    write_array(tmp_path, "t", values, zarr_format=zarr_format, layout=Layout((4,)), dims=("time",))
    check(device, 3, path=tmp_path, arrays=["t"], dims=["time"], window=[2])


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shape", [(5,), (4, 1), (3, 1, 2, 1, 2), (2, 3, 2, 2, 2, 3)])
def test_ranks(tmp_path, device, zarr_format, shape):
    """One to six dimensions, without names."""
    chunks = tuple(max(1, n - 1) for n in shape)
    write_array(tmp_path, "a", sample_values("float64", shape), zarr_format=zarr_format, layout=Layout(chunks))
    check(device, 2, path=tmp_path, arrays=["a"])
    check(device, 2, path=tmp_path, arrays=["a"], dims=["-1"], window=[1])


def test_v2_separator_and_filters(tmp_path, device):
    """v2's nested keys ("0/0/0") and an encoding filter."""
    import numcodecs
    import zarr

    values = (np.arange(210).reshape(SHAPE) / 10).astype("float32")
    packed = numcodecs.FixedScaleOffset(offset=0, scale=10, dtype="<f4", astype="<i2")
    write_array(tmp_path, "packed", values, zarr_format=2, filters=[packed], layout=LAYOUTS["ragged"], dims=DIMS)
    np.testing.assert_allclose(read_back(tmp_path, "packed"), values, atol=0.05)
    nested = zarr.create_array(
        str(tmp_path), name="nested", shape=SHAPE, chunks=(2, 3, 3), dtype="f4", zarr_format=2,
        chunk_key_encoding={"name": "v2", "separator": "/"}, attributes={"_ARRAY_DIMENSIONS": list(DIMS)},
    )
    nested[:] = values
    check(device, 2, path=tmp_path, arrays=["packed", "nested"])


@pytest.mark.parametrize("key_encoding", [{"name": "default", "separator": "."}, {"name": "v2", "separator": "."}])
def test_v3_chunk_key_encodings(tmp_path, device, key_encoding):
    """Where v3 puts a chunk is the array's own choice."""
    import zarr

    array = zarr.create_array(
        str(tmp_path), name="a", shape=SHAPE, chunks=(2, 3, 3), dtype="i4", chunk_key_encoding=key_encoding,
    )
    array[:] = sample_values("int32", SHAPE)
    check(device, 2, path=tmp_path, arrays=["a"])


@pytest.mark.parametrize("decode_device", ["auto", "gpu", "cpu"])
@pytest.mark.parametrize(("zarr_format", "codecs"), [(3, CODECS_V3), (2, CODECS_V2)], ids=["v3", "v2"])
def test_decoders_agree(tmp_path, gpu, zarr_format, codecs, decode_device):
    """On a GPU: the same values wherever chunks are decoded; "gpu" refuses, by name, what it can't decode."""
    values = sample_values("float32", (6, 64, 96), seed=7)
    values[2:] = np.round(values[2:])
    for codec in codecs:
        write_array(tmp_path, codec, values, zarr_format=zarr_format, codec=codec, layout=Layout((1, 64, 96)), dims=DIMS)
    refused = [codec for codec in codecs if decode_device == "gpu" and codec not in GPU_CODECS]
    for codec in refused:
        with pytest.raises(ValueError, match="(?i)gpu"):
            build(gpu, 2, path=tmp_path, arrays=[codec], decode_device=decode_device).run()
    names = [codec for codec in codecs if codec not in refused]
    check(gpu, 2, epochs=2, path=tmp_path, arrays=names, decode_device=decode_device)
