"""Reads many random arrays that other programs write, and compares them with two references; what the suites in
tests/foreign do for a few. `make foreign` installs the writers.

    python tests/random_foreign.py --count 1000 tensorstore gdal
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "foreign")]

# Those whose suites know how to draw an array.
SUITES = sorted((HERE / "foreign").glob("test_*.py"))
WRITERS = [suite.stem.removeprefix("test_") for suite in SUITES if "\nRANDOM = " in suite.read_text()]


def run(job: tuple[str, str, int]) -> list[str]:
    """Writes and compares the random arrays of one seed; the texts of those that failed."""
    device, name, seed = job
    import numpy as np
    from support.foreign import compare

    failed = []
    for make in importlib.import_module(f"test_{name}").RANDOM:
        with tempfile.TemporaryDirectory() as folder:
            try:
                compare(device, make(np.random.default_rng(seed), Path(folder) / "a.zarr"), seed)
            except BaseException as e:  # noqa: BLE001  (all are failures of this array)
                if isinstance(e, KeyboardInterrupt):
                    raise
                place = traceback.extract_tb(e.__traceback__)[-1]
                # Of DALI's errors, what comes after its own words.
                text = " ".join(str(e).split("encountered:")[-1].split())[:400]
                failed.append(f"{name}.{make.__name__} seed {seed}: {type(e).__name__} ({Path(place.filename).name}): {text}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("writers", nargs="*", metavar="WRITER", help=f"of {', '.join(WRITERS)}; default: all")
    parser.add_argument("--count", type=int, default=1000, help="seeds for each writer")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    for name in args.writers or WRITERS:
        try:
            importlib.import_module(f"test_{name}")
        except pytest.skip.Exception as missing:
            parser.error(str(missing))
    jobs = [(args.device, name, seed) for seed in range(args.first, args.first + args.count) for name in args.writers or WRITERS]
    failures = 0
    with multiprocessing.get_context("spawn").Pool(args.processes, maxtasksperchild=200) as pool:
        for found in pool.imap_unordered(run, jobs, chunksize=5):
            failures += len(found)
            for text in found:
                print(text, flush=True)
    print(f"{len(jobs)} seeds on {args.device}, {failures} arrays failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
