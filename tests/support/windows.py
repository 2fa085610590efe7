"""Windows along the first dimension of an array, as the reader cuts them: the oracle of tests of selections."""

from __future__ import annotations

import numpy as np


def samples(values, window: int, step: int | None, stride: int, offsets: list[int], start=0, end=None) -> list[np.ndarray]:
    """Cuts windows along the first dimension, for each offset. Windows that don't fit are dropped."""
    end = len(values) if end is None else end
    width = end - start if window == -1 else window or 1
    step = step or (end - start if window == -1 else width)
    starts = [
        s for s in range(start, end, step)
        if all(start <= s + o and s + o + (width - 1) * stride < end for o in offsets)
    ]
    return [np.array([values[s + o : s + o + (width - 1) * stride + 1 : stride] for s in starts]) for o in offsets]
