"""Shuffled sequences of 16 steps of images (96 x 96), states and actions, from disk: diffusion_policy's own SequenceSampler in a
DataLoader with two workers, and the adapter's loader. DALI_ZARR_DIFFUSION_POLICY is the folder of diffusion_policy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from dali_zarr.integrations.diffusion_policy import SequenceSampler

LENGTHS = np.random.default_rng(1).integers(40, 120, 24)


class Buffer(dict[str, Any]):
    """What the sampler asks of a ReplayBuffer, which itself needs zarr-python 2."""

    episode_ends = np.cumsum(LENGTHS)


class Sequences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """As PushTImageDataset uses its sampler."""

    def __init__(self, path: Path):
        sys.path.insert(0, os.environ["DALI_ZARR_DIFFUSION_POLICY"])
        from diffusion_policy.common import sampler

        group: Any = zarr.open_group(str(path), mode="r")["data"]
        self.sampler = sampler.SequenceSampler(Buffer({key: group[key] for key in ("action", "img", "state")}), 16, 1, 7)

    def __len__(self) -> int:
        return len(self.sampler)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {key: torch.from_numpy(values) for key, values in self.sampler.sample_sequence(number).items()}


def epoch(loader: Any) -> int:
    return sum(len(batch["action"]) for batch in loader)


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Callable[[], int]]]]:
    path, steps, rng = folder / "pusht.zarr", int(LENGTHS.sum()), np.random.default_rng(0)
    images = rng.integers(0, 255, (steps, 24, 24, 3), "u1").repeat(4, 1).repeat(4, 2)
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    for name, values, chunk in (
        ("data/img", images, 100), ("data/state", rng.normal(size=(steps, 5)).astype("f4"), 1000),
        ("data/action", rng.normal(size=(steps, 2)).astype("f4"), 1000), ("meta/episode_ends", np.cumsum(LENGTHS), len(LENGTHS)),
    ):
        chunks = (min(chunk, len(values)), *values.shape[1:])
        group.create_array(name, shape=values.shape, chunks=chunks, dtype=values.dtype)[:] = values
    theirs: Any = torch.utils.data.DataLoader(Sequences(path), batch_size=64, shuffle=True, num_workers=2, persistent_workers=True)
    own = SequenceSampler(path, 16, 1, 7).loader(batch_size=64, random_shuffle=True, device="cpu")
    yield "sequences of 16 steps", {"diffusion_policy": partial(epoch, theirs), "dali_zarr": partial(epoch, own)}
