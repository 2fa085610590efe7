"""Trains by the Trainer of Transformers with stores, and with a DataLoader of the same samples in the same order. Prints what was
found as JSON, by test. Its argument is a folder."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import zarr
from dali_zarr.integrations.transformers import Data, Trainer
from dali_zarr.torch import Loader

warnings.simplefilter("ignore")
FOLDER, STEPS = Path(sys.argv[1]), 22
PATH = FOLDER / "x.zarr"
VALUES = np.random.default_rng(0).normal(size=(STEPS, 3)).astype("f4")
group = zarr.open_group(str(PATH), mode="w")
for name, values in {"x": VALUES, "y": VALUES[:, 0] * 2, "n": np.arange(STEPS), "time": np.arange(STEPS)}.items():
    how = {"chunks": (4, *values.shape[1:]), "dtype": values.dtype, "dimension_names": ["time", "lat"][: values.ndim]}
    group.create_array(name, shape=values.shape, **how)[:] = values
SMALL = {"host_memory_limit": "64MiB"}
QUIET = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "logging_steps": 1, "learning_rate": 0.01, "num_train_epochs": 2,
         "per_device_train_batch_size": 4, "per_device_eval_batch_size": 3, "lr_scheduler_type": "constant", "seed": 5}


class Model(torch.nn.Module):
    """A linear map."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 1)
        self.seen: list[Any] = []

    def forward(self, pixel_values: Any = None, labels: Any = None, n: Any = None) -> dict[str, Any]:
        found = self.linear(pixel_values)[:, 0]
        if n is not None:
            self.seen += n.tolist()
        return {"loss": (found - labels).square().mean(), "logits": found}


ARRAYS = {"pixel_values": "x", "labels": "y", "n": "n"}


def data(**more: Any) -> Data:
    return Data(str(PATH), **{"arrays": ARRAYS} | SMALL | more)


def samples(numbers: list[int]) -> list[dict[str, Any]]:
    return [{"pixel_values": VALUES[n], "labels": float(VALUES[n, 0] * 2), "n": n} for n in numbers]


def order(epochs: int, **how: Any) -> list[list[int]]:
    """The numbers of the samples by epoch, as a loader alone gives them."""
    loader = Loader(str(PATH), arrays=["n"], batch_size=4, device="cpu", **{"random_shuffle": True, "seed": 5} | SMALL | how)
    return [[n for batch in loader for n in batch["n"].tolist()] for _ in range(epochs)]


class Theirs(transformers.Trainer):
    """Reads samples in memory, in an order that is given."""

    def get_train_dataloader(self) -> Any:
        epochs = iter(self.orders)

        class InOrder(torch.utils.data.Sampler):
            def __iter__(self) -> Any:
                return iter(next(epochs))

            def __len__(self) -> int:
                return STEPS

        how = {"collate_fn": self.data_collator, "drop_last": self.args.dataloader_drop_last}
        return torch.utils.data.DataLoader(self.train_dataset, 4, sampler=InOrder(), **how)


def trained(kind: type, name: str, orders: Any = None, resume: str | None = None, **more: Any) -> dict[str, Any]:
    model = Model()
    args = transformers.TrainingArguments(str(FOLDER / name), **QUIET | more)
    how = {"train_dataset": data()} if kind is Trainer else {"train_dataset": samples(list(range(STEPS)))}
    trainer = kind(model=model, args=args, **how)
    trainer.orders = orders
    trainer.train(resume_from_checkpoint=resume)
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    return {"seen": model.seen, "losses": losses, "weights": model.linear.weight.tolist(), "steps": trainer.state.global_step}


def refused(how: dict[str, Any], **more: Any) -> str:
    try:
        args = transformers.TrainingArguments(str(FOLDER / "refused"), **QUIET | more)
        Trainer(model=Model(), args=args, train_dataset=data(), **how).train()
    except ValueError as error:
        return str(error)
    return "nothing"


found: dict[str, Any] = {"order": order(2)}
for name, more in {
    "shuffled": {}, "accumulated": {"gradient_accumulation_steps": 2}, "dropped": {"dataloader_drop_last": True},
    "data_seed": {"data_seed": 9},
}.items():
    orders = order(2, seed=more.get("data_seed", 5))
    found[name] = {"ours": trained(Trainer, name, **more), "theirs": trained(Theirs, name + "_theirs", orders, **more)}
found["sequential"] = trained(Trainer, "sequential", train_sampling_strategy="sequential")
saving = {"save_steps": 4, "save_strategy": "steps"}
found["saved"] = trained(Trainer, "saved", **saving)
found["resumed"] = {
    step: trained(Trainer, "saved", resume=str(FOLDER / "saved" / f"checkpoint-{step}"), **saving) for step in (4, 8)
}

# Evaluation by both.
for name, kind, made in (("ours", Trainer, data), ("theirs", transformers.Trainer, lambda: samples(list(range(STEPS))))):
    args = transformers.TrainingArguments(str(FOLDER / "evaluated"), **QUIET)
    trainer = kind(model=Model(), args=args, eval_dataset={"one": made(), "two": made()})
    metrics = {key: value for key, value in trainer.evaluate().items() if key.endswith("_loss")}
    predicted = trainer.predict(made())
    found["evaluated " + name] = [metrics, predicted.predictions[0].tolist(), predicted.label_ids.tolist()]

# Entries that the model doesn't take.
model = Model()
args = transformers.TrainingArguments(str(FOLDER / "more"), max_steps=1, **QUIET)
Trainer(model=model, args=args, train_dataset=data(arrays=ARRAYS | {"more": "time"})).train()
found["more"] = len(model.seen)
found["refused"] = {
    "data_collator": refused({"data_collator": lambda samples: samples}),
    "train_sampling_strategy": refused({}, train_sampling_strategy="group_by_length"),
    "split_batches": refused({}, accelerator_config={"split_batches": True}),
}
try:
    data(batch_size=4)
except ValueError as error:
    found["refused"]["batch_size"] = str(error)
print("FOUND" + json.dumps(found))
