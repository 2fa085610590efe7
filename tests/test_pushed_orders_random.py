"""Random orders of callers against NumPy: samplers, streams and data sets of random readers, with errors, breaks, restores, copies
and closings at any batch. DALI_ZARR_EXAMPLES=2000 searches further."""

from __future__ import annotations

import copy
import os
import pickle
import queue
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.stores import Layout, write_array

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from dali_zarr.torch import Dataset, Loader  # noqa: E402

CASES = int(os.environ.get("DALI_ZARR_EXAMPLES", "40"))
STEPS, WIDTH = 37, 5
DATA = np.random.default_rng(7).standard_normal((STEPS, WIDTH)).astype("float32")
LENGTHS = np.random.default_rng(8).integers(0, 6, 15)
ROWS = np.arange(LENGTHS.sum(), dtype="int32")


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("orders")
    for name, layout, codec in [
        ("rows", Layout((1, WIDTH)), "zstd"), ("blocks", Layout((6, 3)), "blosc-lz4-shuffle"),
        ("whole", Layout((STEPS, WIDTH)), "gzip"),
        ("shards", Layout((2, WIDTH), shards=(8, WIDTH)), "none"),
    ]:
        write_array(base, name, DATA, layout=layout, codec=codec, dims=("t", "x"))
    write_array(base, "ragged", ROWS, layout=Layout((4,)), dims=("i",))
    write_array(base, "ends", np.cumsum(LENGTHS), dims=("row",))
    return base


class Reader:
    """A random reader: its arguments, its number of samples, and what they are."""

    def __init__(self, chance: random.Random, path: Path, device: str):
        self.name = chance.choice(["rows", "blocks", "whole", "shards", "ragged"])
        how: dict[str, Any] = {"arrays": [self.name], "host_memory_limit": chance.choice(["16MiB", "128MiB"])}
        if device == "gpu":
            how["device_memory_limit"] = "256MiB"
        if chance.random() < 0.7:
            how["prefetch_queue_depth"] = chance.randint(1, 4)
        if self.name == "ragged":
            ends = np.cumsum(LENGTHS)
            self.samples = len(LENGTHS)
            self.expected: Callable[[int], np.ndarray] = lambda k: ROWS[ends[k] - LENGTHS[k] : ends[k]]
            how["ragged_ends"] = "ends"
        else:
            window, step = chance.randint(1, 6), chance.randint(1, 3)
            reach, pads = chance.choice([0, 4]), chance.random() < 0.4
            how |= {"window": {"t": window}, "step": {"t": step}}
            if reach:
                how["offsets"] = [reach]
            if pads:
                how |= {"out_of_bounds_policy": "pad", "fill_value": -1}
                how |= {"pad_before": {"t": window - 1}, "pad_after": {"t": window - 1}}
                before, last = window - 1, STEPS - 1
                starts = range(-before - reach, last - reach + 1, step)
            else:
                starts = range(0, STEPS - window - reach + 1, step)
            padded = np.pad(DATA, ((window, window), (0, 0)), constant_values=-1)
            self.samples = len(starts)
            self.expected = lambda k: padded[(at := starts[k] + reach + window) : at + window]
        self.how = how | {"device": device}
        self.path = path

    def check(self, batch: Any, numbers: list[int]) -> None:
        value = next(iter(batch.values()))
        found = list(value.unbind()) if self.name == "ragged" else list(value)
        assert len(found) == len(numbers)
        for one, number in zip(found, numbers, strict=True):
            np.testing.assert_array_equal(one.cpu().numpy(), self.expected(number))

    def check_sample(self, sample: Any, number: int) -> None:
        np.testing.assert_array_equal(next(iter(sample.values())).cpu().numpy(), self.expected(number))


class Broken(Exception):
    """What a random sampler raises."""


class Scripted:
    """A random sampler, or batch sampler: a function of the seed and the epoch. It may fail, and it may have a state."""

    def __init__(self, seed: int, samples: int, batches: int, fails: dict[int, int]):
        self.seed, self.samples, self.size, self.fails = seed, samples, batches, fails
        self.epoch, self.begins, self.given = 0, 0, 0

    def values(self, epoch: int) -> list[Any]:
        chance = random.Random(self.seed * 1000 + epoch)
        length = chance.randint(0, 40)
        if not self.size:
            return [chance.randrange(self.samples) for _ in range(length)]
        return [[chance.randrange(self.samples) for _ in range(chance.randint(1, self.size))] for _ in range(length)]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        begin, self.begins = self.begins, 0
        self.given = begin
        for value in self.values(self.epoch)[begin:]:
            if self.fails.get(self.epoch) == self.given:
                raise Broken
            self.given += 1
            yield value
        if self.fails.get(self.epoch, -1) >= self.given:
            raise Broken


class WithState(Scripted):
    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begins = state["given"]


def batches_of(sampler: Scripted, epoch: int, size: int, drop_last: bool, skipped: int = 0) -> tuple[list[list[int]], bool]:
    """The batches of an epoch, after those that a restored loader skips; and whether an error follows."""
    values = sampler.values(epoch)
    fails = sampler.fails.get(epoch)
    if fails is not None:
        values = values[:fails]
    if sampler.size:
        return values[skipped:], fails is not None
    values = values[skipped:]
    found = [values[i : i + size] for i in range(0, len(values), size)]
    if found and len(found[-1]) < size and (drop_last or fails is not None):
        found.pop()
    return found, fails is not None


def run_loader(chance: random.Random, reader: Reader, seed: int) -> None:
    is_batched, drop_last = chance.random() < 0.4, False
    sizes = [chance.randint(1, 5)]
    fails = {epoch: chance.randrange(40) for epoch in range(8) if chance.random() < 0.2}
    kind = chance.choice([Scripted, WithState])
    if not is_batched:
        drop_last = chance.random() < 0.3

    def made() -> Loader:
        sampler = kind(seed, reader.samples, sizes[0] if is_batched else 0, fails)
        how = {"batch_sampler": sampler} if is_batched else {"sampler": sampler, "drop_last": drop_last}
        return Loader(reader.path, batch_size=sizes[0], **how, **reader.how)

    script = kind(seed, reader.samples, sizes[0] if is_batched else 0, fails)
    loader = made()
    # The next epoch to begin; or the epoch that goes on, and how many values of its sampler were handed out.
    following, goes_on = 0, None
    for _ in range(chance.randint(1, 4)):
        if goes_on is None:
            epoch, given = following, 0
            if chance.random() < 0.3:
                epoch = chance.randrange(8)
            loader.set_epoch(epoch)
        else:
            epoch, given = goes_on
        expected, breaks = batches_of(script, epoch, sizes[0], drop_last, given)
        # At least one batch is asked for: an iteration begins then.
        stop = chance.randint(1, len(expected) + 1) if chance.random() < 0.6 else len(expected) + 1
        iteration, taken, ended = iter(loader), 0, False
        while taken < stop:
            try:
                batch = next(iteration)
            except StopIteration:
                assert taken == len(expected) and not breaks
                ended = True
                break
            except Broken:
                assert taken == len(expected) and breaks
                break
            assert loader.epoch == epoch
            reader.check(batch, expected[taken])
            given += 1 if is_batched else len(expected[taken])
            taken += 1
        if chance.random() < 0.3:
            iteration.close()
        ended = ended or (taken == len(expected) and taken > 0 and not breaks)
        begun = taken > 0 or goes_on is not None
        goes_on, following = None, epoch + 1
        match chance.randrange(4):
            case 0:
                state = pickle.loads(pickle.dumps(loader.state_dict()))
                if kind is Scripted and not is_batched and chance.random() < 0.5:
                    sizes[0] = chance.randint(1, 5)
                loader = made()
                loader.load_state_dict(state)
            case 1:
                loader = chance.choice([copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])(loader)
            case _:
                continue
        if not ended and begun:
            goes_on = (epoch, given)


def run_stream(chance: random.Random, reader: Reader) -> None:
    size = chance.randint(1, 5)
    stream = Loader(reader.path, batch_size=size, random_shuffle=chance.random() < 0.5, **reader.how).stream()
    waiting: list[list[int]] = []
    for _ in range(chance.randint(0, 60)):
        if chance.random() < 0.55:
            numbers = [chance.randrange(reader.samples) for _ in range(chance.randint(1, size))]
            if chance.random() < 0.1:
                with pytest.raises(IndexError):
                    stream.push([*numbers[1:], chance.choice([-1, reader.samples, reader.samples + 99])])
                continue
            stream.push(np.array(numbers) if chance.random() < 0.5 else numbers)
            waiting.append(numbers)
        elif waiting:
            reader.check(stream.get(), waiting.pop(0))
        else:
            with pytest.raises(queue.Empty):
                stream.get(timeout=0)
    if chance.random() < 0.5:
        for numbers in waiting:
            reader.check(stream.get(), numbers)
    stream.close()


def run_dataset(chance: random.Random, reader: Reader) -> None:
    dataset = Dataset(reader.path, **reader.how)
    assert len(dataset) == reader.samples
    for _ in range(chance.randint(1, 6)):
        numbers = [chance.randrange(reader.samples) for _ in range(chance.randint(0, 20))]
        for sample, number in zip(dataset.__getitems__(numbers), numbers, strict=True):
            reader.check_sample(sample, number)
        if chance.random() < 0.2:
            with pytest.raises(IndexError):
                dataset[reader.samples]
        if chance.random() < 0.2:
            dataset = pickle.loads(pickle.dumps(dataset))


def run(seed: int, stores: Path, device: str) -> None:
    chance = random.Random(seed)
    reader = Reader(chance, stores, device)
    kind = chance.choice(["loader", "loader", "stream", "dataset"])
    if kind == "loader":
        run_loader(chance, reader, seed)
    elif kind == "stream":
        run_stream(chance, reader)
    else:
        run_dataset(chance, reader)


@pytest.mark.parametrize("part", range(6))
def test_random_orders(part, stores, device):
    """Each case is a function of its seed, which the failure names."""
    for seed in range(part, CASES, 6):
        try:
            run(seed, stores, device)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
