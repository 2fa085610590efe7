"""Reads data sets by anemoi-training's own datamodule and by the adapter's; values that differ end it with an error. It runs in the
environment of anemoi-training. Its argument is a JSON list of cases. It prints JSON: for each case the number of equal samples, or
the message that refused it.
"""

from __future__ import annotations

import datetime
import json
import random
import sys
from typing import Any

import torch
from anemoi.training.data.datamodule import AnemoiDatasetsDataModule
from dali_zarr.integrations.anemoi import BatchLoader, DaliZarrDataModule
from omegaconf import OmegaConf

Case = dict[str, Any]


class Task:
    """What the datamodule asks of a task: the times of a sample, relative to its anchor."""

    rollout = None

    def __init__(self, offsets: list[int]):
        self.offsets = offsets

    def get_offsets(self, **_: Any) -> list[datetime.timedelta]:
        return [datetime.timedelta(hours=offset) for offset in self.offsets]

    def steps(self, *_: Any) -> range:
        return range(1)


def made(kind: type, case: Case) -> Any:
    readers = {name: {"dataset_config": tree, "start": None, "end": "2020-01-03T18:00:00"} | case.get("dates", {})
               for name, tree in case["trees"].items()}
    stages = {"training": case.get("workers", 1), "validation": 1, "test": 1}
    config = OmegaConf.create({"dataloader": {
        "training": {"datasets": readers}, "validation": {"datasets": readers}, "test": {"datasets": readers}, "pin_memory": False,
        "batch_size": dict.fromkeys(stages, case.get("batch_size", 2)), "num_workers": stages, "prefetch_factor": 2,
        "persistent_workers": case.get("persistent", True), "multiprocessing_context": "fork",
    }})
    return kind(config, Task(case["offsets"]))


def told(module: Any, case: Case) -> None:
    """What the strategy tells the data set."""
    ranks, rank = case.get("ranks", [1, 0])
    for dataset in (module.ds_train, module.ds_valid):
        sizes = {name: case.get("shards") for name in case["trees"]}
        dataset.set_comm_group_info(rank, rank, 0, ranks, case.get("part", 0), len(case.get("shards") or [0]), sizes)


def compare(case: Case) -> int:
    own, theirs = made(DaliZarrDataModule, case), made(AnemoiDatasetsDataModule, case)
    count = 0
    for module in (own, theirs):
        told(module, case)
    for stage in ("train_dataloader", "val_dataloader"):
        mine, other = getattr(own, stage)(), getattr(theirs, stage)()
        assert isinstance(mine, BatchLoader) and mine.dataset is not other.dataset
        for epoch in range(3):
            torch.manual_seed(epoch)
            random.seed(epoch)
            expected, found = list(other), []
            states = torch.get_rng_state(), random.getstate()
            for batch in mine:
                found.append(batch)
            assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate(), "random states are left alone"
            assert expected and len(found) == len(expected), (case, len(found), len(expected))
            for one, two in zip(found, expected, strict=True):
                assert list(one) == list(two)
                for name in one:
                    assert one[name].dtype == two[name].dtype and one[name].is_contiguous()
                    assert torch.equal(one[name], two[name]), (case, stage, epoch, name, one[name].shape, two[name].shape)
                count += len(next(iter(one.values())))
            offsets = case.get("later", case["offsets"]) if epoch else case["offsets"]
            for module in (own, theirs):
                module.task.offsets = offsets
                module.set_epoch(epoch + 1)
    return count


def run(case: Case) -> Any:
    try:
        return compare(case)
    except ValueError as error:
        return str(error)


print("FOUND" + json.dumps([run(case) for case in json.loads(sys.argv[1])]))
