"""Reads a data set with anemoi-training's own data loader, and with this package's loader in anemoi-training's order; prints JSON
of the positions that both gave. Values that differ end it with an error.

It runs in the environment of anemoi-training. Its argument is a JSON list with an object for each case: ``path``, ``shuffle``,
``batch_size``, ``workers``, ``ranks``, and ``rollouts``, for each epoch the positions of a sample relative to its anchor.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from anemoi.models.distributed.balanced_partition import get_balanced_partition_sizes
from anemoi.training.data.data_reader import NativeGridDataset
from anemoi.training.data.multidataset import MultiDataset
from anemoi.training.utils.worker_init import worker_init_func
from dali_zarr._loading.parts import equal_bounds
from dali_zarr.torch import Loader

NAME = "data"
Case = dict[str, Any]


class Positions(MultiDataset):
    """anemoi-training's order, without its reads: a sample is the row of the index of the loader here."""

    def get_sample(self, index: int) -> torch.Tensor:
        _, position = (int(value) for value in self.anchors[index])
        return torch.tensor([position])


class Order:
    """A batch_sampler: the batches of anemoi-training's DataLoader, with its workers and seeds."""

    def __init__(self, asked: Case, dataset: MultiDataset):
        self.asked, self.dataset = asked, dataset

    def set_epoch(self, epoch: int) -> None:
        indices = self.asked["rollouts"][epoch]
        self.dataset.set_epoch(epoch, rollout=epoch + 1, relative_date_indices={NAME: indices})

    def __iter__(self):
        for batch in loaded(self.asked, self.dataset):
            yield batch.numpy()


def made(asked: Case, kind: type[MultiDataset], rank: int) -> MultiDataset:
    dataset = kind({NAME: NativeGridDataset(dataset=asked["path"])}, {NAME: asked["rollouts"][0]}, shuffle=asked["shuffle"])
    dataset.set_comm_group_info(rank, rank, 0, asked["ranks"], 0, 1, {NAME: None})
    return dataset


def loaded(asked: Case, dataset: MultiDataset) -> torch.utils.data.DataLoader:
    """As AnemoiDatasetsDataModule makes it."""
    return torch.utils.data.DataLoader(
        dataset, batch_size=asked["batch_size"], num_workers=asked["workers"], worker_init_fn=worker_init_func, prefetch_factor=2,
        multiprocessing_context="fork",
    )


def run(asked: Case) -> list[dict[str, Any]]:
    """Returns what each rank read in each epoch."""
    found: list[dict[str, Any]] = []
    for rank in range(asked["ranks"]):
        theirs = made(asked, MultiDataset, rank)
        order = Order(asked, made(asked, Positions, rank))
        loader = Loader(
            asked["path"], arrays=["data"], dims=["time"], offsets=asked["rollouts"][0], batch_sampler=order,
            batch_size=asked["batch_size"], device="cpu", host_memory_limit="64MiB",
        )
        for epoch, indices in enumerate(asked["rollouts"]):
            theirs.set_epoch(epoch, rollout=epoch + 1, relative_date_indices={NAME: indices})
            expected = [batch[NAME].numpy() for batch in loaded(asked, theirs)]
            loader.set_offsets(indices)
            loader.set_epoch(epoch)
            starts, count = [], 0
            for batch, values in zip(loader, expected, strict=True):
                # Dates, ensemble, cells, variables.
                names = [f"data{index:+d}" if index else "data" for index in indices]
                own = np.stack([batch[name].numpy() for name in names], 1).transpose(0, 1, 3, 4, 2)
                assert own.dtype == values.dtype and own.shape == values.shape, (own.shape, values.shape)
                assert np.array_equal(own, values), f"rank {rank}, epoch {epoch}, batch {count}"
                starts += batch.index[:, 0].tolist()
                count += 1
            found.append({"rank": rank, "epoch": epoch, "batches": count, "positions": starts})
    return found


def check_parts() -> None:
    """The parts of a grid that the ranks of a reader group read are anemoi-training's."""
    for length in (*range(1, 40), 40320, 542080):
        for ranks in range(1, min(length, 17)):
            assert np.diff(equal_bounds(length, ranks)).tolist() == get_balanced_partition_sizes(length, ranks), (length, ranks)


check_parts()
print("FOUND" + json.dumps([run(asked) for asked in json.loads(sys.argv[1])]))
