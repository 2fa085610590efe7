"""Random arguments for a set of stores: they are drawn together, and most of them make sense together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from support.argument_space.dataset import Dataset
from support.argument_space.draw_values import ValuesDraw
from support.argument_space.stores import Stores


class Draw(ValuesDraw):
    """Draws the arguments of one case."""

    def __init__(self, rng: np.random.Generator, stores: Stores, dataset: Dataset):
        self.rng, self.stores, self.dataset = rng, stores, dataset
        self.args: dict[str, Any] = {}
        self._arrays()
        self._dims()
        self._selections()
        self._windows()
        self._places()
        self._starts()
        self._values()
        self._outputs()

    # What is read.

    def _arrays(self) -> None:
        stores = self.stores
        paths = stores.paths[:1] if self.maybe(0.15) else stores.paths
        self.is_concat = len(paths) > 1 and (not stores.is_joinable or self.maybe(0.4)) or self.maybe(0.03)
        self.is_joined = len(paths) > 1 and not self.is_concat
        arrays = [stores.arrays[i] for i in self.rng.permutation(len(stores.arrays))[: self.whole(1, min(4, len(stores.arrays)))]]
        self.dims_of = {a.name: a.dims for a in arrays}
        if not any(stores.dims[0] in a.dims for a in arrays) and self.is_joined:
            arrays[0] = stores.arrays[0]
            self.dims_of = {a.name: a.dims for a in arrays}
        self.types = {a.name: a.dtype for a in arrays}
        self.packed = {a.name for a in arrays if a.is_packed}
        names: dict[str, str] = {name: name for name in self.dims_of}
        if stores.own and self.maybe(0.4):
            location, dims = stores.own
            names["own"], self.dims_of["own"], self.types["own"] = str(location), dims, "int32"
        if self.maybe(0.35) or "own" in names:
            renamed = {o: o if o == "own" or self.maybe(0.5) else f"x{i}" for i, o in enumerate(names)}
            names = {renamed[o]: name for o, name in names.items()}
            for of in (self.dims_of, self.types):
                for o, new in renamed.items():
                    of[new] = of.pop(o)
            self.packed = {renamed[o] for o in self.packed}
            self.args["arrays"] = names
        else:
            self.args["arrays"] = list(names)
        self.outputs, self.names = list(names), list(names.values())
        self.args["path"] = str(paths[0]) if len(paths) == 1 and self.maybe(0.8) else [str(p) for p in paths]
        if self.is_concat:
            self.args["concat"] = "samples"
        elif self.is_joined and self.maybe(0.3):
            self.args["cross_stores"] = False
        self.lengths = stores.lengths[: len(paths)]
        self.reference = max(self.dims_of.values(), key=len)

    def _differing(self) -> list[str]:
        return [d for d in self.reference[1:] if len({of[d] for of in self.lengths}) > 1]

    def _dims(self) -> None:
        """The first of dims is the one that stores are joined along; with several shapes, all that differ are among dims."""
        first = self.stores.dims[0]
        needed = [d for d in self._differing()]
        others = [d for d in self.reference if d not in needed and d != first]
        if self.is_joined or self.maybe(0.8) and first in self.reference:
            dims = [first, *needed]
        else:
            dims = [*needed] or [self.one(self.reference)]
        dims += [d for d in self.some(others, 0)[:2] if d not in dims] if others and self.maybe(0.35) else []
        if not self.is_joined and self.maybe(0.15):
            dims = [dims[i] for i in self.rng.permutation(len(dims))]
        self.is_default = dims == [self.reference[0]] and self.maybe(0.6)
        self.dims = dims
        if not self.is_default:
            self.args["dims"] = [
                self.reference.index(d) if d in self.reference and self.maybe(0.15) and "own" not in self.outputs else d
                for d in dims
            ]

    def _coordinates(self, store: int, dim: str) -> np.ndarray | None:
        return self.dataset.coordinates(self.stores.paths[store], dim, self.names)

    def extent(self, dim: str) -> int:
        """How many elements there are along a dimension, at least."""
        sizes = [of[dim] for of in self.lengths]
        return sum(sizes) if self.is_joined and dim == self.dims[0] else min(sizes)

    def per_dim(self, values: dict[str, int], chance_of_list: float = 0.5) -> Any:
        """A list, or a dictionary by dimension."""
        if len(self.dims) == 1 and self.maybe(0.15):
            return values[self.dims[0]]
        return [values[d] for d in self.dims] if self.maybe(chance_of_list) else {d: values[d] for d in self.dims}

    # Selections.

    def _selections(self) -> None:
        self.region = {d: self.extent(d) for d in self.dims}
        self.lists, self.spaced, self.masked = list[str](), list[str](), False
        self.selected = list[str]()
        all_dims = [d for d in self.stores.dims if any(d in of for of in self.dims_of.values())]
        if not self.maybe(0.6):
            return
        for dim in all_dims:
            if not self.maybe(0.45):
                continue
            if self.maybe(0.2) and not (dim in self.dims and self.is_concat):
                self._pick(dim)
            else:
                self._select(dim)

    def _pick(self, dim: str) -> None:
        n = self.extent(dim)
        indices = [self.whole(-n, n - 1) for _ in range(self.whole(1, 4))]
        if len(self.lengths) > 1 and dim not in self.dims and self.maybe(0.4):
            indices = [[self.whole(-of[dim], of[dim] - 1) for _ in range(len(indices))] for of in self.lengths]
        self.args.setdefault("pick", {})[dim] = indices
        self.selected.append(dim)
        if dim in self.dims:
            self.region[dim] = len(indices)

    def _select(self, dim: str) -> None:
        coordinates = self._coordinates(0, dim)
        n, is_cut, is_first = self.extent(dim), dim in self.dims, dim == self.dims[0]
        kinds = ["slice", "slice", "slice", "one"] + ([] if is_cut else ["list", "bools"])
        if is_first and not self.is_concat:
            kinds += ["bools", "bools"]
        if is_cut and not self.is_concat and not self.masked:
            kinds += ["list"]
        kind = self.one(kinds)
        if coordinates is not None and self.maybe(0.5) and kind != "bools":
            name, indexer, count = self._labels(dim, kind, coordinates)
        else:
            name, (indexer, count) = "isel", self._indices(kind, n)
        self.args.setdefault(name, {})[dim] = indexer
        self.selected.append(dim)
        if is_cut:
            self.region[dim] = n if kind == "list" else count
            self.lists += [dim] if kind == "list" else []
            self.masked |= kind == "bools"
            self.spaced += [dim] if kind == "slice" and (indexer.step or 1) > 1 else []

    def _indices(self, kind: str, n: int) -> tuple[Any, int]:
        if kind == "one":
            return self.whole(-n, n - 1), 1
        if kind == "list":
            return [self.whole(-n, n - 1) for _ in range(self.whole(1, 5))], n
        if kind == "bools":
            chosen = self.rng.random(n) < self.one([0.5, 0.8, 1.0])
            chosen[self.whole(0, n - 1)] = True
            return (chosen.tolist() if self.maybe(0.5) else chosen), max(n // 2, 1)
        start = self.one([None, 0, 0, 1, -n, -2, n // 3])
        stop = self.one([None, None, n, n - 1, -1, n + 2])
        step = self.one([None, None, None, 1, 2, 3])
        return slice(start, stop, step), len(range(*slice(start, stop, step).indices(n)))

    def _labels(self, dim: str, kind: str, coordinates: np.ndarray) -> tuple[str, Any, int]:
        if self.is_joined and dim == self.dims[0]:
            found = [self._coordinates(i, dim) for i in range(len(self.lengths))]
            coordinates = np.concatenate([c for c in found if c is not None])
        n = len(coordinates)
        is_time = coordinates.dtype.kind in "MO"

        def label(i: int) -> Any:
            value = coordinates[i]
            if not is_time:
                return value.item()
            text = value.isoformat() if coordinates.dtype.kind == "O" else str(value.astype("datetime64[s]"))
            return text if self.maybe(0.7) else value

        if kind == "slice":
            a, b = sorted((self.whole(0, n - 1), self.whole(0, n - 1)))
            step = self.one([None, None, None, 1, 2, 3])
            ends = [None if self.maybe(0.2) else label(a), None if self.maybe(0.2) else label(b)]
            low, high = (0 if ends[0] is None else a), (n - 1 if ends[1] is None else b)
            return "sel", slice(*ends, step), len(range(low, high + 1, step or 1))
        chosen = [self.whole(0, n - 1) for _ in range(1 if kind == "one" else self.whole(1, 5))]
        labels = [label(i) for i in chosen]
        if not is_time and "method" not in self.args and "sel" not in self.args and self.maybe(0.3):
            self.args["method"] = self.one(["nearest", "ffill", "bfill"])
            labels = [one + self.one([0, 0.25, -0.25]) for one in labels]
            if self.maybe(0.3):
                self.args["tolerance"] = 0.5
        return "sel", labels if kind == "list" else labels[0], n if kind == "list" else 1

    # Windows and starts.

    def _windows(self) -> None:
        ones = self.singles()

        def window(dim: str, is_kept: bool) -> int:
            if dim in ones or self.maybe(0.4):
                return 0
            if self.maybe(0.1) and dim not in self.lists and not is_kept:
                return -1
            return self.whole(1, min(self.region[dim], 4)) if self.maybe(0.93) else self.whole(1, self.region[dim] + 2)

        windows = {d: window(d, self.is_concat) for d in self.dims}
        strides = {d: 1 if windows[d] < 2 and self.maybe(0.8) else self.whole(1, 2) for d in self.dims}
        self.is_by_output = len(self.outputs) > 1 and self.maybe(0.2)
        longest = dict(windows)
        if self.is_by_output:
            of = {
                o: {d: windows[d] if self.maybe(0.5) else window(d, True) for d in self.dims if d in self.dims_of[o]}
                for o in self.outputs
            }
            of = {o: value for o, value in of.items() if value}
            longest = {
                d: max((w[d] for w in of.values() if d in w), key=lambda n: math.inf if n < 0 else n, default=0) for d in self.dims
            }
            if of:
                self.args["window"] = of
            if of and self.maybe(0.3):
                self.args["stride"] = {o: {d: self.whole(1, 2) for d in w} for o, w in of.items()}
        elif any(windows.values()) or self.maybe(0.2):
            self.args["window"] = self.per_dim(windows)
            if isinstance(self.args["window"], dict) and not self.is_default and self.maybe(0.3):
                del self.args["dims"]
            if isinstance(self.args["window"], dict) and "dims" in self.args:
                self.args["window"] = {d: w for d, w in windows.items() if w} or self.args["window"]
            if any(s > 1 for s in strides.values()):
                self.args["stride"] = self.per_dim(strides)
        lengths = {d: self.region[d] if longest[d] < 0 else max(longest[d], 1) for d in self.dims}
        self.spans = {
            d: (n - 1) * (strides[d] if "stride" in self.args and not self.is_by_output else 1) + 1 for d, n in lengths.items()
        }
        can_crop = [
            d for d in self.dims if d not in self.lists and (d not in self.spaced or self.maybe(0.1)) and not self.maybe(0.3)
        ]
        if can_crop and not self.lists and self.maybe(0.15):
            self.args["random_crop"] = self.some(can_crop)
            if self.maybe(0.5):
                self.args["samples_per_volume"] = self.whole(1, 3)
        free = [d for d in self.dims if d not in self.lists and d not in self.args.get("random_crop", [])]
        if free and self.maybe(0.55):
            if self.maybe(0.3):
                overlap = {d: self.whole(0, lengths[d] - 1) for d in free if lengths[d] > 1 or self.maybe(0.3)}
                self.args["overlap"] = overlap
            else:
                steps = {d: self.whole(1, min(3, self.region[d] + 1)) for d in free}
                self.args["step"] = self.per_dim(steps) if free == self.dims else steps
        if self.maybe(0.35):
            self._offsets()

    def _offsets(self) -> None:
        reach = min(3, max(self.region[self.dims[0]] - 1, 0))

        def one() -> int:
            return self.whole(-(reach // 2), reach)

        match self.one(["list", "list", "numbers", "lists"]):
            case "list":
                self.args["offsets"] = list({one(): None for _ in range(self.whole(1, 3))})
            case "numbers":
                self.args["offsets"] = {"input": self.one([0, one()]), "target": one()}
            case _:
                self.args["offsets"] = {"input": [0], "target": list({one(): None for _ in range(2)})}

    def _places(self) -> None:
        self.policy = self.one(["drop", "drop", "drop", "pad", "pad", "edge", "edge"])
        if self.policy != "drop" or self.maybe(0.2):
            self.args["out_of_bounds_policy"] = self.policy
        if self.policy == "drop" and self.maybe(0.02):
            self.args["out_of_bounds_policy"] = "error"
        if not any(d in self.dims for d in self.selected) and self.maybe(0.2):
            ends = {d: (self.whole(0, n // 2), n - self.whole(0, n // 3)) for d, n in self.region.items()}
            if self.maybe(0.7):
                self.args["roi_start"] = self.per_dim(
                    {d: e[0] - self.region[d] * (e[0] > 0 and self.maybe(0.3)) for d, e in ends.items()}
                )
            if self.maybe(0.7):
                self.args["roi_end"] = self.per_dim(
                    {d: e[1] - self.region[d] * (e[1] < self.region[d] and self.maybe(0.3)) for d, e in ends.items()}
                )
            if self.is_concat:
                self.args.pop("roi_end", None)
        first = self.dims[0]
        if self.maybe(0.3):
            self._breaks(first)
        table = bool(self.lists)
        if self.policy != "drop" and not table and "random_crop" not in self.args and self.maybe(0.35):
            for name in self.some(["pad_before", "pad_after"]):
                pads = {d: self.whole(0, min(2, self.spans[d] - 1) + self.maybe(0.05)) for d in self.dims}
                self.args[name] = self.per_dim(pads) if self.maybe(0.5) else {first: pads[first]}

    def _breaks(self, first: str) -> None:
        n = self.extent(first)
        is_time = first == self.stores.dims[0]
        kinds = (["auto"] if is_time and self._coordinates(0, first) is not None else []) + (["ends", "ends"] if is_time else [])
        kinds += ["numbers"] if n > 1 and not self.is_concat else []
        if first in self.args.get("pick", {}):
            kinds = [k for k in kinds if k == "ends"]
        if self.masked:
            kinds = [k for k in kinds if k == "numbers"]
        if not kinds:
            return
        kind = self.one(kinds)
        count = 3
        if kind == "numbers":
            numbers = sorted({self.whole(1, n - 1) for _ in range(self.whole(1, 3))})
            count = len(numbers) + 1
            self.args["breaks"] = [b - n if self.maybe(0.2) else b for b in numbers]
        else:
            self.args["breaks"] = "auto" if kind == "auto" else "meta/ends"
        if self.maybe(0.4) and not self.masked and not self.lists and not self.is_concat:
            match self.one(["slice", "numbers", "bools"] if kind == "numbers" else ["slice"]):
                case "slice":
                    self.args["segments"] = self.one([slice(0, 1), slice(None, 2), slice(1, None), slice(None, None, 2)])
                case "numbers":
                    self.args["segments"] = self.some(list(range(count)))
                case _:
                    self.args["segments"] = [i == 0 or self.maybe(0.5) for i in range(count)]

    def _starts(self) -> None:
        given = {"step", "overlap", "random_crop", "segments", "pad_before", "pad_after", "samples_per_volume"}
        if self.lists or self.masked or self.spaced or given & set(self.args) and self.maybe(0.8) or not self.maybe(0.3):
            return
        for name in given:
            self.args.pop(name, None)
        slack = 1 if self.maybe(0.5) else 0
        rows = []
        for _ in range(self.whole(1, 16)):
            number = self.whole(0, len(self.lengths) - 1)
            extents = [self.lengths[number][d] for d in self.dims] if self.is_concat else [self.extent(d) for d in self.dims]
            for k, d in enumerate(self.dims):
                if d in self.args.get("pick", {}):
                    extents[k] = self.region[d]
            row = [self.whole(-slack, n - 1 + slack) for n in extents]
            rows.append([number, *row] if self.is_concat else row)
        table = np.array(rows, np.int64)
        self.args["starts"] = (
            table[:, 0] if table.shape[1] == 1 and self.maybe(0.5) else table if self.maybe(0.7) else table.tolist()
        )


def arguments(rng: np.random.Generator, stores: Stores, dataset: Dataset) -> dict[str, Any]:
    """Returns the arguments of a case that say what its samples are."""
    return Draw(rng, stores, dataset).args
