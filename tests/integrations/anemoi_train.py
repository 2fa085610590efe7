"""Trains ten steps by anemoi-training's own trainer, and prints the losses as JSON. It runs in the environment of anemoi-training.
Arguments: the data set, a folder for what is written, and who reads: anemoi or dali_zarr."""

from __future__ import annotations

import json
import sys
from typing import Any

import anemoi.training.train.train as trainers
import pytorch_lightning
from dali_zarr.integrations import anemoi as adapter
from hydra import compose, initialize_config_module

data, folder, is_ours = sys.argv[1], sys.argv[2], sys.argv[3] == "dali_zarr"
FORCING = "[cos_latitude,sin_longitude,insolation]"
MIDDLE, NORMALIZER = "'2020-01-03T00:00:00'", "data.datasets.data.processors.normalizer.config"
with initialize_config_module(config_module="anemoi.training.config", version_base=None):
    config = compose("config", overrides=[
        "config_validation=False", "graph=multi_scale", "graph.nodes.hidden.node_builder.resolution=1", "model=gnn",
        "graph.overwrite=True", "model.num_channels=8",
        "model.bounding=[]", f"system.input.dataset={data}", "system.input.graph=null",
        "+system.input.truncation=null", "+system.input.truncation_inv=null", f"system.output.root={folder}/",
        "system.hardware.accelerator=cpu", "system.hardware.num_gpus_per_node=1", "system.hardware.num_nodes=1",
        "system.hardware.num_gpus_per_model=1", "dataloader.num_workers.training=1", "dataloader.num_workers.validation=1",
        "dataloader.batch_size.training=1", "dataloader.batch_size.validation=1", "dataloader.pin_memory=False",
        "dataloader.limit_batches.training=5", "dataloader.limit_batches.validation=1", "training.max_epochs=2",
        f"dataloader.training.datasets.data.end={MIDDLE}", f"dataloader.validation.datasets.data.start={MIDDLE}",
        "dataloader.validation.datasets.data.end='2020-01-03T18:00:00'", f"dataloader.test.datasets.data.start={MIDDLE}",
        f"data.datasets.data.forcing={FORCING}", "data.datasets.data.diagnostic=[]", f"{NORMALIZER}.none={FORCING}",
        f"{NORMALIZER}.max=[]", f"{NORMALIZER}.std=[]",
        "diagnostics.plot.callbacks=[]", "diagnostics.log.mlflow.enabled=False", "diagnostics.log.mlflow.tracking_uri=null",
        "training.optimization.lr_scheduler.warmup_t=1",
    ])
losses: list[Any] = []


class Losses(pytorch_lightning.Callback):
    """Keeps the loss of each step."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        losses.append(float(outputs["loss"]))

    def on_validation_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, loader: int = 0) -> None:
        losses.append(float(batch["data"].double().sum()))


if is_ours:
    adapter.use()
trainer = trainers.AnemoiTrainer(config)
trainer.callbacks.append(Losses())
trainer.train()
assert type(trainer.datamodule) is (adapter.DaliZarrDataModule if is_ours else trainers.AnemoiDatasetsDataModule)
print("FOUND" + json.dumps(losses))
