"""Trains by Ray's TorchTrainer with two workers, each of which has a loader that finds its rank. Prints the samples of each
worker's epochs as JSON."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray
import zarr
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train(config: dict[str, Any]) -> None:
    from dali_zarr.torch import Loader

    loader = Loader(
        config["path"], arrays=["n"], batch_size=4, device="cpu", random_shuffle=True, seed=1, host_memory_limit="64MiB",
    )
    epochs = [[n for batch in loader for n in batch["n"].tolist()] for _ in range(2)]
    rank = ray.train.get_context().get_world_rank()
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(epochs))


with tempfile.TemporaryDirectory() as folder:
    numbers = zarr.open_group(f"{folder}/x.zarr", mode="w").create_array("n", shape=(41,), chunks=(4,), dtype="i8")
    numbers[:] = np.arange(41)
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}})
    TorchTrainer(
        train, train_loop_config={"path": f"{folder}/x.zarr", "folder": folder}, torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False), run_config=RunConfig(storage_path=folder),
    ).fit()
    print("FOUND" + json.dumps([json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]))
