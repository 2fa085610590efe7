"""``rechunk`` from its options to the finished target."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import _progress
from .._text import first_line
from . import target as targets
from . import work
from .execute import Cluster, Executor, Local, Task, budget, machine_memory
from .layout import Wanted, wanted
from .options import Options
from .plan import Copy, Plan, compared, planned, regions
from .scratch import Scratch
from .source import Source, read
from .state import BETWEEN, State

_VERSION = 3


@dataclass(frozen=True)
class _Pass:
    """A copy of an array: the first or second of its plan, or a comparison."""

    name: str
    source: Any
    target: Any
    positions: work.Selection
    region: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of regions."""
        return math.prod(-(-length // extent) for length, extent in zip(self.target.shape, self.region, strict=True))


def rechunk(source_path: str, target_path: str, options: Options, show: bool) -> dict[str, Any]:
    """Writes the target, or what is missing of it. Returns a report that JSON can hold.

    Raises:
        ValueError, TypeError, IndexError, ImportError: An option is wrong; nothing was written.
        RuntimeError: A store can't be read or written, or ``verify`` found a difference.
    """
    began = time.perf_counter()
    source = read(source_path, options)
    targets.check_apart(source.path, target_path)
    arrays = wanted(source, options)
    zarr_format = options.zarr_format or source.zarr_format
    targets.check_codecs(arrays, zarr_format)
    try:
        store = targets.opened(target_path, options.target_options)
    except (ValueError, ImportError):
        raise
    except Exception as error:
        raise RuntimeError(f"target {target_path}: it can't be opened: {first_line(error)}") from error
    executor: Executor
    executor = Local(options.workers, options.memory) if options.scheduler is None else Cluster(options.scheduler, options.memory)
    try:
        task_bytes, in_flight = budget(executor, arrays)
        executor.check(arrays[0].source, store)
        run = _Run(source, target_path, arrays, options, zarr_format, store, executor, task_bytes, in_flight, show)
        report = run.run()
    except (ValueError, TypeError, LookupError, ImportError, RuntimeError, MemoryError):
        raise
    except Exception as error:
        # Errors of stores: the system's, obstore's, fsspec's.
        copied = f"{source_path} to {target_path}"
        raise RuntimeError(f"{copied}: {first_line(error)}; when that is mended, the same command goes on") from error
    finally:
        executor.close()
    return report | {"seconds": time.perf_counter() - began}


class _Run:
    def __init__(
        self, source: Source, path: str, arrays: list[Wanted], options: Options, zarr_format: int, store: Any, executor: Executor,
        task_bytes: int, in_flight: int, show: bool,
    ):
        self._source, self._path, self._arrays, self._options, self._format = source, path, arrays, options, zarr_format
        self._store, self._executor, self._in_flight, self._show = store, executor, in_flight, show
        self._task_bytes = task_bytes
        self._state = State(store)

    def run(self) -> dict[str, Any]:
        asked = {
            "version": _VERSION, "place": self._source.place(self._options), "source": self._source.fingerprint(),
            "layout": self._options.layout(), "format": self._format,
        }
        kept = self._state.plan()
        if kept is not None and {name: kept.get(name) for name in asked} != asked:
            raise ValueError(
                f"target {self._path}: expected nothing, or what an earlier run of the same command left, but found the unfinished "
                "target of another source or other options; give those, or remove it"
            )
        if kept is None and not targets.is_empty(self._store):
            if not targets.is_complete(self._store, self._source, self._arrays, self._format):
                raise ValueError(
                    f"target {self._path}: expected nothing there, but found other data; remove it, or give another target"
                )
            made = targets.written(self._store, self._arrays, self._format)
            if not self._options.verify:
                self._check_same(made)
            return self._finished(True, {}, made)
        if kept is not None and kept.get("finished"):
            self._state.finish(kept)
            return self._finished(True, {}, targets.written(self._store, self._arrays, self._format))
        plans = self._plans() if kept is None else self._plans_of(kept)
        plan = asked | {"in_flight": self._in_flight, "plans": {name: asdict(one) for name, one in plans.items()}}
        if kept is None:
            self._state.begin(plan)
        made = targets.make(self._store, self._source, self._arrays, self._format)
        self._copy(plans, made)
        targets.sweep(self._store)
        for folder in BETWEEN:
            self._state.remove(folder)
        if "" in self._source.groups:
            targets.consolidate(self._store, self._format)
        report = self._finished(False, plans, made)
        self._state.finish(plan)
        return report

    def _check_same(self, made: dict[str, Any]) -> None:
        """Raises ValueError where the first or the last chunk of an array has other values: another selection, or another source,
        may have the same metadata."""
        with self._executor.limited(1):
            for array in self._arrays:
                extents = list(zip(array.shape, array.chunks, strict=True))
                first = tuple(slice(0, min(chunk, length)) for length, chunk in extents)
                last = tuple(slice((length - 1) // chunk * chunk, length) for length, chunk in extents)
                for region in ([] if 0 in array.shape else [first] if first == last else [first, last]):
                    selection = work.part_of(array.selection, region)
                    found = work.compare(array.source, made[array.name], selection, region, None)
                    if found is not None:
                        raise ValueError(
                            f"target {self._path}: expected nothing there, or what this command writes, but "
                            f"{array.name or 'the array'} has other values there; remove it, or give another target"
                        )

    def _plans(self) -> dict[str, Plan]:
        """Returns the fastest plans, and sets how many objects are in flight with them: with fewer, more memory is left
        for regions."""
        best: tuple[float, int, dict[str, Plan]] | None = None
        in_flight = self._in_flight
        while in_flight:
            found: dict[str, Plan] = {}
            for array in self._arrays:
                plan = planned(array.axes(), array.sizes(in_flight), self._task_bytes, self._executor.slots)
                if plan is None:
                    raise ValueError(f"--memory: array {array.name!r}: expected more for one of its chunks or shards")
                found[array.name] = plan
            seconds = sum(plan.seconds for plan in found.values())
            if best is None or seconds < 0.95 * best[0]:
                best = (seconds, in_flight, found)
            in_flight //= 2
        assert best is not None
        _, self._in_flight, plans = best
        return plans

    def _plans_of(self, kept: dict[str, Any]) -> dict[str, Plan]:
        """Returns the plans of the interrupted run: the record of what is done has the numbers of its regions."""
        self._in_flight = kept["in_flight"]
        found: dict[str, Plan] = {}
        for name, plan in kept["plans"].items():
            copies = tuple(Copy(**(copy | {"region": tuple(copy["region"])})) for copy in plan["copies"])
            between = plan["intermediate"]
            found[name] = Plan(copies, None if between is None else tuple(between))
        most = max((plan.task_bytes for plan in found.values()), default=0)
        if most > self._task_bytes and not isinstance(self._executor, Cluster):
            whole = self._task_bytes * self._executor.workers
            self._executor.workers = min(self._executor.workers, whole // most)
        if most > self._task_bytes and (isinstance(self._executor, Cluster) or self._executor.workers == 0):
            raise ValueError(
                "--memory: expected at least that of the earlier run, whose regions are larger; give it, or remove the target"
            )
        return found

    def _copy(self, plans: dict[str, Plan], made: dict[str, Any]) -> None:
        first: list[_Pass] = []
        second: list[_Pass] = []
        root = self._scratch_folder(plans)
        for array in self._arrays:
            plan, into = plans[array.name], made[array.name]
            region = [_kept(array, copy.region) for copy in plan.copies]
            if plan.intermediate is None:
                first.append(_Pass(f"{array.name}:1", array.source, into, array.selection, region[0]))
                continue
            name = f"{array.name}:2"
            if len(self._state.done.get(name, ())) == plan.copies[1].count:
                continue
            chunks = _kept(array, plan.intermediate)
            if root is None:
                between, first_name = targets.intermediate(self._store, array, chunks, self._format), f"{array.name}:1"
            else:
                # A different name, since a run that goes on may choose the other kind of intermediate array.
                between, first_name = Scratch(root, array, chunks), f"{array.name}:1:scratch"
            first.append(_Pass(first_name, array.source, between, array.selection, region[0]))
            whole = tuple(slice(0, length, 1) for length in array.shape)
            second.append(_Pass(name, between, into, whole, region[1]))
        try:
            for number, passes in enumerate((first, second), 1):
                if passes:
                    self._run(work.copy, passes, f"rechunk, copy {number} of 2" if second else "rechunk")
        finally:
            self._state.keep()

    def _scratch_folder(self, plans: dict[str, Plan]) -> Path | None:
        """Returns the folder for intermediate arrays as plain files, or None. They may be so if they are numbers, if
        the target is a folder that this process alone writes, and if the machine's memory holds them easily."""
        staged = [array for array in self._arrays if plans[array.name].intermediate is not None]
        root = getattr(self._store, "root", None)
        if not isinstance(root, Path) or isinstance(self._executor, Cluster):
            return None
        if any(array.dtype.kind not in "biufcmM" for array in staged):
            return None
        return root if sum(array.bytes for array in staged) <= machine_memory() // 4 else None

    def _run(self, function: Any, passes: list[_Pass], what: str) -> None:
        """Runs the tasks of passes that aren't done."""
        done = {one.name: frozenset(self._state.done.get(one.name, ())) for one in passes}
        self._work(function, passes, done, what, lambda task, _: self._state.add(task.copy, task.number))

    def _work(
        self, function: Any, passes: list[_Pass], done: dict[str, frozenset[int]], what: str, note: Callable[[Task, Any], None],
    ) -> None:
        """Runs the tasks of passes that aren't ``done``, beside a bar that is called ``what``. ``note`` is told each result."""
        ticks = self._ticks(sum(one.count - len(done[one.name]) for one in passes), what)

        def told(task: Task, result: Any) -> None:
            next(ticks, None)
            note(task, result)

        try:
            with self._executor.limited(self._in_flight):
                self._executor.run(self._tasks(function, passes, done), told)
        finally:
            self._end(ticks)

    def _ticks(self, count: int, what: str) -> Iterator[Any]:
        """Returns an iterator whose steps move the bar."""
        steps = itertools.repeat(None, count)
        return iter(_progress.shown(steps, count, what, "region", "regions") if self._show else steps)

    def _end(self, ticks: Iterator[Any]) -> None:
        """Ends the bar's line, after an error too."""
        close = getattr(ticks, "close", None)
        if close is None:
            return
        # A generator that has begun, and isn't at its end, closes its bar.
        next(ticks, None)
        close()

    def _tasks(self, function: Any, passes: list[_Pass], done: dict[str, frozenset[int]]) -> Iterator[Task]:
        for one in passes:
            for number, region in enumerate(regions(one.target.shape, one.region)):
                if number not in done[one.name]:
                    selection = work.part_of(one.positions, region)
                    yield Task(one.name, number, function, (one.source, one.target, selection, region, self._executor.in_flight))

    def _finished(self, before: bool, plans: dict[str, Plan], made: dict[str, Any]) -> dict[str, Any]:
        """Compares source and target if that is asked for; returns the report."""
        if self._options.verify:
            self._verify(made)
        arrays = [_told(array, plans.get(array.name)) for array in self._arrays]
        return {
            "source": self._source.path, "target": self._path, "format": self._format, "was_complete": before,
            "verified": self._options.verify, "bytes": sum(array.bytes for array in self._arrays),
            "memory": self._executor.memory, "workers": self._executor.workers, "arrays": arrays,
        }

    def _verify(self, made: dict[str, Any]) -> None:
        passes: list[_Pass] = []
        for array in self._arrays:
            region = compared(array.axes(), _of_source(array, array.chunks), array.sizes(self._in_flight), self._task_bytes)
            passes.append(_Pass(f"{array.name}:verify", array.source, made[array.name], array.selection, _kept(array, region)))

        def note(task: Task, found: list[int] | None) -> None:
            if found is not None:
                name = task.copy.removesuffix(":verify")
                raise RuntimeError(
                    f"verify: target {self._path}, array {name!r}: the element at {tuple(found)} isn't the source's; remove the "
                    "target and write it again"
                )

        self._work(work.compare, passes, {one.name: frozenset() for one in passes}, "verify", note)


def _kept(array: Wanted, extents: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the extents of those dimensions of the source that the target has."""
    return tuple(extent for extent, one in zip(extents, array.selection, strict=True) if not isinstance(one, int))


def _of_source(array: Wanted, extents: tuple[int, ...]) -> tuple[int, ...]:
    """Returns extents for all dimensions of the source, from those of the target's dimensions; 1 for dropped ones."""
    rest = iter(extents)
    return tuple(1 if isinstance(one, int) else next(rest) for one in array.selection)


def _told(array: Wanted, plan: Plan | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": array.name, "dims": list(array.dims), "shape": list(array.shape), "dtype": array.dtype.name,
        "chunks": list(array.chunks), "shards": None if array.shards is None else list(array.shards), "bytes": array.bytes,
        "source_chunks": list(array.source.chunks), "source_dtype": str(array.source.dtype),
        "codecs_left_out": list(array.codecs.left_out),
    }
    if plan is not None:
        found |= {
            "copies": [{"region": list(_kept(array, copy.region)), "regions": copy.count, "task_bytes": copy.task_bytes,
                        "amplification": copy.amplification} for copy in plan.copies],
            "intermediate": None if plan.intermediate is None else list(_kept(array, plan.intermediate)),
        }
    return found
