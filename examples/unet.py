"""A small U-Net for fields on a latitude-longitude grid: periodic in longitude, and a forecast of the change."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Conv(nn.Module):
    """3 x 3 convolution that wraps around in longitude and repeats the edge in latitude, then GELU."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3)
        self.norm = nn.GroupNorm(4, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.pad(F.pad(x, (1, 1, 0, 0), mode="circular"), (0, 0, 1, 1), mode="replicate")
        return F.gelu(self.norm(self.conv(x)))


class UNet(nn.Module):
    """Three scales; the output is the input plus a learned change, which starts as none."""

    def __init__(self, channels: int, width: int = 16):
        super().__init__()
        self.down0 = nn.Sequential(Conv(channels, width), Conv(width, width))
        self.down1 = nn.Sequential(Conv(width, 2 * width), Conv(2 * width, 2 * width))
        self.bottom = nn.Sequential(Conv(2 * width, 4 * width), Conv(4 * width, 2 * width))
        self.up1 = nn.Sequential(Conv(4 * width, 2 * width), Conv(2 * width, width))
        self.up0 = nn.Sequential(Conv(2 * width, width), Conv(width, width))
        self.head = nn.Conv2d(width, channels, 1)
        nn.init.zeros_(self.head.weight)
        assert self.head.bias is not None
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channel, latitude, longitude), both grid lengths multiples of 4; the same shape comes back."""
        fine = self.down0(x)
        middle = self.down1(F.avg_pool2d(fine, 2))
        coarse = self.bottom(F.avg_pool2d(middle, 2))
        middle = self.up1(torch.cat([middle, self._double(coarse)], 1))
        fine = self.up0(torch.cat([fine, self._double(middle)], 1))
        return x + self.head(fine)

    @staticmethod
    def _double(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2, mode="nearest")
