"""sel and isel over joined stores: labels are looked up in each, and slices go on over the border."""

from __future__ import annotations

import numpy as np
import pytest
from support.pipelines import read
from support.stores import write_array

xr = pytest.importorskip("xarray", reason="selection by label needs xarray")


def test_joined_stores_are_looked_up_each(tmp_path):
    """Levels in another order, and times of other units; slices go on over the border."""
    for year, levels in ((2020, [1000, 500]), (2021, [500, 1000])):
        path = tmp_path / str(year)
        write_array(path, "z", np.random.default_rng(year).random((6, 2)).astype("float32"), dims=("time", "level"))
        write_array(path, "level", np.array(levels), dims=("level",))
        write_array(
            path, "time", np.arange(6) * 30, dims=("time",),
            attributes={"units": f"days since {year}-07-01", "calendar": "standard"},
        )
    paths = [tmp_path / "2020", tmp_path / "2021"]
    ds = xr.concat([xr.open_zarr(path, consolidated=False) for path in paths], "time", join="outer", data_vars="all")
    for time in (slice("2020-09", "2021-08"), slice("2021", None), slice(None, None, 5), "2020", "2021-07-01"):
        for level in (500, [1000, 500]):
            (found,) = read(paths, sel={"time": time, "level": level})
            want = ds.z.sel(time=time, level=level).values
            assert (found == want.reshape(found.shape)).all(), (time, level)
    (found,) = read(paths, sel={"time": "2021-01-15"}, method="nearest")
    assert (found == np.random.default_rng(2020).random((6, 2)).astype("float32")[5]).all()


def test_stores_of_different_lengths(tmp_path):
    """They differ in their levels, and agree in those that are selected."""
    paths, stored = [tmp_path / "0", tmp_path / "1"], []
    for path, levels in zip(paths, ([1000, 850, 500], [500, 1000, 850, 250]), strict=True):
        stored.append(np.random.default_rng(len(levels)).random((2, len(levels))).astype("float32"))
        write_array(path, "z", stored[-1], dims=("time", "level"))
        write_array(path, "level", np.array(levels), dims=("level",))
    for how, first, second in (
        ({"sel": {"level": [1000, 500]}}, [0, 2], [1, 0]), ({"sel": {"level": 850}}, 1, 2),
        ({"sel": {"level": slice(1000, 850)}}, [0, 1], [1, 2]), ({"isel": {"level": [1, 0]}}, [1, 0], [1, 0]),
    ):
        (found,) = read(paths, **how)
        assert (found == np.concatenate([stored[0][:, first], stored[1][:, second]])).all(), how
    with pytest.raises(ValueError, match="expected as many elements in each store, but found 1, 4"):
        read(paths, sel={"level": slice(500, None)})
    with pytest.raises(ValueError, match='has length 3 along "level"'):
        read(paths, isel={"time": 1})


def test_slices_of_stores_whose_coordinates_are_not_in_order(tmp_path):
    """They go from one label's place to the other's, over the border."""
    days = {"0": [5, 1, 3], "1": [9, 7, 8]}
    for name, of in days.items():
        write_array(tmp_path / name, "z", np.array(of, "float32"), dims=("time",))
        write_array(tmp_path / name, "time", np.array(of), dims=("time",))
    paths = [tmp_path / name for name in days]
    for label, want in ((slice(None, 7), [5, 1, 3, 9, 7]), (slice(1, 9), [1, 3, 9]), (slice(3, None), [3, 9, 7, 8])):
        (found,) = read(paths, sel={"time": label})
        assert found.tolist() == want, label
    with pytest.raises(ValueError, match="sel: 'time'.*isn't among the coordinates"):
        read(paths, sel={"time": slice(None, 4)})


def test_stores_that_go_both_ways_have_no_slices(tmp_path):
    for name, days in (("0", [1, 2, 3]), ("1", [5, 4]), ("2", [6, 7])):
        write_array(tmp_path / name, "z", np.array(days, "float32"), dims=("time",))
        write_array(tmp_path / name, "time", np.array(days), dims=("time",), attributes={"units": "days since 2000-01-01"})
    paths = [tmp_path / name for name in "012"]
    with pytest.raises(ValueError, match="ascend in one store and descend in another"):
        read(paths, sel={"time": slice("2000-01-02", "2000-01-06")})
    (found,) = read(paths, isel={"time": slice(2, 5)})
    assert found.tolist() == [3, 5, 4]
    (found,) = read(paths, sel={"time": "2000-01-05"})
    assert found.tolist() == [4]


@pytest.mark.parametrize("stores", [[[9, 8], [7], [6, 5, 4]], [[9], [8], [7]], [[7], [9, 8]], [[9, 8, 7], [6, 6]]], ids=str)
def test_a_slice_over_stores_that_descend(tmp_path, stores):
    """One of a single coordinate has no order of its own."""
    for i, levels in enumerate(stores):
        for name in ("z", "level"):
            write_array(tmp_path / f"{i}", name, np.array(levels, "float32"), dims=("level",))
    paths = [tmp_path / f"{i}" for i in range(len(stores))]
    levels = np.concatenate(stores)
    for first, last in ((10, 7), (None, 7.5), (8.5, None), (9, 6)):
        among = levels[(levels <= (first or 99)) & (levels >= (last or 0))]
        (found,) = read(paths, sel={"level": slice(first, last)})
        assert found.tolist() == among.tolist()
    with pytest.raises(ValueError, match="selects none"):
        read(paths, sel={"level": slice(7, 9)})


def test_text_over_stores_whose_dates_descend(tmp_path):
    """xarray refuses it for dates that descend: no store may be left out for that."""
    for i, days in enumerate([[5, 4], [3, 2]]):
        write_array(tmp_path / f"{i}", "z", np.array(days, "float32"), dims=("time",))
        write_array(tmp_path / f"{i}", "time", np.array(days), dims=("time",), attributes={"units": "days since 2000-01-01"})
    paths = [tmp_path / "0", tmp_path / "1"]
    with pytest.raises(ValueError, match="bounds are numpy.datetime64, not text"):
        read(paths, sel={"time": slice("2000-01-05", None)})
    (found,) = read(paths, sel={"time": slice(np.datetime64("2000-01-05"), None)})
    assert found.tolist() == [4, 3, 2]


def test_a_slice_over_stores_without_order(tmp_path):
    """It goes from one label's place to the other's, whether a store's last coordinate is above or below its first."""
    for name, levels in (("0", [3, 1, 2]), ("1", [4, 9, 5])):
        for array in ("z", "level"):
            write_array(tmp_path / name, array, np.array(levels, "float32"), dims=("level",))
    (found,) = read([tmp_path / "0", tmp_path / "1"], sel={"level": slice(1, 9)})
    assert found.tolist() == [1, 2, 4, 9]
