"""The ways to get batches of consecutive pairs of hours, (sample, 2, channel, latitude, longitude), as tensors on the GPU if there
is one. Each is a function (path, size, shard, shards) -> iterator over epochs without end."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import Size, has_gpu


def _starts(size: Size, shard: int, shards: int) -> Iterator[list[int]]:
    """The first hours of the pairs of each batch, in order."""
    count = (size.hours - 1) // shards
    every = range(shard * count, (shard + 1) * count)
    for i in itertools.cycle(range(0, count - size.batch + 1, size.batch)):
        yield list(every[i : i + size.batch])


def dali_zarr(path: Path, size: Size, shard: int = 0, shards: int = 1) -> Iterator[Any]:
    """This reader."""
    from dali_zarr.torch import Loader

    loader = Loader(
        str(path), arrays=["fields"], dims=["time"], window=[2], step=[1], batch_size=size.batch, drop_last=True, shard_id=shard,
        num_shards=shards,
    )
    while True:
        for batch in loader:
            yield batch["fields"]


def to_device(array: Any) -> Any:
    """A tensor on the GPU, where there is one."""
    import torch

    if not isinstance(array, np.ndarray):
        return torch.as_tensor(array, device="cuda")
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().cuda(non_blocking=True) if has_gpu() else tensor


def opened(path: Path, gpu: bool = False, gds: bool = False) -> Any:
    """The array by zarr-python: with its buffers on the GPU, and through kvikio's store."""
    import zarr

    store: Any = str(path)
    if gpu and not has_gpu():
        raise RuntimeError("no GPU")
    if gds:
        from kvikio.zarr import GDSStore

        store = GDSStore(store)
    if gpu:
        zarr.config.enable_gpu()
    return zarr.open_array(store, path="fields", mode="r")


def zarr_python(path: Path, size: Size, shard: int = 0, shards: int = 1) -> Iterator[Any]:
    """zarr-python on the CPU, then a copy."""
    array = opened(path)
    for starts in _starts(size, shard, shards):
        yield to_device(np.stack([array[t : t + 2] for t in starts]))


def zarr_gpu(path: Path, size: Size, shard: int = 0, shards: int = 1) -> Iterator[Any]:
    """zarr-python's buffers on the GPU."""
    yield from _cupy(opened(path, gpu=True), size, shard, shards)


def kvikio(path: Path, size: Size, shard: int = 0, shards: int = 1) -> Iterator[Any]:
    """kvikio's store under zarr-python: files go to the GPU by cuFile."""
    yield from _cupy(opened(path, gpu=True, gds=True), size, shard, shards)


def _cupy(array: Any, size: Size, shard: int, shards: int) -> Iterator[Any]:
    import torch

    for starts in _starts(size, shard, shards):
        yield torch.stack([to_device(array[t : t + 2]) for t in starts])


class _Source:
    """A pair for an external source, in a worker process that opens the store for itself."""

    def __init__(self, path: str, size: Size, shard: int, shards: int):
        self.path, self.array = path, None
        count = (size.hours - 1) // shards
        self.first, self.count = shard * count, count

    def __call__(self, info: Any) -> np.ndarray:
        if self.array is None:
            import zarr

            zarr.config.set({"threading.max_workers": 1, "async.concurrency": 2})
            self.array = zarr.open_array(self.path, path="fields", mode="r")
        start = self.first + info.idx_in_epoch % self.count
        return self.array[start : start + 2]


def external_source(path: Path, size: Size, shard: int = 0, shards: int = 1) -> Iterator[Any]:
    """DALI's external_source in worker processes over zarr-python."""
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    workers = max(1, min(len(os.sched_getaffinity(0)) // shards, 14))
    pipe = Pipeline(
        batch_size=size.batch, num_threads=2, device_id=shard if has_gpu() else None, py_num_workers=workers,
        py_start_method="spawn",
    )
    # Workers read samples of this many batches ahead, so that all of them have one.
    depth = max(2, -(-workers // size.batch))
    with pipe:
        out = fn.external_source(
            source=_Source(str(path), size, shard, shards), batch=False, parallel=True, prefetch_queue_depth=depth,
            dtype=types.FLOAT, ndim=4,
        )
        pipe.set_outputs(out.gpu() if has_gpu() else out)
    pipe.build()
    for batch in DALIGenericIterator(pipe, ["fields"], auto_reset=True):
        yield batch[0]["fields"]


class _Pairs:
    """A map-style data set over xarray."""

    def __init__(self, path: str, size: Size, shard: int, shards: int):
        self.path, self.dataset = path, None
        self.count = (size.hours - 1) // shards
        self.first = shard * self.count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> np.ndarray:
        if self.dataset is None:
            import xarray

            self.dataset = xarray.open_zarr(self.path, chunks=None)
        return self.dataset["fields"][self.first + i : self.first + i + 2].values


def dataloader(path: Path, size: Size, shard: int = 0, shards: int = 1) -> Iterator[Any]:
    """PyTorch's DataLoader over xarray."""
    from torch.utils.data import DataLoader

    workers = max(1, min(len(os.sched_getaffinity(0)) // shards, 14))
    loader = DataLoader(
        _Pairs(str(path), size, shard, shards), batch_size=size.batch, num_workers=workers, multiprocessing_context="spawn",
        persistent_workers=True, drop_last=True, pin_memory=has_gpu(),
    )
    while True:
        for batch in loader:
            yield batch.cuda(non_blocking=True) if has_gpu() else batch


READERS = {
    "zarr-python": zarr_python, "zarr-python GPU": zarr_gpu, "kvikio": kvikio, "DataLoader": dataloader,
    "external_source": external_source, "dali_zarr": dali_zarr,
}
