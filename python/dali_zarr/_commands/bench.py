"""``bench``: what a store gives on this machine when nothing else is done with the batches, what bounds it, and which chunks
would be faster."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from .. import _arguments, _dali, _gpu, _progress
from .._inspect import counters, explained
from .._selection.axes import Axes
from .._text import shape, size, wrapped

# The command's own arguments.
ARGUMENTS = {"seconds": False, "device_id": False}
_NAME = "reader"
# The parts of the work, and how the names of their counters begin.
_STAGES = {"reading": "read", "decoding": "decode", "assembling": "assemble", "copying": "copy"}
# A part counts as busy if it works for at least this share of the time.
_BUSY = 0.7
# A difference in decoded bytes below this ratio isn't worth another copy of the data.
_WORTH = 1.2
# Bytes of good chunks. Smaller ones are too small to be read one by one; of larger ones there are too few for many
# decoders.
_SMALL, _LARGE = 256 << 10, 16 << 20


def bench(path: str | list[str] | None, options: Mapping[str, Any], show: bool) -> dict[str, Any]:
    """Measures a reader; returns the rates, and what explain says of the same reader.

    Raises:
        ValueError, TypeError, IndexError, MemoryError, RuntimeError: As building and running a pipeline with the reader does.
    """
    given = dict(options)
    seconds, device_id = given.pop("seconds", 10), given.pop("device_id", 0)
    batch_size, device = given.pop("batch_size", 16), given.pop("device", "cpu")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ValueError(f"--seconds: expected a number of seconds, found {seconds!r}")
    if device == "gpu" and (why := _gpu.why_none()):
        raise RuntimeError(f"--device gpu: {why}; give --device cpu")
    plan = explained(path=path, batch_size=batch_size, device=device, **given)
    if not isinstance(plan, dict):
        raise TypeError("explain gave no dictionary")
    load = os.getloadavg()[0]
    measuring = _Measuring({**given, "path": path}, batch_size, device, device_id, plan["batches_per_epoch"])
    steps = measuring.run(seconds)
    for _ in _progress.shown(steps, math.ceil(seconds), "bench", "s", "seconds") if show else steps:
        pass
    measured = _measured(measuring, plan)
    return {
        "path": plan["path"], "device": device, "batch_size": batch_size, **measured, "load_before": load,
        "bound_by": _bounds(measured, plan),
        "faster_chunks": _faster_chunks(plan, _arguments.resolved({**given, "path": path})), "advice": plan["advice"],
    }


def _pipeline(arguments: dict[str, Any], batch_size: int, device: str, device_id: int) -> Any:
    pipe = _dali.module("pipeline").Pipeline(
        batch_size=batch_size, num_threads=1, device_id=device_id if device == "gpu" else None, prefetch_queue_depth=1,
    )
    with pipe:
        found = _dali.module("fn").zarr_reader(**_arguments.to_operator(arguments), device=device, name=_NAME)
        pipe.set_outputs(*(found if isinstance(found, list | tuple) else [found]))
    pipe.build()
    return pipe


class _Measuring:
    """Runs epochs, each with a new reader: chunks that one keeps decoded in memory must not serve the next epoch."""

    def __init__(self, arguments: Mapping[str, Any], batch_size: int, device: str, device_id: int, epoch: int):
        self._how, self._epoch = (dict(arguments), batch_size, device, device_id), epoch
        self.first_batch = 0.0
        self.batches, self.epochs, self.wall, self.cpu = 0, 0.0, 0.0, 0.0
        # Times that the store was opened, and the seconds that this and closing it took, which aren't in ``wall``.
        self.opened, self.opening = 0, 0.0
        self.gained: dict[str, float] = {}

    def run(self, seconds: float) -> Iterator[None]:
        """Measures for so many seconds, opening the store included, and yields once for each second."""
        steps = 0
        while self.wall + self.opening < seconds:
            opened = time.perf_counter()
            pipe = _pipeline(*self._how)
            before, began, cpu = self.wall, time.perf_counter(), time.process_time()
            self.opening += began - opened
            self.opened += 1
            for number in range(self._epoch):
                _next(pipe)
                self.batches += 1
                self.wall = before + time.perf_counter() - began
                self.first_batch = self.first_batch or self.wall
                while steps < min(self.wall + self.opening, math.ceil(seconds) - 1):
                    steps += 1
                    yield
                if self.wall + self.opening >= seconds:
                    self.epochs += (number + 1) / self._epoch - 1
                    break
            self.epochs += 1
            self.cpu += time.process_time() - cpu
            for name, value in counters(pipe)[_NAME].items():
                if isinstance(value, int | float):
                    self.gained[name] = self.gained.get(name, 0) + value
            closed = time.perf_counter()
            del pipe
            self.opening += time.perf_counter() - closed
        yield


def _measured(measuring: _Measuring, plan: Mapping[str, Any]) -> dict[str, Any]:
    wall, gained = measuring.wall, measuring.gained
    samples = measuring.batches * plan["batch_size"]
    sample = sum(output["sample_bytes"] for output in plan["outputs"])
    chunks = gained["chunks_read"]
    return {
        "seconds": wall, "batches": measuring.batches, "epochs": measuring.epochs, "first_batch_seconds": measuring.first_batch,
        "opened": measuring.opened, "opening_seconds": measuring.opening,
        "samples_per_second": samples / wall, "delivered_bytes_per_second": samples * sample / wall,
        "read_bytes_per_second": gained["bytes_read"] / wall, "chunks_per_second": chunks / wall,
        "chunks_decoded_on_gpu": gained["chunks_decoded_gpu"] / chunks if chunks else None,
        "waits_per_batch": gained["waits"] / measuring.batches,
        # The share of all cores that was busy; and for each part of the work, how many threads were busy on average.
        "cores_busy": measuring.cpu / wall / _cores(),
        **{f"{stage}_threads": gained[f"{name}_seconds"] / wall for stage, name in _STAGES.items()},
    }


def _next(pipe: Any) -> None:
    """Takes one batch and releases it at once."""
    pipe.schedule_run()
    pipe.share_outputs()
    pipe.release_outputs()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _bounds(measured: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """Returns what keeps the reader from being faster, as the end of a sentence."""
    if measured["waits_per_batch"] < 0.05:
        return "the loop that takes the batches: they were finished before they were asked for"
    memory = plan["memory"]
    busy = {stage: measured[f"{stage}_threads"] for stage in _STAGES}
    shares = {"reading": busy["reading"] / memory["io_threads"], "decoding": busy["decoding"] / memory["decode_threads"]}
    most = max(busy, key=lambda stage: busy[stage])
    is_remote = any("://" in path and not path.startswith("file://") for path in plan["path"])
    if is_remote and most == "reading":
        return "the store: requests under way took most of the time; more may go on at a time with io_concurrency"
    if measured["cores_busy"] >= _BUSY:
        return f"the {_cores()} cores of this machine, of which {most} takes most"
    if plan["device"] == "gpu" and (measured["chunks_decoded_on_gpu"] or 0) > 0.5 and shares["reading"] < _BUSY:
        return "the GPU's decoders, or the copies to it"
    stage = max(shares, key=lambda name: shares[name])
    if shares[stage] >= _BUSY:
        return "reading: the store or its disk, or the number of io_threads" if stage == "reading" else "the decode_threads"
    return f"no single part: {most} takes most of the time; more chunks in flight would keep more threads busy"


def _faster_chunks(plan: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Suggests chunks that hold what a sample takes, for arrays of which more is decoded than samples take, or which
    have very small chunks. ``arguments`` are the reader's, in the operator's form."""
    if not any(array["dims"] for array in plan["arrays"]):
        return []
    axes = Axes.of_reader(arguments)
    window = axes.listed("window", arguments, 0)
    taken = {
        dim: window[i] if window[i] > 0 else 1 if window[i] == 0 else axes.region_length(i, arguments)
        for i, dim in enumerate(axes.dims)
    } | {dim: 1 for dim, picked in axes.picks.items() if dim not in axes.dims and len(picked[0]) < axes.lengths(dim)[0]}
    found: list[dict[str, Any]] = []
    for array in plan["arrays"]:
        stored = array["stores"][0]
        if not stored["shape"] or not array["bytes_per_sample"]:
            continue
        item = stored["chunk_bytes"] // math.prod(stored["chunks"])
        # Chunks that samples share count as often as they are read.
        ratio = array["chunk_bytes_read_per_sample"] / array["bytes_per_sample"]
        is_small = stored["chunk_bytes"] < _SMALL and array["chunks_per_sample"] > 4
        if ratio < _WORTH and not is_small:
            continue
        better = _at_most(
            [min(taken.get(dim, length), length) for dim, length in zip(array["dims"], stored["shape"], strict=True)], item,
        )
        if better != stored["chunks"]:
            found.append({
                "array": array["name"], "chunks": stored["chunks"], "better": better, "better_bytes": math.prod(better) * item,
                "decoded_per_delivered_byte": ratio, "chunks_per_sample": array["chunks_per_sample"],
            })
    return found


def _at_most(extents: list[int], item: int) -> list[int]:
    """Returns chunks of these extents, halved along the longest dimension until they aren't too large. ``item``: bytes
    of an element."""
    found = list(extents)
    while math.prod(found) * item > _LARGE:
        i = max(range(len(found)), key=lambda n: found[n])
        found[i] = -(-found[i] // 2)
    return found


def text(found: Mapping[str, Any]) -> str:
    """Formats what was measured for people."""
    lines = [
        *(f"store {path}" for path in found["path"]),
        f"{size(found['delivered_bytes_per_second'])}/s, {found['samples_per_second']:.1f} samples/s to the "
        f"{found['device'].upper()} in batches of {found['batch_size']}; first batch after {found['first_batch_seconds']:.2f} s",
        f"read: {size(found['read_bytes_per_second'])}/s, {found['chunks_per_second']:.0f} chunks/s; {found['seconds']:.1f} s, "
        f"{found['epochs']:.2f} epochs" + ("; what was read before may come from the page cache" if found["epochs"] > 1 else ""),
        f"busy: {found['cores_busy']:.0%} of {_cores()} cores; threads that read {found['reading_threads']:.1f}, decode "
        f"{found['decoding_threads']:.1f}, assemble {found['assembling_threads']:.1f}",
        f"bound by {found['bound_by']}",
    ]
    if found["opening_seconds"] > found["seconds"]:
        lines.append(
            f"opening the store took {found['opening_seconds']:.1f} s, {found['opened']} times: an epoch is short; the rates are "
            "those of reading alone"
        )
    if found["load_before"] > 0.3:
        lines.append(f"the machine wasn't idle: its load was {found['load_before']:.1f} before; alone it may give more")
    for one in found["faster_chunks"]:
        shards = ", in shards," if one["better_bytes"] < _SMALL else ""
        lines.append(
            f"faster chunks of {one['array']}: {shape(one['better'])} ({size(one['better_bytes'])}){shards} instead of "
            f"{shape(one['chunks'])}; now {one['decoded_per_delivered_byte']:.1f} bytes are decoded for each byte delivered, of "
            f"{one['chunks_per_sample']:.0f} chunks a sample"
        )
    lines += [f"advice: {one}" for one in found["advice"]]
    return "\n".join(map(wrapped, lines))


def run(path: str | list[str] | None, options: Mapping[str, Any], as_json: bool, quiet: bool) -> int:
    """Prints what was measured. Returns the exit status."""
    found = bench(path, options, not quiet)
    print(json.dumps(found, indent=2) if as_json else text(found))
    return 0
