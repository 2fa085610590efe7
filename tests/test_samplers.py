"""Loaders with a sampler: what it gives comes, in its order, as from torch's DataLoader; it is drawn lazily, and its errors come
where they belong."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

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


@pytest.mark.parametrize("batches", range(1, 9))
@pytest.mark.parametrize("drawn", ["sampler", "batch_sampler"])
def test_the_first_of_several_errors_is_raised(path, drawn, batches):
    """Batches are drawn and pushed several at a time. What is wrong with a batch comes before an error of the sampler, wherever in
    these the batch is."""
    for bad, kind, says in [(STEPS, IndexError, f"but found {STEPS} as number 2"), ("7", TypeError, "found '7'")]:

        def broken(bad=bad):
            yield from [i % STEPS for i in range(4 * batches)]
            yield from [1, 2, bad, 3]
            yield 0
            raise ArithmeticError("out of numbers")

        def in_batches(broken=broken):
            numbers = broken()
            while True:
                yield list(itertools.islice(numbers, 4))

        class Sampler:
            __iter__ = staticmethod(broken if drawn == "sampler" else in_batches)

        loader = make(path, **{drawn: Sampler()}, batch_size=4, uneven="repeat")
        for _ in range(2):
            found = []
            with pytest.raises(kind, match=says):
                found.extend(batch["n"].tolist() for batch in loader)
            assert found == [[(4 * b + k) % STEPS for k in range(4)] for b in range(batches)]


def test_samples_that_numpy_gives(path):
    for kind in ("int64", "int32", "uint64", "int8"):
        order = np.random.default_rng(2).permutation(STEPS).astype(kind)
        assert flat(numbers(make(path, sampler=order, uneven="repeat"))) == order.tolist()
        mixed = [int(one) if i % 3 else one for i, one in enumerate(order)]
        assert flat(numbers(make(path, sampler=mixed, uneven="repeat"))) == order.tolist()


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
