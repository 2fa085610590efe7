"""Batches as lists (``collate="list"``) and padded ones (``"padded"``), whatever the shapes of samples: the entries of a batch
don't depend on whether the stores happen to hold samples of one shape."""

from __future__ import annotations

from typing import Any

import dali_zarr
import numpy as np
import pytest
import zarr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.pipelines import same
from support.read_groups import passes

EXAMPLES = 60
NAMES = ["image", "label", "stain"]


def write(path, sizes: list[tuple[int, int]], seed: int = 0) -> list[dict[str, np.ndarray]]:
    """A plate with a group for each size; returns what is in each."""
    root, rng = zarr.create_group(path, overwrite=True), np.random.default_rng(seed)
    written = []
    for number, (y, x) in enumerate(sizes):
        values = {
            "image": rng.integers(0, 999, (2, 6, y, x)).astype("uint16"),
            "label": rng.integers(0, 2, (6, y, x)).astype("uint8"),
            "stain": np.asarray(number, "float32"),
        }
        dims = {"image": ("c", "z", "y", "x"), "label": ("z", "y", "x"), "stain": ()}
        group = root.create_group(f"fov{number}")
        for name, data in values.items():
            group.create_array(name, data=data, chunks=tuple(max(n // 2, 1) for n in data.shape), dimension_names=dims[name])
        written.append(values)
    return written


def cut(values: dict[str, np.ndarray], z: int, window: int) -> dict[str, np.ndarray]:
    return {
        "image": values["image"][:, z : z + window], "label": values["label"][z : z + window], "stain": values["stain"],
    }


def numpy_of(value: Any) -> np.ndarray:
    return value.cpu().numpy() if hasattr(value, "cpu") else np.asarray(value)


def check_list(batch: Any, written: list[dict[str, np.ndarray]], window: int, names: list[str]) -> int:
    """Compares a batch of lists; returns the number of samples."""
    index = numpy_of(batch.index)
    assert set(batch) == set(names) and all(isinstance(batch[name], list) for name in names)
    assert all(len(batch[name]) == len(index) for name in names)
    for i, (group, z) in enumerate(index.tolist()):
        expected = cut(written[group], z, window)
        for name in names:
            same(numpy_of(batch[name][i]), expected[name], f"{name} of {group} at {z}")
    return len(index)


def check_padded(batch: Any, written: list[dict[str, np.ndarray]], window: int, names: list[str]) -> int:
    index = numpy_of(batch.index)
    assert set(batch) == {*names, *(f"{name}/shape" for name in names if name != "stain")}
    for i, (group, z) in enumerate(index.tolist()):
        expected = cut(written[group], z, window)
        for name in names:
            whole = numpy_of(batch[name][i])
            if name == "stain":
                same(whole, expected[name], name)
                continue
            shape = numpy_of(batch[f"{name}/shape"])[i].tolist()
            assert shape == list(expected[name].shape)
            inside = tuple(map(slice, shape))
            same(whole[inside], expected[name], name)
            whole = whole.copy()
            whole[inside] = 0
            assert not whole.any()
    return len(index)


CASES = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=4),
        "is_alike": st.booleans(),
        "names": st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).filter(lambda names: names != ["stain"]),
        "window": st.integers(1, 3),
        "how": st.sampled_from(["list", "padded"]),
        "batch_size": st.integers(1, 6),
        "ending": st.sampled_from([{}, {"drop_last": True}, {"pad_last_batch": True}, {"uneven": "exact", "num_shards": 3}]),
        "shuffled": st.booleans(),
    }
)


@given(CASES)
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_shapes_in_torch(tmp_path_factory, case):
    pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    sizes = [case["sizes"][0]] * len(case["sizes"]) if case["is_alike"] else case["sizes"]
    samples = len(sizes) * (6 // case["window"])
    assume(samples >= (case["batch_size"] if "drop_last" in case["ending"] else case["ending"].get("num_shards", 1)))
    path = tmp_path_factory.mktemp("plate") / "p.zarr"
    written = write(path, sizes)
    window, names, ending = case["window"], case["names"], dict(case["ending"])
    given_: dict[str, Any] = {
        "arrays": names, "groups": "*", "dims": ["z"], "window": [window], "collate": case["how"], "device": "cpu",
        "batch_size": case["batch_size"], "random_shuffle": case["shuffled"],
    }
    check = check_list if case["how"] == "list" else check_padded
    shards = [{"shard_id": rank} for rank in range(ending["num_shards"])] if "num_shards" in ending else [{}]
    counts = [sum(check(batch, written, window, names) for batch in Loader(path, **given_, **ending, **one)) for one in shards]
    if ending.get("drop_last"):
        assert sum(counts) == samples // case["batch_size"] * case["batch_size"]
    elif ending.get("pad_last_batch"):
        assert sum(counts) == -(-samples // case["batch_size"]) * case["batch_size"]
    else:
        assert sum(counts) == samples


@pytest.mark.parametrize("sizes", [[(4, 5)] * 3, [(4, 5), (3, 6), (4, 5)]], ids=["alike", "unlike"])
@pytest.mark.parametrize("how", ["list", "padded"])
def test_any_shapes_in_jax(tmp_path, sizes, how):
    jax = pytest.importorskip("jax")
    from dali_zarr.jax import Loader

    written = write(tmp_path / "p.zarr", sizes)
    check = check_list if how == "list" else check_padded
    given_ = {"arrays": NAMES, "groups": "*", "dims": ["z"], "window": [2], "batch_size": 4, "device": "cpu"}
    loader = Loader(tmp_path / "p.zarr", collate=how, **given_)
    batches = list(loader)
    assert sum(check(batch, written, 2, NAMES) for batch in batches) == 9
    first = batches[0]["image"]
    assert isinstance(first[0] if how == "list" else first, jax.Array)


def test_lists_of_a_plain_array(tmp_path, device):
    """With a mask, offsets, a transform, a state and a stream; tensors share the batch's memory."""
    torch = pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    values = np.random.default_rng(0).random((30, 4, 3)).astype("float32")
    zarr.create_group(tmp_path / "a.zarr").create_array("t2m", data=values, chunks=(3, 4, 3), dimension_names=["t", "y", "x"])
    given_: dict[str, Any] = {"arrays": ["t2m"], "batch_size": 4, "device": device, "collate": "list"}
    loader = Loader(
        tmp_path / "a.zarr", **given_, window=[3], step=[1], out_of_bounds_policy="pad", return_mask=True,
        offsets={"input": 0, "target": 2},
    )
    batches = iter(loader)
    batch = next(batches)
    assert [len(batch["input"]["t2m"]), len(batch["target"]["t2m"]), len(batch["mask"])] == [4, 4, 4]
    for i in range(4):
        same(numpy_of(batch["target"]["t2m"][i]), values[i + 2 : i + 5], f"target {i}")
        assert batch["mask"][i].dtype == torch.bool and bool(batch["mask"][i].all())
    assert batch["input"]["t2m"][0].untyped_storage().data_ptr() == batch["input"]["t2m"][1].untyped_storage().data_ptr()
    moved = batch.to("cpu", torch.float64)
    assert moved["input"]["t2m"][0].dtype == torch.float64 and moved.is_repeated.tolist() == [False] * 4
    state = loader.state_dict()
    expected = [numpy_of(one) for other in batches for one in other["input"]["t2m"]]
    loader.load_state_dict(state)
    found = [numpy_of(one) for other in loader for one in other["input"]["t2m"]]
    same(np.stack(found), np.stack(expected), "after the state")
    with Loader(tmp_path / "a.zarr", **given_).stream() as stream:
        stream.push([7, 2])
        for found_, expected_ in zip(stream.get()["t2m"], values[[7, 2]], strict=True):
            same(numpy_of(found_), expected_, "pushed")
    doubled = Loader(tmp_path / "a.zarr", **given_, transform=lambda arrays: {"twice": arrays["t2m"] * 2})
    for i, one in enumerate(next(iter(doubled))["twice"]):
        same(numpy_of(one), values[i] * 2, "transformed")


def test_pictures_of_lists(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    pytest.importorskip("xarray")
    from dali_zarr.torch import Loader

    write(tmp_path / "p.zarr", [(4, 5)] * 2)
    batch = next(iter(Loader(tmp_path / "p.zarr", arrays=["label"], groups="*", collate="list", batch_size=2, device="cpu")))
    drawn = [axes for axes in batch.plot().axes if axes.get_title().startswith("label")]
    assert len(drawn) == 6
    assert "label" in repr(batch)


def test_names_of_shapes_are_taken(tmp_path):
    """Also where all samples have one shape, in both loaders."""
    write(tmp_path / "p.zarr", [(4, 5)] * 2)
    given_ = {"arrays": {"image": "image", "image/shape": "label"}, "groups": "*", "device": "cpu", "collate": "padded"}
    for name in ("torch", "jax"):
        pytest.importorskip(name)
        module = __import__(f"dali_zarr.{name}", fromlist=["Loader"])
        with pytest.raises(ValueError, match="expected no output called 'image/shape'"):
            next(iter(module.Loader(tmp_path / "p.zarr", **given_)))


def test_gathered_batches_have_no_form(tmp_path):
    pytest.importorskip("torch")
    data = np.arange(24.0).reshape(4, 6)
    zarr.create_group(tmp_path / "a.zarr").create_array("x", data=data, dimension_names=["t", "cell"])
    script = """
args = dict(arrays=["x"], read_group=dist.group.WORLD, device="cpu", collate="list", shard_id=0, num_shards=1)
try:
    next(iter(Loader(path, **args)))
except ValueError as error:
    assert "collate='list': expected none beside a read_group that gathers" in str(error), error
else:
    raise SystemExit("accepted")
batch = next(iter(Loader(path, gather=False, **args)))
assert [one.tolist() for one in batch["x"]] == [[0.0, 1.0, 2.0] if rank == 0 else [3.0, 4.0, 5.0]]
"""
    passes(script, tmp_path / "a.zarr", tmp_path / "ranks", 2)


def test_the_reader_is_the_same(tmp_path):
    """Forms are the loaders' own: they change no sample."""
    write(tmp_path / "p.zarr", [(4, 5)] * 2)
    found = dali_zarr.explain(path=tmp_path / "p.zarr", arrays=["image"], groups="*")
    assert found["outputs"][0]["ragged_dims"] == []
