"""Which arrays and dimensions of stores the variables and dimensions of a dataset of xarray are, whatever their names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .axes import Array, Axes
from .origins import leaves


@dataclass(frozen=True)
class Sources:
    """The stores of a dataset, and the array in them that each variable is."""

    # A path, or the places of several stores (_handles.place.Place), each that of a group.
    stores: Any
    arrays: dict[str, str]
    # Whether the path was given, and isn't told by the variables.
    is_given: bool = False

    @classmethod
    def of(cls, dataset: Any, names: list[str], path: Any) -> Sources:
        """Finds the stores.

        Raises:
            ValueError: A variable's stores aren't known, or variables have different ones.
        """
        from .._handles import arrays as held

        found = {name: leaves(dataset[name].variable) for name in names}
        if path is not None:
            return cls(path, {name: str(of[0].path).rpartition("/")[2] if of else name for name, of in found.items()}, True)
        unknown = next((name for name, of in found.items() if not of), None)
        if unknown is not None:
            raise ValueError(f"dali_zarr: from_xarray: {unknown!r} doesn't tell its store; give path=")
        places = {name: [held.of_array(one) for one in of] for name, of in found.items()}
        # By store and group: the same for all variables.
        groups = {name: list(dict.fromkeys((one.path, one.snapshot, one.parent) for one in of)) for name, of in places.items()}
        first = groups[names[0]]
        other = next((name for name in names if groups[name] != first), None)
        if other is not None:
            raise ValueError(
                f"dali_zarr: from_xarray: expected variables of the same stores and groups, but {names[0]!r} and {other!r} have "
                "others; select those of one, or give arrays={NAME: LOCATION} to the reader"
            )
        stored = {name: {one.name for one in of} for name, of in places.items()}
        mixed = next((name for name, of in stored.items() if len(of) > 1), None)
        if mixed is not None:
            raise ValueError(
                f"dali_zarr: from_xarray: {mixed!r} is made of several arrays ({', '.join(sorted(stored[mixed]))}), but the reader "
                "joins arrays of one name; rename them in the stores"
            )
        of_first = {(one.path, one.snapshot, one.parent): one for one in places[names[0]]}
        stores = [replace(one, inside=one.parent, is_array=False) for one in of_first.values()]
        return cls(stores, {name: next(iter(of)) for name, of in stored.items()})

    def chosen(self, numbers: list[int]) -> Sources:
        """Returns these of the stores, in this order."""
        return replace(self, stores=[self.stores[i] for i in numbers])

    def arguments(self, storage_options: Any) -> dict[str, Any]:
        """Returns the arguments that name the stores and their arrays."""
        from .._handles import merging, translated

        found: dict[str, Any] = {"path": self.stores, "arrays": dict(self.arrays)}
        if storage_options is not None:
            found["storage_options"] = storage_options
        if self.is_given:
            return translated(found)
        merging.merge(found, list(self.stores), None, is_list=len(self.stores) > 1)
        return found


def joined_dim(axes: Axes) -> str:
    """Returns the dimension along which stores continue each other: the only one whose coordinates differ.

    Raises:
        ValueError: There is none, or there are several.
    """
    found: list[str] = []
    for dim in axes.arrays[0].dims:
        values = axes.coordinates_by_store(dim)
        if values is not None and any(not np.array_equal(one, values[0]) for one in values):
            found.append(dim)
    if len(found) != 1:
        what = f"their coordinates differ along {', '.join(found)}" if found else "their coordinates are the same along all of them"
        raise ValueError(
            f"dali_zarr: from_xarray: expected {len(axes.paths)} stores that continue each other along one dimension, but {what}; "
            "give the reader path=[...] and dims=[...], or concat='samples'"
        )
    return found[0]


def dims(dataset: Any, axes: Axes, joined: str | None = None) -> dict[str, str | None]:
    """Returns the name in the dataset of each dimension of the arrays; None where it has none.

    Names that the dataset has are taken first. A renamed dimension is the one with the same coordinates, or in the same
    place. Whether that is right is found out when elements are compared. ``joined``: the dimension that joins the
    stores, where ``axes`` doesn't know it yet.

    Raises:
        ValueError: A variable has a dimension that the store's array lacks.
    """
    found: dict[str, str | None] = {}
    for array in axes.arrays:
        variable = dataset[array.output].variable
        own = [str(dim) for dim in variable.dims]
        left = [dim for dim in own if dim not in array.dims and dim not in found.values()]
        for i, dim in enumerate(array.dims):
            if dim in found:
                continue
            if dim in own or dim in dataset.coords:
                found[dim] = dim
                continue
            of_length = [one for one in left if _fits(dataset, one, axes, dim, joined)]
            in_place = own[i] if len(own) == len(array.dims) and own[i] in of_length else None
            found[dim] = in_place or next(iter(of_length), None)
            left = [one for one in left if one != found[dim]]
        if left:
            raise ValueError(
                f"dali_zarr: from_xarray: {array.output!r}: expected the dimensions {array.dims} of the store, but found "
                f"{tuple(own)}: {left[0]!r} is none of them"
            )
    return found


def _fits(dataset: Any, own: str, axes: Axes, dim: str, joined: str | None) -> bool:
    """Whether a dimension of the dataset may be one of the store's under another name."""
    stored = axes.coordinates_by_store(dim)
    if stored is None or own not in dataset.coords:
        lengths = axes.lengths(dim)
        is_joined = axes.is_joined and dim == (joined or axes.dims[0])
        return dataset.sizes[own] == (sum(lengths) if is_joined else lengths[0])
    known = {value for one in stored for value in one.tolist()}
    return all(value in known for value in dataset[own].values.tolist())


def moved(dataset: Any, axes: Axes, names: dict[str, str | None]) -> str | None:
    """Returns the dimension that was moved to the front of variables; None: none was. Samples that are cut along it have
    the other dimensions in the order of the store.

    Raises:
        ValueError: The order of a variable's dimensions can't be had.
    """
    found = {_front(dataset, array, names) for array in axes.arrays} - {None}
    if len(found) > 1:
        listed = ", ".join(sorted(map(str, found)))
        raise ValueError(f"dali_zarr: from_xarray: expected the same dimension in front of all variables, but found {listed}")
    return next(iter(found), None)


def _front(dataset: Any, array: Array, names: dict[str, str | None]) -> str | None:
    stored = {names[dim]: dim for dim in array.dims if names[dim] is not None}
    order = [stored[str(dim)] for dim in dataset[array.output].variable.dims]
    kept = [dim for dim in array.dims if dim in order]
    if order == kept:
        return None
    if order[1:] == [dim for dim in kept if dim != order[0]]:
        return order[0]
    raise ValueError(
        f"dali_zarr: from_xarray: {array.output!r}: expected the dimensions {tuple(kept)}, in the order of the store, of which "
        f"one may be in front, but found {tuple(order)}; transpose batches, in a transform or after they are delivered"
    )
