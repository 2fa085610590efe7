"""The arguments of a reader in one form, whatever form they were given in: by position, by dimension, by output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from support.argument_space.dataset import Dataset, Refused

Place = tuple[str, ...]


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value]


def is_by_output(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(one, (Mapping, list, tuple)) for one in value.values())


@dataclass
class Output:
    """An output of the reader: where it stands in a batch, its array (None: a stack of all), and its offset."""

    place: Place
    array: str | None
    offset: int


class Request:
    """What the arguments ask for."""

    def __init__(self, dataset: Dataset, given: Mapping[str, Any]):
        self.dataset, self.given = dataset, given
        self.paths = [Path(p) for p in listed(given["path"])]
        self.is_concat = given.get("concat") == "samples"
        arrays = given["arrays"]
        self.names: dict[str, str] = dict(arrays) if isinstance(arrays, Mapping) else {name: name for name in listed(arrays)}
        self.dims_of = {output: dataset.dims(self.paths[0], name) for output, name in self.names.items()}
        self.reference = max(self.dims_of.values(), key=len)
        self.dims = self._dims()
        self.windows = self._for_outputs("window", 0)
        self.strides = self._for_outputs("stride", 1)
        self.offsets = self._offsets()
        self.policy: str = given.get("out_of_bounds_policy", "drop")
        self.crops = [self._named(d) for d in listed(given.get("random_crop") or [])]
        self.is_stack = given.get("stack_arrays", False)
        self.outputs = self._outputs()

    def _named(self, dim: Any) -> str:
        return self.reference[dim] if isinstance(dim, int) else dim

    def _dims(self) -> list[str]:
        window, given = self.given.get("window"), self.given.get("dims")
        if given is not None:
            return [self._named(d) for d in listed(given)]
        if is_by_output(window):
            return list(dict.fromkeys(d for of in window.values() for d in of))
        return list(window) if isinstance(window, Mapping) else [self.reference[0]]

    def per_dim(self, name: str, default: Any = None, value: Any = None) -> dict[str, Any]:
        """Returns a value for each of dims."""
        value = self.given.get(name) if value is None else value
        if value is None:
            return dict.fromkeys(self.dims, default)
        if isinstance(value, Mapping):
            if set(value) - set(self.dims):
                raise Refused(name)
            return {dim: value.get(dim, default) for dim in self.dims}
        if len(listed(value)) != len(self.dims):
            raise Refused(name)
        return dict(zip(self.dims, listed(value), strict=True))

    def _for_outputs(self, name: str, default: int) -> dict[str, dict[str, int]]:
        value = self.given.get(name)
        if is_by_output(value):
            if set(value) - set(self.names):
                raise Refused(name)
            found = {
                o: self.per_dim(name, default, value[o]) if o in value else dict.fromkeys(self.dims, default) for o in self.names
            }
        else:
            found = {o: self.per_dim(name, default) for o in self.names}
        return {o: {d: n for d, n in of.items() if d in self.dims_of[o]} for o, of in found.items()}

    def _offsets(self) -> list[int]:
        given = self.given.get("offsets")
        groups = list(given.values()) if isinstance(given, Mapping) else [given]
        return [0] if given is None else [int(o) for group in groups for o in listed(group)]

    def _outputs(self) -> list[Output]:
        given = self.given.get("offsets")
        names: list[tuple[str, str | None]] = [("stacked", None)] if self.is_stack else [(name, name) for name in self.names]
        found = []

        def add(group: Place, offset: int, is_single: bool) -> None:
            for name, array in names:
                shown = name if is_single or not offset else f"{name}{offset:+d}"
                place = group if group and is_single and self.is_stack else (*group, shown)
                found.append(Output(place, array, offset))

        if isinstance(given, Mapping):
            for group, value in given.items():
                for offset in listed(value):
                    add((group,), offset, not isinstance(value, list))
        else:
            for offset in self.offsets:
                add((), offset, False)
        if len({o.place for o in found}) < len(found):
            raise Refused("offsets", "arrays")
        return found

    def coordinates(self, path: Path, dim: str) -> np.ndarray | None:
        return self.dataset.coordinates(path, dim, self.names.values())

    def count(self, output: str, dim: str, region: int) -> int:
        """How many elements an output's window has; 1 for dropped dimensions."""
        window = self.windows[output][dim]
        return region if window == -1 else max(window, 1)

    def longest(self, dim: str, region: int) -> int:
        return max((self.count(o, dim, region) for o in self.names if dim in self.windows[o]), default=1)

    def has_window(self, dim: str) -> bool:
        """Whether samples' shapes have the dimension."""
        return any(self.windows[o].get(dim, 0) != 0 for o in self.names)

    def steps(self, region: Mapping[str, int]) -> dict[str, int]:
        given, overlap = self.per_dim("step"), self.per_dim("overlap")
        found = {}
        for dim in self.dims:
            longest = max(self.longest(dim, region[dim]), 1)
            if dim in self.crops:
                if given[dim]:
                    raise Refused("step", "random_crop")
                found[dim] = 1
                continue
            if overlap[dim] is not None and not 0 <= overlap[dim] < longest:
                raise Refused("overlap")
            found[dim] = longest - (overlap[dim] or 0) if given[dim] is None else given[dim]
            if found[dim] < 1:
                raise Refused("step")
        return found
