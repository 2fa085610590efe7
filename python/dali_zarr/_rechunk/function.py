"""``dali_zarr.rechunk``, which the command of the same name calls too."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from .._arguments import values
from .._text import wrapped

# Names of the command's options, where they are other names than those of the function's parameters.
_NAMES = {"for_reader": "for", "zarr_format": "format"}


def rechunk(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | None = None, codec: str | None = None, for_reader: Mapping[str, Any] | None = None,
    zarr_format: int | None = None, dtype: Any = None, arrays: str | Sequence[str] | None = None,
    sel: Mapping[str, Any] | None = None, isel: Mapping[str, Any] | None = None, method: str | None = None, tolerance: Any = None,
    verify: bool = False, memory: int | str | None = None, workers: int | None = None, scheduler: str | None = None,
    storage_options: Mapping[str, Any] | None = None, target_options: Mapping[str, Any] | None = None, progress: bool = False,
) -> dict[str, Any]:
    """Writes a store with other chunks, shards, codecs or types: a form that is faster to train from.

    Values stay the same bit for bit, unless ``dtype`` is given. After an interruption the same call goes on. It needs zarr-python
    and Dask: ``pip install dask zarr``.

    Args:
        source: The store to copy: a directory, an archive or a URL.
        target: The store to write: a directory, a bucket or a URL of fsspec.
        chunks: Lengths of chunks by dimension: ``{"time": 1}``. Other dimensions, and those with -1, aren't divided. Default: as in
            the source.
        shards: Lengths of shards by dimension, rounded up to whole chunks (Zarr v3).
        codec: ``"none"``, ``"zstd"``, ``"gzip"``, ``"lz4"`` (Zarr v2), ``"blosc-lz4"``, ``"blosc-zstd"`` and others, each with
            ``":LEVEL"``. Default: the source's codecs.
        for_reader: Arguments of :func:`dali_zarr.zarr_reader`, such as ``{"window": 2, "batch_size": 16}``. Chunks, shards and
            codec that aren't given are chosen for a reader with these arguments. The result says why.
        zarr_format: 2 or 3. Default: the source's.
        dtype: The type of numbers, such as ``"float16"``; coordinates and packed values keep theirs.
        arrays: Names of arrays that are copied, with their coordinates. Default: all.
        sel: Labels by dimension, as of :func:`dali_zarr.zarr_reader`.
        isel: Positions by dimension.
        method: How labels that aren't coordinates are looked up, as in xarray.
        tolerance: How far they may be from the nearest one.
        verify: Whether to compare all values with the source at the end.
        memory: Bytes of all tasks together, or text such as ``"2GiB"``; with ``scheduler`` of each worker. Default: a quarter of
            the machine's.
        workers: How many tasks run at a time. Default: the number of cores.
        scheduler: The address of a dask.distributed cluster, such as ``"tcp://HOST:8786"``.
        storage_options: Options of the source, where it is remote.
        target_options: Options of the target, where it is remote.
        progress: Whether to show progress on stderr.

    Returns:
        A dictionary: ``target``; ``arrays``, each with ``name``, ``shape``, ``dtype``, ``chunks``, ``shards`` and
        ``source_chunks``; ``bytes`` that were written and ``seconds``; ``was_complete``, whether an earlier call had written
        all; ``verified``; and ``why``, a sentence for each choice of ``for_reader``.

    Raises:
        ValueError, TypeError, IndexError, ImportError: An argument is wrong; nothing was written.
        RuntimeError: A store can't be read or written, or ``verify`` found a difference.
    """
    given = {name: value for name, value in locals().items() if name not in ("source", "target", "progress") and value is not None}
    if "memory" in given:
        given["memory"] = str(memory)
    named = {_NAMES.get(name, name): value for name, value in given.items()}
    try:
        found = rechunked(os.fspath(source), os.fspath(target), named, progress)
    except (ValueError, ImportError) as error:
        # The command's messages begin with the name of an option.
        if not str(error).startswith("--"):
            raise
        raise type(error)(f"dali_zarr: rechunk: {_by_arguments(str(error))}") from error
    return found | {"why": [_by_arguments(sentence) for sentence in found["why"]]}


def _by_arguments(text: str) -> str:
    """Returns a text of the command with the names of arguments in place of options."""
    by_option = {option: name for name, option in _NAMES.items()}
    return re.sub(r"--(\w+)", lambda match: by_option.get(match[1], match[1]), text)


def rechunked(source_path: str, target_path: str, given: Mapping[str, Any], show: bool) -> dict[str, Any]:
    """Does the same for arguments by the names of the command's options. ``for`` may be text."""
    # Few programs rechunk, and `import dali_zarr` shouldn't import for them.
    from . import advise, options, run, source

    asked = options.parsed(given)
    why: tuple[str, ...] = ()
    if given.get("for") is not None:
        wanted: Any = given["for"]
        if not isinstance(wanted, Mapping):
            wanted = advise.arguments(", ".join(map(str, values.items(wanted))))
        advice = advise.advise(source.read(source_path, asked), asked, cast("Mapping[str, Any]", wanted))
        asked, why = advice.options, advice.why
        if show:
            # Before the work, which may take hours.
            print("\n".join(map(wrapped, why)), file=sys.stderr)
    return run.rechunk(source_path, target_path, asked, show) | {"why": list(why)}
