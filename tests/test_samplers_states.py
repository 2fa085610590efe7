"""States, copies and refreshed loaders with a sampler: what comes after them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from support.loaders import STEPS, flat, make, numbers, write

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from torch.utils.data import BatchSampler, DistributedSampler  # noqa: E402


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("samplers"))


class Stateful:
    """A sampler with a state, as torchdata's: it counts what it gave."""

    def __init__(self, seed: int):
        self.seed, self.epoch, self.given, self.begins = seed, 0, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 19

    def __iter__(self) -> Iterator[int]:
        begin, self.begins = self.begins, 0
        self.given = begin
        for n in np.random.default_rng([self.seed, self.epoch]).integers(0, STEPS, 19)[begin:]:
            self.given += 1
            yield int(n)

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.begins = state["given"]


class StatefulIterator:
    """A sampler whose iterators have states."""

    def __init__(self, seed: int):
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        return _Iterator(np.random.default_rng([self.seed, self.epoch]).integers(0, STEPS, 19).tolist())


class _Iterator:
    def __init__(self, values):
        self.values, self.at = values, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.values):
            raise StopIteration
        self.at += 1
        return self.values[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


STATES = {
    "list": lambda: list(np.random.default_rng(1).integers(0, STEPS, 19)),
    "distributed": lambda: DistributedSampler(range(STEPS), num_replicas=1, rank=0, seed=5),
    "stateful": lambda: Stateful(3),
    "stateful iterator": lambda: StatefulIterator(3),
}


@pytest.mark.parametrize("which", STATES)
@pytest.mark.parametrize("batched", [False, True], ids=["sampler", "batch_sampler"])
def test_a_state_at_every_step(path, device, which, batched):
    """From each batch of two epochs, the next iteration is the rest of the epoch, and the one after it is whole."""

    def loader():
        sampler = STATES[which]()
        how = {"batch_sampler": BatchSampler(sampler, 3, False)} if batched else {"sampler": sampler, "batch_size": 3}
        return make(path, device, uneven="repeat", prefetch_queue_depth=2, **how)

    straight = loader()
    epochs = []
    for epoch in range(3):
        straight.set_epoch(epoch)
        epochs.append(numbers(straight))
    assert which == "list" or epochs[0] != epochs[1]
    running = loader()
    for epoch in range(2):
        running.set_epoch(epoch)
        for step, _ in enumerate(running, 1):
            other = loader()
            other.load_state_dict(pickle.loads(pickle.dumps(running.state_dict())))
            rest = epochs[epoch][step:]
            assert other.epoch == epoch + (not rest)
            if rest:
                assert numbers(other) == rest, step
            other.set_epoch(epoch + 1)
            assert numbers(other) == epochs[epoch + 1], step


def test_states_with_other_batches_and_ranks(path):
    """A place is a number of samples: batches may have another size, and a DistributedSampler other ranks."""

    def loader(batch_size, ranks=1, rank=0):
        sampler = DistributedSampler(range(24), num_replicas=ranks, rank=rank, seed=7)
        samples = [n % STEPS for n in sampler]  # only for the length
        assert len(samples) == 24 // ranks
        return make(path, sampler=Modulo(sampler), batch_size=batch_size, uneven="repeat")

    whole = flat(numbers(loader(4)))
    first = loader(4)
    epoch = iter(first)
    for _ in range(3):
        next(epoch)
    other = loader(3)
    other.load_state_dict(first.state_dict())
    assert flat(numbers(other)) == whole[12:]
    states = first.state_dict()
    found = []
    for rank in range(2):
        other = loader(3, 2, rank)
        other.load_state_dict(states)
        found.append(flat(numbers(other)))
    assert [n for pair in zip(*found, strict=True) for n in pair] == whole[12:]
    other = loader(3, 8, 0)
    with pytest.raises(ValueError, match="8 ranks can't go on"):
        other.load_state_dict(states)
        next(iter(other))


class Modulo:
    """A DistributedSampler of more samples than there are."""

    def __init__(self, sampler):
        self.sampler, self.num_replicas = sampler, sampler.num_replicas

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        return (n % STEPS for n in self.sampler)


def test_states_of_other_loaders_are_refused(path):
    plain, drawn = make(path), make(path, sampler=[1, 2], uneven="repeat")
    with pytest.raises(ValueError, match="expected the state of a loader with a sampler"):
        drawn.load_state_dict(plain.state_dict())
    with pytest.raises(ValueError, match="order: "):
        plain.load_state_dict(drawn.state_dict())
    other = make(path, sampler=[1, 2], arrays=["row"], uneven="repeat")
    with pytest.raises(ValueError, match="a reader of other samples"):
        other.load_state_dict(drawn.state_dict())
    assert numbers(drawn) == [[1, 2]]


def test_copies_go_on_and_refreshed_loaders_begin_anew(path):
    loader = make(path, sampler=[5, 4, 3, 2, 1, 0], batch_size=2, uneven="repeat")
    epoch = iter(loader)
    next(epoch)
    for made in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert numbers(made) == [[3, 2], [1, 0]]
        assert numbers(made) == [[5, 4], [3, 2], [1, 0]]
    assert next(epoch)["n"].tolist() == [3, 2]
    loader.refresh()
    with pytest.raises(RuntimeError, match="it was refreshed"):
        next(epoch)
    assert numbers(loader) == [[5, 4], [3, 2], [1, 0]]
