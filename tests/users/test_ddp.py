"""A user of DistributedDataParallel, with checkpoints."""

from __future__ import annotations

import json
import re

import pytest
from support.pipelines import why_no_gpu
from support.processes import ranked
from support.programs import EXAMPLES


@pytest.mark.timeout_s(900)
@pytest.mark.parametrize(
    ("device", "ranks"),
    [("cpu", 2), pytest.param("cuda", 1, marks=pytest.mark.skipif(bool(why_no_gpu()), reason=f"{why_no_gpu()}"))],
)
def test_distributed_data_parallel_goes_on(reanalysis, tmp_path, device, ranks):
    """By Gloo on CPUs, and by NCCL on a GPU. The second run goes on from the last checkpoint with the samples that the
    first run had after it. On CPUs its losses are the same to the last digit, so model, optimizer and loader were restored."""
    pytest.importorskip("torch")
    command = (ranks, EXAMPLES / "ddp.py", reanalysis, tmp_path / "checkpoint.pt", "--device", device)
    first, second = (sorted(ranked(*command)) for _ in range(2))
    epochs = [[json.loads(line.partition("hours ")[2]) for line in first if line.startswith(f"epoch {e} ")] for e in range(2)]
    for batches in epochs:
        # 47 pairs of hours. What isn't a full batch for all ranks is left out.
        hours = sorted(hour for batch in batches for hour in batch)
        assert len(hours) == len(set(hours)) == (44 if ranks == 2 else 46) and set(hours) <= set(range(47))
    assert sorted(epochs[0]) != sorted(epochs[1])
    # A checkpoint after each fifth batch: the last one after the tenth of 11 on two ranks, and after the twentieth of 23 on one.
    assert len(second) == (2 if ranks == 2 else 3)
    kept = (lambda line: line) if device == "cpu" else (lambda line: re.sub("loss [^ ]+", "", line))
    assert {kept(line) for line in second} < {kept(line) for line in first}
