"""Groups and stores of unlike shapes in loaders: lists, nested and padded tensors, transforms, samplers, states, ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.pipelines import same

SIZES = {"g1": (5, 8), "g2": (9, 3), "g3": (2, 6), "g10": (7, 7), "g11": (4, 4)}
NAMES = list(SIZES)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> tuple[Path, list[dict[str, np.ndarray]]]:
    path = tmp_path_factory.mktemp("groups") / "a.zarr"
    root = zarr.create_group(path)
    rng = np.random.default_rng(0)
    written = []
    for name, (y, x) in SIZES.items():
        group = root.create_group(name)
        values = {
            "points": rng.standard_normal((y * 3, 3)).astype("float32"),
            "image": rng.integers(1, 255, (2, y, x)).astype("uint16"),
            "heights": rng.random((x, 2)),
            "label": np.asarray(len(written) + 10),
        }
        dims = {"points": ("p", "xyz"), "image": ("c", "y", "x"), "heights": ("x", "k"), "label": ()}
        for array, data in values.items():
            group.create_array(array, data=data, chunks=tuple(max(n // 2, 1) for n in data.shape), dimension_names=dims[array])
        written.append(values)
    return path, written


ARRAYS = ["points", "image", "heights", "label"]


def numpy_of(value: Any) -> np.ndarray:
    return value.cpu().numpy() if hasattr(value, "cpu") else np.asarray(value)


def of_batch(batch: Any, name: str, i: int, how: str | None) -> np.ndarray:
    """A sample of a batch."""
    value = batch[name]
    if how == "padded" and np.ndim(value[i]):
        shape = [int(n) for n in batch[f"{name}/shape"][i]]
        whole = numpy_of(value[i])
        inside = tuple(slice(n) for n in shape)
        outside = whole.copy()
        outside[inside] = 0
        assert not outside.any()
        return whole[inside]
    if hasattr(value, "is_nested") and value.is_nested:
        return numpy_of(value.unbind()[i])
    return numpy_of(value[i])


def check(batch: Any, written: list[dict[str, np.ndarray]], how: str | None, arrays=tuple(ARRAYS)) -> list[int]:
    groups = [int(row[0]) for row in np.asarray(numpy_of(batch.index))]
    for i, group in enumerate(groups):
        for name in arrays:
            same(of_batch(batch, name, i, how), np.asarray(written[group][name]), f"{name} of {NAMES[group]}")
    return groups


@pytest.mark.parametrize("how", [None, "list", "padded"])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_torch(store, device, how, batch_size):
    torch = pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    path, written = store
    loader = Loader(path, arrays=ARRAYS, groups=True, batch_size=batch_size, device=device, collate=how, random_shuffle=True)
    for _ in range(2):
        seen = []
        for batch in loader:
            seen += check(batch, written, how)
            assert isinstance(batch["image"], torch.Tensor if how == "padded" else list)
            assert isinstance(batch["label"], list if how == "list" else torch.Tensor)
            assert all(getattr(batch[name], "is_nested", False) == (how is None) for name in ("points", "heights"))
            moved = batch.to("cpu").to(torch.float32)
            assert check(moved.to(torch.float32), written, how, ("image", "label")) and "image" in repr(batch)
        assert sorted(seen) == [0, 1, 2, 3, 4]


def test_nested_needs_one_dimension(store):
    pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    path, written = store
    loader = Loader(path, arrays=["points", "heights"], groups="*", batch_size=2, device="cpu", collate="nested")
    assert check(next(iter(loader)), written, "nested", ("points", "heights")) == [0, 1]
    with pytest.raises(ValueError, match=r"collate='nested': .*'image' differ in the dimensions 1, 2"):
        next(iter(Loader(path, arrays=["image"], groups="*", batch_size=2, device="cpu", collate="nested")))
    with pytest.raises(ValueError, match="collate='csr': expected ragged"):
        next(iter(Loader(path, arrays=["points"], groups="*", batch_size=2, device="cpu", collate="csr")))
    with pytest.raises(ValueError, match="collate='nested': expected ragged"):
        next(iter(Loader(path, arrays=["label"], groups="*", batch_size=2, device="cpu", collate="nested")))
    with pytest.raises(ValueError, match="expected no output called 'points/shape'"):
        arrays = {"points": "points", "points/shape": "label"}
        next(iter(Loader(path, arrays=arrays, groups="*", batch_size=2, device="cpu", collate="padded")))


def test_transforms_may_give_samples_one_shape(store, device):
    torch = pytest.importorskip("torch")
    from dali_zarr.torch import Loader
    from nvidia.dali import fn

    def cropped(given: dict[str, Any]) -> dict[str, Any]:
        image = fn.slice(given["image"], 0, 3, axes=[2])
        return {**given, "image": fn.slice(image, 0, 2, axes=[1])}

    path, written = store
    loader = Loader(path, arrays=["image", "points"], groups="*", batch_size=5, device=device, transform=cropped)
    for batch in loader:
        assert isinstance(batch["image"], torch.Tensor) and batch["image"].shape == (5, 2, 2, 3)
        for i, group in enumerate(check(batch, written, None, ("points",))):
            same(numpy_of(batch["image"][i]), written[group]["image"][:, :2, :3], "image")


def test_windows_of_groups_have_labels(store):
    pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    path, written = store
    loader = Loader(path, arrays=["image", "label"], groups="*", window={"y": 2}, batch_size=4, device="cpu", random_shuffle=True)
    seen = []
    for batch in loader:
        for i, (group, y) in enumerate(batch.index.tolist()):
            same(numpy_of(batch["image"][i]), written[group]["image"][:, y : y + 2], "image")
            assert batch.coords["y"][i].tolist() == [y, y + 1]
            seen.append((group, y))
    assert sorted(seen) == [(g, y) for g, (height, _) in enumerate(SIZES.values()) for y in range(0, height - 1, 2)]
    whole = Loader(path, arrays=["image"], groups="*", window={"y": -1}, batch_size=4, device="cpu")
    batch = next(iter(whole))
    with pytest.raises(AttributeError, match="other lengths along 'y'"):
        _ = batch.coords
    alone = next(iter(Loader(path, arrays=["image"], groups="*", batch_size=2, device="cpu")))
    assert alone.coords == {} and alone.index.tolist() == [[0], [1]]


def test_selections_hold_for_each_group(store):
    pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    path, written = store
    loader = Loader(path, arrays=["image", "points"], groups="*", isel={"c": 1}, batch_size=2, device="cpu", collate="padded")
    for batch in loader:
        for i, (group, c) in enumerate(batch.index.tolist()):
            assert c == 1
            same(of_batch(batch, "image", i, "padded"), written[group]["image"][1], "image")
            same(of_batch(batch, "points", i, "padded"), written[group]["points"], "points")


def test_samplers_streams_and_states(store, device):
    pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    path, written = store
    given: dict[str, Any] = {"arrays": ARRAYS, "groups": "*", "device": device}
    loader = Loader(path, batch_size=3, sampler=[4, 0, 4, 2, 1], **given)
    assert [group for batch in loader for group in check(batch, written, None)] == [4, 0, 4, 2, 1]
    shuffled = Loader(path, batch_size=2, random_shuffle=True, seed=7, **given)
    batches = iter(shuffled)
    head = check(next(batches), written, None)
    state = shuffled.state_dict()
    rest = [check(batch, written, None) for batch in batches]
    other = Loader(path, batch_size=2, random_shuffle=True, seed=7, **given)
    other.load_state_dict(state)
    assert [check(batch, written, None) for batch in other] == rest and len(set(head + sum(rest, []))) == 5
    parts = [
        [check(batch, written, None) for batch in Loader(path, batch_size=2, shard_id=s, num_shards=2, **given)] for s in range(2)
    ]
    assert [len(part) for part in parts] == [2, 2] and {g for part in parts for batch in part for g in batch} == set(range(5))


def test_added_groups_come_after_a_refresh(tmp_path):
    """Until then a loader has the samples that it began with, also where its pipeline is opened again."""
    pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    root = zarr.create_group(tmp_path / "s.zarr")
    for i in range(3):
        root.create_group(f"g{i}").create_array("x", data=np.arange(i + 2))
    loader = Loader(tmp_path / "s.zarr", arrays=["x"], groups="*", batch_size=1, device="cpu")
    first = iter(loader)
    next(first)
    root.create_group("g3").create_array("x", data=np.arange(7))
    del first
    assert [len(batch["x"][0]) for batch in loader] == [2, 3, 4]
    assert len(loader) == 3
    loader.refresh()
    assert [len(batch["x"][0]) for batch in loader] == [2, 3, 4, 7]


@pytest.mark.parametrize("how", ["padded", "list"])
def test_jax(store, how):
    jax = pytest.importorskip("jax")
    from dali_zarr.jax import Loader

    path, written = store
    arrays = ["points", "image"]
    args: dict[str, Any] = {"arrays": arrays, "groups": "*", "batch_size": 2, "dtype": "float32", "device": "cpu"}
    values = [{name: values[name].astype("float32") for name in arrays} for values in written]
    seen = []
    for batch in Loader(path, collate=how, random_shuffle=True, **args):
        seen += check(batch, values, how, tuple(arrays))
        if how == "padded":
            assert batch["image"].shape[1:] == (2, 9, 8) and batch["points"].shape[1:] == (27, 3)
            assert isinstance(batch["image"], jax.Array)
        else:
            assert isinstance(batch["image"], list) and isinstance(batch["image"][0], jax.Array)
    assert sorted(seen) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="collate='list', 'padded'"):
        Loader(path, **args)


def test_empty_arrays(tmp_path):
    """A group may lack elements, in a batch alone and beside others."""
    pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    root = zarr.create_group(tmp_path / "s.zarr")
    for i, length in enumerate([0, 4, 0]):
        root.create_group(f"g{i}").create_array("x", data=np.ones((length, 2), "float32"), chunks=(2, 2))
    for batch_size in (1, 3):
        for how in (None, "list", "padded"):
            loader = Loader(tmp_path / "s.zarr", arrays=["x"], groups="*", batch_size=batch_size, device="cpu", collate=how)
            shapes = []
            for batch in loader:
                for i in range(len(batch.index)):
                    shapes.append(of_batch(batch, "x", i, how).shape)
            assert shapes == [(0, 2), (4, 2), (0, 2)], how


@pytest.mark.parametrize("collate", [None, "padded"])
def test_bfloat16(tmp_path, collate):
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    from dali_zarr.torch import Loader

    root = zarr.create_group(tmp_path / "s.zarr")
    for i, shape in enumerate([(3, 2), (2, 5)]):
        group = root.create_group(f"g{i}")
        made = group.create_array("x", data=np.arange(np.prod(shape), dtype="uint16").reshape(shape) + 16256, chunks=shape)
        place = Path(str(tmp_path)) / "s.zarr" / f"g{i}" / "x" / "zarr.json"
        place.write_text(place.read_text().replace('"uint16"', '"bfloat16"'))
        del made
    batch = next(iter(Loader(tmp_path / "s.zarr", arrays=["x"], groups="*", batch_size=2, device="cpu", collate=collate)))
    for i, shape in enumerate([(3, 2), (2, 5)]):
        one = batch["x"][i][: shape[0], : shape[1]]
        assert one.dtype == torch.bfloat16
        bits = torch.arange(16256, 16256 + shape[0] * shape[1], dtype=torch.int16)
        assert torch.equal(one, bits.view(torch.bfloat16).view(shape))
