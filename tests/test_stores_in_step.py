"""Arrays of several stores, in step along ``dims``: ``arrays={"image": "./a.zarr/0", "label": "s3://bucket/b.zarr/labels/0"}``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.pipelines import batches, build, same
from support.remote import upload
from support.server import Server
from support.stores import Layout, sample_values, write_array


def _write(root: Path, name: str, values: np.ndarray, **how: Any) -> str:
    write_array(root, name, values, **how)
    return str(root / name)


def _epoch(device: str, **arguments: Any) -> list[list[np.ndarray]]:
    """The samples of an epoch, each with its outputs."""
    pipe = build(device, 1, **arguments)
    found = batches(pipe)
    return [[output[0] for output in next(found)] for _ in range(pipe.reader_meta("reader")["epoch_size"])]


@pytest.fixture
def stores(tmp_path):
    """An image and labels in stores of their own, of other formats, chunks and ranks."""
    image, label = sample_values("float32", (12, 5, 6)), sample_values("int32", (12, 2))
    return {
        "image": _write(tmp_path / "a.zarr", "0", image, layout=Layout((5, 5, 6)), dims=("t", "y", "x")),
        "label": _write(tmp_path / "b.zarr", "deep/0", label, layout=Layout((2, 2)), zarr_format=2),
    }, image, label


@pytest.mark.parametrize("how", [{}, {"random_shuffle": True, "seed": 3}, {"dims": ["t"], "window": [3], "step": [2]}], ids=str)
def test_samples_are_in_step(stores, device, how):
    """Shuffled or not, in windows or not; what has no names is cut along dims by position."""
    arrays, image, label = stores
    window = how.get("window", [0])[0]
    seen = []
    for one, other, (t,) in _epoch(device, arrays=arrays, return_index=True, **how):
        here = slice(t, t + window) if window else t
        same(one, image[here], "image")
        same(other, label[here], "label")
        seen.append(int(t))
    assert sorted(seen) == list(range(0, 12, 2))[:5] if window else sorted(seen) == list(range(12))


@pytest.mark.parametrize("place", ["its own store", "path"])
@pytest.mark.parametrize(
    "how",
    [
        {"dims": ["z", "y", "x"], "window": [2, 2, 2]},
        {"dims": [0, 1, 2], "window": [2, 2, 2]},
        {"window": {"z": 2, "y": 2, "x": 2}},
        {"window": {"image": {"z": 2, "y": 2, "x": 2}, "label": {"z": 2, "y": 2, "x": 2}}},
        {"window": {"y": 2, "x": 2}},
        {"dims": [0, -1], "window": [2, 2]},
        {"window": {"z": 2}, "isel": {"z": slice(2, 6)}},
    ],
    ids=str,
)
def test_arrays_without_names_are_cut_by_position(tmp_path, device, how, place):
    """However the dimensions are said. Those of an array of the same rank are at the same positions, those of others come first."""
    values = sample_values("uint16", (8, 8, 8))
    for store, dims in (("image", ("z", "y", "x")), ("image", None)):
        write_array(tmp_path / f"{store}.zarr", "0" if dims else "label", values, layout=Layout((4, 4, 4)), dims=dims)
    label = str(tmp_path / "image.zarr" / "label") if place != "path" else "label"
    given = {"path": tmp_path / "image.zarr", "arrays": {"label": label, "image": "0"}, "return_index": True}
    found = _epoch(device, **given, **how)
    assert found
    for label, image, _ in found:
        same(label, image, "label")
    numbers = [i % 3 for i in how.get("dims", ()) if isinstance(i, int)]
    is_cut = [f"'{dim}'" in str(how) or i in numbers for i, dim in enumerate("zyx")]
    assert found[0][0].shape == tuple(2 if cut else 8 for cut in is_cut)


@pytest.mark.parametrize("place", ["its own store", "path"])
def test_arrays_without_names_of_another_rank(tmp_path, device, place):
    """A label (z, y) beside an image (c, z, y)."""
    image, label = sample_values("uint16", (2, 6, 4)), sample_values("uint8", (6, 4))
    write_array(tmp_path, "image", image, dims=("c", "z", "y"))
    write_array(tmp_path, "label", label)
    found = _epoch(
        device, path=tmp_path, arrays={"image": "image", "label": "label" if place == "path" else str(tmp_path / "label")},
        window={"z": 3, "y": 2}, return_index=True,
    )
    assert len(found) == 4
    for one, other, (z, y) in found:
        same(one, image[:, z : z + 3, y : y + 2], "image")
        same(other, label[z : z + 3, y : y + 2], "label")


def test_arrays_without_names_of_other_lengths(tmp_path, device):
    """Under path they are read whole, as are all arrays that don't have the dimension; so are those whose names are asked for."""
    image, mask = sample_values("uint16", (6, 4, 5)), sample_values("uint8", (4, 5))
    write_array(tmp_path, "image", image, dims=("t", "y", "x"))
    write_array(tmp_path, "mask", mask)
    write_array(tmp_path, "other", image)
    found = _epoch(device, path=tmp_path, arrays=["image", "mask"])
    for t, (one, other) in enumerate(found):
        same(one, image[t], "image")
        same(other, mask, "mask")
    found = _epoch(device, path=tmp_path, arrays=["image", "other"], window={"t": 3, "dim_0": 2}, return_index=True)
    assert len(found) == 6
    for one, other, (t, at) in found:
        same(one, image[t : t + 3], "image")
        same(other, image[at : at + 2], "other")
    with pytest.raises(ValueError, match='no array has a dimension "q"'):
        build(device, 1, arrays=[str(tmp_path / "image"), str(tmp_path / "mask")], dims=["q"])


def test_kinds_of_locations(stores, tmp_path, device, monkeypatch):
    """Relative ones, absolute ones, file URLs and ~, alone and beside names that are relative to path."""
    arrays, image, label = stores
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for location in ("./b.zarr/deep/0", f"../{tmp_path.name}/b.zarr/deep/0", f"file://{arrays['label']}", "~/b.zarr/deep/0"):
        for given in ({"path": "a.zarr", "arrays": {"image": "0"}}, {"arrays": {"image": "./a.zarr/0"}}):
            one, other = _epoch(device, **given | {"arrays": given["arrays"] | {"label": location}})[7]
            same(one, image[7], location)
            same(other, label[7], location)
    one, other = _epoch(device, arrays=["./a.zarr/0", "./b.zarr/deep/0"])[7]
    same(other, label[7], "a list")
    # A store with a single array is one, too; the same location twice is one store.
    first, second, third = _epoch(device, arrays={"label": "./b.zarr/deep", "again": "./b.zarr/deep", "image": "./a.zarr"})[5]
    same(first, label[5], "its only array")
    same(second, label[5], "again")
    same(third, image[5], "image")


def test_two_arrays_of_one_name(tmp_path, device):
    """Arrays that are called the same in their stores have chunks of their own."""
    values = [np.arange(8, dtype="int32") + 100 * i for i in range(3)]
    locations = {str(i): _write(tmp_path / f"{i}.zarr", "0", one, layout=Layout((3,)), dims=("t",)) for i, one in enumerate(values)}
    for t, outputs in enumerate(_epoch(device, arrays=locations)):
        for one, found in zip(values, outputs, strict=True):
            same(found, one[t], f"element {t}")
    # Beside a path, too.
    found = _epoch(device, path=tmp_path / "0.zarr", arrays={"a": "0", "b": locations["1"]}, stack_arrays=True)
    same(np.stack([one for (one,) in found]), np.stack(values[:2], 1), "stacked")


def test_lengths_that_differ(stores, tmp_path, device):
    arrays, *_ = stores
    _write(tmp_path / "c.zarr", "0", np.zeros((11, 2), "int32"))
    with pytest.raises(ValueError, match=r"length 11 .*c\.zarr/0' but 12 .*a\.zarr/0'"):
        build(device, 1, arrays=arrays | {"label": str(tmp_path / "c.zarr" / "0")})


def _coordinates(root: Path, values: np.ndarray, attributes: dict[str, Any] | None = None, zarr_format: int = 3) -> None:
    shutil.rmtree(root / "t", ignore_errors=True)
    write_array(root, "t", values, layout=Layout((5,)), dims=("t",), attributes=attributes or {}, zarr_format=zarr_format)


def test_coordinates_that_differ(stores, tmp_path, device):
    """The first difference, its index, both values and both stores."""
    arrays, *_ = stores
    times = np.arange(12, dtype="int64") * 6
    _coordinates(tmp_path / "a.zarr", times)
    build(device, 1, arrays=arrays)
    _coordinates(tmp_path / "b.zarr" / "deep", np.where(np.arange(12) < 8, times, times + 3), zarr_format=2)
    import dali_zarr

    for refused in (lambda: build(device, 1, arrays=arrays), lambda: dali_zarr.explain(arrays=arrays)):
        with pytest.raises(ValueError, match="48 at index 8") as raised:
            refused()
        for part in ("51", "a.zarr", "b.zarr", '"t"'):
            assert part in str(raised.value)
    # Along other dimensions they don't tie arrays together, nor where lengths say that they are something else.
    _coordinates(tmp_path / "b.zarr" / "deep", times[:5], zarr_format=2)
    build(device, 1, arrays=arrays)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ((np.arange(12) * 24.0, "hours since 2000-01-01"), (np.arange(12, dtype="int32"), "days since 2000-01-01"), True),
        ((np.arange(12) * 24.0, "hours since 2000-01-01"), (np.arange(12, dtype="int32"), "days since 2000-01-02"), False),
        ((np.arange(12) * 24.0, "hours since 1999-12-31 12:00"), (np.arange(12) + 0.5, "days since 1999-12-31"), True),
        ((np.arange(12) * 3600, "seconds since 1970-01-01"), (np.arange(12).astype("M8[h]").astype("M8[ns]"), None), True),
        ((np.arange(12) * 3600, "seconds since 1970-01-01"), (np.arange(1, 13).astype("M8[h]").astype("M8[ns]"), None), False),
        (((np.arange(12) * 0.1).astype("float32"), None), (np.arange(12) * 0.1, None), True),
        (((np.arange(12) * 0.1).astype("float32"), None), (np.arange(12) * 0.1001, None), False),
    ],
)
def test_coordinates_of_other_types_and_units(stores, tmp_path, device, one, other, is_same):
    """Times are compared as times, floats as precisely as both have them."""
    arrays, *_ = stores
    for root, (values, units), zarr_format in ((tmp_path / "a.zarr", one, 3), (tmp_path / "b.zarr" / "deep", other, 2)):
        _coordinates(root, np.asarray(values), {"units": units} if units else {}, zarr_format)
    if is_same:
        build(device, 1, arrays=arrays)
        return
    with pytest.raises(ValueError, match="the same coordinates"):
        build(device, 1, arrays=arrays)


def test_coordinates_beside_a_path(stores, tmp_path, device):
    """Of an array relative to path they are in its group, or around it."""
    arrays, *_ = stores
    _coordinates(tmp_path / "a.zarr", np.arange(12))
    _coordinates(tmp_path / "b.zarr" / "deep", np.arange(12) + 1, zarr_format=2)
    with pytest.raises(ValueError, match="0 at index 0"):
        build(device, 1, path=tmp_path / "a.zarr", arrays={"image": "0", "label": arrays["label"]})


def test_what_is_refused(stores, tmp_path, device):
    """A path that no array is in, joined paths, a store that isn't there."""
    arrays, *_ = stores
    with pytest.raises(ValueError, match="path: expected none"):
        build(device, 1, path=tmp_path / "a.zarr", arrays=arrays)
    with pytest.raises(ValueError, match="2 stores are joined"):
        build(device, 1, path=[tmp_path / "a.zarr", tmp_path / "a.zarr"], arrays={"image": "0", "label": arrays["label"]})
    with pytest.raises(ValueError, match=r"nowhere\.zarr"):
        build(device, 1, arrays=arrays | {"label": str(tmp_path / "nowhere.zarr" / "0")})
    with pytest.raises(ValueError, match="path: expected at least one store"):
        build(device, 1, arrays={"image": "0"})


def test_ome_zarr_in_two_stores(tmp_path, device):
    """The axes around each name its dimensions, and images that lie elsewhere aren't read together."""
    values = sample_values("uint16", (4, 6))
    for name in ("image", "labels"):
        root = tmp_path / f"{name}.zarr"
        write_array(root, "0", values)
        scale = [{"type": "scale", "scale": [0.5, 0.25]}]
        image = {"axes": [{"name": "y"}, {"name": "x"}], "datasets": [{"path": "0", "coordinateTransformations": scale}]}
        zarr.open_group(str(root), mode="a").attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    arrays = {name: str(tmp_path / f"{name}.zarr" / "0") for name in ("image", "labels")}
    found = _epoch(device, arrays=arrays, dims=["x"], window=[2])
    assert len(found) == 3
    for i, outputs in enumerate(found):
        for output in outputs:
            same(output, values[:, 2 * i : 2 * i + 2], "window")
    file = tmp_path / "labels.zarr" / "zarr.json"
    file.write_text(file.read_text().replace("0.25", "0.5"))
    with pytest.raises(ValueError, match="coordinateTransformations") as raised:
        build(device, 1, arrays=arrays, dims=["x"])
    assert "0.25" in str(raised.value) and "labels.zarr" in str(raised.value)


def test_arrays_on_a_server(stores, tmp_path, device):
    """A local array beside one on a server, with coordinates there too."""
    arrays, image, label = stores
    _coordinates(tmp_path / "a.zarr", np.arange(12))
    _coordinates(tmp_path / "b.zarr" / "deep", np.arange(12), zarr_format=2)
    with Server(tmp_path) as server:
        remote = {"image": arrays["image"], "label": f"{server.url}/b.zarr/deep/0"}
        options = {"storage_options": ["allow_http=true"]}
        for t, (one, other) in enumerate(_epoch(device, arrays=remote, **options)):
            same(one, image[t], "image")
            same(other, label[t], "label")
        _coordinates(tmp_path / "b.zarr" / "deep", np.arange(12) * 2, zarr_format=2)
        with pytest.raises(ValueError, match="1 at index 1"):
            build(device, 1, arrays=remote, **options)


def test_checkpoints(stores, device):
    """A reader of the same arrays goes on; one of others is refused."""
    arrays, image, label = stores
    how = {"random_shuffle": True, "seed": 5, "return_index": True}
    first = build(device, 2, arrays=arrays, checkpointing=True, **how)
    found = batches(first)
    next(found)
    expected = next(batches(build(device, 2, arrays=arrays, checkpoint=first.checkpoint(), checkpointing=True, **how)))
    for one, other in zip(next(found), expected, strict=True):
        same(one, other, "restored")


def test_checkpoints_of_stores_that_were_moved(stores, tmp_path, device):
    """Equal ways of asking, each store moved and renamed alone; but arrays of other names are others."""
    arrays, *_ = stores
    how = {"random_shuffle": True, "seed": 5, "return_index": True, "checkpointing": True}
    first = build(device, 2, path=tmp_path / "a.zarr", arrays={"image": "0", "label": arrays["label"]}, **how)
    found = batches(first)
    next(found)
    saved, expected = first.checkpoint(), next(found)
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(tmp_path / "b.zarr", tmp_path / "elsewhere" / "c.zarr")
    for moved in (
        {"arrays": arrays},
        {"arrays": {"image": str(tmp_path / "a.zarr"), "label": arrays["label"]}},
        {"arrays": arrays | {"label": str(tmp_path / "elsewhere" / "c.zarr" / "deep" / "0")}},
        {"arrays": arrays | {"label": str(tmp_path / "b.zarr" / "deep")}},
        {"path": tmp_path / "elsewhere" / "c.zarr", "arrays": {"image": arrays["image"], "label": "deep/0"}},
    ):
        for one, other in zip(expected, next(batches(build(device, 2, checkpoint=saved, **moved, **how))), strict=True):
            same(one, other, str(moved))
    shutil.move(tmp_path / "elsewhere" / "c.zarr" / "deep" / "0", tmp_path / "elsewhere" / "c.zarr" / "deep" / "1")
    with pytest.raises(ValueError, match="name: .*0.* in the checkpoint, .*1.* here"):
        build(device, 2, arrays=arrays | {"label": str(tmp_path / "elsewhere" / "c.zarr" / "deep" / "1")}, checkpoint=saved, **how)


CALENDARS = [
    ({"units": "hours since 2000-01-01"}, {"units": "hours since 2000-01-01", "calendar": "noleap"}, "calendar .noleap."),
    ({"units": "hours since 2000-01-01"}, {"units": "hours since 2000-01-01", "calendar": "360_day"}, "calendar .360_day."),
    ({"units": "hours since 2000-01-01"}, {"units": "hours since 2000-01-01", "calendar": "julian"}, "calendar .julian."),
    ({"units": "hours since 2000-01-01"}, {"units": "months since 2000-01-01"}, "months since"),
    ({"units": "hours since 2000-01-01"}, {"units": "years since 2000-01-01"}, "years since"),
    ({"units": "hours since 2000-01-01"},
         {"units": "secs since 2000-01-01"}, "2000-01-01 06:00:00 at index 1 .* 2000-01-01 00:00:06"),
    ({"units": "hours since 2000-01-01"},
         {"units": "hours since 2000-01-02"}, "2000-01-01 00:00:00 at index 0 .* 2000-01-02 00:00:00"),
    ({"units": "hours since 2000-01-01"}, {"units": "hours since 2000-01-01T00:00:00+01:00"}, "1999-12-31 23:00:00"),
    ({"units": "days since 1500-01-01"}, {"units": "days since 1500-01-01", "calendar": "proleptic_gregorian"}, "proleptic"),
    ({"units": "months since 2000-01-01"}, {"units": "months since 2000-01-01"}, None),
    ({"units": "hours since 2000-01-01", "calendar": "noleap"}, {"units": "Hours since 2000-1-1", "calendar": "365_day"}, None),
    ({"units": "hours since 2000-01-01"}, {"units": "h since 2000-01-01 01:00 +01:00", "calendar": "gregorian"}, None),
    ({"units": "hours since 2000-01-01"}, {}, None),
]


@pytest.mark.parametrize(("one", "other", "expected"), CALENDARS, ids=str)
def test_equal_numbers_of_other_calendars_and_units(stores, tmp_path, device, one, other, expected):
    """They are equal times only where calendars and units say so; the message has times."""
    arrays, *_ = stores
    _coordinates(tmp_path / "a.zarr", np.arange(12) * 6, one)
    _coordinates(tmp_path / "b.zarr" / "deep", np.arange(12) * 6, other, zarr_format=2)
    if expected is None:
        build(device, 1, arrays=arrays)
        return
    with pytest.raises(ValueError, match=expected):
        build(device, 1, arrays=arrays)


@pytest.mark.parametrize(("unit", "factor"), [("secs", 3600), ("msec", 3_600_000), ("mins", 60), ("hrs", 1)])
def test_equal_times_in_units_as_cftime_has_them(stores, tmp_path, device, unit, factor):
    arrays, *_ = stores
    _coordinates(tmp_path / "a.zarr", np.arange(12), {"units": "hours since 2000-01-01"})
    _coordinates(tmp_path / "b.zarr" / "deep", np.arange(12) * factor, {"units": f"{unit} since 2000-01-01"}, zarr_format=2)
    build(device, 1, arrays=arrays)


def test_missing_coordinates(stores, tmp_path, device):
    """A missing one equals a missing one, and no number. Zeros that the fill value of Zarr v2 makes missing are zeros."""
    arrays, *_ = stores
    times = np.arange(12.0)
    _coordinates(tmp_path / "a.zarr", times)
    _coordinates(tmp_path / "b.zarr" / "deep", np.where(times == 5, np.nan, times), zarr_format=2)
    with pytest.raises(ValueError, match="5 at index 5 .*none"):
        build(device, 1, arrays=arrays)
    _coordinates(tmp_path / "a.zarr", np.where(times == 5, np.nan, times))
    build(device, 1, arrays=arrays)


@pytest.mark.parametrize("dtype", ["<U4", "|S3", "str"])
def test_text_coordinates(stores, tmp_path, device, dtype, caplog):
    """They are compared with text. Beside numbers they keep nothing from being read: the log tells it."""
    arrays, image, label = stores
    group = zarr.open_group(str(tmp_path / "b.zarr" / "deep"), mode="a", zarr_format=2)
    array = group.create_array("t", shape=(12,), chunks=(12,), dtype=dtype)
    array[...] = np.array([f"s{i}" for i in range(12)], "U3" if dtype == "str" else dtype)
    _coordinates(tmp_path / "a.zarr", np.arange(12))
    with caplog.at_level("WARNING", "dali_zarr"):
        one, other = _epoch(device, arrays=arrays)[3]
    same(one, image[3], "image")
    same(other, label[3], "label")
    assert "are text in one and numbers in the other" in caplog.text and "b.zarr" in caplog.text
    import dali_zarr

    for name, expected in (("s5", None), ("s9", 'found "s9" at index 5 in .*a.zarr.*, and "s5" in .*b.zarr.*in step')):
        group = zarr.open_group(str(tmp_path / "a.zarr"), mode="a")
        text = np.array([name if i == 5 else f"s{i}" for i in range(12)], "U3")
        group.create_array("t", shape=(12,), chunks=(12,), dtype="<U3", overwrite=True)[...] = text
        for make in (lambda: build(device, 1, arrays=arrays), lambda: dali_zarr.explain(arrays=arrays)):
            if expected is None:
                make()
            else:
                with pytest.raises(ValueError, match=expected):
                    make()


def test_breaks_where_coordinates_are_uneven(stores, tmp_path, device):
    """``breaks="auto"`` finds the coordinates around an array with a store of its own, and beside one of path."""
    arrays, image, label = stores
    _coordinates(tmp_path / "b.zarr" / "deep", np.r_[np.arange(1, 8), np.arange(20, 25)] * 6, zarr_format=2)
    for given in (
        {"arrays": arrays},
        {"path": tmp_path / "b.zarr", "arrays": {"image": arrays["image"], "label": "deep/0"}},
        {"path": tmp_path / "a.zarr", "arrays": {"image": "0", "label": arrays["label"]}},
    ):
        found = _epoch(device, **given, window={"t": 3}, step={"t": 1}, breaks="auto", return_index=True)
        assert [int(index[1]) for *_, index in found] == [0, 1, 2, 3, 4, 7, 8, 9]
        same(found[5][0], image[7:10], "image")
    with pytest.raises(ValueError, match="there is no array 't' beside the arrays"):
        build(device, 1, arrays={"image": arrays["image"]}, window={"t": 3}, breaks="auto")


def test_explain_and_the_loader(stores, tmp_path, device):
    """Every array's store is told; labels come from where the coordinates are."""
    import dali_zarr

    torch = pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    arrays, image, label = stores
    _coordinates(tmp_path / "a.zarr", np.arange(12) * 10)
    explained = dali_zarr.explain(arrays=arrays)
    assert [array["stores"][0]["store"] for array in explained["arrays"]] == list(arrays.values())
    assert [array["dims"] for array in explained["arrays"]] == [["t", "y", "x"], ["t", "dim_1"]]
    loader = Loader(arrays=arrays, batch_size=4, device="cuda" if device == "gpu" else "cpu")
    batch = next(iter(loader))
    assert torch.equal(batch["label"].cpu(), torch.from_numpy(label[:4]))
    assert batch.coords["t"].tolist() == [0, 10, 20, 30]
    assert "stores of their own" in repr(loader)
    assert json.loads(json.dumps(dali_zarr.counters(loader)))["path"] == list(arrays.values())


@pytest.mark.parametrize("shuffled", [False, True])
def test_s3_beside_a_local_store(stores, tmp_path, device, s3, s3_options, shuffled):
    """Options are for the remote one. Labels are looked up where the coordinates are, here in S3 only."""
    arrays, image, label = stores
    _coordinates(tmp_path / "b.zarr" / "deep", np.arange(1, 13), {"units": "days since 2019-12-31"}, zarr_format=2)
    upload(s3, tmp_path / "b.zarr", f"{device}-{shuffled}/b.zarr")
    remote = f"s3://bucket/{device}-{shuffled}/b.zarr/deep/0"
    both = {"image": arrays["image"], "label": remote}
    how = {"storage_options": s3_options, "random_shuffle": shuffled, "seed": 4, "return_index": True}
    seen = []
    for one, other, (t,) in _epoch(device, arrays=both, **how):
        same(one, image[t], "image")
        same(other, label[t], "label")
        seen.append(int(t))
    assert sorted(seen) == list(range(12))
    pytest.importorskip("obstore")
    pytest.importorskip("xarray")
    how["sel"] = {"t": slice("2020-01-03", "2020-01-06")}
    found = _epoch(device, arrays=both, **how)
    assert sorted(int(t) for _, _, (t,) in found) == [2, 3, 4, 5]
    assert [int(t) for *_, (t,) in _epoch(device, arrays=both, **how | {"sel": {"t": ["2020-01-09"]}})] == [8]
    if not shuffled:
        # A path in S3, and an array of a local store.
        beside = {"path": remote.removesuffix("/0"), "arrays": {"label": "0", "image": arrays["image"]}}
        for (other, one, (t,)), want in zip(_epoch(device, **beside, **how), [2, 3, 4, 5], strict=True):
            assert t == want
            same(one, image[t], "image")
            same(other, label[t], "label")


def test_what_s3_refuses_beside_a_local_store(stores, tmp_path, s3, s3_options):
    """Both buckets and options are named as they are for a path."""
    arrays, *_ = stores
    for location, options, words in (
        ("s3://nowhere/b.zarr", s3_options, "nowhere"), ("s3://bucket/none.zarr/0", s3_options, "none.zarr/0"),
        ("s3://bucket/b.zarr", s3_options | {"nonsense": "1"}, "nonsense isn't an option"),
    ):
        with pytest.raises(ValueError, match=words):
            build("cpu", 1, arrays=arrays | {"label": location}, storage_options=options)
    with pytest.raises(ValueError, match="storage_options"):
        build("cpu", 1, arrays=arrays, storage_options={"nonsense": "1"})


def test_the_loader_reads_from_s3(stores, tmp_path, s3, s3_options):
    """Batches and their labels, beside a local store."""
    pytest.importorskip("obstore")
    torch = pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    arrays, image, label = stores
    _coordinates(tmp_path / "b.zarr" / "deep", np.arange(1, 13) * 5, zarr_format=2)
    upload(s3, tmp_path / "b.zarr", "loader/b.zarr")
    both = {"image": arrays["image"], "label": "s3://bucket/loader/b.zarr/deep/0"}
    batch = next(iter(Loader(arrays=both, batch_size=5, device="cpu", storage_options=s3_options)))
    assert torch.equal(batch["label"], torch.from_numpy(label[:5])) and batch.coords["t"].tolist() == [5, 10, 15, 20, 25]
