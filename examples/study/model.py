"""The U-Net over a ResNet of 34 layers that the study trained, and its training step: the next hour from this one."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from common import Size
from torch import nn
from torch.nn import functional as F


class Conv(nn.Sequential):
    """A convolution, then a batch norm, and ReLU unless told otherwise."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, relu: bool = True):
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True) if relu else nn.Identity(),
        )


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(Conv(inputs, outputs, stride=stride), Conv(outputs, outputs, relu=False))
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else Conv(inputs, outputs, 1, stride, relu=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResUNet(nn.Module):
    """The encoder halves the grid five times: a convolution of 7 x 7, max pooling before the first of four stages (3, 4, 6 and 3
    blocks in a ResNet of 34 layers), and the other stages. The decoder doubles it five times, up to the full grid, and takes up the
    encoder's features at each scale but the last."""

    def __init__(self, channels: int, width: int = 64, depths: tuple[int, ...] = (3, 4, 6, 3)):
        super().__init__()
        self.stem = Conv(channels, width, 7, 2)
        widths = [width << i for i in range(len(depths))]
        self.stages = nn.ModuleList()
        for i, depth in enumerate(depths):
            inputs = widths[max(i - 1, 0)]
            blocks = [Residual(widths[i] if n else inputs, widths[i], 1 if n or i == 0 else 2) for n in range(depth)]
            self.stages.append(nn.Sequential(*blocks))
        # 256, 128, 64, 32 and 16 channels for a width of 64.
        outputs, beside = [4 * width, 2 * width, width, width // 2, width // 4], [*widths[-2::-1], width, 0]
        inputs = [widths[-1], *outputs]
        self.up = nn.ModuleList(
            nn.Sequential(Conv(a + b, out), Conv(out, out)) for a, b, out in zip(inputs, beside, outputs, strict=False)
        )
        self.head = nn.Conv2d(outputs[-1], channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(sample, channel, latitude, longitude), lengths multiples of 32; the same shape comes back."""
        kept = [self.stem(x)]
        y = F.max_pool2d(kept[0], 3, 2, 1)
        for stage in self.stages:
            y = stage(y)
            kept.append(y)
        for i, stage in enumerate(self.up):
            y = F.interpolate(y, scale_factor=2)
            y = stage(torch.cat([y, kept[-2 - i]], 1) if i < len(kept) - 1 else y)
        return self.head(y)


def trainer(size: Size, device: torch.device, ranks: int = 1, cuda_graph: bool = False) -> Callable[[Any], None]:
    """A function that trains on a batch (sample, 2, channel, latitude, longitude). It never waits for all work of the GPU."""
    if cuda_graph and (ranks > 1 or device.type != "cuda"):
        raise ValueError("expected one process and a GPU for a CUDA graph")
    torch.manual_seed(0)
    if device.type == "cpu":
        # The other cores load: threads of a model that wait for one another on busy cores slow it down many times.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    depths = (3, 4, 6, 3) if device.type == "cuda" else (1, 1, 1, 1)
    # PyTorch 2.15's convolutions on the CPU damage the heap in this form of memory.
    form = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    model: nn.Module = ResUNet(size.channels, size.width, depths).to(device, memory_format=form)
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=device.type == "cuda", capturable=cuda_graph)

    def train(pairs: torch.Tensor) -> None:
        """On fields of mean 0 and standard deviation 15."""
        pairs = pairs / 15
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=not cuda_graph):
            found = model(pairs[:, 0].contiguous(memory_format=form))
        loss = F.mse_loss(found.float(), pairs[:, 1])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    if cuda_graph:
        shape = (size.batch, 2, size.channels, size.latitudes, size.longitudes)
        return _captured(train, torch.randn(shape, device=device) * 15)
    return lambda batch: train(batch - 280)


def _captured(train: Callable[[torch.Tensor], None], pairs: torch.Tensor) -> Callable[[Any], None]:
    """A training step that is one CUDA graph, which the host launches at once. The host is at most four steps ahead of the GPU."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Libraries choose their kernels in the first steps.
        for _ in range(4):
            train(pairs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        train(pairs)
    begun: deque[torch.cuda.Event] = deque()

    def step(batch: torch.Tensor) -> None:
        if batch.shape != pairs.shape:
            raise ValueError(f"expected batches of {tuple(pairs.shape)}, found {tuple(batch.shape)}")
        torch.sub(batch, 280, out=pairs)
        graph.replay()
        # Waiting for it must not take a core from those that decode.
        begun.append(torch.cuda.Event(blocking=True))
        begun[-1].record()
        if len(begun) > 4:
            begun.popleft().synchronize()

    return step
