"""The record of what a rechunking has done. It is kept in the target until the target is finished: after a kill at any
moment the next run goes on.

Objects below ``.rechunk``: ``plan.json``, written before all others and removed last; ``done/N.json``, each with the
regions that were written since the one before; and intermediate arrays, in ``intermediate`` or ``scratch``. If the
record of a region was lost, the region is written again, with the same bytes.
"""

from __future__ import annotations

import json
import time
from typing import Any

from .._selection.stores import needed

FOLDER = ".rechunk"
# Folders of intermediate arrays: zarr-python's, and plain files.
BETWEEN = (f"{FOLDER}/intermediate", f"{FOLDER}/scratch")
_PLAN = f"{FOLDER}/plan.json"
_SECONDS = 1.0


class State:
    """The record of one target. ``done``: the numbers of the regions that were written, by copy."""

    def __init__(self, store: Any):
        self._store = store
        self._sync: Any = needed("zarr.core.sync", "rechunk").sync
        self._buffer: Any = needed("zarr.core.buffer", "rechunk")
        self._new: dict[str, list[int]] = {}
        self._records, self._last = 0, time.monotonic()
        self.done: dict[str, set[int]] = {}

    def plan(self) -> dict[str, Any] | None:
        """Returns the plan of the interrupted run, and fills ``done`` with what it has done; None where there was none.

        Raises:
            RuntimeError: The record is damaged.
        """
        plan = self._get(_PLAN)
        if plan is None:
            return None
        for key in self._sync(_listed(self._store, f"{FOLDER}/done/")):
            self._records = max(self._records, int(key.rpartition("/")[2].removesuffix(".json")) + 1)
            for name, numbers in (self._get(key) or {}).items():
                self.done.setdefault(name, set()).update(numbers)
        return plan

    def begin(self, plan: dict[str, Any]) -> None:
        """Writes the plan. Call it before anything else is written."""
        self._set(_PLAN, plan)

    def add(self, copy: str, number: int) -> None:
        """Notes that a region was written. About once a second, the notes are written to the store."""
        self.done.setdefault(copy, set()).add(number)
        self._new.setdefault(copy, []).append(number)
        if time.monotonic() - self._last > _SECONDS:
            self.keep()

    def keep(self) -> None:
        """Writes what was noted."""
        if self._new:
            self._set(f"{FOLDER}/done/{self._records}.json", self._new)
            self._records += 1
        self._new, self._last = {}, time.monotonic()

    def finish(self, plan: dict[str, Any]) -> None:
        """Removes all that isn't part of the target, the plan last. Until then the plan says that nothing is left to
        do."""
        self._set(_PLAN, plan | {"finished": True})
        for folder in (f"{FOLDER}/done", *BETWEEN):
            self.remove(folder)
        self._sync(self._store.delete(_PLAN))
        self.remove(FOLDER)

    def remove(self, folder: str) -> None:
        """Removes a folder."""
        self._sync(self._store.delete_dir(folder))

    def _get(self, key: str) -> dict[str, Any] | None:
        found = self._sync(self._store.get(key, prototype=self._buffer.default_buffer_prototype()))
        if found is None:
            return None
        try:
            return json.loads(found.to_bytes())
        except ValueError as error:
            raise RuntimeError(f"{self._store}: {key}: expected JSON, but found {error}; remove the target") from error

    def _set(self, key: str, value: Any) -> None:
        self._sync(self._store.set(key, self._buffer.default_buffer_prototype().buffer.from_bytes(json.dumps(value).encode())))


async def _listed(store: Any, prefix: str) -> list[str]:
    return [key async for key in store.list_prefix(prefix) if key.endswith(".json")]
