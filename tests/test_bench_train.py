"""The benchmark of training runs small on the CPU, and its numbers are what it says they are."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from support.processes import ranked, start_program

torch = pytest.importorskip("torch")
# On a busy machine they take many times what they take alone.
pytestmark = pytest.mark.timeout_s(500)

BENCH = Path(__file__).parent / "bench"
sys.path.insert(0, str(BENCH))


def known_models(folder: Path, *demands: str) -> list[str]:
    """Arguments by which the benchmark needn't look for the models of these demands, which takes it a while."""
    file = folder / "known.json"
    file.write_text(json.dumps({"models": {demand: {"spec": {"patch": 4, "width": 8, "extra": 1}} for demand in demands}}))
    return ["--models", str(file)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stores, which are written once."""
    return tmp_path_factory.mktemp("data")


def run(folder: Path, data: Path, *argv: str) -> tuple[int, dict, str]:
    """Runs the benchmark on tiny fields; its exit status, results and output."""
    words = [BENCH / "train.py", "--small", "--data", data, "--output", folder / "out"]
    words += ["--seconds-per-bar", 0.1, "--queues", 1, "--time-limit", 1000]
    process = start_program(*words, *argv, imports="torch")
    out, err = process.communicate(400)
    results = folder / "out" / "results.json"
    assert results.exists(), f"exit status {process.returncode}\n{out}\n{err}"
    return process.returncode, json.loads(results.read_text()), out


def test_rows_hold_what_was_measured(tmp_path, data):
    words = ["--demands", "single,pairs26", "--devices", "cpu", "--memory-limits", "default,1000"]
    status, results, text = run(tmp_path, data, *words, *known_models(tmp_path, "pairs26"))
    assert status == 0, text
    assert results["complete"] and not results["left_out"] and results["models"].keys() == {"single", "pairs26"}
    rows = {(row["demand"], row["store"], row["memory_limit"]): row for row in results["rows"]}
    assert len(rows) == 8
    sample = 4 * 16 * 32 * 64
    for (demand, store, limit), row in rows.items():
        if limit is not None:
            assert "host_memory_limit: expected at least" in row["failed"], row
            continue
        pairs = demand != "single"
        positive = ("real_ms", "synthetic_ms", "copies_ms", "ratio", "copies_ratio", "of_copies", "loading_gbps")
        assert all(row[name] > 0 for name in positive), row
        assert row["delivered_gbps"] * row["real_ms"] == pytest.approx(sample * (1 + pairs) / 1e6)
        # Pairs in order are decoded once and delivered twice, but for the pairs at the borders of the store and of its repetitions.
        expected = 1 if demand == "single" else 0.5
        assert row["decoded_per_delivered"] == pytest.approx(expected, rel=0.2)
        assert row["share_uncompressed"] == (store == "none") and row["share_cpu"] == (store == "zstd")
        expected = (row["real_ms"] - row["synthetic_ms"]) / (row["decoded_gbps"] * row["real_ms"] / 1e3)
        assert row["tax_ms_per_decoded_gb"] == pytest.approx(expected)
        assert row["checked"] == {"batches": 4, "wrong": []}
        assert row["loss_is_finite"] and len(row["synthetic_bars_ms"]) == 2 and len(row["real_bars_ms"]) == 1


def test_results_are_kept_at_the_time_limit_and_models_reused(tmp_path, data):
    argv = ["--demands", "pairs10", "--stores", "none", "--devices", "auto"]
    argv += [*known_models(tmp_path, "pairs10"), "--memory-limits", "2e7,4e7"]
    status, results, text = run(tmp_path, data, *argv)
    assert status == 0 and results["complete"] and len(results["rows"]) == 2 and "looking for a model" not in text
    assert results["models"]["pairs10"]["spec"] == {"patch": 4, "width": 8, "extra": 1}
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "out" / "bars.png").stat().st_size > 1000
        assert (tmp_path / "out" / "curve.png").stat().st_size > 1000
    status, results, text = run(tmp_path, data, *argv, "--time-limit", "0.001")
    assert status == 1 and results["rows"] == [] and len(results["left_out"]) == 2 and not results["complete"], text


def test_two_processes_share_the_samples(tmp_path, data):
    words = [BENCH / "train.py", "--data", data, "--output", tmp_path / "out"]
    words += ["--small", "--demands", "single", "--stores", "zstd", "--devices", "auto", "--seconds-per-bar", "0.1"]
    words += [*known_models(tmp_path, "single"), "--time-limit", "1000"]
    ranked(2, *words)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    (row,) = results["rows"]
    assert results["processes"] == 2 and len(row["ranks"]) == 2
    assert row["delivered_gbps"] == pytest.approx(sum(rank["delivered_gbps"] for rank in row["ranks"]))
    assert row["checked"] == {"batches": 8, "wrong": []}


def test_wrong_values_are_seen(tmp_path):
    from train_source import Oracle
    from train_stores import folder_of, prepare

    prepare(tmp_path, ["zstd"], 4, 3, (16, 32), 1)
    oracle = Oracle(folder_of(tmp_path, "zstd", 4, 3, (16, 32)))
    now, later = (torch.from_numpy(np.stack([oracle.array[t]])) for t in (3, 0))
    assert oracle.check([now, later]) is None
    assert "offset 1 of time 0" in oracle.check([later, now])
    later[0, 2, 15, 31] += 1
    assert oracle.check([now, later]).startswith("1 of 1536 values differ")
    now[0, 0, 0, 0] += 1
    assert "none of the store's" in oracle.check([now, later])


def test_a_profile_counts_time_by_class():
    from train_gpu import summarise

    kernels = [
        ("dz_zstd_entropy", 0.0, 10_000.0), ("sm90_xmma_fprop_implicit_gemm", 5_000.0, 7_000.0), ("dz_assemble", 10e3, 11e3),
        ("void at::native::batch_norm_stats", 20_000.0, 22_000.0), ("Memcpy HtoD", 0.0, 50_000.0), ("relu", 22_000.0, 23_000.0),
    ]
    found = summarise(kernels, 2)
    assert found["classes_ms"] == {
        "copies": 25, "reader: decode": 5, "matrix products": 1, "normalise": 1, "reader: assemble": 0.5, "elementwise": 0.5,
    }
    assert found["busy_ms"] == {"reader": 5.5, "training": 2.5, "both": 1.0}


def test_a_bar_counts_from_where_it_is_steady():
    from train_measure import _steady

    assert _steady([1.0, 1.01, 1.0, 0.99, 1.0, 1.0, 1.01, 1.0]) == 0
    assert _steady([1.0, 1.0, 2.0, 2.0, 2.0, 2.01, 2.0, 2.0]) == 2
    assert _steady([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]) == 4
