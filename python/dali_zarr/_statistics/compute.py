"""Statistics in one pass of the reader."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, Unpack, cast

import numpy as np
import numpy.typing as npt

from .. import _arguments, _native, _progress
from .._arguments.types import Arrays, Channels, ElementArguments, Integers, Path, Paths, ResourceArguments
from .._loading import outputs, ranks
from .._loading.loader import BaseLoader
from .._loading.reading import Plan
from . import files, gather
from .moments import Doubles, Moments, Tree, combined
from .selected import Axis, Selected

Weights: TypeAlias = Literal["cos_latitude"]

_LATITUDES = ("latitude", "lat", "rlat", "nav_lat")
# The elements of a batch that are converted to float64 at a time.
_BLOCK = 1 << 21


class StatisticsArguments(ElementArguments, ResourceArguments, total=False):
    """Those of the reader's arguments that say which elements there are, and how chunks are read."""


def statistics(
    path: Paths | None = None,
    *,
    arrays: Arrays | None = None,
    offsets: Integers | None = None,
    channels: Channels | None = None,
    weights: Weights | None = None,
    batch_size: int = 8,
    device: str = "cpu",
    device_id: int | None = None,
    output: Path | None = None,
    progress: bool = False,
    process_group: Any = None,
    **arguments: Unpack[StatisticsArguments],
) -> files.Statistics:
    """Mean, standard deviation (``ddof`` 0), minimum, maximum and share of NaN of arrays and their channels, in one pass of the
    reader.

    Everything is computed in float64 by NumPy, from what the reader delivers, and combined pairwise. NaNs are counted and left
    out of the rest; with ``fillna`` there are none, and what took their place counts as all other values. Under torchrun, or with
    ``torch.distributed``, each process reads its shard, and all return the same.

    Args:
        path: One store or several, as of :func:`dali_zarr.zarr_reader`; none where all arrays have stores of their own.
        arrays: Names of arrays, or a dictionary from names of outputs to them. Default: the only one.
        offsets: For each of them but 0, statistics of the differences ``x(t + offset) - x(t)`` too, where both are in the region
            and no break is between them. They count elements along the first of ``dims``.
        channels: Dimensions whose elements have statistics of their own, as of the reader: names or positions (``-1``), by output
            too. Readers of the file then take these by default. Left out: for each array those of which ``stack_arrays`` makes
            channels (which not every array of two dimensions or more has), and all but the last two dimensions of a sample.
        weights: ``"cos_latitude"`` weights mean and standard deviation by the cosine of the latitude, normalised to a mean of 1
            over the selected latitudes. Arrays without a dimension ``latitude``, ``lat``, ``rlat`` or ``nav_lat`` have no weights.
            Minimum, maximum and share of NaN never have.
        batch_size: Samples that are read at a time.
        device: Where batches are delivered, ``"cpu"`` or ``"gpu"``. A GPU decodes; sums are the CPU's.
        device_id: The GPU. Default: ``LOCAL_RANK`` of torchrun's environment, else 0.
        output: Where to write JSON (by the process of rank 0), which ``mean`` and ``stddev`` of readers take.
        progress: Whether to show progress on stderr, in the process of rank 0.
        process_group: Whose ranks share the samples. Default: all of ``torch.distributed``, else of torchrun's environment.
        arguments: Those of :func:`dali_zarr.zarr_reader` that select elements and say how chunks are read. What changes neither
            (order, windows, stacks, types) is refused.

    Returns:
        A dictionary (docs/guides/statistics.md has its keys), whose ``str()`` is a table.

    Raises:
        TypeError, ValueError, IndexError, MemoryError: As building a pipeline with the reader does; an argument is refused.
        RuntimeError: Chunks can't be read.
        OSError: The file can't be written.
    """
    _check(arguments, weights, device, batch_size)
    if output is not None and not files.folder(output).is_dir():
        # Known now rather than after the pass.
        folder = files.folder(output)
        raise FileNotFoundError(f"dali_zarr: statistics: output: expected an existing folder, but found none at {folder}")
    flat = [0, *(offset for offset in outputs.offsets_of(_plain(offsets)) if offset)]
    spec: dict[str, Any] = {"path": path, "arrays": arrays, **arguments, "offsets": list(dict.fromkeys(flat))}
    given = _arguments.resolved({name: value for name, value in spec.items() if value is not None})
    # A selection with gaps spreads them.
    told = tuple(int(offset) for offset in given.pop("offsets"))
    if len(told) > 1:
        # Each element counts, also where there is no other at an offset from it.
        given["out_of_bounds_policy"] = "pad"
    selected = Selected(given)
    names = tuple(map(files.key_of, selected.arrays))
    wanted = _arguments.by_name.checked("channels", channels)
    try:
        selected.check_channels(wanted)
    except ValueError as error:
        raise ValueError(f"dali_zarr: statistics: {error}") from error
    sums = [_Sum.of(selected, i, wanted, weights) for i in range(len(names))]
    rank, world = ranks.rank_and_world(process_group, None, None)
    plan = Plan(
        arguments=given, offsets=list(told), told_offsets=told, arrays=names, batch_size=batch_size,
        device="gpu" if device == "cuda" else device, device_id=None if device == "cpu" else _device_id(device_id),
        shard_id=rank, num_shards=world, num_threads=1, transform=None,
    )
    samples = _read(plan, sums, _Borders.of(selected, given), progress and rank == 0)
    parts = gather.gathered([one.parts(len(told)) for one in sums], rank, world, process_group)
    found = files.Statistics({
        "format": files.FORMAT, "version": files.VERSION,
        "path": selected.locations(),
        "samples": samples, "dim": selected.axes.dims[0], "offsets": flat[1:], "weights": weights, "channels": wanted,
        "arrays": {
            name: {"mask_and_scale": is_decoded} | _filled(given, name) | files.described(
                one.channels,
                [combined(_moments(part[i][offset]) for part in parts) for offset in range(len(told))], list(dict.fromkeys(flat)),
            )
            for i, (name, one, is_decoded) in enumerate(zip(names, sums, selected.decoded(), strict=True))
        },
    })
    if output is not None and rank == 0:
        found.save(output)
    return found


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _filled(arguments: Mapping[str, Any], name: str) -> dict[str, float]:
    """What NaNs of an array became, where it was said."""
    value = arguments.get("fillna")
    if isinstance(value, Mapping):
        value = _arguments.values.items(cast(Mapping[str, Any], value).get(name))[0]
    return {} if value is None else {"fillna": float(value)}


def _moments(fields: Sequence[Sequence[float]]) -> Moments:
    return Moments(*(np.array(one, np.float64) for one in fields))


def _check(arguments: Mapping[str, Any], weights: Any, device: Any, batch_size: Any) -> None:
    for name in arguments:
        if name not in StatisticsArguments.__annotations__:
            known = ", ".join(sorted(StatisticsArguments.__annotations__))
            raise TypeError(
                f"dali_zarr: statistics: {name}: expected an argument that selects elements or says how chunks are read; leave it "
                f"out, statistics are of all elements of the region, as they are decoded. The arguments are {known}"
            )
    if weights not in (None, "cos_latitude"):
        raise ValueError(f"dali_zarr: statistics: weights: expected 'cos_latitude' or None, but found {weights!r}")
    if device not in ("cpu", "gpu", "cuda"):
        raise ValueError(f"dali_zarr: statistics: device: expected 'cpu' or 'gpu', but found {device!r}")
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(f"dali_zarr: statistics: batch_size: expected a whole number of at least 1, but found {batch_size!r}")


def _device_id(given: int | None) -> int:
    return int(os.environ.get("LOCAL_RANK", "0")) if given is None else given


def _read(plan: Plan, sums: Sequence[_Sum], borders: _Borders, show: bool) -> int:
    """Adds the samples of this process to the sums. Returns how many all processes have."""
    reader = _Pass(plan, sums, borders)
    batches: Iterator[None] = iter(reader)
    for _ in _progress.shown(batches, len(reader), "statistics") if show else batches:
        pass
    return reader.samples


@dataclass(frozen=True)
class _Borders:
    """Where an element along the first of ``dims`` and another at an offset from it don't belong together."""

    start: int
    end: int
    breaks: npt.NDArray[np.int64]
    # How many dims there are.
    dims: int

    @classmethod
    def of(cls, selected: Selected, arguments: Mapping[str, Any]) -> _Borders:
        axes = selected.axes
        length = axes.axis_length(0)
        start, end = axes.listed("roi_start", arguments, 0)[0], axes.listed("roi_end", arguments, length)[0]
        listed = _arguments.values.items(arguments["breaks"]) if arguments.get("breaks") is not None else []
        if any(isinstance(one, str) for one in listed):
            # Of what the stores say, the engine knows.
            listed = _native.explain(_arguments.of_spec(arguments))["segments"]["bounds"][0][1:-1]
        breaks = [b + length if b < 0 else b for b in map(int, listed)]
        if arguments.get("cross_stores") is False and axes.is_joined:
            breaks += np.cumsum(axes.lengths(axes.dims[0])).tolist()
        return cls(
            start + length if start < 0 else start, end + length if end < 0 else end, np.array(sorted(breaks), np.int64),
            len(axes.dims),
        )

    def joins(self, at: npt.NDArray[np.int64], offset: int) -> npt.NDArray[np.bool_]:
        """Whether there is an element at an offset from each of those at ``at`` that belongs to it."""
        other = at + offset
        same = np.searchsorted(self.breaks, at, "right") == np.searchsorted(self.breaks, other, "right")
        return (other >= self.start) & (other < self.end) & same


@dataclass
class _Sum:
    """What was found so far of an array: its values, and its differences by offset."""

    channels: list[Axis]
    count: int
    # The order of axes of a batch that puts channels first, and a weight for each of the other elements of a sample.
    order: list[int]
    weights: Doubles | None
    trees: dict[int, Tree] = field(default_factory=dict[int, Tree])

    @classmethod
    def of(cls, selected: Selected, i: int, channels: Any, weights: Weights | None) -> _Sum:
        array = selected.arrays[i]
        dims = selected.sample_dims(array)
        default = selected.default_channels(array)
        named = selected.named_channels(array, channels)
        chosen = default if named is None else [dim for dim in named if dim in dims or dim in default]
        axes = [selected.axis(dim) for dim in chosen]
        first = [dims.index(dim) + 1 for dim in chosen if dim in dims]
        others = [n + 1 for n, dim in enumerate(dims) if dim not in chosen]
        count = int(np.prod([len(axis.positions) for axis in axes], dtype=np.int64))
        weighted = None if weights is None else _cosines(selected, i, [dims[n - 1] for n in others])
        return cls(axes, count, [*first, 0, *others], weighted)

    def add(self, number: int, values: npt.NDArray[Any]) -> None:
        """Adds samples (sample, ...) of the values (0) or of the differences to the offset of that number."""
        if not len(values):
            return
        rows = max(1, _BLOCK // max(int(np.prod(values.shape[1:])), 1))
        tree = self.trees.setdefault(number, Tree())
        for start in range(0, len(values), rows):
            part = values[start : start + rows].transpose(self.order).reshape(self.count, -1)
            tree.add(Moments.of(part, None if self.weights is None else np.tile(self.weights, part.shape[1] // len(self.weights))))

    def parts(self, numbers: int) -> list[list[list[float]]]:
        """What other processes are told, for each number."""
        totals = [self.trees[n].total() if n in self.trees else Moments.nothing(self.count) for n in range(numbers)]
        return [[values.tolist() for values in total.fields()] for total in totals]


def _cosines(selected: Selected, i: int, dims: Sequence[str]) -> Doubles | None:
    """Weights of the elements along these dimensions of an array; None where it has no latitudes."""
    array = selected.arrays[i]
    dim = next((dim for dim in array.dims if dim in _LATITUDES), None)
    if dim is None:
        return None
    if dim not in dims:
        raise ValueError(
            f"dali_zarr: statistics: weights: array '{array.name}': expected latitudes that samples have, but {dim!r} is among "
            "dims or channels; leave it out there"
        )
    latitudes = selected.coordinates(dim)
    if latitudes is None or latitudes.dtype.kind not in "iuf" or not (np.abs(latitudes) <= 90.001).all():
        raise ValueError(
            f"dali_zarr: statistics: weights: array '{array.name}': expected coordinates of {dim!r} in degrees, from -90 to 90"
        )
    cosines = np.maximum(np.cos(np.radians(latitudes.astype(np.float64))), 0.0)
    shape = [len(selected.positions(other)) for other in dims]
    at = [len(cosines) if other == dim else 1 for other in dims]
    return np.ascontiguousarray(np.broadcast_to((cosines / cosines.mean()).reshape(at), shape)).reshape(-1)


class _Pass(BaseLoader[None]):
    """An epoch of the reader, whose batches are added to sums."""

    def __init__(self, plan: Plan, sums: Sequence[_Sum], borders: _Borders):
        self._sums, self._borders = sums, borders
        super().__init__(plan, drop_last=False, pad_last_batch=False)
        self.samples = self._reading.course.part().samples

    def _taken(self, found: list[Any], valid: int) -> None:
        *values, index = [_array(output)[:valid] for output in found]
        count = len(self._sums)
        # Before the starts there may be the number of the segment.
        at = index.reshape(valid, -1)[:, -self._borders.dims] if index.size else np.zeros(valid, np.int64)
        for i, one in enumerate(self._sums):
            one.add(0, values[i])
            for number, offset in enumerate(self._plan.told_offsets[1:], 1):
                joined = self._borders.joins(at, offset)
                later, now = values[number * count + i], values[i]
                if not joined.all():
                    later, now = later[joined], now[joined]
                with np.errstate(invalid="ignore"):
                    one.add(number, np.subtract(later, now, dtype=np.float64))


def _array(output: Any) -> npt.NDArray[Any]:
    """A batch of DALI's in host memory, shared where it is there already."""
    host = output.as_cpu() if hasattr(output, "as_cpu") else output
    return np.asarray(host.as_tensor())
