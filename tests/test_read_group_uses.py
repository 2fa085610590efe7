"""Read groups beside other arguments of the loader, and errors: those of one rank, and of ranks that differ."""

from __future__ import annotations

import numpy as np
import pytest
from support.read_groups import CELLS, LEVELS, TIMES, backends, passes, run, write
from support.stores import Layout, write_array

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("read_group"))


ALONGSIDE = """
import copy, pickle
import dali_zarr

group = dist.group.WORLD
plain = lambda **more: make(arrays=["field"], shard_id=0, num_shards=1, **more)
grouped = lambda **more: make(arrays=["field"], read_group=group, **more)

def equal(one, other):
    assert len(other) > 1
    for batch, right in zip(one, [batch.to("cpu") for batch in other], strict=True):
        same(batch.to("cpu"), right)

# Samplers, whose samples are the same on all ranks.
order = np.random.default_rng(3).permutation(19)[:11].tolist()
equal(grouped(sampler=order, batch_size=3), make(arrays=["field"], sampler=order, batch_size=3))
batches = [[3, 1], [18], [7, 7, 2]]
equal(grouped(batch_sampler=batches, batch_size=3), make(arrays=["field"], batch_sampler=batches, batch_size=3))
# Weights.
weights = (np.arange(19) % 4).astype(np.float64)
equal(grouped(weights=weights, seed=4), plain(weights=weights, seed=4))
# Rollouts that grow, and a window that comes and goes.
loader, right = grouped(offsets=[0], batch_size=2), plain(offsets=[0], batch_size=2)
for change in (lambda one: one.set_offsets([0, 1, 2]), lambda one: one.set_window([2]), lambda one: one.set_epoch(7)):
    equal(loader, right)
    change(loader), change(right)
equal(loader, right)
# Breaks that all ranks take, and what comes after them.
loader, right = grouped(random_shuffle=True), plain(random_shuffle=True)
for one in (loader, right):
    for number, _ in enumerate(one):
        if number == 2:
            break
equal(loader, right)
loader.refresh(), right.refresh()
equal(loader, right)
# Copies in this process.
equal(copy.deepcopy(loader), copy.deepcopy(right))
# Mixtures.
def mixed(kind):
    some = {"a": kind(), "b": kind(isel={"time": slice(2, 9)}, random_shuffle=True)}
    return dali_zarr.mix(some, weights={"a": 2, "b": 1}, seed=8)

equal(mixed(grouped), mixed(plain))
# A loader's parts, also in a stream, a copy in another process, and a data set.
parts = grouped(gather=False)
own = parts.read_parts[rank]
with parts.stream() as stream:
    stream.push([4])
    assert torch.equal(stream.get()["field"].cpu(), next(iter(plain(isel={"time": slice(4, 5)})))["field"].cpu()[..., own])
other = pickle.loads(pickle.dumps(parts))
assert other.read_parts == parts.read_parts
for batch, right in zip(other, plain(), strict=True):
    assert torch.equal(batch["field"], right["field"][..., own])
samples = Dataset(path, arrays=["field"], dims=["time"], read_group=group, read_dim="cell", **OWN)
whole = Dataset(path, arrays=["field"], dims=["time"], **OWN)
for sample in (3, 0, -1):
    assert torch.equal(samples[sample]["field"], whole[sample]["field"][..., own])
# As a worker process of a DataLoader gets it.
assert torch.equal(pickle.loads(pickle.dumps(samples))[5]["field"], whole[5]["field"][..., own])

def refused(kind, text, **more):
    try:
        make(**{"arrays": ["field"], "read_group": group} | more)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(more)

refused(ValueError, "read_dim: expected a dimension that samples have whole, but found 'time'", read_dim="time")
refused(ValueError, "no array has a dimension 'cells' that samples have whole; did you mean cell?", read_dim="cells")
refused(TypeError, "read_dim: expected the name of a dimension", read_dim=2)
refused(TypeError, "gather: expected True or False, but found 'no'", gather="no")
refused(ValueError, "gather: expected gather=False with a transform", transform=lambda outputs: outputs)
refused(ValueError, "expected none with ragged", ragged="offsets")
refused(ValueError, "read_group: expected a dimension that samples have whole", dims=["time", "level", "cell"])
refused(ValueError, "elements along 'cell' as the read group has ranks, 2, but found 1", isel={"cell": [4]})
means = [1.0 + i for i in range(23)]
refused(ValueError, "whose elements have no mean of their own, but found 'cell'", mean=means, channels="cell")
refused(ValueError, "whose elements have no stddev of their own, but found 'cell'", stddev=means, mean=1.0)
refused(ValueError, "read_dim: expected read_group with it", read_group=None, read_dim="cell")
refused(ValueError, "gather: expected read_group with it", read_group=None, gather=False)
refused(ValueError, "process_group: expected one rank of each read group in it", process_group=group)
refused(ValueError, "with a sampler", sampler=[1], shard_id=0, num_shards=1)
single = dist.new_group([0])
if rank == 1:
    refused(ValueError, "expected a process group that has this process", read_group=single)
else:
    # A group of one rank reads the whole.
    equal(make(arrays=["field"], read_group=single, shard_id=0, num_shards=1), plain())
for use in (lambda: loader.stream(), lambda: pickle.dumps(loader)):
    try:
        use()
    except (TypeError, ValueError) as error:
        assert "gather=False" in str(error), error
    else:
        raise AssertionError("a loader that gathers")
dist.barrier()
"""


@pytest.mark.timeout_s(300)
@pytest.mark.parametrize("backend", backends())
def test_beside_other_arguments(path, tmp_path, backend):
    passes(ALONGSIDE, path, tmp_path, 2, backend=backend)


def test_groups_that_a_mesh_does_not_tell(path, tmp_path):
    script = """
lists = [[0, 3], [1, 2]]
group, number = groups(lists)
try:
    make(arrays=["field"], read_group=group)
except ValueError as error:
    assert f"found the ranks {lists[number]}; give process_group" in str(error), error
else:
    raise AssertionError("groups that don't tell which samples they read")
def equal(loader, number):
    wanted = make(arrays=["field"], uneven="exact", shard_id=number, num_shards=2)
    for batch, right in zip(loader, [batch.to("cpu") for batch in wanted], strict=True):
        same(batch.to("cpu"), right)

equal(make(arrays=["field"], read_group=group, uneven="exact", shard_id=number, num_shards=2), number)
# A batch that is empty in one of the groups.
empty = make(arrays=["field"], read_group=group, uneven="exact", batch_size=3, shard_id=number, num_shards=2)
assert [len(batch["field"]) for batch in empty] == [[3, 3, 3, 0], [3, 3, 3, 1]][number]
# Whoever pushes samples divides them.
assert sum(len(batch.index) for batch in make(arrays=["field"], read_group=group, sampler=[3, 1])) == 2
# Groups of a mesh, whose other dimension divides the samples.
inner, number = groups([[0, 1], [2, 3]])
across, _ = groups([[0, 2], [1, 3]])
equal(make(arrays=["field"], read_group=inner, process_group=across, uneven="exact"), number)
# A process group in which ranks of a read group have other numbers.
wrong, _ = groups([[0, 2], [1, 3]])
try:
    next(iter(make(arrays=["field"], read_group=groups([[0, 3], [1, 2]])[0], process_group=wrong, uneven="exact")))
except RuntimeError as error:
    assert "other samples on rank 1 than on rank 0" in str(error), error
else:
    raise AssertionError("ranks with other samples")
dist.barrier()
"""
    passes(script, path, tmp_path, 4)


def test_groups_of_other_arguments():
    """Only the loader for PyTorch has read groups."""
    import dali_zarr

    with pytest.raises(TypeError, match=r"read_group: it is an argument of dali_zarr\.torch\.Loader alone"):
        dali_zarr.explain("nowhere.zarr", read_group=None)
    jax = pytest.importorskip("dali_zarr.jax", exc_type=ImportError)
    with pytest.raises(TypeError, match=r"read_dim: it is an argument of dali_zarr\.torch\.Loader alone"):
        jax.Loader("nowhere.zarr", device="cpu", read_dim="cell")


FAILS = """
import time

group = dist.group.WORLD
begun = time.monotonic()

def failed(batches, text):
    try:
        count = 0
        for _ in batches:
            count += 1
    except Exception as error:
        assert all(word in str(error) for word in text), (text, error)
        return count
    raise AssertionError(f"no error of {text}")

# A chunk that only rank 1 reads is damaged: all fail at its batch, and go on with the next epoch as far.
loader = Loader(told, arrays=["field"], dims=["time"], read_group=group, **OWN)
for epoch in range(2):
    assert failed(loader, ["field"] if rank == 1 else ["rank 1 of the group failed", "field"]) == 6, epoch
# Other samples on each rank.
failed(make(arrays=["field"], sampler=[0, 1 + rank, 5], read_group=group), ["other samples on rank 1 than on rank 0"])
# A sampler that ends on one rank, and one that fails.
shorter = make(arrays=["field"], sampler=[0, 1, 5][: 3 - rank], read_group=group)
failed(shorter, ["batch 2 of epoch 0", "no batch any more on rank 1"])

def broken():
    yield 1
    if rank == 0:
        raise LookupError("of the sampler")
    yield 2

class Broken:
    __iter__ = lambda self: broken()

assert failed(make(arrays=["field"], sampler=Broken(), read_group=group), ["of the sampler"]) <= 1
# An iteration that one rank stops.
loader = make(arrays=["field"], read_group=group)
batches = iter(loader)
next(batches), next(batches)
if rank == 0:
    failed(loader, ["batch 0 of epoch 1", "batch 2 of epoch 0"])
else:
    failed(batches, ["batch 0 of epoch 1", "batch 2 of epoch 0"])
# Other outputs.
failed(make(arrays=["field"], dtype="float32" if rank else "float16", read_group=group), ["other outputs on rank 1"])
# Another seed: gathered or not.
for gather in (True, False):
    error = ""
    try:
        for _ in make(arrays=["field"], read_group=group, random_shuffle=True, seed=rank + 1, gather=gather):
            pass
    except (ValueError, RuntimeError) as raised:
        error = str(raised)
    # Where nothing is gathered, the rank that begins first doesn't know of the other.
    errors = told_of_all(error)
    assert sum("seed: expected the same on all ranks" in one for one in errors) == (2 if gather else 1), errors
# A rank that is gone.
batches = iter(make(arrays=["field"], read_group=group))
next(batches)
if rank == 1:
    os._exit(3)
failed(batches, ["couldn't gather a batch", "has one ended, or stopped iterating?"])
assert time.monotonic() - begun < 50, "it waited for the timeout of the group"
"""


def test_errors_of_one_rank(path, tmp_path):
    """They are errors of all, and nobody waits for long."""
    damaged = tmp_path / "store-damaged"
    write_array(
        damaged, "field", np.random.default_rng(1).standard_normal((TIMES, LEVELS, CELLS)).astype("float32"),
        layout=Layout((1, 2, 5)), dims=("time", "level", "cell"),
    )
    (chunk,) = damaged.glob("field/**/6/0/4")
    chunk.write_bytes(b"nothing that can be decoded")
    done = run(FAILS, path, tmp_path, 2, str(damaged))
    assert [status for status, _ in done] == [0, 3], "\n".join(error[:3000] for _, error in done)
