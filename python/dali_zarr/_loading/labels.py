"""Labels of samples: the coordinates at the places that the reader's index tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .._selection.axes import Axes


class Labels:
    """The coordinates of the dimensions that samples are cut along. They are read when they are first asked for."""

    def __init__(self, arguments: Mapping[str, Any]):
        self._arguments = arguments
        self._axes: Axes | None = None
        self._values: dict[str, npt.NDArray[Any] | None] = {}

    def of(self, index: npt.NDArray[np.int64], offset: int) -> dict[str, npt.NDArray[Any]]:
        """Labels by dimension, of samples that start at ``index`` (sample, dimension), plus ``offset`` along the first one.

        Their shape is (sample,), or (sample, window) along dimensions that have windows. Elements that the store doesn't have
        are NaT or NaN. Dimensions without coordinates have positions.
        """
        if self._axes is None:
            self._axes = Axes.of_reader(self._arguments)
        axes = self._axes
        window = axes.listed("window", self._arguments, 0)
        stride = axes.listed("stride", self._arguments, 1)
        found: dict[str, npt.NDArray[Any]] = {}
        for i, dim in enumerate(axes.dims):
            place = index[:, i] + (offset if i == 0 else 0)
            if window[i]:
                length = window[i] if window[i] > 0 else axes.region_length(i, self._arguments)
                place = place[:, None] + np.arange(length) * stride[i]
            if dim not in self._values:
                self._values[dim] = axes.coordinates(dim)
            values = self._values[dim]
            found[dim] = place if values is None else _taken(values, place)
        return found


def _taken(values: npt.NDArray[Any], place: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    outside = (place < 0) | (place >= len(values))
    taken = values[np.where(outside, 0, place)]
    if outside.any():
        if taken.dtype.kind in "biu":
            taken = taken.astype(np.float64)
        taken[outside] = np.array("NaT", taken.dtype) if taken.dtype.kind in "mM" else np.nan
    return taken
