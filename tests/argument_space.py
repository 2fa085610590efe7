"""Runs many random cases over the argument space; what test_argument_space.py does for a few thousand.

    python tests/argument_space.py --count 20000 --device gpu
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

PART = 250


def run(job: tuple[str, int, int]) -> tuple[dict[str, int], list[str]]:
    """Runs some cases; how many there were by outcome, and the failed ones."""
    from support.argument_space.report import run_cases

    warnings.simplefilter("ignore")
    device, first, count = job
    report = run_cases(first, count, device, most_failures=1_000_000)
    return dict(report.counts), report.failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the first case")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    end = args.first + args.count
    jobs = [(args.device, first, min(PART, end - first)) for first in range(args.first, end, PART)]
    counts, failures = Counter[str](), 0
    with multiprocessing.get_context("spawn").Pool(args.processes, maxtasksperchild=4) as pool:
        for found, failed in pool.imap_unordered(run, jobs):
            counts.update(found)
            failures += len(failed)
            for text in failed:
                print(text, flush=True)
    print(f"{args.count} cases on {args.device}: {dict(counts)}, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
