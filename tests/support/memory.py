"""Measures by how many bytes memory grows, for tests of limits. As a program it runs the command line and prints the number."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable

from dali_zarr.__main__ import main


def resident() -> int:
    """Returns the bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(act: Callable[[], object]) -> int:
    """Calls a function; returns by how many bytes memory grew at most meanwhile."""
    gc.collect()
    before = most = resident()
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.002):
            most = max(most, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        act()
    finally:
        ended.set()
        watcher.join()
    return most - before


def peak(words: list[str]) -> int:
    """Runs a command; returns by how many bytes memory grew at most."""
    sys.argv = ["dali_zarr", *words]
    statuses: list[int] = []
    grown = growth(lambda: statuses.append(main()))
    assert statuses == [0]
    return grown


if __name__ == "__main__":
    # The first command, on a small store, imports and starts what is needed once. That doesn't count.
    first, second = " ".join(sys.argv[1:]).split(" -- ")
    peak(first.split())
    print(peak(second.split()))
