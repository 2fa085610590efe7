"""A U-Net over a residual encoder, as the study trained, and its training step: the next hour from this one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from common import Size
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x), inplace=True)


class ResUNet(nn.Module):
    """The 3, 4, 6 and 3 blocks of a ResNet of 34 layers at four scales, and a decoder that takes up each of them."""

    def __init__(self, channels: int, width: int, depths: tuple[int, ...] = (3, 4, 6, 3)):
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 7, 2, 3)
        widths = [width << i for i in range(len(depths))]
        self.down = nn.ModuleList()
        for i, depth in enumerate(depths):
            inputs = widths[max(i - 1, 0)]
            blocks = [Block(inputs if n == 0 else widths[i], widths[i], 2 if n == 0 and i else 1) for n in range(depth)]
            self.down.append(nn.Sequential(*blocks))
        self.up = nn.ModuleList(Block(widths[i] + widths[i - 1], widths[i - 1]) for i in range(len(depths) - 1, 0, -1))
        self.head = nn.Conv2d(width, 4 * channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(sample, channel, latitude, longitude), lengths multiples of 16; the same shape comes back."""
        y, kept = self.stem(x), []
        for stage in self.down:
            y = stage(y)
            kept.append(y)
        for stage, beside in zip(self.up, reversed(kept[:-1]), strict=True):
            y = stage(torch.cat([F.interpolate(y, scale_factor=2), beside], 1))
        return x + F.pixel_shuffle(self.head(y), 2)


def trainer(size: Size, device: torch.device, ranks: int = 1) -> Callable[[Any], None]:
    """A function that trains on a batch (sample, 2, channel, latitude, longitude). It never waits for the GPU."""
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
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step(batch: torch.Tensor) -> None:
        pairs = (batch - 280) / 15
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            found = model(pairs[:, 0].contiguous(memory_format=form))
        loss = F.mse_loss(found.float(), pairs[:, 1])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step
