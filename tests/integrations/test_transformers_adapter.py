"""The Trainer of Transformers has the losses and the weights with stores that it has with a DataLoader of the same samples in the
same order, also after a checkpoint in mid-epoch, and evaluates as it does."""

from __future__ import annotations

import re

import pytest
from support.beside import installed, run_beside

INSTALLED = installed("transformers", "transformers", "Transformers")
pytest.importorskip("accelerate", reason="Accelerate isn't installed: pip install accelerate")


# One process does all: imports take longest.
@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run_beside(INSTALLED, "transformers_train.py", str(tmp_path_factory.mktemp("transformers")))


@pytest.mark.parametrize("case", ["shuffled", "accumulated", "dropped", "data_seed"])
def test_losses_are_those_with_a_data_loader(found, case):
    """Ten or twelve batches, in two epochs."""
    ours, theirs = found[case]["ours"], found[case]["theirs"]
    assert len(set(ours["losses"])) == ours["steps"] >= 6
    assert ours == theirs


def test_the_order(found):
    first, second = found["order"]
    assert first != second and sorted(first) == sorted(second) == list(range(22))
    assert found["shuffled"]["ours"]["seen"] == first + second != found["data_seed"]["ours"]["seen"]
    assert found["dropped"]["ours"]["seen"] == first[:20] + second[:20]
    assert found["sequential"]["seen"] == [*range(22)] * 2


@pytest.mark.parametrize("step", [4, 8])
def test_it_goes_on_in_mid_epoch(found, step):
    whole, again = found["saved"], found["resumed"][str(step)]
    taken = sum([4, 4, 4, 4, 4, 2, 4, 4, 4, 4, 4, 2][:step])
    assert again["seen"] == whole["seen"][taken:]
    assert again["losses"] == whole["losses"] and again["weights"] == whole["weights"]


def test_evaluation_and_prediction(found):
    ours, theirs = found["evaluated ours"], found["evaluated theirs"]
    assert ours[0].keys() == {"eval_one_loss", "eval_two_loss"} == theirs[0].keys()
    assert ours == theirs


def test_entries_that_the_model_does_not_take(found):
    assert found["more"] == 4


REFUSED = {
    "data_collator": "data_collator: expected none, but found <function",
    "train_sampling_strategy": 'train_sampling_strategy: expected "random" or "sequential", but found .*group_by_length',
    "split_batches": "split_batches: expected False, but found True",
    "batch_size": "batch_size: expected it in TrainingArguments, as per_device_train_batch_size",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(found, name):
    assert re.match(f"dali_zarr: transformers: {REFUSED[name]}", found["refused"][name]), found["refused"][name]
