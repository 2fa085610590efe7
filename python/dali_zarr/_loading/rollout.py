"""Offsets and windows that change from one epoch to the next, as a rollout that grows during training.

The reader is opened anew for them, with the samples of the same opening: stores that have grown meanwhile give no new ones.
What `cache_dir` holds stays. The operating system's page cache does too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from .asked import Asked
from .labels import Labels
from .reading import Plan

_CURRENT, _FOLLOWING = "samples", "next_samples"


@dataclass(frozen=True)
class Samples:
    """The offsets and the window of a loader, as plain numbers, lists and dictionaries."""

    offsets: Any
    window: Any

    @classmethod
    def of(cls, offsets: Any, window: Any) -> Samples:
        """Makes it of what users give."""
        return cls(_plain(offsets), _plain(window))


class Rollouts:
    """A loader whose offsets and windows may change. A class that is one has the methods without
    implementations."""

    _asked: Asked
    _labels: Labels

    def _begin_rollouts(self, asked: Asked, offsets: Any, window: Any) -> None:
        self._asked = asked
        self._first_samples = self._own_samples = Samples.of(offsets, window)
        # Those of the next epoch, where others were set.
        self._next_samples: Samples | None = None

    def _reopen(self, found: dict[str, Any], labels: Labels) -> None:
        """Opens the store anew with what was looked up in it."""
        raise NotImplementedError

    def _read(self) -> Plan:
        """Returns what is read."""
        raise NotImplementedError

    def _is_within_epoch(self) -> bool:
        """Whether batches of an epoch were handed out, and others are left."""
        raise NotImplementedError

    def _goes_on(self) -> bool:
        """Whether the next iteration goes on within an epoch, since a state was loaded."""
        raise NotImplementedError

    def set_offsets(self, offsets: Any) -> None:
        """Sets the offsets of the next epoch, as a rollout that grows: ``{"input": 0, "target": [6, 12]}``. An epoch that was
        begun keeps its own; after a break in it, the next iteration has the new ones. States hold them.

        The reader is opened anew. What ``cache_dir`` holds is kept, and what ``cache_size`` holds isn't. In a mixture the
        next epoch is the loader's own.

        Raises:
            TypeError, ValueError, IndexError: As making the loader with them does. Then it keeps its own.
        """
        self._set(replace(self._next_samples or self._own_samples, offsets=_plain(offsets)))

    def set_window(self, window: Any) -> None:
        """Sets the window of the next epoch, as :meth:`set_offsets` does the offsets. None: the default."""
        self._set(replace(self._next_samples or self._own_samples, window=_plain(window)))

    def _set(self, samples: Samples) -> None:
        if samples == self._own_samples:
            self._next_samples = None
        elif self._is_within_epoch():
            # Refused now, and not when the epoch begins.
            found, _ = self._asked.changed(samples.offsets, samples.window).looked_up()
            replace(self._read(), **found, offsets=samples.offsets).explained()
            self._next_samples = samples
        else:
            self._change(samples)

    def _begin_epoch(self) -> None:
        """Takes what was set, if an epoch begins now."""
        if self._next_samples is not None and not self._goes_on():
            self._change(self._next_samples)

    def _change(self, samples: Samples) -> None:
        asked = self._asked.changed(samples.offsets, samples.window)
        found, labels = asked.looked_up()
        self._reopen({**found, "offsets": samples.offsets}, labels)
        self._asked, self._labels, self._own_samples, self._next_samples = asked, labels, samples, None

    def _rollout_state(self) -> dict[str, Any]:
        """Returns the part of the state that says which offsets and windows there are, where they aren't the first ones."""
        changed = self._own_samples if self._own_samples != self._first_samples else None
        told = {_CURRENT: changed, _FOLLOWING: self._next_samples}
        return {name: {"offsets": one.offsets, "window": one.window} for name, one in told.items() if one is not None}

    def _load_rollout(self, state: Mapping[str, Any]) -> None:
        """Takes the offsets and windows of a state."""
        current, following = (_of_state(state.get(name)) for name in (_CURRENT, _FOLLOWING))
        current = current or self._first_samples
        if current != self._own_samples:
            self._change(current)
        self._next_samples = following


def _of_state(told: Any) -> Samples | None:
    if not isinstance(told, Mapping):
        return None
    found = cast("Mapping[str, Any]", told)
    return Samples.of(found.get("offsets"), found.get("window"))


def _plain(value: Any) -> Any:
    """Returns numbers, lists and dictionaries without NumPy's types."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in cast("Mapping[Any, Any]", value).items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(one) for one in cast("list[Any]", value)] if isinstance(value, list | tuple | range) else value
