"""Samples that don't divide equally among ranks: ``uneven`` of the loaders, and ``batch.is_repeated``."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from support.loaders import STEPS, flat, make, numbers, write

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from dali_zarr._batch import _device_of  # noqa: E402
from dali_zarr._loading.epochs import Ending, Schedule, Segment  # noqa: E402
from dali_zarr.torch import Batch  # noqa: E402

MODES = ["repeat", "drop", "exact"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("uneven"))


def share(rank, world, samples=STEPS):
    return list(range(samples * rank // world, samples * (rank + 1) // world))


@pytest.mark.parametrize("world", [1, 2, 8, STEPS])
@pytest.mark.parametrize("uneven", MODES)
def test_what_each_rank_gets(path, world, uneven):
    """Sequentially, so that each rank's samples are known."""
    most = math.ceil(STEPS / world)
    sizes = set()
    for rank in range(world):
        loader = make(path, batch_size=2, shard_id=rank, num_shards=world, uneven=uneven)
        batches, own = list(loader), share(rank, world)
        found, repeated = flat(numbers(batches)), [flag for batch in batches for flag in batch.is_repeated.tolist()]
        sizes.add(tuple(len(batch["n"]) for batch in batches))
        assert len(loader) == len(batches) and len(found) == len(repeated)
        if uneven == "repeat":
            assert found == own + [own[-1]] * (most - len(own)) and repeated == [False] * len(own) + [True] * (most - len(own))
        else:
            assert found == (own[: STEPS // world] if uneven == "drop" else own) and not any(repeated)
    if uneven != "exact":
        assert len(sizes) == 1 and 0 not in next(iter(sizes)), "equal sizes, none of them empty"


@pytest.mark.parametrize("uneven", MODES)
def test_full_batches(path, uneven):
    """drop_last leaves out what repeats samples; pad_last_batch tells what it repeats."""
    for rank in range(3):
        how = {"batch_size": 4, "shard_id": rank, "num_shards": 3, "uneven": uneven}
        dropped = make(path, drop_last=True, **how)
        assert flat(numbers(dropped)) == share(rank, 3)[:4] and len(dropped) == 1
        *_, last = make(path, pad_last_batch=True, **how)
        own = len(share(rank, 3))
        assert last.is_repeated.tolist() == [4 + i >= own for i in range(4)]
        assert last["n"].tolist() == (share(rank, 3)[4:] + [share(rank, 3)[-1]] * 4)[:4]


def test_the_arithmetic():
    """Without readers: equal sizes on all ranks, no empty batch, and each sample once among those that aren't repeated."""
    for number in range(300):
        rng = random.Random(number)
        samples, world, size = rng.randint(1, 200), rng.randint(1, 40), rng.choice([1, 2, 3, 8, 64])
        schedules = [Schedule(samples, rank, (Segment(world, size, False, 0, 0, 0),)) for rank in range(world)]
        parts = [schedule.part() for schedule in schedules]
        for uneven, (drop, pad) in itertools.product(MODES, [(False, False), (True, False), (False, True)]):
            ending = Ending(drop, pad, uneven)
            counts = {ending.batches(part, world, size) for part in parts}
            assert len(counts) == 1
            sizes = [[ending.sizes(part, i, world, size) for i in range(min(counts))] for part in parts]
            own = [sum(own for _, own in rank) for rank in sizes]
            if ending.has_one_shape():
                assert len({tuple(given for given, _ in rank) for rank in sizes}) == 1
                assert all(given > 0 for given, _ in sizes[0])
            if drop:
                assert own == [samples // world // size * size] * world and all(given == size for given, _ in sizes[0])
            elif uneven != "drop":
                assert own == [part.own for part in parts] and sum(own) == samples
            elif not pad:
                assert own == [samples // world] * world


@pytest.mark.parametrize("uneven", MODES)
def test_other_ranks_go_on(path, uneven):
    """In mid-epoch: new ranks divide the rest, and each sample comes once, repetitions aside."""
    for stop, worlds in itertools.product([1, 2], [(2, 3), (3, 2), (2, 1), (1, 4)]):
        seen, repeated, state = [], [], None
        for world in worlds:
            how = {"random_shuffle": True, "batch_size": 3, "uneven": uneven, "num_shards": world}
            loaders = [make(path, shard_id=rank, **how) for rank in range(world)]
            for loader in loaders if state else ():
                loader.load_state_dict(state)
            epochs = [list(itertools.islice(loader, stop if world == worlds[0] else None)) for loader in loaders]
            assert len({tuple(len(batch["n"]) for batch in epoch) for epoch in epochs}) == 1 or uneven == "exact"
            for batch in itertools.chain(*epochs):
                seen += batch["n"][~batch.is_repeated].tolist()
                repeated += batch["n"][batch.is_repeated].tolist()
            state = loaders[-1].state_dict()
        assert len(set(seen)) == len(seen)
        # With "drop" the new ranks may leave out one sample less than there are ranks.
        assert len(seen) == STEPS if uneven != "drop" else len(seen) > STEPS - worlds[1]
        assert set(repeated) <= set(seen) and (uneven == "repeat" or not repeated)


def test_a_state_at_the_last_batch(path):
    """With "drop" the reader has one more batch, which isn't given: the next epoch follows."""
    how = {"random_shuffle": True, "batch_size": 1, "shard_id": 1, "num_shards": 2}
    for uneven in MODES:
        straight = make(path, uneven=uneven, **how)
        epochs = [numbers(straight) for _ in range(2)]
        loader = make(path, uneven=uneven, **how)
        batches = iter(loader)
        for _ in range(len(loader)):
            next(batches)
        other = make(path, uneven=uneven, **how)
        other.load_state_dict(loader.state_dict())
        assert other.epoch == 1 and numbers(other) == epochs[1]


def test_where_the_flags_are(path):
    """On the device of the batch's tensors, inner batches too."""
    *_, last = make(path, batch_size=4, shard_id=0, num_shards=2, uneven="repeat", offsets={"now": 0, "next": 0})
    assert last.is_repeated.tolist() == last["now"].is_repeated.tolist() == [False, False, False, True]
    elsewhere = Batch({"text": "no tensor", "now": Batch({"n": torch.empty(4, device="meta")})})
    assert _device_of(elsewhere) == torch.device("meta") and _device_of(Batch()) is None
    with pytest.raises(AttributeError, match="doesn't come from a loader, so it has no is_repeated"):
        print(elsewhere.is_repeated)


def test_wrong_values(path):
    for wrong in ("pad", None, True):
        with pytest.raises(ValueError, match="uneven: expected 'repeat', 'drop' or 'exact', but found"):
            make(path, uneven=wrong)


def test_the_default_repeats(path):
    """So that no rank has an empty batch, as with DistributedSampler."""
    from dali_zarr.torch import Loader

    how = {"arrays": ["n"], "device": "cpu", "batch_size": 1, "host_memory_limit": "128MiB"}
    sizes = [[len(batch["n"]) for batch in Loader(path, shard_id=rank, num_shards=8, **how)] for rank in range(8)]
    assert sizes == [[1, 1, 1]] * 8


def test_ranks_of_jax(path):
    """The flags are an array of NumPy, over all devices of the process."""
    jax = pytest.importorskip("jax", reason="the Loader for JAX needs it")
    from dali_zarr.jax import Batch, Loader  # noqa: F811

    how = {"arrays": ["row"], "device": "cpu", "batch_size": 4, "host_memory_limit": "128MiB"}
    for uneven, expected in (("repeat", [False, False, False, True]), ("drop", [False] * 3), ("exact", [False] * 3)):
        *_, last = Loader(path, shard_id=0, num_shards=2, uneven=uneven, **how)
        assert last.is_repeated.dtype == np.bool_ and last.is_repeated.tolist() == expected
        assert isinstance(last["row"], jax.Array) and len(last["row"]) == len(expected) == len(last.index)
    with pytest.raises(AttributeError, match="no is_repeated"):
        print(Batch().is_repeated)
