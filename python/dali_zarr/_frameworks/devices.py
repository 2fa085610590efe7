"""The device of a process, as PyTorch and torchrun tell it."""

from __future__ import annotations

import os

import torch


def chosen(device: str | torch.device | None) -> torch.device:
    """Returns the device that is given, or the default one.

    Raises:
        ValueError: It isn't one that a loader can have.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        on = torch.device("cuda" if device == "gpu" else device)
    except RuntimeError:
        on = None
    if on is None or on.type not in ("cpu", "cuda"):
        raise ValueError(f"dali_zarr: device: expected 'cuda' or 'cpu', but found {str(device)!r}")
    if on.type == "cuda" and (on.index or 0) >= torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise ValueError(
            f"dali_zarr: device: PyTorch finds {f'{there} CUDA devices' if there else 'no CUDA device'} here, but found "
            f"{str(device)!r}; " + (f"write 'cuda:0' to 'cuda:{there - 1}'" if there else "write 'cpu', or leave it out")
        )
    return torch.device("cpu") if on.type == "cpu" else on


def is_known() -> bool:
    """Returns whether this process's device is certain: one was chosen, or there is no choice."""
    return torch.cuda.is_initialized() or "LOCAL_RANK" in os.environ or torch.cuda.device_count() < 2


def current() -> int:
    """This process's CUDA device: the current one; before CUDA is in use, that of ``LOCAL_RANK``."""
    local = os.environ.get("LOCAL_RANK", "")
    if not torch.cuda.is_initialized() and local.isdecimal() and int(local) < torch.cuda.device_count():
        return int(local)
    return torch.cuda.current_device()
