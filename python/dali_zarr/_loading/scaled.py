"""Arrays of other resolutions (``scale_by``): where the elements of a sample lie in each of them, as ``explain`` tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._selection.axes import Axes

Positions = npt.NDArray[np.int64]
# Where segments start and end, for each sample.
Bounds = tuple[Positions, Positions]


class Maps:
    """Maps from the elements that samples start at to those of each output's array."""

    def __init__(self, arrays: Sequence[Mapping[str, Any]]):
        """``arrays``: as ``explain`` describes them."""
        # By output, one for all stores or one for each: what is told by dimension.
        self._told: dict[str, list[dict[str, dict[str, Any]]]] = {array["output"]: array["scaled"] for array in arrays}
        # By output and dimension: one array of coordinates for all stores, or one for each; None where there are none.
        self._values: dict[tuple[str, str], list[npt.NDArray[Any]] | None] = {}

    def has(self, output: str, dim: str) -> bool:
        """Returns whether an output's array has places along one of ``dims``."""
        told = self._told[output][0].get(dim)
        return told is not None and told["first"] is not None

    def window(self, output: str, dim: str) -> int:
        """Returns the elements of a sample; 0: one, without its dimension."""
        return int(self._told[output][0].get(dim, {"window": 0})["window"])

    def counted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a reader's arguments with windows that count elements of each array."""
        windows = {output: {dim: told["window"] for dim, told in of[0].items()} for output, of in self._told.items()}
        others = ("step", "overlap", "stride", "scale_by", "scale_method", "grid")
        kept = {name: value for name, value in arguments.items() if name not in others}
        return {**kept, "window": {output: window for output, window in windows.items() if window}}

    def coordinates(
        self, axes: Axes, output: str, dim: str, at: Positions, stores: Positions | None, bounds: Bounds | None, edge: bool,
    ) -> npt.NDArray[Any]:
        """Returns labels along one of ``dims`` of samples that start at the elements ``at``: the coordinates of the output's
        array, or else the places of the centres of its elements.

        Args:
            axes: The reader's dimensions.
            output: The output.
            dim: The dimension.
            at: The element at which each sample starts.
            stores: The store of each sample; None: the same for all.
            bounds: Where the segment of each sample starts and ends, if elements outside are padded or repeated.
            edge: Whether they are repeated. Else they have no label.
        """
        told = self._told[output]
        if len({one[dim]["window"] for one in told}) > 1:
            raise AttributeError(
                f"dali_zarr: coords: the samples of stores have other lengths along {dim!r}, so their labels make no array; "
                "return_index tells the store of each sample"
            )
        own = np.zeros(len(at), np.int64) if stores is None or len(told) == 1 else stores

        def of(key: str) -> npt.NDArray[Any]:
            return np.array([one[dim][key] for one in told], object)[own]

        def mapped(position: Positions, constant: str) -> Positions:
            # Python's integers have no limit.
            found = (position.astype(object) * of("numerator") + of(constant)) // of("denominator")
            return found.astype(np.int64)

        lengths, window = of("length").astype(np.int64), self.window(output, dim)
        first, last = np.zeros_like(lengths), lengths
        if bounds is not None:
            ends = of("grid_length").astype(np.int64)
            first, last = (
                np.where(bound <= 0, 0, np.where(bound >= ends, lengths, np.clip(mapped(bound, "bound"), 0, lengths)))
                for bound in bounds
            )
        place = mapped(at, "start")[:, None] + np.arange(max(window, 1))
        first, last, lengths = first[:, None], last[:, None], lengths[:, None]
        if edge:
            place = np.clip(np.clip(place, first, np.maximum(last - 1, first)), 0, lengths - 1)
        is_out = (place < first) | (place >= last) if not edge else np.zeros(place.shape, bool)
        if (output, dim) not in self._values:
            self._values[output, dim] = axes.own_coordinates(output, dim)
        values = self._values[output, dim]
        if values is None:
            start, distance = (of(key).astype(np.float64)[:, None] for key in ("first", "distance"))
            found = np.where(is_out, np.nan, start + place * distance)
        else:
            inside = np.where(is_out, 0, place)
            of_store = np.zeros(len(at), np.int64) if stores is None or len(values) == 1 else stores
            parts = [values[store][inside[i]] for i, store in enumerate(of_store.tolist())]
            found = np.array(parts, values[0].dtype).reshape(place.shape)
            if is_out.any():
                found = found.astype(np.result_type(found.dtype, np.float64)) if found.dtype.kind in "biu" else found
                found[is_out] = np.nan
        return found if window else found[:, 0]
