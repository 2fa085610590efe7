"""A forecaster: training by dates on several processes, which crashes and goes on."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr
from support.processes import ranked
from support.programs import EXAMPLES, torchrun


def hours(lines: list[list[str]], epoch: int) -> list[str]:
    """The hours that an epoch trained on: ``epoch 0 training loss 1.234 on HOUR HOUR``."""
    return sorted(hour for line in lines if line[:3] == ["epoch", str(epoch), "training"] for hour in line[6:])


@pytest.mark.timeout_s(600)
@pytest.mark.filterwarnings("ignore")
def test_weather_by_dates_after_a_crash(reanalysis, tmp_path):
    """Two ranks are killed in mid-epoch, three go on with the model of the checkpoint: each sample of each epoch was trained on,
    and only the step that the crash cut off may have been twice. The loss is that of the last model, so that the fields are those
    of the hours and levels that were asked for, and their targets six hours later."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("xarray")
    checkpoint = tmp_path / "checkpoint.pt"
    for _ in range(5):
        checkpoint.unlink(missing_ok=True)
        first = torchrun(2, EXAMPLES / "weather.py", reanalysis, checkpoint, kill_after=5)
        # On a busy machine the processes may be killed too late, after the last of 8 steps.
        if len([line for line in first if line[:3] == ["epoch", "0", "training"]]) < 14:
            break
    # The bias is so far away that the steps which are left don't bring it back. With these weights the forecast is nearly the
    # input, so that the loss shows differences between hours.
    kept = torch.load(checkpoint)
    torch.nn.init.dirac_(kept["model"]["module.weight"])
    kept["model"]["module.bias"].fill_(10)
    torch.save(kept, checkpoint)
    second = [line.split() for line in ranked(3, EXAMPLES / "weather.py", reanalysis, checkpoint)]
    resumed = torch.load(checkpoint)
    assert (resumed["model"]["module.bias"] > 9).all()
    assert resumed["optimizer"]["state"][0]["step"] > kept["optimizer"]["state"][0]["step"] > 0
    train = [str(np.datetime64("2020-01-01T00", "h") + n) for n in range(30)]
    assert [f"{checkpoint}", "goes", "on", "in", "epoch", "0"] in second
    assert set(hours(first + second, 0)) == set(train)
    # A step of two ranks, and the repetitions that fill up the rest for three.
    assert len(hours(first + second, 0)) <= len(train) + 2 * 2 + 2
    assert hours(second, 1) == train
    losses = [line for line in second if "validation" in line]
    assert [line[1] for line in losses] == ["0", "1"] and all(line[5:] == ["on", "6", "samples"] for line in losses)
    group = zarr.open_group(reanalysis, mode="r")
    fields = torch.from_numpy(np.concatenate([group["t2m"][36:][:, None], group["z"][36:][:, [1, 2]]], axis=1))
    found = json.loads((tmp_path / "checkpoint.pt.stats.json").read_text())["arrays"]
    mean, stddev = (
        torch.tensor([number for name in ("t2m", "z") for number in found[name]["by_channel"][kind]])[:, None, None]
        for kind in ("mean", "stddev")
    )
    fields = (fields - mean) / stddev
    weights = (resumed["model"][f"module.{name}"] for name in ("weight", "bias"))
    difference = torch.nn.functional.conv2d(fields[:-6], *weights, padding=1) - fields[6:]
    assert float(losses[1][4]) == pytest.approx(difference.double().square().mean().item(), abs=6e-4)
