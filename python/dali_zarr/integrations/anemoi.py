# anemoi-training isn't installed where this is checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUntypedBaseClass=false
"""anemoi-training's datamodule, whose batches are read by this package.

anemoi-training keeps what it decides. Its data sets say which dates there are. Its seeds and workers say the order. Its strategy
says which rank reads which part of the grid. Its task says which dates a sample has. Only the values come from the reader.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from anemoi.datasets.usage.common.rename import Rename
from anemoi.datasets.usage.gridded.ensemble import Number
from anemoi.datasets.usage.gridded.join import Join
from anemoi.datasets.usage.gridded.missing import MissingDates
from anemoi.datasets.usage.gridded.select import Select
from anemoi.datasets.usage.gridded.statistics import Statistics
from anemoi.datasets.usage.gridded.store import GriddedZarr, ZarrWithMissingDates
from anemoi.datasets.usage.gridded.subset import Subset
from anemoi.models.distributed.balanced_partition import get_partition_range
from anemoi.training.data.data_reader import NativeGridDataset
from anemoi.training.data.datamodule import AnemoiDatasetsDataModule

from ..torch import Loader

_part: Any = get_partition_range
Positions: TypeAlias = npt.NDArray[np.int64]
_SAMPLE = ("time", "ensemble", "cell", "variable")


@dataclass(frozen=True)
class Tree:
    """What ``open_dataset`` gave, as parts of stores."""

    stores: list[tuple[str, Positions]]
    """The path of each store, and the position there of each date."""
    variables: list[tuple[int, int]]
    """For each variable its store, and its position there."""
    members: list[int]
    """Positions of the members of the ensemble."""

    @classmethod
    def of(cls, name: str, data: Any) -> Tree:
        """Describes the data set called ``name`` in the configuration.

        Raises:
            ValueError: Something in the tree can't be said in the reader's arguments; the message names it.
        """
        kind = type(data)
        if kind in (GriddedZarr, ZarrWithMissingDates):
            dates, variables, members, _ = data.shape
            return cls([(data.path, np.arange(dates))], [(0, i) for i in range(variables)], list(range(members)))
        if kind is Join:
            parts = [cls.of(name, one) for one in data.datasets]
            if any(part.members != parts[0].members for part in parts):
                raise ValueError(f"dali_zarr: anemoi: {name}: expected joined data sets of the same members, but they differ")
            firsts = np.cumsum([0, *(len(part.stores) for part in parts)])
            variables = [(first + store, i) for first, part in zip(firsts, parts) for store, i in part.variables]
            return cls([store for part in parts for store in part.stores], variables, parts[0].members)
        if kind not in (Select, Subset, Number, Rename, Statistics, MissingDates):
            raise ValueError(
                f"dali_zarr: anemoi: {name}: expected what open_dataset makes of select, drop, reorder, rename, start, end, "
                f"frequency, join, members, statistics and set_missing_dates, but found {kind.__name__}; leave it out, or use "
                "AnemoiDatasetsDataModule"
            )
        of = cls.of(name, data.dataset if hasattr(data, "dataset") else data.forward)
        if kind is Select:
            return cls(of.stores, [of.variables[i] for i in data.indices], of.members)
        if kind is Subset:
            indices = np.asarray(list(data.indices), np.int64)
            if len(np.unique(np.diff(indices))) > 1:
                raise ValueError(f"dali_zarr: anemoi: {name}: expected dates that are equally far apart, but some are left out")
            return cls([(path, dates[indices]) for path, dates in of.stores], of.variables, of.members)
        if kind is Number:
            return cls(of.stores, of.variables, [of.members[i] for i in data.members])
        return of


def batches_of(workers: Sequence[Any], batch_size: int) -> Iterator[list[int]]:
    """Yields the anchors' numbers of the batches of an epoch, as a DataLoader gives them: each worker fills batches of its own, and
    the workers take turns."""
    turns = [_batches(worker, batch_size) for worker in workers]
    while turns:
        left: list[Iterator[list[int]]] = []
        for turn in turns:
            batch = next(turn, None)
            if batch is not None:
                yield batch
                left.append(turn)
        turns = left


def _batches(worker: Any, size: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for number in worker:
        batch.append(int(number))
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _number(index: int) -> int:
    """In the place of ``MultiDataset.get_sample``: nothing is read."""
    return index


def _offsets(indices: Any) -> Positions:
    """Returns the dates of a sample, relative to its anchor."""
    return np.atleast_1d(np.r_[indices])


def workers_of(dataset: Any, count: int) -> list[Any]:
    """Returns copies of the data set, as a DataLoader's workers have them. They give anchors' numbers instead of samples. The
    random state of PyTorch and of Python stays as it is."""
    state = random.getstate()
    made: list[Any] = []
    with torch.random.fork_rng(devices=[]):
        for number in range(count):
            worker = copy.copy(dataset)
            worker.get_sample = _number
            worker.per_worker_init(n_workers=count, worker_id=number)
            made.append(worker)
    random.setstate(state)
    return made


class BatchLoader:
    """In the place of the DataLoader of a ``MultiDataset``: dictionaries of tensors (samples, dates, ensemble, cells, variables).

    As there, the number of batches isn't known before. The strategy finds the data set in ``dataset``.
    """

    def __init__(self, dataset: Any, batch_size: int, num_workers: int, is_persistent: bool, device: str | None):
        self.dataset, self.batch_size = dataset, batch_size
        self._num_workers, self._is_persistent, self._device = max(1, num_workers), is_persistent, device
        self._workers: list[Any] = []
        self._trees: dict[str, Tree] = {}
        for name, reader in dataset.data_readers.items():
            if type(reader) is not NativeGridDataset:
                raise ValueError(
                    f"dali_zarr: anemoi: {name}: expected a NativeGridDataset, but found {type(reader).__name__}; use "
                    "AnemoiDatasetsDataModule for trajectories"
                )
            self._trees[name] = Tree.of(name, reader.data)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if not self._workers or not self._is_persistent:
            self._workers = workers_of(self.dataset, self._num_workers)
        # Persistent workers keep the dates of the epoch that they began with.
        dataset = self._workers[0]
        batches = [dataset.anchors[batch, 1] for batch in batches_of(self._workers, self.batch_size)]
        read = {name: iter(self._read(name, dataset, batches)) for name in self._trees}
        for _ in batches:
            yield {name: next(one) for name, one in read.items()}

    def _read(self, name: str, dataset: Any, batches: list[Positions]) -> Iterator[torch.Tensor]:
        """Yields the batches of one data set."""
        tree = self._trees[name]
        offsets = _offsets(dataset.relative_date_indices[name])
        cells = None
        if self.dataset.shard_sizes is not None and self.dataset.shard_sizes[name] is not None:
            cells = slice(*_part(self.dataset.shard_sizes[name], self.dataset.reader_group_rank))
        used = sorted({store for store, _ in tree.variables})
        loaders = [self._loader(tree, store, offsets, cells, batches) for store in used]
        # Where the variables of each store come in turn, they are concatenated in the order of the tree.
        found = [variable for store in used for variable in tree.variables if variable[0] == store]
        places = [found.index(variable) for variable in tree.variables]
        for parts in zip(*loaders, strict=True):
            values = [torch.stack(list(part.values()), 1) if len(part) > 1 else part["data"] for part in parts]
            whole = values[0] if len(values) == 1 else torch.cat(values, -1)
            yield whole if places == list(range(len(places))) else whole[..., places]

    def _loader(self, tree: Tree, store: int, offsets: Positions, cells: slice | None, batches: list[Positions]) -> Loader:
        """Makes the loader of a store. Dates that are equally far apart are one window, others are one output each."""
        path, dates = tree.stores[store]
        step = int(dates[1] - dates[0]) if len(dates) > 1 else 1
        gaps = np.unique(np.diff(offsets))
        isel: dict[str, Any] = {"variable": [i for own, i in tree.variables if own == store], "ensemble": tree.members}
        if cells is not None:
            isel["cell"] = cells
        if len(gaps) <= 1:
            first = int(offsets[0]) * step
            window: dict[str, Any] = {"window": [len(offsets)], "stride": [int(gaps[0]) * step if len(gaps) else 1], "step": [1]}
        else:
            first, window = 0, {"offsets": [int(offset) * step for offset in offsets], "window": [0], "step": [1]}
        order = [(dates[batch] + first)[:, None] for batch in batches]
        layout = _SAMPLE if len(gaps) <= 1 else _SAMPLE[1:]
        return Loader(
            path, arrays=["data"], dims=["time"], isel=isel, batch_sampler=order, batch_size=self.batch_size, missing_dates="keep",
            transpose=list(layout), device=self._device, **window,
        )


class DaliZarrDataModule(AnemoiDatasetsDataModule):
    """In the place of ``AnemoiDatasetsDataModule``, with its configuration. ``num_workers`` and ``persistent_workers`` decide the
    order of samples, as there. No processes are started, so ``prefetch_factor``, ``pin_memory`` and ``multiprocessing_context``
    change nothing."""

    def _get_dataloader(self, ds: Any, stage: str) -> BatchLoader:
        own: Any = self
        config = own.config.dataloader
        device = None if own.trainer is None else str(own.trainer.strategy.root_device)
        return BatchLoader(ds, config.batch_size[stage], config.num_workers[stage], own._use_persistent_workers, device)


def use() -> None:
    """Makes anemoi-training's trainers take :class:`DaliZarrDataModule`: no setting of theirs names the datamodule."""
    import anemoi.training.train.train as trainers

    trainers.AnemoiDatasetsDataModule = DaliZarrDataModule
