"""The samples of a store by number, for PyTorch. Users know :class:`Dataset` from :mod:`dali_zarr.torch`."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
import torch.utils.data

from . import _arguments
from ._arguments.types import Integers, LoaderArguments, Paths
from ._batch import Batch
from ._loading import samplers
from ._loading.loader import BaseLoader, checked_epoch
from ._loading.reading import Transform
from ._reader import describe
from .torch import Loader


class _LoaderOfDataset(Loader):
    """A loader that reads one sample at a time."""

    _is_of_dataset = True

    def _check_process(self) -> None:
        # A worker process may have one of its own.
        BaseLoader._check_process(self)

    def of_this_process(self) -> _LoaderOfDataset:
        """Returns a copy, which opens the store in this process."""
        arguments = {name: value for name, value in self._plan.arguments.items() if name != _arguments.tables.OPENING}
        made = type(self).__new__(type(self))
        made.__setstate__(self._portable(replace(self._plan, arguments=arguments)))
        return made

    def is_on_host(self) -> bool:
        """Returns whether samples are delivered to the CPU."""
        return self._is_host

    def read(self, numbers: samplers.Numbers, epoch: int) -> list[dict[str, Any]]:
        """Returns the samples with these numbers. All are read at the same time, as far as the reader prepares."""
        reading = self._reading
        found: list[dict[str, Any]] = []
        pushed = 0
        try:
            while len(found) < len(numbers):
                while pushed < len(numbers) and reading.push(numbers[pushed : pushed + 1], epoch, None):
                    pushed += 1
                found.append(reading.next(lambda outputs: _only(self._taken(outputs, 1, 1))))
        except BaseException:
            # What was pushed and not taken goes with the pipeline.
            reading.close()
            raise
        return found

    def numbers(self, given: Any) -> samplers.Numbers:
        """Returns the numbers of samples, which may be given by their rows in the index.

        Raises:
            IndexError: There is no such sample.
        """
        told = samplers.to_numbers(given, "dataset")
        if told.ndim == 1:
            for number in told:
                if not 0 <= number < self.samples_told:
                    raise IndexError(f"dali_zarr: dataset: expected a number from 0 to {self.samples_told - 1}, but found {number}")
        return self._reading.numbers(told)


def _only(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the only sample of a batch."""
    return {name: _only(value) if isinstance(value, Batch) else value[0] for name, value in batch.items()}


class Dataset(torch.utils.data.Dataset[dict[str, Any]]):
    """The samples of a Zarr store by number, for torch's DataLoader and for all that takes a map-style data set.

    ``dataset[i]`` is a dictionary of tensors by name, without a dimension of samples; if ``offsets`` is a dictionary, its values
    are dictionaries too. A DataLoader without workers asks for the samples of a batch together (``__getitems__``), and they are
    read together. Nothing is read ahead of that: where batches are consumed in turn, :class:`Loader` with ``sampler`` is faster.

    Each process opens the store when it first needs a sample. In worker processes, samples are delivered to the CPU:
    give ``device="cpu"``.
    """

    def __init__(
        self,
        path: Paths | None = None,
        *,
        device: str | torch.device | None = None,
        offsets: Integers | Mapping[str, int | Sequence[int]] | None = None,
        transform: Transform | None = None,
        num_threads: int = 2,
        return_index: bool = False,
        read_group: Any = None,
        read_dim: str | None = None,
        **arguments: Unpack[LoaderArguments],
    ):
        """Looks at the store; samples are read later.

        Args:
            path, device, offsets, transform, num_threads, return_index, read_dim, arguments: As of :class:`Loader`. Those of the
                order aren't accepted, except ``seed``. Random windows (``random_crop``) depend on the seed, the epoch of
                :meth:`set_epoch` and the sample.
            read_group: A group of processes, each of which reads its part of samples, as with ``gather=False`` of the loader.
                Nothing is gathered.

        Raises:
            TypeError, ValueError, IndexError: As making a loader does.
        """
        self._loader = _LoaderOfDataset(
            path, device=device, offsets=offsets, transform=transform, num_threads=num_threads, return_index=return_index,
            read_group=read_group, read_dim=read_dim, **arguments,
        )
        self._epoch = 0
        self._forget()

    def _forget(self) -> None:
        # The loader of this process, and the process; and what is held while it reads.
        self._own: _LoaderOfDataset | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"_loader": self._loader, "_epoch": self._epoch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __len__(self) -> int:
        """The number of samples."""
        return self._loader.samples_told

    def set_epoch(self, epoch: int) -> None:
        """Draws random windows anew, for this epoch."""
        self._epoch = checked_epoch(epoch)

    def __getitem__(self, sample: Any) -> dict[str, Any]:
        """Returns a sample: by its number, negative from the end, or by its row of ``return_index``.

        Raises:
            IndexError: There is no such sample.
            RuntimeError: A chunk can't be read or decoded.
        """
        try:
            number = operator.index(sample)
        except TypeError:
            number = sample
        else:
            number = number + len(self) if -len(self) <= number < 0 else number
        return self.__getitems__([number])[0]

    def __getitems__(self, samples: Iterable[Any]) -> list[dict[str, Any]]:
        """Returns several samples, which are read together."""
        if self._pid != os.getpid():
            # A forked process, in which the loader has no threads.
            self._forget()
        with self._lock:
            own = self._own = self._own or self._loader.of_this_process()
            if not own.is_on_host() and torch.utils.data.get_worker_info() is not None:
                raise RuntimeError(
                    "dali_zarr: a Dataset delivers samples to a GPU only without worker processes: give device='cpu', or "
                    "num_workers=0"
                )
            return own.read(own.numbers(samples), self._epoch)


describe(Dataset.__init__, LoaderArguments)
Dataset.__module__ = "dali_zarr.torch"
