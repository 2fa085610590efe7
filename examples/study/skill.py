"""The demo's U-Net on the study's store: six hours ahead, until its error is a fifth below that of persistence (nothing changes).

    python examples/study/skill.py --size small

Half-way there, in the middle of an epoch, the process ends. Another one goes on with the states of model, optimizer and loader, and
checks that the epoch has each sample once. Hours are for training, for telling when the goal is reached, and for the test at the
end. The data are made up (store.py): what the model shows is that it learns from what it is fed, not how well it forecasts weather.
"""

from __future__ import annotations

import math
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from common import HERE, arguments, has_gpu, run, save, tell
from store import MEAN, RENEWAL, STDDEV, prepare

sys.path.insert(0, str(HERE.parent))

LEAD, GOAL, MARGIN = 6, 0.2, 0.02  # the margin on the hours that tell, which are few
PARTS = ("first half", "second half")
# Seconds of training at most, seconds between validations, batch size, width of the U-Net.
HOW = {"whole": (60.0, 4.0, 1, 32), "small": (90.0, 8.0, 2, 16), "tiny": (1.0, 0.4, 2, 8)}
# Of the hours, in order. Batches of validation are kept.
TRAIN, VALIDATE, VALIDATION_BATCHES = 0.6, 0.2, 4
LEARNING_RATE = 2e-3


def feed(args: Namespace, first: int, last: int, shuffle: bool) -> Any:
    """Pairs of states ``now`` and ``later``, normalised, from the hours [first, last)."""
    from dali_zarr.torch import Loader

    return Loader(
        str(prepare(args.data, args.size)["one-hour"]), arrays=["fields"], stack_arrays=False, dims=["time"],
        offsets={"now": 0, "later": LEAD}, roi_start=[first], roi_end=[last], mean=MEAN, stddev=STDDEV,
        batch_size=HOW[args.size_name][2], random_shuffle=shuffle, seed=1,
    )


@dataclass
class Progress:
    """What a checkpoint holds beside the states of model, optimizer and loader."""

    seconds: float = 0.0
    samples: int = 0
    losses: list[tuple[float, float]] = field(default_factory=list)
    # Shares by which it beats persistence on the hours of validation.
    validations: list[tuple[float, float]] = field(default_factory=list)
    epoch: int = 0
    # Of the epoch that is being trained on.
    seen: list[int] = field(default_factory=list)


class Training:
    def __init__(self, args: Namespace):
        import torch
        from unet import UNet

        torch.manual_seed(0)
        self.seconds, self.pause, _, width = HOW[args.size_name]
        self.split = int(args.size.hours * TRAIN)
        self.tested = self.split + int(args.size.hours * VALIDATE)
        self.device = torch.device("cuda" if has_gpu() else "cpu")
        self.model = UNet(args.size.channels, width).to(self.device)
        fused = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE, weight_decay=1e-4, fused=fused)
        self.loader, self.progress = feed(args, 0, self.split, shuffle=True), Progress()
        held = islice(feed(args, self.split, self.tested, shuffle=True), VALIDATION_BATCHES)
        self.held = [(batch["now"]["fields"].clone(), batch["later"]["fields"].clone()) for batch in held]

    def forecast(self, now: Any) -> Any:
        import torch

        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return self.model(now).float()

    def until(self, share: float) -> None:
        """Trains until this share of the goal is reached, or of the time is spent; if more is to follow, until it is in the
        middle of an epoch."""
        import torch

        began, before, middle = time.perf_counter(), self.progress.seconds, range(1, self.split - LEAD)
        self.model.train()
        reached, next_check = False, before + self.pause
        for number, batch in enumerate(self._batches()):
            spent = self.progress.seconds / self.seconds
            for group in self.optimizer.param_groups:
                # Up to the rate within a tenth of the time, then down along a cosine.
                group["lr"] = LEARNING_RATE * min(10 * spent + 0.01, 0.5 + 0.5 * math.cos(math.pi * min(spent, 1.0)))
            loss = torch.nn.functional.mse_loss(self.forecast(batch["now"]["fields"]), batch["later"]["fields"])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.progress.samples += len(batch.index)
            self.progress.seen += batch.index.flatten().tolist()
            if number % 10 == 0:
                # Waits for the GPU, so that the time is that of steps that are done.
                self.progress.losses.append((self.progress.seconds, loss.item() ** 0.5))
            self.progress.seconds = before + time.perf_counter() - began
            if self.progress.seconds >= next_check:
                better, next_check = self.better(self.held)["better"], self.progress.seconds + self.pause
                self.progress.validations.append((self.progress.seconds, better))
                reached = better >= share * (GOAL + MARGIN)
            if (reached or self.progress.seconds >= share * self.seconds) and (share == 1 or len(self.progress.seen) in middle):
                return

    def _batches(self) -> Iterator[Any]:
        while True:
            yield from self.loader
            assert sorted(self.progress.seen) == list(range(self.split - LEAD)), "an epoch has each sample once"
            self.progress.seen, self.progress.epoch = [], self.progress.epoch + 1

    def save(self, path: Path) -> None:
        import torch

        states = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "loader")}
        torch.save({**states, "progress": vars(self.progress)}, path)

    def load(self, path: Path) -> None:
        import torch

        states = torch.load(path, map_location=self.device)
        for name in ("model", "optimizer", "loader"):
            getattr(self, name).load_state_dict(states[name])
        self.progress = Progress(**states["progress"])

    def better(self, batches: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
        """RMSE of the model and of persistence, in standard deviations, and by what share the first is less."""
        import torch

        self.model.eval()
        errors, count = torch.zeros(2, dtype=torch.float64, device=self.device), 0
        with torch.no_grad():
            for now, later in batches:
                errors += torch.stack([(guess - later).double().pow(2).mean() * len(now) for guess in (self.forecast(now), now)])
                count += len(now)
        self.model.train()
        model, persistence = (errors / count).sqrt().tolist()
        return {"rmse": model, "persistence": persistence, "better": 1 - model / persistence, "test_samples": count}

    def test(self, args: Namespace) -> dict[str, Any]:
        """On the last hours, which nothing else had; leaves an example for the picture."""
        import numpy as np
        import torch

        test = feed(args, self.tested, args.size.hours, shuffle=False)
        found = self.better((batch["now"]["fields"], batch["later"]["fields"]) for batch in test)
        first = next(iter(test))
        now, later = first["now"]["fields"], first["later"]["fields"]
        with torch.no_grad():
            example = torch.stack([now[0, 0], later[0, 0], self.forecast(now)[0, 0]]).cpu().numpy()
        args.out.mkdir(parents=True, exist_ok=True)
        step = max(1, args.size.latitudes // 160)
        np.savez_compressed(args.out / "skill.npz", example=(example * STDDEV + MEAN)[:, ::step, ::step].astype(np.float32))
        return {**found, "reached": found["better"] >= GOAL}


def part(args: Namespace) -> dict[str, Any]:
    """Half of the training."""
    training, state = Training(args), args.data / "skill.pt"
    if args.one[0] == PARTS[0]:
        training.until(0.5)
        training.save(state)
        found: dict[str, Any] = {"within_epoch": len(training.progress.seen)}
    else:
        training.load(state)
        training.until(1.0)
        state.unlink()
        found = {**training.test(args), "losses": training.progress.losses, "validations": training.progress.validations}
    progress = training.progress
    return {"samples": progress.samples, "seconds": progress.seconds, "epochs": progress.epoch, **found}


def main() -> None:
    args = arguments(__doc__)
    if args.one:
        tell(part(args))
        return
    prepare(args.data, args.size)
    rows, began = [], time.monotonic()
    words = [__file__, "--data", str(args.data), "--out", str(args.out), "--size", args.size_name, "--one"]
    for name in PARTS:
        # Threads of the model don't spin on cores that decode.
        found, why = run([*words, name], args.budget - (time.monotonic() - began), {"OMP_WAIT_POLICY": "PASSIVE"})
        rows.append({"store": "one-hour", "way": name, **(found[0] if found else {"error": why})})
        print(f"{time.monotonic() - began:6.1f} s", {key: rows[-1][key] for key in list(rows[-1])[:8]}, flush=True)
        # The least error that a forecast can have of waves that others replace.
        save(args, "skill", rows, lead=LEAD, goal=GOAL, least=math.sin(math.pi / 2 * LEAD / RENEWAL))


if __name__ == "__main__":
    main()
