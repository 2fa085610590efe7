"""Measures an adapter beside its framework's own loader: both in turn, medians of 5, on two cores.

    python tests/integrations/speed.py xbatcher
    python tests/integrations/speed.py --table

Samples per second are printed, and kept in bench-data/integrations/NAME.json. ``--table`` prints all that were kept. Each NAME has
a module ``speed_NAME.py``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "bench-data" / "integrations"
Epoch = Callable[[], int]


def alternate(epochs: dict[str, Epoch], rounds: int) -> dict[str, dict[str, float]]:
    """Runs the epochs in turn, ``rounds`` times after one that doesn't count. Each returns its number of samples. Returns the
    median, the least and the most samples per second by name."""
    rates: dict[str, list[float]] = {name: [] for name in epochs}
    for number in range(rounds + 1):
        for name, epoch in epochs.items():
            began = time.perf_counter()
            samples = epoch()
            if number:
                rates[name].append(samples / (time.perf_counter() - began))
    return {name: {"median": statistics.median(of), "least": min(of), "most": max(of)} for name, of in rates.items()}


def table() -> str:
    """Returns the kept medians as a table of Markdown."""
    lines = ["| framework | measured | own, samples/s | dali_zarr, samples/s |", "|---|---|---|---|"]
    for file in sorted(RESULTS.glob("*.json")):
        for case, found in json.loads(file.read_text()).items():
            own, ours, *_ = (found[name]["median"] for name in found)
            lines.append(f"| {file.stem} | {case} | {own:,.0f} | {ours:,.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", nargs="?", help="of a framework")
    parser.add_argument("--table", action="store_true", help="print what was measured before")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    if asked.table or asked.name is None:
        print(table())
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    cases = importlib.import_module(f"speed_{asked.name}").cases
    found = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        for case, epochs in cases(Path(folder)):
            found[case] = alternate(epochs, asked.rounds)
            for name, one in found[case].items():
                print(f"{case}: {name:20} {one['median']:10.1f} samples/s ({one['least']:.1f} to {one['most']:.1f})", flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{asked.name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
