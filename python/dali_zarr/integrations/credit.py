# CREDIT isn't installed where this is checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUntypedBaseClass=false
"""MILES CREDIT's loader of training and validation, whose fields are read by this package.

CREDIT keeps what it decides. Its ``MultiSourceDataset`` says which times there are, what a step needs, and how a source persists or
repeats. Its batch sampler says the order, with its seed and its ranks. Only the values come from the reader: the data sets are
asked for samples as always, but they note the times of each field instead of reading them.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import tee
from typing import Any, TypeAlias, Unpack

import cftime
import torch
import xarray as xr
from credit.datasets.gen_2 import _utils
from credit.datasets.gen_2.local import LocalDataset
from credit.trainers import utils as trainers

from .._arguments.types import ResourceArguments
from ..torch import Loader

_credit: Any = _utils
_own_dataloader: Any = trainers.load_dataloader

Name: TypeAlias = tuple[str, str]
"""A field: the name of its source, and its type (prognostic, dynamic_forcing, static, diagnostic)."""
Plan: TypeAlias = dict[str, dict[str, Any]]
"""A batch by part (input, metadata, target) and source. A field is the times of each sample."""


def _error(name: Iterable[str], expected: str, found: str) -> ValueError:
    return ValueError(f"dali_zarr: credit: {' '.join(name)}: {expected}, but found {found}")


class Field:
    """The variables of one type of a source: where they are stored, and which of their elements belongs to a time. It is the batch
    sampler of its own loader."""

    def __init__(self, name: Name, dataset: Any):
        """Opens the stores and reads their times. A ValueError says what can't be read."""
        self.name, self._dataset = name, dataset
        self.plans: Iterable[Plan] = ()
        self._intervals: list[Any] = dataset.file_dict[name[1]]
        variables: dict[str, list[str]] = dataset.var_dict[name[1]]
        self.keys: dict[str, str] = {
            dataset._get_field_name(name[1], dim, variable): variable
            for dim, kind in (("3d", "vars_3D"), ("2d", "vars_2D")) for variable in variables[kind]
        }
        self._deep = set(variables["vars_3D"])
        self.paths = list(dict.fromkeys(path for *_, path in self._intervals))
        self._indexes: dict[str, tuple[int, Any]] = {}
        self._found: dict[Any, int] = {}
        self.levels: list[int] | None = None
        self.time: str | None = dataset.time_coord
        first = 0
        for path in self.paths:
            if not os.path.isdir(path):
                raise _error(name, "expected Zarr stores", f"{path!r}; convert it to Zarr, or use CREDIT's own loader")
            with xr.open_dataset(path) as opened:
                first += self._look(path, first, opened)
        self.is_constant = self.time is None or name[1] == "static"
        if self.is_constant and len(self.paths) > 1:
            raise _error(name, "expected one store of a field that doesn't vary in time", f"{len(self.paths)}: give one of them")

    def _look(self, path: str, first: int, opened: xr.Dataset) -> int:
        """Notes the times and levels of a store, whose first element is the ``first`` of all. Returns how many times it has."""
        dataset, level = self._dataset, self._dataset.level_coord
        for variable in self.keys.values():
            self._last = str(opened[variable].dims[-1])
            dims = [dim for dim in opened[variable].dims if dim != dataset.time_coord]
            if variable in self._deep and level in dims and dims[0] != level:
                raise _error(self.name, f"expected {level!r} as the first dimension of {variable!r} after the time", f"{dims}")
            if variable not in self._deep and level in dims:
                raise _error(self.name, f"expected variables without {level!r} in vars_2D", f"{variable!r}; put it in vars_3D")
        if self._deep and dataset.levels is not None and level not in opened.coords:
            raise _error(self.name, f"expected a coordinate {level!r}, as levels are given", f"none in {path!r}")
        if self._deep and level in opened.coords:
            if dataset.levels is None:
                dataset.levels = dataset.static_metadata["levels"] = opened[level].values.tolist()
            found: list[int] = opened.indexes[level].get_indexer(dataset.levels, method="nearest").tolist()
            if self.levels not in (None, found):
                raise _error(self.name, "expected stores with the same levels", f"others in {path!r}")
            self.levels = found
        if dataset.time_coord not in opened.dims:
            self.time = None
            return 0
        self._indexes[path] = (first, opened.indexes[dataset.time_coord])
        return opened.sizes[dataset.time_coord]

    def position(self, time: Any) -> int:
        """Returns the element of a time, counted over all stores. It is a KeyError if no store has it."""
        if time not in self._found:
            first, index = self._indexes[_credit._find_file(self._intervals, time)]
            calendar = index[0].calendar if isinstance(index[0], cftime.datetime) else "standard"
            label = _credit.to_calendar(time, calendar)
            if calendar != "standard" and not isinstance(label, cftime.datetime):
                label = _credit._to_cftime(label, calendar)
            place = index.get_loc(label)
            if not isinstance(place, int):
                raise _error(self.name, "expected each time once", f"{label} several times")
            self._found[time] = first + place
        return self._found[time]

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the reader's batches for ``plans``: one for each part of a plan that has this field."""
        source, kind = self.name
        for plan in self.plans:
            for part in ("input", "target"):
                samples = plan.get(part, {}).get(source, {}).get(kind)
                if samples is not None:
                    yield [self.position(time) for times in samples for time in times]

    def loader(self, size: int, **arguments: Any) -> Loader:
        """Makes the loader of this field, whose samples are single times. ``size``: how many times a batch has at most."""
        if self.levels is not None:
            arguments["isel"] = {self._dataset.level_coord: self.levels}
        arguments |= {"sampler": [0]} if self.is_constant else {"batch_sampler": self, "batch_size": size}
        cut: dict[str, Any] = {"dims": [self.time], "window": [0], "step": [1]}
        if self.time is None:
            cut = {"dims": [self._last], "window": [-1]}
        arrays = {str(number): variable for number, variable in enumerate(self.keys.values())}
        path: Any = self.paths if len(self.paths) > 1 else self.paths[0]
        return Loader(path, arrays=arrays, mask_and_scale=True, dtype="float32", **cut, **arguments)

    def shaped(self, key: str, values: torch.Tensor, samples: int) -> torch.Tensor:
        """Returns values (samples and times, dimensions of a time) as CREDIT has them: (samples, levels, times, cells)."""
        if self.keys[key] not in self._deep:
            return values.reshape(samples, 1, -1, *values.shape[1:])
        return values.reshape(samples, -1, *values.shape[1:]).movedim(1, 2).contiguous()


def _noting(dataset: Any) -> Any:
    """Returns a copy of a source's data set. Its samples have the times of each field instead of the field."""
    copied = copy.copy(dataset)
    copied._persist_cache = {}

    def several(kind: str, times: Any, sample: dict[str, Any]) -> None:
        if dataset.file_dict.get(kind) and kind in dataset.var_dict:
            sample[kind] = list(times)

    def one(kind: str, time: Any, sample: dict[str, Any]) -> None:
        several(kind, [time], sample)

    copied._extract_field, copied._extract_field_window = one, several
    return copied


class BatchLoader:
    """In the place of the DataLoader of a ``MultiSourceDataset``: its batches, in the order of its batch sampler."""

    def __init__(self, loader: Any, device: str | None = None, **resources: Unpack[ResourceArguments]):
        """Looks at the stores of all sources.

        Args:
            loader: The DataLoader of a ``MultiSourceDataset``. Its batch sampler yields batches of (time, step).
            device: Where the fields come to. Default: the GPU, if there is one.
            resources: The reader's arguments of memory, threads and caches. Each field of a source has a reader of its own.

        Raises:
            ValueError: A source isn't local, or its files can't be read; the message names the source.
        """
        dataset, batch_sampler = loader.dataset, loader.batch_sampler
        for name, source in dataset.datasets.items():
            if type(source) is not LocalDataset:
                kind = type(source).__name__
                raise _error([name], "expected a source with dataset_type: local", f"{kind}; use CREDIT's own loader")
        self.dataset, self.batch_sampler, self.sampler = dataset, batch_sampler, batch_sampler
        self._is_persistent, self._has_begun = loader.persistent_workers, False
        self._notes = copy.copy(dataset)
        self._notes.datasets = {name: _noting(source) for name, source in dataset.datasets.items()}
        fields = [Field((name, kind), source) for name, source in dataset.datasets.items() for kind in source.var_dict
                  if source.file_dict.get(kind)]
        most = batch_sampler.batch_size * max((source.history_len for source in dataset.datasets.values()), default=1)
        how: dict[str, Any] = {"device": device, **resources}
        self._fields = {field.name: field for field in fields}
        self._loaders = {field.name: field.loader(most, **how) for field in fields}
        # Fields that don't vary in time are read once.
        self._constants = {field.name: next(iter(self._loaders.pop(field.name))) for field in fields if field.is_constant}

    def __len__(self) -> int:
        """The number of batches of first times, as the DataLoader has it."""
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[dict[str, dict[str, Any]]]:
        """Yields the batches of an epoch: the steps of each batch of first times come one after the other."""
        if not (self._is_persistent and self._has_begun):
            # As a DataLoader does, so that a model draws the same random numbers.
            torch.empty((), dtype=torch.int64).random_()
        self._has_begun = True
        *copies, plans = tee(self._plans(), len(self._loaders) + 1)
        for name, copied in zip(self._loaders, copies, strict=True):
            self._fields[name].plans = copied
        read = {name: iter(loader) for name, loader in self._loaders.items()}
        for plan in plans:
            batch: dict[str, dict[str, Any]] = {part: {} for part in plan}
            for part, sources in plan.items():
                for source, found in sources.items():
                    batch[part][source] = found if part == "metadata" else self._values(source, found, read)
            yield batch

    def _plans(self) -> Iterator[Plan]:
        for asked in self.batch_sampler:
            samples: list[Plan] = [self._notes[one] for one in asked]
            plan: Plan = {}
            for part, sources in samples[0].items():
                plan[part] = {
                    source: {kind: [sample[part][source][kind] for sample in samples] for kind in found}
                    for source, found in sources.items()
                }
            plan["metadata"] = torch.utils.data.default_collate([sample["metadata"] for sample in samples])
            yield plan

    def _values(self, source: str, found: dict[str, list[Any]], read: dict[Name, Iterator[Any]]) -> dict[str, torch.Tensor]:
        values: dict[str, torch.Tensor] = {}
        for kind, samples in found.items():
            name = (source, kind)
            field = self._fields[name]
            batch: Any = self._constants[name] if field.is_constant else next(read[name])
            for number, key in enumerate(field.keys):
                one = batch[str(number)]
                if field.is_constant:
                    one = one.repeat(len(samples) * len(samples[0]), *[1] * (one.ndim - 1))
                values[key] = field.shaped(key, one, len(samples))
        return values


def load_dataloader(*args: Any, device: str | None = None, **how: Any) -> BatchLoader:
    """In the place of ``credit.trainers.utils.load_dataloader``, with its arguments. No processes are started, so
    ``thread_workers``, ``prefetch_factor`` and ``persistent_workers`` change nothing. ``device`` and the reader's arguments of
    memory, threads and caches may be given by name."""
    resources: Any = {name: how.pop(name) for name in list(how) if name in ResourceArguments.__annotations__}
    return BatchLoader(_own_dataloader(*args, **how), device, **resources)


def use(**resources: Unpack[ResourceArguments]) -> None:
    """Makes CREDIT's training take :func:`load_dataloader`, with the reader's arguments of memory, threads and caches."""
    import credit.applications.train_gen2 as training

    trainers.load_dataloader = training.load_dataloader = partial(load_dataloader, **resources)
