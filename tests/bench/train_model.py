"""The U-Nets that the benchmark trains, their training step, and the search for one that asks for a given rate of data.

A model is described by ModelSpec. ``patch`` decides what bounds it: 1 keeps all layers at full resolution, where memory is the
bound; 4 gives a quarter of the resolution to layers that are many times wider, which are bound by matrix products.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class ModelSpec:
    """Size of a U-Net: ``width`` channels at its first scale, ``extra`` more layers at its coarsest."""

    patch: int
    width: int
    extra: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def _layer(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs, track_running_stats=False),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Three scales, two 3 x 3 convolutions before and after each change of scale, as in the paper that named it."""

    def __init__(self, channels: int, spec: ModelSpec):
        super().__init__()
        width, self.patch = spec.width, spec.patch
        first = channels if spec.patch == 1 else width
        self.stem = nn.Identity() if spec.patch == 1 else nn.Conv2d(channels, width, spec.patch, stride=spec.patch)
        self.down0 = nn.Sequential(_layer(first, width), _layer(width, width))
        self.down1 = nn.Sequential(_layer(width, 2 * width), _layer(2 * width, 2 * width))
        middle = [_layer(4 * width, 4 * width) for _ in range(spec.extra)]
        self.bottom = nn.Sequential(_layer(2 * width, 4 * width), *middle, _layer(4 * width, 2 * width))
        self.up1 = nn.Sequential(_layer(4 * width, 2 * width), _layer(2 * width, width))
        self.up0 = nn.Sequential(_layer(2 * width, width), _layer(width, width))
        self.head = nn.Conv2d(width, channels * spec.patch**2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channel, latitude, longitude), grid lengths multiples of 4 * patch; the same shape comes back."""
        fine = self.down0(self.stem(x))
        middle = self.down1(F.max_pool2d(fine, 2))
        coarse = self.bottom(F.max_pool2d(middle, 2))
        middle = self.up1(torch.cat([middle, F.interpolate(coarse, scale_factor=2)], 1))
        fine = self.up0(torch.cat([fine, F.interpolate(middle, scale_factor=2)], 1))
        return F.pixel_shuffle(self.head(fine), self.patch)


@dataclass(frozen=True)
class Setting:
    """What training needs to know beside the model: the batches, where it runs and how."""

    batch_size: int
    channels: int
    grid: tuple[int, int]
    mean: list[float]
    stddev: list[float]
    device: torch.device
    pairs: bool
    cuda_graphs: bool = False
    distributed: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """bfloat16 on a GPU. On the CPU float32: a CPU without bfloat16 would emulate it, and the emulation would be
        measured."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample's fields of one time."""
        return 4 * self.channels * self.grid[0] * self.grid[1]

    @property
    def step_bytes(self) -> int:
        """Bytes that are delivered for a step."""
        return self.batch_size * self.sample_bytes * (2 if self.pairs else 1)


def _flat_gradients(net: torch.nn.Module) -> torch.Tensor:
    """Returns one tensor whose parts are the gradients of all parameters. A CUDA graph can capture its mean over
    processes."""
    parameters = list(net.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype, device=parameters[0].device)
    at = 0
    for p in parameters:
        # The optimizer wants gradients with the same strides as the parameter.
        p.grad = flat[at : at + p.numel()].as_strided(p.shape, p.stride())
        at += p.numel()
    return flat


class Trainer:
    """One model with its optimizer. :meth:`step` trains on a batch and never waits for the GPU."""

    def __init__(self, spec: ModelSpec, setting: Setting):
        self.spec, self.setting = spec, setting
        device, dtype = setting.device, setting.dtype
        torch.manual_seed(0)
        net = UNet(setting.channels, spec).to(device, dtype, memory_format=torch.channels_last)
        self.weights = sum(p.numel() for p in net.parameters())
        self.gradients: torch.Tensor | None = None
        if setting.distributed and setting.cuda_graphs:
            self.gradients = _flat_gradients(net)
        elif setting.distributed:
            from torch.nn.parallel import DistributedDataParallel

            ids = [device.index] if device.type == "cuda" else None
            net = DistributedDataParallel(net, device_ids=ids, gradient_as_bucket_view=True)
        self.net = net
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True, capturable=setting.cuda_graphs)
        shape = (1, setting.channels, 1, 1)
        stddev = torch.tensor(setting.stddev, device=device).reshape(shape)
        self.scale, self.shift = 1 / stddev, -torch.tensor(setting.mean, device=device).reshape(shape) / stddev
        self.loss = torch.zeros((), device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[torch.Tensor] = []

    def _normal(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(self.shift, x, self.scale).to(self.setting.dtype, memory_format=torch.channels_last)

    def _step(self, batch: list[torch.Tensor]) -> None:
        now = self._normal(batch[0])
        target = self._normal(batch[1]) if self.setting.pairs else now
        loss = F.mse_loss(self.net(now), target)
        if self.gradients is None:
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        else:
            self.gradients.zero_()
            loss.backward()
            dist.all_reduce(self.gradients, dist.ReduceOp.AVG)
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    def step(self, batch: list[torch.Tensor]) -> None:
        """Forward, backward and the optimizer on the current stream."""
        if self.graph is None:
            self._step(batch)
            return
        for held, given in zip(self.inputs, batch):
            held.copy_(given, non_blocking=True)
        self.graph.replay()

    def warm_up(self, batch: list[torch.Tensor], steps: int = 4) -> None:
        """Runs the steps in which cuDNN chooses its algorithms; with CUDA graphs also captures one."""
        if self.setting.cuda_graphs:
            self._capture(batch, steps)
        else:
            for _ in range(steps):
                self._step(batch)
        for _ in range(2):
            self.step(batch)

    def _capture(self, batch: list[torch.Tensor], steps: int) -> None:
        """Captures a step on a stream of its own, since the default one can't be captured. Captured kernels keep that
        stream's priority."""
        here = torch.cuda.current_stream()
        stream = torch.cuda.Stream(priority=here.priority)
        self.inputs = [t.clone() for t in batch]
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            for _ in range(steps):
                self._step(self.inputs)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        # Other threads, as NCCL's, may call the driver meanwhile.
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            self._step(self.inputs)
        here.wait_stream(stream)


def synthetic(setting: Setting, count: int = 3) -> Callable[[], list[torch.Tensor]]:
    """Returns a function that gives one of ``count`` fixed batches after the other. Together they exceed the GPU's
    caches."""
    shape = (setting.batch_size, setting.channels, *setting.grid)
    draw = torch.Generator(device=setting.device).manual_seed(1)
    mean = torch.tensor(setting.mean, device=setting.device).reshape(1, -1, 1, 1)
    stddev = torch.tensor(setting.stddev, device=setting.device).reshape(1, -1, 1, 1)
    each = 2 if setting.pairs else 1
    batches = [
        [torch.randn(shape, device=setting.device, generator=draw) * stddev + mean for _ in range(each)] for _ in range(count)
    ]
    at = 0

    def fetch() -> list[torch.Tensor]:
        nonlocal at
        at = (at + 1) % count
        return batches[at]

    return fetch


def step_seconds(
    trainer: Trainer, fetch: Callable[[], list[torch.Tensor]], seconds: float, agree: Callable[[float], float] = float
) -> float:
    """Returns the mean seconds of a step on synthetic data. It takes as many steps as fit into ``seconds``, at least
    four. Processes that average gradients must ``agree`` on one number of steps."""

    def timed(steps: int) -> float:
        cuda = trainer.setting.device.type == "cuda"
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            trainer.step(fetch())
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / steps

    return timed(max(4, min(400, round(seconds / agree(timed(2))))))


def calibrate(start: ModelSpec, setting: Setting, gbps: float, seconds: float) -> tuple[ModelSpec, float]:
    """Searches a model near ``start`` whose training asks for ``gbps`` of delivered data. Returns it, and the GB/s that
    it asks for.

    First it finds the width, in multiples of 8, that comes nearest from the fast side. Then layers at the coarsest
    scale fill the rest.
    """
    target = setting.step_bytes / gbps / 1e9
    setting = replace(setting, distributed=False)
    fetch = synthetic(setting)
    known: dict[ModelSpec, float] = {}

    def measured(spec: ModelSpec) -> float:
        if spec not in known:
            trainer = Trainer(spec, setting)
            trainer.warm_up(fetch())
            known[spec] = step_seconds(trainer, fetch, seconds)
            print(f"  model {spec.as_dict()}: {known[spec] * 1e3:.2f} ms a step, wanted {target * 1e3:.2f}", flush=True)
            del trainer
            if setting.device.type == "cuda":
                torch.cuda.empty_cache()
        return known[spec]

    spec = start
    for _ in range(4):
        factor = (target / measured(spec)) ** 0.75
        width = max(8, round(spec.width * factor) // 8 * 8)
        if width == spec.width or replace(spec, width=width) in known:
            break
        spec = replace(spec, width=width)
    fast = [s for s in known if known[s] <= target]
    spec = max(fast, key=known.get) if fast else min(known, key=known.get)
    for probe in (4, None):
        slower = [s for s in known if s.width == spec.width and s.extra > spec.extra]
        missing = target - measured(spec)
        if probe is None and slower:
            each = (known[slower[0]] - known[spec]) / (slower[0].extra - spec.extra)
            probe = round(missing / each) if each > 0 else 0
        if missing > 0.01 * target and 0 < (probe or 0) <= 64:
            measured(replace(spec, extra=probe))
    best = min(known, key=lambda s: abs(known[s] / target - 1))
    return best, setting.step_bytes / known[best] / 1e9
