"""Ragged rows: stores of them, their arguments, and what their samples are."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from support.argument_space.dataset import Refused
from support.argument_space.request import listed
from support.argument_space.stores import values_of
from support.argument_space.values import by_output, converted, filled
from support.stores import Layout, write_array

Row = tuple[int, ...]

RAGGED = {"X/data": ("element",), "X/indices": ("element",), "X/xyz": ("element", "axis"), "frames": ("element", "y")}
DENSE = {"label": ("obs",), "pca": ("obs", "component")}
COLUMNS = 40


@dataclass
class RaggedStores:
    """Stores that are joined row by row. ``parts`` has the values of each."""

    number: int
    paths: list[Path]
    offsets: list[np.ndarray]
    donors: list[list[int]]
    parts: list[dict[str, np.ndarray]]

    @property
    def arrays(self) -> list[Any]:
        return []

    @property
    def lengths(self) -> list[int]:
        return [len(offsets) - 1 for offsets in self.offsets]


def write(number: int, folder: Path) -> RaggedStores:
    """Writes the set of ragged stores with this number."""
    rng = np.random.default_rng([13, number])
    count, height, zarr_format = int(rng.choice([1, 1, 2, 3])), int(rng.integers(1, 6)), int(rng.choice([2, 3]))
    types = {name: str(rng.choice(["float32", "int16", "uint8", "float64"])) for name in (*RAGGED, *DENSE)}
    types["X/indices"] = str(rng.choice(["int32", "int64", "uint16"]))
    found = RaggedStores(number, [folder / f"{i}.zarr" for i in range(count)], [], [], [])
    for path in found.paths:
        lengths = rng.integers(0, 7, int(rng.integers(2, 20)))
        lengths[rng.random(len(lengths)) < 0.2] = 0
        lengths[-1] += sum(lengths) in (0, len(lengths))
        # As many elements as rows would leave open what is ragged.
        lengths[0] += sum(lengths) == len(lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(rng.choice(["int32", "int64"]))
        total, rows = int(offsets[-1]), len(lengths)
        shapes = {"X/xyz": (total, 3), "frames": (total, height), "label": (rows,), "pca": (rows, 4)}
        values = {name: values_of(rng, types[name], shapes.get(name, (total,))) for name in types}
        values["X/indices"] = rng.integers(0, COLUMNS, total).astype(types["X/indices"])
        donors = sorted({int(n) for n in rng.integers(1, rows + 1, 2)} | {rows})
        for name, one in values.items():
            layout = Layout(tuple(int(rng.integers(1, n + 2)) for n in one.shape))
            write_array(path, name, one, zarr_format=zarr_format, dims={**RAGGED, **DENSE}[name], layout=layout)
        for name, one in (("X/indptr", offsets), ("meta/ends", offsets[1:]), ("meta/donors", np.array(donors))):
            write_array(path, name, one, zarr_format=zarr_format, layout=Layout((int(rng.integers(1, 8)),)))
        found.offsets.append(offsets)
        found.donors.append(donors)
        found.parts.append(values)
    return found


def arguments(rng: np.random.Generator, stores: RaggedStores) -> dict[str, Any]:
    """Random arguments for ragged stores."""

    def maybe(chance: float) -> bool:
        return bool(rng.random() < chance)

    def one(values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    rows = sum(stores.lengths)
    height = stores.parts[0]["frames"].shape[1]
    collate = one([None, None, "nested", "padded", "csr"])
    ragged = ["X/data", "X/indices"] if collate == "csr" else [n for n in RAGGED if maybe(0.5)] or [one(list(RAGGED))]
    names = [*ragged, *(n for n in DENSE if maybe(0.6))]
    names = [names[i] for i in rng.permutation(len(names))]
    given: dict[str, Any] = {"arrays": names, one(["ragged", "ragged", "ragged_ends"]): "X/indptr"}
    if "ragged_ends" in given:
        given["ragged_ends"] = "meta/ends"
    given["path"] = str(stores.paths[0]) if len(stores.paths) == 1 else [str(p) for p in stores.paths]
    if collate:
        given["collate"] = collate
        given |= {"columns": COLUMNS} if collate == "csr" else {}
    has_rows = any(n in DENSE for n in names)
    cut_y = "frames" in names and has_rows and maybe(0.4)
    window = int(rng.integers(0, min(height, 3) + 1))
    if has_rows and (cut_y or maybe(0.5)):
        given["dims"] = ["obs", "y"] if cut_y else ["obs"]
    if cut_y:
        given["window"] = {"frames": {"y": window}}
    if maybe(0.4):
        given["max_length"] = int(rng.integers(1, 6))
    if maybe(0.25):
        table = [[int(rng.integers(rows)), *([int(rng.integers(height - max(window, 1) + 1))] if cut_y else [])] for _ in range(9)]
        given["starts"] = np.array(table) if maybe(0.5) else table
    else:
        if maybe(0.4):
            steps = [int(rng.integers(1, 4)) for _ in range(1 + cut_y)]
            given["step"] = steps
        if maybe(0.3):
            given["roi_start"] = [int(rng.integers(-rows, rows)), *([0] if cut_y else [])]
        if maybe(0.3):
            given["roi_end"] = [int(rng.integers(-rows, rows + 1)), *([height] if cut_y else [])]
        if maybe(0.15) and "dims" in given:
            given["pick"] = {"obs": [int(rng.integers(-rows, rows)) for _ in range(4)]}
            for name in ("roi_start", "roi_end"):
                given.pop(name, None)
    if maybe(0.3) and "pick" not in given:
        given["breaks"] = (
            "meta/donors" if maybe(0.6) else sorted({int(n) for n in rng.integers(1, rows, 2)}) if rows > 1 else "meta/donors"
        )
        if maybe(0.5) and "starts" not in given:
            given["segments"] = one([[0], slice(0, 1), slice(1, None), [1]])
    values = [n for n in names if n != "X/indices" or collate != "csr"]
    if maybe(0.25):
        given["dtype"] = one(["float32", "int32", "float64"]) if maybe(0.5) else {one(values): "int16"}
    if maybe(0.2):
        given["mean"] = 1.5 if maybe(0.5) else {one(values): -3.0}
    if maybe(0.2):
        given["fillna"] = 7.0
    if maybe(0.2):
        given["return_index"] = True
    return given


class RaggedEpoch:
    """The samples of an epoch over all shards; as ``oracle.Epoch``."""

    def __init__(self, stores: RaggedStores, given: Mapping[str, Any]):
        self.given = given
        count = len(stores.paths) if isinstance(given["path"], list) else 1
        self.names = listed(given["arrays"])
        self.dims = given.get("dims", ["obs"])
        self.whole = [
            {n: part[n][a:b] if n in RAGGED else part[n][i] for n in self.names}
            for part, offsets in zip(stores.parts[:count], stores.offsets, strict=False)
            for i, (a, b) in enumerate(itertools.pairwise(offsets.tolist()))
        ]
        if given.get("pick"):
            self.whole = [self.whole[i] for i in given["pick"]["obs"]]
        self.window = given["window"]["frames"]["y"] if "window" in given else 0
        self.cuts: list[int] = []
        breaks = given.get("breaks")
        if isinstance(breaks, str):
            begins = np.cumsum([0, *stores.lengths])[:count]
            self.cuts = [int(b) + n for b, donors in zip(begins, stores.donors, strict=False) for n in donors][:-1]
        elif breaks is not None:
            self.cuts = list(breaks)
        self.height = stores.parts[0]["frames"].shape[1]
        self.rows = self._rows()
        if not self.rows:
            raise Refused(*given)

    def _rows(self) -> list[Row]:
        given, count = self.given, len(self.whole)
        places = range(self.height - max(self.window, 1) + 1) if len(self.dims) > 1 else None
        if given.get("starts") is not None:
            for name in ("step", "segments"):
                if given.get(name) is not None:
                    raise Refused(name, "starts")
            return [self._row(row) for row in np.asarray(given["starts"]).tolist()]
        low, high = given.get("roi_start", [0])[0], given.get("roi_end", [count])[0]
        low, high = low + count * (low < 0), high + count * (high < 0)
        if not 0 <= low <= high <= count:
            raise Refused("roi_start", "roi_end")
        step = given.get("step", [1, max(self.window, 1)])
        found = []
        chosen = given.get("segments")
        segments = range(len(self.cuts) + 1)
        if chosen is not None:
            wanted = list(segments[chosen]) if isinstance(chosen, slice) else chosen
            if not wanted or not set(wanted) <= set(segments):
                raise Refused("segments")
            segments = wanted
        for i in range(low, high, step[0]):
            if self._segment(i) in segments:
                found += [self._row([i, y]) for y in places[:: step[1]]] if places is not None else [self._row([i])]
        return found

    def _segment(self, i: int) -> int:
        return sum(cut <= i for cut in self.cuts)

    def _row(self, starts: list[int]) -> Row:
        return (*((self._segment(starts[0]),) if self.given.get("breaks") is not None else ()), *starts)

    def known(self, row: Row) -> Row:
        return row

    def _value(self, row: Row, name: str) -> np.ndarray:
        starts = row[len(row) - len(self.dims) :]
        found = np.asarray(self.whole[starts[0]][name])
        if name in RAGGED:
            found = found[: self.given.get("max_length")]
        if name == "frames" and len(self.dims) > 1:
            found = found[:, starts[1]] if self.window == 0 else found[:, starts[1] : starts[1] + self.window]
        if name == "X/indices" and self.given.get("collate") == "csr":
            return found
        found = filled(found, by_output(self.given.get("fillna"), name))
        return converted(found, by_output(self.given.get("mean"), name), None, by_output(self.given.get("dtype"), name))

    def batch(self, rows: list[Row]) -> dict[tuple[str, ...], Any]:
        """The entries of a batch: arrays, or lists of arrays where rows have different lengths."""
        parts: dict[str, list[np.ndarray]] = {n: [self._value(row, n) for row in rows] for n in self.names}
        found: dict[tuple[str, ...], Any] = {}
        collate = self.given.get("collate")
        lengths = [len(one) for one in parts[next(n for n in self.names if n in RAGGED)]]
        for name, values in parts.items():
            if name in DENSE:
                found[name,] = np.stack(values)
            elif collate == "padded":
                shape = (len(rows), max(lengths), *values[0].shape[1:])
                found[name,] = np.zeros(shape, values[0].dtype)
                for i, one in enumerate(values):
                    found[name,][i, : len(one)] = one
            elif collate == "csr":
                offsets = np.concatenate([[0], np.cumsum(lengths)])
                found["X",] = [offsets, np.concatenate(parts["X/indices"]), np.concatenate(parts["X/data"])]
            else:
                found[name,] = values
        if collate == "padded":
            found["lengths",] = np.array(lengths)
        return found
