"""Selections with gaps: breaks where runs of selected elements begin and end, and which of the segments between them are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def segments(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], breaks: Sequence[int], borders: Sequence[int], length: int,
) -> dict[str, list[int]]:
    """Returns the arguments ``breaks`` and ``segments`` that select runs from ``starts`` to ``ends`` of a dimension
    with ``length`` elements. The runs are also cut at ``breaks`` (negative ones count from the end) and at ``borders``
    of stores. Returns nothing if a break isn't inside the dimension: the engine refuses it when it is left as given."""
    own = [at + length if at < 0 else at for at in breaks]
    if not all(0 < at < length for at in own):
        return {}
    found = np.unique(np.array([*starts, *ends, *own, *borders], dtype=np.int64))
    found = found[(found > 0) & (found < length)]
    begins = np.append(0, found)
    run = np.searchsorted(starts, begins, side="right") - 1
    chosen = np.flatnonzero((run >= 0) & (begins < ends[run]))
    return {"breaks": found.tolist(), "segments": chosen.tolist()}
