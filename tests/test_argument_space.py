"""Random cases over the whole argument space: what the loader for PyTorch gives equals an oracle that was written
from the documentation, with NumPy, zarr-python and xarray alone; and what can't be given is refused in a sentence.

``DALI_ZARR_ARGUMENTS=20000`` runs more cases, ``DALI_ZARR_ARGUMENTS_FIRST`` begins at another one; ``python
tests/argument_space.py`` runs any number of them in several processes.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("torch", reason="the loader for PyTorch needs it")
pytest.importorskip("xarray", reason="the oracle needs it")

from support.argument_space import case, oracle  # noqa: E402
from support.argument_space.report import run_cases  # noqa: E402

CASES = int(os.environ.get("DALI_ZARR_ARGUMENTS", "500"))
FIRST = int(os.environ.get("DALI_ZARR_ARGUMENTS_FIRST", "0"))
# So many cases are a test: workers share them, and each set of stores is written once.
PART = 5 * case.TOGETHER


@pytest.mark.timeout_s(900)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(FIRST, FIRST + CASES, PART))
def test_argument_space(device, first):
    count = min(PART, FIRST + CASES - first)
    report = run_cases(first, count, device)
    assert not report.failures, "\n\n".join(report.failures)
    # Cases that are all refused would show little.
    if count >= 100:
        assert report.counts["equal"] > count / 2 and report.counts["refused"] > count / 20, report.counts


@pytest.mark.filterwarnings("ignore")
def test_a_difference_is_shown_as_a_program(monkeypatch):
    """Without what doesn't matter to it."""
    right = oracle.converted
    monkeypatch.setattr(oracle, "converted", lambda values, *how: right(np.flip(values), *how))
    report = run_cases(0, 20, "cpu", most_failures=1)
    (text,) = report.failures
    number = int(text.split()[1])
    assert "values differ" in text and f"DALI_ZARR_ARGUMENTS_FIRST={number} repeats the case" in text
    assert "stores.write(0, pathlib.Path('stores'))" in text and "stores/0.zarr" in text and "seed=" not in text


def test_a_number_is_a_case(tmp_path):
    """Alone as among others."""
    for number in (7, 5 * case.TOGETHER + 7):
        (tmp_path / str(number)).mkdir()
        stores = case.dataset(number, tmp_path / str(number))
        for before in range(number - 7, number):
            case.case(before, stores)
        one, other = (case.case(number, case.dataset(number, tmp_path / str(number) / again)) for again in ("a", "b"))
        among = case.case(number, stores)

        folders = (f"/{number}/a/", f"/{number}/b/", f"/{number}/")
        told = [
            repr((found.arguments, found.order, found.resumed, found.mistake)).replace(folder, "/")
            for found, folder in zip((one, other, among), folders, strict=True)
        ]
        assert told[0] == told[1] == told[2]
