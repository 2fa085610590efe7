"""What the GPU did beside the timing: its clocks while bars ran, and a profile of a few steps by class of kernel."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_FIELDS = {
    "sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "watts": "power.draw", "celsius": "temperature.gpu",
    "throttle": "clocks_throttle_reasons.active",
}
# The first class with a word in a kernel's name, in lower case. Kernels of the reader begin with dz_.
_CLASSES = (
    ("reader: assemble", ("dz_assemble",)),
    ("reader: decode", ("dz_",)),
    ("copies", ("memcpy", "memset")),
    ("communication", ("nccl",)),
    ("normalise", ("batch_norm", "batchnorm", "bn_", "_bn")),
    ("optimizer", ("multi_tensor", "adam")),
    ("matrix products", ("gemm", "conv", "xmma", "cutlass", "wgrad", "dgrad", "sm90", "sm80", "nvjet", "implicit", "cudnn")),
)


class Clocks:
    """Logs clocks, power and temperature to a file twice a second through nvidia-smi, where there is one."""

    def __init__(self, file: Path, index: int, cuda: bool):
        self.file, self.process = file, None
        if not cuda:
            return
        query = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS.values())}", "--format=csv,noheader,nounits"]
        query += ["-lms", "500", "-i", str(index)]
        try:
            with open(file, "w") as out:
                self.process = subprocess.Popen(query, stdout=out, stderr=subprocess.DEVNULL)
        except OSError:
            self.process = None

    def position(self) -> int:
        """Returns where the log ends now."""
        return self.file.stat().st_size if self.process else 0

    def since(self, position: int) -> dict[str, float] | None:
        """Returns least and median clocks, median power, the highest temperature and all reasons for throttling since a
        position."""
        if not self.process:
            return None
        with open(self.file) as f:
            f.seek(position)
            rows = [line.split(",") for line in f.read().splitlines() if line.count(",") == len(_FIELDS) - 1]
        columns = {name: [row[i].strip() for row in rows] for i, name in enumerate(_FIELDS)}
        numbers = {name: [float(v) for v in values if _is_number(v)] for name, values in columns.items()}
        if not numbers["sm_mhz"]:
            return None
        summary: dict[str, Any] = {"samples": len(numbers["sm_mhz"]), "sm_mhz_min": min(numbers["sm_mhz"])}
        for name in ("sm_mhz", "memory_mhz", "watts"):
            if numbers[name]:
                summary[name] = statistics.median(numbers[name])
        if numbers["celsius"]:
            summary["celsius_max"] = max(numbers["celsius"])
        summary["throttle"] = sorted(set(columns["throttle"]))
        return summary

    def close(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(timeout=10)
            self.process = None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def kernel_class(name: str) -> str:
    """Returns the class of a kernel or copy by its name. Kernels that no rule names do elementwise work, reductions or
    pooling."""
    lower = name.lower()
    return next((label for label, words in _CLASSES if any(word in lower for word in words)), "elementwise")


def union(intervals: list[tuple[float, float]]) -> float:
    """Returns the length of the time that at least one of the intervals covers."""
    covered, end = 0.0, float("-inf")
    for begin, until in sorted(intervals):
        if until > end:
            covered += until - max(begin, end)
            end = until
    return covered


def summarise(kernels: list[tuple[str, float, float]], steps: int) -> dict[str, Any]:
    """Returns the milliseconds of a step by class, from (name, begin, end) in microseconds: sums, and the time that
    something ran.

    Kernels that run side by side each count in full in the sums; ``busy`` counts such time once.
    """
    sums: dict[str, float] = {}
    names: dict[str, float] = {}
    for name, begin, end in kernels:
        label = kernel_class(name)
        sums[label] = sums.get(label, 0.0) + end - begin
        names[name] = names.get(name, 0.0) + end - begin
    groups: dict[str, list[tuple[float, float]]] = {"reader": [], "training": []}
    for name, begin, end in kernels:
        label = kernel_class(name)
        if label != "copies":
            groups["reader" if label.startswith("reader") else "training"].append((begin, end))
    reader, training = union(groups["reader"]), union(groups["training"])
    both = reader + training - union(groups["reader"] + groups["training"])
    each = 1e3 * steps
    return {
        "steps": steps,
        "classes_ms": {label: total / each for label, total in sorted(sums.items(), key=lambda item: -item[1])},
        "busy_ms": {"reader": reader / each, "training": training / each, "both": both / each},
        "longest_ms": {n[:100]: t / each for n, t in sorted(names.items(), key=lambda item: -item[1])[:15]},
    }


def profile(step: Callable[[], None], steps: int) -> dict[str, Any]:
    """Returns the GPU time of ``steps`` steps by class of kernel, or why there is none. Profiled steps are slower than
    others."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity

    try:
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as prof:
            for _ in range(steps):
                step()
            torch.cuda.synchronize()
        # Annotations span the kernels below them.
        kernels = [
            (e.name, e.time_range.start, e.time_range.end) for e in prof.events()
            if e.device_type == DeviceType.CUDA and not getattr(e, "is_user_annotation", False)
        ]
    except RuntimeError as error:
        return {"failed": str(error).splitlines()[0]}
    return summarise(kernels, steps) if kernels else {"failed": "the profiler saw no kernels"}
