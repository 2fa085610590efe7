"""One definition of samples for training, validation and test."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, cast

import numpy as np

from .. import _arguments
from .._arguments.types import Paths
from .axes import Axes
from .select import positions_along


def splits(
    *, path: Paths, train: Any = None, validation: Any = None, test: Any = None, **arguments: Any
) -> dict[str, dict[str, Any]]:
    """The arguments of readers whose samples are parts of one data set, by labels along the first of ``dims``.

    ::

        parts = dali_zarr.splits(path="era5.zarr", arrays=["t2m"], offsets={"input": 0, "target": 6}, random_shuffle=True,
                                 train=slice(None, "2016"), validation="2017", test=slice("2018", None))
        training, validation = Loader(**parts["train"]), Loader(**parts["validation"])

    Only ``train`` is shuffled. No sample reaches from one part into another.

    Args:
        path: One store or several.
        train, validation, test: Labels along the first of ``dims``, as ``sel`` takes them. Parts that aren't given are left out.
        arguments: The others of :func:`dali_zarr.zarr_reader` or of a loader, the same for all parts.

    Raises:
        ValueError: No part is given, two parts have elements in common, or a part selects none.
    """
    parts = {name: label for name, label in (("train", train), ("validation", validation), ("test", test)) if label is not None}
    if not parts:
        raise ValueError("dali_zarr: splits: expected at least one of train, validation and test")
    given: dict[str, Any] = {"path": path, **arguments}
    axes = Axes.of_reader(_arguments.of_places(given))
    dim = axes.dims[0]
    sel = cast(Mapping[str, Any], given.get("sel") or {})
    if dim in sel:
        raise ValueError(f"dali_zarr: splits: {dim!r}: expected labels along it in the parts, but found them in sel too")
    elements = {name: positions_along(axes, label) for name, label in parts.items()}
    for one, other in combinations(parts, 2):
        common = np.intersect1d(elements[one], elements[other])
        if len(common):
            raise ValueError(
                f"dali_zarr: splits: expected parts without common elements along {dim!r}, but {one} and {other} share "
                f"{len(common)}"
            )
    unshuffled = {"random_shuffle": False, "shuffle_after_epoch": False}
    return {
        name: {**given, **(unshuffled if name != "train" else {}), "sel": {**sel, dim: label}} for name, label in parts.items()
    }
