"""Where segments begin and end: by breaks, by borders of stores, and by gaps in what is selected."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support.argument_space.dataset import Refused
from support.argument_space.request import Request, listed


def segments(
    request: Request,
    dim: str,
    length: int,
    paths: list[Path],
    begins: list[int],
    bools: np.ndarray | None,
    picked: list[int] | None,
) -> tuple[list[int], set[int] | None, int]:
    """Returns where segments begin and end along the first of dims, which of them are read (None: all), and of how many runs
    a selection consists. Segments are numbered over the whole dimension, or over what is picked. ``begins``: where stores begin.
    ``bools``: the elements that a list of bools selects."""
    given = request.given
    cuts = _breaks(request, dim, length, paths, begins)
    if not given.get("cross_stores", True):
        cuts = sorted([*cuts, *(set(begins[1:]) - set(cuts))])
    if picked is not None:
        # A new segment begins where the next picked element belongs to another one.
        if any(not -length <= p < length for p in picked):
            raise Refused("pick")
        of = [int(np.searchsorted(cuts, p + length * (p < 0), side="right")) for p in picked]
        cuts, length = [i for i in range(1, len(of)) if of[i] != of[i - 1]], len(of)
    chosen, runs = None, 1
    if bools is not None:
        parts = np.split(bools, np.flatnonzero(np.diff(bools) > 1) + 1)
        runs = len(parts)
        if runs > 1:
            cuts = sorted({*cuts, *(int(r[0]) for r in parts), *(int(r[-1]) + 1 for r in parts)} - {0, length})
            chosen = {j for j, begin in enumerate([0, *cuts]) if begin in set(bools.tolist())}
    if given.get("segments") is not None:
        chosen = _chosen(given["segments"], len(cuts) + 1)
    return [0, *cuts, length], chosen, runs


def _breaks(request: Request, dim: str, length: int, paths: list[Path], begins: list[int]) -> list[int]:
    breaks, cuts = request.given.get("breaks"), list[int]()
    if isinstance(breaks, str) and breaks == "auto":
        found = [request.coordinates(path, dim) for path in paths]
        if any(f is None for f in found):
            raise Refused("breaks")
        apart = np.diff(np.concatenate([f for f in found if f is not None]))
        if len(apart):
            # The most common distance; of several the smallest.
            distances, counts = np.unique(apart, return_counts=True)
            cuts = [i + 1 for i in range(len(apart)) if apart[i] != distances[np.argmax(counts)]]
    elif isinstance(breaks, str):
        for path, begin in zip(paths, begins, strict=True):
            cuts += [begin + end for end in request.dataset.ends(path, breaks)]
        cuts = cuts[:-1] if cuts[-1] == length else cuts
    elif breaks is not None:
        cuts = sorted({b + length * (b < 0) for b in listed(breaks)})
        if any(not 0 < b < length for b in cuts):
            raise Refused("breaks")
    return cuts


def _chosen(wanted: object, count: int) -> set[int]:
    if isinstance(wanted, slice):
        found = set(range(count)[wanted])
    elif listed(wanted) and isinstance(listed(wanted)[0], (bool, np.bool_)):
        if len(listed(wanted)) != count:
            raise Refused("segments")
        found = {j for j, one in enumerate(listed(wanted)) if one}
    else:
        found = {int(j) for j in listed(wanted)}
    if not found or not found <= set(range(count)):
        raise Refused("segments")
    return found
