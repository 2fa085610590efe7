"""What a task does. Workers of a cluster get this module by value: it imports NumPy and zarr-python only, so that they need neither
DALI nor this package."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

# Along a dimension of the source: a slice with a step above 0, a list of places, or one place, which drops the dimension.
Selection = tuple[slice | list[int] | int, ...]


def copy(source: Any, target: Any, selection: Selection, region: tuple[slice, ...], in_flight: int | None) -> None:
    """Reads a selection of zarr-python's array ``source`` and writes it to a region of ``target``, which consists of whole shards
    or chunks. What equals the fill value to the bit isn't written."""
    _limit(in_flight)
    block = read(source, selection, target)
    if block.ndim == 0:
        target[()] = block[()]
        return
    unit = target.shards or target.chunks
    fill = _fill_of(target)
    if fill is not None and not _same(block[tuple(slice(None, None, extent) for extent in unit)], fill).any():
        fill = None
    if fill is None and not _one_at_a_time():
        target[region] = block
        return
    for at in np.ndindex(*(math.ceil(length / extent) for length, extent in zip(block.shape, unit))):
        part = tuple(slice(i * extent, (i + 1) * extent) for i, extent in zip(at, unit))
        if fill is None or not _same(block[part], fill).all():
            place = tuple(
                slice(whole.start + one.start, min(whole.start + one.stop, whole.stop)) for whole, one in zip(region, part)
            )
            # Contiguous, since zarr-python would otherwise copy it in its one thread for all tasks.
            target[place] = np.ascontiguousarray(block[part])


def compare(source: Any, target: Any, selection: Selection, region: tuple[slice, ...], in_flight: int | None) -> list[int] | None:
    """Reads the same elements of both. Returns the place of the first that differs in a bit, or None."""
    _limit(in_flight)
    wanted, found = read(source, selection, target), np.asarray(target[region] if target.ndim else target[()])
    if wanted.shape != found.shape:
        return [0] * target.ndim
    differ = np.asarray(~_same(wanted, found))
    if not differ.any():
        return None
    if target.ndim == 0:
        return []
    first = np.unravel_index(int(np.argmax(differ)), differ.shape)
    return [int(i) + part.start for i, part in zip(first, region)]


def read(source: Any, selection: Selection, target: Any) -> npt.NDArray[Any]:
    """Reads a selection of an array; returns it in the target's type."""
    try:
        block = _read(source, selection)
    except Exception as error:
        why = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise RuntimeError(f"array {getattr(source, 'path', '')!r} can't be read at {_told(selection)}: {why}") from error
    if block.dtype == target.dtype:
        return block
    try:
        with np.errstate(over="raise"):
            return block.astype(target.dtype)
    except FloatingPointError:
        raise ValueError(
            f"--dtype: array {source.path!r}: it has values too large for {target.dtype}; remove the target, and give another "
            "type, or leave the array out with --arrays"
        ) from None


def _read(source: Any, selection: Selection) -> npt.NDArray[Any]:
    if not selection:
        found = source[()]
    elif any(isinstance(one, list) for one in selection):
        found = source.oindex[tuple(np.asarray(one) if isinstance(one, list) else one for one in selection)]
    else:
        found = source[selection]
    return np.asarray(found)


def _told(selection: Selection) -> str:
    """Formats a selection as Python writes slices, from the first element of each dimension to the last."""
    ends = [
        (one.start, one.stop) if isinstance(one, slice) else (min(one), max(one) + 1) if isinstance(one, list) else (one, one + 1)
        for one in selection
    ]
    return "[" + ", ".join(f"{first}:{end}" for first, end in ends) + "]"


def part_of(positions: Sequence[Any], region: Sequence[slice]) -> Selection:
    """Returns the source's selection for a region of the target. ``positions``: the selection for the whole target, for
    each dimension of the source. A dimension with a single position is dropped in the target."""
    rest = iter(region)
    found: list[slice | list[int] | int] = []
    for one in positions:
        if isinstance(one, int):
            found.append(one)
            continue
        part = next(rest)
        if isinstance(one, slice):
            spaced = cast("slice[int, int, int]", one)
            start, step = spaced.start, spaced.step
            found.append(slice(start + part.start * step, start + (part.stop - 1) * step + 1, step))
        else:
            found.append(list(one[part]))
    return tuple(found)


def _limit(in_flight: int | None) -> None:
    """Sets how many objects zarr-python reads or writes at a time for one call, in a worker of a cluster. None: leaves
    it."""
    if in_flight is not None:
        import zarr

        if zarr.config.get("async.concurrency") != in_flight:
            zarr.config.set({"async.concurrency": in_flight})


def _one_at_a_time() -> bool:
    """Returns whether zarr-python reads or writes one object at a time."""
    import zarr

    return zarr.config.get("async.concurrency") == 1


def _fill_of(target: Any) -> npt.NDArray[Any] | None:
    """Returns the fill value if chunks that equal it needn't be written, else None."""
    if target.fill_value is None or target.dtype.kind not in "biufcmM":
        return None
    return np.asarray(target.fill_value, target.dtype)


def _same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns where both have the same bits."""
    if one.dtype.kind not in "biufcmM":
        return np.asarray(one == other)
    as_bits = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}.get(one.dtype.itemsize)
    if as_bits is not None:
        return np.asarray(_bits(one, as_bits) == _bits(other, as_bits))
    halves = [_bits(array, "u8").reshape(*array.shape, -1) for array in (one, other)]
    return np.asarray((halves[0] == halves[1]).all(axis=-1))


def _bits(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Returns the bits of the numbers, whatever their byte order."""
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False)).view(dtype).reshape(
        array.shape if array.dtype.itemsize <= 8 else (*array.shape, array.dtype.itemsize // 8)
    )


def open_again(array: Any) -> None:
    """Raises where a worker doesn't find an array."""
    import zarr

    zarr.open_array(array.store, path=array.path, mode="r", zarr_format=array.metadata.zarr_format)
