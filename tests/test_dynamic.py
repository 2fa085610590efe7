"""DALI's dynamic mode: ``readers.Zarr`` with ``next_epoch``, by the values, and its states."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
from support.pipelines import run_script
from support.stores import Layout, write_array
from support.versions import DALI, needs_states

STEPS = 11
VALUES = np.random.default_rng(3).standard_normal((STEPS, 3, 4)).astype("float32")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    base = tmp_path_factory.mktemp("dynamic")
    write_array(base, "a", VALUES, codec="zstd", layout=Layout((2, 3, 3)), dims=("time", "lat", "lon"))
    write_array(base, "n", np.arange(STEPS, dtype=np.int32), layout=Layout((4,)), dims=("time",))
    return base


@pytest.fixture
def make(path, device):
    """Makes readers on the device."""
    import dali_zarr  # noqa: F401
    import nvidia.dali.experimental.dynamic as ndd

    limits = {"host_memory_limit": 128 << 20} | ({"device_memory_limit": 256 << 20} if device == "gpu" else {})
    return lambda **args: ndd.readers.Zarr(device=device, **limits, **({"path": str(path), "arrays": ["n"]} | args))


def test_help():
    """DALI's dynamic mode has the help of operators at their constructors; this one's class has it too."""
    import dali_zarr  # noqa: F401
    import nvidia.dali.experimental.dynamic as ndd

    made = ndd.readers.Zarr.__init__
    assert inspect.getdoc(ndd.readers.Zarr) == inspect.getdoc(made)
    assert made.__doc__.strip().startswith("Reads samples from Zarr arrays.")
    own = [name for name in inspect.signature(made).parameters if name in dali_zarr.zarr_reader.__doc__]
    assert {"path", "arrays", "window", "random_shuffle", "mean"} <= set(own)
    assert all(re.search(rf"\b{name}\b", made.__doc__) for name in own)


IMPORTS = ("dali_zarr", "nvidia.dali.experimental.dynamic")


@pytest.mark.parametrize("order", [IMPORTS, IMPORTS[::-1]], ids=["before", "after"])
def test_arguments_that_it_has_not(order):
    """Whichever is imported first."""
    script = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
dynamic = sys.modules["nvidia.dali.experimental.dynamic"]
for arguments in ({"sel": {"level": 500}}, {"windw": 3}, {"xyzzy": 3}):
    try:
        dynamic.readers.Zarr(path="s", arrays=["a"], **arguments)
    except TypeError as error:
        print(error)
"""
    assert run_script(script, *order, imports="only torch").splitlines() == [
        "zarr_reader: sel: the dynamic mode doesn't take it; give positions with roi_start, roi_end and pick",
        "zarr_reader: windw: there is no such argument; did you mean window?",
        "zarr_reader: xyzzy: there is no such argument; see help(dali_zarr.zarr_reader) for the arguments that there are",
    ]


def numpy(data) -> np.ndarray:
    """A tensor, or a batch of equal ones."""
    import nvidia.dali.experimental.dynamic as ndd

    tensor = ndd.as_tensor(data) if isinstance(data, ndd.Batch) else data
    return np.asarray(tensor.cpu())


def epoch(reader, **args) -> list:
    return [numpy(out).tolist() for (out,) in reader.next_epoch(**args)]


ORDER = """
import sys
import numpy as np
for name in sys.argv[3:]:
    __import__(name)
import nvidia.dali.experimental.dynamic as ndd
reader = ndd.readers.Zarr(path=sys.argv[1], arrays=["n"], device=sys.argv[2])
assert ndd.readers.Zarr.__doc__.strip().startswith("Reads samples from Zarr arrays.")
print([[int(x) for x in np.asarray(ndd.as_tensor(b).cpu()).ravel()] for (b,) in reader.next_epoch(batch_size=4)])
"""


@pytest.mark.parametrize("first", ["dali_zarr", "nvidia.dali.experimental.dynamic"])
def test_whichever_is_imported_first(path, device, first):
    names = ["dali_zarr", "nvidia.dali.experimental.dynamic"]
    names.sort(key=lambda name: name != first)
    out = run_script(ORDER, str(path), device, *names, imports="only torch")
    assert out.strip() == "[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 0]]"


def test_batches(make):
    """Epoch after epoch, the values of several outputs; a batch that the epoch can't fill goes on with the next."""
    reader = make(arrays=["a", "n"], return_index=True)
    k = 0
    for _ in range(3):
        for a, n, index in reader.next_epoch(batch_size=4):
            want = np.arange(k, k + 4) % STEPS
            k += 4
            assert numpy(a).tobytes() == VALUES[want].tobytes()
            assert numpy(n).tolist() == want.tolist() and numpy(index)[:, 0].tolist() == want.tolist()
    assert k == 36


def test_counters(make):
    """Also when tracing has put the operator into a pipeline."""
    import dali_zarr
    import nvidia.dali.experimental.dynamic as ndd

    for capture in (False, True):
        how = {"capture": capture} if DALI >= (2, 2) else {}
        reader = make()
        with pytest.raises(RuntimeError, match="counters: expected a reader for Zarr that has delivered a batch"):
            dali_zarr.counters(reader)
        for number, batch in enumerate(reader.next_epoch(batch_size=4, **how)):
            ndd.cast(batch[0] if isinstance(batch, tuple) else batch, dtype=ndd.float32)
            assert dali_zarr.counters(reader)["batches"] > number and dali_zarr.counters(reader)["arrays"] == ["n"]


def test_samples(make):
    reader = make(arrays=["a"], random_shuffle=True, seed=4, return_index=True)
    orders = []
    for _ in range(2):
        orders.append([])
        for a, index in reader.next_epoch():
            number = int(numpy(index)[0])
            assert numpy(a).tobytes() == VALUES[number].tobytes()
            orders[-1].append(number)
    assert [sorted(order) for order in orders] == [list(range(STEPS))] * 2 and orders[0] != orders[1]


def test_arguments_that_python_widens(make, path):
    """Paths as objects, `pick` as a dictionary, NumPy's arrays, and numbers with double precision."""
    import nvidia.dali.experimental.dynamic as ndd

    reader = make(path=path, arrays="a", pick={"lat": [2, 0]}, window=np.array([0]), mean=0.1, stddev=[0.7], dtype=ndd.float64)
    found = np.stack([numpy(a) for (a,) in reader.next_epoch()])
    assert found.tobytes() == ((VALUES[:, [2, 0]].astype("float64") - 0.1) / 0.7).tobytes()


@pytest.mark.parametrize("stick", [False, True])
def test_shards(make, stick):
    """Each sample once per epoch, and the padding behind it."""
    readers = [make(num_shards=2, shard_id=s, stick_to_shard=stick, pad_last_batch=True, random_shuffle=True) for s in range(2)]
    for _ in range(3):
        got = [n for reader in readers for n in dict.fromkeys(n for batch in epoch(reader, batch_size=4) for n in batch)]
        assert sorted(got) == list(range(STEPS))


@needs_states
@pytest.mark.parametrize("args", [{}, {"random_shuffle": True, "pad_last_batch": True, "num_shards": 2, "shard_id": 1}], ids=str)
def test_a_state_at_every_step(make, args):
    """get_state and set_state: the next epoch of the new reader begins with the batch after the last one."""
    reader, stream, states = make(enable_checkpointing=True, **args), [], []
    for _ in range(6):
        for (out,) in reader.next_epoch(batch_size=4):
            stream.append(numpy(out).tolist())
            states.append(str(reader.get_state()))
    for step, state in enumerate(states[:5]):
        again = make(**args)
        again.set_state(state)
        follow = epoch(again, batch_size=4) + epoch(again, batch_size=4)
        assert follow == stream[step + 1 : step + 1 + len(follow)], f"after {step + 1} batches"


@needs_states
def test_checkpoint(make):
    """The dynamic mode's Checkpoint keeps several readers."""
    from nvidia.dali.experimental.dynamic import checkpoint

    def readers(checkpoint):
        made = [make(random_shuffle=True), make(arrays=["a"], return_index=True)]
        for name, reader in zip("na", made, strict=True):
            checkpoint.register(reader, name)
        return made

    first = checkpoint.Checkpoint()
    old = [reader.next_epoch(batch_size=3) for reader in readers(first)]
    for iterator in old:
        next(iterator)
    first.collect()
    second = checkpoint.Checkpoint()
    second.deserialize(first.serialize())
    new = [reader.next_epoch(batch_size=3) for reader in readers(second)]
    for _ in range(3):
        for mine, other in zip(old, new, strict=True):
            for x, y in zip(next(mine), next(other), strict=True):
                assert numpy(x).tobytes() == numpy(y).tobytes()


@needs_states
def test_other_shards_and_other_data(make):
    """As with pipelines: what is left is divided anew, and other samples are refused with what differs."""
    old = [make(num_shards=2, shard_id=s, pad_last_batch=True, enable_checkpointing=True) for s in range(2)]
    seen = [n for reader in old for n in numpy(next(reader.next_epoch(batch_size=2))[0]).tolist()]
    state = str(old[0].get_state())
    new = make(pad_last_batch=True)
    new.set_state(state)
    batches = new.next_epoch(batch_size=7)
    assert sorted(seen + numpy(next(batches)[0]).tolist()) == list(range(STEPS))
    assert numpy(next(batches)[0]).tolist() == list(range(7)), "the next epoch"
    other = make(random_shuffle=True, pad_last_batch=True)
    other.set_state(state)
    with pytest.raises(ValueError, match="random_shuffle: false in the checkpoint, true here"):
        next(other.next_epoch(batch_size=2))


def test_errors_have_their_kind(make):
    with pytest.raises(ValueError, match="'missing'"):
        next(make(arrays=["missing"]).next_epoch(batch_size=2))
