"""Mixtures of loaders: exact proportions, the same order again, and states that go on with the next batch."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections import Counter
from fractions import Fraction

import dali_zarr
import numpy as np
import pytest
from support.stores import Layout, write_array

torch = pytest.importorskip("torch")

from dali_zarr.torch import Loader  # noqa: E402

# Samples of the stores: their numbers don't overlap.
SIZES = {"a": 23, "b": 7, "c": 12}
BATCH = 3


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    base = tmp_path_factory.mktemp("mixtures")
    for i, (name, size) in enumerate(SIZES.items()):
        write_array(base / name, "n", np.arange(size) + 1000 * (i + 1), layout=Layout((4,)), dims=("time",))
    return base


def loaders(stores, **args):
    given = {"device": "cpu", "batch_size": BATCH, "host_memory_limit": "64MiB", "random_shuffle": True, "seed": 5} | args
    return {name: Loader(stores / name, arrays=["n"], **given) for name in SIZES}


def mixed(stores, of=None, **args):
    return dali_zarr.mix(of or loaders(stores), **({"seed": 3} | args))


def read(iteration, count=None):
    """The batches as names of loaders and numbers of samples."""
    return [(batch.loader, batch["n"].tolist()) for batch in itertools.islice(iteration, count)]


def alone(stores, name, count):
    """The first batches that a loader gives by itself, over as many epochs as it takes."""
    loader = loaders(stores)[name]
    return list(itertools.islice((batch["n"].tolist() for _ in itertools.count() for batch in loader), count))


def exact_shares(weights, size):
    """Largest remainders in exact arithmetic."""
    total = sum(map(Fraction, weights))
    shares = [Fraction(one) * size / total for one in weights]
    found = [int(one) for one in shares]
    order = sorted(range(len(shares)), key=lambda i: (found[i] - shares[i], i))
    for i in order[: size - sum(found)]:
        found[i] += 1
    return found


@pytest.mark.parametrize("weights", [{"a": 5, "c": 2, "b": 3}, [5, 3, 2], (0.5, 0.3, 0.2), np.array([5, 3, 2])], ids=str)
def test_proportions_and_order(stores, weights):
    """Each loader gives its share of each epoch, in its own order over epochs; the next epoch takes turns in another order."""
    mixture = mixed(stores, weights=weights, batches=20)
    assert len(mixture) == 20 and mixture.counts() == {"a": 10, "b": 6, "c": 4}
    epochs = [read(mixture) for _ in range(3)]
    for epoch in epochs:
        assert Counter(name for name, _ in epoch) == {"a": 10, "b": 6, "c": 4}
    turns = [[name for name, _ in epoch] for epoch in epochs]
    assert turns[0] != turns[1] != turns[2] and turns[0] != sorted(turns[0])
    for name in SIZES:
        found = [numbers for epoch in epochs for of, numbers in epoch if of == name]
        assert found == alone(stores, name, len(found))
    again = mixed(stores, weights=weights, batches=20)
    assert [read(again) for _ in range(3)] == epochs
    assert mixture.epoch == 2 and mixture.name == epochs[2][-1][0]
    other = mixed(stores, weights=weights, batches=20, seed=4)
    assert [name for name, _ in read(other)] != turns[0]


def test_shares_are_those_of_exact_arithmetic(stores):
    of = loaders(stores)
    rng = np.random.default_rng(0)
    for _ in range(300):
        weights = [int(one) for one in rng.integers(0, 1000, 3) + [1, 0, 0]]
        size = int(rng.integers(1, 5000))
        counts = mixed(stores, of, weights=weights, batches=size).counts()
        assert list(counts.values()) == exact_shares(weights, size), (weights, size)


def test_by_default_each_sample_comes_once(stores):
    of = loaders(stores, uneven="exact")
    mixture = mixed(stores, of)
    assert len(mixture) == sum(map(len, of.values())) == 8 + 3 + 4
    found = read(mixture)
    assert sorted(n for _, numbers in found for n in numbers) == [
        n + 1000 * (i + 1) for i, size in enumerate(SIZES.values()) for n in range(size)
    ]
    assert {name: float(np.float32(share)) for name, share in mixture.weights.items()} == {
        name: float(np.float32(size / 15)) for name, size in {"a": 8, "b": 3, "c": 4}.items()
    }


@pytest.mark.parametrize("taken", [0, 1, 7, 19, 20, 27])
def test_states(stores, taken):
    """A state holds those of the loaders, wherever it is taken, and in text."""
    mixture = mixed(stores, weights=[5, 3, 2], batches=20)
    expected = [one for _ in range(3) for one in read(mixture)]
    mixture = mixed(stores, weights=[5, 3, 2], batches=20)
    done = []
    while len(done) < taken:
        done += read(mixture, taken - len(done))
    state = json.loads(json.dumps(mixture.state_dict()))
    restored = mixed(stores, batches=20)
    read(restored, 3)
    restored.load_state_dict(state)
    rest = []
    while len(done) + len(rest) < 60:
        rest += read(restored)
    assert done + rest == expected
    # Copies go on there too.
    for copied in (copy.copy(mixture), pickle.loads(pickle.dumps(mixture))) if 0 < taken % 20 else ():
        assert read(copied) == expected[taken : 20 * (taken // 20 + 1)]


def test_weights_change_between_epochs(stores):
    mixture = mixed(stores, weights=[1, 1, 1], batches=12)
    iteration = iter(mixture)
    found = read(iteration, 5)
    mixture.set_weights({"a": 0, "b": 3, "c": 1})
    assert mixture.counts() == {"a": 0, "b": 9, "c": 3} and mixture.weights["b"] == 0.75
    state = mixture.state_dict()
    found += read(iteration)
    assert Counter(name for name, _ in found) == {"a": 4, "b": 4, "c": 4}, "an epoch that was begun keeps its weights"
    following = read(mixture)
    assert Counter(name for name, _ in following) == {"b": 9, "c": 3}
    restored = mixed(stores, weights=[9, 9, 9], batches=12)
    restored.load_state_dict(state)
    assert read(restored) == found[5:] and read(restored) == following


def test_set_epoch_and_breaks(stores):
    turns = {}
    for epoch in (0, 1, 7):
        mixture = mixed(stores, batches=20, weights=[1, 2, 1])
        mixture.set_epoch(epoch)
        assert mixture.epoch == epoch
        turns[epoch] = [name for name, _ in read(mixture)]
        assert mixture.epoch == epoch
    assert len(set(map(tuple, turns.values()))) == 3
    # After a break comes the next epoch, and no batch of a loader is lost.
    mixture = mixed(stores, batches=20, weights=[1, 2, 1])
    found = read(mixture, 6) + read(mixture)
    assert [name for name, _ in found] == turns[0][:6] + turns[1]
    for name in SIZES:
        own = [numbers for of, numbers in found if of == name]
        assert own == alone(stores, name, len(own))
    first = iter(mixture)
    next(first)
    iter(mixture)
    with pytest.raises(RuntimeError, match="another iteration over this mixture has begun"):
        next(first)


def test_ranks(stores):
    """At each step all ranks take the same loader, and share its samples; or each has an order of its own."""
    def of(shard, **args):
        parts = loaders(stores, shard_id=shard, num_shards=2, uneven="exact")
        return read(dali_zarr.mix(parts, seed=3, batches=8, weights=[4, 2, 2], **args))

    both = of(0), of(1)
    assert [name for name, _ in both[0]] == [name for name, _ in both[1]]
    numbers = [n for rank in both for name, batch in rank if name == "a" for n in batch]
    assert sorted(numbers) == list(range(1000, 1023))
    own = of(0, rank=0), of(1, rank=1)
    assert [name for name, _ in own[0]] != [name for name, _ in own[1]]
    assert [Counter(name for name, _ in rank) for rank in own] == [Counter({"a": 4, "b": 2, "c": 2})] * 2


def test_within_each_other(stores):
    """A mixture is a loader too."""
    of = loaders(stores)
    inner = dali_zarr.mix({name: of[name] for name in "ab"}, weights=[1, 1], batches=4)
    outer = dali_zarr.mix({"inner": inner, "c": of["c"]}, weights=[3, 1], batches=8)
    assert Counter(batch.loader for batch in outer) == {"inner": 6, "c": 2}
    state = outer.state_dict()
    expected = [batch["n"].tolist() for batch in outer]
    outer.load_state_dict(state)
    assert [batch["n"].tolist() for batch in outer] == expected
    assert outer.counters().keys() == {"inner", "c"} and outer.counters()["inner"].keys() == {"a", "b"}


def test_jax(stores):
    jax = pytest.importorskip("dali_zarr.jax")
    args = {"device": "cpu", "batch_size": 2, "host_memory_limit": "64MiB", "dtype": "int32"}
    mixture = dali_zarr.mix({name: jax.Loader(stores / name, arrays=["n"], **args) for name in "ab"}, weights=[3, 1], batches=8)
    found = [(batch.loader, np.asarray(batch["n"]).tolist()) for batch in mixture]
    assert Counter(name for name, _ in found) == {"a": 6, "b": 2}
    assert [numbers for name, numbers in found if name == "a"] == [[1000 + 2 * i, 1001 + 2 * i] for i in range(6)]


def test_batches_keep_their_name_when_they_are_moved(stores):
    mixture = mixed(stores, weights=[0, 1, 0], batches=1)
    (batch,) = mixture
    assert batch.to("cpu").loader == batch.loader == "b" and repr(mixture).startswith("<Mixture of 0 a, 1 b, 0 c: 1 batches")
    assert next(iter(loaders(stores)["a"])).loader is None


@pytest.mark.parametrize(
    ("args", "kind", "words"),
    [
        ({"weights": [1, 1]}, ValueError, "expected one for each of 3 loaders, but found 2"),
        ({"weights": {"a": 1}}, ValueError, "expected one for each of the loaders a, b, c, but found them for a"),
        ({"weights": [1, -1, 1]}, ValueError, "expected numbers of at least 0, not all 0"),
        ({"weights": [0, 0, 0]}, ValueError, "not all 0"), ({"weights": [1, float("nan"), 1]}, ValueError, "not all 0"),
        ({"weights": ["x", 1, 1]}, TypeError, "expected numbers"), ({"batches": 0}, ValueError, "batches: expected at least 1"),
        ({"batches": 1.5}, TypeError, "batches: expected an integer"),
        ({"seed": -1}, ValueError, "seed: expected a number of at least 0"),
        ({"seed": "a"}, TypeError, "seed: expected an integer"), ({"rank": True}, TypeError, "rank: expected an integer"),
    ],
    ids=str,
)
def test_what_is_refused(stores, args, kind, words):
    with pytest.raises(kind, match=f"^dali_zarr: .*{words}"):
        mixed(stores, **args)


def test_loaders_and_states_that_are_refused(stores):
    with pytest.raises(TypeError, match="expected loaders by name, but found list"):
        dali_zarr.mix([1])
    with pytest.raises(TypeError, match="expected loaders by name"):
        dali_zarr.mix({})
    with pytest.raises(ValueError, match="expected weights and batches, since the loader 'x' doesn't tell its length"):
        dali_zarr.mix({"x": iter([1])})
    mixture = mixed(stores)
    with pytest.raises(ValueError, match="expected the state of a mixture, but found the keys"):
        mixture.load_state_dict(mixture.loaders["a"].state_dict())
    with pytest.raises(ValueError, match="with the seed 3, but found 4"):
        mixture.load_state_dict(mixed(stores, seed=4).state_dict())
    with pytest.raises(ValueError, match=r"with the loaders \['a', 'b', 'c'\], but found \['a'\]"):
        mixture.load_state_dict(dali_zarr.mix({"a": mixture.loaders["a"]}, seed=3).state_dict())
    with pytest.raises(ValueError, match="expected batches of the loader 'none', but its epoch has none"):
        list(dali_zarr.mix({"none": [], "a": mixture.loaders["a"]}, weights=[1, 1], batches=2))
