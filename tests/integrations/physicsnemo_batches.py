"""Reads data sets by PhysicsNeMo's TimeSeriesDataModule and by the adapter's; values that differ end it with an error. Its argument
is a JSON list of cases: arguments of the module. It prints JSON: the number of equal batches of each, and the losses of a model."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from dali_zarr.integrations import physicsnemo as adapter
from omegaconf import OmegaConf
from physicsnemo.datapipes.healpix.data_modules import CoupledTimeSeriesDataModule, TimeSeriesDataModule

TIMES, SIDE, NAMES = 60, 4, ["t2m0", "z500", "tau300-700"]


def write(folder: Path, times: int = TIMES, side: int = SIDE) -> None:
    """One file for each variable, as PhysicsNeMo's writer takes them."""
    rng, dims = np.random.default_rng(0), ("face", "height", "width")
    shape = (12, side, side)
    where = {"lat": (dims, rng.uniform(-90, 90, shape)), "lon": (dims, rng.uniform(0, 360, shape))}
    clock = pd.date_range("2018-01-01", periods=times, freq="3h")
    for name in NAMES:
        values = rng.normal(5, 2, (times, *shape)).astype("f4")
        xr.Dataset({name: (("time", *dims), values)}, where | {"time": clock}).to_netcdf(folder / f"{name}.nc", engine="h5netcdf")
    for name in ("lsm", "z"):
        xr.Dataset({name: (dims, rng.random(shape, dtype="f4"))} | where).to_netcdf(folder / f"{name}.nc", engine="h5netcdf")


def made(kind: type, folder: Path, **more: Any) -> Any:
    scaling: Any = {name: {"mean": i + 0.37, "std": i + 1.3} for i, name in enumerate(NAMES)}
    scaling |= {"lsm": {"mean": 0.0, "std": 1.0}, "z": {"mean": 0.5, "std": 2.0}}
    splits = {
        "train_date_start": "2018-01-01", "train_date_end": "2018-01-05T12", "val_date_start": "2018-01-05T15",
        "val_date_end": "2018-01-07", "test_date_start": "2018-01-07", "test_date_end": "2018-01-08T09",
    }
    if more.pop("without_constants", False):
        more["constants"] = None
    if "forecast" in more:
        more["forecast_init_times"] = pd.to_datetime(more.pop("forecast"), format="ISO8601")
    how = {
        "src_directory": str(folder), "dst_directory": str(folder), "dataset_name": "all", "batch_size": 4, "drop_last": True,
        "input_variables": NAMES, "constants": {"lsm": "lsm", "z": "z"}, "scaling": OmegaConf.create(scaling), "splits": splits,
        "num_workers": 0, "pin_memory": False,
    }
    return kind(**how | more)


def flat(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, np.ndarray | torch.Tensor):
        return [torch.as_tensor(batch)]
    return [one for part in batch for one in flat(part)]


def same(ours: Any, theirs: Any) -> None:
    one, other = flat(ours), flat(theirs)
    assert len(one) == len(other)
    for own, wanted in zip(one, other, strict=True):
        assert own.dtype == wanted.dtype and own.shape == wanted.shape and own.stride() == wanted.stride()
        assert torch.equal(own, wanted)


def compare(folder: Path, case: dict[str, Any]) -> int:
    shards = case.pop("shards", [1, 0])
    own = made(adapter.TimeSeriesDataModule, folder, host_memory_limit="64MiB", **case)
    modules, count = (own, made(TimeSeriesDataModule, folder, **case)), 0
    for stage in ("test",) if "forecast" in case else ("train", "val", "test"):
        (ours, _), (theirs, sampler) = (getattr(module, f"{stage}_dataloader")(*shards) for module in modules)
        assert len(ours) == len(theirs) and (sampler is None) == (shards[0] == 1)
        for epoch in range(2 if stage == "train" else 1):
            batches, states = [], []
            for loader in (ours, theirs):
                if sampler is not None:
                    loader.sampler.set_epoch(epoch)
                torch.manual_seed(epoch)
                batches.append(list(loader))
                states.append(torch.get_rng_state())
            assert torch.equal(*states), "a model draws the same random numbers"
            for own, wanted in zip(*batches, strict=True):
                same(own, wanted)
            count += len(batches[0])
            next(iter(ours))  # an epoch that is left
            same(ours.dataset[0], theirs.dataset[0])
    return count


def losses(module: Any) -> list[float]:
    torch.manual_seed(0)
    model, found = torch.nn.Linear(3, 3), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader, _ = module.train_dataloader()
    for _ in range(2):
        for (inputs, _), target in loader:
            loss = (model(inputs[:, :, 0].movedim(2, -1)) - target[:, :, 0].movedim(2, -1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(float(loss))
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        write(path)
        found: dict[str, Any] = {"cases": [compare(path, case) for case in json.loads(sys.argv[1])]}
        found["losses"] = [losses(made(kind, path, batch_size=6)) for kind in (adapter.TimeSeriesDataModule, TimeSeriesDataModule)]
        try:
            adapter.BatchLoader(made(CoupledTimeSeriesDataModule, path, couplings=[]).train_dataloader()[0])
        except ValueError as error:
            found["refused"] = str(error)
        print("FOUND" + json.dumps(found))
