"""Datasets of xarray given as ``path``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from .._arguments import by_name, values
from .place import kinds, refused, shown

_SELECTIONS = ("sel", "isel", "method", "tolerance", "pick")
# Arguments with names of dimensions: as keys, within dictionaries by output too, or as items.
_KEYED = by_name.PER_DIM
_LISTED = ("dims", "random_crop", "channels")


def is_dataset(value: Any) -> bool:
    """Whether a value is a dataset or an array of xarray."""
    return any(package == "xarray" and name in ("Dataset", "DataArray", "DataTree") for package, name in kinds(value))


def merged(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that read what the dataset in ``path`` holds, with the others that were given. These name
    variables and dimensions as the dataset does.

    Raises:
        ValueError: The dataset can't be expressed, or is selected from by arguments.
        TypeError: It is an array or a tree.
    """
    from .._selection.datasets import described

    found = dict(arguments)
    dataset = found.pop("path")
    given = [name for name in _SELECTIONS if found.get(name) is not None]
    if given:
        instead = "select in the dataset itself, as path=ds.sel(...)"
        refused(given[0], shown(dataset), f"expected none beside a dataset as path; {instead}")
    outputs: dict[str, str] | None = None
    if found.get("arrays") and hasattr(dataset, "data_vars"):
        outputs = _outputs(dataset, found.pop("arrays"))
        dataset = dataset[list(dict.fromkeys(outputs.values()))]
    told, dims = described(dataset, None, found.pop("storage_options", None))
    if outputs is not None:
        stored = told["arrays"]
        by_variable = cast("dict[str, str]", stored) if isinstance(stored, dict) else {name: name for name in stored}
        named = {output: by_variable[variable] for output, variable in outputs.items()}
        told["arrays"] = list(named) if all(output == name for output, name in named.items()) else named
    for name in found:
        if found[name] is not None and dims and (name in _KEYED or name in _LISTED):
            found[name] = _renamed(found[name], dims)
    return {**told, **{name: value for name, value in found.items() if value is not None or name not in told}}


def _outputs(dataset: Any, arrays: Any) -> dict[str, str]:
    """Returns the variables by output."""
    named = (
        {str(output): str(name) for output, name in cast("Mapping[Any, Any]", arrays).items()} if isinstance(arrays, Mapping)
        else {str(name): str(name) for name in values.items(arrays)}
    )
    missing = [name for name in named.values() if name not in dataset.data_vars]
    if missing:
        refused("arrays", "xarray.Dataset", f"expected variables of the dataset in path, but found {missing[0]!r}")
    return named


def _renamed(value: Any, dims: Mapping[str, str]) -> Any:
    """Returns a value with the names that dimensions have in the store."""
    if isinstance(value, Mapping):
        # Dictionaries by output have dictionaries or lists of dimensions as values.
        items = cast("Mapping[Any, Any]", value).items()
        return {
            (key if isinstance(one, Mapping | list | tuple) else dims.get(str(key), key)):
                _renamed(one, dims) if isinstance(one, Mapping | list | tuple | str) else one
            for key, one in items
        }
    if isinstance(value, list | tuple):
        return [dims.get(one, one) if isinstance(one, str) else one for one in cast("list[Any]", value)]
    return dims.get(value, value) if isinstance(value, str) else value
