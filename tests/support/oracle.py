"""What the reader must deliver, computed the slow and obvious way with NumPy, zarr-python and xarray.

It shares no code with the engine. Given the operator's arguments it knows every sample and, where the order is fixed,
every batch. Under ``random_shuffle`` the order is the engine's own affair: tests compare sets with :meth:`Oracle.all_samples`.
So are the starts under ``random_crop``: tests take them from the index and compare with :meth:`Oracle.sample_at`.
It raises the exception classes that the operator must raise for bad arguments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr

_LETTERS = {
    "C": {"channel", "variable", "band", "c"},
    "F": {"time", "t", "valid_time"},
    "D": {"level", "plev", "depth", "z"},
    "H": {"lat", "latitude", "y"},
    "W": {"lon", "longitude", "x"},
}


def layout_of(dims: Sequence[str]) -> str:
    """DALI's layout of named dimensions; empty where a name has no letter or a letter would come twice."""
    letters = ["C" if d == "<stack>" else next((k for k, v in _LETTERS.items() if d.lower() in v), "") for d in dims]
    return "".join(letters) if all(letters) and len(set(letters)) == len(letters) else ""


def cast(values: np.ndarray, dtype: np.dtype | str) -> np.ndarray:
    """The reader's conversion: to integers it rounds half to even, saturates and turns NaN to 0; to bool it asks != 0."""
    dtype = np.dtype(dtype)
    values = np.asarray(values)
    if values.dtype == dtype:
        return values
    if dtype.kind == "b":
        return values != 0
    if dtype.kind == "f":
        # NumPy goes from integers to float16 by way of float32; through float64 the rounding happens once.
        return (values.astype(np.float64) if dtype.itemsize == 2 else values).astype(dtype)
    info = np.iinfo(dtype)
    if values.dtype.kind == "b":
        return values.astype(dtype)
    if values.dtype.kind in "iu":
        source = np.iinfo(values.dtype)
        return np.clip(values, max(info.min, source.min), min(info.max, source.max)).astype(dtype)
    rounded = np.rint(values.astype(np.float64))
    low, high = rounded <= float(info.min), rounded >= float(info.max)
    inside = ~(low | high | np.isnan(rounded))
    out = np.where(inside, rounded, 0).astype(dtype)
    out[low] = info.min
    out[high] = info.max
    return out


@dataclass
class Variable:
    """One array, whole and in memory, after decoding and picking."""

    name: str
    dims: list[str]
    values: np.ndarray


def _dims_of(array: zarr.Array) -> list[str]:
    names = array.metadata.dimension_names if array.metadata.zarr_format == 3 else None
    names = names or array.attrs.get("_ARRAY_DIMENSIONS")
    if not isinstance(names, (list, tuple)) or len(names) != array.ndim or not all(isinstance(n, (str, type(None))) for n in names):
        names = [None] * array.ndim
    while True:
        called = [n or f"dim_{i}" for i, n in enumerate(names)]
        # Dimensions that share a name count as having none.
        alone = [n if n and called.count(n) == 1 else None for n in names]
        if alone == list(names):
            return called
        names = alone


def load(path: str, name: str, mask_and_scale: bool | None) -> Variable:
    """Reads an array by zarr-python, or with ``mask_and_scale`` (None: if the array is packed) by xarray. Values are in
    native byte order, times are int64."""
    array = zarr.open_group(path, mode="r")[name]
    if mask_and_scale or mask_and_scale is None and {"scale_factor", "add_offset"} & set(array.attrs):
        # Most processes that tests start don't need it, and its import takes half a second.
        import xarray

        # Without Dask, whose graph and threads take longer than small arrays do.
        with xarray.open_zarr(path, consolidated=False, decode_times=False, chunks=None) as ds:
            values = ds[name].values
    else:
        values = array[...]
    values = np.asarray(values)
    if values.dtype.kind in "mM":
        values = values.view("i8")
    return Variable(name, _dims_of(array), values.astype(values.dtype.newbyteorder("="), copy=False))


def _filled(variable: Variable, fillna: float | Mapping[str, float] | None) -> Variable:
    """Replaces NaNs by a value, as xarray's fillna does."""
    value = fillna.get(variable.name) if isinstance(fillna, Mapping) else fillna
    if value is None or variable.values.dtype.kind != "f":
        return variable
    with np.errstate(over="ignore"):
        one = variable.values.dtype.type(value)
    return replace(variable, values=np.where(np.isnan(variable.values), one, variable.values))


class Oracle:
    """The samples and batches of one reader. The keyword arguments are the operator's; those that don't change what is
    delivered (threads, limits, ``decode_device``) are not taken. ``load`` gives an array of a store."""

    def __init__(
        self, batch_size: int = 1, *, path: str | Sequence[str], arrays: Sequence[str], stack_arrays: bool = False,
        load: Callable[[str, str, bool | None], Variable] = load,
        pick: Sequence[str] = (), dims: Sequence[str] = (), window: Sequence[int] = (), step: Sequence[int] = (),
        random_crop: Sequence[str] = (), stride: Sequence[int] = (), offsets: Sequence[int] = (),
        roi_start: Sequence[int] = (), roi_end: Sequence[int] = (), breaks: Sequence[int] = (),
        cross_stores: bool = True, out_of_bounds_policy: str = "drop", fill_value: float = 0.0,
        mask_and_scale: bool | None = None, fillna: float | Mapping[str, float] | None = None, dtype: str | None = None,
        mean: Sequence[float] = (), stddev: Sequence[float] = (), random_shuffle: bool = False,
        shuffle_after_epoch: bool = False, seed: int = -1,
        shard_id: int = 0, num_shards: int = 1, stick_to_shard: bool = False, pad_last_batch: bool = False,
        return_index: bool = False,
    ):
        self.batch_size, self.stack, self.dtype = batch_size, stack_arrays, dtype
        self.mean, self.stddev, self.fill_value = list(mean), list(stddev), fill_value
        self.shard_id, self.num_shards = shard_id, num_shards
        self.stick_to_shard, self.pad_last_batch, self.return_index = stick_to_shard, pad_last_batch, return_index
        self.stick_to_shard |= shuffle_after_epoch
        self.shuffled = random_shuffle or shuffle_after_epoch
        self.seed = seed
        if shuffle_after_epoch and (random_shuffle or stick_to_shard):
            raise ValueError("shuffle_after_epoch excludes random_shuffle and stick_to_shard")
        if not 0 <= shard_id < num_shards:
            raise ValueError(f"shard_id {shard_id} of {num_shards}")

        paths = [path] if isinstance(path, (str, bytes)) or not isinstance(path, Sequence) else list(path)
        parts = [[load(str(p), a, mask_and_scale) for p in paths] for a in arrays]
        first = [p[0] for p in parts]
        self.reference = max(first, key=lambda v: v.values.ndim)  # max keeps the first of equals
        self.dims = self._resolve_dims(dims) if dims else self.reference.dims[:1]
        self.random = [self.dims.index(d) for d in self._resolve_dims(random_crop)]  # ValueError where not one of dims
        # Which store each element along the first of dims comes from.
        lengths = next(([v.values.shape[v.dims.index(self.dims[0])] for v in p] for p in parts if self.dims[0] in p[0].dims), [])
        self.store_of = np.repeat(np.arange(len(lengths)), lengths)
        own = [text for text in pick if "|" in text.rpartition("=")[2]]
        for text in own:
            self._pick_in_each(text, parts)
        self.variables = [_filled(self._join(p), fillna) for p in parts]
        for text in pick:
            if text not in own:
                self._pick(text)
        self.extents = self._extents()

        given = list(window) or [0] * len(self.dims)
        strides = list(stride) or [1] * len(self.dims)
        starts, ends = list(roi_start) or [0] * len(self.dims), list(roi_end)
        self.offsets = list(offsets) or [0]
        for what, values in (("window", given), ("stride", strides), ("roi_start", starts)):
            if len(values) != len(self.dims):
                raise ValueError(f"{what} has {len(values)} entries for {len(self.dims)} dims")
        cuts = self.cuts = self._breaks(breaks, cross_stores)
        self.edge, self.names_segments = out_of_bounds_policy == "edge", len(breaks) > 0
        self.kept, self.count, self.stride, self.bounds, self.places = [], [], strides, [], []
        for k, dim in enumerate(self.dims):
            extent = self.extents[dim]
            lo, hi = starts[k], ends[k] if ends else extent
            lo, hi = lo + extent * (lo < 0), hi + extent * (hi < 0)
            if not 0 <= lo <= hi <= extent:
                raise ValueError(f"roi [{lo}, {hi}) of {dim!r} with {extent} elements")
            w = hi - lo if given[k] == -1 else given[k]
            self.kept.append(given[k] != 0)
            self.count.append(max(w, 1))
            self.bounds.append([lo, *(b for b in cuts if k == 0 and lo < b < hi), hi])
            if k in self.random and step and step[k]:
                raise ValueError(f"step {step[k]} for {dim!r}, which is in random_crop")
            jump = 1 if k in self.random else step[k] if step else max(w, 1)
            if jump < 1:
                raise ValueError(f"step {jump}")
            self.places.append(self._places(k, jump, out_of_bounds_policy))
        # A random start doesn't multiply the samples.
        self.starts = [p[:1] if k in self.random else p for k, p in enumerate(self.places)]
        self.num_samples = math.prod(len(s) for s in self.starts)
        if self.num_samples == 0:
            raise ValueError("no samples")
        if self.num_samples < num_shards:
            raise ValueError(f"{self.num_samples} samples for {num_shards} shards")
        self._grid = self._grid_dims() if stack_arrays else []
        kinds = {v.values.dtype for v in self.variables}
        if stack_arrays and len(kinds) > 1 and not (dtype or self.mean or self.stddev):
            raise ValueError(f"stacked arrays of different dtypes {kinds}")
        self.sample(0)

    def _resolve_dims(self, dims: Sequence[str]) -> list[str]:
        out = []
        for key in dims:
            try:
                out.append(self.reference.dims[int(key)])
            except ValueError:
                out.append(key)
            except IndexError as e:
                raise ValueError(f"dimension {key} of {self.reference.dims}") from e
        if len(set(out)) != len(out):
            raise ValueError(f"dims repeats a dimension: {out}")
        return out

    def _join(self, parts: list[Variable]) -> Variable:
        first = parts[0]
        if self.dims[0] not in first.dims:
            return first
        axis = first.dims.index(self.dims[0])
        return Variable(first.name, first.dims, np.concatenate([p.values for p in parts], axis))

    def _picked_dim(self, text: str) -> tuple[str, str]:
        dim, _, indices = text.rpartition("=")
        return (self.reference.dims[int(dim)] if dim.lstrip("-").isdigit() else dim), indices

    def _pick_in_each(self, text: str, parts: list[list[Variable]]) -> None:
        """Takes a list of indices of its own from each store."""
        dim, indices = self._picked_dim(text)
        lists = [[int(i) for i in one.split(",")] for one in indices.split("|")]
        if dim == self.dims[0] or len(lists) != len(parts[0]) or len({len(one) for one in lists}) != 1:
            raise ValueError(f"pick {text!r} for {len(parts[0])} stores that are joined along {self.dims[0]!r}")
        for stores in parts:
            for v, wanted in zip(stores, lists):
                if dim in v.dims:
                    v.values = np.take(v.values, wanted, axis=v.dims.index(dim))  # IndexError where outside

    def _pick(self, text: str) -> None:
        dim, indices = self._picked_dim(text)
        wanted = [int(i) for i in indices.split(",")]
        if not any(dim in v.dims for v in self.variables):
            raise ValueError(f"pick: no array has dimension {dim!r}")
        for v in self.variables:
            if dim in v.dims:
                v.values = np.take(v.values, wanted, axis=v.dims.index(dim))  # IndexError where outside
        if dim == self.dims[0]:
            self.store_of = self.store_of[wanted]

    def _extents(self) -> dict[str, int]:
        extents: dict[str, int] = {}
        for v in self.variables:
            for d, n in zip(v.dims, v.values.shape):
                if extents.setdefault(d, n) != n:
                    raise ValueError(f"dimension {d!r} has {extents[d]} and {n} elements")
        for d in self.dims:
            if d not in extents:
                raise ValueError(f"unknown dimension {d!r}; there are {sorted(extents)}")
        return extents

    def _breaks(self, breaks: Sequence[int], cross_stores: bool) -> list[int]:
        extent = self.extents[self.dims[0]]
        found = {b + extent * (b < 0) for b in breaks}
        if any(not 0 < b < extent for b in found):
            raise ValueError(f"breaks {breaks} of {extent} elements")
        if not cross_stores:
            found |= {i for i in range(1, extent) if self.store_of[i] != self.store_of[i - 1]}
        return sorted(found)

    def reach(self, k: int, start: int) -> tuple[int, int]:
        """Returns which elements along one of dims a sample with this start reads, all offsets together: the first, one
        past the last."""
        offsets = self.offsets if k == 0 else [0]
        return start + min(offsets), start + max(offsets) + (self.count[k] - 1) * self.stride[k] + 1

    def segment(self, k: int, start: int) -> tuple[int, int]:
        """Returns which elements along one of dims a sample with this start may read: the first, one past the last.
        They are the segment that holds all that the sample's windows read of the region. Where a break divides that, or
        where it is empty, they are the segment of the start."""
        first, end = self.reach(k, start)
        first, end = max(first, self.bounds[k][0]), min(end, self.bounds[k][-1])
        segments = list(itertools.pairwise(self.bounds[k]))
        around = [(a, b) for a, b in segments if a <= first < end <= b]
        return around[0] if around else next((a, b) for a, b in segments if a <= start < b)

    def _places(self, k: int, jump: int, policy: str) -> list[int]:
        """Returns where samples may start along one of dims, every ``jump`` elements of the region. ``policy`` decides
        about windows that reach beyond it."""
        places = range(self.bounds[k][0], self.bounds[k][-1], jump)

        def fits(start: int) -> bool:
            (a, b), (first, end) = self.segment(k, start), self.reach(k, start)
            return a <= first and end <= b

        inside = [s for s in places if fits(s)]
        if k in self.random:
            return inside or (list(places[:1]) if policy in ("pad", "edge") else [])
        if policy == "error" and len(inside) < len(places):
            raise ValueError(f"a window reaches beyond {self.bounds[k]}")
        return list(places) if policy in ("pad", "edge") else inside

    def _grid_dims(self) -> list[str]:
        fields = [v for v in self.variables if v.values.ndim >= 2]
        kept = [d for d, keep in zip(self.dims, self.kept) if keep]
        shared = [d for d in self.reference.dims if d not in self.dims and all(d in v.dims for v in fields)]
        grid = set(kept) | set(shared)
        ordered = [d for d in self.reference.dims if d in grid]
        return ordered + [d for d in kept if d not in ordered]

    def start(self, index: int) -> tuple[int, ...]:
        """The start coordinates of a sample; the first dimension varies slowest."""
        where = np.unravel_index(index, [len(s) for s in self.starts])
        return tuple(int(s[i]) for s, i in zip(self.starts, where))

    def _cut(self, v: Variable, start: Sequence[int], offset: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Returns the values of one array in one sample, which of them aren't padded, and the dimensions that are
        left."""
        values, inside = v.values, np.ones((1,) * v.values.ndim, bool)
        for k, dim in enumerate(self.dims):
            if dim not in v.dims:
                continue
            axis = v.dims.index(dim)
            where = start[k] + (offset if k == 0 else 0) + np.arange(self.count[k]) * self.stride[k]
            lo, hi = self.segment(k, start[k])
            where = np.clip(where, lo, hi - 1) if self.edge else where
            good = (where >= lo) & (where < hi)
            values = np.take(values, np.where(good, where, 0), axis)
            shape = [1] * v.values.ndim
            shape[axis] = -1
            inside = inside & good.reshape(shape)
        inside = np.broadcast_to(inside, values.shape)
        dropped = [d for d, keep in zip(self.dims, self.kept) if not keep]
        axes = tuple(i for i, d in enumerate(v.dims) if d in dropped)
        return values.squeeze(axes), inside.squeeze(axes), [d for d in v.dims if d not in dropped]

    def _channels(self, values: np.ndarray, inside: np.ndarray, dims: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """(channels, grid...) of one array, broadcast along the grid dimensions that it lacks."""
        order = [i for i, d in enumerate(dims) if d not in self._grid]
        order += [dims.index(d) for d in self._grid if d in dims]
        channels = math.prod(values.shape[i] for i, d in enumerate(dims) if d not in self._grid)
        shape, full = [channels], [channels]
        for d in self._grid:
            shape.append(values.shape[dims.index(d)] if d in dims else 1)
            n = self.count[self.dims.index(d)] if d in self.dims else self.extents[d]
            full.append(n)
        return tuple(np.broadcast_to(a.transpose(order).reshape(shape), full) for a in (values, inside))

    def _finish(self, values: np.ndarray, inside: np.ndarray, mean: Any, stddev: Any) -> np.ndarray:
        """Normalises, casts, and puts the fill value where nothing was read."""
        dtype = self.dtype or values.dtype
        if self.mean or self.stddev:
            with np.errstate(all="ignore"):
                values = (values.astype(np.float64) - mean) / stddev
            dtype = self.dtype or np.float32
        with np.errstate(all="ignore"):
            out = cast(values, dtype)
            fill = cast(np.array([self.fill_value], np.float64), dtype)[0]
        return np.where(inside, out, fill)

    def sample(self, index: int) -> list[np.ndarray]:
        """All outputs of one sample."""
        return self.sample_at(self.start(index))

    def sample_at(self, start: Sequence[int]) -> list[np.ndarray]:
        """Returns all outputs of a sample that starts there. The number of its segment may come first in ``start``."""
        start = start[len(start) - len(self.dims) :]
        outputs = []
        for offset in self.offsets:
            cuts = [self._cut(v, start, offset) for v in self.variables]
            if not self.stack:
                for i, (values, inside, _) in enumerate(cuts):
                    mean, stddev = (self._per(p, i, len(cuts), d) for p, d in ((self.mean, 0.0), (self.stddev, 1.0)))
                    outputs.append(self._finish(values, inside, mean, stddev))
                continue
            stacks = [self._channels(*cut) for cut in cuts]
            total = sum(s[0].shape[0] for s in stacks)
            done, channel = [], 0
            for i, (values, inside) in enumerate(stacks):
                for c in range(values.shape[0]):
                    mean, stddev = (
                        self._per(p, channel if len(p) == total else i, total if len(p) == total else len(cuts), d)
                        for p, d in ((self.mean, 0.0), (self.stddev, 1.0))
                    )
                    done.append(self._finish(values[c], inside[c], mean, stddev))
                    channel += 1
            outputs.append(np.stack(done))
        if self.return_index:
            # Segments are numbered over the whole dimension.
            of = self.segment(0, start[0])[0]
            number = [sum(cut <= of for cut in self.cuts)] if self.names_segments else []
            outputs.append(np.array([*number, *start], np.int64))
        return outputs

    @staticmethod
    def _per(values: list[float], i: int, count: int, default: float) -> float:
        if len(values) not in (0, 1, count):
            raise ValueError(f"{len(values)} values for {count}")
        return default if not values else values[0] if len(values) == 1 else values[i]

    def layouts(self) -> list[str]:
        """DALI's layout of each output."""
        if self.stack:
            one = [layout_of(["<stack>", *self._grid])]
        else:
            one = [layout_of(self._cut(v, self.start(0), 0)[2]) for v in self.variables]
        return one * len(self.offsets) + ([""] if self.return_index else [])

    def all_samples(self) -> list[list[np.ndarray]]:
        """Every sample of an epoch over all shards, in global order."""
        return [self.sample(i) for i in range(self.num_samples)]

    def shard_range(self, shard: int) -> range:
        """Positions of the global order that a shard holds."""
        return range(self.num_samples * shard // self.num_shards, self.num_samples * (shard + 1) // self.num_shards)

    def epoch_length(self, epoch: int) -> int:
        """Returns the number of samples that the reader hands out for its epoch, padding included."""
        if self.pad_last_batch:
            longest = -(-self.num_samples // self.num_shards)
            return -(-longest // self.batch_size) * self.batch_size
        return len(self.shard_range(self.shard_of(epoch)))

    def shard_of(self, epoch: int) -> int:
        """The shard that the reader delivers in its epoch."""
        return self.shard_id if self.stick_to_shard else (self.shard_id + epoch) % self.num_shards

    def indices(self) -> Iterator[int]:
        """Yields sample indices as the reader delivers them, without end; only for an order that isn't shuffled."""
        assert not self.shuffled and not self.random, "the oracle doesn't know what is random"
        epoch = 0
        while True:
            held = self.shard_range(self.shard_of(epoch))
            yield from (held[min(i, len(held) - 1)] for i in range(self.epoch_length(epoch)))
            epoch += 1

    def batches(self) -> Iterator[list[np.ndarray]]:
        """Yields batches without end: for each output one array (batch, ...)."""
        order = self.indices()
        while True:
            samples = [self.sample(next(order)) for _ in range(self.batch_size)]
            yield [np.stack(column) for column in zip(*samples)]
