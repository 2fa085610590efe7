"""Trains with Lightning, and goes on after a stop."""

import argparse

import dali_zarr
import lightning
import torch
from dali_zarr.torch import Batch, Loader
from lightning.pytorch.callbacks import ModelCheckpoint

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("store", help="such as example-data/days.zarr, which small_stores.py writes")
parser.add_argument("folder", help="for checkpoints, such as example-data/lightning; the training goes on from the last one")
parser.add_argument("steps", type=int, help="after how many steps to stop")
args = parser.parse_args()

parts = dali_zarr.splits(
    path=args.store, arrays=["t2m"], offsets={"input": 0, "target": 6}, stack_arrays=True, mean=280, stddev=10, batch_size=4,
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
    accelerator="cpu", max_epochs=2, max_steps=args.steps, num_sanity_val_steps=0, logger=False, enable_progress_bar=False,
    callbacks=[ModelCheckpoint(args.folder, save_last=True, every_n_train_steps=1)],
)
trainer.fit(Forecast(), Loader(**parts["train"]), Loader(**parts["validation"]), ckpt_path="last")
