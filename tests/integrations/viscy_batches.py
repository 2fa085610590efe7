"""Reads plates that iohub has written by VisCy's HCSDataModule and by the adapter's; values that differ end it with an error. Its
argument is a JSON list of cases. It prints JSON: for each case the number of equal batches, and the losses of a model."""

from __future__ import annotations

import gc
import json
import logging
import sys
import tempfile
import weakref
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
from viscy.data.combined import CombinedDataModule
from viscy.data.hcs import HCSDataModule, SlidingWindowDataset, _collate_samples
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


def unflipped(batch: Any, like: Any) -> Any:
    """The batch with each sample flipped, its source and its target together, where that makes it equal to another batch's."""
    batch = dict(batch)
    for i, source in enumerate(like["source"]):
        if not torch.equal(batch["source"][i], source):
            for key in ("source", "target"):
                batch[key][i] = batch[key][i].flip(-1, -2)
    return batch


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
            if case.get("num_workers") and stage == "train":
                # Each worker has a state of its own, so the first worker's first batch alone has the same draws.
                if not epoch:
                    same(batches[0][0], batches[1][0])
                batches[0] = [unflipped(one, other) for one, other in zip(*batches, strict=True)]
            same(*batches)
            assert not any(one._windows for one in ours.dataset.read), "nothing is kept after an epoch"
            count += len(batches[0])
            next(iter(ours))  # an epoch that is left
        same(ours.dataset[0]["index"], theirs.dataset[0]["index"])
    return count


class Pairs(SlidingWindowDataset):
    """A data set of one's own, which also reads the next time, and other forms."""

    def _read_img_window(self, img: Any, ch_idx: list[int], tz: int) -> Any:
        _, (name, t, z) = super()._read_img_window(img, ch_idx, tz)
        slices = slice(z, z + self.z_window_size)
        data = img.oindex[slice(t, t + 2), ch_idx, slices].astype("f4").sum(0, keepdims=True)
        data += img[t, 0, z].mean() + img.oindex[0][0, 0].mean() + img.oindex[t, ch_idx, slices].mean()
        for strided in (slice(t, t + 1, 1), slice(t, None), slice(None)):
            data += img.oindex[strided, ch_idx, slices].mean() + img.oindex[strided, ch_idx, slice(z, None, 2)].mean()
        return torch.from_numpy(data).unbind(dim=1), (name, t, z)


def of_ones_own(folder: Path) -> int:
    """Loaders over a data set of one's own, by ``of``, one with its own batch sampler."""
    module = made(HCSDataModule, folder, {"split_ratio": 0.7})
    module.setup("fit")
    positions, channels = module.train_dataset.positions, {"source": CHANNELS[:1], "target": CHANNELS[1:2]}
    data = Pairs(positions, channels, 3)
    batches = torch.utils.data.BatchSampler(range(len(data) - 1, 2, -1), 5, drop_last=False)
    count = 0
    for how in ({"batch_size": 4}, {"batch_sampler": batches}):
        theirs = torch.utils.data.DataLoader(data, collate_fn=_collate_samples, **how)
        ours = adapter.BatchLoader.of(theirs, **SMALL)
        same(list(ours), list(theirs))
        count += len(ours)
        reader = weakref.ref(ours.dataset.read[0]._reader)
        gc.disable()
        del ours
        assert reader() is None, "a reader ends with its loader"
        gc.enable()
    for how in ({"batch_size": None}, {"batch_sampler": [[1, 2], [3]]}):
        try:
            adapter.BatchLoader.of(torch.utils.data.DataLoader(data, **how), **SMALL)
        except ValueError as error:
            assert str(error).startswith("dali_zarr: viscy: loader: expected a batch_size"), error
        else:
            raise AssertionError("no error")
    return count


def combined(folder: Path) -> int:
    """Two loaders in turn, which draw from one generator, as VisCy combines them."""
    found: list[Any] = []
    for workers in (0, 1):
        for kind in (adapter.HCSDataModule, HCSDataModule):
            lightning.seed_everything(7, verbose=False)
            module = CombinedDataModule([made(kind, folder, {"num_workers": workers}) for _ in range(2)])
            module.setup("fit")
            found.append([batches for batches, *_ in module.train_dataloader()])
            found[-1].append(torch.get_rng_state())
        same(*found[-2:])
    return sum(map(len, found[::2]))


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
        found["own"], found["combined"] = of_ones_own(Path(name)), combined(Path(name))
        found["losses"] = [trained(Path(name), kind) for kind in (adapter.HCSDataModule, HCSDataModule)]
        print("FOUND" + json.dumps(found))
