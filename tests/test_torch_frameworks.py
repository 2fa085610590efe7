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


def module(lightning, asks=False):
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
            if asks:
                assert self.trainer.estimated_stepping_batches > 0
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
@pytest.mark.parametrize("asks", [False, True], ids=["", "estimated_stepping_batches"])
def test_lightning_goes_on(lightning, path, tmp_path, asks):
    """Stopped in mid-epoch or at an epoch's end, and restored, training sees the rest of the epoch, and then whole ones: also if
    configure_optimizers asks for the number of steps, after which Lightning itself doesn't load the loader's state."""
    straight = make(path, random_shuffle=True)
    epochs = [[n for b in straight for n in b["n"].tolist()] for _ in range(3)]
    saving = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "stopped-{step}", every_n_train_steps=2, save_top_k=-1)
    saved = trainer(lightning, tmp_path, max_epochs=3, callbacks=[saving])
    model = module(lightning)
    saved.fit(model, make(path, random_shuffle=True))
    assert model.seen["train"] == epochs
    for step, rest in ((8, [epochs[1][8:], epochs[2]]), (12, [epochs[2]])):
        again = module(lightning, asks)
        file = str(tmp_path / f"stopped-step={step}.ckpt")
        going_on = trainer(lightning, tmp_path, max_epochs=3)
        going_on.fit(again, make(path, random_shuffle=True), ckpt_path=file)
        assert [epoch for epoch in again.seen["train"] if epoch] == rest
        # What Lightning kept isn't loaded into the loader of another run.
        going_on.fit_loop.max_epochs = 4
        going_on.fit(again, make(path, random_shuffle=True))
        assert again.seen["train"][-1] == epochs[0]


@pytest.mark.filterwarnings("ignore")
def test_lightning_counted_other_batches(lightning, path, tmp_path):
    """If the epoch began with another batch size, Lightning would leave out some of its batches. An error says what to do."""
    saving = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "stopped-{step}", every_n_train_steps=2, save_top_k=-1)
    trainer(lightning, tmp_path, max_epochs=1, callbacks=[saving]).fit(module(lightning), make(path))
    loader = Loader(path, arrays=["x", "n"], device="cpu", batch_size=8, host_memory_limit="128MiB")
    with pytest.raises(RuntimeError, match="Lightning counted 3 batches.*the epoch that goes on has 4.*estimated_stepping_batches"):
        trainer(lightning, tmp_path, max_epochs=1).fit(
            module(lightning, True), loader, ckpt_path=str(tmp_path / "stopped-step=2.ckpt"),
        )


@pytest.mark.filterwarnings("ignore")
def test_lightning_keeps_a_loader_among_hyperparameters(lightning, path, tmp_path):
    class Model(type(module(lightning))):
        def __init__(self, loader):
            super().__init__()
            self.save_hyperparameters()

    loader = make(path, random_shuffle=True)
    model = Model(loader)
    training = trainer(lightning, tmp_path, max_epochs=1)
    training.fit(model, loader)
    training.save_checkpoint(tmp_path / "model.ckpt")
    found = Model.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=False).hparams["loader"]
    assert [b["n"].tolist() for b in found] == [b["n"].tolist() for b in loader]


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
@pytest.mark.parametrize("stop", [None, 4], ids=["", "stopped"])
def test_accelerate_accumulates(path, stop):
    """Gradients are synchronised at the end of each epoch, as with a DataLoader; a loop in between doesn't count."""
    accelerate = pytest.importorskip("accelerate", reason="Accelerate isn't installed: pip install accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    model, loader = torch.nn.Linear(3, 1), make(path)
    synced = []
    for _ in range(2):
        for number, batch in enumerate(loader):
            if number == stop:
                break
            with accelerator.accumulate(model):
                synced.append(accelerator.sync_gradients)
            if number == 1:
                assert len(list(make(path))) == 6 and not accelerator.gradient_state.end_of_dataloader
            assert accelerator.gather_for_metrics(batch["n"]).tolist() == batch["n"].tolist()
    assert not accelerator.gradient_state.in_dataloader
    # A stopped epoch isn't counted to its end, so steps go on in the next one.
    assert synced == ([False, False, False, True, False, True] * 2 if stop is None else [False, False, False, True] * 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", [{}, {"pad_last_batch": True}, {"drop_last": True}, {"sampler": range(STEPS)}], ids="".join)
def test_accelerate_counts_the_last_batch(path, how):
    """A loss that is repeated for each sample, as Transformers' evaluation has it, has the last batch's own weight, as with a
    DataLoader. Repeated samples are cut off."""
    accelerate = pytest.importorskip("accelerate", reason="Accelerate isn't installed: pip install accelerate")
    accelerator, numbers, sizes = accelerate.Accelerator(cpu=True), [], []
    for batch in make(path, **how):
        numbers += accelerator.gather_for_metrics(batch["n"]).tolist()
        sizes.append(len(accelerator.gather_for_metrics(torch.zeros(()).repeat(4))))
    count = STEPS // 4 * 4 if "drop_last" in how else STEPS
    assert numbers == list(range(count)) and sizes == [4] * (count // 4) + [STEPS % 4] * (count % 4 > 0)
    prepared = accelerator.prepare(torch.utils.data.DataLoader(range(STEPS), 4, drop_last="drop_last" in how))
    assert sizes == [len(accelerator.gather_for_metrics(torch.zeros(()).repeat(4))) for _ in prepared]


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_accelerate_skips_batches(path, taken):
    """The DataLoader that skip_first_batches makes gives the rest of the epoch; batches that a state has skipped aren't skipped
    again."""
    accelerate = pytest.importorskip("accelerate", reason="Accelerate isn't installed: pip install accelerate")
    epochs = [[b["n"].tolist() for b in loader] for loader in [make(path, random_shuffle=True)] for _ in range(2)]
    loader = make(path, random_shuffle=True)
    rest = accelerate.skip_first_batches(loader, taken)
    found = list(rest)
    assert all(isinstance(b, Batch) for b in found) and [b["n"].tolist() for b in found] == epochs[0][taken:]
    assert len(rest.dataset) == STEPS and len(rest) == len(loader) - taken
    assert [b["n"].tolist() for b in loader] == epochs[1]
    # Trainer of Transformers calls set_epoch of the sampler inside.
    rest.batch_sampler.batch_sampler.set_epoch(0)
    assert [b["n"].tolist() for b in rest] == epochs[0][taken:]
    loader.set_epoch(0)
    next(iter(loader))
    restored = make(path, random_shuffle=True)
    restored.load_state_dict(loader.state_dict())
    assert [b["n"].tolist() for b in accelerate.skip_first_batches(restored, taken)] == epochs[0][max(taken, 1) :]
    with pytest.raises(TypeError, match="a loader has no elements by number"):
        print(loader.dataset[0])


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_transformers_goes_on(path, tmp_path):
    transformers = pytest.importorskip("transformers", reason="Transformers isn't installed: pip install transformers")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(3, 1), []

        def forward(self, x=None, n=None):
            self.seen.append(n.tolist())
            return {"loss": self.layer(x).mean()}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return make(path, random_shuffle=True)

    def trained(**how):
        model = Model()
        quiet = {"report_to": [], "use_cpu": True, "logging_strategy": "no", "disable_tqdm": True}
        arguments = transformers.TrainingArguments(str(tmp_path), num_train_epochs=2, save_steps=4, learning_rate=1e-9, **quiet)
        Trainer(model=model, train_dataset=[0] * STEPS, args=arguments).train(**how)
        return model.seen

    full = trained()
    for step in (4, 8):
        assert trained(resume_from_checkpoint=f"{tmp_path}/checkpoint-{step}") == full[step:]


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
