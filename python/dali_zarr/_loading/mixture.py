"""Several loaders as one: their batches in given proportions."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from .._bad_chunks import BadChunk
from .._log import log
from .iteration import Iteration, check_count
from .loader import checked_epoch

Weights: TypeAlias = Mapping[str, float] | Sequence[float]

_VERSION = 1
# A part of the seed, so that the same seed gives a loader and a mixture numbers that don't depend on each other.
_KEY = 0x6D6978


def mix(
    loaders: Mapping[str, Any], *, weights: Weights | None = None, seed: int = 0, batches: int | None = None,
    rank: int | None = None,
) -> Mixture:
    """Several loaders as one: each batch comes from one of them, in proportions that are exact over an epoch.

    ::

        mixture = dali_zarr.mix({"era5": era5, "forecast": forecast}, weights={"era5": 3, "forecast": 1}, batches=1000)
        for batch in mixture:
            loss = step(batch, batch.loader)

    Args:
        loaders: Loaders by name: those of PyTorch or JAX, streams of other programs with ``__iter__``, ``state_dict`` and
            ``load_state_dict``, or mixtures.
        weights: The share of the batches that each gives, relative to the others, by name or in their order. Default: the
            numbers of batches in their epochs.
        seed: Seed of the order in which loaders take turns. It is the same for all ranks.
        batches: Batches in an epoch of the mixture. Default: as many as the loaders' epochs have together.
        rank: None: at each step all ranks take the same loader. Else the rank's number: its loaders take turns in an order of
            its own.

    Raises:
        TypeError, ValueError: Weights aren't numbers of at least 0, one for each loader; or a loader has no length.
    """
    return Mixture(loaders, weights=weights, seed=seed, batches=batches, rank=rank)


class Mixture:
    """An iterable over epochs of batches from several loaders.

    Which loader gives a batch depends only on the seed, the epoch's number and the weights. Each loader is one endless
    sequence: it goes on in the next epoch of the mixture where it was, and begins its own next epoch when one ends.
    ``batch.loader`` is the name of a batch's loader, as far as batches are those of this package; ``name`` is that of the
    last batch.
    """

    def __init__(
        self, loaders: Mapping[str, Any], *, weights: Weights | None = None, seed: int = 0, batches: int | None = None,
        rank: int | None = None,
    ):
        if not _is_mapping(loaders) or not loaders:
            raise TypeError(f"dali_zarr: mix: expected loaders by name, but found {type(loaders).__name__}")
        self._loaders: dict[str, Any] = {str(name): loader for name, loader in loaders.items()}
        self._seed, self._rank = (None if one is None else _whole(name, one) for name, one in (("seed", seed), ("rank", rank)))
        if batches is not None:
            check_count("batches", batches)
        self._batches = batches
        self._weights = None if weights is None else self._checked(weights)
        # The weights of the next epoch, where they were set.
        self._next_weights: tuple[float, ...] | None = None
        # The epoch of the schedule, which begins with ``_steps``; None: none was begun.
        self._schedule: npt.NDArray[np.int64] | None = None
        self._epoch, self._next_epoch = 0, 0
        self._done = 0
        # Whether the next iteration goes on in the epoch, since a state was loaded.
        self._goes_on = False
        self._turn = 0
        self._iterators: dict[str, Iterator[Any]] = {}
        self.name: str | None = None
        if self._weights is None or batches is None:
            self._lengths()

    @property
    def loaders(self) -> Mapping[str, Any]:
        """The loaders by name."""
        return dict(self._loaders)

    @property
    def epoch(self) -> int:
        """The number of the epoch that the last batch came from; before the first batch, of the next epoch."""
        return self._next_epoch if self._schedule is None else self._epoch

    @property
    def weights(self) -> dict[str, float]:
        """The share of each loader's batches in the next epoch; they sum to 1."""
        found = self._of_next()
        return dict(zip(self._loaders, (one / math.fsum(found) for one in found), strict=True))

    def set_weights(self, weights: Weights) -> None:
        """Sets the weights of the next epoch and of those after it. An epoch that was begun keeps its own.

        Raises:
            TypeError, ValueError: They aren't numbers of at least 0, one for each loader.
        """
        self._next_weights = self._checked(weights)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration this epoch of the mixture: the order in which loaders take turns. The loaders go on where
        they are; set their epochs by their own ``set_epoch`` before, where that is wanted."""
        self._next_epoch, self._goes_on = checked_epoch(epoch), False

    def counts(self) -> dict[str, int]:
        """How many batches of the next epoch each loader gives."""
        return dict(zip(self._loaders, _shared(self._of_next(), self._size()).tolist(), strict=True))

    def __len__(self) -> int:
        """Batches in an epoch of the mixture."""
        return self._size() if self._schedule is None else len(self._schedule)

    def __iter__(self) -> Iterator[Any]:
        """Begins the next epoch: the first one after :meth:`load_state_dict` goes on where the state was taken."""
        if not self._goes_on or self._schedule is None or self._done >= len(self._schedule):
            self._weights, self._next_weights = self._of_next(), None
            self._epoch, self._done = self._next_epoch, 0
            self._schedule = self._scheduled(self._epoch, self._weights, self._size())
            log.debug("epoch %d of the mixture has %s", self._epoch, self._schedule.tolist())
        self._next_epoch, self._goes_on = self._epoch + 1, False
        self._turn += 1
        return Iteration(self._steps(self._turn, self._schedule), self.counters)

    def _steps(self, turn: int, schedule: npt.NDArray[np.int64]) -> Iterator[Any]:
        names = list(self._loaders)
        while self._done < len(schedule):
            name = names[int(schedule[self._done])]
            batch = self._taken(name)
            self._done, self.name = self._done + 1, name
            if hasattr(batch, "loader"):
                batch.loader = name
            yield batch
            if turn != self._turn:
                raise RuntimeError("dali_zarr: another iteration over this mixture has begun; only the last one can go on")

    def _taken(self, name: str) -> Any:
        """Returns the next batch of a loader, which begins its next epoch if one has ended."""
        for _ in range(2):
            if name not in self._iterators:
                self._iterators[name] = iter(self._loaders[name])
            try:
                return next(self._iterators[name])
            except StopIteration:
                del self._iterators[name]
        raise ValueError(f"dali_zarr: mix: expected batches of the loader {name!r}, but its epoch has none")

    def _scheduled(self, epoch: int, weights: Sequence[float], size: int) -> npt.NDArray[np.int64]:
        """Returns the number of the loader that gives each batch of an epoch."""
        ordered = np.repeat(np.arange(len(weights), dtype=np.int64), _shared(weights, size))
        key = [_KEY, (self._seed or 0) & (2**64 - 1), epoch, *([] if self._rank is None else [self._rank])]
        return np.random.default_rng(key).permutation(ordered)

    def _of_next(self) -> tuple[float, ...]:
        """Returns the weights of the next epoch."""
        return self._next_weights or self._weights or tuple(map(float, self._lengths()))

    def _size(self) -> int:
        return sum(self._lengths()) if self._batches is None else self._batches

    def _lengths(self) -> list[int]:
        found: list[int] = []
        for name, loader in self._loaders.items():
            try:
                found.append(len(loader))
            except TypeError as error:
                raise ValueError(
                    f"dali_zarr: mix: expected weights and batches, since the loader {name!r} doesn't tell its length"
                ) from error
        return found

    def _checked(self, weights: Any) -> tuple[float, ...]:
        if isinstance(weights, Mapping):
            named = {str(name): one for name, one in cast("Mapping[Any, Any]", weights).items()}
            if named.keys() != self._loaders.keys():
                raise ValueError(
                    f"dali_zarr: mix: weights: expected one for each of the loaders {', '.join(self._loaders)}, but found them for "
                    f"{', '.join(named) or 'none'}"
                )
            listed = [named[name] for name in self._loaders]
        else:
            listed = list(cast("Sequence[Any]", weights)) if isinstance(weights, Sequence | np.ndarray) else [weights]
        if len(listed) != len(self._loaders):
            expected = f"one for each of {len(self._loaders)} loaders"
            raise ValueError(f"dali_zarr: mix: weights: expected {expected}, but found {len(listed)}")
        try:
            found = tuple(float(one) for one in listed)
        except (TypeError, ValueError):
            raise TypeError(f"dali_zarr: mix: weights: expected numbers, but found {listed!r}") from None
        if any(not math.isfinite(one) or one < 0 for one in found) or not math.fsum(found) > 0:
            raise ValueError(f"dali_zarr: mix: weights: expected numbers of at least 0, not all 0, but found {listed!r}")
        return found

    @property
    def bad_chunks(self) -> dict[str, list[BadChunk]]:
        """The bad chunks that each loader has found so far, by its name."""
        return {name: loader.bad_chunks for name, loader in self._loaders.items() if hasattr(loader, "bad_chunks")}

    def counters(self) -> dict[str, Any]:
        """The counters of each loader by its name, as :func:`dali_zarr.counters` returns them."""
        return {name: loader.counters() for name, loader in self._loaders.items() if hasattr(loader, "counters")}

    def state_dict(self) -> dict[str, Any]:
        """Where the mixture is after the batch handed out last, with the states of its loaders: numbers and text."""
        return {
            "mixture": _VERSION, "seed": self._seed, "epoch": self._epoch, "next_epoch": self._next_epoch, "done": self._done,
            "begun": self._schedule is not None, "batches": 0 if self._schedule is None else len(self._schedule),
            "weights": None if self._weights is None else list(self._weights),
            "next_weights": None if self._next_weights is None else list(self._next_weights),
            "loaders": {name: loader.state_dict() for name, loader in self._loaders.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken.

        Raises:
            ValueError: It isn't the state of a mixture of these loaders with this seed, or a loader refuses its own.
        """
        if state.get("mixture") != _VERSION or not isinstance(state.get("loaders"), Mapping):
            keys = sorted(map(str, state))
            raise ValueError(f"dali_zarr: load_state_dict: expected the state of a mixture, but found the keys {keys}")
        for what, own, found in (("seed", self._seed, state["seed"]), ("loaders", list(self._loaders), list(state["loaders"]))):
            if own != found:
                raise ValueError(
                    f"dali_zarr: load_state_dict: expected the state of a mixture with the {what} {own}, but found {found}"
                )
        weights, following = (None if state[name] is None else self._checked(state[name]) for name in ("weights", "next_weights"))
        for name, loader in self._loaders.items():
            loader.load_state_dict(state["loaders"][name])
        self._iterators.clear()
        self._weights, self._next_weights = weights, following
        self._epoch, self._next_epoch, self._done = (int(state[name]) for name in ("epoch", "next_epoch", "done"))
        is_begun = bool(state["begun"]) and weights is not None
        self._schedule = self._scheduled(self._epoch, weights or (), int(state["batches"])) if is_begun else None
        self._goes_on = is_begun and self._done < int(state["batches"])
        self._turn += 1

    def __getstate__(self) -> dict[str, Any]:
        # Copies of the loaders go on where these are, and so does the copy.
        is_within = self._schedule is not None and self._done < len(self._schedule)
        return self.__dict__ | {"_iterators": {}, "_goes_on": is_within}

    def __copy__(self) -> Mixture:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__getstate__() | {"_loaders": {name: copy.copy(one) for name, one in self._loaders.items()}})
        return made

    def __repr__(self) -> str:
        shares = ", ".join(f"{share:.3g} {name}" for name, share in self.weights.items())
        return f"<Mixture of {shares}: {len(self)} batches, epoch {self.epoch}>"


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _whole(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"dali_zarr: mix: {name}: expected an integer, but found {value!r}")
    if not 0 <= number < 2**63:
        raise ValueError(f"dali_zarr: mix: {name}: expected a number of at least 0, but found {value}")
    return number


def _shared(weights: Sequence[float], size: int) -> npt.NDArray[np.int64]:
    """Divides a number of batches in proportion: each share is rounded down, and those with the largest remainders get one
    more. Of equal remainders the first gets it."""
    exact = np.array(weights, np.float64) / math.fsum(weights) * size
    found = np.floor(exact + 1e-9).astype(np.int64)
    missing = size - int(found.sum())
    # Rounded, so that remainders that differ only by the arithmetic are equal.
    order = np.argsort(-np.round(exact - found, 9), kind="stable")
    found[order[:missing]] += 1
    return found
