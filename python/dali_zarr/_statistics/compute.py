"""Statistics in one pass of the reader."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, Unpack, cast

import numpy as np
import numpy.typing as npt

from .. import _arguments, _gpu, _progress
from .._arguments.types import Arrays, Channels, Integers, Path, Paths
from .._loading import outputs, ranks
from .._loading.epochs import Ending
from .._loading.loader import BaseLoader
from .._loading.reading import Plan
from .._selection.axes import Array
from . import channels as by_default
from . import files, formats, gather
from .accepted import StatisticsArguments, accepted
from .blocks import Blocks, Part
from .moments import Doubles, Moments, Tree, combined
from .selected import Axis, Selected

Weights: TypeAlias = Literal["cos_latitude"]

_LATITUDES = ("latitude", "lat", "rlat", "nav_lat")
# The elements that are converted to float64 at a time.
_BLOCK = 1 << 20


def statistics(
    path: Paths | None = None,
    *,
    arrays: Arrays | None = None,
    offsets: Integers | Mapping[str, int | Sequence[int]] | None = None,
    channels: Channels | None = None,
    weights: Weights | None = None,
    batch_size: int | None = None,
    device: Any = "cpu",
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
        offsets: For each offset except 0, statistics of the differences ``x(t + offset) - x(t)`` are computed too,
            where both are in the region and no break is between them. Offsets count elements along the first of
            ``dims``. A dictionary, as of the loaders, is accepted too.
        channels: Dimensions whose elements have statistics of their own, as of the reader: names or positions (``-1``),
            by output too. Readers of the file then take these by default. Left out: all dimensions of a sample but
            those with a name of space (``latitude``, ``x``, ``cell``...) or of an ensemble. Where no name tells: the
            last one of a picture (y, x, 3), the only one of a row of up to 1024 numbers, else all but the last two. To
            these come those of which ``stack_arrays`` makes channels.
        weights: ``"cos_latitude"`` weights mean and standard deviation by the cosine of the latitude, normalised to a mean of 1
            over the selected latitudes. Arrays without a dimension ``latitude``, ``lat``, ``rlat`` or ``nav_lat`` have no weights.
            Minimum, maximum and share of NaN are never weighted.
        batch_size: The most elements along the first of ``dims`` that are read at a time. Default: about 64 MiB of
            them, which is the limit in any case.
        device: Where batches are delivered, ``"cpu"`` or ``"gpu"`` (or ``"cuda"``). A GPU decodes; sums are the CPU's.
            Default: ``"cpu"``.
        device_id: The GPU. Default: ``LOCAL_RANK`` of torchrun's environment, else 0.
        output: Where to write them (by the process of rank 0), for ``mean`` and ``stddev`` of readers: a Zarr group where the name
            ends in ``.zarr``, else JSON.
        progress: Whether to show progress on stderr, in the process of rank 0.
        process_group: The group of processes whose ranks share the samples. Default: all ranks of
            ``torch.distributed``, else those of torchrun's environment.
        arguments: Those of :func:`dali_zarr.zarr_reader` that select elements and say how chunks are read. The others of the reader
            and of loaders (windows, order, stacks, types, `mean`, `transform`...) may be given and don't matter, so that
            ``statistics(**parts["train"])`` takes what :func:`dali_zarr.splits` gives: all elements of the region count once, as
            they are decoded. `starts`, a table of `weights` and ragged rows are refused.

    Returns:
        A dictionary (docs/guides/statistics.md has its keys), whose ``str()`` is a table.

    Raises:
        TypeError, ValueError, IndexError, MemoryError: As building a pipeline with the reader does; an argument is refused, or
            ``channels`` are needed: a row has more than 1024 numbers.
        RuntimeError: Chunks can't be read.
        OSError: The file can't be written, or another store has its name.
        ImportError: A package that it needs isn't installed.
    """
    chosen = accepted(arguments)
    _check(weights, batch_size)
    where, device_id = _device(device, device_id)
    flat = [0, *(offset for offset in outputs.offsets_of(_plain(offsets)) if offset)]
    spec: dict[str, Any] = {"path": path, "arrays": arrays, **chosen, "offsets": list(dict.fromkeys(flat))}
    given = _arguments.resolved({name: value for name, value in spec.items() if value is not None})
    # Offsets in elements of the store: a selection with a step has multiplied them.
    told = tuple(int(offset) for offset in given.pop("offsets"))
    selected = Selected(given)
    names = tuple(map(formats.key_of, selected.arrays))
    if not selected.axes.dims:
        raise ValueError(f"dali_zarr: statistics: expected an array with dimensions, but {', '.join(names)} has none")
    if output is not None:
        # Fails now rather than after the pass.
        files.check_output(output, names)
    filled = [_filled(given, array) for array in selected.arrays]
    wanted = _arguments.by_name.checked("channels", channels)
    try:
        selected.check_channels(wanted)
    except ValueError as error:
        raise ValueError(f"dali_zarr: statistics: {error}") from error
    rank, world = ranks.rank_and_world(process_group, None, None)
    blocks = Blocks(selected, given, batch_size, world)
    sums = [_Sum.of(selected, i, wanted, weights, blocks.windows) for i in range(len(names))]
    plan = Plan(
        arguments=blocks.arguments, offsets=list(told), told_offsets=told, arrays=names, batch_size=blocks.batch_size,
        device=where, device_id=device_id, shard_id=rank, num_shards=world, num_threads=1, transform=None,
    )
    _read(plan, sums, blocks, progress and rank == 0)
    told_by_all = gather.gathered([[one.parts(len(told)) for one in sums], output is not None], rank, world, process_group)
    parts = [of_rank for of_rank, _ in told_by_all]
    found = files.Statistics({
        "format": formats.FORMAT, "version": formats.VERSION,
        "path": selected.locations(),
        "samples": blocks.samples, "dim": selected.axes.dims[0], "offsets": flat[1:], "weights": weights,
        "channels": formats.by_array(wanted, selected.arrays),
        "arrays": {
            name: {"mask_and_scale": is_decoded} | fill | files.described(
                one.channels,
                [combined(_moments(part[i][offset]) for part in parts) for offset in range(len(told))], list(dict.fromkeys(flat)),
            )
            for i, (name, one, is_decoded, fill) in enumerate(zip(names, sums, blocks.decoded, filled, strict=True))
        },
    })
    # No rank returns before the file is there: readers of all ranks may take it next. Some ranks may not name it.
    if any(has_output for _, has_output in told_by_all):
        failed: Exception | None = None
        if output is not None and rank == 0:
            try:
                found.save(output)
            except Exception as error:  # noqa: BLE001  (raised when the others know)
                failed = error
        texts = gather.gathered(None if failed is None else str(failed), rank, world, process_group)
        if failed is not None:
            raise failed
        if texts[0] is not None:
            raise RuntimeError(f"dali_zarr: statistics: output: rank 0 couldn't write the file: {texts[0]}")
    return found


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _filled(arguments: Mapping[str, Any], array: Array) -> dict[str, float]:
    """Returns the value that replaces NaNs of an array, by its key in files; empty where none was given.

    Raises:
        ValueError: The value is infinite.
    """
    value = arguments.get("fillna")
    if isinstance(value, Mapping):
        value = _arguments.values.items(cast(Mapping[str, Any], value).get(array.output))[0]
    if value is None:
        return {}
    if not np.isfinite(float(value)):
        raise ValueError(f"dali_zarr: statistics: fillna: expected a finite number, but found {float(value)}")
    return {"fillna": float(value)}


def _moments(fields: Sequence[Sequence[float]]) -> Moments:
    return Moments(*(np.array(one, np.float64) for one in fields))


def _check(weights: Any, batch_size: Any) -> None:
    if weights is not None and not (isinstance(weights, str) and weights == "cos_latitude"):
        found = repr(weights) if isinstance(weights, str) else "those of samples, which statistics don't have; leave them out"
        raise ValueError(f"dali_zarr: statistics: weights: expected 'cos_latitude' or None, but found {found}")
    if batch_size is None:
        return
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(f"dali_zarr: statistics: batch_size: expected a whole number of at least 1, but found {batch_size!r}")


def _device(device: Any, device_id: int | None) -> tuple[str, int | None]:
    """Returns DALI's name of a device, and its number (None for the CPU). Takes ``"cuda:1"`` and PyTorch's devices
    too."""
    kind, _, number = "cpu" if device is None else str(device).partition(":")
    if kind not in ("cpu", "gpu", "cuda") or (number and not number.isdigit()):
        raise ValueError(f"dali_zarr: statistics: device: expected 'cpu' or 'gpu', but found {str(device)!r}")
    if kind == "cpu":
        return "cpu", None
    if why := _gpu.why_none():
        raise RuntimeError(f"dali_zarr: statistics: device: {why}; leave device out")
    if device_id is None:
        device_id = int(number) if number else ranks.of_environment("LOCAL_RANK") if "LOCAL_RANK" in os.environ else 0
    return "gpu", device_id


def _read(plan: Plan, sums: Sequence[_Sum], blocks: Blocks, show: bool) -> None:
    """Adds the blocks of this process to the sums."""
    reader = _Pass(plan, sums, blocks)
    batches: Iterator[None] = iter(reader)
    for _ in _progress.shown(batches, len(reader), "statistics") if show else batches:
        pass


@dataclass
class _Sum:
    """What was found so far of an array: moments of its values, and of its differences by offset."""

    channels: list[Axis]
    count: int
    # For each of dims: its axis in a batch of the array, or None where the array lacks it or has a single element of
    # it.
    axes: list[int | None]
    # The order of axes of a batch that puts channels first.
    order: list[int]
    weights: _Weights | None
    trees: dict[int, Tree] = field(default_factory=dict[int, Tree])

    @classmethod
    def of(cls, selected: Selected, i: int, channels: Any, weights: Weights | None, windows: Sequence[int]) -> _Sum:
        array = selected.arrays[i]
        named, own = selected.named_channels(array, channels), selected.sample_dims(array)
        for dim in named or []:
            if dim in selected.axes.dims and len(selected.positions(array, dim)) > 1:
                raise ValueError(
                    f"dali_zarr: statistics: channels: expected dimensions that dims don't name, but found {dim!r}, along "
                    "which samples are cut; leave it out of dims"
                )
        alone = by_default.single(selected, array)
        chosen = by_default.default(selected, array) if named is None else [dim for dim in named if dim in own or dim in alone]
        cut = {dim: window for dim, window in zip(selected.axes.dims, windows, strict=True)}
        dims = [dim for dim in array.dims if cut.get(dim, 1)]
        axes = [selected.axis(array, dim) for dim in chosen]
        first = [dims.index(dim) + 1 for dim in chosen if dim in dims]
        others = [n + 1 for n, dim in enumerate(dims) if dim not in chosen]
        count = int(np.prod([len(axis.positions) for axis in axes], dtype=np.int64))
        weighted = None if weights is None else _Weights.of(selected, i, [dims[n - 1] for n in others])
        places = [dims.index(dim) + 1 if dim in dims else None for dim in selected.axes.dims]
        return cls(axes, count, places, [*first, 0, *others], weighted)

    def add(self, number: int, values: npt.NDArray[Any], part: Part) -> None:
        """Adds the elements that count of samples (sample, ...). ``number``: 0 for values, else that of the
        differences' offset."""
        if part.rows is not None:
            values = values[part.rows]
        inside = [slice(None)] * values.ndim
        # Along dims that the array lacks, all elements of a block have the same value, which counts once for each.
        times = 1
        for axis, window in zip(self.axes, part.counts, strict=True):
            if axis is None:
                times *= window
            else:
                inside[axis] = slice(window)
        values = values[tuple(inside)]
        if not part.chosen.all():
            count = int(part.chosen.sum())
            if self.axes[0] is None:
                times = times // max(len(part.chosen), 1) * count
            else:
                values = np.compress(part.chosen, values, axis=self.axes[0])
        if not values.size or not times:
            return
        ordered = values.transpose(self.order)
        weights = None if self.weights is None else self.weights.flat(ordered.shape[self.order.index(0) :], part)
        flat = ordered.reshape(self.count, -1)
        tree = self.trees.setdefault(number, Tree())
        columns = max(1, _BLOCK // self.count)
        for start in range(0, flat.shape[1], columns):
            end = start + columns
            found = Moments.of(flat[:, start:end], None if weights is None else weights[start:end])
            tree.add(found.repeated(times))

    def parts(self, numbers: int) -> list[list[list[float]]]:
        """Returns the totals as lists, for each number, which are sent to other processes."""
        totals = [self.trees[n].total() if n in self.trees else Moments.nothing(self.count) for n in range(numbers)]
        return [[values.tolist() for values in total.fields()] for total in totals]


@dataclass(frozen=True)
class _Weights:
    """Weights of an array's elements by their latitude."""

    cosines: Doubles
    # The place of the latitude among the axes of a batch that follow the channels. The first of these, 0, is that of
    # samples.
    axis: int
    # The place of the latitude in dims; None if it isn't among them.
    cut: int | None

    @classmethod
    def of(cls, selected: Selected, i: int, dims: Sequence[str]) -> _Weights | None:
        """Makes the weights of an array; returns None where it has no latitudes. ``dims``: its dimensions that aren't
        channels."""
        array = selected.arrays[i]
        dim = next((dim for dim in array.dims if dim in _LATITUDES), None)
        if dim is None:
            return None
        if dim not in dims:
            raise ValueError(
                f"dali_zarr: statistics: weights: array '{array.name}': expected several latitudes that have statistics in common, "
                f"but found {dim!r} among channels, or one element of it; leave weights out there"
            )
        cut = selected.axes.dims.index(dim) if dim in selected.axes.dims else None
        if cut is not None and selected.axes.is_concat_samples:
            raise ValueError(
                f"dali_zarr: statistics: weights: expected stores that have latitudes in common, but concat='samples' cuts each "
                f"store along {dim!r}; leave weights out, or compute statistics of each store"
            )
        latitudes = selected.coordinates(array, dim)
        if latitudes is None or latitudes.dtype.kind not in "iuf" or not (np.abs(latitudes) <= 90.001).all():
            raise ValueError(
                f"dali_zarr: statistics: weights: array '{array.name}': expected coordinates of {dim!r} in degrees, from -90 to 90"
            )
        cosines = np.maximum(np.cos(np.radians(latitudes.astype(np.float64))), 0.0)
        return cls(cosines / cosines.mean(), dims.index(dim) + 1, cut)

    def flat(self, shape: tuple[int, ...], part: Part) -> Doubles:
        """Returns a weight for each of the elements of this shape (sample, ...), one after the other."""
        first = 0 if self.cut is None else part.first[self.cut]
        along = [1] * len(shape)
        along[self.axis] = -1
        own = self.cosines[first : first + shape[self.axis]].reshape(along)
        return np.ascontiguousarray(np.broadcast_to(own, shape)).reshape(-1)


class _Pass(BaseLoader[None]):
    """An epoch of the reader, whose batches are added to sums."""

    def __init__(self, plan: Plan, sums: Sequence[_Sum], blocks: Blocks):
        self._sums, self._blocks = sums, blocks
        self._told = sorted({one.weights.cut for one in sums if one.weights is not None and one.weights.cut is not None})
        super().__init__(plan, Ending(uneven="exact"))

    def _taken(self, found: list[Any], valid: int, own: int) -> None:
        if not valid:
            return
        *values, index = [_array(output)[:valid] for output in found]
        count = len(self._sums)
        starts = index.reshape(valid, -1)
        for number, offset in enumerate(self._plan.told_offsets):
            for part in self._blocks.parts(starts, offset, self._told):
                for i, one in enumerate(self._sums):
                    one.add(number, self._difference(values, i, number * count + i), part)

    @staticmethod
    def _difference(values: Sequence[npt.NDArray[Any]], i: int, later: int) -> npt.NDArray[Any]:
        if later == i:
            return values[i]
        with np.errstate(invalid="ignore"):
            return np.subtract(values[later], values[i], dtype=np.float64)


def _array(output: Any) -> npt.NDArray[Any]:
    """Returns a batch of DALI's in host memory. It isn't copied if it is there already."""
    host = output.as_cpu() if hasattr(output, "as_cpu") else output
    return np.asarray(host.as_tensor())
