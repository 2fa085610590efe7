"""Loaders that are pickled and copied: a copy opens the store when it is needed, and goes on where the loader is."""

from __future__ import annotations

import copy
import pickle

import dali_zarr
import numpy as np
import pytest
from support.loaders import STEPS, flat, make, numbers, write
from support.pipelines import run_script

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

COPIES = {"pickle": lambda loader: pickle.loads(pickle.dumps(loader)), "deepcopy": copy.deepcopy, "copy": copy.copy}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("copies"))


@pytest.fixture(params=COPIES.values(), ids=COPIES)
def copied(request):
    return request.param


def test_a_copy_goes_on_where_the_loader_is(path, copied):
    """Before the first batch, in mid-epoch, and at the end; the loader itself isn't disturbed."""
    how = {"random_shuffle": True, "seed": 5, "shard_id": 1, "num_shards": 2}
    straight = make(path, **how)
    epochs = [numbers(straight) for _ in range(3)]
    loader = make(path, **how)
    assert [numbers(copied(loader)) for _ in range(2)] == [epochs[0]] * 2
    loader.set_epoch(1)
    assert numbers(copied(loader)) == epochs[1]
    loader.set_epoch(0)
    batches, found = iter(loader), []
    for number in range(3):
        found += numbers([next(batches)])
        other = copied(loader)
        assert len(other) == len(loader) and numbers(other) == (epochs[0][number + 1 :] or epochs[1])
    assert found + numbers(batches) == epochs[0] and numbers(loader) == epochs[1]


def test_a_copy_opens_nothing_before_it_is_needed(path, copied):
    """So a copy among hyperparameters costs no memory, and a model is loaded where the data aren't."""
    loader = make(path)
    before = len(dali_zarr.counters())
    other = copied(copied(loader))
    assert "not opened yet, batches of 4, to the CPU" in repr(other) and len(dali_zarr.counters()) == before
    assert flat(numbers(other)) == list(range(STEPS)) and "23 samples, 6 batches" in repr(other)


def test_a_copy_keeps_its_rank(path, monkeypatch):
    """In the process that had a group, and in another one as that is told."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    told = pickle.dumps(make(path))
    given = pickle.dumps(make(path, shard_id=0, num_shards=2))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert flat(numbers(pickle.loads(told))) == list(range(11, STEPS))
    assert flat(numbers(pickle.loads(given))) == list(range(11))


def test_another_process(path, tmp_path):
    """Where processes are spawned."""
    loader = make(path, random_shuffle=True)
    batches = iter(loader)
    seen = [n for _ in range(2) for n in next(batches)["n"].tolist()]
    (tmp_path / "loader").write_bytes(pickle.dumps(loader))
    script = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    loader = pickle.load(file)
print([n for batch in loader for n in batch["n"].tolist()])
"""
    rest = eval(run_script(script, str(tmp_path / "loader"), imports="torch"))
    assert rest == flat(numbers(batches)) and sorted(seen + rest) == list(range(STEPS))


def test_tables_in_memory(path):
    """Other processes don't have them. Copies in this process do, as long as they need them."""
    loader = make(path, starts=np.array([3, 1, 4]), dims=["time"], batch_size=1)
    with pytest.raises(TypeError, match="starts: a loader can be pickled only with a path.*numpy.save"):
        pickle.dumps(loader)
    other = copy.deepcopy(loader)
    del loader
    assert numbers(other) == [[3], [1], [4]]


def test_loaders_of_jax(path, copied):
    pytest.importorskip("jax", reason="the Loader for JAX needs it")
    from dali_zarr.jax import Loader

    loader = Loader(path, arrays=["row"], device="cpu", batch_size=4, random_shuffle=True, host_memory_limit="128MiB")
    epochs = [[batch["row"].tolist() for batch in loader] for _ in range(2)]
    assert [batch["row"].tolist() for batch in copied(loader)] != epochs[0]
    loader.set_epoch(0)
    next(iter(loader))
    assert [batch["row"].tolist() for batch in copied(loader)] == epochs[0][1:]


def test_a_sharding_cannot_be_copied(path, copied):
    jax = pytest.importorskip("jax", reason="the Loader for JAX needs it")
    from dali_zarr.jax import Loader

    sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",)), jax.sharding.PartitionSpec("d"))
    loader = Loader(path, arrays=["row"], device="cpu", sharding=sharding, host_memory_limit="128MiB")
    with pytest.raises(TypeError, match="a loader with a sharding can't be pickled or copied.*state_dict"):
        copied(loader)
