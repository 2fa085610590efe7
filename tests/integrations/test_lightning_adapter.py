"""The data module gives Lightning's trainer the samples of each part, and goes on from checkpoints in mid-epoch. A model has the
same losses, to the bit, as with a DataLoader of the same samples in the same order."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from support.stores import Layout, write_array

torch = pytest.importorskip("torch", reason="`make integrations` installs it")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning", reason="`make integrations` installs it")

from dali_zarr.integrations.lightning import DataModule  # noqa: E402
from dali_zarr.torch import Loader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS, TRAIN = 40, 24
VALUES = np.random.default_rng(0).normal(size=(STEPS, 3)).astype("f4")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    base = tmp_path_factory.mktemp("lightning") / "x.zarr"
    write_array(base, "x", VALUES, layout=Layout((4, 3)), dims=("time", "lat"))
    write_array(base, "n", np.arange(STEPS, dtype="i8"), layout=Layout((4,)), dims=("time",))
    write_array(base, "time", np.arange(STEPS), dims=("time",))
    return base


def module(path, **more):
    parts = {"train": slice(0, TRAIN - 1), "validation": slice(TRAIN, 31), "test": slice(32, None)}
    how = {"path": path, "arrays": ["x", "n"], "batch_size": 4, "random_shuffle": True, "host_memory_limit": "64MiB"}
    return DataModule(**how | parts | more)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 1)
        self.seen = {"train": [], "validation": [], "test": []}
        self.losses = []

    def training_step(self, batch, _):
        self.seen["train"] += batch["n"].tolist()
        loss = (self.layer(batch["x"]) - 1).square().mean()
        self.losses.append(float(loss))
        return loss

    def validation_step(self, batch, _):
        self.seen["validation"] += batch["n"].tolist()

    def test_step(self, batch, _):
        self.seen["test"] += batch["n"].tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(folder, **args):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    args = {"enable_checkpointing": "callbacks" in args} | args
    return lightning.Trainer(**{"accelerator": "cpu", "devices": 1, "default_root_dir": str(folder)} | quiet | args)


def order(path, epochs):
    """The numbers of the samples of training, as a loader alone gives them."""
    parts = {"isel": {"time": slice(0, TRAIN)}}
    loader = Loader(path, arrays=["n"], batch_size=4, random_shuffle=True, device="cpu", host_memory_limit="64MiB", **parts)
    return [n for _ in range(epochs) for batch in loader for n in batch["n"].tolist()]


def test_each_part(path, tmp_path):
    model, data = Model(), module(path)
    fitting = trainer(tmp_path, max_epochs=2)
    fitting.fit(model, data)
    fitting.test(model, data)
    assert model.seen["train"] == order(path, 2) and sorted(model.seen["train"][:TRAIN]) == list(range(TRAIN))
    assert model.seen["validation"] == [*range(TRAIN, 32)] * 2 and model.seen["test"] == [*range(32, STEPS)]
    assert data.train_dataloader() is data.train_dataloader()


def test_losses_are_those_with_a_data_loader(path, tmp_path):
    """Twelve steps with a DataLoader over the values in memory, in the same order."""
    own, other = Model(), Model()
    trainer(tmp_path, max_epochs=2).fit(own, module(path))
    samples = [{"x": torch.from_numpy(VALUES[n]), "n": torch.tensor(n)} for n in order(path, 2)]
    trainer(tmp_path, max_epochs=1).fit(other, torch.utils.data.DataLoader(samples, batch_size=4))
    assert len(own.losses) == 12 and own.losses == other.losses
    assert all(torch.equal(one, two) for one, two in zip(own.parameters(), other.parameters(), strict=True))


def test_it_goes_on_in_mid_epoch(path, tmp_path):
    saving = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1)
    whole = Model()
    trainer(tmp_path, max_epochs=2, callbacks=[saving]).fit(whole, module(path))
    again = Model()
    trainer(tmp_path, max_epochs=2).fit(again, module(path), ckpt_path=str(tmp_path / "step=8.ckpt"))
    assert again.seen["train"] == whole.seen["train"][8 * 4 :] and again.losses == whole.losses[8:]


def test_other_arguments_for_evaluation(path, tmp_path):
    data = module(path, evaluation={"batch_size": 2})
    trainer(tmp_path, max_epochs=1).fit(Model(), data)
    assert (len(data.train_dataloader()), len(data.val_dataloader()), len(data.predict_dataloader())) == (6, 4, 4)


def test_without_validation(path, tmp_path):
    model = Model()
    trainer(tmp_path, max_epochs=1).fit(model, module(path, validation=None))
    assert len(model.seen["train"]) == TRAIN and model.seen["validation"] == []


def test_a_stage_without_its_part(path, tmp_path):
    message = "expected test for the stage 'test', but the data module has train, validation; give test="
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path).test(Model(), module(path, test=None))
    with pytest.raises(ValueError, match="splits: expected at least one of train"):
        DataModule(path=path, arrays=["x"])
    with pytest.raises(TypeError, match="no such argument"):
        module(path, shuffle=True)
