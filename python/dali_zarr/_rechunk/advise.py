"""``--for``: chunks, shards and a codec for the way in which a reader takes samples, and why.

Layouts are tried on stores that have metadata only, by :func:`dali_zarr.explain`: what it counts is what a reader does.
"""

from __future__ import annotations

import ast
import itertools
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from .. import _arguments
from .._inspect import explained
from .._selection.axes import Axes
from .._selection.stores import needed
from .._text import number_of, shape, size
from . import target as targets
from .layout import Wanted, wanted
from .options import Options
from .source import Source, is_coordinate

# Bytes above which chunks are split; bytes below which they are put in shards; number above which they are put in
# shards.
_LARGE, _SMALL, _MANY = 16 << 20, 4 << 20, 10_000
_SHARD = 128 << 20
# The fixed cost of a chunk (a request, a decoder's start), as a number of bytes.
_OVERHEAD = 64 << 10
# Arguments that may name an array whose values count.
_WITH_VALUES = ("breaks", "ragged", "ragged_ends", "segments", "starts", "weights")
_REFUSED = ("path", "sel", "isel", "method", "tolerance", "storage_options")


@dataclass(frozen=True)
class Advice:
    """The options, completed by what was chosen for those that weren't given, and a sentence for each choice."""

    options: Options
    why: tuple[str, ...]


@dataclass(frozen=True)
class _TrialResult:
    chunks: Mapping[str, int]
    decoded: float
    count: float
    cost: float


def arguments(text: str) -> dict[str, Any]:
    """Converts ``name=value, name=value`` to the reader's arguments; words without quotes are text.

    Raises:
        ValueError: The text isn't of this form, or an argument has no place here.
    """
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except SyntaxError:
        call = None
    if not isinstance(call, ast.Call) or call.args or not call.keywords:
        example = '"window=2, offsets=[0, 6], batch_size=16"'
        raise ValueError(f"--for: expected arguments of the reader, such as {example}, found {text!r}")
    found: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in _REFUSED:
            raise ValueError(f"--for: expected arguments that say how samples are cut, but found {keyword.arg or '**'}")
        found[keyword.arg] = _value(keyword.arg, keyword.value)
    return found


def _value(name: str, node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id not in ("true", "false"):
        return node.id
    if isinstance(node, ast.Name):
        return node.id == "true"
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(name, one) for one in node.elts]
    if isinstance(node, ast.Dict) and all(node.keys):
        return {_value(name, key): _value(name, one) for key, one in zip(node.keys, node.values, strict=True) if key is not None}
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"--for: {name}: expected a number, text, a list or a dictionary, found {ast.unparse(node)}") from None


def advise(source: Source, options: Options, arguments: Mapping[str, Any]) -> Advice:
    """Chooses what ``options`` leave open, for a reader with these arguments.

    Raises:
        ValueError, TypeError, IndexError: The reader's arguments are wrong.
    """
    given = dict(arguments)
    refused = next((name for name in given if name in _REFUSED), None)
    if refused is not None:
        raise ValueError(f"--for: expected arguments that say how samples are cut, but found {refused}")
    arrays = wanted(source, replace(options, chunks=None, shards=None, codec=options.codec))
    read = _read(arrays, given, source)
    if not isinstance(given.get("arrays"), Mapping):
        given["arrays"] = [array.name for array in read] if read[0].name else None
    given |= _of_source(given, source)
    zarr_format = options.zarr_format or source.zarr_format
    with tempfile.TemporaryDirectory() as folder:
        trying = _LayoutTrials(Path(folder), source, read, given, options, zarr_format)
        now = trying.trial({})
        main = max(read, key=lambda array: (len(array.dims), array.bytes))
        why: list[str] = []
        chooses = options.chunks is None
        if chooses:
            best = min((trying.trial(chunks) for chunks in trying.candidates(main)), key=lambda trial: trial.cost)
            options = replace(options, chunks=best.chunks)
        chosen = options.chunks or {}
        extents = [_extent(chosen.get(dim, -1), length) for dim, length in zip(main.dims, main.shape, strict=True)]
        if options.shards is None and zarr_format == 3:
            shards, reason = _shards(main, extents)
            options = replace(options, shards=shards)
            why.append(reason)
        is_given, options = options.codec is not None, replace(options, codec=options.codec or "blosc-lz4")
        if chooses:
            # What was chosen is counted as it will be, with its shards: they change what a reader's memory holds.
            names = [array.name for array in read]
            last = trying.result(chosen, [array for array in wanted(source, options) if array.name in names])
            why.insert(0, _why_chunks(main, last, now))
    if not is_given:
        where = "on a GPU it takes least of the time that training needs too" if given.get("device") == "gpu" else (
            "a CPU decodes it several times faster than zstd"
        )
        why.append(f"codec blosc-lz4: {where}; --codec blosc-zstd takes less space")
    return Advice(options, tuple(why))


def _read(arrays: list[Wanted], given: Mapping[str, Any], source: Source) -> list[Wanted]:
    """Returns the arrays that samples are made of: those that are named, else the largest and those with the same
    dimensions."""
    names = cast("str | list[str] | dict[str, str] | None", given.get("arrays"))
    if names is not None:
        listed = [names] if isinstance(names, str) else list(names.values() if isinstance(names, dict) else names)
        missing = [name for name in listed if name not in source.arrays]
        if missing:
            raise ValueError(f"--for: arrays: the store {source.path} has no array {missing[0]!r}")
        return [array for array in arrays if array.name in listed]
    data = [array for array in arrays if array.dims and array.dtype.kind in "biuf" and not is_coordinate(array.name, array.source)]
    if not data:
        raise ValueError(f"--for: the store {source.path} has no array of numbers that samples could be of")
    largest = max(data, key=lambda array: (len(array.dims), array.bytes))
    return [array for array in data if array.dims == largest.dims]


def _of_source(given: Mapping[str, Any], source: Source) -> dict[str, str]:
    """Returns the arguments that name an array whose values count, with its location in the source: the stores of
    trials have no values."""
    found: dict[str, str] = {}
    for argument in _WITH_VALUES:
        name = given.get(argument)
        if isinstance(name, str) and name in source.arrays:
            path = source.path if "://" in source.path else os.path.abspath(source.path)
            found[argument] = f"{path}/{name}"
    return found


class _LayoutTrials:
    """Tries layouts by writing stores without values."""

    def __init__(
        self, folder: Path, source: Source, read: list[Wanted], given: dict[str, Any], options: Options, zarr_format: int
    ):
        self._folder, self._source, self._read, self._given = folder, source, read, given
        self._options, self._format, self._count = options, zarr_format, 0

    def _with(self, chunks: dict[str, int]) -> list[Wanted]:
        return [
            replace(array, shards=None, chunks=tuple(
                _extent(chunks.get(dim, -1), length) if chunks else old
                for dim, length, old in zip(array.dims, array.shape, array.chunks, strict=True)
            )) for array in self._read
        ]

    def _written(self, arrays: list[Wanted]) -> str:
        folder = self._folder / str(self._count)
        self._count += 1
        store = needed("zarr.storage", "rechunk").LocalStore(folder)
        targets.make(store, self._source, arrays, self._format)
        return str(folder)

    def trial(self, chunks: dict[str, int]) -> _TrialResult:
        """Returns what a reader does with these chunks, without shards; if ``chunks`` is empty, with those of the source."""
        return self.result(chunks, self._with(chunks))

    def result(self, chunks: Mapping[str, int], arrays: list[Wanted]) -> _TrialResult:
        """Returns what a reader does with these arrays, which have these chunks."""
        plan = explained(path=self._written(arrays), **{name: value for name, value in self._given.items() if value is not None})
        assert isinstance(plan, dict)
        delivered = sum(array["bytes_per_sample"] for array in plan["arrays"])
        decoded = sum(array["chunk_bytes_read_per_sample"] for array in plan["arrays"])
        count = sum(array["chunks_per_sample"] for array in plan["arrays"])
        return _TrialResult(chunks, decoded / max(delivered, 1), count, decoded + count * _OVERHEAD)

    def candidates(self, main: Wanted) -> list[dict[str, int]]:
        """Returns chunks that may be best. Along dims they hold an element, a window, a step, or what neighbouring
        windows have in common. Along other dimensions they are whole, or cut if they are too large."""
        spec = _arguments.resolved({**{k: v for k, v in self._given.items() if k not in ("batch_size", "device")},
                                    "path": self._written(self._with({}))})
        axes = Axes.of_reader(spec)
        windows = axes.listed("window", spec, 0)
        steps = axes.listed("step", spec, 0) if spec.get("step") is not None else [0] * len(windows)
        along: dict[str, set[int]] = {}
        for i, dim in enumerate(axes.dims):
            length = axes.region_length(i, spec)
            window = length if windows[i] == -1 else max(windows[i], 1)
            step = steps[i] or window
            along[dim] = {min(n, length) for n in (1, window, math.gcd(window, step), step)}
        for dim, picked in axes.picks.items():
            if dim not in along and len(picked[0]) < axes.lengths(dim)[0]:
                along[dim] = {1}
        found: list[dict[str, int]] = []
        for extents in itertools.product(*along.values()):
            chunks = dict(zip(along, extents, strict=True))
            found.append(_split(main, chunks))
        return found


def _extent(wanted: int, length: int) -> int:
    return max(1, length if wanted == -1 else min(wanted, length))


def _split(array: Wanted, chunks: dict[str, int]) -> dict[str, int]:
    """Cuts chunks to at most 16 MiB: halves them along the longest dimension that is whole, else along the longest."""
    found = dict(chunks)
    while True:
        extents = {dim: _extent(found.get(dim, -1), length) for dim, length in zip(array.dims, array.shape, strict=True)}
        if math.prod(extents.values()) * array.dtype.itemsize <= _LARGE:
            return found
        whole = {dim: n for dim, n in extents.items() if dim not in chunks and n > 1} or extents
        dim = max(whole, key=lambda name: whole[name])
        found[dim] = -(-extents[dim] // 2)


def _why_chunks(array: Wanted, best: _TrialResult, now: _TrialResult) -> str:
    extents = [_extent(best.chunks.get(dim, -1), length) for dim, length in zip(array.dims, array.shape, strict=True)]
    told = ",".join(f"{dim}={extent}" for dim, extent in best.chunks.items()) or "whole"
    return (
        f"chunks {told} ({shape(extents)}, {size(math.prod(extents) * array.dtype.itemsize)}): a sample needs "
        f"{number_of(round(best.count), 'chunk')}, and {best.decoded:.2f} bytes are decoded for each byte of a batch. With the "
        f"source's chunks of {shape(array.chunks)} it needs {number_of(round(now.count), 'chunk')}, and {now.decoded:.2f} bytes "
        "are decoded"
    )


def _shards(array: Wanted, extents: list[int]) -> tuple[dict[str, int] | None, str]:
    chunk = math.prod(extents) * array.dtype.itemsize
    count = math.prod(-(-length // extent) for length, extent in zip(array.shape, extents, strict=True))
    if chunk >= _SMALL and count <= _MANY:
        return None, f"no shards: {number_of(count, 'chunk')} of {size(chunk)} are few enough, and large enough, to be files"
    shards = dict(zip(array.dims, extents, strict=True))
    # From the last dimension on, so that a shard is a piece of the array in its order.
    for dim, length in reversed(list(zip(array.dims, array.shape, strict=True))):
        bytes_now = math.prod(shards.values()) * array.dtype.itemsize
        chunks = -(-length // shards[dim])
        # Shards of the same size, as far as that goes.
        count_along = -(-chunks // min(chunks, max(1, _SHARD // bytes_now)))
        shards[dim] *= -(-chunks // count_along)
    files = math.prod(-(-length // shards[dim]) for dim, length in zip(array.dims, array.shape, strict=True))
    told = ",".join(f"{dim}={extent}" for dim, extent in shards.items())
    return shards, (
        f"shards {told}: {number_of(count, 'chunk')} of {size(chunk)} in {number_of(files, 'file')} of "
        f"{size(math.prod(shards.values()) * array.dtype.itemsize)}; a reader takes single chunks out of them"
    )
