# PhysicsNeMo isn't installed where this is checked, and the checker takes this module for it.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUntypedBaseClass=false, reportGeneralTypeIssues=false
"""PhysicsNeMo's ``TimeSeriesDataModule`` for HEALPix, whose fields are read by this package.

PhysicsNeMo keeps what it decides: which times a batch needs, its scaling, its constants and insolation, and the order. Only the
values of ``inputs`` and ``targets`` come from the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import tee
from typing import Any

import torch
from physicsnemo.datapipes.healpix.data_modules import TimeSeriesDataModule as TheirModule
from physicsnemo.datapipes.healpix.timeseries_dataset import TimeSeriesDataset

from .._arguments.types import ResourceArguments
from .._selection.datasets import from_xarray
from ..torch import Loader


class _Values:
    """In the place of a variable: values that are there already."""

    def __init__(self, values: Any):
        self._values = values

    def isel(self, **_: Any) -> _Values:
        return self

    def to_numpy(self) -> Any:
        return self._values


class _Fields:
    """In the place of a data set of xarray: some of its variables have values that are there already."""

    def __init__(self, dataset: Any):
        self._dataset = dataset
        self.values: Any = {}

    def __getitem__(self, name: str) -> Any:
        return _Values(self.values[name].numpy()) if name in self.values else self._dataset[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)


class _Order:
    """The batch sampler of the reader: the times of each item of the data set."""

    asked: Iterable[Any] = ()

    def __init__(self, dataset: Any):
        self._dataset = dataset

    def __iter__(self) -> Iterator[list[int]]:
        for one in self.asked:
            for item in one if isinstance(one, list) else [one]:
                first, end = self._dataset._get_time_index(item)[0]
                yield list(range(int(first), min(int(end), self._dataset.ds.sizes["time"])))


class BatchLoader:
    """In the place of the DataLoader of a ``TimeSeriesDataset``: its batches, in the order of its sampler."""

    def __init__(self, loader: Any, **resources: Any):
        """Looks at the store.

        Args:
            loader: The DataLoader. Its worker processes aren't started.
            resources: The reader's arguments of memory, threads and caches.

        Raises:
            ValueError: The data set has another class, or its variables aren't those of a store; the message says why.
        """
        dataset = loader.dataset
        if type(dataset) is not TimeSeriesDataset:
            raise ValueError(
                f"dali_zarr: physicsnemo: expected a TimeSeriesDataset, but found {type(dataset).__name__}; use PhysicsNeMo's own "
                "DataLoader"
            )
        self.dataset, self.sampler, self.batch_sampler = dataset, loader.sampler, loader.batch_sampler
        self._loader, self._order = loader, _Order(dataset)
        names = ["inputs"] if dataset.forecast_mode else ["inputs", "targets"]
        most = dataset.batch_size + dataset._window_length
        self._reader = Loader(
            **from_xarray(dataset.ds[names]), dims=["time"], window=[0], step=[1], batch_sampler=self._order, batch_size=most,
            device="cpu", **resources,
        )

    def __len__(self) -> int:
        """The number of batches."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of an epoch."""
        # As a DataLoader does, so that the sampler and the model draw the same random numbers.
        torch.empty((), dtype=torch.int64).random_()
        asked, self._order.asked = tee(self.sampler if self.batch_sampler is None else self.batch_sampler)
        batches, dataset = iter(self._reader), self.dataset
        whole = dataset.ds
        for one in asked:
            fields = _Fields(whole)
            samples: list[Any] = []
            for item in one if isinstance(one, list) else [one]:
                fields.values = next(batches)
                dataset.ds = fields
                try:
                    samples.append(dataset[item])
                finally:
                    dataset.ds = whole
            yield self._loader.collate_fn(samples if isinstance(one, list) else samples[0])


class TimeSeriesDataModule(TheirModule):
    """In the place of ``physicsnemo.datapipes.healpix.data_modules.TimeSeriesDataModule``, with its arguments.

    No processes are started, so ``num_workers`` and ``pin_memory`` change nothing. The reader's arguments of memory, threads and
    caches may be given too.
    """

    def __init__(self, *args: Any, **arguments: Any):
        self._resources: Any = {name: arguments.pop(name) for name in list(arguments) if name in ResourceArguments.__annotations__}
        super().__init__(*args, **arguments)

    def train_dataloader(self, num_shards: int = 1, shard_id: int = 0) -> Any:
        """Returns the loader of training, and its sampler."""
        return self._read(super().train_dataloader(num_shards, shard_id))

    def val_dataloader(self, num_shards: int = 1, shard_id: int = 0) -> Any:
        """Returns the loader of validation, and its sampler."""
        return self._read(super().val_dataloader(num_shards, shard_id))

    def test_dataloader(self, num_shards: int = 1, shard_id: int = 0) -> Any:
        """Returns the loader of test, and its sampler."""
        return self._read(super().test_dataloader(num_shards, shard_id))

    def _read(self, found: Any) -> Any:
        loader, sampler = found
        return BatchLoader(loader, **self._resources), sampler
