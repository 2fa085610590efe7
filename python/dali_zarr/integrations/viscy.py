# VisCy isn't installed where this is checked, and the checker takes this module for it.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUntypedBaseClass=false, reportGeneralTypeIssues=false
"""VisCy's ``HCSDataModule``, whose windows of plates are read by this package.

VisCy keeps what it decides: which positions are for training, which windows there are, channels, normalisation, augmentations, and
the order. Only the values of windows come from the reader, which reads and decodes the next batches ahead.
"""

from __future__ import annotations

import bisect
import copy
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from itertools import tee
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from .._arguments.types import ResourceArguments
from ..torch import Loader

try:
    from viscy.data.hcs import HCSDataModule as TheirModule
except ImportError:
    # The same module, since VisCy is several packages.
    from viscy_data.hcs import HCSDataModule as TheirModule

Window: TypeAlias = tuple[int, int, int]
"""The number of a position, a time, and the first slice."""


class _Orthogonal:
    """``oindex`` of an image: windows that were read ahead are there already, and iohub reads all others."""

    def __init__(self, image: Any, position: int, channels: list[int], ahead: dict[Window, Any]):
        self._image, self._position, self._channels, self._ahead = image, position, channels, ahead

    def __getitem__(self, asked: Any) -> Any:
        match asked:
            case (slice(start=time, stop=end, step=None), list(channels), slice(start=first, stop=last, step=None)):
                window: Any = (self._position, time, first)
                values = self._ahead.get(window)
                if values is not None and end == time + 1 and channels == self._channels and last == first + len(values[0]):
                    return values.numpy()[None]
            case _:
                pass
        return self._image.oindex[asked]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._image.oindex, name)


class _Image:
    """In the place of an image of iohub."""

    def __init__(self, image: Any, position: int, channels: list[int], ahead: dict[Window, Any]):
        self._image, self.oindex = image, _Orthogonal(image, position, channels, ahead)

    def __getitem__(self, asked: Any) -> Any:
        return self._image[asked]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._image, name)


class _Order:
    """The batch sampler of a reader. It doesn't hold the reader, which would then wait for Python's search for cycles."""

    def __init__(self, ends: list[int], places: list[int]):
        self.asked: Iterator[list[int]] = iter(())
        self._ends, self._places = ends, places

    def __iter__(self) -> Iterator[list[Window]]:
        """Yields the windows of each batch."""
        for numbers in self.asked:
            yield [self.window(int(number)) for number in numbers]

    def window(self, number: int) -> Window:
        position = bisect.bisect_right(self._ends, number)
        time, first = divmod(number - (self._ends[position - 1] if position else 0), self._places[position])
        return position, time, first


class _Images:
    """The images of a data set, or its masks: in each batch its windows of all samples."""

    def __init__(self, dataset: Any, key: str, images: list[Any], channels: list[int], resources: dict[str, Any]):
        size = dataset.z_window_size
        self._order = _Order(dataset.window_keys, [image.shape[2] - size + 1 for image in images])
        self._arguments: dict[str, Any] = {
            "path": [position.zgroup for position in dataset.positions], "concat": "samples", "arrays": {"image": key},
            "dims": [0, 2], "window": [0, size], "step": [1, 1], "pick": {1: channels}, "device": "cpu", **resources,
        }
        self._reader: Loader | None = None
        self._windows: dict[Window, Any] = {}
        self.images = [_Image(image, i, channels, self._windows) for i, image in enumerate(images)]

    def begin(self, asked: Iterator[list[int]], batch_size: int) -> Iterator[None]:
        """Begins an epoch, whose batches come with each step."""
        self._order.asked, own = tee(asked)
        if self._reader is None:
            self._reader = Loader(**self._arguments, batch_sampler=self._order, batch_size=batch_size)
        for numbers, batch in zip(own, self._reader, strict=True):
            self._windows.clear()
            for number, values in zip(numbers, batch["image"], strict=True):
                self._windows[self._order.window(int(number))] = values
            yield
        self._windows.clear()


def _read(dataset: Any, resources: dict[str, Any]) -> list[_Images]:
    """Puts images that are read ahead in the place of a data set's images, and of its masks of the foreground."""
    if not dataset.positions:
        raise ValueError("dali_zarr: viscy: expected positions, but the data set has none")
    numbers: list[Any] = [*dataset.source_ch_idx, *(dataset.target_ch_idx or [])]
    channels = [int(number) for number in numbers]
    read = [_Images(dataset, str(dataset.array_key), dataset.window_arrays, channels, resources)]
    dataset.window_arrays = read[0].images
    masks: Any = getattr(dataset, "fg_mask_support", None)
    if masks is not None and all(one == masks._mask_ch_indices[0] for one in masks._mask_ch_indices):
        masks = copy.copy(masks)
        read.append(_Images(dataset, masks.fg_mask_key, masks._mask_arrays, list(masks._mask_ch_indices[0]), resources))
        masks._mask_arrays, dataset.fg_mask_support = read[1].images, masks
    return read


@contextmanager
def _threads(count: int) -> Generator[None]:
    """Gives PyTorch so many threads, as a DataLoader gives one to each of its workers: some sums depend on it, and on busy cores
    one is faster for transforms."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class BatchLoader(DataLoader[Any]):
    """In the place of the ``DataLoader`` of a ``SlidingWindowDataset``: its batches, in the order of its sampler."""

    # Lightning makes it anew for several ranks, with a sampler of its own. So it has a DataLoader's arguments, and nothing more.
    _has_begun = False

    @classmethod
    def of(cls, loader: DataLoader[Any], **resources: Any) -> BatchLoader:
        """Makes the loader from VisCy's own one.

        Args:
            loader: VisCy's loader. Its worker processes aren't started: samples are made by the thread that iterates.
            resources: The reader's arguments of memory, threads and caches.

        Raises:
            ValueError: The data set has no positions, or the size of batches isn't known.
        """
        sampler: Any = loader.batch_sampler
        if not isinstance(getattr(sampler, "batch_size", None), int):
            raise ValueError("dali_zarr: viscy: loader: expected a batch_size, or a batch_sampler with one, but found neither")
        order = ("batch_sampler",) if loader.batch_size is None else ("batch_size", "sampler", "drop_last")
        dataset: Any = copy.copy(loader.dataset)
        dataset.read = _read(dataset, resources)
        names = (*order, "collate_fn", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "generator")
        return cls(dataset, **{name: getattr(loader, name) for name in names})

    def __iter__(self) -> Any:
        """Begins an epoch. What a DataLoader draws then is drawn now, so that the sampler and the model draw the same numbers."""
        own: Any = self
        asked = iter(own.batch_sampler)
        if not (self.persistent_workers and self.num_workers and self._has_begun):
            torch.empty((), dtype=torch.int64).random_(generator=own.generator)
        if self.num_workers:
            # Workers are sent their first batches at once, for which the sampler draws.
            asked, begun = tee(asked)
            next(begun, None)
        self._has_begun = True
        return self._batches(asked)

    def _batches(self, sampled: Iterator[list[int]]) -> Iterator[Any]:
        own: Any = self
        dataset: Any = self.dataset
        read: list[_Images] = dataset.read
        asked, *others = tee(sampled, 1 + len(read))
        epochs = [one.begin(other, own.batch_sampler.batch_size) for one, other in zip(read, others, strict=True)]
        for numbers in asked:
            for epoch in epochs:
                next(epoch)
            with _threads(1) if self.num_workers else nullcontext():
                batch = self.collate_fn([dataset[number] for number in numbers])
            yield pin_memory(batch) if self.pin_memory and torch.cuda.is_available() else batch
        for epoch in epochs:
            next(epoch, None)


class HCSDataModule(TheirModule):
    """In the place of VisCy's ``HCSDataModule``, with its arguments.

    No processes are started. ``num_workers`` decides how many of PyTorch's threads transforms have: one, as in a worker, or with 0
    all. With ``persistent_workers`` it decides which seeds are drawn, as in a DataLoader. Random transforms draw as with 0 workers,
    where each of VisCy's workers has a state of its own. ``prefetch_factor`` changes nothing. The reader's arguments of memory,
    threads and caches may be given too.
    """

    def __init__(self, *args: Any, **arguments: Any):
        self._resources: Any = {name: arguments.pop(name) for name in list(arguments) if name in ResourceArguments.__annotations__}
        super().__init__(*args, **arguments)

    def train_dataloader(self) -> Any:
        """Returns the loader of training."""
        return self._read(super().train_dataloader())

    def val_dataloader(self) -> Any:
        """Returns the loader of validation."""
        return self._read(super().val_dataloader())

    def test_dataloader(self) -> Any:
        """Returns the loader of test."""
        return self._read(super().test_dataloader())

    def predict_dataloader(self) -> Any:
        """Returns the loader of prediction."""
        return self._read(super().predict_dataloader())

    def _read(self, loader: Any) -> Any:
        is_in_memory = getattr(loader.dataset, "_preloaded", None) is not None
        return loader if is_in_memory else BatchLoader.of(loader, **self._resources)
