"""What each array of the target looks like: shape, chunks, shards, codecs, type, attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._hints import did_you_mean
from .._text import shape as _told
from .._text import size
from . import chains, codecs
from .attributes import attributes_of, is_packed
from .options import Options
from .plan import Axis, Sizes
from .source import Source, dims_of, is_coordinate, linked, named, selections, stored_names
from .work import Selection

# Arrays of AnnData's groups whose values are positions in other arrays.
_INDICES = {"csr_matrix": ("indices", "indptr"), "csc_matrix": ("indices", "indptr"), "categorical": ("codes",)}


@dataclass(frozen=True)
class Wanted:
    """An array of the target.

    Attributes:
        name: Its name with the groups before it.
        source: zarr-python's array that is read.
        selection: What of the source is read, for each of its dimensions.
        dims, shape: The dimensions that the target has, without dropped ones, and their lengths.
        chunks, shards: The shapes of the target's chunks and shards.
        dtype: In the machine's byte order.
        fill_value: None only in Zarr v2.
        names: Dimension names as the format keeps them, or None.
    """

    name: str
    source: Any
    selection: Selection
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    dtype: np.dtype[Any]
    fill_value: Any
    attributes: dict[str, Any]
    codecs: codecs.Codecs
    names: tuple[str | None, ...] | None

    @property
    def unit(self) -> tuple[int, ...]:
        """The shape of what is written as one object: a shard, or a chunk where there are none."""
        return self.shards or self.chunks

    @property
    def bytes(self) -> int:
        """Bytes of all elements, not encoded."""
        return math.prod(self.shape) * self.dtype.itemsize

    def axes(self) -> list[Axis]:
        """Returns the dimensions as the plan takes them."""
        units = iter(zip(self.shape, self.unit, strict=True))
        found: list[Axis] = []
        for one, chunk in zip(self.selection, self.source.chunks, strict=True):
            if isinstance(one, int):
                # A dimension that is dropped still has chunks that are read whole.
                found.append(Axis(1, 1, chunk, one))
                continue
            length, unit = next(units)
            if isinstance(one, slice):
                found.append(Axis(length, unit, chunk, one.start, one.step))
            else:
                found.append(Axis(length, unit, chunk, indices=tuple(one)))
        return found

    def sizes(self, in_flight: int) -> Sizes:
        """Returns the sizes of elements and objects as the plan takes them."""
        read = self.source.dtype.itemsize
        shards = self.source.shards
        return Sizes(read, self.dtype.itemsize, math.prod(shards) * read if shards else 0, self.shards is not None, in_flight)


def wanted(source: Source, options: Options) -> list[Wanted]:
    """Returns the arrays of the target.

    Raises:
        ValueError, TypeError, IndexError: An option isn't possible for an array.
    """
    zarr_format = options.zarr_format or source.zarr_format
    if options.shards and zarr_format == 2:
        raise ValueError("--shards: expected --format 3 with shards, since the source has Zarr v2, which has none")
    if options.codec is not None:
        codecs.check(options.codec)
    chosen = selections(source, options)
    every = {dim for name in source.arrays for dim in source.dims(name)}
    for name, given in (("chunks", options.chunks), ("shards", options.shards)):
        for dim in given or {}:
            if dim not in every:
                there = did_you_mean(dim, every, f"the dimensions are {', '.join(sorted(every))}")
                raise ValueError(f"--{name}: no array has a dimension {dim!r}; {there}")
    beside = _beside(source)
    found = [
        _wanted(name, array, source.dims(name), chosen[name], options, zarr_format, name in beside)
        for name, array in source.arrays.items()
    ]
    if any(array.names for array in found):
        # Zarr v3 stores no names for an array without dimensions. In v2 xarray needs an empty list of names.
        found = [array if array.names or array.source.ndim else replace(array, names=()) for array in found]
    return [replace(one, attributes=one.attributes | _dropped(one, source)) if one.name not in beside else one for one in found]


def _beside(source: Source) -> set[str]:
    """Returns the arrays that say where and when elements of other arrays are. Their values must stay what they are."""
    found: set[str] = set()
    for folder, attributes in source.groups.items():
        found |= named(folder, attributes, source.arrays)
        parts = _INDICES.get(str(attributes.get("encoding-type")), ())
        found |= {"/".join(filter(None, (folder, part))) for part in parts}
    for name, array in source.arrays.items():
        found |= linked(name, array, source.arrays)
        units = dict(array.attrs).get("units")
        if is_coordinate(name, array) or (isinstance(units, str) and " since " in units):
            found.add(name)
    return found


def _dropped(array: Wanted, source: Source) -> dict[str, Any]:
    """Returns the attribute that makes labels of dropped dimensions coordinates of the array: xarray writes coordinates
    without a dimension so."""
    folder = array.name.rpartition("/")[0]
    dims = [dim for dim, one in zip(dims_of(array.source), array.selection, strict=True) if isinstance(one, int)]
    places = {dim: "/".join(filter(None, (folder, dim))) for dim in dims}
    known = array.attributes.get("coordinates", "")
    if not isinstance(known, str):
        return {}
    more = [dim for dim, place in places.items() if place in source.arrays and is_coordinate(place, source.arrays[place])]
    more = [dim for dim in more if dim not in known.split()]
    return {"coordinates": " ".join([*known.split(), *more])} if more else {}


def _wanted(
    name: str, array: Any, dims: tuple[str, ...], selection: Selection, options: Options, zarr_format: int, beside: bool,
) -> Wanted:
    label = is_coordinate(name, array)
    chains.check_read(name, array)
    dtype = chains.native(array.dtype)
    if options.dtype is not None and not beside and dtype.kind in "iuf" and dtype != options.dtype:
        if is_packed(array):
            raise ValueError(
                f"--dtype: array {name!r}: its values are packed (scale_factor, add_offset), so their stored type can't change; "
                "leave --dtype out, or the array with --arrays"
            )
        if dtype.kind == "f" and options.dtype.kind != "f":
            raise ValueError(f"--dtype: array {name!r}: expected a floating-point type for {dtype} values, found {options.dtype}")
        if dtype.kind in "iu" and not np.can_cast(dtype, options.dtype, "safe") and options.dtype.kind != "f":
            raise ValueError(f"--dtype: array {name!r}: expected a type that holds all values of {dtype}, found {options.dtype}")
        dtype = options.dtype
    attributes, fill = attributes_of(array, zarr_format, dtype)
    kept = [i for i, one in enumerate(selection) if not isinstance(one, int)]
    dims = tuple(dims[i] for i in kept)
    shape = tuple(_length(selection[i]) for i in kept)
    given = tuple(array.chunks[i] for i in kept)
    if options.chunks is None and options.codec is None and chains.has_shards_within(array):
        # Shards within shards divide these chunks, and not those that end where the array does.
        chunks = given
    else:
        chunks = _chunks(dims, shape, given, options.chunks, label)
    shards = _shards(name, dims, shape, chunks, options, label)
    # zarr-python can't write a shard without dimensions.
    keeps = bool(dims) and shards is None and options.chunks is None and options.shards is None and zarr_format == 3
    if keeps and array.shards is not None:
        whole = tuple(array.shards[i] for i in kept)
        shards = tuple(-(-min(n, length) // chunk) * chunk for n, length, chunk in zip(whole, shape, chunks, strict=True))
    if options.codec is None:
        chain = chains.kept(name, array, zarr_format, dtype, kept, chunks)
    else:
        chain = codecs.named(options.codec, zarr_format, dtype.itemsize)
    most = codecs.largest_chunk(chain)
    if most is not None and math.prod(chunks) * dtype.itemsize > most:
        raise ValueError(
            f"--chunks: array {name!r}: expected chunks of at most {size(most)} for its codec, but found {_told(chunks)}, which is "
            f"{size(math.prod(chunks) * dtype.itemsize)}; give smaller ones, or --codec zstd"
        )
    named = stored_names(array)
    return Wanted(
        name, array, selection, dims, shape, chunks, shards, dtype, fill, attributes, chain,
        None if named is None else tuple(named[i] for i in kept),
    )


def _length(one: slice | list[int] | int) -> int:
    if isinstance(one, int):
        return 1
    return len(range(one.start, one.stop, one.step)) if isinstance(one, slice) else len(one)


def _chunks(
    dims: tuple[str, ...], shape: tuple[int, ...], given: tuple[int, ...], wanted: Mapping[str, int] | None, label: bool,
) -> tuple[int, ...]:
    """Returns the extents that were asked for; other dimensions are whole. Coordinates are whole in any case: readers
    read them at once."""
    if wanted is None:
        return tuple(max(1, min(chunk, length)) for chunk, length in zip(given, shape, strict=True))
    extents = [-1 if label else wanted.get(dim, -1) for dim in dims]
    return tuple(max(1, length if extent == -1 else min(extent, length)) for extent, length in zip(extents, shape, strict=True))


def _shards(
    name: str, dims: tuple[str, ...], shape: tuple[int, ...], chunks: tuple[int, ...], options: Options, label: bool,
) -> tuple[int, ...] | None:
    """Returns the extents that were asked for; other dimensions are whole. Shards are rounded up to whole chunks."""
    if options.shards is None or label or not dims:
        return None
    found: list[int] = []
    for dim, length, chunk in zip(dims, shape, chunks, strict=True):
        extent = options.shards.get(dim, -1)
        whole = -(-max(length, 1) // chunk) * chunk
        if extent != -1 and extent % chunk and extent < length:
            raise ValueError(
                f"--shards: array {name!r}: expected a multiple of the chunk's {chunk} elements along {dim!r}, but found {extent}"
            )
        found.append(whole if extent == -1 else min(-(-extent // chunk) * chunk, whole))
    return tuple(found)
