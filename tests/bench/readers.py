"""The ways to get batches of fields that the benchmark compares: the reader, and what people use today.

Each is a function (store, device, batch_size, threads) -> iterator of batches for one epoch after another, without end. A
batch is (batch, ..., LAT, LON), complete when it is handed over: a NumPy array on the CPU, something with numpy() on the GPU.
Importing what isn't installed raises ImportError, refusing a store raises anything: the benchmark reports both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from stores import LAT, LON, STORES, Store, dtype_of

Batches = Iterator[Any]

# More arguments of fn.zarr_reader, such as memory limits, that are to be measured.
ARGUMENTS: dict[str, int] = {}


def _ranges(store: Store, batch_size: int) -> Iterator[slice]:
    for i in itertools.cycle(range(0, store.fields - batch_size + 1, batch_size)):
        yield slice(i, i + batch_size)


def _deliver(arrays: Iterator[np.ndarray], device: str) -> Batches:
    """Yields host arrays as they are, or copied to the GPU through one pinned buffer that is reused."""
    if device == "cpu":
        yield from arrays
        return
    from support.cuda import PinnedCopy

    target: PinnedCopy | None = None
    for array in arrays:
        target = target or PinnedCopy(array)
        yield target.copy(array)


def _pipeline(device: str, batch_size: int, threads: int) -> Any:
    from nvidia.dali.pipeline import Pipeline

    return Pipeline(batch_size=batch_size, num_threads=threads, device_id=0 if device == "gpu" else None)


def _dali_batches(pipe: Any, device: str) -> Batches:
    """Yields what a pipeline delivers, without a copy."""
    while True:
        (out,) = pipe.run()
        if device == "cpu":
            yield np.asarray(out.as_tensor())
        else:
            yield _DeviceBatch(out, lambda out: np.asarray(out.as_cpu().as_tensor()))


class _DeviceBatch:
    """A batch on the GPU, and what copies it to the host."""

    def __init__(self, batch: Any, copied: Callable[[Any], np.ndarray]):
        self.batch, self.copied = batch, copied

    def numpy(self) -> np.ndarray:
        return self.copied(self.batch)


def dali_zarr(store: Store, device: str, batch_size: int, threads: int) -> Batches:
    """fn.zarr_reader."""
    import dali_zarr  # noqa: F401
    from nvidia.dali import fn

    pipe = _pipeline(device, batch_size, threads)
    with pipe:
        pipe.set_outputs(fn.zarr_reader(device=device, path=str(store.path), arrays=["field"], **ARGUMENTS))
    pipe.build()
    return _dali_batches(pipe, device)


def _zarr(store: Store, device: str, batch_size: int, threads: int, pipeline: str) -> Batches:
    import zarr

    settings = {"codec_pipeline.path": pipeline, "threading.max_workers": threads, "async.concurrency": max(threads, 10)}

    def arrays() -> Iterator[np.ndarray]:
        with zarr.config.set(settings):
            array = zarr.open_array(str(store.path), path="field", mode="r")
            for where in _ranges(store, batch_size):
                yield array[where]

    return _deliver(arrays(), device)


def zarr_python(store: Store, device: str, batch_size: int, threads: int) -> Batches:
    """zarr-python with its own codec pipeline."""
    return _zarr(store, device, batch_size, threads, "zarr.core.codec_pipeline.BatchedCodecPipeline")


def zarr_python_fused(store: Store, device: str, batch_size: int, threads: int) -> Batches:
    """zarr-python with its other codec pipeline, from version 3.3 on."""
    from zarr.core.codec_pipeline import FusedCodecPipeline  # noqa: F401

    return _zarr(store, device, batch_size, threads, "zarr.core.codec_pipeline.FusedCodecPipeline")


def zarrs_python(store: Store, device: str, batch_size: int, threads: int) -> Batches:
    """zarr-python with the codec pipeline of zarrs."""
    import zarrs  # noqa: F401

    return _zarr(store, device, batch_size, threads, "zarrs.ZarrsCodecPipeline")


def _zarr_on_gpu(store: Store, batch_size: int, opened: Callable[[str], Any]) -> Batches:
    import cupy  # noqa: F401
    import zarr

    zarr.config.enable_gpu()
    array = zarr.open_array(opened(str(store.path)), path="field", mode="r")
    for where in _ranges(store, batch_size):
        yield _DeviceBatch(array[where], lambda batch: batch.get())


def zarr_python_gpu(store: Store, device: str, batch_size: int, threads: int) -> Batches:
    """zarr-python with its buffers on the GPU."""
    return _zarr_on_gpu(store, batch_size, str)


def kvikio(store: Store, device: str, batch_size: int, threads: int) -> Batches:
    """zarr-python with its buffers on the GPU, and files read by cuFile."""
    from kvikio.zarr import GDSStore

    return _zarr_on_gpu(store, batch_size, GDSStore)


def tensorstore(store: Store, device: str, batch_size: int, threads: int) -> Batches:
    """tensorstore, one read per batch."""
    import tensorstore as ts

    array = ts.open(
        {
            "driver": "zarr3" if store.name.startswith("v3") else "zarr",
            "kvstore": {"driver": "file", "path": str(store.path / "field")},
            "context": {"data_copy_concurrency": {"limit": threads}, "file_io_concurrency": {"limit": max(threads, 4)}},
        },
        read=True,
    ).result()
    return _deliver((array[where].read().result() for where in _ranges(store, batch_size)), device)


class _Fields:
    """The fields, for worker processes, each of which opens the store for itself."""

    def __init__(self, path: str, fields: int):
        self.path, self.fields, self.array = path, fields, None

    def field(self, i: int) -> np.ndarray:
        if self.array is None:
            import zarr

            zarr.config.set({"threading.max_workers": 1, "async.concurrency": 1})
            self.array = zarr.open_array(self.path, path="field", mode="r")
        return self.array[i]


class _Items(_Fields):
    """A map-style data set."""

    def __len__(self) -> int:
        return self.fields

    __getitem__ = _Fields.field


class _Source(_Fields):
    """A source of samples for DALI."""

    def __call__(self, info: Any) -> np.ndarray:
        return self.field(info.idx_in_epoch % self.fields)


def external_source(store: Store, device: str, batch_size: int, threads: int) -> Batches:
    """DALI's external_source in parallel worker processes over zarr-python."""
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline

    pipe = Pipeline(
        batch_size=batch_size, num_threads=2, device_id=0 if device == "gpu" else None, py_num_workers=max(1, min(threads, 14)),
        py_start_method="spawn",
    )
    with pipe:
        out = fn.external_source(
            source=_Source(str(store.path), store.fields), batch=False, parallel=True, prefetch_queue_depth=2,
            dtype={"float32": types.FLOAT, "uint16": types.UINT16}[dtype_of(store.name)],
            ndim=3 if "levels" in STORES[store.name] else 2,
        )
        pipe.set_outputs(out.gpu() if device == "gpu" else out)
    pipe.build()
    return _dali_batches(pipe, device)


def dataloader(store: Store, device: str, batch_size: int, threads: int) -> Batches:
    """PyTorch's DataLoader over zarr-python, in worker processes."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        _Items(str(store.path), store.fields), batch_size=batch_size, num_workers=max(1, min(threads, 14)), drop_last=True,
        multiprocessing_context="spawn", persistent_workers=True, pin_memory=device == "gpu",
    )
    while True:
        for batch in loader:
            if device == "cpu":
                yield batch.numpy()
            else:
                yield _DeviceBatch(batch.cuda(non_blocking=True), lambda batch: batch.cpu().numpy())


READERS: dict[str, Callable[[Store, str, int, int], Batches]] = {
    "dali_zarr": dali_zarr,
    "zarr-python": zarr_python,
    "zarr-python-fused": zarr_python_fused,
    "zarrs-python": zarrs_python,
    "zarr-python GPU": zarr_python_gpu,
    "kvikio": kvikio,
    "tensorstore": tensorstore,
    "DataLoader": dataloader,
    "external_source": external_source,
}
# Those that have no data on the CPU.
OF_GPU = ("zarr-python GPU", "kvikio")


def to_host(batch: Any) -> np.ndarray:
    """Returns a batch in host memory, for its checksums."""
    array = batch if isinstance(batch, np.ndarray) else batch.numpy()
    assert array.shape[-2:] == (LAT, LON), array.shape
    return array
