"""Loaders that are made before their process knows its rank: it is found when it is needed, or an error says what to do."""

from __future__ import annotations

import contextlib
import gc
import json
import threading
import time
from pathlib import Path

import dali_zarr
import pytest
from support.loaders import STEPS, flat, make, numbers, write
from support.pipelines import run_script
from support.processes import start_program

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from dali_zarr._frameworks import devices  # noqa: E402
from dali_zarr._loading import course  # noqa: E402
from dali_zarr._loading.reading import Reading  # noqa: E402


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("ranks"))


class Ranks:
    """Makes this process one rank after the other, as torchrun's environment tells it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self._monkeypatch = monkeypatch

    def become(self, rank: int, world: int = 2) -> None:
        self._monkeypatch.setenv("RANK", str(rank))
        self._monkeypatch.setenv("WORLD_SIZE", str(world))

    def leave(self) -> None:
        for name in ("RANK", "WORLD_SIZE"):
            self._monkeypatch.delenv(name, raising=False)

    def each(self, prepare, use) -> list:
        """What ``use`` makes of what ``prepare`` made before the rank was known, for both ranks."""
        found = []
        for rank in range(2):
            self.leave()
            prepared = prepare()
            self.become(rank)
            found.append(use(prepared))
        return found


@pytest.fixture
def ranks(monkeypatch):
    found = Ranks(monkeypatch)
    found.leave()
    return found


USES = {
    "made": lambda _loader: None, "len": len, "repr": repr, "state": lambda loader: loader.state_dict(),
    "epoch": lambda loader: loader.epoch, "iter": iter,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("args", [{}, {"random_shuffle": True}, {"drop_last": True}], ids=str)
def test_the_rank_is_found_when_it_is_needed(path, ranks, use, args):
    """Whatever was asked before it was known, as long as no batch was given."""
    def prepare():
        loader = make(path, **args)
        use(loader)
        return loader

    found = ranks.each(prepare, lambda loader: (len(loader), numbers(loader), repr(loader), loader.state_dict()["rank"]))
    own = [flat(epoch) for _, epoch, _, _ in found]
    assert [length for length, *_ in found] == [len(epoch) for _, epoch, *_ in found] == [2 if "drop_last" in args else 3] * 2
    assert len(set(own[0] + own[1])) == len(own[0] + own[1]) == (16 if "drop_last" in args else STEPS)
    assert all(f"rank {rank} of 2" in found[rank][2] and found[rank][3] == rank for rank in range(2))


@pytest.mark.parametrize("random", [False, True], ids=["", "transform"])
def test_a_state_that_was_loaded_before_the_rank_was_known(path, ranks, random):
    """Ranks go on where all were, and the transform's random numbers with them."""
    from nvidia.dali import fn

    def noisy(outputs):
        return {"n": outputs["n"], "noise": fn.random.uniform(range=[0, 1])}

    args = {"random_shuffle": True} | ({"transform": noisy} if random else {})
    states, seen, rest = [], [], []
    for rank in range(2):
        loader = make(path, shard_id=rank, num_shards=2, **args)
        batches = iter(loader)
        seen += next(batches)["n"].tolist()
        states.append(loader.state_dict())
        rest.append([{name: tensor.tolist() for name, tensor in batch.items()} for batch in batches])
    for rank in range(2):
        ranks.leave()
        loader = make(path, **args)
        loader.load_state_dict(states[rank])
        ranks.become(rank)
        assert [{name: tensor.tolist() for name, tensor in batch.items()} for batch in loader] == rest[rank]
    assert sorted(seen + [n for own in rest for batch in own for n in batch["n"]]) == list(range(STEPS))


@pytest.mark.parametrize("epoch", [0, 1, 4])
def test_an_epoch_that_was_set_before_the_rank_was_known(path, ranks, epoch):
    def prepare():
        loader = make(path, random_shuffle=True)
        loader.set_epoch(epoch)
        return loader

    found = ranks.each(prepare, lambda loader: (numbers(loader), loader.epoch))
    for rank, own in enumerate(found):
        straight = make(path, random_shuffle=True, shard_id=rank, num_shards=2)
        straight.set_epoch(epoch)
        assert own == (numbers(straight), epoch)


def test_a_loader_that_has_given_batches_says_what_to_do(path, ranks):
    """Another rank would have given others. What was given can be saved, and all go on from there."""
    def prepare():
        loader = make(path, random_shuffle=True)
        return loader, next(iter(loader))["n"].tolist()

    def use(prepared):
        loader, first = prepared
        for wrong in (len, iter):
            with pytest.raises(RuntimeError, match=r"rank 0 of 1, but the process is rank \d of 2 now.*load_state_dict, or give"):
                wrong(loader)
        assert ", rank" not in repr(loader) and loader.epoch == 0
        state = loader.state_dict()
        assert (state["rank"], state["world_size"]) == (0, 1)
        loader.load_state_dict(state)
        return first, flat(numbers(loader))

    (first, one), (again, other) = ranks.each(prepare, use)
    assert first == again and sorted(first + one + other) == list(range(STEPS))


def test_a_state_that_does_not_fit_leaves_no_other_rank(path, ranks):
    def use(loader):
        with pytest.raises(ValueError, match="seed: the default in the checkpoint, 3 here"):
            loader.load_state_dict(state)
        return flat(numbers(loader))

    state = make(path, random_shuffle=True).state_dict()
    one, other = ranks.each(lambda: make(path, random_shuffle=True, seed=3), use)
    assert sorted(one + other) == list(range(STEPS))


def test_a_rank_that_nobody_tells_any_more_stays(path, ranks):
    """So a state can be taken after the process group was destroyed."""
    ranks.become(1)
    loader = make(path)
    assert flat(numbers(loader)) == list(range(11, STEPS))
    ranks.leave()
    assert loader.state_dict()["rank"] == 1 and len(loader) == 3


def test_a_rank_that_was_given_stays(path, ranks):
    loader = make(path, shard_id=0, num_shards=1)
    ranks.become(1)
    assert flat(numbers(loader)) == list(range(STEPS))


def test_too_few_samples_for_the_rank(path, ranks):
    """Known when the number of ranks is."""
    loader = make(path, batch_size=12, drop_last=True)
    ranks.become(0)
    for _ in range(2):
        with pytest.raises(ValueError, match="drop_last: expected at least one whole batch, but the 23 samples on 2 ranks"):
            iter(loader)


@pytest.mark.parametrize(
    ("local", "count", "used", "expected"),
    [(None, 4, False, 2), ("1", 4, False, 1), ("1", 1, False, 2), ("1", 4, True, 2), ("", 4, False, 2)],
)
def test_the_default_device(monkeypatch, local, count, used, expected):
    """The current one; before CUDA is in use, that of LOCAL_RANK, if there is one."""
    if local is None:
        monkeypatch.delenv("LOCAL_RANK", raising=False)
    else:
        monkeypatch.setenv("LOCAL_RANK", local)
    for name, value in (("is_initialized", used), ("device_count", count), ("current_device", 2)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    assert devices.current() == expected


def test_no_device_is_touched_before_the_rank_is_known(path, ranks, monkeypatch):
    """Where there are several: a process that becomes one of many would begin with the first one's. Arguments are checked."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in (("is_available", True), ("is_initialized", False), ("device_count", 4)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)

    def current():
        raise AssertionError("CUDA is in use")

    monkeypatch.setattr(torch.cuda, "current_device", current)
    gc.collect()
    before = len(dali_zarr.counters())
    loader = make(path, "cuda")
    assert len(dali_zarr.counters()) == before
    loader.set_epoch(2)
    with pytest.raises(ValueError, match="expected an array 'x_'"):
        make(path, "cuda", arrays=["x_"])
    with pytest.raises(AssertionError, match="CUDA is in use"):
        len(loader)


SPAWN = """
import json, sys
import torch.distributed as dist
import torch.multiprocessing as mp

def run(rank, path, rendezvous, out):
    from dali_zarr.torch import Loader
    def make():
        return Loader(path, arrays=["n"], device="cpu", batch_size=4, uneven="exact", host_memory_limit="128MiB")
    loader, used, begun = make(), make(), make()
    found = {"before": len(loader)}
    next(iter(used))
    batches = iter(begun)
    next(batches)
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)
    found["epochs"] = [[n for batch in loader for n in batch["n"].tolist()] for _ in range(2)]
    # Looking at it changes nothing.
    repr(begun)
    for name, wrong in (("used", lambda: list(used)), ("begun", lambda: next(batches))):
        try:
            wrong()
        except RuntimeError as error:
            found[name] = str(error)
    dist.destroy_process_group()
    found["after"] = len(loader)
    with open(f"{out}/{rank}.json", "w") as file:
        json.dump(found, file)

if __name__ == "__main__":
    mp.spawn(run, sys.argv[1:], nprocs=2)
"""


@pytest.mark.timeout_s(600)
def test_spawned_processes(path, tmp_path):
    """The loader is made before the process group."""
    (tmp_path / "spawn.py").write_text(SPAWN)
    process = start_program(tmp_path / "spawn.py", path, tmp_path / "rendezvous", tmp_path, imports="only torch")
    out = process.communicate(timeout=500)
    assert process.returncode == 0, out
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        assert sorted(n for own in found for n in own["epochs"][epoch]) == list(range(STEPS))
    for rank, own in enumerate(found):
        assert (own["before"], own["after"]) == (6, 3)
        if rank == 0:
            assert "has given batches as rank 0 of 1, but the process is rank 0 of 2 now" in own["used"]
        assert own["used"] == own["begun"]


FIT = """
import json, os, sys, types, warnings
warnings.simplefilter("ignore")
import lightning, torch
from lightning.pytorch.strategies.launchers import subprocess_script

# The process that Lightning starts is one that waits here, for the imports above take it seconds.
told, tell = os.pipe()
waiting = os.fork()

class Started:
    def __init__(self, command, env, cwd):
        assert command[1:] == [os.path.abspath(sys.argv[0]), *sys.argv[1:]]
        os.write(tell, json.dumps(env).encode())
        os.close(tell)
        self.pid, self.returncode = waiting, None
    def send_signal(self, number):
        os.kill(waiting, number)
    def poll(self):
        if self.returncode is None:
            ended, status = os.waitpid(waiting, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

if waiting:
    subprocess_script.subprocess = types.SimpleNamespace(Popen=Started)
else:
    os.close(tell)
    os.environ.update(json.loads(os.read(told, 1 << 20)))

from dali_zarr.torch import Loader
from lightning.pytorch.callbacks import ModelCheckpoint

store, folder, resumed = sys.argv[1:]

def make(**args):
    return Loader(store, arrays=["n", "row"], batch_size=4, device="cpu", host_memory_limit="128MB", uneven="exact", **args)

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(3, 1), []
    def seen_in(self, stage, batch):
        self.seen.append([stage, self.current_epoch, self.trainer.sanity_checking, batch["n"].tolist()])
    def training_step(self, batch, _):
        self.seen_in("train", batch)
        return self.layer(batch["row"]).mean()
    def validation_step(self, batch, _):
        self.seen_in("validation", batch)
    def on_fit_end(self):
        with open(f"{folder}/{self.global_rank}.json", "w") as file:
            json.dump(self.seen, file)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-9)

saving = ModelCheckpoint(folder, "stopped-{step}", every_n_train_steps=5, save_top_k=-1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_progress_bar=False,
    enable_model_summary=False, default_root_dir=folder, callbacks=[saving],
)
trainer.fit(Model(), make(random_shuffle=True), make(), ckpt_path=resumed or None)
"""


def fitted(folder: Path, store: Path, resumed: str = "") -> list[list]:
    """What both ranks saw: the stage, the epoch, whether it was the sanity check, and numbers of samples."""
    process = start_program(folder / "fit.py", store, folder, resumed, imports="lightning")
    out = process.communicate(timeout=500)
    assert process.returncode == 0, out
    return [one for rank in range(2) for one in json.loads((folder / f"{rank}.json").read_text())]


def samples(seen: list[list], stage: str, epoch: int, sanity: bool = False) -> list[int]:
    return [n for one in seen if one[:3] == [stage, epoch, sanity] for n in one[3]]


@pytest.mark.timeout_s(1200)
def test_lightning_with_two_processes(tmp_path, path):
    """It starts the second process, and the process group, in `fit`, after the loaders were made. Each sample comes once over
    both ranks, in training, in validation, and over a stop in mid-epoch and what goes on from its checkpoint."""
    pytest.importorskip("lightning", reason="Lightning isn't installed: pip install lightning")
    (tmp_path / "fit.py").write_text(FIT)
    seen = fitted(tmp_path, path)
    every = list(range(STEPS))
    for epoch in range(2):
        assert sorted(samples(seen, "train", epoch)) == sorted(samples(seen, "validation", epoch)) == every
    assert len(set(samples(seen, "validation", 0, sanity=True))) == 16, "two batches of each rank"
    again = fitted(tmp_path, path, str(tmp_path / "stopped-step=5.ckpt"))
    assert not samples(again, "train", 0)
    # Of the second epoch's three steps two were before the checkpoint.
    before = [n for batches in ranks_of(seen) for batch in batches[:2] for n in batch]
    assert sorted(before + samples(again, "train", 1)) == every
    assert sorted(samples(again, "validation", 1)) == every


def ranks_of(seen: list[list]) -> list[list[list[int]]]:
    """The batches that each rank saw in the second epoch of training."""
    batches = [one[3] for one in seen if one[:2] == ["train", 1]]
    return [batches[:3], batches[3:]]


def test_threads_have_no_device_of_their_own(path, ranks, monkeypatch):
    """In a new thread PyTorch's current device is 0, whatever was chosen: the loader stays where the thread that made it is."""
    current = threading.local()
    for name, value in (("is_available", True), ("is_initialized", True), ("device_count", 4)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(current, "device", 0))
    current.device = 3
    # Nothing is opened: what is asked for is where it would be.
    monkeypatch.setattr(course.Unopened, "opened", lambda stage, _check: stage)
    loader = make(path, "cuda")
    assert loader._plan.device_id == 3
    ranks.become(1)
    thread = threading.Thread(target=loader._settle)
    thread.start()
    thread.join()
    assert (loader._plan.shard_id, loader._plan.device_id) == (1, 3)
    current.device = 2
    loader._settle()
    assert loader._plan.device_id == 2


def test_other_threads_may_ask_for_the_length(path, ranks, monkeypatch):
    """While the first batch is read the rank changes, and another thread asks: the pipeline isn't closed under the first one."""
    asked, answers = threading.Event(), []
    loader = make(path)
    next_of = Reading.next

    def slow(self, *args):
        asked.set()
        time.sleep(0.3)
        return next_of(self, *args)

    monkeypatch.setattr(Reading, "next", slow)

    def ask():
        asked.wait()
        ranks.become(1)
        try:
            answers.append(len(loader))
        except RuntimeError as error:
            answers.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    first = next(iter(loader))["n"].tolist()
    thread.join()
    assert first == [0, 1, 2, 3] and "has given batches as rank 0 of 1" in answers[0]


def test_a_forked_process_tells_the_length(path):
    """Launchers in notebooks fork, and ask for the length in the child: there the loader can't read, and must not crash."""
    script = """
import os, sys
from support.loaders import make
loader = make(sys.argv[1])
child = os.fork()
if not child:
    os.environ.update(RANK="1", WORLD_SIZE="2")
    found = [len(loader), "loader" in repr(loader).lower()]
    for use in (loader.__iter__, loader.state_dict):
        try:
            use()
        except RuntimeError as error:
            found.append("made in another process" in str(error))
    print(found, flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    assert run_script(script, str(path), imports="torch").split("\n")[:2] == ["[6, True, True, True]", "0"]


def test_a_refused_state_changes_nothing(path, ranks):
    """Neither the position nor what keeps samples from coming twice."""
    bad = make(path, random_shuffle=True, seed=3).state_dict()
    good = make(path, random_shuffle=True)
    batches = iter(good)
    seen = [n for _ in range(2) for n in next(batches)["n"].tolist()]
    state = good.state_dict()

    loader = make(path, random_shuffle=True)
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="seed"):
        loader.load_state_dict(bad)
    rest = []
    for rank in range(2):
        ranks.leave()
        one = make(path, random_shuffle=True)
        one.load_state_dict(state)
        with pytest.raises(ValueError, match="seed"):
            one.load_state_dict(bad)
        ranks.become(rank)
        rest += flat(numbers(one))
    assert sorted(seen + rest) == list(range(STEPS))

    ranks.leave()
    used = make(path, random_shuffle=True)
    next(iter(used))
    ranks.become(0)
    for _ in range(2):
        with pytest.raises(ValueError, match="seed"):
            used.load_state_dict(bad)
        with pytest.raises(RuntimeError, match="has given batches as rank 0 of 1"):
            iter(used)
    ranks.leave()
    assert len(flat(numbers(used))) == STEPS - 4 or len(used) == 6


def test_the_environment_says_nothing_after_a_group(path, ranks, tmp_path):
    """It may have the ranks of machines, and the group those of processes."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        loader = make(path)
        assert len(loader) == 6
    finally:
        distributed.destroy_process_group()
    ranks.become(1)
    assert len(loader) == 6 and flat(numbers(loader)) == list(range(STEPS))


def test_arguments_that_every_operator_has(path, ranks, monkeypatch):
    """They are taken where the store is opened later, too."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in (("is_available", True), ("is_initialized", False), ("device_count", 4)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    loader = make(path, "cuda", preserve=True, bytes_per_sample_hint=10)
    assert isinstance(loader._course.stage, course.Unopened)


def test_an_iteration_can_be_closed(path):
    with contextlib.closing(iter(make(path))) as batches:
        assert next(batches)["n"].tolist() == [0, 1, 2, 3]
    assert list(batches) == []
