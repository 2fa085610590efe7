"""Loaders with a sampler: what it gives comes, in its order, as from torch's DataLoader; it is drawn lazily, and its errors come
where they belong."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator

import dali_zarr
import numpy as np
import pytest
from support.loaders import STEPS, fields, flat, make, numbers, write
from support.stores import Layout, write_array

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("samplers"))


def seeded(seed: int):
    return torch.Generator().manual_seed(seed)


RANDOM = {
    "sequential": lambda: SequentialSampler(range(STEPS)),
    "random": lambda: RandomSampler(range(STEPS), generator=seeded(1)),
    "with replacement": lambda: RandomSampler(range(STEPS), replacement=True, num_samples=40, generator=seeded(2)),
    "subset": lambda: SubsetRandomSampler([3, 1, 20, 7, 8, 22, 0], generator=seeded(3)),
    "weighted": lambda: WeightedRandomSampler([1.0] * 5 + [9.0] * 18, 31, generator=seeded(4)),
    "distributed": lambda: DistributedSampler(range(STEPS), num_replicas=2, rank=1, seed=5),
    "distributed, drop_last": lambda: DistributedSampler(range(STEPS), num_replicas=3, rank=0, seed=6, drop_last=True),
}


def of_torch(sampler, epochs: int, **how) -> list[list[list[int]]]:
    """What torch's DataLoader gives for the same numbers."""
    loader = DataLoader(TensorDataset(torch.arange(STEPS)), sampler=sampler, **how)
    found = []
    for epoch in range(epochs):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        found.append([batch.tolist() for (batch,) in loader])
    return found


@pytest.mark.parametrize("which", RANDOM)
@pytest.mark.parametrize("how", [{"batch_size": 4}, {"batch_size": 5, "drop_last": True}, {"batch_size": 1}], ids=str)
def test_as_torchs_dataloader(path, device, which, how):
    expected = of_torch(RANDOM[which](), 3, **how)
    loader = make(path, device, sampler=RANDOM[which](), **{"uneven": "repeat"} | how)
    found = []
    for epoch in range(3):
        if which.startswith("distributed"):
            loader.set_epoch(epoch)
        assert len(loader) == len(expected[epoch])
        found.append(numbers(loader))
        assert loader.epoch == epoch
    assert found == expected


def test_batch_samplers(path, device):
    """Batches of varying length, as lists, arrays, tensors and tuples; the reader's batch size is that of the largest."""
    batches = [[3, 1], np.array([22]), torch.tensor([0, 0, 5, 7]), (np.int32(4), torch.tensor(2)), range(3)]
    expected = [[3, 1], [22], [0, 0, 5, 7], [4, 2], [0, 1, 2]]
    loader = make(path, device, arrays=["n", "field"], batch_sampler=batches, uneven="repeat")
    for _ in range(2):
        got = list(loader)
        assert numbers(got) == expected and len(loader) == 5
        for batch, samples in zip(got, expected, strict=True):
            np.testing.assert_array_equal(batch["field"].cpu().numpy(), fields()[samples])
            assert batch.index.cpu().tolist() == [[n] for n in samples] and not batch.is_repeated.any()
            assert (batch.coords["time"] == np.datetime64("2020-01-01") + np.timedelta64(1, "h") * np.array(samples)).all()
    own = BatchSampler(RandomSampler(range(STEPS), generator=seeded(3)), batch_size=6, drop_last=False)
    loader = make(path, device, batch_size=None, batch_sampler=own, uneven="repeat")
    assert loader.batch_size == 6
    assert [len(batch) for batch in numbers(loader)] == [6, 6, 6, 5]


def test_padded_batches(path, device):
    (first, second) = make(path, device, sampler=[5, 4, 3, 2, 1, 0], pad_last_batch=True, uneven="repeat")
    assert first["n"].tolist() == [5, 4, 3, 2] and not first.is_repeated.any()
    assert second["n"].tolist() == [1, 0, 0, 0] and second.is_repeated.tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    "item", [3, np.int64(3), np.uint8(3), torch.tensor(3), torch.tensor([3])[0], np.array(3)], ids=lambda item: type(item).__name__,
)
def test_kinds_of_numbers(path, item):
    assert numbers(make(path, sampler=[item, 2, item], uneven="repeat")) == [[3, 2, 3]]


def test_starts_and_segments(tmp_path, device):
    """What ``return_index`` gives is accepted where numbers are: starts along dims, and with breaks (segment, start)."""
    data = np.arange(40 * 6, dtype="int32").reshape(40, 6)
    write_array(tmp_path, "a", data, layout=Layout((4, 3)), dims=("t", "x"))
    how = {"arrays": ["a"], "window": {"t": 3, "x": 2}, "step": {"t": 2, "x": 2}, "uneven": "repeat"}
    for more, columns in [({}, 2), ({"breaks": [11, 12, 25]}, 3)]:
        every = torch.cat([batch.index for batch in make(tmp_path, **how, **more)])
        assert every.shape[1] == columns
        chosen = [17, 0, 17, 5, len(every) - 1]
        for rows in (every[chosen], every[chosen].numpy(), [tuple(row) for row in every[chosen].tolist()]):
            loader = make(tmp_path, device, sampler=rows, **how, **more)
            found = list(loader)
            assert torch.cat([batch.index.cpu() for batch in found]).tolist() == every[chosen].tolist()
            for batch in found:
                for sample, (t, x) in zip(batch["a"].cpu().numpy(), batch.index.cpu().numpy()[:, -2:], strict=True):
                    np.testing.assert_array_equal(sample, data[t : t + 3, x : x + 2])
        with pytest.raises(IndexError, match=r"there is no sample that starts at \[.*1\]"):
            list(make(tmp_path, sampler=[every[0].tolist(), [*every[0].tolist()[:-1], 1]], **how, **more))
    with pytest.raises(ValueError, match="expected samples by 2 numbers each"):
        list(make(tmp_path, sampler=[[1, 2, 3]], **how))


def test_starts_from_a_table(tmp_path):
    write_array(tmp_path, "a", np.arange(40, dtype="int32"), layout=Layout((4,)), dims=("t",))
    starts = np.array([31, 5, 17, 5, 0])
    loader = make(tmp_path, arrays=["a"], window=2, starts=starts, sampler=[[17], [0], [31]], uneven="repeat")
    assert [batch["a"].tolist() for batch in loader] == [[[17, 18], [0, 1], [31, 32]]]
    loader = make(tmp_path, arrays=["a"], window=2, starts=starts, sampler=[4, 1, 3], uneven="repeat")
    assert [batch["a"].tolist() for batch in loader] == [[[0, 1], [5, 6], [5, 6]]]


class Counted:
    """An endless sampler that counts how much was drawn."""

    def __init__(self):
        self.drawn = 0

    def __iter__(self) -> Iterator[int]:
        for i in itertools.count():
            self.drawn += 1
            yield i * 7 % STEPS


def test_an_endless_sampler_is_drawn_lazily(path, device):
    sampler = Counted()
    loader = make(path, device, sampler=sampler, prefetch_queue_depth=3, uneven="repeat")
    assert sampler.drawn == 0 and "a sampler without a length" in repr(loader)
    with pytest.raises(TypeError, match="len: the sampler doesn't tell how many samples it gives"):
        len(loader)
    epoch = iter(loader)
    assert sampler.drawn == 0
    for i in range(50):
        assert next(epoch)["n"].tolist() == [(4 * i + k) * 7 % STEPS for k in range(4)]
        # The batch that was taken, those that are prepared, and four more.
        assert sampler.drawn <= 4 * (i + 1 + 3 + 4)
    before = sampler.drawn
    epoch.close()
    assert sampler.drawn == before
    assert next(iter(loader))["n"].tolist() == [0, 7, 14, 21], "an iteration begins anew"


@pytest.mark.parametrize("at", [0, 1, 6, 9, 30])
def test_errors_of_samplers_come_at_their_batch(path, at):
    def broken():
        for i in itertools.count():
            if i == at:
                raise ArithmeticError("out of numbers")
            yield i % STEPS

    class Sampler:
        __iter__ = staticmethod(broken)

    loader = make(path, sampler=Sampler(), uneven="repeat")
    for _ in range(2):
        found = []
        with pytest.raises(ArithmeticError, match="out of numbers"):
            found.extend(batch["n"].tolist() for batch in loader)
        assert found == [[(4 * b + k) % STEPS for k in range(4)] for b in range(at // 4)]


@pytest.mark.parametrize(
    ("bad", "kind", "says"),
    [
        (STEPS, IndexError, f"expected numbers of samples from 0 to {STEPS - 1}, but found {STEPS} as number 1 of the batch"),
        (-1, IndexError, "found -1 as number 1"),
        (2**70, IndexError, "64 bits"),
        (1.5, TypeError, "expected whole numbers of samples, or a row of return_index for each, but found"),
        ("7", TypeError, "but found '7'"),
        (True, TypeError, "but found True"),
        (None, TypeError, "but found None"),
    ],
    ids=str,
)
def test_what_is_no_sample(path, bad, kind, says):
    loader = make(path, sampler=[1, 2, 3, 4, 5, bad], uneven="repeat")
    found = []
    with pytest.raises(kind) as caught:
        found.extend(batch["n"].tolist() for batch in loader)
    assert found == [[1, 2, 3, 4]] and says in str(caught.value), caught.value


def test_batches_that_are_too_large_or_empty(path):
    for batch, says in [(range(5), "batches of 1 to 4 samples, but found one of 5"), ([], "found one of 0")]:
        with pytest.raises(ValueError, match=says):
            list(make(path, batch_sampler=[[1], batch], uneven="repeat"))


@pytest.mark.parametrize(
    ("how", "kind", "says"),
    [
        ({"sampler": [1], "batch_sampler": [[1]]}, ValueError, "expected sampler or batch_sampler, but found both"),
        ({"sampler": 7}, TypeError, "sampler: expected an iterable of numbers of samples, but found 7"),
        ({"batch_sampler": [[1]], "batch_size": None}, ValueError, "batch_size: expected the size of the largest batch"),
        ({"batch_sampler": [[1]], "drop_last": True}, ValueError, "drop_last: expected none with batch_sampler"),
        ({"sampler": [1], "num_shards": 2, "shard_id": 0}, ValueError, "shard_id: expected none with a sampler"),
        ({"sampler": [1], "uneven": "exact"}, ValueError, "uneven: expected none with a sampler"),
        ({"sampler": [1], "random_shuffle": True}, ValueError, "random_shuffle: expected none in the caller's order"),
        ({"sampler": [1], "initial_fill": 4}, ValueError, "initial_fill: expected none"),
        ({"sampler": [1], "weights": [1.0] * STEPS}, ValueError, "weights: expected none"),
        ({"sampler": [1], "stick_to_shard": True}, ValueError, "stick_to_shard: expected none"),
    ],
    ids=str,
)
def test_contradictions(path, how, kind, says):
    with pytest.raises(kind) as caught:
        make(path, **{"uneven": "repeat"} | how)
    assert says in str(caught.value), caught.value


# States.


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


def test_a_batch_that_nobody_takes_may_fail(tmp_path, device):
    """It was drawn ahead in an iteration that was broken off."""
    write_array(tmp_path, "n", np.arange(20, dtype="int64"), layout=Layout((1,)), dims=("t",), codec="zstd")
    (tmp_path / "n" / "c" / "7").write_bytes(b"no zstd")
    orders = [[1, 7], [2, 3], [4, 7, 5], [6]]

    class Sampler:
        def __iter__(self):
            return iter(orders.pop(0))

    loader = make(tmp_path, device, sampler=Sampler(), batch_size=1, uneven="repeat")
    assert next(iter(loader))["n"].tolist() == [1]
    assert numbers(loader) == [[2], [3]]
    found = []
    with pytest.raises(RuntimeError, match="c/7"):
        found.extend(batch["n"].tolist() for batch in loader)
    assert found == [[4]]
    assert numbers(loader) == [[6]]


def test_a_second_iteration_ends_the_first(path):
    loader = make(path, sampler=range(STEPS), uneven="repeat")
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(second)["n"].tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="another iteration over this loader has begun"):
        next(first)
    assert flat(numbers(second)) == list(range(4, STEPS))


# What composes.


def test_with_random_windows(tmp_path):
    """Places of random windows depend on the seed, the epoch and the place in it, so they come again after a restore."""
    write_array(tmp_path, "a", np.arange(1000, dtype="int32").reshape(10, 100), layout=Layout((1, 100)), dims=("t", "x"))
    how = {"arrays": ["a"], "window": {"t": 0, "x": 5}, "random_crop": ["x"], "uneven": "repeat", "batch_size": 3}

    def starts(batches):
        return [batch.index[:, 1].tolist() for batch in batches]

    loader = make(tmp_path, sampler=[1] * 12, **how)
    epochs = [starts(loader), starts(loader)]
    assert epochs[0] != epochs[1] and len(set(flat(epochs[0]))) > 6
    other = make(tmp_path, sampler=[1] * 12, **how)
    begun = iter(other)
    next(begun)
    next(begun)
    third = make(tmp_path, sampler=[1] * 12, **how)
    third.load_state_dict(other.state_dict())
    assert starts(third) == epochs[0][2:] and starts(third) == epochs[1]
    with pytest.raises(ValueError, match="random_crop: starts along .* are drawn at random"):
        next(iter(make(tmp_path, sampler=[[1, 5]], **how)))


def test_with_several_stores_masks_and_statistics(tmp_path):
    data = [np.arange(n * 3, dtype="float32").reshape(n, 3) for n in (7, 5)]
    for i, values in enumerate(data):
        write_array(tmp_path / f"{i}", "a", values, layout=Layout((2, 3)), dims=("t", "x"))
    loader = make(
        [tmp_path / "0", tmp_path / "1"], arrays=["a"], window=4, step=1, out_of_bounds_policy="pad", fill_value=-1, mean=2,
        stddev=3, cross_stores=False, pad_before=2, return_mask=True, sampler=[9, 0, 4, 9], uneven="repeat", batch_size=2,
    )
    every = [
        np.stack([(values[t] - 2) / 3 if 0 <= t < len(values) else np.full(3, -1) for t in range(start, start + 4)])
        for values in data for start in range(-2, len(values) - 3)
    ]
    found = torch.cat([batch["a"] for batch in loader]).numpy()
    np.testing.assert_allclose(found, np.stack([every[n] for n in [9, 0, 4, 9]]).astype("float32"))
    masks = torch.cat([batch["mask"] for batch in loader]).numpy()
    np.testing.assert_array_equal(masks, (found != -1).all(axis=2))


def test_ragged_rows(tmp_path):
    lengths = [3, 0, 5, 2, 4]
    ends = np.cumsum(lengths)
    write_array(tmp_path, "x", np.arange(ends[-1], dtype="int32"), layout=Layout((3,)), dims=("i",))
    write_array(tmp_path, "ends", ends, dims=("row",))
    loader = make(tmp_path, arrays=["x"], ragged_ends="ends", sampler=[4, 1, 2, 4, 0], batch_size=2, uneven="repeat")
    rows = [np.arange(end - n, end).tolist() for end, n in zip(ends, lengths, strict=True)]
    assert [row.tolist() for batch in loader for row in batch["x"].unbind()] == [rows[n] for n in [4, 1, 2, 4, 0]]


def test_explain_says_whose_order_it_is(path):
    explained = dali_zarr.explain(path, arrays=["field"], batch_size=2, order="pushed")
    assert explained["order"] == "pushed" and "order: the caller's" in str(explained)
    assert explained["reads"]["shuffled"]["reads_per_chunk"] >= explained["reads"]["in_order"]["reads_per_chunk"]
    with pytest.raises(ValueError, match="random_shuffle: expected none in the caller's order"):
        dali_zarr.explain(path, arrays=["field"], order="pushed", random_shuffle=True)


def test_chunks_are_read_once(path):
    """In an order of the caller's that comes back to chunks soon, and with data that fit in memory in any order."""
    loader = make(path, arrays=["field"], sampler=np.random.default_rng(1).permutation(STEPS), uneven="repeat", batch_size=1)
    list(loader)
    chunks = 12 * 1 * 1 * 2
    assert loader.counters()["chunks_read"] == chunks
