"""Where windows may lie: overlapping tiles, positions drawn at random, breaks that no window crosses."""

from __future__ import annotations

import itertools
import tempfile

import dali_zarr
import numpy as np
import pytest
import zarr
from hypothesis import assume, given
from hypothesis import strategies as st
from support.oracle import Oracle
from support.pipelines import batches, build, check, same, to_numpy
from support.stores import Layout, write_array, write_era5

ERA5 = ["t2m", "z", "lsm", "time"]


@pytest.fixture(scope="module")
def era5(tmp_path_factory):
    """24 hours of four arrays; chunks of 5 hours and 7 latitudes, so that windows cross them."""
    path = tmp_path_factory.mktemp("windows") / "a.zarr"
    write_era5(path, chunk_hours=5, chunk_lat=7)
    return path


@pytest.fixture(scope="module")
def years(tmp_path_factory):
    """Three stores of 7, 9 and 5 hours, chunked differently."""
    base = tmp_path_factory.mktemp("years")
    for i, (hours, chunk) in enumerate([(7, 3), (9, 2), (5, 5)]):
        write_era5(base / f"{i}.zarr", hours=hours, chunk_hours=chunk, start=100 * i, seed=i)
    return [base / f"{i}.zarr" for i in range(3)]


@pytest.mark.parametrize("policy", ["drop", "pad"])
@pytest.mark.parametrize(
    ("dims", "window", "step"),
    [
        (["latitude", "longitude"], [5, 8], [2, 3]),
        (["time", "latitude", "longitude"], [3, 5, 6], [2, 3, 5]),
        (["longitude", "time"], [7, 4], [1, 3]),
        (["time", "level"], [4, 3], [1, 1]),
    ],
)
def test_tiles_overlap(era5, device, dims, window, step, policy):
    """Tiles of any dimensions, in any order, with a step smaller than the window."""
    oracle = check(
        device, 4, epochs=0.3, path=era5, arrays=ERA5, dims=dims, window=window, step=step, out_of_bounds_policy=policy,
        fill_value=-1, return_index=True,
    )
    assert oracle.num_samples >= 20


def crops(pipe, oracle, count):
    """Asserts that ``count`` batches hold what their indices say; returns the starts."""
    starts = []
    for batch in itertools.islice(batches(pipe), count):
        for *found, index in zip(*batch):
            for i, (one, want) in enumerate(zip(found, oracle.sample_at(index.tolist()))):
                same(np.asarray(one), want, f"output {i} of the sample at {index.tolist()}")
            start = index[len(index) - len(oracle.places) :]
            assert all(int(s) in places for s, places in zip(start, oracle.places))
            starts.append(tuple(int(s) for s in start))
    return starts


CROP = {"dims": ["time", "latitude", "longitude"], "window": [0, 5, 6], "random_crop": ["latitude", "longitude"]}


@pytest.mark.parametrize(
    "args",
    [
        {}, {"random_crop": ["2", "-1"]}, {"random_crop": ["longitude"], "step": [1, 7, 0]}, {"step": [5, 0, 0]},
        {"roi_start": [0, 2, -9], "roi_end": [24, 9, 20]}, {"stride": [1, 2, 3]}, {"offsets": [0, 2]},
        {"random_crop": ["time", "latitude", "longitude"], "offsets": [-1, 1]}, {"stack_arrays": True, "dtype": "float32"},
        {"out_of_bounds_policy": "error"}, {"window": [0, 13, 6], "out_of_bounds_policy": "pad", "fill_value": 5},
        {"random_crop": ["time"], "window": [3, -1, -1], "breaks": [4, 9, 15]},
    ],
    ids=str,
)
def test_random_crop(era5, device, args):
    """A crop holds the values at its index, and the number of samples is that of the other dimensions."""
    args = {"path": era5, "arrays": ERA5, "return_index": True} | CROP | args
    oracle = Oracle(**args)
    pipe = build(device, 3, **args)
    assert pipe.reader_meta("reader")["epoch_size"] == oracle.num_samples
    crops(pipe, oracle, 2 * -(-oracle.num_samples // 3))


def test_crops_are_drawn_anew_and_evenly(era5, device):
    """Each epoch has other crops of the same samples, all places are drawn, and the seed says which."""
    args = {"path": era5, "arrays": ["lsm", "time"], "return_index": True} | CROP
    oracle = Oracle(**args)

    def take(**more):
        return crops(build(device, 24, **args, **more), oracle, 40)

    starts = take(seed=1)
    epochs = [starts[i : i + 24] for i in range(0, len(starts), 24)]
    assert all([s[0] for s in e] == list(range(24)) for e in epochs)
    assert len({tuple(e) for e in epochs}) == 40
    places = len(oracle.places[1]) * len(oracle.places[2])
    counts = np.unique([s[1] * 100 + s[2] for s in starts], return_counts=True)[1]
    # 960 draws of 8 x 15 places: eight each, give or take.
    assert places == 120 and len(counts) > 110 and counts.max() < 25
    assert take(seed=1, prefetch_queue_depth=1, io_threads=1) == starts
    assert take(seed=2) != starts


def test_crops_and_their_order_stay_what_they_are(tmp_path, device):
    """The same on every platform, and in every later version: a run that goes on must go on with these."""
    write_array(tmp_path, "a", np.zeros((6, 40, 50), "int32"), dims=("time", "y", "x"), layout=Layout((1, 40, 50)))
    crop = {"dims": ["time", "y", "x"], "window": [1, 8, 16], "random_crop": ["y", "x"], "random_shuffle": True, "seed": 7}
    pipe = build(device, 6, path=tmp_path, arrays=["a"], return_index=True, **crop)
    assert [to_numpy(pipe.run()[1]).tolist() for _ in range(2)] == [
        [[5, 0, 16], [4, 23, 12], [3, 0, 3], [0, 16, 11], [1, 25, 34], [2, 13, 1]],
        [[5, 28, 9], [2, 18, 29], [1, 0, 33], [0, 10, 17], [3, 15, 32], [4, 25, 23]],
    ]


def test_crops_depend_on_seed_epoch_and_sample_alone(era5, device):
    """Not on shards, batches or the order: the same crops in another sequence."""
    args = {"path": era5, "arrays": ["lsm", "time"], "return_index": True, "seed": 3} | CROP
    oracle = Oracle(**args)
    whole = crops(build(device, 6, **args), oracle, 4)
    shuffled = crops(build(device, 4, random_shuffle=True, **args), oracle, 6)
    assert shuffled != whole and sorted(shuffled) == whole
    shards = [crops(build(device, 2, num_shards=3, shard_id=i, **args), oracle, 4) for i in range(3)]
    assert sum(shards, []) == whole


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"random_crop": ["level"]}, ("random_crop", "level", "dims")),
        ({"random_crop": ["nowhere"]}, ("random_crop", "nowhere")),
        ({"random_crop": ["latitude", "2"]}, ("random_crop", "latitude", "twice")),
        ({"step": [1, 2, 0]}, ("step", "random_crop", "latitude")),
        ({"window": [0, 13, 6]}, ("latitude", "no sample")),
        ({"breaks": [0]}, ("breaks", "0", "time")), ({"breaks": [24]}, ("breaks", "24")), ({"breaks": [-24]}, ("breaks", "-24")),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(era5, device, args, words):
    with pytest.raises(ValueError, match="zarr_reader") as caught:
        build(device, 2, path=era5, arrays=["z"], **CROP | args)
    assert all(w in str(caught.value) for w in words), caught.value


@pytest.mark.parametrize("policy", ["drop", "pad"])
@pytest.mark.parametrize("breaks", [[10], [-3, 5, 11], [1, 2, 3], [23, 6, 6]], ids=str)
@pytest.mark.parametrize(
    "args",
    [
        {"window": [0]}, {"window": [4], "step": [1]}, {"window": [4]}, {"window": [2], "stride": [3], "step": [1]},
        {"offsets": [0, 2]}, {"offsets": [-2, 1], "window": [2], "step": [1]}, {"roi_start": [3], "roi_end": [-4], "window": [2]},
        {"offsets": [2]}, {"offsets": [-3], "window": [2], "step": [2]}, {"offsets": [2, 3], "roi_start": [1], "step": [3]},
    ],
    ids=str,
)
def test_breaks(era5, device, breaks, args, policy):
    """No sample reaches across: it is dropped, or filled beyond the breaks around its windows, or else its start."""
    check(
        device, 3, path=era5, arrays=["t2m", "lsm", "time"], dims=["time"], breaks=breaks, out_of_bounds_policy=policy,
        fill_value=-9, return_index=True, **args,
    )


def test_breaks_by_hand(era5, device):
    """Not the oracle: the hours themselves, in pairs, with a break before hour 10."""
    pipe = build(device, 22, path=era5, arrays=["time"], dims=["time"], window=[2], step=[1], breaks=[10])
    (pairs,) = next(batches(pipe))
    assert pairs.tolist() == [[h, h + 1] for h in range(23) if h != 9]
    pipe = build(
        device, 24, path=era5, arrays=["time"], offsets=[-1, 1], breaks=[10], out_of_bounds_policy="pad", fill_value=-1,
    )
    before, after = next(batches(pipe))
    assert before.tolist() == [-1, *range(9), -1, *range(10, 23)]
    assert after.tolist() == [*range(1, 10), -1, *range(11, 24), -1]


def test_only_windows_that_are_read_count(era5, device):
    """By hand: starts are multiples of the step under every policy, and a start may lie where nothing is read."""
    args = {"path": era5, "arrays": ["time"], "return_index": True, "step": [2]}

    def take(offsets, **more):
        pipe = build(device, 1, offsets=offsets, **args, **more)
        count = pipe.reader_meta("reader")["epoch_size"]
        taken = itertools.islice(batches(pipe), count)
        return [(int(index[0, -1]), *(int(o[0]) for o in outputs)) for *outputs, index in taken]

    assert take([-3]) == [(h, h - 3) for h in range(4, 24, 2)]
    assert take([5]) == [(h, h + 5) for h in range(0, 19, 2)]
    assert take([-3, -1]) == [(h, h - 3, h - 1) for h in range(4, 24, 2)]
    assert take([-3], breaks=[12]) == [(h, h - 3) for h in range(4, 24, 2)]
    assert take([-3, -2], breaks=[12]) == [(h, h - 3, h - 2) for h in range(4, 24, 2) if h != 14]
    pad = {"out_of_bounds_policy": "pad", "fill_value": -1}
    assert take([-3], breaks=[12], **pad) == [(0, -1), (2, -1), *((h, h - 3) for h in range(4, 24, 2))]
    assert take([-3, -2], breaks=[12], **pad)[7] == (14, -1, 12)


def test_breaks_under_the_policy_error(era5, device):
    args = {"path": era5, "arrays": ["time"], "dims": ["time"], "window": [6], "out_of_bounds_policy": "error"}
    check(device, 2, breaks=[12, 18], **args)
    with pytest.raises(ValueError, match="cross a break"):
        build(device, 2, breaks=[13], **args)


@pytest.mark.parametrize(
    "args",
    [
        {"window": [3], "step": [1]}, {"offsets": [0, 1]}, {"window": [3], "step": [2], "breaks": [4]},
        {"pick": ["time=20,1,0,8,9,3"], "window": [2], "step": [1]}, {"window": [4], "out_of_bounds_policy": "pad"},
    ],
    ids=str,
)
@pytest.mark.parametrize("cross", [True, False])
def test_stores_that_windows_may_or_may_not_cross(years, device, args, cross):
    check(
        device, 2, path=years, arrays=["t2m", "lsm", "time"], dims=["time"], cross_stores=cross, return_index=True, **args,
    )


def test_by_default_windows_cross_stores(years):
    def count(**args):
        pipe = build(path=years, arrays=["t2m"], dims=["time"], window=[3], step=[1], **args)
        return pipe.reader_meta("reader")["epoch_size"]

    assert count() == 21 - 2 and count(cross_stores=True) == 19 and count(cross_stores=False) == 5 + 7 + 3


@given(data=st.data())
def test_random_windows(device, data):
    """Random crops, breaks and overlaps of a random array, against the oracle."""
    shape = tuple(data.draw(st.integers(1, 12)) for _ in range(data.draw(st.integers(1, 3))))
    dims = [f"d{i}" for i in range(len(shape))]
    cut = data.draw(st.lists(st.sampled_from(dims), min_size=1, unique=True))
    random = data.draw(st.lists(st.sampled_from(cut), unique=True))
    args = {
        "dims": cut, "random_crop": random, "return_index": True,
        "window": [data.draw(st.integers(0, 5)) for _ in cut], "stride": [data.draw(st.integers(1, 2)) for _ in cut],
        "step": [0 if d in random else data.draw(st.integers(1, 3)) for d in cut],
        "breaks": data.draw(st.lists(st.integers(-11, 11), max_size=3)),
        "offsets": data.draw(st.sampled_from([[0], [0, 1], [-1, 2], [2], [-3], [-2, -1], [3, 1]])),
        "out_of_bounds_policy": data.draw(st.sampled_from(["drop", "pad", "edge", "error"])), "fill_value": -3.0,
    }
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    with tempfile.TemporaryDirectory() as path:
        write_array(path, "a", values, layout=Layout(chunks), dims=tuple(dims), codec="none")
        args |= {"path": path, "arrays": ["a"]}
        try:
            oracle = Oracle(**args)
        except ValueError:
            with pytest.raises(ValueError, match="zarr_reader"):
                build(device, 2, **args)
            return
        assume(oracle.num_samples < 300)
        shuffle = data.draw(st.booleans())
        starts = crops(build(device, 2, random_shuffle=shuffle, initial_fill=7, **args), oracle, -(-oracle.num_samples // 2))
        fixed = [k for k, d in enumerate(cut) if d not in random]
        seen = [tuple(s[k] for k in fixed) for s in starts[: oracle.num_samples]]
        expected = list(itertools.product(*(oracle.places[k] for k in fixed)))
        assert (sorted(seen) if shuffle else seen) == (sorted(expected) if shuffle else expected)


def test_small_windows_of_a_huge_volume(tmp_path, device):
    """A batch needs few of its billions of chunks, however many elements a window has."""
    path = tmp_path / "a.zarr"
    chunk, length = 64, 64 * 1000
    array = zarr.create_array(path, shape=(length,) * 3, chunks=(chunk,) * 3, dtype="u1", dimension_names="zyx")
    values = np.random.default_rng(0).integers(0, 255, (2 * chunk,) * 3, "u1")
    array[-2 * chunk :, -2 * chunk :, -2 * chunk :] = values
    start = [length - 2 * chunk] * 3
    how = {"dims": ["z", "y", "x"], "window": [80] * 3, "step": [48] * 3, "roi_start": start, "roi_end": [length] * 3}
    pipe = build(device, 8, path=path, **how)
    places = itertools.product((0, 48), repeat=3)
    same(to_numpy(pipe.run()[0]), np.stack([values[z : z + 80, y : y + 80, x : x + 80] for z, y, x in places]), "windows")
    with pytest.raises(ValueError, match="a batch needs more than 524288 chunks"):
        dali_zarr.explain(path, dims=["z", "y", "x"], window=[6400] * 3)
