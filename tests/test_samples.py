"""What a sample is: each argument that shapes it, against the oracle, on ERA5's shapes."""

from __future__ import annotations

import dali_zarr
import numpy as np
import pytest
from support.pipelines import batches, build, check, same
from support.stores import Layout, chunk_files, sample_values, write_array, write_era5

ERA5 = ["t2m", "z", "lsm", "time"]


@pytest.fixture(scope="module")
def era5(tmp_path_factory):
    """24 hours of four arrays; chunks of 5 hours and 7 latitudes, so that windows cross them."""
    path = tmp_path_factory.mktemp("era5") / "a.zarr"
    return path, write_era5(path, chunk_hours=5, chunk_lat=7)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two stores that continue one another, chunked differently."""
    base = tmp_path_factory.mktemp("pair")
    write_era5(base / "1.zarr", hours=7, chunk_hours=3)
    write_era5(base / "2.zarr", hours=9, chunk_hours=2, start=7, seed=5, codec="blosc-lz4-shuffle")
    return [base / "1.zarr", base / "2.zarr"]


def test_known_values(era5, device):
    """Not the oracle but the values as written: input and target an hour apart, with their index."""
    path, written = era5
    pipe = build(device, 3, path=path, arrays=["t2m", "time"], offsets=[0, 1], return_index=True)
    x, hour, y, next_hour, index = next(batches(pipe))
    same(x, written["t2m"][0:3], "t2m")
    same(y, written["t2m"][1:4], "t2m an hour later")
    assert hour.tolist() == [0, 1, 2] and next_hour.tolist() == [1, 2, 3] and index.tolist() == [[0], [1], [2]]


def test_default_is_one_step_of_the_first_dimension(era5, device):
    """Without dims: window 1 along the first dimension of the array with most dimensions, dropped."""
    oracle = check(device, 2, path=era5[0], arrays=ERA5)
    assert oracle.num_samples == 24 and oracle.layouts() == ["HW", "DHW", "HW", ""]


@pytest.mark.parametrize(
    "args",
    [
        {"window": [0]}, {"window": [1]}, {"window": [5]}, {"window": [-1]}, {"window": [24]},
        {"window": [4], "step": [1]}, {"window": [4], "step": [7]}, {"window": [0], "step": [5]},
        {"window": [3], "stride": [4]}, {"window": [3], "stride": [4], "step": [2]},
    ],
    ids=str,
)
def test_window_step_stride(era5, device, args):
    check(device, 2, path=era5[0], arrays=ERA5, dims=["time"], **args)


@pytest.mark.parametrize(
    "args",
    [
        {"dims": ["time", "latitude"], "window": [2, 4]},
        {"dims": ["latitude", "time"], "window": [4, 2]},
        {"dims": ["latitude", "longitude"], "window": [5, 5], "step": [3, 4]},
        {"dims": ["time", "latitude", "longitude"], "window": [0, 3, 4], "stride": [1, 2, 3]},
        {"dims": ["time", "level"], "window": [2, 0]},
        {"dims": ["level"], "window": [2], "step": [1]},
        {"dims": ["0"], "window": [2]},
        {"dims": ["0", "-1"], "window": [0, 10]},
        {"dims": ["longitude"], "window": [-1]},
    ],
    ids=str,
)
def test_dims(era5, device, args):
    """By name and number, several at once, in any order; arrays without them give the same values in each sample."""
    check(device, 3, path=era5[0], arrays=ERA5, return_index=True, **args)


@pytest.mark.parametrize("offsets", [[0, 1], [1], [-2, 0, 3], [0, 0], [3, -1], [-1]])
@pytest.mark.parametrize("policy", ["drop", "pad"])
def test_offsets(era5, device, offsets, policy):
    check(device, 2, path=era5[0], arrays=ERA5, offsets=offsets, out_of_bounds_policy=policy)
    check(
        device, 2, path=era5[0], arrays=["t2m"], offsets=offsets, out_of_bounds_policy=policy, dims=["time"],
        window=[3], step=[2], stride=[2], fill_value=-1.5, return_index=True,
    )


@pytest.mark.parametrize(
    ("start", "end"), [([6], [18]), ([-8], [-2]), ([0], [3]), ([20], None), (None, [-1]), ([7], [8])], ids=str
)
@pytest.mark.parametrize("policy", ["drop", "pad"])
def test_roi(era5, device, start, end, policy):
    """Samples don't touch what is outside, for windows and for offsets."""
    roi = {k: v for k, v in (("roi_start", start), ("roi_end", end)) if v}
    check(device, 2, path=era5[0], arrays=ERA5, dims=["time"], out_of_bounds_policy=policy, **roi)
    if policy == "pad" or (start, end) != ([7], [8]):
        check(
            device, 2, path=era5[0], arrays=["t2m", "time"], dims=["time"], window=[2], step=[1],
            out_of_bounds_policy=policy, fill_value=9, **roi,
        )


def test_roi_in_two_dimensions(era5, device):
    check(
        device, 2, path=era5[0], arrays=["t2m", "lsm"], dims=["time", "longitude"], window=[2, -1], roi_start=[4, 3],
        roi_end=[-4, 17], offsets=[0, 2],
    )


@pytest.mark.parametrize("fill", [0, -3, 1e30, 2.5])
@pytest.mark.parametrize("dtype", [None, "float16", "int32", "uint8"])
def test_pad_fills_the_output(era5, device, fill, dtype):
    """The fill value is a value of the output: neither normalised nor scaled, but of its type."""
    cast = {"dtype": dtype} if dtype else {}
    common = {"path": era5[0], "dims": ["time"], "window": [10], "out_of_bounds_policy": "pad", "fill_value": fill}
    check(device, 1, arrays=["t2m", "time"], **common, **cast)
    check(device, 1, arrays=["t2m"], mean=[280.0], stddev=[15.0], **common, **cast)


def test_policy_error(era5, device):
    """Passes where all fits, and is a ValueError where not."""
    args = {"path": era5[0], "arrays": ["t2m"], "dims": ["time"], "out_of_bounds_policy": "error"}
    check(device, 2, window=[6], **args)
    for bad in ({"window": [7]}, {"window": [6], "offsets": [0, 1]}, {"window": [6], "offsets": [-1]}):
        with pytest.raises(ValueError, match="zarr_reader"):
            build(device, 2, **args, **bad)


@pytest.mark.parametrize("pick", [["level=0,2"], ["level=-1,0,0,3"], ["level=4"], ["1=2,1"], ["latitude=1,5,3", "level=1"]])
def test_pick(era5, device, pick):
    """The picked indices, in their order, with repeats; before anything else sees the dimension."""
    check(device, 2, path=era5[0], arrays=["z", "t2m", "lsm"], pick=pick)
    check(device, 2, path=era5[0], arrays=["z", "t2m", "lsm", "time"], pick=pick, stack_arrays=True, dtype="float32")


def test_pick_along_a_sample_dimension(era5, device):
    """Picked steps become the dimension that samples are cut along."""
    check(device, 2, path=era5[0], arrays=["t2m", "time"], pick=["time=3,20,7,7,0"], dims=["time"], window=[2], step=[1])


def test_pick_as_a_dict(era5, device):
    """Python spells a pick as a dictionary."""
    path, written = era5
    pipe = build(device, 1, path=path, arrays=["z"], pick={"level": [3, 0]})
    same(next(batches(pipe))[0][0], written["z"][0, [3, 0]], "z")


@pytest.mark.parametrize(
    "args",
    [
        {}, {"window": [3], "dims": ["time"]}, {"offsets": [0, 1]}, {"pick": ["level=0,4"]},
        {"dims": ["time", "latitude"], "window": [0, 4]}, {"dims": ["level"], "window": [2]},
        {"dims": ["latitude"], "window": [0]},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_stack(era5, device, args, dtype):
    """A channel per array and per index of its further dimensions; what lacks a grid dimension is broadcast."""
    check(device, 2, path=era5[0], arrays=ERA5, stack_arrays=True, dtype=dtype, return_index=True, **args)


def test_stack_of_14_channels(era5, device):
    """t2m and the levels of z make one tensor, channels in the order of arrays and levels."""
    path, written = era5
    pipe = build(device, 2, path=path, arrays=["t2m", "z"], stack_arrays=True)
    (out,) = next(batches(pipe))
    assert out.shape == (2, 6, 12, 20)
    same(out[:, 0], written["t2m"][:2], "t2m")
    same(out[:, 1:], written["z"][:2], "z")


@pytest.mark.parametrize("stats", [([5.0], []), ([], [2.0]), ([250.0], [15.0]), ([250.0, 20000.0], [15.0, 9000.0])])
@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize("dtype", [None, "float64", "float16", "int8"])
def test_mean_and_stddev(era5, device, stats, stack, dtype):
    """One value or one per array, computed in double precision; float32 unless dtype says otherwise."""
    args = {k: v for k, v in (("mean", stats[0]), ("stddev", stats[1]), ("dtype", dtype)) if v}
    check(device, 2, path=era5[0], arrays=["t2m", "z"], stack_arrays=stack, **args)


def test_mean_and_stddev_per_channel(era5, device):
    channels = 6
    check(
        device, 2, path=era5[0], arrays=["t2m", "z"], stack_arrays=True, mean=[float(i * 100) for i in range(channels)],
        stddev=[1.0 + i for i in range(channels)], offsets=[0, 1],
    )


@pytest.mark.parametrize("target", ["bool", "int8", "uint8", "int16", "uint32", "int64", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("source", ["bool", "int8", "uint8", "int16", "uint32", "int64", "uint64", "float16", "float32", "float64"])
def test_casts(tmp_path, device, source, target):
    """Round half to even, saturate, NaN to 0; one correct rounding to floats; != 0 to bool."""
    values = sample_values(source, (4, 64), seed=8)
    if np.dtype(source).kind == "f":
        values[0, :8] = [0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 254.5]
    write_array(tmp_path, "a", values, layout=Layout((2, 64)))
    check(device, 4, path=tmp_path, arrays=["a"], dtype=target)


@pytest.mark.parametrize(
    "args",
    [
        {}, {"dims": ["time"], "window": [4], "step": [1]}, {"offsets": [-1, 1]},
        {"offsets": [-1, 1], "out_of_bounds_policy": "pad"}, {"roi_start": [5], "roi_end": [12]},
        {"dims": ["time", "latitude"], "window": [3, 5]}, {"stack_arrays": True, "dtype": "float32"},
    ],
    ids=str,
)
def test_several_paths(pair, device, args):
    """Stores join along the first of dims; windows and offsets cross the border, chunks and codecs may differ."""
    oracle = check(device, 2, path=pair, arrays=ERA5, return_index=True, **args)
    assert oracle.extents["time"] == 16


def test_the_only_array_needs_no_name(tmp_path, device):
    values = sample_values("float32", (5, 3))
    write_array(tmp_path, "lonely", values)
    same(next(batches(build(device, 5, path=tmp_path)))[0], values, "lonely")


@pytest.mark.parametrize("there", [True, False], ids=["there", "missing"])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("codec", ["none", "zstd", "gzip"])
def test_arrays_without_dimensions_are_one_sample(tmp_path, device, codec, zarr_format, there):
    """Alone; beside others they are the same in each sample. A missing chunk has the fill value."""
    how = {"codec": codec, "zarr_format": zarr_format, "fill_value": 7}
    for name, value in (("a", 2.5), ("b", -1.25)):
        write_array(tmp_path, name, np.array(value, "float32"), **how)
        if not there:
            chunk_files(tmp_path, name)[0].unlink()
    field = sample_values("float32", (3, 4))
    write_array(tmp_path, "field", field, dims=("t", "x"), **how)
    a, b = (np.float32(v) for v in ((2.5, -1.25) if there else (7, 7)))

    pipe = build(device, 2, path=tmp_path / "a")
    assert pipe.reader_meta("reader")["epoch_size"] == 1
    for _ in range(3):
        same(next(batches(pipe))[0], np.array([a, a]), "alone: a new epoch for each sample of the batch")
    args = {"path": tmp_path, "arrays": ["a", "b"], "offsets": [0, 0], "return_index": True, "random_shuffle": True}
    *values, index = next(batches(build(device, 3, **args)))
    assert [v.tolist() for v in values] == [[x] * 3 for x in (a, b, a, b)] and index.shape == (3, 0)
    (stack,) = next(batches(build(device, 1, path=tmp_path, arrays=["a", "b"], stack_arrays=True, mean=[1.0], stddev=[0.5])))
    same(stack, (np.array([[a, b]], "float64") - 1).astype("float32") / np.float32(0.5), "stacked")
    for out, want in zip(next(batches(build(device, 3, path=tmp_path, arrays=["a", "field"]))), (np.full(3, a), field)):
        same(out, want, "beside a field")
    e = dali_zarr.explain(path=tmp_path / "a")
    assert (e["samples"], e["outputs"][0]["shape"], e["reads"]["in_order"]["chunks"]) == (1, [], 1) and "scalar" in str(e)
    with pytest.raises(ValueError, match="window: expected an array with dimensions, but array 'a' has none"):
        build(device, 1, path=tmp_path, arrays=["a", "b"], window=[1])


def test_arrays_may_repeat(era5, device):
    check(device, 2, path=era5[0], arrays=["t2m", "time", "t2m"])
