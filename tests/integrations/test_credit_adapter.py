"""The adapter's batches are those of CREDIT's own loader, and so are the losses of its trainer."""

from __future__ import annotations

import json

import pytest
from support.beside import installed, run_beside

INSTALLED = installed("credit", "credit", "CREDIT")


def run(script: str, *words: str) -> object:
    return run_beside(INSTALLED, script, *words, timeout=500)


# "sources" are those of credit_batches.py.
CASES = {
    "all types of fields": {"sources": ["ERA5"]},
    "history": {"sources": ["ERA5"], "data": {"history_len": 3}},
    "rollout": {"sources": ["ERA5"], "data": {"forecast_len": 3}},
    "rollout with history": {"sources": ["ERA5"], "data": {"forecast_len": 2, "history_len": 2}},
    "every second time": {"sources": ["ERA5"], "data": {"timestep": "12h"}},
    "ranges of dates": {"sources": ["ERA5"], "data": {"history_len": 2, "date_ranges": [
        ["2017-12-28", "2017-12-29"], ["2017-12-31", "2018-01-01"],
    ]}},
    "all levels": {"sources": ["all levels"]},
    "levels that are near": {"sources": ["near levels"], "data": {"history_len": 2}},
    "static fields with a time": {"sources": ["dated"], "data": {"history_len": 2}},
    "no diagnostic fields": {"sources": ["without diagnostic"]},
    "a field without files": {"sources": ["no files"]},
    "persist": {"sources": ["ERA5", "persist"]},
    "persist with history": {"sources": ["ERA5", "persist"], "data": {"history_len": 2, "forecast_len": 2}},
    "persist as a target": {"sources": ["ERA5", "persist target"]},
    "cyclic": {"sources": ["ERA5", "cyclic"]},
    "cyclic with history": {"sources": ["ERA5", "cyclic"], "data": {"history_len": 2, "forecast_len": 2}},
    "a coarse source, exactly": {"sources": ["ERA5", "coarse"], "batch_size": 2},
    "a calendar without leap days": {"sources": ["noleap"], "data": {"history_len": 2}},
    "calendars beside each other": {"sources": ["ERA5", "noleap"]},
    "three sources": {"sources": ["ERA5", "persist", "cyclic"]},
    "the second of two ranks": {"sources": ["ERA5"], "ranks": [1, 2]},
}
REFUSED = {
    "base: expected a source with dataset_type: local, but found BaseDataset": {"sources": ["base"]},
    "netcdf static: expected Zarr stores, but found '.*file.nc'": {"sources": ["netcdf"]},
    "2D_on_levels prognostic: expected variables without 'level' in vars_2D, but found 'T'": {"sources": ["2D on levels"]},
    "several_static static: expected one store of a field that doesn't vary in time, but found 2": {"sources": ["several static"]},
}


# One process reads all cases: imports take longest.
@pytest.fixture(scope="module")
def told():
    found = run("credit_batches.py", json.dumps([*CASES.values(), *REFUSED.values()]))
    return dict(zip([*CASES, *REFUSED], found, strict=True))


@pytest.mark.timeout_s(600)
@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_credit(told, case):
    """Two epochs of training and one of validation."""
    assert isinstance(told[case], int) and told[case] >= 3, told[case]


@pytest.mark.timeout_s(600)
@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(told, message):
    assert isinstance(told[message], str), told[message]
    pytest.raises(ValueError, exec, "raise ValueError(text)", {"text": told[message]}).match(f"dali_zarr: credit: {message}")


@pytest.mark.timeout_s(600)
def test_losses_are_those_with_its_own_loader():
    """Its own program trains an epoch, and another one from the checkpoint: four batches of two steps each, and validation."""
    found = run("credit_train.py")
    assert len(found["credit"]) == 18 and len(set(found["credit"])) == 18
    assert found["dali_zarr"] == found["credit"]
