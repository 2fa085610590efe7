"""What the indexers of ``sel`` and ``isel`` select: positions in each store, or along the axis that joins the stores."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from .axes import Axes
from .lookup import Positions, of_index, of_label


def selected(name: str, dim: str, indexer: Any, axes: Axes, method: Any, tolerance: Any) -> list[Positions]:
    """Returns the selected elements in each store; along the joined axis, those of all stores together. ``name`` is
    ``sel`` or ``isel``.

    Raises:
        ValueError, TypeError, IndexError: A label or an index isn't there.
    """
    lengths = axes.lengths(dim)
    joined = axes.is_joined and dim == axes.dims[0]
    if name == "isel":
        return [of_index(name, dim, length, indexer) for length in ([sum(lengths)] if joined else lengths)]
    if not joined:
        return [
            _of_label(dim, length, axes.variable(dim, store), indexer, method, tolerance) for store, length in enumerate(lengths)
        ]
    return [_of_joined(dim, indexer, axes, method, tolerance)]


def _of_label(dim: str, length: int, variable: Any, label: Any, method: Any, tolerance: Any) -> Positions:
    """The same as :func:`of_label`, with a ValueError where there is no such label."""
    try:
        return of_label(dim, length, variable, label, method, tolerance)
    except KeyError as error:
        raise ValueError(error.args[0]) from error


def _of_joined(dim: str, label: Any, axes: Axes, method: Any, tolerance: Any) -> Positions:
    """Looks up labels along the joined axis: in each store, since each has coordinates of its own."""
    step: Any = None
    turned = label
    is_list = np.ndim(label) > 0
    found = _variables(dim, axes)
    if not found:
        # Without coordinates, labels are positions in all stores together.
        return _of_label(dim, sum(axes.lengths(dim)), None, label, method, tolerance)
    if len(found) < len(axes.lengths(dim)):
        raise ValueError(
            f"zarr_reader: sel: {dim!r}: expected coordinates in every store, since labels are looked up in all of them, but some "
            "have none; select by position, with isel"
        )
    if isinstance(label, slice):
        # Steps count elements of all stores.
        whole = cast("slice[Any, Any, Any]", label)
        label, step = slice(whole.start, whole.stop), whole.step
        bounded = whole.start is not None or whole.stop is not None
        if bounded and not all(map(_is_sorted, found)):
            # In unsorted coordinates a slice goes from the place of one label to that of the other. Each label is in
            # one store only, so all coordinates are joined.
            return _of_label(dim, sum(axes.lengths(dim)), axes.joined(), whole, None, None)
        descends = _descends([_values(one) for one in found]) if bounded else set[bool]()
        if len(descends) > 1:
            raise ValueError(
                f"zarr_reader: sel: {dim!r}: the coordinates ascend in one store and descend in another, so a slice has no "
                "order; select by position, with isel"
            )
        turned = slice(whole.stop, whole.start) if descends == {True} else label
    elif is_list or method is not None:
        # Each label may be in a different store, and the nearest label is the nearest of all stores.
        return _of_label(dim, sum(axes.lengths(dim)), axes.joined(), label, method, tolerance)
    start, parts, missing = 0, list[Positions](), None
    for variable, length in zip(found, axes.lengths(dim), strict=True):
        try:
            # pandas takes a store with a single coordinate for ascending, also where the other stores descend.
            asked = label if _descends([_values(variable)]) else turned
            part = of_label(dim, length, variable, asked, None, None)
            parts.append(Positions(part.indices + start, part.is_scalar))
        except KeyError as error:
            if isinstance(label, slice):
                # As in xarray, sorted coordinates accept all bounds, except text where dates descend. This store's
                # elements must not be left out silently.
                raise ValueError(error.args[0]) from error
            missing = missing or error
        start += length
    if not parts and missing is not None:
        raise ValueError(missing.args[0]) from missing
    is_scalar = all(part.is_scalar for part in parts)
    if is_scalar and len(parts) > 1:
        raise ValueError(f"zarr_reader: sel: {dim!r}: {label!r} is in {len(parts)} stores; select by position, with isel")
    return Positions(np.concatenate([part.indices for part in parts])[:: step or 1], is_scalar)


def _variables(dim: str, axes: Axes) -> list[Any]:
    """xarray's variables with the coordinates of each store that has some."""
    variables = [axes.variable(dim, store) for store in range(len(axes.lengths(dim)))]
    return [variable for variable in variables if variable is not None]


def _values(variable: Any) -> Any:
    return np.asarray(variable.values)


def _descends(stores: list[Any]) -> set[bool]:
    """Returns whether sorted coordinates descend within the stores. Where each store has a single coordinate, the order
    of the stores decides. Several answers: stores differ. Empty: they don't descend, or it can't be told."""
    found = {bool(one[0] > one[-1]) for one in stores if len(one) and one[0] != one[-1]}
    if found:
        return found
    firsts = [one[0] for one in stores if len(one)]
    return {True} if len(firsts) > 1 and firsts[0] > firsts[-1] and firsts == sorted(firsts, reverse=True) else set()


def _is_sorted(variable: Any) -> bool:
    index = variable.to_index()
    return bool(index.is_monotonic_increasing or index.is_monotonic_decreasing)
