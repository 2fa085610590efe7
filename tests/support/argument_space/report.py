"""Runs many cases, and shows a failed one as a short program."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from support.argument_space.case import TOGETHER, Case, case, dataset
from support.argument_space.check import run
from support.argument_space.dataset import Dataset


@dataclass
class Report:
    """What came of cases: how many by outcome, and the failed ones as text."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def run_cases(first: int, count: int, device: str, most_failures: int = 3) -> Report:
    """Runs cases until some have failed."""
    report = Report()
    folder: Path | None = None
    try:
        for number in range(first, first + count):
            if folder is None or number % TOGETHER == 0:
                if folder is not None:
                    shutil.rmtree(folder)
                folder = Path(tempfile.mkdtemp(prefix="argument-space-"))
                stores = dataset(number, folder)
            one = case(number, stores)
            error = failed(one, device, report.counts)
            if error is not None:
                # A case that hangs would hang again.
                is_late = isinstance(error, TimeoutError)
                smaller = one if is_late else shrunk(one, device, error)
                last = error if is_late else failed(smaller, device)
                report.failures.append(described(smaller, device, folder, last))
                if is_late or len(report.failures) == most_failures:
                    break
    finally:
        if folder is not None:
            shutil.rmtree(folder)
    return report


def failed(one: Case, device: str, counts: Counter[str] | None = None) -> BaseException | None:
    """Runs a case; returns the exception if it fails."""
    try:
        outcome = run(one, device)
    except Exception as error:  # noqa: BLE001  (whatever comes is a failure)
        return error
    if counts is not None:
        counts[outcome] += 1
    return None


def shrunk(one: Case, device: str, error: BaseException) -> Case:
    """Leaves out arguments as long as the case fails in the same way."""
    kind, text = type(error), str(error)[:70]

    def fails(other: Case) -> bool:
        found = failed(other, device)
        return found is not None and type(found) is kind and str(found)[:70] == text

    simple: dict[str, Any] = {"epochs": 1, "num_shards": 1, "resumed_after": None, "resumed": {}}
    for part, value in simple.items():
        if getattr(one, part) != value:
            other = replace(one, **{part: value})
            one = other if fails(other) else one
    for part in ("order", "arguments"):
        for name in list(getattr(one, part)):
            if name in ("path", "arrays", "batch_size", one.mistake):
                continue
            other = replace(one, **{part: {k: v for k, v in getattr(one, part).items() if k != name}})
            one = other if fails(other) else one
    arrays = one.arguments.get("arrays", [])
    for name in list(arrays) if one.mistake != "arrays" else []:
        rest = {k: v for k, v in arrays.items() if k != name} if isinstance(arrays, dict) else [a for a in arrays if a != name]
        other = replace(one, arguments=one.arguments | {"arrays": rest})
        if rest and fails(other):
            one, arrays = other, rest
    return one


def described(one: Case, device: str, folder: Path, error: BaseException | None) -> str:
    """What failed, and a program that repeats it."""
    shown = "it fails only sometimes" if error is None else "".join(traceback.format_exception(error, limit=-6))
    given = {**one.arguments, **one.order}
    text = ",\n    ".join(f"{name}={_shown(value)}" for name, value in given.items()).replace(str(folder), "stores")
    stores = one.dataset.stores if isinstance(one.dataset, Dataset) else one.dataset
    module = "stores" if isinstance(one.dataset, Dataset) else "rows"
    arrays = "".join(f"#   {a.name} {a.dims} {a.dtype}\n" for a in stores.arrays)
    how = f"num_shards {one.num_shards}, epochs {one.epochs}, state after {one.resumed_after}"
    how += f", goes on with {one.resumed}" if one.resumed else ""
    return (
        f"case {one.number} on {device}{f' (wrong: {one.mistake})' if one.mistake else ''}: {how}\n{shown}\n"
        f"# DALI_ZARR_ARGUMENTS=1 DALI_ZARR_ARGUMENTS_FIRST={one.number} repeats the case. In the folder tests:\n"
        f"import pathlib\nimport numpy as np\nfrom support.argument_space import {module}\nfrom dali_zarr.torch import Loader\n\n"
        f"{module}.write({one.number // TOGETHER}, pathlib.Path('stores'))\n# lengths {stores.lengths}\n{arrays}"
        f"loader = Loader(\n    {text},\n    device={'cuda' if device == 'gpu' else 'cpu'!r},\n)\n"
        "for batch in loader:\n    print(batch.index.tolist(), dict(batch))\n"
    )


def _shown(value: Any) -> str:
    return f"np.array({value.tolist()!r}, {str(value.dtype)!r})" if isinstance(value, np.ndarray) else repr(value)
