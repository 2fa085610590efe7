"""The adapter's batches are those of anemoi-training's datamodule: all values, in its order, for its trees of ``open_dataset``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
INSTALLED = HERE.parents[1] / "build" / "integrations" / "anemoi"
if not (INSTALLED / "anemoi").is_dir():
    pytest.skip("anemoi-training isn't installed: `make integrations` installs it", allow_module_level=True)

pytest.importorskip("torch")
import dali_zarr  # noqa: E402

HOLES = ["2020-01-02T06:00:00", "2020-01-02T12:00:00"]
FORCINGS = {"template": "${input.join.0.netcdf}", "param": ["cos_latitude", "sin_longitude", "insolation"]}
JOINED = {"input": {"join": [{"netcdf": {"path": "source.nc", "param": ["2t", "msl"]}}, {"forcings": FORCINGS}]}}


def run(script: Path, *words: str) -> str:
    path = os.pathsep.join(map(str, (INSTALLED, Path(dali_zarr.__file__).parents[1])))
    environment = os.environ | {"PYTHONPATH": path, "ANEMOI_BASE_SEED": "1234"}
    command = [sys.executable, str(script), *words]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Two data sets of twelve dates, one of which lacks two."""
    found = {}
    for name, holes in (("whole", []), ("holed", HOLES)):
        folder = tmp_path_factory.mktemp(name)
        run(HERE.parent / "foreign" / "write_anemoi.py", str(folder), json.dumps(holes), json.dumps(JOINED))
        found[name] = str(folder / "data.zarr")
    return found


ORDER = ["msl", "insolation", "2t", "cos_latitude", "sin_longitude"]
PART = {"start": "2020-01-01T12:00:00", "end": "2020-01-03T06:00:00"}
SHORT = {"offsets": [-6, 0, 6]}
# "whole" and "holed" stand for the stores.
CASES = {
    "one data set": SHORT | {"trees": {"data": {"dataset": "whole"}}},
    "missing dates": SHORT | {"trees": {"data": {"dataset": "holed"}}},
    "a single date": {"offsets": [0], "trees": {"data": {"dataset": "holed"}}},
    "offsets that are far apart": {"offsets": [-12, 0, 12], "trees": {"data": {"dataset": "whole"}}},
    "offsets of unlike distances": {"offsets": [-6, 0, 18], "trees": {"data": {"dataset": "holed"}}},
    "select": SHORT | {"trees": {"data": {"dataset": "whole", "select": ["msl", "insolation"]}}},
    "drop": SHORT | {"trees": {"data": {"dataset": "holed", "drop": ["2t"]}}},
    "reorder": SHORT | {"trees": {"data": {"dataset": "whole", "reorder": ORDER}}},
    "rename": SHORT | {"trees": {"data": {"dataset": "whole", "rename": {"2t": "t2m"}}}},
    "start and end": SHORT | {"trees": {"data": {"dataset": "holed"}}, "dates": PART},
    "frequency": {"offsets": [0, 12], "trees": {"data": {"dataset": "whole", "frequency": "12h"}}},
    "frequency beside missing dates": {"offsets": [0, 12], "trees": {"data": {"dataset": "holed", "frequency": "12h"}}},
    "statistics": SHORT | {"trees": {"data": {"dataset": "whole", "statistics": "holed"}}},
    "set_missing_dates": SHORT | {"trees": {"data": {"dataset": "whole", "set_missing_dates": ["2020-01-02T00:00:00"]}}},
    "member": SHORT | {"trees": {"data": {"dataset": "whole", "number": 1}}},
    "join": SHORT | {"trees": {"data": {"dataset": {
        "join": [{"dataset": "whole", "select": ["insolation", "2t"]}, {"dataset": "holed", "select": ["msl"]}],
    }}}},
    "selected of a join": SHORT | {"trees": {"data": {"dataset": {
        "join": [{"dataset": "whole", "select": ["insolation", "2t"]}, {"dataset": "holed", "select": ["msl"]}],
    }, "reorder": ["2t", "msl", "insolation"]}}},
    "two data sets": SHORT | {"trees": {"data": {"dataset": "whole"}, "other": {"dataset": "holed", "select": ["msl"]}}},
    "two workers": SHORT | {"trees": {"data": {"dataset": "whole"}}, "workers": 2, "batch_size": 3},
    "workers that start again": SHORT | {"trees": {"data": {"dataset": "whole"}}, "workers": 3, "persistent": False},
    "the second of two ranks": SHORT | {"trees": {"data": {"dataset": "whole"}}, "ranks": [2, 1]},
    "a part of the grid": SHORT | {"trees": {"data": {"dataset": "whole"}}, "shards": [12, 12, 11], "part": 1},
    "a growing rollout": SHORT | {"trees": {"data": {"dataset": "whole"}}, "later": [-6, 0, 6, 12], "persistent": False},
}
HALVES = [{"dataset": "whole", "end": "2020-01-02T00:00:00"}, {"dataset": "whole", "start": "2020-01-02T06:00:00"}]
REFUSED = {
    "data: expected what open_dataset makes of .*, but found Concat": {"dataset": {"concat": HALVES}},
    "data: expected what open_dataset makes of .*, but found Rescale": {"dataset": "whole", "rescale": {"2t": [2.0, 1.0]}},
    "data: expected what open_dataset makes of .*, but found Thinning": {"dataset": "whole", "thinning": 2, "method": "every-nth"},
}


def of(stores, tree):
    """Returns a tree with the stores' paths."""
    if isinstance(tree, dict):
        return {key: of(stores, value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [of(stores, value) for value in tree]
    return stores.get(tree, tree) if isinstance(tree, str) else tree


# One process reads all cases: imports take longest.
@pytest.fixture(scope="module")
def told(stores):
    refused = [{"offsets": [0], "trees": {"data": tree}} for tree in REFUSED.values()]
    asked = of(stores, [*CASES.values(), *refused])
    found = json.loads(run(HERE / "anemoi_batches.py", json.dumps(asked)).partition("FOUND")[2])
    return dict(zip([*CASES, *REFUSED], found, strict=True))


@pytest.mark.timeout_s(600)
@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_anemoi_training(told, case):
    """Three epochs of training and of validation."""
    assert isinstance(told[case], int) and told[case] > 10, told[case]


@pytest.mark.timeout_s(600)
@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(told, message):
    assert isinstance(told[message], str)
    pytest.raises(ValueError, exec, "raise ValueError(text)", {"text": told[message]}).match(f"dali_zarr: anemoi: {message}")


@pytest.mark.timeout_s(600)
def test_losses_are_those_with_its_own_datamodule(stores, tmp_path):
    """Ten steps of anemoi-training's own trainer, in two epochs, shuffled, with the validation between them."""
    found = {}
    for reads in ("anemoi", "dali_zarr"):
        told = run(HERE / "anemoi_train.py", stores["whole"], str(tmp_path / reads), reads)
        found[reads] = json.loads(told.partition("FOUND")[2].splitlines()[0])
    # Five steps of each epoch, and a batch of validation before the first and after each.
    assert len(found["anemoi"]) == 13 and len(set(found["anemoi"])) > 10
    assert found["dali_zarr"] == found["anemoi"]
