"""Short-hands for running the operator in a DALI pipeline and comparing what it delivers."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from support.oracle import Oracle
from support.processes import start
from support.server import Server

T = TypeVar("T")

_STATE = re.compile(rb"\nState:\t(.)")
_OPENING = b"Name:\tdali-zarr-open"

# The operator's arguments that change how it works but not what it delivers: the oracle doesn't take them.
_HOW = {
    "decode_device", "device_memory_limit", "host_memory_limit", "io", "use_o_direct", "io_threads", "io_concurrency",
    "decode_threads",
    "prefetch_queue_depth", "storage_options", "initial_fill", "cache_size", "cache_dir", "cache_dir_size", "cache_validate",
}


@functools.cache
def why_no_gpu() -> str | None:
    """Returns None where a CUDA device can be used, else the reason why not."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no GPU: the CUDA driver (libcuda.so.1) isn't installed"
    count = ctypes.c_int(0)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return "no GPU: the CUDA driver finds no device"
    return None


def dali_dtype(name: str) -> Any:
    """DALI's type with NumPy's name."""
    from nvidia.dali import types

    return {
        "bool": types.BOOL, "int8": types.INT8, "int16": types.INT16, "int32": types.INT32, "int64": types.INT64,
        "uint8": types.UINT8, "uint16": types.UINT16, "uint32": types.UINT32, "uint64": types.UINT64,
        "float16": types.FLOAT16, "float32": types.FLOAT, "float64": types.FLOAT64,
        # DALI lacks it. The reader's own function takes its name.
        "bfloat16": "bfloat16",
    }[name]


def build(
    device: str = "cpu", batch_size: int = 2, *, dali_queue: int = 2, exec_threads: int = 2, checkpointing: bool = False,
    checkpoint: bytes | None = None, executor: bool | None = None, device_id: int = 0, **args: Any,
) -> Any:
    """A built pipeline of one reader, named "reader"; ``args`` are the operator's, with ``dtype`` by NumPy's name.
    ``executor``: whether it is DALI's dynamic one."""
    import dali_zarr  # noqa: F401  (loads the operator)
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    if "dtype" in args and not isinstance(args["dtype"], dict):
        args["dtype"] = dali_dtype(str(np.dtype(args["dtype"])))
    if isinstance(args.get("path"), Path):
        args["path"] = str(args["path"])
    elif "path" in args and not isinstance(args["path"], str):
        args["path"] = [str(p) for p in args["path"]]
    # Small limits: thousands of short-lived readers shouldn't pin as much memory as the default allows.
    args = {"host_memory_limit": 128 << 20} | args
    if device == "gpu":
        args = {"device_memory_limit": 256 << 20} | args
    pipe = Pipeline(
        batch_size=batch_size, num_threads=exec_threads, device_id=device_id if device == "gpu" else None,
        prefetch_queue_depth=dali_queue, enable_checkpointing=checkpointing, checkpoint=checkpoint,
        **({} if executor is None else {"exec_dynamic": executor}),
    )
    with pipe:
        out = fn.zarr_reader(device=device, name="reader", **args)
        pipe.set_outputs(*(out if isinstance(out, (list, tuple)) else [out]))
    pipe.build()
    return pipe


def to_numpy(tensors: Any) -> np.ndarray:
    """A batch of equal samples as one array (batch, ...)."""
    if hasattr(tensors, "as_cpu"):
        tensors = tensors.as_cpu()
    # One by one NumPy reads the text that describes a sample's memory, which takes 20 microseconds.
    if tensors.is_dense_tensor():
        return tensors.as_array()
    return np.stack([np.array(tensors.at(i)) for i in range(len(tensors))])


def read(path: Any, arrays: Sequence[str] = ("z",), count: int = 100, function: Any = None, **args: Any) -> list[np.ndarray]:
    """Returns the first batch of ``fn.zarr_reader``, or of another function, on the CPU, without padding samples."""
    import dali_zarr  # noqa: F401
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    pipe = Pipeline(batch_size=count, num_threads=1, device_id=None)
    with pipe:
        how = {"host_memory_limit": "128MiB", "name": "reader", "pad_last_batch": True}
        out = (function or fn.zarr_reader)(path=path, arrays=list(arrays), **how, **args)
        pipe.set_outputs(*(out if isinstance(out, (list, tuple)) else [out]))
    pipe.build()
    return [to_numpy(o)[: pipe.epoch_size("reader")] for o in pipe.run()]


def batches(pipe: Any) -> Iterator[list[np.ndarray]]:
    """Yields what a pipeline delivers, without end."""
    while True:
        yield [to_numpy(out) for out in pipe.run()]


def same(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Asserts equal shape, dtype and bits; NaNs are equal to each other whatever their payload."""
    assert found.dtype == expected.dtype, f"{what}: dtype {found.dtype}, expected {expected.dtype}"
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    if found.tobytes() == expected.tobytes():
        return
    bits = f"u{found.dtype.itemsize}"
    wrong = np.ascontiguousarray(found).view(bits) != np.ascontiguousarray(expected).view(bits)
    if found.dtype.kind == "f":
        wrong &= ~(np.isnan(found) & np.isnan(expected))
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.size} values differ, first at {where}: "
            f"{found[where]!r}, expected {expected[where]!r}"
        )


def check(
    device: str, batch_size: int = 2, epochs: float = 1.0, local: Path | None = None, told: dict[str, Any] | None = None,
    **args: Any,
) -> Oracle:
    """Runs the operator and the oracle side by side for that many epochs (at least one batch) and asserts that every
    output of every batch is equal to the bit, and its layout right. ``local`` is where the oracle finds a remote store.
    ``told`` has arguments that the oracle gets instead of the operator's, or in addition."""
    told = {k: v for k, v in args.items() if k not in _HOW} | ({"path": local} if local else {}) | (told or {})
    oracle = Oracle(batch_size, **told)
    pipe = build(device, batch_size, **args)
    try:
        expected, layouts = oracle.batches(), oracle.layouts()
        arrays = args.get("arrays", [])
        names = [] if isinstance(arrays, str) or args.get("stack_arrays") else [f"array {name}" for name in arrays]
        rounds = max(1, int(np.ceil(oracle.epoch_length(0) * epochs / batch_size)))
        for number in range(rounds):
            outputs = pipe.run()
            for i, (out, want, layout) in enumerate(zip(outputs, next(expected), layouts, strict=True)):
                what = f"batch {number}, {names[i] if i < len(names) else f'output {i}'}"
                same(to_numpy(out), want, what)
                assert out.layout() == layout, f"{what}: layout {out.layout()!r}, expected {layout!r}"
    finally:
        del pipe
    return oracle


def stats_of(batch_count: int, device: str = "cpu", batch_size: int = 2, **args: Any) -> dict[str, Any]:
    """Returns the reader's counters after ``batch_count`` batches, when it has also read as far ahead as it may."""
    pipe = build(device, batch_size, dali_queue=1, **args)
    for _ in range(batch_count):
        pipe.run()
    return settled(pipe)


def settled(pipe: Any) -> dict[str, Any]:
    """Returns the reader's counters once they stand still: its queue and DALI's are full, every request was answered,
    and all writes to caches are done."""
    import dali_zarr

    return at_rest(lambda: dali_zarr.counters(pipe)["reader"])


def at_rest(counters: Callable[[], T]) -> T:
    """Returns what ``counters`` gives once it stands still. Meanwhile no thread of a reader or of DALI may run, or wait
    for a processor or a disk. No test's server may have a request to answer: while it does, no thread has to run."""
    last, still, until = counters(), 0, time.monotonic() + 60
    # Threads are looked at twice only: when the counters begin to stand still, and at the end. They count their turns themselves.
    turns, active = dict[str, bytes](), ""
    while True:
        now, requests = counters(), sum(server.in_flight for server in Server.running)
        still = still + 1 if now == last and not requests else 0
        if still == 1:
            _, turns = _threads()
        elif still == 5:
            before, (busy, turns) = turns, _threads()
            if turns == before and not busy:
                return now
            still, active = 1, f"{busy} run, {[task for task in turns if turns[task] != before.get(task)]} ran; "
        if time.monotonic() > until:
            raise AssertionError(f"no rest: {active}{requests} requests in flight; counters {last}, then {now}")
        last = now
        time.sleep(0.03 if Server.running or _asks_servers(now) else 0.004)


def _asks_servers(counters: Any) -> bool:
    """Returns whether one of these readers has a store that isn't on a local disk."""
    if isinstance(counters, dict):
        return bool(counters.get("requests", True)) or any("://" in path for path in counters["path"])
    return any(map(_asks_servers, counters)) if isinstance(counters, list) else True


def _threads() -> tuple[list[str], dict[str, bytes]]:
    """Returns the threads of readers and of DALI that run, could run or wait for a disk; and for all of them, by name
    and number, how often each has stopped so far."""
    busy, turns = list[str](), dict[str, bytes]()
    for task in os.listdir("/proc/self/task"):
        try:
            file = os.open(f"/proc/self/task/{task}/status", os.O_RDONLY)
            try:
                status = os.read(file, 1 << 16)
            finally:
                os.close(file)
        except OSError:  # it has ended
            continue
        # cuFile's own threads wake now and then, even while a reader is at rest. They inherit the name of the thread that
        # opened the reader. That thread itself has ended before there are counters.
        if status.startswith((b"Name:\tdali-zarr", b"Name:\t[DALI]")) and not status.startswith(_OPENING):
            name = f"{status[6 : status.index(10)].decode()} {task}"
            turns[name] = status[status.index(b"\nvoluntary_ctxt_switches:") :]
            if _STATE.search(status)[1] in b"RD":
                busy.append(name)
    return busy, turns


def run_script(script: str, *argv: str, env: dict[str, str] | None = None, timeout: float = 90, imports: str = "dali") -> str:
    """Runs Python code in a process of its own with the tests' modules in reach; returns its output, fails on any failure."""
    process = start(script, *argv, imports=imports, env=env)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, f"exit status {process.returncode}\n{out}\n{err}"
    return out
