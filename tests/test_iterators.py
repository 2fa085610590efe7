"""DALIGenericIterator with reader_name: epochs end where they should under each policy, on one shard and on two."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.pipelines import build
from support.stores import Layout, write_array

# The iterator for PyTorch is the one that people use; without PyTorch there is nothing to iterate with.
torch = pytest.importorskip("torch", reason="DALIGenericIterator needs PyTorch")

STEPS = 11
BATCH = 4


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    base = tmp_path_factory.mktemp("iterators")
    values = np.arange(STEPS * 6, dtype=np.float32).reshape(STEPS, 2, 3)
    write_array(base, "a", values, layout=Layout((3, 2, 3)), dims=("time", "lat", "lon"))
    write_array(base, "n", np.arange(STEPS, dtype=np.int64), layout=Layout((4,)), dims=("time",))
    return base


def iterator(path, device, policy, shards=1, shard=0, auto_reset=True, **args):
    """The iterator over one shard, and its pipeline."""
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    pipe = build(device, BATCH, path=path, arrays=["a", "n"], num_shards=shards, shard_id=shard, **args)
    return DALIGenericIterator(
        [pipe], ["a", "n"], reader_name="reader", last_batch_policy=LastBatchPolicy[policy], auto_reset=auto_reset,
    )


def numbers(it) -> list[list[int]]:
    """One epoch: the sample numbers of each batch, after a look at the values."""
    out = []
    for (batch,) in it:
        a, n = batch["a"].cpu(), batch["n"].cpu()
        assert a.shape[1:] == (2, 3) and a.dtype == torch.float32 and n.dtype == torch.int64
        assert torch.equal(a[:, 0, 0], 6.0 * n.reshape(-1).float())
        out.append(n.reshape(-1).tolist())
    return out


def flat(epoch: list[list[int]]) -> list[int]:
    """The sample numbers of an epoch without its batches."""
    return [n for batch in epoch for n in batch]


@pytest.mark.parametrize("pad", [False, True])
def test_fill(path, device, pad):
    """FILL: every batch is full; the last one is filled up, with the last sample or with the next epoch's first."""
    it = iterator(path, device, "FILL", pad_last_batch=pad)
    epoch = numbers(it)
    assert [len(b) for b in epoch] == [BATCH] * math.ceil(STEPS / BATCH)
    assert flat(epoch) == [*range(STEPS), STEPS - 1 if pad else 0]


@pytest.mark.parametrize("pad", [False, True])
def test_drop(path, device, pad):
    """DROP: the last batch, not full, is left out."""
    epoch = numbers(iterator(path, device, "DROP", pad_last_batch=pad))
    assert flat(epoch) == list(range(8))


@pytest.mark.parametrize("pad", [False, True])
def test_partial(path, device, pad):
    """PARTIAL: each sample exactly once; the last batch is shorter."""
    it = iterator(path, device, "PARTIAL", pad_last_batch=pad)
    assert [len(b) for b in numbers(it)] == [4, 4, 3]
    if pad:
        for _ in range(3):
            assert flat(numbers(it)) == list(range(STEPS))


@pytest.mark.parametrize("order", [{}, {"random_shuffle": True, "seed": 3}], ids=["in-order", "shuffled"])
@pytest.mark.parametrize("stick", [False, True])
def test_two_shards(path, device, order, stick):
    """Two shards side by side, three epochs: each sample once per epoch with PARTIAL and padding."""
    its = [
        iterator(path, device, "PARTIAL", shards=2, shard=s, pad_last_batch=True, stick_to_shard=stick, **order)
        for s in range(2)
    ]
    for _ in range(3):
        halves = [numbers(it) for it in its]
        assert len(halves[0]) == len(halves[1]), "all shards have equally many batches"
        assert sorted(flat(halves[0]) + flat(halves[1])) == list(range(STEPS))


@pytest.mark.parametrize("policy", ["FILL", "DROP"])
def test_two_shards_stay_in_step(path, device, policy):
    its = [iterator(path, device, policy, shards=2, shard=s, pad_last_batch=True) for s in range(2)]
    for _ in range(2):
        counts = [len(numbers(it)) for it in its]
        assert counts == ([2, 2] if policy == "FILL" else [1, 1])


def test_length(path, device):
    """len() is the number of batches in an epoch."""
    it = iterator(path, device, "PARTIAL", pad_last_batch=True)
    assert len(it) == 3
    assert len(numbers(it)) == 3


def test_reset_by_hand(path, device):
    """Without auto_reset, StopIteration comes once per epoch and reset() starts the next."""
    it = iterator(path, device, "PARTIAL", pad_last_batch=True, auto_reset=False)
    for _ in range(2):
        assert flat(numbers(it)) == list(range(STEPS))
        it.reset()


def test_tensors_outlive_the_pipeline(path, device):
    """What torch holds stays valid after further batches, and after the pipeline is gone."""
    it = iterator(path, device, "FILL")
    batches = [{k: v.clone() for k, v in next(it)[0].items()}]
    kept = next(it)[0]
    copy = {k: v.clone() for k, v in kept.items()}
    del it
    assert all(torch.equal(kept[k], copy[k]) for k in kept)
    assert batches[0]["n"].reshape(-1).tolist() == [0, 1, 2, 3]
