"""Random arguments that say what values outputs have; and what all draws need."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.argument_space.stores import Stores

TYPES = ("uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")


class ValuesDraw:
    """Draws the values of outputs, once it is known what is read and how it is cut."""

    rng: np.random.Generator
    stores: Stores
    args: dict[str, Any]
    # By output: dimensions and types. ``packed`` are those with scale_factor.
    outputs: list[str]
    dims_of: dict[str, tuple[str, ...]]
    types: dict[str, str]
    packed: set[str]
    reference: tuple[str, ...]
    dims: list[str]
    lengths: list[dict[str, int]]
    selected: list[str]
    policy: str
    is_concat: bool
    is_by_output: bool

    def maybe(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    def one(self, values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def some(self, values: Any, least: int = 1) -> list[Any]:
        """Some of the values, in their order."""
        count = int(self.rng.integers(least, len(values) + 1))
        return [values[i] for i in sorted(self.rng.permutation(len(values))[:count])]

    def whole(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, max(high, low) + 1))

    def extent(self, dim: str) -> int:
        """How many elements there are along a dimension, at least."""
        raise NotImplementedError

    def by_output(self, draw: Any, chance: float = 0.3) -> Any:
        """A value for all outputs, or a dictionary for some."""
        if len(self.outputs) > 1 and self.maybe(chance):
            return {o: draw() for o in self.some(self.outputs)}
        return draw()

    def _values(self) -> None:
        is_alike = len(set(self.stores.formats)) == 1
        numeric = is_alike and all(self.types[o] not in ("complex64", "datetime64[s]", "bool") for o in self.outputs)
        if self.packed and self.maybe(0.5) or numeric and self.maybe(0.06):
            choice = self.one([True, False])
            some = {o: choice for o in (self.packed or self.outputs)}
            self.args["mask_and_scale"] = some if not numeric or self.maybe(0.4) else choice
        if self.maybe(0.2):
            self.args["fillna"] = self.by_output(lambda: self.one([0.0, 280.5, -1.0]))
        self.is_stack = self.maybe(0.18) and self._can_stack()
        if self.maybe(0.25) or self.is_stack and self.maybe(0.7):
            self.args["dtype"] = self.one(TYPES) if self.is_stack else self.by_output(lambda: self.one(TYPES))
        if self.maybe(0.3):
            for name in self.some(["mean", "stddev"]):
                self.args[name] = self._statistics(name)
        if "pad" in self.policy and self.maybe(0.7):
            fills = [0.0, -3.0, 0.5, 300.0, float("nan")]
            self.args["fill_value"] = self.one(fills) if self.is_stack else self.by_output(lambda: self.one(fills))

    def _statistics(self, name: str) -> Any:
        def number() -> float:
            return float(self.one([0.0, 1.5, -300.0] if name == "mean" else [1.0, 0.3, 123.0]))

        channels = self.args.get("channels")
        if self.is_stack:
            return [number() for _ in self.outputs] if self.maybe(0.4) else self.by_output(number)
        if len(self.outputs) == 1 and self.maybe(0.5) and "own" not in self.outputs and self.types[self.outputs[0]] != "complex64":
            output = self.outputs[0]
            dim = self.one(self.dims_of[output]) if channels is None else channels
            dim = dim[output] if isinstance(dim, dict) else dim
            n = self._channel_count(dim)
            if n and "random_crop" not in self.args:
                self.args["channels"] = channels or (dim if self.maybe(0.7) else {output: dim})
                return [number() for _ in range(n)]
        if len(self.outputs) > 1 and self.maybe(0.2) and channels is None:
            return [number() for _ in self.outputs]
        return self.by_output(number)

    def _channel_count(self, dim: str) -> int:
        """How many numbers there are along a dimension; 0 where that isn't simple."""
        if dim in self.dims:
            return 0 if self.is_concat or dim in self.args.get("pick", {}) else self.extent(dim)
        if dim in self.args.get("pick", {}):
            indices = self.args["pick"][dim]
            return len(indices[0]) if np.ndim(indices[0]) else len(indices)
        if dim in self.selected:
            return 0
        return self.extent(dim) if len({of[dim] for of in self.lengths}) == 1 else 0

    def singles(self) -> set[str]:
        """Dimensions of which a single element is selected."""
        given = [*self.args.get("sel", {}).items(), *self.args.get("isel", {}).items()]
        return {dim for dim, indexer in given if not isinstance(indexer, (slice, list, np.ndarray))}

    def _can_stack(self) -> bool:
        """Whether the documentation says what the dimensions of a stack are."""
        kept = [d for d in self.dims if self.args.get("window")]
        if self.is_by_output or self.singles() or len(self.reference) < 2 or "complex64" in self.types.values():
            return False
        return set(kept) <= set(self.reference)

    def _outputs(self) -> None:
        if self.is_stack:
            self.args["stack_arrays"] = True
        if self.maybe(0.3):
            self._transpose()
        if self.maybe(0.3):
            self.args["return_mask"] = True
        if self.maybe(0.2):
            self.args["return_index"] = True

    def _transpose(self) -> None:
        # The parts of complex numbers are a dimension of their own.
        dims_of = {o: (*d, "complex") if self.types[o] == "complex64" else d for o, d in self.dims_of.items()}
        known = list(dict.fromkeys(d for dims in dims_of.values() for d in dims))
        if self.is_stack:
            self.args["transpose"] = self._order([*known, self.one(["channel", "variable"])])
        elif self.maybe(0.5):
            self.args["transpose"] = {o: self._order(dims_of[o]) for o in self.some(self.outputs) if dims_of[o]}
        else:
            self.args["transpose"] = self._order(known)

    def _order(self, dims: Any) -> Any:
        """An order of all dimensions, or of some with ``...`` for the others. Those that samples lack are named too."""
        order = [dims[i] for i in self.rng.permutation(len(dims))]
        if self.maybe(0.5):
            order = self.some(order, 0)
            order.insert(self.whole(0, len(order)), self.one(["...", ...]))
        text = ["..." if d is ... else d for d in order]
        return " ".join(text) if self.maybe(0.4) else order
