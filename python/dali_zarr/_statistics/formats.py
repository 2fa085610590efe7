"""What files of statistics have in common, and the content that :func:`dali_zarr.statistics` writes."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import stat
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .._hints import did_you_mean
from .._log import log
from .._selection.axes import Array
from .moments import Doubles, Moments, pooled
from .selected import Axis, Selected

FORMAT, VERSION = "dali_zarr statistics", 1


def check_version(content: Mapping[str, Any]) -> None:
    """Raises ValueError where statistics were written in another version of the format."""
    if content.get("version") != VERSION:
        raise ValueError(f"expected version {VERSION} of the format, but found {content.get('version')!r}")


@dataclass(frozen=True)
class Numbers:
    """What a file has, for each array: its numbers, and the dimensions of its channels where there are several."""

    values: list[list[float]]
    dims: list[list[str]]


class File:
    """A file of statistics."""

    def numbers(self, name: str, selected: Selected, stacked: bool) -> Numbers:
        """Returns for each array one number, or one for each channel of the array or of the stack.

        Raises:
            ValueError: Some numbers are missing.
        """
        found, along = list[list[float]](), list[list[str]]()
        for array in selected.arrays:
            named = selected.channel_dims(array)
            own = self.named(selected, array) if named is None else named
            if all(len(selected.positions(array, dim)) == 1 for dim in own):
                own = []
            dims = [dim for dim in array.dims if dim in own or (stacked and dim in selected.stacked_dims(array))]
            part = self.of_array(name, selected, array, dims)
            for i, number in enumerate(part):
                where = f"array '{array.name}'" + (f", {_which(selected, array, dims, i)}" if len(part) > 1 else "")
                if not np.isfinite(number):
                    raise ValueError(f"{where}: expected a finite number, but there is none (are all elements NaN?)")
                if name == "stddev" and number == 0:
                    raise ValueError(f"{where}: expected a stddev other than 0, but all elements are equal; give numbers")
            # Along dims, the engine takes a number for each element, also for those that no sample reads.
            whole = np.full([selected.length(array, dim) for dim in dims], 0.0 if name == "mean" else 1.0)
            places = [selected.region(array, dim) for dim in dims]
            whole[np.ix_(*places)] = np.reshape(part, [len(place) for place in places])
            found.append(whole.reshape(-1).tolist())
            along.append(own)
        return Numbers(found, along)

    def named(self, selected: Selected, array: Array) -> list[str]:
        """Returns the dimensions of an array's channels by the file. They count where the reader doesn't name any."""
        raise NotImplementedError

    def of_array(self, name: str, selected: Selected, array: Array, dims: list[str]) -> list[float]:
        """Returns the numbers of an array for each element along ``dims``, which become channels.

        Raises:
            ValueError: Some numbers are missing.
        """
        raise NotImplementedError


def _which(selected: Selected, array: Array, dims: Sequence[str], i: int) -> str:
    """Names a channel, for messages."""
    axes = [selected.axis(array, dim) for dim in dims]
    at = np.unravel_index(i, [len(axis.positions) for axis in axes])
    return ", ".join(f"{axis.dim} {label_of((axis.labels or axis.positions)[int(n)])}" for axis, n in zip(axes, at, strict=True))


class Own(File):
    """What :func:`dali_zarr.statistics` wrote, in the form that JSON has."""

    def __init__(self, content: Mapping[str, Any]):
        check_version(content)
        self._arrays: Mapping[str, Any] = content["arrays"]
        self._named: Any = content.get("channels")

    def named(self, selected: Selected, array: Array) -> list[str]:
        """Returns the dimensions that were named when the statistics were computed."""
        dims = [axis["dim"] for axis in entry_of(self._arrays, key_of(array))["channels"]]
        named = self._named
        if isinstance(named, Mapping):
            # By the names of arrays; files of former versions have the names of outputs.
            of_arrays = cast("Mapping[str, Any]", named)
            named = of_arrays.get(key_of(array), of_arrays.get(array.output))
            if named is None:
                return []
        return [dim for dim in selected.named_channels(array, named) or [] if dim in dims]

    def of_array(self, name: str, selected: Selected, array: Array, dims: list[str]) -> list[float]:
        entry = entry_of(self._arrays, key_of(array))
        axes = [Axis(**axis) for axis in entry["channels"]]
        rows = rows_of(selected, array, dims, axes)
        by: Mapping[str, Sequence[float | None]] = entry["by_channel"]
        numbers = {key: np.array([np.nan if value is None else value for value in by[key]]) for key in ("mean", "stddev", "weight")}
        if name == "mean":
            others = [axis.dim for axis in axes if axis.dim not in dims]
            for row in rows:
                _warn_of_differences(array, others, numbers, row)
        return [_of_channels(name, row, numbers) for row in rows]


def _warn_of_differences(array: Array, dims: list[str], numbers: Mapping[str, Doubles], row: Any) -> None:
    """Warns where channels get one number that can't normalise them: their means differ by more than each varies."""
    means, deviations = numbers["mean"][row], numbers["stddev"][row]
    if len(row) > 1 and np.ptp(means) > np.max(deviations):
        _warn_once(
            f"array '{array.name}': its {len(row)} channels get one mean and one stddev, but their means lie between "
            f"{np.min(means):g} and {np.max(means):g} and none varies by more than {np.max(deviations):g}; "
            f"channels={ {array.output: dims[0] if len(dims) == 1 else dims} } gives each its own"
        )


@functools.lru_cache(64)
def _warn_once(message: str) -> None:
    """Logs a message once, though arguments are looked at more than once while a reader is made."""
    log.warning("%s", message)


def _of_channels(name: str, row: Any, numbers: Mapping[str, Doubles]) -> float:
    """Returns the mean or stddev of all elements of some channels."""
    if len(row) == 1:
        return float(numbers[name][row[0]])
    weight = numbers["weight"][row]
    zero = np.zeros(len(row))
    m2 = np.where(weight > 0, numbers["stddev"][row] ** 2 * weight, 0.0)
    together = pooled(Moments(zero, zero, weight, np.where(weight > 0, numbers["mean"][row], 0.0), zero, m2, zero, zero))
    return float(together.mean[0] if name == "mean" else together.stddev()[0])


def key_of(array: Array) -> str:
    """Returns the name of an array in files: its own, or that of its output if it has a store of its own, which may be
    moved."""
    return array.output if array.is_own else array.name


def by_array(channels: Any, arrays: Sequence[Array]) -> Any:
    """Changes the keys of ``channels``, if they are names of outputs, to the names that arrays have in files."""
    if not isinstance(channels, Mapping):
        return channels
    told = cast("Mapping[str, Any]", channels)
    return {key_of(array): told[array.output] for array in arrays if array.output in told}


def entry_of(arrays: Mapping[str, Any], name: str) -> Any:
    if name not in arrays:
        known = ", ".join(repr(str(one)) for one in arrays)
        raise ValueError(
            f"expected statistics of array '{name}', but found the arrays {known}; "
            + did_you_mean(name, map(str, arrays), "make them with dali_zarr.statistics")
        )
    return arrays[name]


@contextlib.contextmanager
def reading() -> Generator[None]:
    """Turns what zarr-python raises for damaged stores into ValueError."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"expected whole arrays, but they can't be read: {type(error).__name__}: {error}") from error


# Most bytes of a file of statistics, and of all numbers of one that is compressed.
_MOST = 1 << 30


def check_file(path: str) -> None:
    """Raises OSError or ValueError for what isn't a file or is too large: a pipe would be waited for, and a device such
    as /dev/zero has no end."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError("expected a file, but found a folder, a pipe or a device")
    check_size(found.st_size)


def check_size(count: int) -> None:
    """Raises ValueError if statistics have so many bytes that they are something else."""
    if count > _MOST:
        raise ValueError(f"expected statistics of at most {_MOST} bytes, but found {count}; is this a file of data?")


def elements(array: Any) -> Any:
    """Returns all elements of zarr-python's array.

    Raises:
        ValueError: It is too large for statistics.
    """
    check_size(array.nbytes)
    return np.asarray(array[...])


def label_of(value: Any) -> str:
    """Formats a label, or a position, for messages."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def places_of(selected: Selected, array: Array, axis: Axis) -> list[int]:
    """Returns where along an axis of the file the reader's elements are: by label where both have labels, else by
    position."""
    if axis.dim not in array.dims:
        found = ", ".join(array.dims)
        raise ValueError(f"array '{array.name}': expected a dimension {axis.dim!r}, as the file has it, but found {found}")
    own = selected.axis(array, axis.dim)
    by_label = own.labels is not None and axis.labels is not None
    there: list[Any] = list(axis.labels or []) if by_label else list(axis.positions)
    at = {label: i for i, label in enumerate(there)}
    if by_label and len(at) < len(there):
        twice = next(label for i, label in enumerate(there) if at[label] != i)
        raise ValueError(f"expected each label along {axis.dim!r} once, but the file has {label_of(twice)} twice")
    wanted: list[Any] = list(own.labels or []) if by_label else list(own.positions)
    missing = [label for label in wanted if label not in at]
    if missing:
        kind = "" if by_label else " at positions"
        raise ValueError(
            f"array '{array.name}': expected statistics of {axis.dim}{kind} {', '.join(map(label_of, missing))}, but found those "
            f"of {', '.join(map(label_of, there))}"
        )
    return [at[label] for label in wanted]


def rows_of(selected: Selected, array: Array, dims: Sequence[str], axes: Sequence[Axis]) -> npt.NDArray[np.int64]:
    """Returns a row for each of the reader's elements along ``dims``, which become channels. The row has the places of
    the element's numbers among those of a file with these axes. There are several places where the file has other
    dimensions too.

    Raises:
        ValueError: The file lacks some elements.
    """
    there = [axis.dim for axis in axes]
    for dim in dims:
        if dim not in there:
            found = f"those along {', '.join(map(repr, there))}" if there else "none"
            raise ValueError(f"array '{array.name}': expected statistics for each element of {dim!r}, but found {found}")
    places = [places_of(selected, array, axis) for axis in axes]
    shape = [len(axis.positions) for axis in axes]
    index = np.asarray(np.arange(math.prod(shape)).reshape(shape)[np.ix_(*places)])
    order = sorted(range(len(there)), key=lambda n: dims.index(there[n]) if there[n] in dims else len(dims))
    count = math.prod(len(place) for dim, place in zip(there, places, strict=True) if dim in dims)
    return index.transpose(order).reshape(count, -1)
