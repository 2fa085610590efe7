"""The parts of a DataLoader, for code that takes a loader apart and makes a DataLoader of its parts, as Accelerate's
``skip_first_batches`` does.

The loader gives whole batches in its own order. So the elements of its batch sampler stand for batches, and the data set
returns the batch that it is asked for. The DataLoader has no workers: it runs in the loader's process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch.utils.data

from .._loading.loader import BaseLoader


class _Epoch:
    """An iteration over a loader, of which batches may be passed over."""

    def __init__(self, loader: BaseLoader[Any]):
        self._loader, self._batches = loader, iter(loader)

    def batch(self, number: int) -> Any:
        """Returns the batch with this number in the epoch, or the next one if that is a later one: a loader that goes on
        from a state begins there."""
        batch = next(self._batches)
        while self._loader.number < number:
            batch = next(self._batches)
        return batch


@dataclass(frozen=True)
class _Place:
    """The place of a batch."""

    epoch: _Epoch
    number: int


class BatchSampler(torch.utils.data.Sampler[list[_Place]]):
    """Yields a list with one element for each batch of the loader's next epoch."""

    def __init__(self, loader: BaseLoader[Any]):
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[_Place]]:
        epoch = _Epoch(self._loader)
        for number in range(len(self._loader)):
            yield [_Place(epoch, number)]

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration this epoch."""
        self._loader.set_epoch(epoch)


class Dataset(torch.utils.data.Dataset[Any]):
    """Returns the batches that elements of the batch sampler stand for. Its length is the number of samples, over all
    ranks."""

    def __init__(self, loader: BaseLoader[Any]):
        self._loader = loader

    def __len__(self) -> int:
        return self._loader.samples

    def __getitem__(self, place: Any) -> NoReturn:
        self._loader.__getitem__(place)

    def __getitems__(self, places: list[Any]) -> Any:
        """Returns a batch, given one element of the batch sampler in a list."""
        (place,) = places
        if not isinstance(place, _Place):
            self[place]
        return place.epoch.batch(place.number)


def collate(batch: Any) -> Any:
    """Returns the batch as it is."""
    return batch


def check_worker() -> None:
    """Raises RuntimeError in a worker process of a DataLoader."""
    if torch.utils.data.get_worker_info() is not None:
        raise RuntimeError(
            "dali_zarr: a Loader can't be used in a worker process of a DataLoader: it reads ahead with threads of its own and "
            "needs no workers; iterate over it itself, without a DataLoader around it"
        )
