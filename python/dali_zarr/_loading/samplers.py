"""The caller's order: draws batches of samples from a sampler, as torch's DataLoader does."""

from __future__ import annotations

import collections
import copy
import itertools
import math
import operator
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from .epochs import check_last_batch
from .iteration import check_count

Numbers = npt.NDArray[np.int64]

# Types of whole numbers, any of which may be a sample.
_PLAIN = frozenset({int, np.int64, np.int32})
# Numbers of samples are smaller. Those from here on are the engine's own, of samples that start outside of the region.
_NUMBERS = 1 << 62


def to_numbers(samples: Any, what: str) -> Numbers:
    """Returns samples as an array of int64: their numbers (sample,), or their rows in the index (sample, column).

    Raises:
        TypeError: They aren't whole numbers.
        ValueError: Rows differ in length.
        IndexError: A number doesn't fit in 64 bits.
    """
    samples = _on_host(samples)
    if hasattr(samples, "__array__"):
        found = np.asarray(samples)
    elif not isinstance(samples, Iterable):
        raise TypeError(f"dali_zarr: {what}: expected a list of samples, but found {samples!r}")
    else:
        listed = list(cast("Iterable[Any]", samples))
        if not set(map(type, listed)) <= {int}:
            # NumPy and PyTorch have numbers of their own, which are read one by one.
            listed = [_number(one, what) for one in listed]
        try:
            found = np.asarray(listed) if listed else np.empty(0, np.int64)
        except ValueError as error:
            raise ValueError(f"dali_zarr: {what}: expected a number, or a row of equally many, for each sample") from error
    if found.dtype == object and all(isinstance(one, int) for one in found.flat):
        raise IndexError(f"dali_zarr: {what}: expected numbers of samples, but found one that 64 bits don't hold")
    if found.dtype.kind not in "iu" or found.ndim not in (1, 2):
        shown = repr(cast(Any, samples))
        raise TypeError(
            f"dali_zarr: {what}: expected whole numbers of samples, or a row of return_index for each, but found "
            f"{shown if len(shown) < 100 else shown[:97] + '...'}"
        )
    most = _NUMBERS - 1 if found.ndim == 1 else np.iinfo(np.int64).max
    if found.size and found.max() > most:
        raise IndexError(f"dali_zarr: {what}: expected numbers of samples, but found {found.max()}")
    return np.ascontiguousarray(found, np.int64)


def packed(samples: list[Any]) -> bytes | None:
    """Returns numbers of samples as a row of int64; None where :func:`to_numbers` must look at each. NumPy takes twice as long for
    a few."""
    if not set(map(type, samples)) <= _PLAIN or max(samples, default=0) >= _NUMBERS:
        return None
    try:
        return struct.pack(f"{len(samples)}q", *samples)
    except struct.error:
        return None


def _number(one: Any, what: str) -> Any:
    if isinstance(one, str | bytes | bool | np.bool_) or one is None:
        raise TypeError(f"dali_zarr: {what}: expected whole numbers of samples, but found {one!r}")
    try:
        return operator.index(one)
    except TypeError:
        return np.asarray(_on_host(one))


def _on_host(samples: Any) -> Any:
    """Returns tensors of a GPU as they are in host memory."""
    return samples.cpu() if callable(getattr(samples, "cpu", None)) else samples


class Drawn(NamedTuple):
    """A batch that was drawn."""

    # The numbers of its samples, a row of int64; or their rows in the index (sample, column), which are still to be found.
    samples: bytes | Numbers
    # How many samples it has; those from ``own`` on repeat others.
    size: int
    own: int
    # How many samples were drawn for it, over all devices, and how many of them before this device's.
    drawn: int
    first: int
    # The sampler's state after it; None where the sampler has none.
    state: Any


class Place(NamedTuple):
    """A place in the order: how much of an epoch was handed out."""

    epoch: int = 0
    batches: int = 0
    samples: int = 0
    # Whether the epoch has no more batches. None: it has not begun.
    is_ended: bool | None = None
    # Whether the epoch was set, and the sampler was told.
    is_set: bool = False
    # The sampler's state, or None.
    state: Any = None
    # How many ranks share the sampler's samples, where it tells.
    replicas: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the place as part of a loader's state."""
        return self._asdict()

    @classmethod
    def of_dict(cls, found: Any) -> Place:
        """Reads a place from a loader's state.

        Raises:
            ValueError: It is none.
        """
        try:
            return cls(**cast("Mapping[str, Any]", found))
        except TypeError as error:
            raise ValueError("dali_zarr: load_state_dict: expected the state of a loader with a sampler") from error


class Draws:
    """One iteration over a sampler."""

    def __init__(self, source: Source, batches: Iterator[Any], stateful: Any):
        self._source, self._batches, self._stateful = source, batches, stateful
        # What follows the batches that were drawn: an error, the end, or more.
        self._error: Exception | None = None
        self._is_over = False

    def next(self, most: int) -> list[Drawn]:
        """Draws the next batches: ``most`` of them, or fewer if the end or an error follows. Without a batch it is the end.

        Raises:
            Exception: What the sampler raises at the next batch.
            TypeError, ValueError, IndexError: What it gives there are no samples, or there are too many.
        """
        found: list[Drawn] = []
        try:
            if self._error is None and not self._is_over:
                if self._source.draws_batches or self._stateful is not None:
                    self._draw_each(most, found)
                else:
                    self._draw_together(most, found)
        except Exception as error:  # noqa: BLE001  (raised after the batches before it)
            self._error = error
        if self._error is not None and not found:
            raise self._error
        return found

    def _draw_each(self, most: int, found: list[Drawn]) -> None:
        """Draws batches one by one, with the sampler's state after each, and adds them to ``found``."""
        source = self._source
        for _ in range(most):
            if source.draws_batches:
                batch = next(self._batches, None)
            else:
                batch = list(itertools.islice(self._batches, source.batch_size))
                batch = batch if len(batch) >= source.least() else None
            if batch is None:
                self._is_over = True
                return
            found.append(source.drawn(batch, None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())))

    def _draw_together(self, most: int, found: list[Drawn]) -> None:
        """Draws the samples of several batches, and adds these to ``found``. It takes less time than to draw each."""
        source, size = self._source, self._source.batch_size
        # A list keeps what was added before an error.
        samples: list[Any] = []
        try:
            samples.extend(itertools.islice(self._batches, most * size))
            self._is_over, least = len(samples) < most * size, source.least()
        except Exception as error:  # noqa: BLE001  (raised after the batches before it)
            self._error, least = error, size
        row, last = packed(samples), 0
        if row is not None:
            last = len(samples) // size * size
            found += [Drawn(row[8 * i : 8 * (i + size)], size, size, size, 0, None) for i in range(0, last, size)]
        for i in range(last, len(samples) - least + 1, size):
            found.append(source.drawn(samples[i : i + size], None))


class Source:
    """A sampler, or a batch sampler, as torch's DataLoader takes them.

    Args:
        sampler: An iterable of samples; None: there is a batch sampler.
        batch_sampler: An iterable of batches, each an iterable of samples.
        batch_size: Samples in a batch; the most there are, with a batch sampler.
        drop_last: Whether a last batch with fewer samples is left out.
        pads: Whether batches with fewer samples are filled up.

    Raises:
        TypeError: It isn't iterable.
    """

    def __init__(self, sampler: Any, batch_sampler: Any, batch_size: int, drop_last: bool = False, pads: bool = False):
        self.draws_batches = sampler is None
        self.name = "batch_sampler" if self.draws_batches else "sampler"
        self._sampler: Any = batch_sampler if self.draws_batches else sampler
        self.batch_size, self.drop_last, self.pads = batch_size, drop_last, pads
        if not isinstance(self._sampler, Iterable) and not hasattr(self._sampler, "__getitem__"):
            raise TypeError(
                f"dali_zarr: {self.name}: expected an iterable of {'batches' if self.draws_batches else 'numbers of samples'}, but "
                f"found {self._sampler!r}"
            )

    def least(self) -> int:
        """Returns how many samples the last batch must have to be given."""
        return self.batch_size if self.drop_last else 1

    def drawn(self, batch: Any, state: Any) -> Drawn:
        """Returns a batch of these samples, after which the sampler has this state.

        Raises:
            TypeError, ValueError, IndexError: They are no samples, there are none, or too many.
        """
        size = self.batch_size
        if type(batch) is list and len(cast("list[Any]", batch)) == size and (row := packed(cast("list[Any]", batch))) is not None:
            return Drawn(row, size, size, size, 0, state)
        samples = to_numbers(batch, self.name)
        own = len(samples)
        if not 1 <= own <= size:
            raise ValueError(
                f"dali_zarr: {self.name}: expected batches of 1 to {size} samples, but found one of {own}; batch_size is the size "
                "of the largest"
            )
        if self.pads and own < size:
            samples = np.concatenate([samples, np.repeat(samples[-1:], size - own, axis=0)])
        return Drawn(samples.tobytes() if samples.ndim == 1 else samples, len(samples), own, own, 0, state)

    def length(self) -> int:
        """Returns the number of batches in an epoch.

        Raises:
            TypeError: The sampler doesn't tell its length.
        """
        try:
            samples = len(self._sampler)
        except TypeError:
            raise TypeError(f"dali_zarr: len: the {self.name} doesn't tell how many {self._kind()} it gives") from None
        if self.draws_batches:
            return samples
        return samples // self.batch_size if self.drop_last else math.ceil(samples / self.batch_size)

    def samples(self) -> int | None:
        """Returns the number of samples in an epoch; None where that isn't known."""
        return len(self._sampler) if not self.draws_batches and hasattr(self._sampler, "__len__") else None

    def _kind(self) -> str:
        return "batches" if self.draws_batches else "samples"

    def _replicas(self) -> int | None:
        """Returns how many ranks share the samples, as torch's DistributedSampler tells it."""
        found = getattr(self._inner(), "num_replicas", None)
        return found if isinstance(found, int) else None

    def _inner(self) -> Any:
        """Returns the sampler of a batch sampler, where it has one; else the sampler itself."""
        return getattr(self._sampler, "sampler", self._sampler) if self.draws_batches else self._sampler

    def _set_epoch(self, epoch: int) -> None:
        """Tells the sampler the epoch, if it wants to know."""
        for one in (self._sampler, self._inner()):
            if callable(getattr(one, "set_epoch", None)):
                one.set_epoch(epoch)
                return

    def begin(self, place: Place) -> tuple[Place, Draws]:
        """Begins an iteration at a place. Returns the place as it now is, and what draws the batches from there on. A sampler
        with a state goes on from that of the place. Others are drawn again up to the place.

        Raises:
            ValueError: The place can't be found with another number of ranks.
            Exception: What the sampler raises.
        """
        if place.is_set:
            self._set_epoch(place.epoch)
        replicas = self._replicas()
        skipped = place.batches if self.draws_batches else place.samples
        if place.replicas is not None and replicas is not None and replicas != place.replicas:
            everyones = skipped * place.replicas
            if everyones % replicas or place.state is not None or self.draws_batches:
                raise ValueError(
                    f"dali_zarr: load_state_dict: the state was taken with {place.replicas} ranks after {skipped} {self._kind()} "
                    f"of each, where {replicas} ranks can't go on; go on with as many ranks, or from the state of a whole epoch"
                )
            skipped = everyones // replicas
        batches: Any = iter(self._sampler)
        # If the iterator has a state, that counts; else the sampler's.
        if place.state is None:
            collections.deque[Any](itertools.islice(cast("Iterator[Any]", batches), skipped), maxlen=0)
        elif _is_stateful(batches):
            batches.load_state_dict(copy.deepcopy(place.state))
        elif _is_stateful(self._sampler):
            self._sampler.load_state_dict(copy.deepcopy(place.state))
            batches = iter(self._sampler)
        else:
            raise ValueError(f"dali_zarr: load_state_dict: expected a {self.name} with load_state_dict, as the one of the state")
        stateful = next((one for one in (batches, self._sampler) if _is_stateful(one)), None)
        return place._replace(is_ended=False, replicas=replicas), Draws(self, batches, stateful)


def asked(sampler: Any, batch_sampler: Any, batch_size: Any, drop_last: Any, pad_last_batch: Any) -> Source | None:
    """Returns the source that a loader is asked for; None where the order is the reader's own. The size of batches is given,
    or that of the batch sampler, or 1.

    Raises:
        ValueError: Arguments contradict each other, or the batch sampler doesn't tell the size of its largest batch.
        TypeError: A sampler isn't iterable.
    """
    if sampler is None and batch_sampler is None:
        return None
    if sampler is not None and batch_sampler is not None:
        raise ValueError("dali_zarr: expected sampler or batch_sampler, but found both")
    check_last_batch(drop_last, pad_last_batch)
    if batch_sampler is None:
        size = 1 if batch_size is None else batch_size
        check_count("batch_size", size)
        return Source(sampler, None, operator.index(size), bool(drop_last), bool(pad_last_batch))
    size = getattr(batch_sampler, "batch_size", None) if batch_size is None else batch_size
    if size is None:
        raise ValueError(
            "dali_zarr: batch_size: expected the size of the largest batch, since the batch_sampler has no batch_size that tells it"
        )
    check_count("batch_size", size)
    if drop_last:
        raise ValueError("dali_zarr: drop_last: expected none with batch_sampler, which says what its last batch is")
    return Source(None, batch_sampler, operator.index(size), pads=bool(pad_last_batch))


def check_ranks(**arguments: Any) -> None:
    """Raises ValueError if arguments divide samples among ranks that a sampler gives to this rank alone."""
    for name, value in arguments.items():
        if value is not None and (name, value) != ("uneven", "repeat"):
            raise ValueError(
                f"dali_zarr: {name}: expected none with a sampler, which gives the samples of this rank alone; leave it out"
            )


def _is_stateful(one: Any) -> bool:
    """Returns whether it has a state, in the protocol of torchdata's StatefulDataLoader."""
    return callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None))
