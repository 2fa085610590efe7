"""One row of the benchmark of training: real and synthetic data in turns, loading alone, and what the numbers mean.

Nothing here waits for the GPU inside a loop. Events mark segments of many steps on the training stream, and are read at the end.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from train_model import Trainer
from train_source import Source

Fetch = Callable[[], list[torch.Tensor]]


class Marks:
    """Points in time on the current stream, or of the clock where there is no GPU."""

    def __init__(self, cuda: bool):
        self.cuda, self.points = cuda, []

    def mark(self) -> None:
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.points.append(event)
        else:
            self.points.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Returns the seconds between neighbouring points. Waits for the last one."""
        if self.cuda:
            self.points[-1].synchronize()
            return [a.elapsed_time(b) / 1e3 for a, b in zip(self.points, self.points[1:])]
        return [b - a for a, b in zip(self.points, self.points[1:])]


@dataclass
class Bar:
    """A timed run of steps: seconds of a step in each segment of ``segment`` steps, in order."""

    segment: int
    seconds: list[float]
    fetching: float = 0.0  # share of the time that the host spent asking for batches
    cores: float = 0.0  # processors that this process kept busy
    steady: bool = True
    counters: dict[str, float] = field(default_factory=dict)
    # Changes of counters from rest to rest, the steps before the bar included. A short bar alone may take only batches
    # that were prepared before it.
    at_rest: dict[str, float] = field(default_factory=dict)

    @property
    def step(self) -> float:
        """Mean seconds of a step."""
        return statistics.fmean(self.seconds)

    @property
    def steps(self) -> int:
        return self.segment * len(self.seconds)

    @property
    def decoded_per_batch(self) -> float:
        """Chunks that were read for a batch, on average."""
        return self.at_rest["chunks_read"] / max(1, self.at_rest["batches"])

    @property
    def spread(self) -> float:
        """Standard deviation of the segments' means as a share of the mean."""
        return statistics.pstdev(self.seconds) / self.step if len(self.seconds) > 1 else 0.0


@dataclass(frozen=True)
class Plan:
    """How long bars are. ``agree`` makes all processes of a distributed run use one number, the largest."""

    seconds: float
    turns: int
    queues: int = 8
    run_ahead: int = 0
    agree: Callable[[float], float] = float
    barrier: Callable[[], None] = lambda: None


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _run(work: Callable[[list[torch.Tensor]], None], fetch: Fetch, segment: int, segments: int, cuda: bool, ahead: int) -> Bar:
    """Runs ``segments`` times ``segment`` steps. ``ahead`` > 0 bounds how many steps the host is ahead of the GPU,
    without a stall."""
    marks, fetching, done = Marks(cuda), 0.0, []
    used, begin = _processor_seconds(), time.perf_counter()
    marks.mark()
    for _ in range(segments):
        for _ in range(segment):
            asked = time.perf_counter()
            batch = fetch()
            fetching += time.perf_counter() - asked
            work(batch)
            # The reader may use the batch's memory again once the GPU has passed this point.
            del batch
            if ahead and cuda:
                done.append(torch.cuda.Event(blocking=True))
                done[-1].record()
                if len(done) > ahead:
                    done.pop(0).synchronize()
        marks.mark()
    seconds = [s / segment for s in marks.seconds()]
    wall = time.perf_counter() - begin
    return Bar(segment, seconds, fetching / wall, (_processor_seconds() - used) / wall)


def _steady(seconds: list[float]) -> int:
    """Returns the first segment from which on the pace is that of the second half, within 3 %."""
    late = statistics.median(seconds[len(seconds) // 2 :])
    for i in range(len(seconds) // 2):
        if abs(statistics.fmean(seconds[i : i + 2]) / late - 1) < 0.03:
            return i
    return len(seconds) // 2


def _difference(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in after}


def _sum(all_counters: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(counters[name] for counters in all_counters) for name in all_counters[0]}


def measure_real(work: Callable[[list[torch.Tensor]], None], source: Source, plan: Plan, seconds: float) -> Bar:
    """Runs until the queues have been passed through twice, or for as long as a bar; then a bar of many queues' lengths.

    The reader is at rest before it (:meth:`Source.settle`) and after it, so that the chunks of a batch can be counted.
    """
    source.settle()
    rest = source.counters()
    cuda, queue = source.setting.device.type == "cuda", round(plan.agree(source.queue))
    first = _run(work, source.fetch, queue, 1, cuda, plan.run_ahead)
    pace = plan.agree(first.step)
    if pace * queue < 2 * seconds:
        second = _run(work, source.fetch, queue, 1, cuda, plan.run_ahead)
        pace = plan.agree(second.step)
    # At least ``plan.queues`` times the queue, but a slow reader must not hold up all others. The row says how many
    # steps there were.
    steps = max(seconds / pace, min(plan.queues * queue, 2 * seconds / pace))
    segment = max(1, min(queue // 2, int(steps / 8)))
    segments = max(4, round(steps / segment))
    before = source.counters()
    bar = _run(work, source.fetch, segment, segments, cuda, plan.run_ahead)
    bar.counters = _difference(source.counters(), before)
    source.settle()
    bar.at_rest = _difference(source.counters(), rest)
    start = _steady(bar.seconds)
    bar.steady = start < len(bar.seconds) // 2
    bar.seconds = bar.seconds[start:]
    return bar


def measure_synthetic(trainer: Trainer, fetch: Fetch, plan: Plan, seconds: float, step: float) -> Bar:
    """The same loop over fixed batches, or copies of them; a few steps go before."""
    cuda = trainer.setting.device.type == "cuda"
    segments = 8
    segment = max(1, round(seconds / step / segments))
    _run(trainer.step, fetch, max(2, segment // 2), 1, cuda, plan.run_ahead)
    return _run(trainer.step, fetch, segment, segments, cuda, plan.run_ahead)


def _rates(bar: Bar, source: Source) -> dict[str, float]:
    """Returns the GB/s of a real bar, and the decoded bytes of a step by the reader's counters."""
    setting = source.setting
    decoded = bar.decoded_per_batch * 4 * setting.grid[0] * setting.grid[1]
    return {
        "delivered_gbps": setting.step_bytes / bar.step / 1e9,
        "decoded_gbps": decoded / bar.step / 1e9,
        "decoded_per_delivered": decoded / setting.step_bytes,
        "decoded_gb_per_step": decoded / 1e9,
    }


def _where(counters: dict[str, float]) -> dict[str, float]:
    """Returns the shares of the chunks by where they were decoded."""
    ends = {
        "cpu": counters["chunks_decoded_cpu"], "gpu": counters["chunks_decoded_gpu"],
        "uncompressed": counters["chunks_uncompressed"],
    }
    total = sum(ends.values()) or 1
    return {f"share_{name}": count / total for name, count in ends.items()}


def loading(source: Source, plan: Plan) -> dict[str, Any]:
    """Measures the reader alone: batches are dropped as soon as they are there."""
    plan.barrier()
    bar = measure_real(lambda batch: None, source, plan, plan.seconds / 2)
    rates = _rates(bar, source)
    return {
        "loading_gbps": rates["delivered_gbps"], "loading_decoded_gbps": rates["decoded_gbps"], "loading_spread": bar.spread,
        "loading_steady": bar.steady, "loading_cores": bar.cores,
        **{f"loading_{name}": share for name, share in _where(bar.at_rest).items()},
    }


def training(source: Source, trainer: Trainer, fixed: Fetch, copies: Fetch, plan: Plan, step: float) -> dict[str, Any]:
    """Measures synthetic data (A), copies of it (C) and real data (B) in turns: A C B A, or A C B A C B A with two turns.
    ``step``: about the seconds of a synthetic step."""
    synthetic: list[Bar] = []
    copied: list[Bar] = []
    real: list[Bar] = []
    idle = True
    for turn in range(plan.turns + 1):
        # The reader is idle while training runs on synthetic data: its queues are full.
        idle &= source.settle()
        plan.barrier()
        synthetic.append(measure_synthetic(trainer, fixed, plan, plan.seconds / 2, step))
        if turn < plan.turns:
            plan.barrier()
            copied.append(measure_synthetic(trainer, copies, plan, plan.seconds / 2, step))
            plan.barrier()
            real.append(measure_real(trainer.step, source, plan, plan.seconds))
    fixed_step = statistics.fmean(b.step for b in synthetic)
    whole = Bar(
        real[0].segment, [s for b in real for s in b.seconds], statistics.fmean(b.fetching for b in real),
        statistics.fmean(b.cores for b in real), all(b.steady for b in real),
        _sum([b.counters for b in real]), _sum([b.at_rest for b in real]),
    )
    real_step = statistics.fmean(b.step for b in real)
    # Each real bar against the two synthetic ones around it.
    ratios = [(a.step + c.step) / 2 / b.step for a, b, c in zip(synthetic, real, synthetic[1:])]
    rates = _rates(whole, source)
    copies_step = statistics.fmean(b.step for b in copied)
    counters = whole.counters
    decoded = rates.pop("decoded_gb_per_step")
    return {
        "real_ms": real_step * 1e3, "synthetic_ms": fixed_step * 1e3, "ratio": statistics.fmean(ratios), "ratios": ratios,
        "copies_ms": copies_step * 1e3, "copies_bars_ms": [b.step * 1e3 for b in copied], "copies_ratio": fixed_step / copies_step,
        "of_copies": statistics.fmean(c.step / b.step for c, b in zip(copied, real)),
        "synthetic_bars_ms": [b.step * 1e3 for b in synthetic], "real_bars_ms": [b.step * 1e3 for b in real],
        "synthetic_spread": (max(b.step for b in synthetic) - min(b.step for b in synthetic)) / fixed_step,
        "real_spread": whole.spread, "asked_gbps": source.setting.step_bytes / fixed_step / 1e9,
        "tax_ms_per_decoded_gb": (real_step - fixed_step) * 1e3 / decoded if decoded else None,
        **rates, **_where(whole.at_rest), "counters": counters,
        "waits": counters["waits"], "waits_per_batch": counters["waits"] / max(1, counters["batches"]),
        "wait_seconds": counters["wait_seconds"], "fetching_share": whole.fetching, "cores": whole.cores,
        "synthetic_cores": statistics.fmean(b.cores for b in synthetic),
        "steady": whole.steady, "reader_idle_in_synthetic": idle, "timed_steps": whole.steps, "queue": source.queue,
        **source.found(),
        "loss_is_finite": bool(torch.isfinite(trainer.loss).item()),
    }
