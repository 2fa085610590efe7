"""Ranks that divide one order of the samples must have the same seed: loaders compare it, without waiting for each other."""

from __future__ import annotations

import json
import logging

import pytest
from support.loaders import STEPS, make, numbers, write
from support.processes import start

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

import dali_zarr  # noqa: E402
from dali_zarr._loading import agreement, common  # noqa: E402


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("order"))


class Ranks:
    """This process as several ranks of one group, which have a store in common."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path):
        self._monkeypatch, self._path, self._group = monkeypatch, path, torch.distributed.HashStore()
        store = torch.distributed.PrefixStore("group", torch.distributed.HashStore())
        self._uses = [common._Uses() for _ in range(2)]
        monkeypatch.setattr(common.ranks, "group", lambda: self._group)
        monkeypatch.setattr(common, "_of_torch", lambda _: lambda key, text: store.compare_set(key, "", text).decode())

    def become(self, rank: int) -> None:
        self._monkeypatch.setattr(common, "_uses", self._uses[rank])

    def begin(self, rank: int, told: bool = True, **args) -> None:
        """Makes a loader and takes a batch. ``told``: whether the group tells the rank, or numbers do."""
        self.become(rank)
        loader = make(self._path, shard_id=rank, num_shards=2, **{"random_shuffle": True} | args)
        loader._agreement = agreement.Agreement(is_certain=told)
        next(iter(loader))
        next(iter(loader))


@pytest.fixture
def ranks(monkeypatch, path):
    return Ranks(monkeypatch, path)


def test_other_seeds_are_an_error(ranks):
    ranks.begin(0, seed=12)
    text = "seed: expected the same on all ranks.*found 13 on rank 1 and 12 on rank 0.*give all ranks the same seed"
    with pytest.raises(ValueError, match=text):
        ranks.begin(1, seed=13)


def test_the_default_beside_a_seed(ranks):
    ranks.begin(1, seed=12)
    with pytest.raises(ValueError, match="found the default on rank 0 and 12 on rank 1"):
        ranks.begin(0)


def test_another_initial_fill_is_an_error(ranks):
    ranks.begin(0, initial_fill=8)
    with pytest.raises(ValueError, match="initial_fill: expected the same on all ranks.*found 16 on rank 1 and 8 on rank 0"):
        ranks.begin(1, initial_fill=16)


def test_what_may_differ(ranks):
    """The seed, where nothing is shuffled; several loaders with seeds of their own; loaders of other samples."""
    for rank in range(2):
        ranks.begin(rank, random_shuffle=False, seed=rank)
        ranks.begin(rank, random_shuffle=False, random_crop=["lat"], dims=["time", "lat"], window=[1, 1], arrays=["row"], seed=rank)
        for seed in (1, 2):
            ranks.begin(rank, seed=seed)
        ranks.begin(rank, roi_start=[rank], seed=rank)
    ranks.begin(0, seed=7, roi_end=[20])


def test_numbers_of_ranks_only_warn(ranks, caplog):
    """Several loaders may have ranks of their own in one group."""
    for rank in range(2):
        ranks.begin(rank, told=False, seed=rank)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "seed: expected the same on all ranks" in record.message and "unless these ranks don't divide" in record.message


def test_a_store_that_fails_is_no_error(ranks, monkeypatch):
    def fail(_key, _text):
        raise torch.distributed.DistStoreError("gone")

    monkeypatch.setattr(common, "_of_torch", lambda _: fail)
    for rank in range(2):
        ranks.begin(rank, seed=rank)


def test_jax_has_such_a_store(monkeypatch):
    class Client:
        def __init__(self):
            self.left = {}

        def key_value_set(self, key, text):
            if key in self.left:
                raise RuntimeError("ALREADY_EXISTS")
            self.left[key] = text

        def key_value_try_get(self, key):
            return self.left[key]

    class Distributed:
        class global_state:
            client = Client()

    monkeypatch.setitem(common.sys.modules, "jax._src.distributed", Distributed)
    _, leave = common._of_jax()
    assert [leave("a", "first"), leave("a", "second"), leave("b", "other")] == ["first", "first", "other"]


def operator(path, **args):
    from nvidia.dali.pipeline import Pipeline

    with Pipeline(batch_size=4, num_threads=1, device_id=None, seed=12):
        dali_zarr.zarr_reader(path=path, arrays=["n"], **{"num_shards": 2, "shard_id": 1} | args)


def dynamic(path, **args):
    from nvidia.dali.experimental import dynamic

    dynamic.readers.Zarr(path=str(path), arrays=["n"], **{"num_shards": 2, "shard_id": 1} | args)


@pytest.mark.parametrize("use", [operator, dynamic], ids=["pipeline", "dynamic"])
def test_readers_of_pipelines_and_of_the_dynamic_mode_only_warn(ranks, path, caplog, use):
    """DALI's examples give pipelines the seed 12 + rank, which the reader doesn't use."""
    for args, is_other in (({}, True), ({"random_shuffle": True}, False), ({"shuffle_after_epoch": True}, True)):
        caplog.clear()
        for rank in range(2):
            ranks.become(rank)
            use(path, shard_id=rank, seed=12 + rank if is_other else 12, **args)
        found = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len(found) == (is_other and bool(args))
        for text in found:
            assert "seed: expected the same on all ranks" in text and "found 13 on rank 1 and 12 on rank 0" in text


@pytest.mark.parametrize("seed", [None, 12])
@pytest.mark.parametrize(
    "use", [lambda path, **args: numbers(make(path, **args)), operator, dynamic], ids=["loader", "operator", "dynamic"],
)
def test_torchrun_without_a_group(path, monkeypatch, caplog, seed, use):
    """Ranks can't compare. One warning says so, if a seed was given."""
    monkeypatch.setattr(common, "_is_warned", False)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    given = {} if seed is None else {"seed": seed}
    for _ in range(2):
        use(path, random_shuffle=True, **given)
    found = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(found) == (seed is not None)
    for text in found:
        assert "seed: all ranks must have the same" in text and "rank 1 of 2 has 12" in text


RANK = """
import json, sys
import torch.distributed as dist
from dali_zarr.torch import Loader

path, rendezvous, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)
pair = dist.new_group([0, 1])
how = {"arrays": ["n"], "device": "cpu", "batch_size": 4, "host_memory_limit": "128MiB", "random_shuffle": True, "uneven": "exact"}
found = {}
if rank == 0:
    # Loaders that only one rank makes, of samples of its own and of all.
    others = [{"shard_id": 0, "num_shards": 1}, {"isel": {"time": slice(5)}}]
    found["alone"] = [len(list(Loader(path, seed=3, **how, **more))) for more in others]
found["equal"] = [n for batch in Loader(path, seed=12, **how) for n in batch["n"].tolist()]
dist.barrier()
for name, group in (("world", None), ("pair", pair)):
    try:
        list(Loader(path, seed=12 + rank, process_group=group, initial_fill=16, **how))
    except ValueError as error:
        found[name] = str(error)
    dist.barrier()
print(json.dumps(found))
dist.destroy_process_group()
"""


def test_processes(path, tmp_path):
    """By the store of a process group. A loader that only one rank makes waits for nobody."""
    processes = [start(RANK, path, tmp_path / "rendezvous", rank, imports="torch") for rank in range(2)]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    one, other = (json.loads(out.splitlines()[-1]) for out, _ in outputs)
    assert one["alone"] == [6, 1] and sorted(one["equal"] + other["equal"]) == list(range(STEPS))
    for name in ("world", "pair"):
        # The rank that comes second says it.
        (text,) = [found[name] for found in (one, other) if name in found]
        assert "seed: expected the same on all ranks" in text
