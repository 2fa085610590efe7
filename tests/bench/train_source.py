"""The source of real batches: a DALI pipeline of one zarr_reader, as its documentation shows it to users of PyTorch."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import torch
import zarr
from nvidia.dali import fn
from nvidia.dali.backend import ReleaseUnusedMemory
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from train_model import Setting

# A store is given this many times, as stores that follow each other. To the reader all chunks of such an epoch are
# different, and it has no memory to keep them all. The page cache holds each once.
REPEATED = 32
# In order, a chunk of a pair (t, t+1) is decoded once and delivered twice. Shuffled over a long epoch, it is decoded
# nearly twice. In short epochs, of the store's own samples, the reader's memory decides how many pairs find their
# chunks decoded.
ORDERS = ("in-order", "shuffled", "short-epochs")
COUNTERS = (
    "chunks_read", "chunks_decoded_cpu", "chunks_decoded_gpu", "chunks_uncompressed", "chunks_from_memory", "chunks_failed",
    "batches", "waits", "wait_seconds", "waves", "chunks_shared",
)


@dataclass(frozen=True)
class Read:
    """What is read and how."""

    path: Path
    decode_device: str
    memory_limit: int | None
    order: str = ORDERS[0]
    rank: int = 0
    world: int = 1
    decode_threads: int | None = None


def resident_bytes() -> int:
    """Returns the bytes of host memory of this process, page-locked memory included."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


def device_bytes(device: torch.device) -> int:
    """Returns the bytes of GPU memory in use, without those that PyTorch has reserved for training."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


class Source:
    """An endless stream of batches. A batch is a list of tensors (batch, channel, latitude, longitude): of one time,
    and with pairs also of the next time."""

    def __init__(self, read: Read, setting: Setting):
        self.read, self.setting = read, setting
        on_gpu = setting.device.type == "cuda"
        device = "gpu" if on_gpu else "cpu"
        how: dict[str, Any] = {
            "path": [str(read.path)] * (1 if read.order == "short-epochs" else REPEATED), "arrays": ["field"], "dims": ["time"],
            "offsets": [0, 1] if setting.pairs else [0], "random_shuffle": read.order != "in-order", "seed": 1,
            "shard_id": read.rank, "num_shards": read.world, "decode_device": read.decode_device,
        }
        if read.decode_threads is not None:
            how["decode_threads"] = read.decode_threads
        if read.memory_limit is not None:
            how["device_memory_limit" if on_gpu else "host_memory_limit"] = read.memory_limit
        if not on_gpu and read.decode_device == "gpu":
            raise ValueError('decode_device="gpu" needs a GPU')
        memory = dali_zarr.explain(batch_size=setting.batch_size, device=device, **how)["memory"]
        self._prepared = int(memory["batches_in_preparation"])
        # DALI's own queue of two follows the reader's.
        self.queue = self._prepared + 2
        self._fetched = 0
        before = resident_bytes(), device_bytes(setting.device)
        self.pipe = Pipeline(
            batch_size=setting.batch_size, num_threads=2, device_id=setting.device.index if on_gpu else None, exec_dynamic=True
        )
        with self.pipe:
            outputs = fn.zarr_reader(device=device, name="reader", **how)
            self.pipe.set_outputs(*(outputs if isinstance(outputs, list | tuple) else [outputs]))
        self.names = ["now", "next"] if setting.pairs else ["now"]
        self.batches = DALIGenericIterator([self.pipe], self.names)
        self._before = before

    def fetch(self) -> list[torch.Tensor]:
        """Returns the next batch. Its tensors are valid on the current stream; no copy is made."""
        (batch,) = next(self.batches)
        self._fetched += 1
        return [batch[name] for name in self.names]

    def memory(self) -> dict[str, int]:
        """Returns how many more bytes the host and the GPU hold than before the reader was made."""
        host, gpu = self._before
        return {"host_bytes": resident_bytes() - host, "gpu_bytes": device_bytes(self.setting.device) - gpu}

    def counters(self) -> dict[str, float]:
        """Returns the reader's counters that the benchmark reports."""
        counters = dali_zarr.counters(self.pipe)["reader"]
        return {name: counters[name] for name in COUNTERS}

    def found(self) -> dict[str, int]:
        """Returns what the reader has found for this model: how many threads decode in the GPU's place, and the reserve."""
        counters = dali_zarr.counters(self.pipe)["reader"]
        return {name: counters[name] for name in ("shared_threads", "shared_reserve")}

    def settle(self, longest: float = 5.0) -> bool:
        """Waits until all queues are full and nothing is read or decoded. Returns whether that happened within
        ``longest`` seconds.

        Then counters are those of whole batches: every chunk that was read belongs to a batch that is counted.
        """
        still, last, end = 0, None, time.perf_counter() + longest
        while time.perf_counter() < end:
            now = self.counters()
            full = now["batches"] - self._fetched >= self._prepared
            still = still + 1 if full and now == last else 0
            if still == 4:
                return True
            last = now
            time.sleep(0.02)
        return False

    def close(self) -> None:
        """Frees what the reader holds, and what DALI would keep for the next pipeline. Otherwise the memory that is
        measured for the next one would be too small."""
        del self.batches, self.pipe
        gc.collect()
        if self.setting.device.type == "cuda":
            torch.cuda.synchronize()
            ReleaseUnusedMemory()


class Oracle:
    """Tells whether a delivered batch is what zarr-python reads, by the bits. Samples are recognised by their first row."""

    def __init__(self, path: Path):
        self.array = zarr.open_array(str(path), path="field", mode="r")
        rows = [self.array[t, 0, 0] for t in range(self.array.shape[0])]
        self.times = {row.tobytes(): t for t, row in enumerate(rows)}
        if len(self.times) != len(rows):
            raise ValueError(f"{path}: expected samples that differ in their first row")

    def check(self, batch: list[torch.Tensor]) -> str | None:
        """Returns None if all values are right, else what is wrong."""
        arrays = [t.cpu().numpy() for t in batch]
        for i in range(len(arrays[0])):
            time_step = self.times.get(np.ascontiguousarray(arrays[0][i, 0, 0]).tobytes())
            if time_step is None:
                return "the first row of a sample is none of the store's"
            for offset, array in enumerate(arrays):
                expected = self.array[(time_step + offset) % self.array.shape[0]]
                if not np.array_equal(array[i], expected):
                    wrong = int((array[i] != expected).sum())
                    return f"{wrong} of {expected.size} values differ from zarr-python's, offset {offset} of time {time_step}"
        return None


def check_in_flight(source: Source, trainer: Any, oracle: Oracle, batches: int) -> dict[str, Any]:
    """Trains without waiting and keeps copies of some batches, taken on the stream after their step; then compares them.

    A buffer that is used again before the GPU has trained on it would show.
    """
    kept: list[list[torch.Tensor]] = []
    every = 4
    for i in range(batches * every):
        batch = source.fetch()
        if trainer is not None:
            trainer.step(batch)
        if i % every == every - 1:
            kept.append([t.clone() for t in batch])
        del batch
    wrong = [text for text in map(oracle.check, kept) if text]
    return {"batches": len(kept), "wrong": wrong}
