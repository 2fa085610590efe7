"""A case: stores, arguments and how a loader is run with them. A number gives one case, for ever."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from support.argument_space import draw, rows, stores, wrong
from support.argument_space.dataset import Dataset, Refused
from support.argument_space.oracle import Epoch

# Cases that share their stores follow each other.
TOGETHER = 50


@dataclass
class Case:
    """``arguments``: of the samples. ``order``: of their order, of batches and resources."""

    number: int
    dataset: Dataset | rows.RaggedStores
    arguments: dict[str, Any]
    order: dict[str, Any] = field(default_factory=dict)
    num_shards: int = 1
    epochs: int = 1
    # After how many batches a state is taken, and with what a new loader goes on from it.
    resumed_after: int | None = None
    resumed: dict[str, Any] = field(default_factory=dict)
    # The argument that is wrong.
    mistake: str | None = None
    # Whether it may be right: then only the type of an exception is known.
    is_odd: bool = False
    _epoch: Epoch | rows.RaggedEpoch | None = field(default=None, init=False)

    def epoch(self) -> Epoch | rows.RaggedEpoch:
        """The samples. Raises Refused if the arguments can't be given."""
        if self._epoch is None:
            if isinstance(self.dataset, rows.RaggedStores):
                self._epoch = rows.RaggedEpoch(self.dataset, self.arguments)
            else:
                found = Epoch(self.dataset, self.arguments)
                found.check_shapes()
                self._epoch = found
        return self._epoch


def case(number: int, dataset: Dataset | rows.RaggedStores) -> Case:
    """Returns the case with this number. Its stores are those of ``stores.write(number // TOGETHER)``."""
    rng = np.random.default_rng([7, number])
    if isinstance(dataset, rows.RaggedStores):
        found = Case(number, dataset, rows.arguments(rng, dataset))
    else:
        found = Case(number, dataset, draw.arguments(rng, dataset.stores, dataset))
    try:
        epoch = found.epoch()
    except Refused:
        return found
    if rng.random() < 0.1:
        found.arguments = {name: as_numpy(value) for name, value in found.arguments.items()}
    kind = rng.random()
    if kind < 0.15 and isinstance(epoch, Epoch):
        found.is_odd = kind < 0.06
        found.mistake, found.arguments = (wrong.oddity if found.is_odd else wrong.mistake)(rng, epoch)
        return found
    _order(found, rng, len(epoch.rows))
    return found


def as_numpy(value: Any) -> Any:
    """The same with NumPy's numbers in the place of Python's, in lists, dictionaries and slices too."""
    match value:
        case bool():
            return np.bool_(value)
        case int():
            return np.int64(value)
        case float():
            return np.float64(value)
        case list():
            return [as_numpy(item) for item in value]
        case dict():
            return {name: as_numpy(item) for name, item in value.items()}
        case slice():
            return slice(*(as_numpy(item) for item in (value.start, value.stop, value.step)))
    return value


def _order(found: Case, rng: np.random.Generator, samples: int) -> None:
    order = found.order

    def maybe(chance: float) -> bool:
        return bool(rng.random() < chance)

    if maybe(0.12):
        weights = rng.choice([0.0, 1.0, 1.0, 3.0], samples)
        weights[rng.integers(samples)] = 2.0
        order["weights"] = weights if maybe(0.5) else weights.tolist()
        positive = int((weights > 0).sum())
        if maybe(0.4):
            order["replacement"] = False
            order["num_samples"] = int(rng.integers(1, positive + 1))
        elif maybe(0.6):
            order["num_samples"] = int(rng.integers(1, 2 * samples + 1))
        samples = order.get("num_samples", samples)
    elif maybe(0.45):
        order["random_shuffle"] = True
    elif maybe(0.2):
        order["shuffle_after_epoch"] = True
    if maybe(0.3):
        order["initial_fill"] = int(rng.choice([1, 3, 10, 5000]))
    if maybe(0.3):
        order["seed"] = int(rng.integers(0, 1 << 40))
    if maybe(0.2):
        found.num_shards = int(rng.integers(1, min(3, samples) + 1))
        if maybe(0.3) and not order.get("shuffle_after_epoch"):
            order["stick_to_shard"] = True
    share = samples // found.num_shards
    order["batch_size"] = max(int(rng.integers(1, 9)), -(-share // 8))
    match int(rng.integers(5)):
        case 0 if share >= order["batch_size"]:
            order["drop_last"] = True
        case 1:
            order["pad_last_batch"] = True
    resources: dict[str, list[Any]] = {
        "io_threads": [1, 2],
        "decode_threads": [1, 2, 3],
        "prefetch_queue_depth": [1, 3],
        "cache_size": ["2MiB", 0],
        "host_memory_limit": ["96MiB"],
        "io_concurrency": [1, 8],
    }
    for name, values in resources.items():
        if maybe(0.12):
            order[name] = values[rng.integers(len(values))]
    found.epochs = 2 if maybe(0.3) or "shuffle_after_epoch" in order else 1
    if maybe(0.2):
        found.resumed_after = int(rng.integers(1, 5))
        if maybe(0.3):
            found.resumed = {"num_shards": int(rng.integers(1, 4)), "batch_size": int(rng.integers(1, 9))}


def dataset(number: int, folder: Path) -> Dataset | rows.RaggedStores:
    """Writes the stores of a case into a folder. Every sixth set has ragged rows."""
    group = number // TOGETHER
    return rows.write(group, folder) if group % 6 == 5 else Dataset(stores.write(group, folder))
