"""Reads CREDIT's configurations by its own DataLoader and by the adapter's; values that differ end it with an error. Its argument
is a JSON list of cases. It prints JSON: for each case the number of equal batches, or the message that refused it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import credit_stores as stores
import torch
from credit.trainers import utils
from dali_zarr.integrations import credit

own_dataloader = utils.load_dataloader


def sources(folder: Path, names: list[str]) -> dict[str, Any]:
    """The sources that cases name."""
    one = stores.only
    daily = {"timestep": "24h", "start_datetime": "2017-12-27", "end_datetime": "2018-01-05"}
    year = {"timestep": "24h", "start_datetime": "2000-01-01", "end_datetime": "2000-12-31"}
    era5: Any = stores.source(folder)
    found = {
        "ERA5": era5,
        "all levels": era5 | {"levels": None},
        "near levels": era5 | {"levels": [100, 12]},
        "dated": stores.source(folder, variables={"static": {"vars_2D": ["Z", "LSM"], "path": f"{folder}/dated.zarr"}}),
        "without diagnostic": stores.source(folder, variables={"diagnostic": None}),
        "no files": stores.source(folder, variables={"diagnostic": {"vars_2D": ["tp"], "path": f"{folder}/none_%Y.zarr"}}),
        "persist": one(folder, "dynamic_forcing", "sst", "sst_%Y.zarr", temporal_mode="persist", **daily),
        "persist target": one(folder, "prognostic", "sst", "sst_%Y.zarr", temporal_mode="persist", **daily),
        "cyclic": one(folder, "dynamic_forcing", "ozone", "ozone.zarr", temporal_mode="cyclic", **year),
        "coarse": one(folder, "dynamic_forcing", "sst", "sst_%Y.zarr", **daily),
        "noleap": one(folder, "prognostic", "SP", "cesm.zarr"),
        "base": era5 | {"dataset_type": "base"},
        "netcdf": one(folder, "static", "Z", "file.nc"),
        "2D on levels": one(folder, "prognostic", "T", "era5_%Y.zarr", level_coord="level", levels=[10]),
        "several static": one(folder, "static", "SP", "era5_%Y.zarr"),
    }
    return {name.replace(" ", "_"): found[name] for name in names}


def walk(batch: dict[str, Any], path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in batch.items():
        yield from walk(value, f"{path}|{name}") if isinstance(value, dict) else [(f"{path}|{name}", value)]


def same(ours: Any, theirs: Any, case: Any) -> None:
    one, other = dict(walk(ours)), dict(walk(theirs))
    assert list(one) == list(other), (case, list(one), list(other))
    for key, values in one.items():
        assert values.dtype == other[key].dtype and values.shape == other[key].shape and values.is_contiguous(), (case, key)
        assert torch.equal(values.nan_to_num(nan=-9e9), other[key].nan_to_num(nan=-9e9)), (case, key)


def compare(folder: Path, case: dict[str, Any]) -> int:
    data = stores.data(sources(folder, case["sources"]), **case.get("data", {}))
    if "date_ranges" in data:
        del data["start_datetime"], data["end_datetime"]
    conf, count = stores.configuration(data, case.get("batch_size", 3)), 0
    rank, ranks = case.get("ranks", [0, 1])
    for is_train in (True, False):
        theirs: Any = own_dataloader(conf, utils.load_dataset(conf, is_train), rank, ranks, is_train)
        ours: Any = credit.load_dataloader(
            conf, utils.load_dataset(conf, is_train), rank, ranks, is_train, device="cpu", host_memory_limit="64MiB",
        )
        assert len(ours) == len(theirs)
        for epoch in range(2 if is_train else 1):
            states: list[Any] = []
            batches: list[list[Any]] = []
            for loader in (ours, theirs):
                loader.batch_sampler.set_epoch(epoch)
                torch.manual_seed(epoch)
                batches.append(list(loader))
                states.append(torch.get_rng_state())
            assert torch.equal(*states), "a model draws the same random numbers"
            for one, other in zip(*batches, strict=True):
                same(one, other, case)
            next(iter(ours))  # an epoch that is left
            count += len(batches[0])
    return count


def run(folder: Path, case: dict[str, Any]) -> Any:
    try:
        return compare(folder, case)
    except ValueError as error:
        return str(error)
    except Exception as error:
        error.add_note(str(case))
        raise


with tempfile.TemporaryDirectory() as name:
    stores.write(Path(name))
    (Path(name) / "file.nc").write_bytes(b"CDF")
    print("FOUND" + json.dumps([run(Path(name), case) for case in json.loads(sys.argv[1])]))
