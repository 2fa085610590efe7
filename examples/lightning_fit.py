"""Trains with Lightning, and goes on after a stop: lightning_fit.py STORE FOLDER STEPS"""

import sys

import dali_zarr
import lightning
import torch
from dali_zarr.torch import Batch, Loader
from lightning.pytorch.callbacks import ModelCheckpoint

if "--help" in sys.argv:
    sys.exit(print(__doc__))

store, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
parts = dali_zarr.splits(
    path=store, arrays=["t2m"], offsets={"input": 0, "target": 6}, stack_arrays=True, mean=280, stddev=10, batch_size=4,
    device="cpu", random_shuffle=True, train=slice(None, "2020-01-02T05"), validation=slice("2020-01-02T06", None),
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
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(batch["input"]), batch["target"]), batch_size=4)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


# The checkpoint has the loader's state_dict() beside the model's: Lightning asks each loader for one.
trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=2, max_steps=steps, num_sanity_val_steps=0, logger=False, enable_progress_bar=False,
    callbacks=[ModelCheckpoint(folder, save_last=True, every_n_train_steps=1)],
)
trainer.fit(Forecast(), Loader(**parts["train"]), Loader(**parts["validation"]), ckpt_path="last")
