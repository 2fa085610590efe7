"""dali_zarr.jax.Loader: its batches, types, shardings over devices, epochs and states."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from nvidia.dali import fn, types
from support.pipelines import run_script
from support.stores import Layout, write_array

jax = pytest.importorskip("jax", reason="the Loader for JAX needs it")

from dali_zarr._collate_jax import indptr  # noqa: E402
from dali_zarr._loading.collate import CollatePlan  # noqa: E402
from dali_zarr._loading.ragged import Ragged  # noqa: E402
from dali_zarr.jax import Batch, Loader  # noqa: E402

STEPS = 23
FIELDS = np.random.default_rng(1).standard_normal((STEPS, 3, 5)).astype("float32")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    base = tmp_path_factory.mktemp("jax")
    write_array(base, "n", np.arange(STEPS, dtype=np.int32), layout=Layout((4,)), dims=("time",))
    write_array(base, "wide", np.arange(STEPS, dtype=np.int64) << 40, layout=Layout((4,)), dims=("time",))
    write_array(base, "field", FIELDS, layout=Layout((2, 3, 4)), dims=("time", "lat", "lon"))
    write_array(
        base, "time", np.arange(STEPS, dtype=np.int64), dims=("time",),
        attributes={"units": "hours since 2020-01-01", "calendar": "standard"},
    )
    return base


@pytest.fixture
def make(path, device):
    if device == "gpu" and jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    limits = {"host_memory_limit": "128MiB"} | ({"device_memory_limit": "256MiB"} if device == "gpu" else {})
    return lambda **args: Loader(path, device=device, **({"arrays": ["n"], "batch_size": 4} | limits | args))


def numbers(batches) -> list[list[int]]:
    return [batch["n"].tolist() for batch in batches]


def test_arrays_by_name(make):
    loader = make(arrays=["field", "n"])
    batches = list(loader)
    assert len(loader) == 6 and [len(b["n"]) for b in batches] == [4, 4, 4, 4, 4, 3]
    for i, batch in enumerate(batches):
        assert all(isinstance(array, jax.Array) for array in batch.values())
        np.testing.assert_array_equal(np.asarray(batch["field"]), FIELDS[4 * i : 4 * i + 4])
        assert batch.index.tolist() == [[n] for n in range(STEPS)[4 * i : 4 * i + 4]]
    np.testing.assert_array_equal(np.asarray(batches[0]["field"]), FIELDS[:4])


def test_the_index_on_request(make):
    for i, batch in enumerate(make(arrays=["n"], return_index=True)):
        assert set(batch) == {"n", "index"} and batch["index"].dtype == np.int64
        assert batch["index"].tolist() == [[n] for n in range(STEPS)[4 * i : 4 * i + 4]]


def test_nested_offsets_and_coordinates(make):
    (batch, *_) = make(offsets={"input": 0, "target": 6})
    assert batch["target"]["n"].tolist() == [6, 7, 8, 9]
    assert batch["target"].coords["time"][0] == np.datetime64("2020-01-01T06")
    with pytest.raises(AttributeError, match="doesn't come from a loader"):
        print(jax.tree.map(lambda x: x + 1, batch).coords)


def test_batches_are_pytrees(make):
    (batch, *_) = make(offsets={"input": 0, "target": 6})
    found = jax.jit(lambda b: jax.tree.map(lambda x: x * 2, b))(batch)
    assert isinstance(found, Batch) and found["target"]["n"].tolist() == [12, 14, 16, 18]


@pytest.mark.parametrize("copied", [lambda batch: pickle.loads(pickle.dumps(batch)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_batches_can_be_copied(make, copied):
    """With where their samples are."""
    (batch, *_) = make(offsets={"input": 0, "target": 6})
    found = copied(copied(batch))
    assert isinstance(found["target"], Batch) and found["target"]["n"].tolist() == [6, 7, 8, 9]
    assert found.index.tolist() == batch.index.tolist() and found.is_repeated.tolist() == [False] * 4
    assert found["target"].coords["time"][0] == np.datetime64("2020-01-01T06")


def test_integers_of_64_bits(make):
    with jax.enable_x64(False):
        with pytest.raises(TypeError, match="output 'wide' has int64, which JAX would cut to 32 bits.*jax_enable_x64.*dtype="):
            make(arrays=["n", "wide"])
        (batch, *_) = make(arrays=["wide"], dtype="float32")
        assert batch["wide"].tolist() == [n << 40 for n in range(4)]
        loader = make(arrays=["n"], transform=lambda x: {"n": fn.cast(x["n"], dtype=types.INT64)})
        with pytest.raises(TypeError, match="an output of the transform has int64"):
            next(iter(loader))
    with jax.enable_x64(True):
        (batch, *_) = make(arrays=["wide"])
        assert batch["wide"].tolist() == [n << 40 for n in range(4)]


def test_epochs_and_states(make):
    straight = make(random_shuffle=True)
    epochs = [numbers(straight) for _ in range(3)]
    loader = make(random_shuffle=True)
    batches = iter(loader)
    assert numbers([next(batches), next(batches)]) == epochs[0][:2]
    other = make(random_shuffle=True)
    other.load_state_dict(loader.state_dict())
    assert [numbers(other), numbers(other), other.epoch] == [epochs[0][2:], epochs[1], 1]
    other.set_epoch(2)
    assert numbers(other) == epochs[2]
    with pytest.raises(ValueError, match="expected the state of a loader"):
        other.load_state_dict({})


@pytest.mark.parametrize("use", [len, repr, lambda loader: loader.state_dict()], ids=["len", "repr", "state"])
def test_the_rank_is_found_when_it_is_needed(path, monkeypatch, use):
    """Where torchrun, or a process group of PyTorch, tells it; a loader that has given batches says what to do."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    how = {"arrays": ["n"], "batch_size": 4, "device": "cpu", "uneven": "exact", "host_memory_limit": "128MiB"}
    loaders = [Loader(path, **how) for _ in range(3)]
    for loader in loaders:
        use(loader)
    next(iter(loaders[2]))
    found = []
    for rank, loader in enumerate(loaders[:2]):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        found += [n for batch in numbers(loader) for n in batch]
        assert len(loader) == 3
    assert sorted(found) == list(range(STEPS))
    with pytest.raises(RuntimeError, match="has given batches as rank 0 of 1, but the process is rank 1 of 2 now"):
        iter(loaders[2])


LATE = """
import sys
import jax
from dali_zarr.jax import Loader
loader = Loader(sys.argv[1], arrays=["n"], device="cpu", host_memory_limit="128MiB")
try:
    jax.distributed.initialize("127.0.0.1:1", num_processes=2, process_id=1)
except RuntimeError as error:
    print(error)
"""


def test_processes_of_jax_come_first(path):
    """The loader asks JAX for its processes; JAX refuses to have others later."""
    assert "must be called before any JAX calls" in run_script(LATE, str(path), env={"JAX_PLATFORMS": "cpu"})


SHARDED = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from dali_zarr.jax import Loader

def make(count, **args):
    mesh = Mesh(np.array(jax.devices()[:count]), ("batch",))
    return Loader(sys.argv[1], arrays=["n", "field"], batch_size=8, device="cpu", sharding=NamedSharding(mesh, P("batch")),
                  host_memory_limit="128MiB", random_shuffle=True, **args)

loader = make(4, pad_last_batch=True)
first = next(iter(loader))
assert first["field"].shape == (8, 3, 5) and len(first["field"].sharding.device_set) == 4
assert sorted(s.device.id for s in first["n"].addressable_shards) == [0, 1, 2, 3]
assert first.index.ravel().tolist() == first["n"].tolist()
state, seen = loader.state_dict(), first["n"].tolist()
loader = make(2, drop_last=True)
loader.load_state_dict(state)
rest = [n for batch in loader for n in batch["n"].tolist()]
assert len(set(seen + rest)) == len(seen + rest) == 8 + 8, (seen, rest)
try:
    make(4, uneven="exact")
except ValueError as error:
    assert "drop_last=True or pad_last_batch=True with uneven='exact'" in str(error)
else:
    raise AssertionError("uneven")
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("batch", "model"))
try:
    Loader(sys.argv[1], arrays=["n"], batch_size=8, device="cpu", sharding=NamedSharding(mesh, P("batch")), drop_last=True)
except ValueError as error:
    assert "devices with the same samples" in str(error)
else:
    raise AssertionError("replicated")
print("done")
"""


def test_sharding_over_devices(path):
    out = run_script(SHARDED, str(path), env={"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"})
    assert out.split() == ["done"]


def test_ragged_rows_are_padded_by_a_transform(tmp_path):
    """With their lengths: JAX has no arrays whose samples differ."""
    ends = np.array([3, 3, 10, 12, 20, 21])
    for name, values in (("data", np.arange(21, dtype="float32") + 1), ("ends", ends)):
        write_array(tmp_path, name, values, layout=Layout((4,)))
    args = {"arrays": ["data"], "ragged_ends": "ends", "max_length": 5, "batch_size": 4, "device": "cpu"}
    with pytest.raises(ValueError, match="have a transform pad them"):
        Loader(tmp_path, **args)

    def padded(x):
        return {"data": fn.pad(x["data"], axes=[0], shape=[5]), "length": fn.cast(x["data"].shape()[0], dtype=types.INT32)}

    batches = list(Loader(tmp_path, transform=padded, **args))
    lengths = [3, 0, 5, 2, 5, 1]
    assert [n for batch in batches for n in batch["length"].tolist()] == lengths
    for row, end, length, found in zip(range(6), ends, lengths, (row for batch in batches for row in batch["data"]), strict=True):
        start = 0 if row == 0 else ends[row - 1]
        assert found.tolist() == [*(np.arange(start, end)[:length] + 1), *[0] * (5 - length)]


def test_matrices_come_in_the_order_of_the_arrays():
    """Processes of one program must agree on it."""
    groups = [f"g{i}" for i in range(9)]
    places = [(f"{group}/{part}",) for group in groups for part in ("data", "indices")]
    choice = CollatePlan("csr", 5, Ragged(dict.fromkeys(places, (0,)), True, None), places, indptr)
    assert list(choice.matrices) == places
    assert list(dict.fromkeys(matrix[0] for matrix, _, _ in choice.matrices.values())) == [f"{group}/indptr" for group in groups]


# The caller's order.


def test_samplers(make):
    order = [5, 22, 0, 7, 7, 3, 1]
    loader = make(arrays=["n", "field"], sampler=order)
    for _ in range(2):
        batches = list(loader)
        assert numbers(batches) == [order[:4], order[4:]] and len(loader) == 2
        np.testing.assert_array_equal(np.asarray(batches[0]["field"]), FIELDS[order[:4]])
        assert batches[1].index.tolist() == [[7], [3], [1]]
    (first, last) = make(sampler=iter_again([1, 2, 3, 4, 5, 6]), pad_last_batch=True)
    assert last["n"].tolist() == [5, 6, 6, 6] and last.is_repeated.tolist() == [False, False, True, True]
    assert numbers(make(batch_sampler=[[1], [2, 3], np.array([4])])) == [[1], [2, 3], [4]]
    with pytest.raises(IndexError, match="found 23"):
        list(make(sampler=[23]))
    with pytest.raises(ValueError, match="shard_id: expected none with a sampler"):
        make(sampler=[1], shard_id=0, num_shards=1)


def iter_again(values):
    return range(values[0], values[-1] + 1)


def test_states_with_a_sampler(make):
    order = list(np.random.default_rng(1).integers(0, STEPS, 18))
    loader = make(sampler=order)
    straight = numbers(loader)
    for step, _ in enumerate(loader, 1):
        other = make(sampler=order)
        other.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
        assert numbers(other) == (straight[step:] or straight)
        assert numbers(copy.deepcopy(loader)) == (straight[step:] or straight)


def test_streams(make):
    with make(arrays=["n", "field"]).stream() as stream:
        stream.push([3, 9])
        batch = stream.get()
        assert batch["n"].tolist() == [3, 9] and batch.index.tolist() == [[3], [9]]
        np.testing.assert_array_equal(np.asarray(batch["field"]), FIELDS[[3, 9]])


def test_samplers_over_devices(path):
    """Each device gets its part of the batches that the process's sampler gives."""
    script = f"""
import os, pickle
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from dali_zarr.jax import Loader
mesh = jax.make_mesh((4,), ("d",))
where = NamedSharding(mesh, PartitionSpec("d"))
order = [int(n) for n in np.random.default_rng(1).integers(0, {STEPS}, 22)]
def make(**how):
    return Loader({str(path)!r}, arrays=["n"], batch_size=8, device="cpu", sharding=where, sampler=order,
                  host_memory_limit="64MiB", **how)
loader = make(drop_last=True)
for _ in range(2):
    found = [batch["n"].tolist() for batch in loader]
    assert found == [order[:8], order[8:16]], found
padded = list(make(pad_last_batch=True))
assert padded[2]["n"].tolist() == order[16:] + [order[-1]] * 2
assert padded[2].is_repeated.tolist() == [False] * 6 + [True] * 2
begun = iter(loader)
next(begun)
other = make(drop_last=True)
other.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
assert [batch["n"].tolist() for batch in other] == [order[8:16]]
"""
    run_script(script)
