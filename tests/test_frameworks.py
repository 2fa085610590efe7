"""DALI's own iterators for PyTorch and JAX, by the values that come out, with each element type that they have."""

from __future__ import annotations

import json

import dali_zarr  # noqa: F401
import numpy as np
import pytest
from support.pipelines import build, run_script
from support.processes import start
from support.stores import Layout, write_array

STEPS = 11
BATCH = 4
# DALI's table of PyTorch's types has no others: dali_zarr.torch.Loader has.
UNSIGNED = ("uint16", "uint32", "uint64")
TYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")


def values_of(name: str) -> np.ndarray:
    """Values of a type, its largest and smallest among them."""
    dtype = np.dtype(name)
    if name == "bool":
        return np.arange(STEPS * 6).reshape(STEPS, 2, 3) % 3 == 0
    values = np.arange(STEPS * 6, dtype=dtype).reshape(STEPS, 2, 3)
    info = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    values[0, 0, :2] = info.min, info.max
    return values


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    base = tmp_path_factory.mktemp("frameworks")
    for name in TYPES:
        write_array(base, name, values_of(name), layout=Layout((3, 2, 3)), dims=("time", "lat", "lon"))
    return base


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="DALI's iterators for PyTorch need it")


@pytest.fixture
def jax():
    return pytest.importorskip("jax", reason="DALI's iterator for JAX needs it")


def expected(name: str) -> list[np.ndarray]:
    """An epoch of batches, the last one filled up with the last sample."""
    values = values_of(name)
    padded = np.concatenate([values, values[-1:]])
    return [padded[i : i + BATCH] for i in range(0, len(padded), BATCH)]


def check(found: list[np.ndarray], name: str) -> None:
    assert len(found) == 3
    for batch, want in zip(found, expected(name), strict=True):
        assert batch.dtype == want.dtype and batch.tobytes() == want.tobytes()


@pytest.mark.parametrize("executor", [True, False], ids=["dlpack", "copy"])
@pytest.mark.parametrize("name", [name for name in TYPES if name not in UNSIGNED])
def test_torch_generic(torch, path, device, name, executor):
    """Every type that the iterator has, whether it shares DALI's memory or copies."""
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    pipe = build(device, BATCH, executor=executor, path=path, arrays=[name], pad_last_batch=True)
    it = DALIGenericIterator([pipe], ["x"], reader_name="reader")
    found = [batch["x"] for (batch,) in it]
    assert all(f.device.type == ("cuda" if device == "gpu" else "cpu") for f in found)
    check([f.cpu().numpy() for f in found], name)


@pytest.mark.parametrize("executor", [True, False], ids=["dlpack", "copy"])
@pytest.mark.parametrize("name", ["float32", "uint8", "int64"])
@pytest.mark.parametrize("tag", ["dense", "list"])
def test_torch_ragged(torch, path, device, name, tag, executor):
    """The same as one tensor, or as a list of one for each sample."""
    from nvidia.dali.plugin.pytorch import DALIRaggedIterator

    tags = {"dense": DALIRaggedIterator.DENSE_TAG, "list": DALIRaggedIterator.SPARSE_LIST_TAG}
    pipe = build(device, BATCH, executor=executor, path=path, arrays=[name], pad_last_batch=True)
    found = []
    for (batch,) in DALIRaggedIterator([pipe], ["x"], reader_name="reader", output_types=[tags[tag]]):
        x = batch["x"] if tag == "dense" else torch.stack([sample.clone() for sample in batch["x"]])
        found.append(x.cpu().numpy())
    check(found, name)


def proxied(device, path, name):
    """A pipeline that PyTorch's DataLoader can drive: what is given, doubled, beside an array of the store."""
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    pipe = Pipeline(batch_size=BATCH, num_threads=2, device_id=0 if device == "gpu" else None, prefetch_queue_depth=2)
    limits = {"host_memory_limit": 128 << 20} | ({"device_memory_limit": 256 << 20} if device == "gpu" else {})
    with pipe:
        given = fn.external_source(name="given", no_copy=True)
        pipe.set_outputs(given * 2, fn.zarr_reader(device=device, path=str(path), arrays=[name], **limits))
    return pipe


@pytest.mark.parametrize("name", ["float32", "int16"])
def test_torch_proxy(torch, path, device, name):
    """A pipeline that PyTorch's DataLoader drives: its samples meet those of the store, one batch for each of its own."""
    from nvidia.dali.plugin.pytorch.experimental import proxy

    pipe = proxied(device, path, name)

    class Numbers(torch.utils.data.Dataset):
        def __init__(self, transform):
            self.transform = transform

        def __len__(self):
            return 2 * BATCH

        def __getitem__(self, i):
            return self.transform(np.array([i], dtype=np.int32))

    with proxy.DALIServer(pipe, deterministic=True) as server:
        loader = proxy.DataLoader(server, Numbers(server.proxy), batch_size=BATCH, num_workers=1, drop_last=True)
        batches = [(doubled.cpu().numpy(), x.cpu().numpy()) for doubled, x in loader]
    assert [d.reshape(-1).tolist() for d, _ in batches] == [[0, 2, 4, 6], [8, 10, 12, 14]]
    for (_, x), want in zip(batches, expected(name), strict=False):
        assert x.dtype == want.dtype and x.tobytes() == want.tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_jax_generic(jax, path, device, name):
    if device == "gpu" and jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    from nvidia.dali.plugin.jax import DALIGenericIterator

    pipe = build(device, BATCH, path=path, arrays=[name], pad_last_batch=True)
    with jax.enable_x64(True):
        found = [batch["x"] for batch in DALIGenericIterator([pipe], ["x"], reader_name="reader")]
        assert all(isinstance(f, jax.Array) for f in found)
        check([np.asarray(f) for f in found], name)


def test_jax_decorator(jax, path):
    """The form that DALI's documentation shows first."""
    from nvidia.dali import fn
    from nvidia.dali.plugin.jax import data_iterator

    @data_iterator(output_map=["x"], reader_name="reader")
    def fields():
        return fn.zarr_reader(path=str(path), arrays=["float32"], pad_last_batch=True, name="reader", host_memory_limit=128 << 20)

    check([np.asarray(batch["x"]) for batch in fields(batch_size=BATCH, num_threads=2, device_id=None)], "float32")


def test_importing_needs_neither_framework():
    out = run_script("import dali_zarr, sys\nprint('torch' in sys.modules, 'jax' in sys.modules)", imports="nothing")
    assert out.split() == ["False", "False"]


def test_nothing_of_dalis_is_replaced(torch):
    """Importing this package changes none of DALI's tables."""
    out = run_script(
        "from nvidia.dali.plugin.pytorch import torch_utils\n"
        "before = dict(torch_utils.to_torch_type)\n"
        "import dali_zarr, sys\n"
        "print(torch_utils.to_torch_type == before, any('dali_zarr' in type(f).__module__ for f in sys.meta_path))",
        imports="torch",
    )
    assert out.split() == ["True", "False"]


# Several processes.

RANK = """
import json, os, sys
import torch
import torch.distributed as dist
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from support.pipelines import build

path, rendezvous, rank, world, backend, args = sys.argv[1:]
rank, world, args = int(rank), int(world), json.loads(args)
device = "gpu" if backend == "nccl" else "cpu"
gpu = 0
if device == "gpu":
    # Where there are fewer GPUs than ranks they are told to NCCL as several hosts with the same GPUs, which it reaches
    # by network as in a cluster: on one host it refuses two ranks on a GPU.
    host, gpu = divmod(rank, torch.cuda.device_count())
    if world > torch.cuda.device_count():
        os.environ |= {"NCCL_HOSTID": f"host-{host}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    torch.cuda.set_device(gpu)
dist.init_process_group(backend, init_method="file://" + rendezvous, rank=rank, world_size=world)
pipe = build(device, 3, device_id=gpu, path=path, arrays=["int64"], num_shards=world, shard_id=rank, pad_last_batch=True, **args)
it = DALIGenericIterator([pipe], ["x"], reader_name="reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True)
for epoch in range(3):
    mine = [int(x) for (batch,) in it for x in batch["x"][:, 1, 2]]
    # All ranks agree on how often each was seen, by a collective on the device that the samples are on.
    counts = torch.zeros(100, dtype=torch.int64, device=torch.device("cuda", gpu) if device == "gpu" else "cpu")
    counts.index_add_(0, torch.tensor(mine, device=counts.device), torch.ones(len(mine), dtype=torch.int64, device=counts.device))
    dist.all_reduce(counts)
    print(json.dumps([mine, counts.cpu().tolist()]), flush=True)
dist.destroy_process_group()
"""


def ranks(tmp_path, path, world: int, backend: str, args: dict) -> list[list]:
    """What each rank saw in each of three epochs, and what all agreed on: [rank][epoch] -> (numbers, counts)."""
    rendezvous = tmp_path / f"rendezvous-{world}-{len(list(tmp_path.iterdir()))}"
    processes = [
        start(RANK, path, rendezvous, rank, world, backend, json.dumps(args), imports="torch")
        for rank in range(world)
    ]
    try:
        done = [process.communicate(timeout=150) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, err) in zip(processes, done, strict=True):
        assert process.returncode == 0, err
    return [[json.loads(line) for line in out.splitlines() if line.startswith("[[")] for out, _ in done]


def check_ranks(found: list[list]) -> None:
    numbers = [int(v) for v in values_of("int64")[:, 1, 2]]
    for epoch in range(3):
        own = [rank[epoch][0] for rank in found]
        assert sorted(n for mine in own for n in mine) == sorted(numbers), f"epoch {epoch}"
        for _, counts in (rank[epoch] for rank in found):
            assert [i for i, count in enumerate(counts) if count] == sorted(numbers) and max(counts) == 1


WORLDS = [(2, {}), (2, {"random_shuffle": True, "stick_to_shard": True}), (4, {"random_shuffle": True})]


@pytest.mark.parametrize(("world", "args"), WORLDS)
def test_distributed(torch, tmp_path, path, world, args):
    """Under torch.distributed each rank has its own samples, and together they have each one once per epoch."""
    check_ranks(ranks(tmp_path, path, world, "gloo", args))


@pytest.mark.parametrize("world", [2, 4])
def test_distributed_on_gpus(torch, tmp_path, path, gpu, world):
    """The same with NCCL. Ranks share GPUs where there are fewer."""
    check_ranks(ranks(tmp_path, path, world, "nccl", {"random_shuffle": True}))
