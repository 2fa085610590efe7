"""The adapter's batches are those of PhysicsNeMo's TimeSeriesDataModule, from a store that PhysicsNeMo has written."""

from __future__ import annotations

import json

import pytest
from support.beside import installed, run_beside

INSTALLED = installed("physicsnemo", "physicsnemo", "PhysicsNeMo")

CASES = {
    "pairs": {},
    "steps": {"input_time_dim": 2, "output_time_dim": 4},
    "each time": {"time_step": "3h", "data_time_step": 3},
    "a gap": {"input_time_dim": 2, "output_time_dim": 2, "gap": "12h"},
    "presteps": {"presteps": 1, "output_time_dim": 2},
    "insolation": {"add_insolation": True, "input_time_dim": 2},
    "in order": {"shuffle": False},
    "a short last batch": {"drop_last": False, "shuffle": False},
    "some channels": {"input_variables": ["z500", "t2m0"], "output_variables": ["z500", "t2m0"]},
    "no constants": {"without_constants": True},
    "two ranks": {"shards": [2, 1]},
    "forecasts": {"forecast": ["2018-01-02", "2018-01-03T06"], "input_time_dim": 2, "batch_size": 1},
}


# One process reads all cases: imports take longest.
@pytest.fixture(scope="module")
def found():
    return run_beside(INSTALLED, "physicsnemo_batches.py", json.dumps(list(CASES.values())))


@pytest.mark.timeout_s(400)
@pytest.mark.parametrize("number", range(len(CASES)), ids=list(CASES))
def test_batches_are_those_of_physicsnemo(found, number):
    """Two epochs of training, one of validation and one of test."""
    assert found["cases"][number] >= 2


@pytest.mark.timeout_s(400)
def test_a_model_trains_alike(found):
    """Ten steps, in two shuffled epochs."""
    ours, theirs = found["losses"]
    assert len(set(ours)) >= 10 and ours == theirs


@pytest.mark.timeout_s(400)
def test_what_is_refused(found):
    message = "dali_zarr: physicsnemo: expected a TimeSeriesDataset, but found CoupledTimeSeriesDataset; use PhysicsNeMo's own "
    assert found["refused"] == message + "DataLoader"
