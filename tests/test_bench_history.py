"""make bench: what it writes, the runs that are kept of it, and their picture."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from support.documents import ROOT
from support.processes import start_program

BENCH = ROOT / "tests" / "bench"
sys.path.insert(0, str(BENCH))
import history  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def measured(date: str, commit: str, machine: str = "16 cores of a CPU, a GPU, 580.95", **gbps: float) -> dict[str, object]:
    rows: dict[str, object] = {
        store: {"dali_zarr": {"gbps": [median - 1, median, median + 1]}, "zarr": {"gbps": [median / 4]}}
        for store, median in gbps.items()
    }
    rows["v2-lz4"] = {"dali_zarr": {"failed": "no memory"}, "zarr": {"gbps": [1.0]}}
    how = {"device": "gpu", "fields": 256, "batch_size": 16, "threads": 16, "repeats": 3}
    return {"date": date, "commit": commit, "version": "0.1.0", "machine": machine, "results": rows, **how}


def record(tmp_path: Path, run: dict[str, object]) -> Path:
    (tmp_path / "results.json").write_text(json.dumps(run))
    return history.add(tmp_path / "results.json", tmp_path / "runs")


def test_runs_are_drawn_in_their_order(tmp_path):
    record(tmp_path, measured("2026-03-02T10:00:00+00:00", "bbb", zstd=40.0, none=50.0))
    record(tmp_path, measured("2026-01-02T10:00:00+00:00", "aaa", zstd=20.0))
    # The same day and sources: the later run takes the place of the earlier one.
    record(tmp_path, measured("2026-03-02T12:00:00+00:00", "bbb", zstd=30.0, none=50.0))
    record(tmp_path, measured("2026-02-02T10:00:00+00:00", "ccc", "2 cores of a CPU", none=3.0))
    assert [run["commit"] for run in history.runs(tmp_path / "runs")] == ["aaa", "ccc", "bbb"]
    page = history.page(tmp_path / "runs")
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == ["16 cores of a CPU, a GPU", "2 cores of a CPU"]
    assert "| zstd | 30.0 | 7.5 zarr |" in page and "| v2-lz4 |  | 1.0 zarr |" in page and "version 0.1.0 (bbb)" in page
    first = page[page.index("<svg") : page.index("</svg>") + 6].replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    drawn = ElementTree.fromstring(first)
    zstd, none = (
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()] for line in drawn.iter(f"{SVG}polyline")
    )
    assert len(zstd) == 2 and zstd[0][0] < zstd[1][0] and zstd[0][1] > zstd[1][1] > none[0][1] and none[0][0] == zstd[1][0]
    words = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"zstd", "none", "2026-01-02", "2026-03-02"} <= set(words) and "v2-lz4" not in words


def test_a_run_must_tell_what_it_depends_on(tmp_path):
    assert "No run is recorded" in history.page(tmp_path)
    with pytest.raises(ValueError, match="but commit are missing"):
        record(tmp_path, measured("2026-01-02", "", zstd=1.0))
    with pytest.raises(ValueError, match="expected throughput of dali_zarr"):
        record(tmp_path, measured("2026-01-02", "aaa"))


def test_the_recorded_runs_are_whole():
    for run in history.runs(history.FOLDER):
        assert set(history.KNOWN) < set(run) and history.page(history.FOLDER)


@pytest.mark.timeout_s(300)
def test_the_benchmark_tells_all_of_it(tmp_path):
    """A small run on the CPU, from the stores to the page."""
    words = [
        BENCH / "bench.py", "--device", "cpu", "--stores", "v3-none", "--readers", "dali_zarr",
        "--fields", "4", "--epoch", "16", "--repeats", "2", "--seconds", "0.05", "--threads", "2", "--device-memory-limit", "0",
        "--data", str(tmp_path / "data"), "--json", str(tmp_path / "results.json"), "--commit", "0123abc",
    ]
    process = start_program(*words)
    out, err = process.communicate(200)
    assert process.returncode == 0, out + err
    kept = json.loads(history.add(tmp_path / "results.json", tmp_path / "runs").read_text())
    assert kept["commit"] == "0123abc" and kept["version"] and kept["gbps"]["v3-none"]["dali_zarr"] > 0
    assert "| v3-none | " in history.page(tmp_path / "runs")
