"""How samples are cut along ``dims``: the arguments that have a value for each of them. A :class:`Cut` is a value: what a
selection changes makes another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from .._arguments import by_name
from .axes import Axes, items_of, length_of

# Stands for a value that an argument by dimension leaves out: no dimension is so long.
_UNSET = 1 << 62

# A value along each of ``dims``, by output, or for all outputs under the key None.
_ByOutput: TypeAlias = dict[str | None, list[int]]


@dataclass(frozen=True)
class Dropped:
    """A dimension of which one element is read, and which isn't one of ``dims``."""

    dim: str
    # Where the element is: one for all stores or one for each.
    positions: list[int]
    # If it is picked, where it is in each store.
    origins: list[int] | None = None


class Region(NamedTuple):
    """The first selected element, one past the last, and the distance of neighbours."""

    first: int
    end: int
    spacing: int

    def elements(self) -> int:
        """Returns how many elements there are."""
        return -((self.first - self.end) // self.spacing)


# By place in dims: a region for all stores or one for each.
Regions: TypeAlias = Mapping[int, Sequence[Region]]


@dataclass(frozen=True)
class Cut:
    """How samples are cut: the arguments that have a value for each of ``dims``, with defaults filled in."""

    dims: list[str]
    # The dimensions of random_crop, by name or place.
    crops: frozenset[str]
    windows: _ByOutput
    strides: _ByOutput
    start: list[int]
    end: list[int]
    # None where it is left out; empty where it isn't given at all.
    step: list[int | None]
    overlap: list[int]
    # By argument and dimension.
    pads: dict[str, dict[str, int]]
    offsets: list[int]

    def is_cropped(self, i: int) -> bool:
        """Returns whether samples start at any element along one of ``dims``."""
        return self.dims[i] in self.crops or str(i) in self.crops

    def within(self, bounds: Mapping[int, tuple[int, int]]) -> Cut:
        """Returns the cut of elements from the first bound to before the second, by place in ``dims``."""
        own = [bounds.get(i, of) for i, of in enumerate(zip(self.start, self.end, strict=True))]
        return replace(self, start=[first for first, _ in own], end=[end for _, end in own])

    def spaced(self, regions: Regions, axes: Axes, has_starts: bool) -> Cut:
        """Returns the cut in which windows, their steps, offsets and padding count elements of these regions, which have gaps of
        equal length. ``has_starts``: whether a table says where samples start."""
        spacings = [regions[i][0].spacing if i in regions else 1 for i in range(len(self.dims))]
        # Stores with different counts have samples of different shapes, which the reader refuses.
        counts = {i: of[0].elements() for i, of in regions.items() if len({one.elements() for one in of}) == 1}
        windows = {
            output: [counts.get(i, n) if n == -1 else n for i, n in enumerate(window)] for output, window in self.windows.items()
        }
        counted = replace(self, windows=windows)
        if not has_starts or self.step or self.overlap:
            counted = replace(counted, step=[*_products(counted.steps(axes), spacings)], overlap=[])
        return replace(
            counted,
            strides={output: _products(stride, spacings) for output, stride in self.strides.items()},
            pads={name: {dim: n * spacings[self.dims.index(dim)] for dim, n in pads.items()} for name, pads in self.pads.items()},
            offsets=[offset * spacings[0] for offset in self.offsets],
        )

    def steps(self, axes: Axes) -> list[int]:
        """Returns the distance of starts along each of ``dims``; 0 along those that are cropped at random."""
        return [self._step_along(i, axes) for i in range(len(self.dims))]

    def _step_along(self, i: int, axes: Axes) -> int:
        window, given = self._longest(i, axes), self.step[i] if self.step else None
        whole = max(self.end[i] - self.start[i], 1)
        default = 0 if self.is_cropped(i) else window if window > 0 else 1 if window == 0 else whole
        overlap = self.overlap[i] if self.overlap else 0
        if overlap and not 0 <= overlap < default:
            allowed = f"0 to {default - 1}, one less than the window"
            expected = "0 along a dimension of random_crop" if self.is_cropped(i) else allowed
            raise ValueError(f"zarr_reader: overlap: {self.dims[i]!r}: expected {expected}, but found {overlap}")
        return default - overlap if given is None else given

    def _longest(self, i: int, axes: Axes) -> int:
        """Returns the longest window along one of dims, of the outputs whose arrays have it; -1 is all of the
        region."""
        having = {array.output for array in axes.arrays if self.dims[i] in array.dims}
        found = [of[i] for output, of in self.windows.items() if output is None or output in having]
        return max(found, key=length_of, default=0)

    def with_dropped(self, dropped: Dropped) -> Cut:
        """Returns the cut with a dimension of which one element is read as a further one of ``dims``."""
        position = dropped.positions[0]
        return replace(
            self, dims=[*self.dims, dropped.dim], start=[*self.start, position], end=[*self.end, position + 1],
            windows={output: [*window, 0] for output, window in self.windows.items()},
            strides={output: [*stride, 1] for output, stride in self.strides.items()},
            step=[*self.step, 1] if self.step else [], overlap=[*self.overlap, 0] if self.overlap else [],
        )

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of windows, and offsets."""
        return {
            "dims": self.dims, "window": self.windows.get(None, self.windows), "stride": self.strides.get(None, self.strides),
            **self.pads, **({"offsets": self.offsets} if self.offsets != [0] else {}),
        }


def of_arguments(given: Mapping[str, Any], axes: Axes) -> Cut:
    """Returns how samples are cut by the given arguments."""
    dims = axes.dims
    step = by_name.one_per_dim("step", given["step"], dims, _UNSET) if given.get("step") is not None else []
    return Cut(
        dims=list(dims),
        crops=frozenset(str(dim) for dim in items_of(given.get("random_crop"))),
        windows=by_name.per_dim("window", given.get("window"), dims, 0),
        strides=_of_outputs(by_name.per_dim("stride", given.get("stride"), dims, 1), axes),
        start=by_name.one_per_dim("roi_start", given.get("roi_start"), dims, 0),
        end=_ends(given.get("roi_end"), dims, [axes.axis_length(i) for i in range(len(dims))]),
        step=[None if n == _UNSET else n for n in step],
        overlap=by_name.one_per_dim("overlap", given["overlap"], dims, 0) if given.get("overlap") is not None else [],
        pads={name: where_given(name, given[name], dims) for name in ("pad_before", "pad_after") if given.get(name) is not None},
        offsets=[int(offset) for offset in items_of(given.get("offsets"))] or [0],
    )


def _of_outputs(given: _ByOutput, axes: Axes) -> _ByOutput:
    """Adds an entry of strides for each output that lacks one, unless one value is for all outputs."""
    if None in given:
        return given
    outputs = dict.fromkeys(array.output for array in axes.arrays)
    unknown = next((output for output in given if output not in outputs), None)
    if unknown is not None:
        raise ValueError(f"zarr_reader: stride: expected outputs ({', '.join(outputs)}), but found {unknown!r}")
    return {output: given.get(output, [1] * len(axes.dims)) for output in outputs}


def _ends(given: Any, dims: list[str], lengths: list[int]) -> list[int]:
    """Returns ``roi_end`` for each of ``dims``."""
    found = by_name.one_per_dim("roi_end", given, dims, _UNSET)
    return [length if end == _UNSET else end for end, length in zip(found, lengths, strict=True)]


def where_given(name: str, given: Any, dims: list[str]) -> dict[str, int]:
    """Returns an argument by dimension, without the dimensions that it leaves out."""
    found = by_name.one_per_dim(name, given, dims, _UNSET)
    return {dim: n for dim, n in zip(dims, found, strict=True) if n != _UNSET}


def _products(some: Iterable[int], others: Iterable[int]) -> list[int]:
    return [one * other for one, other in zip(some, others, strict=True)]
