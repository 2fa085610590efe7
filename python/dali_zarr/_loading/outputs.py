"""The names of outputs: flat as the operator has them, or nested as users see them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from .._hints import did_you_mean

T = TypeVar("T")

# Where an output stands: its name, or the name of its group and its own.
Place = tuple[str, ...]


def offsets_of(offsets: Any) -> list[int]:
    """Returns the operator's ``offsets``; empty where none are given.

    Raises:
        ValueError: A list or a dictionary is empty.
        TypeError: An offset isn't a whole number.
    """
    if offsets is None:
        return []
    groups = list(cast(Mapping[str, Any], offsets).values()) if isinstance(offsets, Mapping) else [offsets]
    found = [item for group in groups for item in _listed(group)]
    if not found or not all(_listed(group) for group in groups):
        raise ValueError(f"dali_zarr: offsets: expected at least one, but found {offsets!r}; leave it out for the sample itself")
    numbers: list[int] = []
    for item in found:
        try:
            numbers.append(operator.index(item))
        except TypeError:
            numbers = []
        if isinstance(item, bool) or not numbers:
            raise TypeError(
                f"dali_zarr: offsets: expected integers, or a dictionary of them by name, but found {item!r}; an offset is a "
                "number of elements"
            )
    return numbers


def offsets_by_group(offsets: Any, told: Sequence[int]) -> dict[str, int]:
    """Returns the offset of each group of outputs that has a single one, in elements of the store. ``told``: the
    offsets that the operator gets, one for each that :func:`offsets_of` returns."""
    found: dict[str, int] = {}
    at = 0
    for name, value in cast(Mapping[str, Any], offsets).items() if isinstance(offsets, Mapping) else ():
        if not isinstance(value, Iterable):
            found[name] = told[at]
        at += len(_listed(value))
    return found


def places(arrays: Sequence[str], offsets: Any, stack_arrays: bool, masks: Sequence[str] = ()) -> list[Place]:
    """Where the operator's outputs stand, in their order, without the index. ``masks``: the names of the masks.

    Raises:
        ValueError: Two would have the same name.
    """
    names = ["stacked"] if stack_arrays else list(arrays)
    found: list[Place] = []
    if isinstance(offsets, Mapping):
        for group, value in cast(Mapping[str, Any], offsets).items():
            single = not isinstance(value, Iterable)
            for offset in _listed(value):
                shown = names if single else [_with_offset(name, int(offset)) for name in names]
                found += [(group,)] if single and stack_arrays else [(group, name) for name in shown]
    else:
        given = [0] if offsets is None else [int(o) for o in _listed(offsets)]
        found = [(_with_offset(name, offset),) for offset in given for name in names]
    found += [(name,) for name in masks]
    twice = [place for place in found if found.count(place) > 1]
    if twice:
        raise ValueError(f"dali_zarr: arrays, offsets: expected each output once, but found {'/'.join(twice[0])!r} twice")
    return found


def masks(arrays: Sequence[str], arguments: Mapping[str, Any]) -> list[str]:
    """Returns the names of the masks: none, one, or with ``scale_by`` one for each array."""
    if not arguments.get("return_mask", False):
        return []
    return [f"{name}_mask" for name in arrays] if arguments.get("scale_by") else ["mask"]


@dataclass(frozen=True)
class Source:
    """The array and the offset that an output of the reader comes from."""

    # The output's name; None: a stack of all arrays.
    array: str | None
    # In elements of the store, along the first of dims.
    offset: int


def sources(arrays: Sequence[str], offsets: Any, stack_arrays: bool, told: Sequence[int]) -> dict[Place, Source]:
    """Returns the sources of the outputs, by place. ``told``: the offsets that the operator gets."""
    names: list[str | None] = [None] if stack_arrays else list(arrays)
    found = [Source(name, offset) for offset in told or [0] for name in names]
    return dict(zip(places(arrays, offsets, stack_arrays), found, strict=True))


def source_of(sources: Mapping[Place, Source], name: str, of_group: int) -> Source:
    """Returns the source of an entry of a batch. Where several outputs have the name, the entry is one of an inner
    batch, and has the offset ``of_group``, in elements of the store.

    Raises:
        KeyError: The entry has no source: it is the mask, the index, or made by a transform.
    """
    found = {source for place, source in sources.items() if place[-1] == name}
    if not found:
        raise KeyError(f"dali_zarr: coords_of: expected an output of the reader, but found {name!r}")
    one = next(iter(found))
    return one if len(found) == 1 else Source(one.array, of_group)


def missing(batch: Mapping[str, Any], name: object) -> KeyError:
    """Makes the exception for an entry that a batch lacks. It says what there is."""
    inner = [group for group, value in batch.items() if isinstance(value, Mapping) and name in value]
    if inner:
        hint = f"write batch[{inner[0]!r}][{name!r}]"
    else:
        hint = did_you_mean(str(name), batch, "") or f"there are {', '.join(map(repr, batch))}"
    return KeyError(f"dali_zarr: the batch has no entry {name!r}; {hint}")


def _with_offset(name: str, offset: int) -> str:
    return f"{name}{offset:+d}" if offset else name


def _listed(value: Any) -> list[Any]:
    return list(cast(Iterable[Any], value)) if isinstance(value, Iterable) and not isinstance(value, str) else [value]


def nested(places: Sequence[Place], values: Sequence[T], make: Callable[[dict[str, Any], str], Any]) -> Any:
    """Puts values into mappings by their names. ``make`` makes a mapping, given its content and its name ("" for the
    outer one)."""
    found: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for place, value in zip(places, values, strict=True):
        if len(place) == 1:
            found[place[0]] = value
        else:
            group = groups.setdefault(place[0], {})
            found[place[0]] = group
            group[place[1]] = value
    for name, group in groups.items():
        found[name] = make(group, name)
    return make(found, "")


def flattened(outputs: Any) -> tuple[list[Place], list[Any]]:
    """Returns what a transform returned, as places and values.

    Raises:
        TypeError: It isn't a mapping by names.
    """
    if not isinstance(outputs, Mapping):
        raise TypeError(
            "dali_zarr: transform: expected a dictionary from names to outputs (or to dictionaries of them), but found "
            f"{type(outputs).__name__}"
        )
    found: list[Place] = []
    values: list[Any] = []
    for name, value in cast(Mapping[str, Any], outputs).items():
        for place, item in cast(Mapping[str, Any], value).items() if isinstance(value, Mapping) else [("", value)]:
            found.append((str(name), str(place)) if place else (str(name),))
            values.append(item)
    return found, values
