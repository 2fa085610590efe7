"""Offsets and windows that change between epochs: the next epoch has them, and so has what goes on from a state."""

from __future__ import annotations

import copy
import json
import pickle

import dali_zarr
import numpy as np
import pytest
import zarr
from support.loaders import HOURS, make, write
from support.stores import Layout, write_array

torch = pytest.importorskip("torch")

STEPS = 23


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("rollouts"))


def check(batches, offsets):
    """The batches are an epoch of these offsets: each sample once, with all offsets inside."""
    flat = [one for value in offsets.values() for one in (value if isinstance(value, list) else [value])]
    starts = []
    for batch in batches:
        own = batch.index[:, 0].tolist()
        starts += own
        for name, value in offsets.items():
            if isinstance(value, list):
                for one in value:
                    assert batch[name][f"n+{one}"].tolist() == [start + one for start in own]
            else:
                assert batch[name]["n"].tolist() == [start + value for start in own]
    assert sorted(starts) == list(range(STEPS - max(flat)))


GROWING = [{"input": 0, "target": [1]}, {"input": 0, "target": [1, 2]}, {"input": 0, "target": [1, 2, 3]}]


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_growing_rollout(path, shuffled):
    """As a loader that was made with the offsets, in the same epoch: the order depends on the seed and the epoch."""
    loader = make(path, offsets=GROWING[0], random_shuffle=shuffled, seed=3)
    for epoch, offsets in enumerate(GROWING):
        if epoch:
            loader.set_offsets(offsets)
        assert len(loader) == -(-(STEPS - len(offsets["target"])) // 4)
        found = list(loader)
        check(found, offsets)
        assert loader.epoch == epoch
        other = make(path, offsets=offsets, random_shuffle=shuffled, seed=3)
        other.set_epoch(epoch)
        assert [batch.index.tolist() for batch in other] == [batch.index.tolist() for batch in found]
        times = found[0]["target"].coords_of(f"n+{epoch + 1}")["time"]
        assert times.tolist() == (HOURS[found[0]["target"][f"n+{epoch + 1}"].numpy()]).tolist()


def test_an_epoch_that_was_begun_keeps_its_own(path):
    loader = make(path, offsets=GROWING[0])
    iteration = iter(loader)
    found = [next(iteration), next(iteration)]
    loader.set_offsets(GROWING[2])
    check([*found, *iteration], GROWING[0])
    check(loader, GROWING[2])
    # After a break, the next iteration has them.
    next(iter(loader))
    loader.set_offsets(GROWING[1])
    check(loader, GROWING[1])
    # What is set again is as if nothing was set.
    next(iter(loader))
    loader.set_offsets(GROWING[0])
    loader.set_offsets(GROWING[1])
    assert not loader.state_dict().keys() & {"next_samples"}


def test_windows(path):
    loader = make(path, arrays=["row"], window=[2])
    assert next(iter(loader))["row"].shape[1:] == (2, 3)
    loader.set_window({"time": 5})
    epoch = [batch["row"] for batch in loader]
    assert torch.cat(epoch).shape == (4, 5, 3)
    loader.set_window(None)
    assert torch.cat([batch["row"] for batch in loader]).shape == (STEPS, 3)
    loader.set_window([3])
    loader.set_offsets([0, 4])
    batch = next(iter(loader))
    assert sorted(batch) == ["row", "row+4"] and batch["row+4"].shape[1:] == (3, 3)


@pytest.mark.parametrize("taken", ["between", "within", "set within"])
def test_states(path, taken):
    """A loader with the first offsets goes on from a state of others; one with others from a state of the first."""
    args = {"random_shuffle": True, "seed": 3, "offsets": GROWING[0]}
    loader = make(path, **args)
    before = loader.state_dict()
    list(loader)
    loader.set_offsets(GROWING[1])
    iteration = iter(loader)
    if taken != "between":
        next(iteration), next(iteration)
    if taken == "set within":
        loader.set_offsets(GROWING[2])
    state = json.loads(json.dumps(loader.state_dict()))
    copies = [copy.copy(loader), pickle.loads(pickle.dumps(loader))]
    restored = make(path, **args)
    restored.load_state_dict(state)
    expected = [batch.index.tolist() for batch in (iteration if taken != "between" else loader)]
    rest = [batch.index.tolist() for batch in loader]
    for one in (restored, *copies):
        assert [batch.index.tolist() for batch in one] == expected
        following = list(one)
        assert [batch.index.tolist() for batch in following] == rest
        check(following, GROWING[2] if taken == "set within" else GROWING[1])
    restored.load_state_dict(before)
    check(restored, GROWING[0])


def test_stores_that_have_grown_give_no_new_samples(tmp_path):
    write(tmp_path)
    loader = make(tmp_path, offsets=GROWING[0])
    list(loader)
    for name in ("n", "time"):
        array = zarr.open_array(tmp_path, path=name, mode="r+")
        array.resize((STEPS + 9,))
        array[STEPS:] = np.arange(STEPS, STEPS + 9)
    loader.set_offsets(GROWING[1])
    check(loader, GROWING[1])
    loader.refresh()
    assert loader.samples == STEPS + 9 - 2


def test_with_a_sampler_and_a_transform(path):
    def doubled(arrays):
        return {group: {name: value * 2 for name, value in inner.items()} for group, inner in arrays.items()}

    loader = make(path, offsets=GROWING[0], sampler=[5, 1, 7, 3], uneven="repeat", transform=doubled)
    assert [batch["target"]["n+1"].tolist() for batch in loader] == [[12, 4, 16, 8]]
    loader.set_offsets(GROWING[1])
    for _ in range(2):
        assert [batch["target"]["n+2"].tolist() for batch in loader] == [[14, 6, 18, 10]]


def test_jax(path):
    jax = pytest.importorskip("dali_zarr.jax")
    args = {"device": "cpu", "batch_size": 4, "host_memory_limit": "128MiB", "dtype": "int32", "arrays": ["n"]}
    loader = jax.Loader(path, offsets=GROWING[0], **args)
    list(loader)
    loader.set_offsets(GROWING[2])
    found = list(loader)
    assert np.concatenate([np.asarray(batch["target"]["n+3"]) for batch in found]).tolist() == list(range(3, STEPS))
    iteration = iter(loader)
    next(iteration)
    state = json.loads(json.dumps(loader.state_dict()))
    restored = jax.Loader(path, offsets=GROWING[0], **args)
    restored.load_state_dict(state)
    assert [np.asarray(one["target"]["n+3"]).tolist() for one in restored] == [
        np.asarray(one["target"]["n+3"]).tolist() for one in iteration]


def test_in_a_mixture(path, tmp_path):
    """The loader's own next epoch has them."""
    write_array(tmp_path, "n", np.arange(8), layout=Layout((4,)), dims=("time",))
    loader = make(tmp_path, offsets={"input": 0, "target": 1}, batch_size=7)
    mixture = dali_zarr.mix({"a": loader}, batches=2)
    assert [batch["target"]["n"].tolist() for batch in mixture] == [list(range(1, 8))] * 2
    loader.set_offsets({"input": 0, "target": 4})
    assert [batch["target"]["n"].tolist() for batch in mixture] == [list(range(4, 8))] * 2


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda loader: loader.set_offsets([0, 99]), ValueError, "offset"),
        (lambda loader: loader.set_offsets([]), ValueError, "at least one"),
        (lambda loader: loader.set_offsets(["a"]), TypeError, "expected integers"),
        (lambda loader: loader.set_window([99]), ValueError, "window"),
        (lambda loader: loader.set_window({"x": 2}), ValueError, '"x"'),
    ],
)
@pytest.mark.parametrize("within", [False, True])
def test_what_is_refused(path, change, kind, words, within):
    """The loader keeps what it had."""
    loader = make(path, offsets=GROWING[0])
    iteration = iter(loader)
    found = [next(iteration)] if within else []
    with pytest.raises(kind, match=words):
        change(loader)
    check([*found, *(iteration if within else loader)], GROWING[0])
