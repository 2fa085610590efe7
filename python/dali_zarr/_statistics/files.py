"""Files of statistics: written as JSON, and found there by ``mean`` and ``stddev``, as in makani's and GraphCast's files."""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from .._arguments.values import expanded, text_of
from .._hints import did_you_mean
from .._log import log
from .._selection.axes import Array
from .._selection.stores import needed
from .moments import Doubles, Moments, pooled
from .selected import Axis, Selected

FORMAT, VERSION = "dali_zarr statistics", 1
_KEYS = ("mean", "stddev", "min", "max", "nan_share", "count")


class Statistics(dict[str, Any]):
    """What :func:`dali_zarr.statistics` found: a dictionary whose ``str()`` is a table."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON. Numbers keep all their bits."""
        target = Path(expanded(path))
        # Whoever reads meanwhile finds the whole file, or none.
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        partial.write_text(json.dumps(self, indent=1, allow_nan=False) + "\n")
        partial.replace(target)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("", *_KEYS)]
        for name, entry in cast(dict[str, Any], self["arrays"]).items():
            for suffix, part in [("", entry), *((f" {int(o):+d}", part) for o, part in entry["tendencies"].items())]:
                rows.append((name + suffix, *(_shown(part[key]) for key in _KEYS)))
                by = part["by_channel"]
                shown = _channel_names(entry["channels"]) if entry["channels"] else []
                rows += [(f"  {name}{suffix} {which}", *(_shown(by[key][i]) for key in _KEYS)) for i, which in enumerate(shown)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = (
            row[0].ljust(widths[0]) + "".join("  " + text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))
            for row in rows
        )
        return "\n".join(line.rstrip() for line in lines)


def folder(path: str | os.PathLike[str]) -> Path:
    """Where a file of that name lies."""
    return Path(expanded(path)).parent


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _channel_names(axes: Sequence[Mapping[str, Any]]) -> list[str]:
    labels = [[f"{axis['dim']}={_label(one)}" for one in axis["labels"] or axis["positions"]] for axis in axes]
    return [",".join(names) for names in itertools.product(*labels)]


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def described(channels: Sequence[Axis], moments: Sequence[Moments], offsets: Sequence[int]) -> dict[str, Any]:
    """The entry of an array, given the moments of its values and of its differences to each of the offsets after the first."""
    first, *others = ({**_scalars(pooled(one)), "by_channel": _lists(one)} for one in moments)
    return {
        "channels": [{"dim": axis.dim, "positions": axis.positions, "labels": axis.labels} for axis in channels],
        **first,
        "tendencies": {str(offset): part for offset, part in zip(offsets[1:], others, strict=True)},
    }


def _scalars(moments: Moments) -> dict[str, Any]:
    return {key: values[0] for key, values in _lists(moments).items()}


def _lists(moments: Moments) -> dict[str, list[Any]]:
    share = np.divide(moments.nans, moments.count, out=np.zeros_like(moments.nans), where=moments.count > 0)
    return {
        **{
            key: [value if np.isfinite(value) else None for value in values.tolist()]
            for key, values in (("mean", moments.mean), ("stddev", moments.stddev()), ("min", moments.min), ("max", moments.max))
        },
        "nan_share": share.tolist(), "count": [int(value) for value in moments.count], "weight": moments.weight.tolist(),
    }


def is_file(value: Any) -> bool:
    """Whether a value of ``mean`` or ``stddev`` is a file's name, not numbers (which may be text)."""
    if isinstance(value, os.PathLike):
        return True
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False


def read(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a reader, in the operator's form, with numbers instead of files for ``mean`` and ``stddev``: one for each
    array or channel of a stack, or by output, with the dimensions of their channels.

    Raises:
        ValueError: A file has none for an array or a channel, or can't be read.
        ImportError: A package that NetCDF needs isn't installed.
    """
    names = [name for name in ("mean", "stddev") if is_file(arguments.get(name))]
    if not names:
        return dict(arguments)
    selected = Selected(arguments)
    try:
        selected.check_channels(arguments.get("channels"))
    except ValueError as error:
        raise ValueError(f"zarr_reader: {error}") from error
    given = {name: _numbers(name, arguments[name], arguments, selected) for name in names}
    found = dict(arguments)
    told: dict[str, list[str]] = {}
    for numbers in given.values():
        for array, dims in zip(selected.arrays, numbers.dims, strict=True):
            if dims and told.setdefault(array.output, dims) != dims:
                raise ValueError(
                    f"zarr_reader: mean, stddev: array '{array.name}': expected files with statistics for each element along the "
                    f"same dimensions, but found {', '.join(told[array.output])} and {', '.join(dims)}; name them, as in "
                    f"channels={dims!r}"
                )
    for name, numbers in given.items():
        if told:
            outputs = (array.output for array in selected.arrays)
            found[name] = {output: [text_of(name, v) for v in of] for output, of in zip(outputs, numbers.values, strict=True)}
        else:
            found[name] = [number for of in numbers.values for number in of]
    if told and not isinstance(arguments.get("channels"), list):
        found["channels"] = {**cast(dict[str, Any], arguments.get("channels") or {}), **told}
    return found


@dataclass(frozen=True)
class _Numbers:
    """What a file has, for each array: its numbers, and the dimensions of its channels where there are several."""

    values: list[list[float]]
    dims: list[list[str]]


def _numbers(name: str, value: Any, arguments: Mapping[str, Any], selected: Selected) -> _Numbers:
    path = expanded(value)
    try:
        file = _File.opened(path)
    except OSError as error:
        raise ValueError(
            f"zarr_reader: {name}: expected numbers or a file of statistics, but {path!r} can't be read: {error}"
        ) from error
    except ValueError as error:
        raise ValueError(f"zarr_reader: {name}: file {path}: {error}") from error
    stacked = bool(arguments.get("stack_arrays", False))
    try:
        return file.numbers(name, selected, stacked)
    except ValueError as error:
        raise ValueError(f"zarr_reader: {name}: file {path}: {error}") from error


class _File:
    """A file of statistics."""

    @staticmethod
    def opened(path: str) -> _File:
        """Opens it, as the end of its name says.

        Raises:
            OSError, ValueError: It can't be read.
        """
        if path.endswith(".npy"):
            return _Npy(np.load(path, allow_pickle=False))
        if path.endswith((".nc", ".nc4", ".netcdf")):
            xarray = needed("xarray", "reading NetCDF files of statistics")
            with xarray.open_dataset(path) as dataset:
                return _NetCdf(dataset.load())
        with open(path, encoding="utf-8") as file:
            found: Any = json.load(file)
        if not isinstance(found, dict) or cast(dict[str, Any], found).get("format") != FORMAT:
            raise ValueError(
                "expected JSON that dali_zarr.statistics wrote, or a file whose name ends in .npy or .nc, but found other JSON"
            )
        content = cast(dict[str, Any], found)
        if content.get("version") != VERSION:
            raise ValueError(f"expected version {VERSION} of the format, but found {content.get('version')!r}")
        return _Json(content)

    def numbers(self, name: str, selected: Selected, stacked: bool) -> _Numbers:
        """For each array: one, or one for each channel, of the array or of the stack.

        Raises:
            ValueError: Some are missing.
        """
        found, along = list[list[float]](), list[list[str]]()
        for array in selected.arrays:
            named = selected.channel_dims(array)
            own = self.named(selected, array) if named is None else named
            if all(len(selected.positions(dim)) == 1 for dim in own):
                own = []
            dims = [dim for dim in array.dims if dim in own or (stacked and dim in selected.stacked_dims(array))]
            part = self.of_array(name, selected, array, dims)
            for i, number in enumerate(part):
                where = f"array '{array.name}'" + (f", channel {i} of {len(part)}" if len(part) > 1 else "")
                if not np.isfinite(number):
                    raise ValueError(f"{where}: expected a finite number, but there is none (are all elements NaN?)")
                if name == "stddev" and number == 0:
                    raise ValueError(f"{where}: expected a stddev other than 0, but all elements are equal; give numbers")
            # Along those that samples are cut along there is a number for each element, also for those that no sample reads.
            whole = np.full([selected.length(dim) for dim in dims], 0.0 if name == "mean" else 1.0)
            places = [selected.region(dim) for dim in dims]
            whole[np.ix_(*places)] = np.reshape(part, [len(place) for place in places])
            found.append(whole.reshape(-1).tolist())
            along.append(own)
        return _Numbers(found, along)

    def named(self, selected: Selected, array: Array) -> list[str]:
        """The dimensions of an array's channels, where the file says so and the reader doesn't."""
        raise NotImplementedError

    def of_array(self, name: str, selected: Selected, array: Array, dims: list[str]) -> list[float]:
        """Of an array, for each element along ``dims``, which become channels.

        Raises:
            ValueError: Some are missing.
        """
        raise NotImplementedError


class _Json(_File):
    def __init__(self, content: Mapping[str, Any]):
        self._arrays: Mapping[str, Any] = content["arrays"]
        self._named: Any = content.get("channels")

    def named(self, selected: Selected, array: Array) -> list[str]:
        """Those that statistics were asked for by name."""
        dims = [axis["dim"] for axis in _entry(self._arrays, key_of(array))["channels"]]
        return [dim for dim in selected.named_channels(array, self._named) or [] if dim in dims]

    def of_array(self, name: str, selected: Selected, array: Array, dims: list[str]) -> list[float]:
        entry = _entry(self._arrays, key_of(array))
        axes = [Axis(**axis) for axis in entry["channels"]]
        places = [_places(selected, array, axis) for axis in axes]
        for dim in dims:
            if dim not in [axis.dim for axis in axes]:
                raise ValueError(f"array '{array.name}': expected statistics for each element of {dim!r}, but found none")
        by: Mapping[str, Sequence[float | None]] = entry["by_channel"]
        shape = [len(axis.positions) for axis in axes]
        # Those that become channels first, the others last: they are pooled.
        order = sorted(range(len(axes)), key=lambda n: axes[n].dim not in dims)
        index = np.arange(len(by["mean"])).reshape(shape)[np.ix_(*places)] if axes else np.zeros((), np.int64)
        count = int(np.prod([len(p) for p, axis in zip(places, axes, strict=True) if axis.dim in dims], dtype=np.int64))
        rows = index.transpose(order).reshape(count, -1)
        numbers = {key: np.array([np.nan if value is None else value for value in by[key]]) for key in ("mean", "stddev", "weight")}
        if name == "mean":
            others = [axis.dim for axis in axes if axis.dim not in dims]
            for row in rows:
                _warn_of_differences(array, others, numbers, row)
        return [_of_channels(name, row, numbers) for row in rows]


def _warn_of_differences(array: Array, dims: list[str], numbers: Mapping[str, Doubles], row: Any) -> None:
    """Warns where one number is asked of channels that it can't normalise: their means differ by more than each varies."""
    means, deviations = numbers["mean"][row], numbers["stddev"][row]
    if len(row) > 1 and np.ptp(means) > np.max(deviations):
        _warn_once(
            f"array '{array.name}': its {len(row)} channels get one mean and one stddev, but their means lie between "
            f"{np.min(means):g} and {np.max(means):g} and none varies by more than {np.max(deviations):g}; "
            f"channels={ {array.output: dims[0] if len(dims) == 1 else dims} } gives each its own"
        )


@functools.lru_cache(64)
def _warn_once(message: str) -> None:
    """Arguments are looked at more than once while a reader is made."""
    log.warning("%s", message)


def _of_channels(name: str, row: Any, numbers: Mapping[str, Doubles]) -> float:
    """The mean or stddev of all elements of some channels."""
    if len(row) == 1:
        return float(numbers[name][row[0]])
    weight = numbers["weight"][row]
    zero = np.zeros(len(row))
    m2 = np.where(weight > 0, numbers["stddev"][row] ** 2 * weight, 0.0)
    together = pooled(Moments(zero, zero, weight, np.where(weight > 0, numbers["mean"][row], 0.0), zero, m2, zero, zero))
    return float(together.mean[0] if name == "mean" else together.stddev()[0])


def key_of(array: Array) -> str:
    """The name of an array in files: its own, or that of its output if it has a store of its own, which may be moved."""
    return array.output if array.is_own else array.name


def _entry(arrays: Mapping[str, Any], name: str) -> Any:
    if name not in arrays:
        known = ", ".join(repr(str(one)) for one in arrays)
        raise ValueError(
            f"expected statistics of array '{name}', but found the arrays {known}; "
            + did_you_mean(name, map(str, arrays), "make them with dali_zarr.statistics")
        )
    return arrays[name]


def _places(selected: Selected, array: Array, axis: Axis) -> list[int]:
    """Where along an axis of the file the reader's elements are: by label where both have them, else by position."""
    if axis.dim not in array.dims:
        found = ", ".join(array.dims)
        raise ValueError(f"array '{array.name}': expected a dimension {axis.dim!r}, as the file has it, but found {found}")
    own = selected.axis(axis.dim)
    by_label = own.labels is not None and axis.labels is not None
    there: list[Any] = list(axis.labels or []) if by_label else list(axis.positions)
    at = {label: i for i, label in enumerate(there)}
    wanted: list[Any] = list(own.labels or []) if by_label else list(own.positions)
    missing = [label for label in wanted if label not in at]
    if missing:
        kind = "" if by_label else " at positions"
        raise ValueError(
            f"array '{array.name}': expected statistics of {axis.dim}{kind} {', '.join(map(_label, missing))}, but found those of "
            f"{', '.join(map(_label, there))}"
        )
    return [at[label] for label in wanted]


class _Npy(_File):
    """makani's: ``global_means.npy`` and ``global_stds.npy``, of shape (1, channel, 1, 1), in the order of the channels."""

    def __init__(self, content: Any):
        if content.dtype.kind not in "iuf" or max(content.shape, default=1) != content.size:
            raise ValueError(f"expected numbers of shape (1, channel, 1, 1), but found {content.dtype} of shape {content.shape}")
        self._numbers: list[float] = [float(number) for number in content.reshape(-1)]
        self._at = 0

    def numbers(self, name: str, selected: Selected, stacked: bool) -> _Numbers:
        count = 0
        for array in selected.arrays:
            dims = {*(selected.stacked_dims(array) if stacked else []), *(selected.channel_dims(array) or [])}
            count += int(np.prod([len(selected.positions(dim)) for dim in dims], dtype=np.int64))
        if not stacked and len(selected.arrays) == 1 and selected.channel_dims(selected.arrays[0]) is None:
            # A list as one that is written out: the engine looks which dimension it is for.
            return _Numbers([self._numbers], [[]])
        if len(self._numbers) != count:
            what = "channels of the stack" if stacked else "arrays and channels; name these by channels, or give stack_arrays=True"
            raise ValueError(f"expected {count} numbers, one for each of the {what}, but found {len(self._numbers)}")
        self._at = 0
        return super().numbers(name, selected, stacked)

    def named(self, selected: Selected, array: Array) -> list[str]:
        return []

    def of_array(self, name: str, selected: Selected, array: Array, dims: list[str]) -> list[float]:
        count = int(np.prod([len(selected.positions(dim)) for dim in dims], dtype=np.int64))
        self._at += count
        return self._numbers[self._at - count : self._at]


class _NetCdf(_File):
    """GraphCast's and WeatherBench's: a file of means, or of deviations, with a variable for each array, by level."""

    def __init__(self, dataset: Any):
        self._dataset = dataset

    def named(self, selected: Selected, array: Array) -> list[str]:
        """Those that the file has numbers for: there is none for all of them together."""
        variable = _entry(self._dataset.data_vars, key_of(array))
        return [dim for dim in array.dims if dim in variable.dims and len(selected.positions(dim)) > 1]

    def of_array(self, name: str, selected: Selected, array: Array, dims: list[str]) -> list[float]:
        variable = _entry(self._dataset.data_vars, key_of(array))
        variable = variable.squeeze([dim for dim in variable.dims if dim not in array.dims and variable.sizes[dim] == 1])
        for dim in dims:
            if dim not in variable.dims:
                raise ValueError(f"array '{array.name}': expected a number for each element of {dim!r}, but found {variable.dims}")
        numbers = np.asarray(variable.values, np.float64)
        # Those that become channels first.
        there: list[str] = [str(dim) for dim in variable.dims]
        order = sorted(range(len(there)), key=lambda n: dims.index(there[n]) if there[n] in dims else len(dims))
        for n, dim in enumerate(there):
            labels: list[float | str] | None = [float(v) for v in variable[dim].values] if dim in variable.coords else None
            places = _places(selected, array, Axis(dim, list(range(numbers.shape[n])), labels))
            if dim not in dims and len(places) > 1:
                raise ValueError(
                    f"array '{array.name}': expected one number, but found one for each of {len(places)} elements of {dim!r}; "
                    f"select one of them, or give each its own by channels={ {array.output: dim} }"
                )
            numbers = numbers.take(places, axis=n)
        return [float(number) for number in numbers.transpose(order).reshape(-1)]
