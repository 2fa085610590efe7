"""Statistics written as JSON or Zarr, and files of them where ``mean`` and ``stddev`` find their numbers."""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from .._arguments import options
from .._arguments.values import expanded, is_file, items, text_of
from .._selection.stores import needed, opened
from . import as_zarr, foreign
from .formats import FORMAT, File, Numbers, Own, check_file, check_size, label_of, reading
from .moments import Moments, pooled
from .selected import Axis, Selected

_KEYS = ("mean", "stddev", "min", "max", "nan_share", "count")


class Statistics(dict[str, Any]):
    """What :func:`dali_zarr.statistics` found: a dictionary whose ``str()`` is a table."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the statistics as Zarr where the name ends in ``.zarr``, else as JSON. Numbers keep all their bits.

        Raises:
            OSError: The file can't be written, or something other than a group of statistics has the name.
            ValueError: The name ends as that of another kind of file. As Zarr, arrays have names that can't be groups beside each
                other, such as ``"z"`` and ``"z/q"``.
            ImportError: zarr-python isn't installed.
        """
        target = Path(expanded(path))
        _check_kind(target)
        if as_zarr.is_meant(target):
            as_zarr.write(self, target)
            return
        # A program that reads meanwhile finds a whole file, or none.
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


def check_output(path: str | os.PathLike[str], names: Collection[str]) -> None:
    """Raises OSError, ValueError or ImportError where statistics of arrays with these names can't be written there."""
    target = Path(expanded(path))
    try:
        _check_kind(target)
        if not target.parent.is_dir():
            raise FileNotFoundError(f"expected an existing folder, but found none at {target.parent}")
        if as_zarr.is_meant(target):
            as_zarr.check(target, names)
        elif target.name.endswith(".zip"):
            raise OSError(f"expected a name that ends in .json or .zarr, but found {target}: Zarr isn't written to zip files")
        elif target.is_dir():
            raise IsADirectoryError(f"expected the name of a file, or one that ends in .zarr, but found the folder {target}")
    except (OSError, ValueError) as error:
        raise type(error)(f"dali_zarr: statistics: output: {error}") from None


def _check_kind(target: Path) -> None:
    """Raises ValueError for a name that belongs to another kind of file: readers go by it."""
    if target.suffix.lower() not in ("", ".json", ".zarr", ".zip"):
        raise ValueError(
            f"expected a name that ends in .json or .zarr, but found {target}: statistics are written as JSON or as a Zarr group"
        )


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _channel_names(axes: Sequence[Mapping[str, Any]]) -> list[str]:
    labels = [[f"{axis['dim']}={label_of(one)}" for one in axis["labels"] or axis["positions"]] for axis in axes]
    return [",".join(names) for names in itertools.product(*labels)]


def described(channels: Sequence[Axis], moments: Sequence[Moments], offsets: Sequence[int]) -> dict[str, Any]:
    """Returns the entry of an array, given the moments of its values, and of its differences for each of the offsets
    after the first."""
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


def read(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces files in ``mean`` and ``stddev`` of a reader's arguments, in the operator's form, by numbers. There is
    one number for each array or channel of a stack; or they are by output, and ``channels`` has the dimensions of their
    channels.

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
    # mean and stddev may be in one file, which is read once.
    files = functools.cache(functools.partial(_opened, arguments=arguments))
    given = {name: _numbers(name, expanded(arguments[name]), arguments, selected, files) for name in names}
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


def _numbers(name: str, path: str, arguments: Mapping[str, Any], selected: Selected, files: Callable[[str], File]) -> Numbers:
    try:
        file = files(path)
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


def _opened(path: str, arguments: Mapping[str, Any]) -> File:
    """Opens a file of statistics, of the kind that the end of its name says, or a Zarr store.

    Raises:
        OSError, ValueError: The file can't be read.
    """
    if path.endswith(".npy"):
        check_file(path)
        # Mapped, so that a shape larger than the file takes no memory.
        return foreign.Npy(np.load(path, mmap_mode="r", allow_pickle=False))
    if path.endswith((".nc", ".nc4", ".netcdf")):
        xarray = needed("xarray", "reading NetCDF files of statistics")
        if "://" not in path:
            check_file(path)
        with xarray.open_dataset(path) as dataset:
            check_size(dataset.nbytes)
            return foreign.NetCdf(dataset.load())
    if not path.endswith(".json") and ("://" in path or path.endswith((".zarr", ".zip")) or os.path.isdir(path)):
        return _of_group(_group(path, arguments))
    check_file(path)
    with open(path, encoding="utf-8") as file:
        found: Any = json.load(file)
    if not isinstance(found, dict) or cast(dict[str, Any], found).get("format") != FORMAT:
        raise ValueError(
            "expected JSON that dali_zarr.statistics wrote, a Zarr store, or a file whose name ends in .npy or .nc, but found "
            "other JSON"
        )
    return Own(cast(dict[str, Any], found))


def _group(path: str, arguments: Mapping[str, Any]) -> Any:
    zarr = needed("zarr", "reading statistics from Zarr")
    given = arguments.get("storage_options")
    try:
        # With the options of the reader's stores: statistics are often beside them.
        store = opened(zarr, path, {} if given is None else options.by_name(items(given)))
        return zarr.open_group(store, mode="r")
    except ImportError:
        raise
    except Exception as error:
        raise OSError(str(error).strip().split("\n")[0]) from error


def _of_group(group: Any) -> File:
    if group.attrs.get("format") == FORMAT:
        with reading():
            return Own(as_zarr.content(group))
    if foreign.Anemoi.is_kept_by(group):
        return foreign.Anemoi(group)
    raise ValueError(
        "expected a Zarr group that dali_zarr.statistics wrote, or a store of anemoi-datasets (with the arrays 'mean' and 'stdev' "
        "and the attribute 'variables'), but found another one"
    )
