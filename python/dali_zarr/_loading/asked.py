"""What a loader was asked for. It is looked up in the stores when the loader is made, and again when it is refreshed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from .. import _arguments, _handles
from .._arguments import tables
from . import outputs, parts
from .labels import Labels, check_stores

# Changes arguments in the operator's form, for outputs of these names.
Change = Callable[[dict[str, Any], tuple[str, ...]], dict[str, Any]]


class Asked:
    """The arguments of a loader as its user gave them, with labels and names that only the stores can tell.

    Args:
        path, arguments: As of the loader.
        offsets: The offsets in one list; empty: none were given.
        change: What the loader changes in the arguments that were looked up.
        rank: The rank of a read group, which reads its part; None: it reads the whole.
    """

    def __init__(
        self, path: Any, arguments: Mapping[str, Any], offsets: list[int], change: Change | None = None,
        rank: parts.Rank | None = None,
    ):
        self._given: dict[str, Any] = _handles.translated({"path": path, **arguments})
        self._offsets, self._change, self._rank = offsets, change, rank

    def changed(self, offsets: Any, window: Any) -> Asked:
        """Returns the same with other offsets and another window.

        Raises:
            TypeError, ValueError: The offsets aren't numbers.
        """
        made = copy.copy(self)
        made._given = {**self._given, "window": window}
        if window is None:
            del made._given["window"]
        made._offsets = outputs.offsets_of(offsets)
        return made

    def looked_up(self) -> tuple[dict[str, Any], Labels]:
        """Returns what the stores, as they are now, tell of a plan; and the labels of its samples.

        Raises:
            TypeError, ValueError, IndexError, RuntimeError: As making a loader does.
        """
        found = _arguments.resolved({**self._given, **({"offsets": self._offsets} if self._offsets else {})})
        # The operator counts offsets in elements of the store: a selection with a step has multiplied them.
        told = tuple(found.pop("offsets", ()))
        arrays = _arguments.array_names(found)
        if self._change is not None:
            found = self._change(found, arrays)
        # The current directory may be another one when the loader is refreshed.
        self._given = _arguments.anchored(self._given)
        given = {name: value for name, value in self._given.items() if name != "path"}
        labels = check_stores({**found, "offsets": told}, given)
        found[tables.OPENING] = tables.opening()
        part = None
        if self._rank is not None:
            found, part = parts.divided(found, told, self._rank, labels.axes())
            if not self._rank.gathers:
                labels = Labels({**found, "offsets": told}, labels.selected)
        return {"arguments": found, "told_offsets": told, "arrays": arrays, "parts": part}, labels
