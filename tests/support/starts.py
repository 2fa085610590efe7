"""An array, and what NumPy finds at the rows of a table of starts; for the tests of starts and weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .pipelines import build, to_numpy
from .stores import Layout, write_array

SHAPE = (60, 21, 14)
DIMS = ("t", "y", "x")
VALUES = np.arange(np.prod(SHAPE), dtype=np.int32).reshape(SHAPE)


def write(base: Path) -> Path:
    """Writes a store of the array."""
    write_array(base, "a", VALUES, codec="zstd", layout=Layout((7, 5, 6)), dims=DIMS)
    return base


def random_table(rng, rows, dims, window, outside=0):
    """Draws starts at which windows fit, or that lie up to ``outside`` elements beyond."""
    return np.stack([rng.integers(-outside, SHAPE[d] - max(w, 1) + 1 + outside, rows) for d, w in zip(dims, window)], 1)


def expected(start, dims, window, fill=-7):
    """Returns the sample of a row, cut by NumPy; None if it reaches beyond the array and there is no ``fill``."""
    lengths = [max(w, 1) for w in window]
    if any(s < 0 or s + n > SHAPE[d] for s, n, d in zip(start, lengths, dims)) and fill is None:
        return None
    reach = 64
    padded = np.pad(VALUES, [(reach, reach) if d in dims else (0, 0) for d in range(3)], constant_values=fill or 0)
    index = [slice(None)] * 3
    for s, n, d, w in zip(start, lengths, dims, window):
        index[d] = slice(s + reach, s + reach + n) if w else s + reach
    return padded[tuple(index)]


def read(pipe, samples, batch_size):
    """Reads as many batches as ``samples`` fill; returns the samples and their starts."""
    batches = [[to_numpy(out) for out in pipe.run()] for _ in range(-(-samples // batch_size))]
    return [np.concatenate([batch[i] for batch in batches])[:samples] for i in (0, 1)]


def reader(path, table, dims, window, *, batch_size=5, device="cpu", **args):
    names = [DIMS[d] for d in dims]
    return build(
        device, batch_size, path=path, arrays=["a"], dims=names, window=list(window), starts=table, return_index=True, **args,
    )
