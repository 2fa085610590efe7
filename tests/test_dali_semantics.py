"""Which sample comes when, compared with DALI's own numpy reader, which reads files of the same values in the same process.

What DALI's reader does is the reference for shards, padding, the size of an epoch, both modes, DALI's iterators and their
checkpoints. In order, every sample is compared; shuffled, the samples of each epoch.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest
from support.stores import Layout, write_array

# Not a multiple of any number of shards or samples in a batch below.
SAMPLES = 23
EPOCHS = 3

SHARDS = [1, 2, 3, 5]
POLICIES = ["FILL", "PARTIAL", "DROP"]
FLAGS = [False, True]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A store of numbered samples in chunks of 4, and a folder with a file for each."""
    base = tmp_path_factory.mktemp("semantics")
    numbers = np.arange(SAMPLES, dtype=np.int32)
    write_array(base / "n.zarr", "n", numbers, layout=Layout((4,)), dims=("time",))
    (base / "files").mkdir()
    for number in numbers:
        np.save(base / "files" / f"{number:03}.npy", number)
    return base


def zarr_reader(data: Path, **args):
    import dali_zarr  # noqa: F401
    from nvidia.dali import fn

    return fn.zarr_reader(path=str(data / "n.zarr"), arrays=["n"], host_memory_limit=64 << 20, **args)


def numpy_reader(data: Path, **args):
    from nvidia.dali import fn

    return fn.readers.numpy(file_root=str(data / "files"), file_filter="*.npy", **args)


READERS = {"zarr": zarr_reader, "numpy": numpy_reader}


def build(data: Path, readers, batch_size: int, checkpoint: bytes | None = None, checkpointing: bool = False, **args):
    """A pipeline of these readers, each of which has its own name."""
    from nvidia.dali.pipeline import Pipeline

    pipe = Pipeline(
        batch_size=batch_size, num_threads=1, device_id=None, prefetch_queue_depth=1, enable_checkpointing=checkpointing,
        checkpoint=checkpoint,
    )
    with pipe:
        pipe.set_outputs(*(READERS[name](data, name=name, **args) for name in readers))
    pipe.build()
    return pipe


def values(out) -> list[int]:
    return out.as_array().reshape(-1).tolist()


def held(shard: int, shards: int) -> int:
    return SAMPLES * (shard + 1) // shards - SAMPLES * shard // shards


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("stick", FLAGS)
@pytest.mark.parametrize("pad", FLAGS)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_in_order(data, shards, stick, pad, batch_size):
    """Both readers are in one pipeline, and each run gives the same samples."""
    for shard in range(shards):
        pipe = build(
            data, READERS, batch_size, num_shards=shards, shard_id=shard, stick_to_shard=stick, pad_last_batch=pad,
        )
        assert pipe.reader_meta("zarr") == pipe.reader_meta("numpy")
        assert pipe.epoch_size("zarr") == pipe.epoch_size("numpy") == (-(-SAMPLES // shards) * shards if pad else SAMPLES)
        for _ in range(-(-EPOCHS * (SAMPLES // shards + 1) // batch_size) + 1):
            ours, theirs = pipe.run()
            assert values(ours) == values(theirs)


@pytest.mark.parametrize("order", [{"random_shuffle": True}, {"shuffle_after_epoch": True}], ids=["random", "after-epoch"])
@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("stick", FLAGS)
@pytest.mark.parametrize("pad", FLAGS)
def test_shuffled(data, order, shards, stick, pad):
    """In each epoch a reader has as many different samples as DALI's, and all readers together have all. If each keeps to its
    shard, it has the same samples in each epoch; DALI's reader shuffles the files before it divides them."""
    if stick and "shuffle_after_epoch" in order:
        pytest.skip("both readers refuse it")
    common = {"num_shards": shards, "stick_to_shard": stick, "pad_last_batch": pad, "initial_fill": 6, **order}
    pipes = [build(data, READERS, 1, shard_id=shard, **common) for shard in range(shards)]
    own: dict[tuple[str, int], set[int]] = {}
    for epoch in range(EPOCHS):
        together = {name: [] for name in READERS}
        for shard, pipe in enumerate(pipes):
            assert pipe.reader_meta("zarr") == pipe.reader_meta("numpy")
            now = shard if pipe.reader_meta("zarr")["stick_to_shard"] else (shard + epoch) % shards
            count = -(-SAMPLES // shards) if pad else held(now, shards)
            runs = [[values(out)[0] for out in pipe.run()] for _ in range(count)]
            found = dict(zip(READERS, zip(*runs, strict=True), strict=True))
            assert len(set(found["zarr"])) == len(set(found["numpy"])) == held(now, shards)
            for name, numbers in found.items():
                assert not stick or own.setdefault((name, shard), set(numbers)) == set(numbers)
                together[name] += set(numbers)
        assert sorted(together["zarr"]) == sorted(together["numpy"]) == list(range(SAMPLES))


def torch_epochs(pipes, reader: str, policy: str, auto_reset: bool):
    pytest.importorskip("torch")
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    it = DALIGenericIterator(pipes, ["n"], reader_name=reader, last_batch_policy=LastBatchPolicy[policy], auto_reset=auto_reset)
    return it, lambda batch: [one["n"].reshape(-1).tolist() for one in batch]


def jax_epochs(pipes, reader: str, policy: str, auto_reset: bool):
    """DALI's iterator for JAX joins the batches of all pipelines, and has no partial batches."""
    pytest.importorskip("jax")
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.jax import DALIGenericIterator

    it = DALIGenericIterator(pipes, ["n"], reader_name=reader, last_batch_policy=LastBatchPolicy[policy], auto_reset=auto_reset)
    return it, lambda batch: [np.asarray(batch["n"]).reshape(-1).tolist()]


def iterate(data: Path, kind, reader: str, shards: int, of: int, policy: str, auto_reset: bool, **args):
    """What a framework's iterator over the first ``of`` shards gives: its length and its batches, epoch by epoch."""
    pipes = [build(data, [reader], 4, num_shards=shards, shard_id=shard, **args) for shard in range(of)]
    it, batch_of = kind(pipes, reader, policy, auto_reset)
    epochs = []
    for _ in range(EPOCHS):
        epochs.append((len(it), [batch_of(batch) for batch in it]))
        if not auto_reset:
            it.reset()
    return epochs


@pytest.mark.parametrize(("shards", "of"), [(1, 1), (3, 1), (3, 3), (4, 2)])
@pytest.mark.parametrize("stick", FLAGS)
@pytest.mark.parametrize("pad", FLAGS)
@pytest.mark.parametrize("policy", POLICIES)
def test_iterators_for_pytorch(data, shards, of, stick, pad, policy):
    common = {"shards": shards, "of": of, "policy": policy, "stick_to_shard": stick, "pad_last_batch": pad, "auto_reset": pad}
    ours, theirs = (iterate(data, torch_epochs, reader, **common) for reader in READERS)
    assert ours == theirs and all(batches for _, batches in ours)


@pytest.mark.parametrize("stick", FLAGS)
@pytest.mark.parametrize("pad", FLAGS)
@pytest.mark.parametrize("policy", ["FILL", "DROP"])
def test_iterators_for_jax(data, stick, pad, policy):
    common = {"shards": 3, "of": 1, "policy": policy, "stick_to_shard": stick, "pad_last_batch": pad, "auto_reset": not pad}
    ours, theirs = (iterate(data, jax_epochs, reader, **common) for reader in READERS)
    assert ours == theirs and all(batches for _, batches in ours)


@pytest.mark.parametrize("after", [1, 3, 7])
@pytest.mark.parametrize("stick", FLAGS)
@pytest.mark.parametrize("pad", FLAGS)
def test_checkpoints_of_iterators(data, after, stick, pad):
    """An iterator that goes on from a checkpoint gives what is left of its epoch, and then the next one."""
    args = {"num_shards": 2, "shard_id": 1, "stick_to_shard": stick, "pad_last_batch": pad}

    def rest(reader: str) -> list[list[list[int]]]:
        it, batch_of = torch_epochs([build(data, [reader], 4, checkpointing=True, **args)], reader, "FILL", True)
        stream = itertools.chain.from_iterable(iter(it) for _ in itertools.count())
        for _ in range(after):
            next(stream)
        (checkpoint,) = it.checkpoints()
        it, _ = torch_epochs([build(data, [reader], 4, checkpoint, True, **args)], reader, "FILL", True)
        return [[batch_of(batch) for batch in it] for _ in range(2)]

    ours, theirs = map(rest, READERS)
    assert ours == theirs


@functools.cache
def dynamic_readers():
    import dali_zarr  # noqa: F401
    import nvidia.dali.experimental.dynamic as ndd

    return {
        "zarr": lambda data, **args: ndd.readers.Zarr(path=str(data / "n.zarr"), arrays=["n"], host_memory_limit=64 << 20, **args),
        "numpy": lambda data, **args: ndd.readers.Numpy(file_root=str(data / "files"), file_filter="*.npy", **args),
    }


def dynamic_epoch(reader, batch_size: int | None) -> list[list[int]]:
    import nvidia.dali.experimental.dynamic as ndd

    found = []
    for (batch,) in reader.next_epoch(batch_size=batch_size):
        found.append(np.asarray(batch if batch_size is None else ndd.as_tensor(batch)).reshape(-1).tolist())
    return found


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("stick", FLAGS)
@pytest.mark.parametrize("pad", FLAGS)
@pytest.mark.parametrize("batch_size", [None, 4])
def test_dynamic_mode(data, shards, stick, pad, batch_size):
    """Without padding, all ranks together have each sample once in each epoch, whatever the rank has itself."""
    args = {"num_shards": shards, "stick_to_shard": stick, "pad_last_batch": pad}
    ranks = [{name: make(data, shard_id=rank, **args) for name, make in dynamic_readers().items()} for rank in range(shards)]
    for _ in range(EPOCHS):
        epoch = [{name: dynamic_epoch(reader, batch_size) for name, reader in rank.items()} for rank in ranks]
        assert all(rank["zarr"] == rank["numpy"] for rank in epoch)
        if batch_size is None and not pad:
            assert sorted(n for rank in epoch for batch in rank["zarr"] for n in batch) == list(range(SAMPLES))
    for rank in ranks:
        assert rank["zarr"].get_metadata() == rank["numpy"].get_metadata()


def test_dynamic_mode_shuffled(data):
    args = {"num_shards": 3, "random_shuffle": True, "initial_fill": 6}
    ranks = [{name: make(data, shard_id=rank, **args) for name, make in dynamic_readers().items()} for rank in range(3)]
    for _ in range(EPOCHS):
        for name in READERS:
            epoch = [dynamic_epoch(rank[name], None) for rank in ranks]
            assert sorted(n for rank in epoch for batch in rank for n in batch) == list(range(SAMPLES))
