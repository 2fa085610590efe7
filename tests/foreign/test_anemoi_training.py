"""anemoi-training's own order, from its own data set class and DataLoader: the loader here gives the same samples, bit by bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.foreign import missing

HERE = Path(__file__).resolve().parent
FOREIGN = HERE.parents[1] / "build" / "foreign"
DATASETS, TRAINING = FOREIGN / "anemoi", FOREIGN / "anemoi-training"
if not DATASETS.is_dir() or not TRAINING.is_dir():
    missing("anemoi-training")

pytest.importorskip("torch")
import dali_zarr  # noqa: E402

# The sixth and the seventh date of twelve are missing, or none.
HOLES = {"whole": [], "holed": ["2020-01-02T06:00:00", "2020-01-02T12:00:00"]}


def run(script: str, *words: str, **more: str) -> str:
    package = Path(dali_zarr.__file__).parents[1]
    # anemoi-datasets comes first: it needs its own zarr-python.
    path = os.pathsep.join(map(str, (DATASETS, TRAINING, package)))
    environment = os.environ | {"PYTHONPATH": path, "ANEMOI_BASE_SEED": "1234"} | more
    done = subprocess.run(
        [sys.executable, str(HERE / script), *words], env=environment, check=False, capture_output=True, text=True, timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


CASES = {
    "shuffled": {"rollouts": [[0, 1]] * 2},
    "in order": {"rollouts": [[0, 1]], "shuffle": False},
    "two workers and a short last batch": {"rollouts": [[-1, 0, 1]] * 2, "workers": 2, "batch_size": 3},
    "two ranks": {"rollouts": [[0, 2]] * 2, "ranks": 2},
    "a growing rollout": {"rollouts": [[-1, 0, 1], [-1, 0, 1, 2], [-1, 0, 1, 2, 3]]},
}
DEFAULTS = {"shuffle": True, "workers": 1, "batch_size": 2, "ranks": 1}


# One process reads all cases: imports take longest.
@pytest.mark.timeout_s(600)
@pytest.mark.parametrize("holes", HOLES)
def test_the_same_samples(tmp_path, holes):
    run("write_anemoi.py", str(tmp_path), json.dumps(HOLES[holes]), "{}")
    asked = [DEFAULTS | {"path": str(tmp_path / "data.zarr")} | case for case in CASES.values()]
    told = json.loads(run("order_anemoi_training.py", json.dumps(asked)).partition("FOUND")[2])
    for case, own, found in zip(CASES, asked, told, strict=True):
        check(case, own, found)


def check(case, asked, found):
    """The script has compared values. Here the positions must be an order as it was asked for."""
    assert len(found) == asked["ranks"] * len(asked["rollouts"]), case
    assert all(one["positions"] and one["batches"] for one in found), case
    by_rank = {}
    for one in found:
        by_rank.setdefault(one["rank"], []).append(one["positions"])
    if asked["shuffle"]:
        assert any(positions != sorted(positions) for of in by_rank.values() for positions in of), case
    else:
        assert by_rank[0][0] == sorted(by_rank[0][0]), case
    if asked["ranks"] == 2:
        assert not set(by_rank[0][0]) & set(by_rank[1][0]), case
    if len(asked["rollouts"]) > 1 and case != "a growing rollout":
        assert any(of[0] != of[1] for of in by_rank.values()), "another epoch, another order"
