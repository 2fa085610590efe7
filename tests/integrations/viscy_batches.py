"""Reads plates that iohub has written by VisCy's HCSDataModule and by the adapter's; values that differ end it with an error. Its
argument is a JSON list of cases. It prints JSON: for each case the number of equal batches, and the losses of a model."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from dali_zarr.integrations import viscy as adapter
from iohub.ngff import open_ome_zarr
from iohub.ngff.nodes import ImageArray
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities import data as lightning_data
from monai.utils import set_determinism
from viscy.data.hcs import HCSDataModule
from viscy.transforms import NormalizeSampled, RandAffined, RandFlipd, RandWeightedCropd

CHANNELS = ["Phase", "Nuclei", "Membrane"]
SMALL = {"host_memory_limit": "64MiB"}
FOVS = [("A", "1", "0"), ("A", "1", "1"), ("A", "2", "0"), ("B", "1", "000"), ("B", "3", "0"), ("B", "3", "10")]


def write(path: Path, kind: str = "plain", side: int = 24) -> None:
    """A plate of six positions, with statistics of each as VisCy's preprocessing writes them."""
    rng = np.random.default_rng(0)
    dtype = {"float": "f4", "bytes": "u1", "double": "f8"}.get(kind, "u2")
    with open_ome_zarr(path, layout="hcs", mode="w", channel_names=CHANNELS, version="0.5" if kind == "shards" else "0.4") as plate:
        for i, name in enumerate(FOVS):
            position = plate.create_position(*name)
            more = i % 3 if kind == "unlike" else 0
            shape = (2 + more, 3, 8 + more, side + 4 * more, side)
            chunks = (1, 1, 4, shape[3], side // 2)
            values = (rng.normal(100, 20, shape)).clip(0, 250).astype(dtype)
            for level in ("0", "1") if kind == "levels" else ("0",):
                how = {"shards_ratio": (1, 3, 2, 1, 2)} if kind == "shards" else {}
                position.create_image(level, values[..., :: 1 + int(level), :], chunks=chunks, **how)
            statistics = {"mean": 100.3 + i, "std": 19.7, "median": 99.0, "iqr": 26.1}
            position.zattrs["normalization"] = {
                channel: {"fov_statistics": statistics, "timepoint_statistics": {str(t): statistics for t in range(2)}}
                for channel in CHANNELS
            }


def made(kind: type, folder: Path, case: dict[str, Any]) -> Any:
    case = dict(case)
    store, keys = folder / f"{case.pop('store', 'plain')}.zarr", CHANNELS[:2]
    if not store.exists():
        write(store, store.stem)
    crops = {"keys": keys, "w_key": CHANNELS[1], "spatial_size": (4, 12, 12), "num_samples": 2}
    normalised = case.pop("normalised", keys)
    transforms: dict[str, Any] = {
        "normalizations": lambda level: [NormalizeSampled(normalised, level)],
        "augmentations": lambda names: [{
            "affine": lambda: RandAffined(keys, 0.8, rotate_range=[0.5, 0, 0], shear_range=[0.0] * 3, scale_range=[0.3, 0.2, 0.2]),
            "crops": lambda: RandWeightedCropd(**crops), "flip": lambda: RandFlipd(keys, prob=0.5, spatial_axis=[1, 2]),
        }[name]() for name in names],
    }
    for name, make in transforms.items():
        if name in case:
            case[name] = make(case[name])
    how = {"data_path": str(store / case.pop("fov", "")), "source_channel": CHANNELS[0], "target_channel": CHANNELS[1],
           "z_window_size": 3, "batch_size": 4, "num_workers": 0, "yx_patch_size": (16, 16)}
    return kind(**how | case, **(SMALL if kind is adapter.HCSDataModule else {}))


def same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs), (type(ours), type(theirs))
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key, value in ours.items():
            same(value, theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    elif isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)
    else:
        assert ours == theirs


def ranked(loader: Any, stage: str) -> Any:
    """The loader of the second of two ranks, made by Lightning's function for it."""
    sampler = torch.utils.data.DistributedSampler(loader.dataset, 2, 1, shuffle=stage == "train", seed=3)
    return lightning_data._update_dataloader(loader, sampler, RunningStage.TRAINING)


def compare(folder: Path, case: dict[str, Any]) -> int:
    case, count = dict(case), 0
    is_ranked, stages = case.pop("ranked", False), case.pop("stages", ["train", "val", "test"])
    loaders: list[dict[str, Any]] = []
    for kind in (adapter.HCSDataModule, HCSDataModule):
        module, found = made(kind, folder, case), {}
        module.prepare_data()
        for stage in stages:
            lightning.seed_everything(7, verbose=False)
            module.setup({"train": "fit", "val": "fit"}.get(stage, stage))
            found[stage] = getattr(module, f"{stage}_dataloader")()
            if is_ranked:
                found[stage] = ranked(found[stage], stage)
        loaders.append(found)
    for stage in stages:
        ours, theirs = (found[stage] for found in loaders)
        assert isinstance(ours, adapter.BatchLoader) and not isinstance(theirs, adapter.BatchLoader)
        assert len(ours) == len(theirs)
        for epoch in range(2):
            batches, states = [], []
            for loader in (ours, theirs):
                set_determinism(epoch)
                if is_ranked:
                    loader.sampler.set_epoch(epoch)
                if hasattr(loader.dataset.transform, "set_random_state"):
                    loader.dataset.transform.set_random_state(epoch)
                if loader is ours:
                    ImageArray.oindex = None  # whatever is read by iohub fails
                batches.append(list(loader))
                if loader is ours:
                    del ImageArray.oindex
                states.append(torch.get_rng_state())
            assert torch.equal(*states), "a model draws the same random numbers"
            same(*batches)
            count += len(batches[0])
            next(iter(ours))  # an epoch that is left
        same(ours.dataset[0]["index"], theirs.dataset[0]["index"])
    return count


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.losses = torch.nn.Conv3d(1, 1, 3, padding=1), []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = (self.layer(batch["source"]) - batch["target"]).square().mean()
        self.losses.append(float(loss))
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.losses.append(float((self.layer(batch["source"]) - batch["target"]).square().mean()))

    def predict_step(self, batch: Any, _: int) -> list[Any]:
        return [batch["index"], float(self.layer(batch["source"]).detach().sum())]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)


def trained(folder: Path, kind: type) -> list[Any]:
    """An epoch, another one from its checkpoint, and a prediction."""
    losses = []
    case = {"normalizations": "fov_statistics", "augmentations": ["flip"], "split_ratio": 0.7, "target_2d": True}
    quiet: Any = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    where, path = folder / kind.__module__, None
    for epoch in range(2):
        lightning.seed_everything(11, verbose=False)
        set_determinism(epoch)
        module, model = made(kind, folder, case), Model()
        saving = lightning.pytorch.callbacks.ModelCheckpoint(where, f"{epoch}", save_top_k=-1)
        trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=epoch + 1, callbacks=[saving], **quiet)
        trainer.fit(model, module, ckpt_path=path)
        losses += model.losses
        path = str(where / f"{epoch}.ckpt")
        if epoch:
            alone = {"normalizations": "fov_statistics", "normalised": CHANNELS[:1]}
            losses += [str(one) for one in trainer.predict(model, made(kind, folder, alone))]
    return losses


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        found: dict[str, Any] = {"cases": []}
        for case in json.loads(sys.argv[1]):
            try:
                found["cases"].append(compare(Path(name), case))
            except BaseException as error:
                error.add_note(str(case))
                raise
        found["losses"] = [trained(Path(name), kind) for kind in (adapter.HCSDataModule, HCSDataModule)]
        print("FOUND" + json.dumps(found))
