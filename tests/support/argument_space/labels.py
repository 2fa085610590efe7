"""Labels of samples: the coordinates of what they hold."""

from __future__ import annotations

import numpy as np

from support.argument_space.oracle import Epoch, Row
from support.argument_space.request import Output


def labels(epoch: Epoch, row: Row, output: Output | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Labels of a sample along dims, or of one output: values, and which elements are inside."""
    cut, places = epoch.places_of(row)
    offset = output.offset if output else 0
    found = {}
    for k, (axis, (start, segment)) in enumerate(zip(cut.axes, places, strict=True)):
        count, stride = epoch.window(axis, output.array if output else None)
        at, good = axis.taken(start, segment, offset if k == 0 else 0, count, stride)
        if epoch.request.policy in ("drop", "error") and not epoch.names_segments:
            # Nothing is padded. A start that no offset reads may lie in another store, and has its own label.
            places_read = start + (offset if k == 0 else 0) + np.arange(max(count, 1)) * stride
            low, high = axis.bounds[0], axis.bounds[-1]
            at, good = axis.first + np.clip(places_read, low, high - 1) * axis.spacing, (places_read >= low) & (places_read < high)
        is_kept = (
            epoch.request.has_window(axis.dim)
            if output is None or output.array is None
            else bool(epoch.request.windows[output.array].get(axis.dim, 0))
        )
        known = [epoch.request.coordinates(path, axis.dim) for path in cut.paths]
        if known[0] is not None:
            of = np.concatenate([c for c in known if c is not None]) if k == 0 else known[0]
            at = of[epoch.selection.picked.get(axis.dim, slice(None))][at]
        found[axis.dim] = (at, good) if is_kept else (at[0], good[0])
    return found
