"""Trains with Lightning, and goes on after a stop: lightning_fit.py STORE FOLDER STEPS"""

import sys
from pathlib import Path

import dali_zarr
import lightning
import torch
from dali_zarr.torch import Batch, Loader
from lightning.pytorch.callbacks import ModelCheckpoint

store, last, steps = sys.argv[1], Path(sys.argv[2]) / "last.ckpt", int(sys.argv[3])
parts = dali_zarr.splits(
    path=store, arrays=["t2m"], offsets={"input": 0, "target": 6}, stack_arrays=True, batch_size=4, device="cpu",
    random_shuffle=True, train=slice(None, "2020-01-02T05"), validation=slice("2020-01-02T06", None),
)


class Forecast(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(1, 1, 3, padding=1)

    def training_step(self, batch: Batch, _: int):
        print("train", *batch.coords["time"].astype("datetime64[h]"))
        return torch.nn.functional.mse_loss(self.layer(batch["input"]), batch["target"])

    def validation_step(self, batch: Batch, _: int):
        print("validation", *batch.coords["time"].astype("datetime64[h]"))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-9)


trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=2, max_steps=steps, num_sanity_val_steps=0, logger=False, enable_progress_bar=False,
    callbacks=[ModelCheckpoint(last.parent, filename="last", every_n_train_steps=1, enable_version_counter=False)],
)
trainer.fit(Forecast(), Loader(**parts["train"]), Loader(**parts["validation"]), ckpt_path=last if last.exists() else None)
