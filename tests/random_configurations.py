"""Reads many random arrays and compares every value with zarr-python; what test_random_configurations.py does for a few.

    python tests/random_configurations.py --count 10000 --device gpu
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


def run(job: tuple[str, int, int]) -> list[str]:
    """Compares some configurations; the texts of those that failed."""
    device, first, count = job
    from support.configurations import configuration
    from test_random_configurations import compare

    failed = []
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            try:
                compare(device, Path(folder), [configuration(seed)])
            except Exception as e:  # noqa: BLE001  (all are failures of this configuration)
                failed.append(f"seed {seed}: {type(e).__name__}: {str(e)[:300]}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    jobs = [(args.device, first, 25) for first in range(args.first, args.first + args.count, 25)]
    failed = []
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for found in pool.imap_unordered(run, jobs):
            failed += found
            for text in found:
                print(text, flush=True)
    print(f"{len(jobs) * 25} configurations on {args.device}, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
