"""Trains by CREDIT's own program with its own loader and with the adapter's: an epoch, a checkpoint, and another epoch from there.
It prints the losses of all steps and of validation, as JSON by loader."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import credit.losses
import credit_stores as stores
import torch
import yaml
from credit.applications import train_gen2
from credit.trainers import utils
from dali_zarr.integrations import credit as adapter

load_loss, own_dataloader = credit.losses.load_loss, train_gen2.load_dataloader
losses: list[float] = []


def kept(*args: Any, **how: Any) -> Any:
    """In the place of CREDIT's ``load_loss``: losses are kept."""
    criterion: Any = load_loss(*args, **how)
    criterion.register_forward_hook(lambda module, given, loss: losses.append(float(loss.detach().double().mean())))
    return criterion


class Model(torch.nn.Module):
    """A linear map of channels with dropout. CREDIT's own models need packages that its loader doesn't."""

    def __init__(self, conf: Any):
        super().__init__()
        self.linear, self.dropout = torch.nn.Linear(11, 9), torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.dropout(x).movedim(1, -1)).movedim(-1, 1)


def configuration(folder: Path, where: Path, epoch: int) -> dict[str, Any]:
    is_later = epoch > 0
    data = stores.data({"ERA5": stores.source(folder)}, forecast_len=2)
    trainer = {
        "type": "gen2", "parallelism": {"data": "none", "tensor": 1, "domain": 1}, "load_weights": is_later,
        "load_optimizer": is_later, "load_scaler": is_later, "load_scheduler": is_later, "reload_epoch": is_later,
        "start_epoch": epoch, "epochs": epoch + 1, "num_epoch": 1, "train_batch_size": 2, "valid_batch_size": 2, "ensemble_size": 1,
        "batches_per_epoch": 0, "valid_batches_per_epoch": 1, "stopping_patience": 50, "skip_validation": False,
        "learning_rate": 1e-4, "weight_decay": 0, "use_scheduler": False, "amp": False, "grad_accum_every": 1, "grad_max_norm": 1.0,
        "thread_workers": 0, "valid_thread_workers": 0, "save_backup_weights": False, "save_best_weights": False,
        "save_metric_vars": False, "update_learning_rate": False,
    }
    return {
        "save_loc": str(where), "seed": 1000, "data": data, "model": {"type": "own"}, "trainer": trainer,
        "loss": {"training_loss": "mse", "validation_loss": "mse", "use_latitude_weights": False, "use_variable_weights": False},
        "preblocks": {"per_step": {"concat": {"type": "concat"}}}, "postblocks": {"per_step": {
            "reconstruct": {"type": "reconstruct"},
            "target": {"type": "reconstruct", "args": {"in_key": "y", "out_key": "y_target_processed"}},
        }},
    }


def train(folder: Path, name: str) -> list[float]:
    losses.clear()
    for epoch in range(2):
        path = folder / f"{name}_{epoch}.yml"
        path.write_text(yaml.safe_dump(configuration(folder, folder / name, epoch)))
        sys.argv = ["train.py", "-c", str(path)]
        torch.manual_seed(epoch)
        train_gen2.main_cli()
    return list(losses)


with tempfile.TemporaryDirectory() as folder:
    stores.write(Path(folder))
    credit.losses.load_loss, train_gen2.load_model = kept, Model
    # It renames weights of CREDIT's own models.
    utils._migrate_legacy_checkpoint = lambda model, checkpoint: None
    found = {"credit": train(Path(folder), "credit")}
    adapter.use(host_memory_limit="64MiB")
    assert train_gen2.load_dataloader is not own_dataloader
    found["dali_zarr"] = train(Path(folder), "dali_zarr")
print("FOUND" + json.dumps(found))
