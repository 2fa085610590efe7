"""One definition of samples for training, validation and test."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import combinations
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from .. import _arguments, _handles, _native
from .._arguments import segments as segments_of
from .._arguments.types import Paths
from .._loading import outputs
from .._loading.ragged import RAGGED
from . import indexers
from .axes import Axes
from .lookup import of_index


def splits(
    *, path: Paths | None = None, by: Literal["labels", "segments", "rows"] | None = None, train: Any = None,
    validation: Any = None, test: Any = None, **arguments: Any,
) -> dict[str, dict[str, Any]]:
    """Returns the arguments of readers for the parts of one data set. Labels along the first of ``dims``, numbers of
    episodes or numbers of ragged rows say what belongs to a part.

    ::

        parts = dali_zarr.splits(path="era5.zarr", arrays=["t2m"], offsets={"input": 0, "target": 6}, random_shuffle=True,
                                 train=slice(None, "2016"), validation="2017", test=slice("2018", None))
        training, validation = Loader(**parts["train"]), Loader(**parts["validation"])

        parts = dali_zarr.splits(path="pusht.zarr", arrays=["data/img", "data/action"], breaks="meta/episode_ends",
                                 train=slice(0, 180), validation=slice(180, None))

    Only ``train`` is shuffled. No sample reaches from one part into another.

    Args:
        path: One store or several; none where all arrays have stores of their own.
        by: How the parts are given. ``"segments"``: by numbers of the segments between ``breaks`` (episodes), as
            ``segments`` takes them, or by slices of numbers; a slice doesn't include its end. ``"rows"``: in the same
            way by numbers of the rows of ``ragged`` or ``ragged_ends``. ``"labels"``: by labels along the first of
            ``dims``. Default: segments where ``breaks`` is the name of an array of ends, else rows where samples are
            ragged, else labels.
        train, validation, test: Labels as ``sel`` takes them, or a slice of numbers of segments or rows, a list of them, or True
            or False for each. Parts that aren't given are left out.
        arguments: The other arguments of :func:`dali_zarr.zarr_reader` or of a loader, the same for all parts.

    Raises:
        TypeError: An argument isn't known.
        ValueError: No part is given, two parts have elements or segments in common, or a part selects none.
        IndexError, TypeError: A segment isn't there, or isn't given by a number.
    """
    _arguments.names.check(arguments, {"train", "validation", "test", *_arguments.names.OF_LOADERS})
    parts = {name: part for name, part in (("train", train), ("validation", validation), ("test", test)) if part is not None}
    if not parts:
        raise ValueError("dali_zarr: splits: expected at least one of train, validation and test")
    if by not in ("labels", "segments", "rows", None):
        raise ValueError(f"dali_zarr: splits: by: expected 'labels', 'segments' or 'rows', but found {by!r}")
    given: dict[str, Any] = _handles.translated({**({} if path is None else {"path": path}), **arguments})
    if by == "segments" or (by is None and _has_ends(given.get("breaks"))):
        found = _by_segments(given, parts)
    elif by == "rows" or (by is None and any(given.get(name) for name in RAGGED)):
        found = _by_rows(given, parts)
    else:
        found = _by_labels(given, parts)
    unshuffled = {"random_shuffle": False, "shuffle_after_epoch": False}
    return {name: {**given, **(unshuffled if name != "train" else {}), **part} for name, part in found.items()}


def _has_ends(breaks: Any) -> bool:
    """Whether ``breaks`` names an array with the ends of segments."""
    return any(isinstance(one, str | os.PathLike) and one != "auto" for one in _arguments.values.items(breaks))


def _by_segments(given: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the argument ``segments`` of each part."""
    if given.get("breaks") is None and given.get("cross_stores", True) is not False:
        raise ValueError(
            "dali_zarr: splits: by: expected breaks, between which segments are, but found none; give breaks='meta/episode_ends', "
            "or parts by labels"
        )
    if given.get("segments") is not None:
        raise ValueError(
            "dali_zarr: splits: segments: expected them in train, validation and test, but found segments too; leave it out"
        )
    told = {name: value for name, value in given.items() if name in segments_of.OF_SEGMENTS}
    count = segments_of.count("dali_zarr: splits: by", _arguments.to_spec(told))
    return {name: {"segments": segments.tolist()} for name, segments in _chosen(parts, count, "segments").items()}


def _by_rows(given: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the arguments ``roi_start`` and ``roi_end``, or ``starts``, of each part."""
    both = next((name for name in ("starts", "roi_start", "roi_end") if given.get(name) is not None), None)
    if both is not None:
        raise ValueError(f"dali_zarr: splits: {both}: expected the rows in train, validation and test; leave it out")
    told = _native.explain(_arguments.to_spec({name: value for name, value in given.items() if name in segments_of.OF_SEGMENTS}))
    if told["ragged"] is None:
        raise ValueError("dali_zarr: splits: by: expected ragged or ragged_ends, whose rows are told, but found none of them")
    found: dict[str, dict[str, Any]] = {}
    dims = _arguments.values.items(given.get("dims") or "0")
    other = "dims" if len(dims) > 1 else next((name for name in ("step", "overlap") if given.get(name) is not None), None)
    for name, rows in _chosen(parts, told["ragged"]["rows"], "rows").items():
        first, end = int(rows[0]), int(rows[-1]) + 1
        if end - first == len(rows) and bool((np.diff(rows) == 1).all()):
            bounds = {"roi_start": first, "roi_end": end}
            found[name] = {key: {dims[0]: bound} if len(dims) > 1 else [bound] for key, bound in bounds.items()}
        elif other is None:
            found[name] = {"starts": rows}
        else:
            raise ValueError(
                f"dali_zarr: splits: {name}: expected a slice of rows, since {other} is given, but found rows that don't follow "
                f"each other; leave {other} out, or give a table of starts to a reader for each part"
            )
    return found


def _chosen(parts: Mapping[str, Any], count: int, what: str) -> dict[str, npt.NDArray[np.int64]]:
    """Returns the numbers of each part's segments or rows, of which there are ``count`` in all. ``what``: their name in
    messages."""
    chosen = {name: of_index("splits", name, count, part).indices for name, part in parts.items()}
    for name, numbers in chosen.items():
        if not len(numbers):
            raise ValueError(
                f"dali_zarr: splits: {name}: expected at least one of the {count} {what}, but {parts[name]!r} has none of them"
            )
    _check_common(chosen, what)
    return chosen


def _by_labels(given: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the argument ``sel`` of each part."""
    axes = Axes.of_reader({**_arguments.to_places(given), **{name: given.get(name) for name in ("window", "concat")}})
    dim = axes.dims[0]
    sel = cast(Mapping[str, Any], given.get("sel") or {})
    if dim in sel:
        raise ValueError(f"dali_zarr: splits: {dim!r}: expected labels along it in the parts, but found them in sel too")
    read = {name: _read(axes, label, given) for name, label in parts.items()}
    _check_common(read, f"elements along {dim!r}", "; slices of labels include both ends")
    return {name: {"sel": {**sel, dim: label}} for name, label in parts.items()}


def _read(axes: Axes, label: Any, given: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """Returns the elements along the first of ``dims`` that samples of a part read."""
    found, *others = indexers.selected("sel", axes.dims[0], label, axes, None, None)
    if not found.is_list:
        # Where each store is cut on its own, its elements follow those of the stores before it.
        return np.concatenate([one.indices + first for one, first in zip([found, *others], axes.begins(), strict=False)])
    # A list says where samples start: they read on from each of its elements.
    offsets = outputs.offsets_of(given.get("offsets")) or [0]
    windows = axes.windows_along(given, 0).values()
    inside = np.unique(np.concatenate([np.arange(max(window, 1)) * stride for window, stride in windows]))
    return np.unique(found.indices[:, None, None] + np.array(offsets)[:, None] + inside)


def _check_common(parts: Mapping[str, npt.NDArray[np.int64]], what: str, hint: str = "") -> None:
    """Raises ValueError where two parts have numbers in common."""
    for one, other in combinations(parts, 2):
        common = np.intersect1d(parts[one], parts[other])
        if len(common):
            raise ValueError(
                f"dali_zarr: splits: expected parts without common {what}, but {one} and {other} share {len(common)}{hint}"
            )
