"""The check of ranks passes on the CPU, and notices samples, values and reads that aren't as promised."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from support.processes import ranked

pytest.importorskip("torch")
# On a busy machine it takes many times what it takes alone.
pytestmark = pytest.mark.timeout_s(500)

BENCH = Path(__file__).parent / "bench"
sys.path.insert(0, str(BENCH))
HOURS = 61


def check(folder: Path, ranks: int, *words: object) -> dict:
    """What the ranks found."""
    file = folder / f"found-{ranks}.json"
    ranked(ranks, BENCH / "ranks.py", "--device", "cpu", "--samples", HOURS, "--data", folder / "data", "--json", file, *words)
    return json.loads(file.read_text())


def test_two_ranks_and_then_one(tmp_path):
    saved = tmp_path / "saved"
    two = check(tmp_path, 2, "--save", saved)
    one = check(tmp_path, 1, "--resume", saved)
    assert (two["ranks"], two["backend"], two["wrong"], one["wrong"]) == (2, "gloo", [], [])
    assert "--nproc-per-node 2" in two["command"] and two["dali_zarr"] and two["machine"]
    for row in two["reads"] + one["reads"]:
        assert row["chunks"] <= row["needs"] <= row["first"] <= row["most"] + row["unclear"], row
    in_sequence = [found["reads"][0] for found in (one, two)]
    assert [row["chunks"] for row in in_sequence] == [9, 9] and [row["first"] for row in in_sequence] == [9, 10]
    # In the middle of 16 batches of each rank, or of 15, with two samples each.
    resumed = [(row["ranks"], row["before"], row["before"] + row["after"]) for row in one["resumed"]]
    assert resumed == [(2, 32, HOURS), (2, 32, HOURS), (2, 28, HOURS - 1)]

    # One rank had another rank's sample too.
    file = saved / "shuffled-7-hours-a-chunk-0.json"
    state, other = (json.loads(path.read_text()) for path in (file, saved / "shuffled-7-hours-a-chunk-1.json"))
    state["own"].append(other["own"][0])
    file.write_text(json.dumps(state))
    with pytest.raises(AssertionError, match="came more than once"):
        check(tmp_path, 1, "--resume", saved)
    (sentence,) = json.loads((tmp_path / "found-1.json").read_text())["wrong"]
    assert sentence == (
        "shuffled, 7 hours a chunk, epoch 1 of 2 ranks and then 1: expected each of 61 samples once, but 1 came more than once "
        f"(the first is {other['own'][0]})."
    )


def test_samples_that_do_not_come_once_are_noticed():
    from ranks_checks import not_once

    assert not_once([2, 0, 1], 3, "here") == []
    assert not_once([2, 2, 1, 3], 3, "here") == [
        "here: expected each of 3 samples once, but 1 came more than once (the first is 2), 1 never came (the first is 0), "
        "1 don't exist (the first is 3)."
    ]


def test_other_bits_are_noticed():
    from ranks_checks import not_equal

    values = np.array([0.0, np.nan], "float32")
    assert not_equal(values, values.copy(), "here") == []
    (sentence,) = not_equal(np.array([-0.0, np.nan], "float32"), values, "here")
    assert "found 1 other bytes" in sentence
    (sentence,) = not_equal(values[:1], values, "here")
    assert "expected float32 (2,), but found float32 (1,)" in sentence


def test_reads_are_counted_by_what_samples_need():
    from ranks_checks import CASES, too_many

    in_sequence, _, static, pairs, _, hourly = CASES
    assert in_sequence.needs([0, 6]) == {("t2m", 0)} and pairs.needs([6]) == {("t2m", 0), ("t2m", 1)}
    assert static.needs([7]) == {("t2m", 1), ("orography", 0)} and hourly.needs([3]) == {("u10", 3), ("u10", 4)}
    # A border between ranks in order; windows of 14 hours need three chunks, and pairs six; each rank reads the orography.
    assert [case.most(10, 4, 14) for case in (in_sequence, static, pairs, hourly)] == [13, 9 + 3 * 3 + 4, 20 + 3 * 6, 20]
    assert too_many(13, 13, 1, "here") == []
    told = "here: expected at most 13 reads in the first epoch, but found 14 or more, and 1 evictions."
    assert too_many(14, 13, 1, "here") == [told]
