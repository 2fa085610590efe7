"""Runs a case with the loader for PyTorch and compares all that comes with the oracle."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import re
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from support.argument_space.case import Case
from support.argument_space.dataset import Refused
from support.argument_space.labels import labels
from support.argument_space.oracle import Epoch, Row
from support.argument_space.request import listed
from support.argument_space.rows import RaggedEpoch
from support.pipelines import same

REFUSALS = (ValueError, TypeError, IndexError)


@dataclass
class Part:
    """What one rank gives in an epoch: for each batch its index, and its entries by place."""

    batches: list[tuple[list[Row], dict[tuple[str, ...], Any]]] = field(default_factory=list)

    def rows(self) -> list[Row]:
        return [row for rows, _ in self.batches for row in rows]


def run(case: Case, device: str) -> str:
    """Returns ``"equal"`` or ``"refused"``. Raises AssertionError where the loader differs from the oracle."""
    try:
        epoch = None if case.mistake else case.epoch()
    except Refused as refused:
        _refused(case, device, refused.names)
        return "refused"
    if epoch is None:
        _refused(case, device, (case.mistake or "",))
        return "odd" if case.is_odd else "refused"
    _Run(case, device, epoch).check()
    return "equal"


def make(case: Case, device: str, **more: Any) -> Any:
    from dali_zarr.torch import Loader

    limits: dict[str, Any] = {"host_memory_limit": "128MiB"} | ({"device_memory_limit": "256MiB"} if device == "gpu" else {})
    if "uneven" in inspect.signature(Loader).parameters:
        # Each sample comes once, however many ranks there are.
        limits["uneven"] = "exact"
    given = limits | {"device": "cuda" if device == "gpu" else "cpu"} | case.arguments | case.order | more
    return Loader(given.pop("path"), **given)


def _refused(case: Case, device: str, names: tuple[str, ...]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in itertools.islice(make(case, device), 20):
                pass
        if case.is_odd:
            return
    except REFUSALS as error:
        said = str(error)
        known = {*names, *_values(case)} if case.mistake and not case.is_odd else {*case.arguments, *names, "window"}
        named = any(re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", said) for name in known)
        assert named, f"the message names no argument: {error!r}"
        return
    except Exception as error:
        raise AssertionError(f"expected a ValueError, a TypeError or an IndexError about {names}, but found {error!r}") from error
    raise AssertionError(f"expected a refusal because of {names}, but a whole epoch came")


def _values(case: Case) -> list[str]:
    """Texts in the wrong argument: a message may name what was given instead of the argument."""
    value = case.arguments[case.mistake or ""]
    # The dimensions that window names are dims.
    return [str(one) for one in listed(value) if isinstance(one, str)] + ["dims"] * (case.mistake == "window")


def plain(tensor: Any) -> Any:
    """A tensor as an array; one of rows of different lengths, or a list of tensors, as a list of arrays."""
    import torch

    if isinstance(tensor, list):
        return [one.cpu().numpy() for one in tensor]
    if tensor.layout == torch.sparse_csr:
        return [one.cpu().numpy() for one in (tensor.crow_indices(), tensor.col_indices(), tensor.values())]
    if tensor.is_nested:
        return [one.cpu().numpy() for one in tensor.unbind()]
    return tensor.cpu().numpy()


class _Run:
    """One valid case."""

    def __init__(self, case: Case, device: str, epoch: Epoch | RaggedEpoch):
        self.case, self.device, self.epoch = case, device, epoch
        self.weights = case.order.get("weights")
        self.count = len(epoch.rows) if self.weights is None else case.order.get("num_samples", len(epoch.rows))
        self.batch_size: int = case.order["batch_size"]
        # Labels are compared once: reading them takes as long as all others together.
        self.has_labels = False

    def check(self) -> None:
        case = self.case
        ranks = case.num_shards
        parts: list[list[Part]] = []
        states: list[Any] = []
        for rank in range(ranks):
            loader = self._loader(rank, ranks)
            found = []
            for epoch in range(case.epochs):
                part, state = self._read(loader, case.resumed_after if epoch == 0 else None)
                states += [] if state is None else [state]
                assert len(loader) == len(part.batches), f"len is {len(loader)}, but {len(part.batches)} batches came"
                found.append(part)
            parts.append(found)
        for epoch in range(case.epochs):
            self._check_rows([of[epoch] for of in parts], self.count, epoch)
            for of in parts:
                for rows, entries in of[epoch].batches:
                    self._check_values(rows, entries)
        if states:
            self._check_resumed(parts, states[0])

    def _loader(self, rank: int, ranks: int, **more: Any) -> Any:
        if ranks > 1 or self.case.number % 2:
            more |= {"shard_id": rank, "num_shards": ranks}
        return make(self.case, self.device, **more)

    def _read(self, loader: Any, state_after: int | None = None) -> tuple[Part, Any]:
        """Reads an epoch, or the rest of one; and returns a state that was taken after some batches."""
        part, state = Part(), None
        for number, batch in enumerate(loader, 1):
            rows = [tuple(int(n) for n in row) for row in batch.index.cpu().numpy()]
            part.batches.append((rows, {place: plain(one) for place, one in self._entries(batch)}))
            if number == state_after:
                state = json.loads(json.dumps(loader.state_dict()))
            if number == 1 and not self.has_labels:
                self._check_labels(rows, batch)
                self.has_labels = True
        return part, state

    def _entries(self, batch: Any) -> list[tuple[tuple[str, ...], Any]]:
        found = []
        for name, entry in batch.items():
            found += [((name, inner), one) for inner, one in entry.items()] if isinstance(entry, dict) else [((name,), entry)]
        return found

    # Which samples come.

    def _check_rows(self, parts: list[Part], count: int, epoch: int, expected: Counter[Row] | None = None) -> None:
        case, ranks = self.case, len(parts)
        found = [part.rows() for part in parts]
        assert len({len(part.batches) for part in parts}) == 1, f"batches of ranks: {[len(part.batches) for part in parts]}"
        if case.order.get("drop_last"):
            batches = count // ranks // self.batch_size
        else:
            batches = math.ceil(math.ceil(count / ranks) / self.batch_size)
        assert len(parts[0].batches) == batches, f"{len(parts[0].batches)} batches, expected {batches}"
        if case.order.get("drop_last") or case.order.get("pad_last_batch"):
            assert all(len(rows) == self.batch_size for part in parts for rows, _ in part.batches), "a batch isn't full"
        if case.order.get("pad_last_batch"):
            if ranks > 1:
                self._check_set([row for rows in found for row in rows], at_least=True)
                return
            assert all(row == found[0][count - 1] for row in found[0][count:]), f"other samples repeated: {found[0][count - 1 :]}"
            found[0] = found[0][:count]
        whole = [row for rows in found for row in rows]
        is_random = case.order.get("random_shuffle") or self.weights is not None or case.order.get("shuffle_after_epoch") and epoch
        if not is_random and ranks == 1:
            ordered = self.epoch.rows[: len(whole)]
            assert [self.epoch.known(row) for row in whole] == ordered, f"samples {whole}, expected {ordered}"
        if case.order.get("drop_last"):
            self._check_set(whole, at_most=True)
        else:
            assert len(whole) == count, f"{len(whole)} samples, expected {count}"
            self._check_set(whole)

    def _check_set(self, found: list[Row], at_least: bool = False, at_most: bool = False) -> None:
        came = Counter(self.epoch.known(row) for row in found)
        if self.weights is not None:
            allowed = Counter(row for row, weight in zip(self.epoch.rows, self.weights, strict=True) if weight > 0)
            assert set(came) <= set(allowed), f"samples that have no weight: {set(came) - set(allowed)}"
            if self.case.order.get("replacement") is False and not at_least:
                assert not came - allowed, f"samples more than once: {came - allowed}"
            return
        expected = Counter(self.epoch.rows)
        assert at_most or not expected - came, f"samples that didn't come: {expected - came}"
        assert at_least and set(came) <= set(expected) or not came - expected, f"samples too much: {came - expected}"

    # What they hold.

    def _check_values(self, rows: list[Row], entries: dict[tuple[str, ...], Any]) -> None:
        if self.case.arguments.get("return_index"):
            entries = dict(entries)
            assert entries.pop(("index",)).tolist() == [list(row) for row in rows]
        if not rows:
            return
        expected = self.epoch.batch(rows)
        assert set(entries) == set(expected), f"entries {list(entries)}, expected {list(expected)}"
        for place, found in entries.items():
            what, wanted = f"{'/'.join(place)} of {rows}", expected[place]
            if isinstance(found, list) and self.case.arguments.get("starts") is not None:
                # A table may name no sample of the store whose shape is another one.
                wanted = list(wanted)
            assert isinstance(found, list) == isinstance(wanted, list), f"{what}: {found}"
            if isinstance(found, list):
                for one, other in zip(found, wanted, strict=True):
                    same(one, other.astype(one.dtype) if place == ("X",) else other, what)
            else:
                same(found, wanted, what)

    def _check_labels(self, rows: list[Row], batch: Any) -> None:
        if isinstance(self.epoch, RaggedEpoch):
            return
        request = self.epoch.request
        paths = request.paths
        for dim in request.dims[0 if request.is_concat else 1 :] + self.epoch.selection.single:
            known = [request.coordinates(path, dim) for path in paths]
            if any(c is not None and not np.array_equal(c, known[0]) for c in known):
                return
        self._compare_labels(batch.coords, rows, None, "coords")
        for dim, selected in self.epoch.selection.others.items():
            all_known = [request.coordinates(path, dim) for path in paths]
            known, at = all_known[0], [one.positions.tolist() for one in selected]
            # slice(None) is no selection.
            indexers = [(self.case.arguments.get(name) or {}).get(dim) for name in ("sel", "isel")]
            is_whole = any(isinstance(one, slice) and one == slice(None) for one in indexers)
            same_labels = known is None or all(np.array_equal(known, one) for one in all_known)
            if same_labels and all(one == at[0] for one in at) and not is_whole:
                labels = np.array(at[0]) if known is None else known[at[0]]
                found = batch.coords[dim]
                labels = np.repeat(labels, len(rows)) if dim in self.epoch.selection.single else labels
                assert found.tolist() == labels.tolist(), f"coords[{dim!r}] is {found.tolist()}, expected {labels.tolist()}"
        output = request.outputs[self.case.number % len(request.outputs)]
        inner = batch[output.place[0]] if len(output.place) > 1 else batch
        coords = inner.coords_of(output.place[-1])
        self._compare_labels(coords, rows, output, f"coords_of({output.place})")

    def _compare_labels(self, coords: Any, rows: list[Row], output: Any, what: str) -> None:
        expected = [labels(self.epoch, row, output) for row in rows]
        request = self.epoch.request
        # Nothing is said about dimensions that an entry lacks.
        of = request.dims if output is None or output.array is None else request.dims_of[output.array]
        for dim in [d for d in request.dims if d in of] if rows else ():
            found = coords[dim]
            values, inside = np.stack([one[dim][0] for one in expected]), np.stack([one[dim][1] for one in expected])
            assert found.shape == values.shape, f"{what}[{dim!r}] has the shape {found.shape}, expected {values.shape}"
            if self.epoch.request.policy == "edge":
                inside = np.ones_like(inside)
            told = f"{what}[{dim!r}] of {rows} is {found.tolist()}"
            assert (found[inside] == values[inside]).all(), f"{told}, expected {values.tolist()}"
            if self.epoch.request.coordinates(self.epoch.request.paths[0], dim) is not None:
                import pandas

                assert pandas.isnull(found[~inside]).all(), f"{told}, expected none for what is padded"

    # States.

    def _check_resumed(self, parts: list[list[Part]], state: Any) -> None:
        case = self.case
        after = case.resumed_after or 0
        ranks = case.resumed.get("num_shards", case.num_shards)
        own = {"batch_size": case.resumed.get("batch_size", self.batch_size)}
        if ranks == case.num_shards and own["batch_size"] == self.batch_size:
            for rank, of in enumerate(parts):
                loader = self._loader(rank, ranks)
                loader.load_state_dict(state)
                rest, _ = self._read(loader)
                expected = of[0].batches[after:] or (of[1].batches if case.epochs > 1 else None)
                if expected is None:
                    continue
                assert [rows for rows, _ in rest.batches] == [rows for rows, _ in expected], (
                    f"rank {rank} goes on with {rest.rows()}, expected {[row for rows, _ in expected for row in rows]}"
                )
                for rows, entries in rest.batches:
                    self._check_values(rows, entries)
            return
        if case.order.get("drop_last") or case.order.get("pad_last_batch"):
            return
        left = Counter(row for of in parts for rows, _ in of[0].batches[after:] for row in rows)
        if not left:
            return
        came = Counter[Row]()
        for rank in range(ranks):
            loader = self._loader(rank, ranks, **own)
            loader.load_state_dict(state)
            rest, _ = self._read(loader)
            came += Counter(rest.rows())
            for rows, entries in rest.batches:
                self._check_values(rows, entries)
        assert came == left, f"{ranks} ranks go on with {came}, expected {left}"
