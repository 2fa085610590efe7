"""The Loader inside Lightning, beside Accelerate and torchdata: epochs whole, states saved and restored."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from support.stores import Layout, write_array

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from dali_zarr.torch import Batch, Loader  # noqa: E402

STEPS = 23


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    base = tmp_path_factory.mktemp("frameworks")
    write_array(base, "n", np.arange(STEPS, dtype=np.int64), layout=Layout((4,)), dims=("time",))
    write_array(base, "x", np.arange(STEPS * 3, dtype="float32").reshape(STEPS, 3), layout=Layout((4, 3)), dims=("time", "lat"))
    return base


def make(path, **args):
    return Loader(path, arrays=["x", "n"], device="cpu", batch_size=4, host_memory_limit="128MiB", **args)


@pytest.fixture
def lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("lightning", reason="Lightning isn't installed: pip install lightning")


def module(lightning):
    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.seen: dict[str, list[list[int]]] = {"train": [], "val": []}

        def on_train_epoch_start(self):
            self.seen["train"].append([])

        def on_validation_epoch_start(self):
            self.seen["val"].append([])

        def training_step(self, batch, _):
            assert isinstance(batch, Batch) and batch.coords["time"].shape == batch["n"].shape
            # An epoch that goes on doesn't start.
            self.seen["train"] = self.seen["train"] or [[]]
            self.seen["train"][-1] += batch["n"].tolist()
            return self.layer(batch["x"]).mean()

        def validation_step(self, batch, _):
            self.seen["val"][-1] += batch["n"].tolist()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-9)

    return Model()


def trainer(lightning, tmp_path, **args):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    args = {"enable_checkpointing": "callbacks" in args} | args
    return lightning.Trainer(**{"accelerator": "cpu", "devices": 1, "default_root_dir": str(tmp_path)} | quiet | args)


@pytest.mark.filterwarnings("ignore")
def test_lightning(lightning, path, tmp_path):
    """Sanity check, validation and training: each epoch whole, though Lightning stops at len(loader)."""
    model = module(lightning)
    trainer(lightning, tmp_path, max_epochs=3).fit(model, make(path, random_shuffle=True), make(path))
    straight = make(path, random_shuffle=True)
    assert model.seen["train"] == [[n for b in straight for n in b["n"].tolist()] for _ in range(3)]
    assert model.seen["val"][0] == list(range(8)), "the sanity check takes two batches"
    assert model.seen["val"][1:] == [list(range(STEPS))] * 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", ["cpu", "cuda"])
def test_lightning_moves_batches_to_the_gpu(lightning, path, tmp_path, gpu, source):
    """A loader to the CPU beside a model on the GPU: what steps get is still a batch, with its values and coordinates there."""
    steps = []

    class Model(type(module(lightning))):
        def training_step(self, batch, number):
            assert isinstance(batch, Batch) and isinstance(batch["target"], Batch)
            assert self.device.type == "cuda" and batch["input"]["x"].device == batch["target"]["n"].device == self.device
            n = batch["input"]["n"].tolist()
            steps.append(n)
            assert batch["input"]["x"].tolist() == [[3 * i, 3 * i + 1, 3 * i + 2] for i in n]
            assert batch["target"]["n"].tolist() == [i + 1 for i in n]
            assert batch["target"].coords["time"].tolist() == [i + 1 for i in n] and batch.index[:, 0].tolist() == n
            return self.layer(batch["input"]["x"]).mean()

    how = {"accelerator": "gpu", "max_epochs": 1}
    limits = {} if source == "cpu" else {"device_memory_limit": "256MiB"}
    loader = Loader(
        path, arrays=["x", "n"], device=source, offsets={"input": 0, "target": 1}, batch_size=4, **limits,
        host_memory_limit="128MiB",
    )
    trainer(lightning, tmp_path, **how).fit(Model(), loader)
    assert [n for step in steps for n in step] == list(range(STEPS - 1))


@pytest.mark.filterwarnings("ignore")
def test_lightning_with_limits(lightning, path, tmp_path):
    model = module(lightning)
    limits = {"max_epochs": 2, "limit_train_batches": 2, "num_sanity_val_steps": 0}
    trainer(lightning, tmp_path, **limits).fit(model, make(path, random_shuffle=True))
    straight = make(path, random_shuffle=True)
    epochs = [[n for b in straight for n in b["n"].tolist()] for _ in range(2)]
    assert model.seen["train"] == [epoch[:8] for epoch in epochs]


@pytest.mark.filterwarnings("ignore")
def test_lightning_goes_on(lightning, path, tmp_path):
    """Stopped in mid-epoch and restored, training sees the rest of the epoch, and then whole ones."""
    straight = make(path, random_shuffle=True)
    epochs = [[n for b in straight for n in b["n"].tolist()] for _ in range(3)]
    saving = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "stopped-{step}", every_n_train_steps=8, save_top_k=-1)
    saved = trainer(lightning, tmp_path, max_epochs=3, callbacks=[saving])
    model = module(lightning)
    saved.fit(model, make(path, random_shuffle=True))
    assert model.seen["train"] == epochs
    again = module(lightning)
    file = str(tmp_path / "stopped-step=8.ckpt")
    trainer(lightning, tmp_path, max_epochs=3).fit(again, make(path, random_shuffle=True), ckpt_path=file)
    assert [epoch for epoch in again.seen["train"] if epoch] == [epochs[1][8:], epochs[2]]


@pytest.mark.filterwarnings("ignore")
def test_accelerate(path, tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="Accelerate isn't installed: pip install accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(torch.nn.Linear(3, 1), torch.optim.SGD(torch.nn.Linear(3, 1).parameters(), 1e-9))
    loader = make(path, random_shuffle=True)
    accelerator.register_for_checkpointing(loader)
    batches = iter(loader)
    for _ in range(2):
        batch = next(batches)
        accelerator.backward(model(batch["x"]).mean())
        optimizer.step()
    accelerator.save_state(str(tmp_path / "state"))
    rest = [b["n"].tolist() for b in batches]
    accelerator.load_state(str(tmp_path / "state"))
    assert [b["n"].tolist() for b in loader] == rest
    from accelerate.utils import send_to_device

    moved = send_to_device(batch, torch.device("meta"))
    assert isinstance(moved, Batch) and moved["x"].device.type == "meta"


@pytest.mark.filterwarnings("ignore")
def test_states_are_used_as_torchdatas(path):
    """The same loop with StatefulDataLoader and with the Loader, stopped after each batch."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata isn't installed: pip install torchdata")

    def theirs():
        loader = stateful.StatefulDataLoader(range(STEPS), batch_size=4)
        return loader, lambda batch: batch.tolist()

    def ours():
        return make(path), lambda batch: batch["n"].tolist()

    for stop in range(1, 7):
        found = []
        for made in (theirs, ours):
            loader, numbers = made()
            for step, _ in enumerate(loader, 1):
                if step == stop:
                    break
            state = loader.state_dict()
            loader, numbers = made()
            loader.load_state_dict(state)
            found.append([[numbers(b) for b in loader] for _ in range(2)])
        if stop == 6:
            # Theirs gives an empty rest, ours goes on with the next epoch: a loop over epochs sees no epoch without batches.
            assert found[0][0] == [] and found[1] == [found[0][1]] * 2
        else:
            assert found[0] == found[1], stop
