"""The command line without a process of its own."""

from __future__ import annotations

import sys

import pytest
from dali_zarr.__main__ import main


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[object, str, str]:
    """``dali-zarr WORDS``: the exit status, and what was written to stdout and to stderr."""
    monkeypatch.setattr(sys, "argv", ["dali_zarr", *map(str, words)])
    try:
        status = main()
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()
