"""States of dali_zarr.torch.Loader: it goes on exactly, also with other ranks, in hundreds of random schedules."""

from __future__ import annotations

import functools
import itertools
import json
import os
import pickle
import random
from dataclasses import asdict, replace

import pytest
from support.loaders import STEPS, flat, make, numbers, write

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from dali_zarr._loading import course  # noqa: E402
from dali_zarr._loading.epochs import Schedule, Segment  # noqa: E402


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("loader"))


@pytest.mark.parametrize("how", [{}, {"drop_last": True}, {"stick_to_shard": True}], ids=str)
def test_a_state_at_every_step(path, how):
    """From each batch of two epochs, the first iteration is the rest of the epoch, and the next ones are whole."""
    how = {"random_shuffle": True, "num_shards": 2, "shard_id": 1, "batch_size": 3, **how}
    straight = make(path, **how)
    epochs = [numbers(straight) for _ in range(4)]
    length = len(straight)
    loader = make(path, **how)
    for epoch in range(2):
        for step, _ in enumerate(loader, 1):
            other = make(path, **how)
            state = loader.state_dict()
            other.load_state_dict(pickle.loads(pickle.dumps(state)))
            rest = epochs[epoch][step:]
            assert len(other) == length and other.epoch == epoch + (not rest)
            found = [numbers(other) for _ in range(2)]
            assert found == ([rest, epochs[epoch + 1]] if rest else epochs[epoch + 1 : epoch + 3])


def test_a_relative_path_and_another_directory(path, tmp_path, monkeypatch):
    """The store is opened again for other epochs and for states, when another directory is current."""
    (tmp_path / "other").mkdir()
    write(tmp_path / "other")
    monkeypatch.chdir(path.parent)
    how = {"random_shuffle": True, "batch_size": 3, "return_index": True}
    straight, relative = make(path, **how), make(path.name, **how)
    epochs = [numbers(straight) for _ in range(6)]
    first = next(iter(relative))
    state = relative.state_dict()
    monkeypatch.chdir(tmp_path)
    assert str(path) in repr(relative)
    relative.set_epoch(5)
    assert numbers(relative) == epochs[5]
    relative.load_state_dict(state)
    assert numbers(relative) == epochs[0][1:]
    # The state doesn't depend on how the path was given.
    straight.load_state_dict(state)
    assert numbers(straight) == epochs[0][1:] and len(first)


def test_a_state_before_the_first_batch_and_twice(path):
    loader = make(path, random_shuffle=True)
    epoch = numbers(loader)
    other = make(path, random_shuffle=True)
    other.load_state_dict(make(path, random_shuffle=True).state_dict())
    assert numbers(other) == epoch and other.number == len(epoch) - 1
    other.load_state_dict(make(path, random_shuffle=True).state_dict())
    assert other.number == -1
    assert numbers(other) == epoch


def test_set_epoch_of_the_epoch_that_goes_on(path):
    """Loops that call set_epoch in each epoch go on within the one that was interrupted."""
    loader = make(path, random_shuffle=True)
    epochs = [numbers(loader) for _ in range(3)]
    loader = make(path, random_shuffle=True)
    loader.set_epoch(1)
    for step, _ in enumerate(loader, 1):
        if step == 2:
            break
    other = make(path, random_shuffle=True)
    other.load_state_dict(loader.state_dict())
    other.set_epoch(1)
    assert numbers(other) == epochs[1][2:]
    other.set_epoch(2)
    assert numbers(other) == epochs[2]


@pytest.mark.parametrize("batch_size", [STEPS, 12, 8], ids="batch_size={}".format)
@pytest.mark.parametrize("drop_last", [False, True], ids=["", "drop_last"])
def test_any_epoch_of_few_batches(path, batch_size, drop_last):
    """set_epoch gives the epoch asked for, however few batches epochs have, and a state keeps it."""
    how = {"random_shuffle": True, "batch_size": batch_size, "drop_last": drop_last}
    straight = make(path, **how)
    epochs = [numbers(straight) for _ in range(6)]
    for start in (None, 0, 1):
        for wanted in range(6):
            loader = make(path, **how)
            if start is not None:
                loader.set_epoch(start)
                assert numbers(loader) == epochs[start] and loader.epoch == start
            loader.set_epoch(wanted)
            other = make(path, **how)
            other.load_state_dict(loader.state_dict())
            assert other.epoch == wanted
            for one in (loader, other):
                assert numbers(one) == epochs[wanted] and one.epoch == wanted, (start, wanted)


def test_an_epoch_of_which_nothing_is_left(path):
    """A rest that is too small for drop_last is passed over, not repeated."""
    loader = make(path, batch_size=4)
    for step, _ in enumerate(loader, 1):
        if step == 5:
            break
    other = make(path, batch_size=8, drop_last=True)
    other.load_state_dict(loader.state_dict())
    assert [len(numbers(other)) for _ in range(3)] == [0, 2, 2]


def test_random_operators_go_on(path):
    """On the same rank a transform's random numbers are those of the straight run."""
    from nvidia.dali import fn

    def noisy(outputs):
        return {"n": outputs["n"], "noise": fn.random.uniform(range=[0, 1])}

    def noise(loader):
        return [batch["noise"].tolist() for batch in loader]

    straight = [noise(loader) for loader in [make(path, transform=noisy)] for _ in range(2)]
    loader = make(path, transform=noisy)
    next(it := iter(loader))
    next(it)
    other = make(path, transform=noisy)
    other.load_state_dict(loader.state_dict())
    assert [noise(other), noise(other)] == [straight[0][2:], straight[1]]
    ranks = [make(path, transform=noisy, shard_id=rank, num_shards=2) for rank in range(2)]
    assert noise(ranks[0]) != noise(ranks[1])


@pytest.mark.parametrize("rank", [0, 1])
def test_random_operators_of_any_epoch(path, rank):
    """The random numbers of an epoch are those of the uninterrupted run, wherever the run begins, and whatever was stopped."""
    from nvidia.dali import fn

    def noisy(outputs):
        row = outputs["row"]
        return {"noise": fn.random.uniform(range=[0, 1]), "flip": fn.random.coin_flip(), "row": row + fn.random.normal(row)}

    def taken(loader, stop=None):
        return [{name: value.tolist() for name, value in batch.items()} for batch in itertools.islice(loader, stop)]

    how = {"arrays": ["row"], "transform": noisy, "random_shuffle": True, "shard_id": rank, "num_shards": 2, "batch_size": 3}
    straight = make(path, **how)
    epochs = [taken(straight) for _ in range(5)]
    assert len({str(epoch[0]["noise"]) for epoch in epochs}) == 5
    for epoch in (0, 1, 4):
        loader = make(path, **how)
        loader.set_epoch(epoch)
        assert taken(loader) == epochs[epoch]
    loader = make(path, **how)
    assert [taken(loader, 1) for _ in range(4)] == [epoch[:1] for epoch in epochs[:4]]
    loader.set_epoch(2)
    assert taken(loader) == epochs[2]


def test_random_operators_of_other_ranks(path):
    """In mid-epoch they don't begin again with the numbers of the first epoch."""
    from nvidia.dali import fn

    def noisy(outputs):
        return {"n": outputs["n"], "noise": fn.random.uniform(range=[0, 1])}

    loader, found = make(path, transform=noisy), []
    for world in (1, 2, 3):
        state = loader.state_dict()
        loader = make(path, transform=noisy, shard_id=0, num_shards=world, batch_size=2)
        loader.load_state_dict(state)
        found += next(iter(loader))["noise"].tolist()
    assert len(set(found)) == 6


def test_states_that_do_not_fit(path):
    """The message says what differs, and the loader can be used as before."""
    state = make(path, random_shuffle=True).state_dict()
    loader = make(path, random_shuffle=True, seed=3)
    with pytest.raises(ValueError, match="seed: the default in the checkpoint, 3 here"):
        loader.load_state_dict(state)
    assert sorted(flat(numbers(loader))) == list(range(STEPS))
    for wrong in ({}, {"version": 99, "reader": "{}"}, {"version": 1}):
        with pytest.raises(ValueError, match="expected the state of a loader"):
            loader.load_state_dict(wrong)


def test_states_are_plain(path, tmp_path):
    """Frameworks load states with weights_only."""
    loader = make(path)
    next(iter(loader))
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == loader.state_dict()


def test_an_abandoned_rest_is_over(path):
    """After other ranks took over in mid-epoch and stopped again, all go on with the same whole epoch, and to any other one."""
    two = [make(path, random_shuffle=True, num_shards=2, shard_id=rank) for rank in range(2)]
    its = [iter(loader) for loader in two]
    seen = [n for it in its for n in next(it)["n"].tolist()]
    three = [make(path, random_shuffle=True, num_shards=3, shard_id=rank) for rank in range(3)]
    for loader in three:
        loader.load_state_dict(two[1].state_dict())
        seen += next(iter(loader))["n"].tolist()
    assert len(set(seen)) == len(seen) == 20
    for epoch in (None, None, 0, 5):
        for loader in three if epoch is not None else ():
            loader.set_epoch(epoch)
        assert sorted(n for loader in three for n in flat(numbers(loader))) == list(range(STEPS))
        assert {loader.epoch for loader in three} == {loader.epoch for loader in three[:1]}


def test_the_arithmetic_of_schedules():
    """Without readers: in each epoch the ranks have as many samples as are left, whatever the worlds, batch sizes and stops.
    With each epoch a rank takes the next shard, unless it sticks to its own."""
    for number in range(400):
        rng = random.Random(number)
        samples, epoch, steps, turn = rng.choice([1, 2, 7, STEPS, 64, 100]), 0, 0, 0
        left, segments = samples, (Segment(1, 1, False, 0, 0, 0),)
        for _ in range(rng.randint(1, 8)):
            world, batch_size, stick = rng.randint(1, 9), rng.choice([1, 2, 3, 4, 7, 200]), rng.random() < 0.3
            state = json.dumps({"samples": samples, "legs": [asdict(segment) for segment in segments]})
            ranks = [Schedule.of_state(state, rank, world, batch_size, stick) for rank in range(world)]
            assert {rank.segments for rank in ranks} == {ranks[0].segments}, number
            here = turn if ranks[0].segments == segments else 0
            for _ in range(rng.choice([0, 1, 2, 5, 30])):
                parts = [rank.part() for rank in ranks]
                done, batches = parts[0].done, parts[0].batches
                assert {(part.epoch, part.batches, part.done) for part in parts} == {(epoch, batches, done)}, number
                shards = [(rank + (0 if stick else here)) % world for rank in range(world)]
                assert [part.shard % world for part in parts] == shards, number
                assert sum(part.own for part in parts) == parts[0].samples, number
                rest = [max(part.own - done * batch_size, 0) for part in parts]
                assert sum(rest) == left and ranks[0].batches_before() + done == steps, number
                left, steps = left - sum(min(own, batch_size) for own in rest), steps + 1
                assert (left == 0) == (done + 1 == batches), number
                if left == 0:
                    left, epoch, steps, here = samples, epoch + 1, 0, here + 1
                turn = here
                *earlier, last = ranks[0].segments
                segments = (*earlier, replace(last, delivered=last.delivered + batch_size))
                ranks = [replace(rank, segments=segments) for rank in ranks]


SCHEDULES = int(os.environ.get("DALI_ZARR_SCHEDULES", "60"))


class NoReading:
    """In the place of the reader that a loader opens first and that load_state_dict closes unused: to open one takes most of a
    schedule's time. DALI's checkpoint, into which the state is put, is that of another loader."""

    def __init__(self, plan, template):
        self.plan, self.checkpoint = plan, lambda: template

    def close(self):
        pass


def restored(monkeypatch, state, template, path, **how):
    """Makes a loader that goes on from a state."""
    with monkeypatch.context() as patched:
        patched.setattr(course.Unopened, "opened", lambda stage, _check: course.Ready(NoReading(stage.plan, template)))
        loader = make(path, **how)
        loader.load_state_dict(state)
    return loader


@pytest.mark.timeout_s(900)
@pytest.mark.parametrize("part", range(4))
def test_random_schedules_of_worlds_and_stops(path, part, monkeypatch):
    """Whatever the worlds, batch sizes and stops: each sample comes once in each epoch, and all ranks count equally."""
    for number in range(part, SCHEDULES, 4):
        check_schedule(path, random.Random(number), number, monkeypatch)


def check_schedule(path, rng, number, monkeypatch):
    how = {"random_shuffle": rng.random() < 0.8, "seed": number, "initial_fill": rng.choice([4, 1024])}
    state, template, seen, epochs = None, b"", [], 0
    log = []
    while epochs < 3:
        world, batch_size = rng.choice([1, 2, 3, 4, 5]), rng.choice([1, 2, 3, 4, 7])
        stick = rng.random() < 0.3
        # Each tenth schedule opens all readers that users open.
        opens_all = number % 10 == 0
        begin = make if state is None or opens_all else functools.partial(restored, monkeypatch, state, template)
        loaders = [
            begin(path, batch_size=batch_size, shard_id=r, num_shards=world, stick_to_shard=stick, **how) for r in range(world)
        ]
        log.append((world, batch_size, stick))
        if state is not None and opens_all:
            for loader in loaders:
                loader.load_state_dict(state)
        for _ in range(rng.choice([1, 1, 2])):
            lengths = {len(loader) for loader in loaders}
            assert len(lengths) == 1, (number, log)
            before = loaders[0]._reading.schedule.batches_before() + loaders[0]._reading.schedule.part().done
            its, count = [iter(loader) for loader in loaders], rng.choice([None, None, 0, 1, 2, 3, 5])
            delivered = 0
            while count is None or delivered < count:
                batches = [next(it, None) for it in its]
                assert len({batch is None for batch in batches}) == 1, (number, log)
                if batches[0] is None:
                    break
                delivered += 1
                seen += [n for batch in batches for n in batch["n"].tolist()]
            if count is None:
                assert before + delivered == lengths.pop(), (number, log, "len is what an epoch has")
            state, template = rng.choice(loaders).state_dict(), loaders[0]._reading.checkpoint()
            if len(seen) == STEPS:
                assert sorted(seen) == list(range(STEPS)), (number, log)
                seen, epochs = [], epochs + 1
            else:
                assert len(set(seen)) == len(seen) < STEPS, (number, log)
                break


def test_values_of_other_types(path):
    """The message names the argument."""
    for size, kind in (("16", TypeError), (2.5, TypeError), (True, TypeError), (0, ValueError)):
        with pytest.raises(kind, match="dali_zarr: batch_size: expected"):
            make(path, batch_size=size)
    loader = make(path)
    for epoch in ("1", 1.0, None, True):
        with pytest.raises(TypeError, match="set_epoch: expected an integer"):
            loader.set_epoch(epoch)
    with pytest.raises(TypeError, match="load_state_dict: expected the state of a loader, but found NoneType"):
        loader.load_state_dict(None)
