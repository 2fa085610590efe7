"""The experiments of the study: all of them run, readers give the same pairs of hours, forms of the store the same values; results
are drawn."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

STUDY = Path(__file__).parents[1] / "examples/study"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The experiments' modules, by name, and a tiny store in all forms."""
    sys.path.insert(0, str(STUDY))
    try:
        import bars
        import common
        import model
        import page
        import readers
        import store

        size = common.Size(23, 2, 32, 64, 2, 0.1, 4)
        folder = tmp_path_factory.mktemp("study")
        yield {"bars": bars, "model": model, "page": page, "readers": readers, "size": size, "paths": store.prepare(folder, size)}
    finally:
        sys.path.remove(str(STUDY))


def test_forms_hold_the_same_values(study):
    arrays = {name: zarr.open_array(str(path), path="fields", mode="r") for name, path in study["paths"].items()}
    first = arrays["ten-hours"][...]
    assert first.shape == (23, 2, 32, 64) and len(np.unique(first)) > 1000
    assert all(np.array_equal(first, array[...]) for array in arrays.values())
    assert {name: (array.chunks, array.shards) for name, array in arrays.items()} == {
        "ten-hours": ((10, 1, 32, 64), None), "one-hour": ((1, 1, 32, 64), None), "blosc-lz4": ((1, 1, 32, 64), None),
        "uncompressed": ((1, 1, 32, 64), None), "sharded": ((1, 1, 32, 64), (10, 1, 32, 64)),
    }


@pytest.mark.parametrize("reader", ["dali_zarr", "zarr-python"])
@pytest.mark.parametrize("store", ["ten-hours", "one-hour", "sharded"])
def test_readers_give_consecutive_pairs(study, reader, store):
    """Over more than an epoch, of which the last pairs that don't fill a batch are left out."""
    values = zarr.open_array(str(study["paths"][store]), path="fields", mode="r")[...]
    batches = itertools.islice(study["readers"].READERS[reader](study["paths"][store], study["size"]), 13)
    for number, batch in enumerate(batches):
        start = 2 * (number % 11)
        assert np.array_equal(batch.cpu().numpy(), np.stack([values[t : t + 2] for t in (start, start + 1)])), number


def test_readers_with_workers_are_of_the_same_pairs(study):
    """Their items, without the processes that they are for."""
    path, size = study["paths"]["one-hour"], study["size"]
    values = zarr.open_array(str(path), path="fields", mode="r")[...]
    pairs = study["readers"]._Pairs(str(path), size, 1, 2)
    source = study["readers"]._Source(str(path), size, 1, 2)
    info = type("Info", (), {"idx_in_epoch": 3})
    assert len(pairs) == 11
    assert np.array_equal(pairs[3], values[14:16]) and np.array_equal(source(info), values[14:16])


def test_the_model_learns(study):
    """One batch, again and again."""
    size = study["size"]
    batch = next(iter(study["readers"].zarr_python(study["paths"]["one-hour"], size)))
    torch.manual_seed(0)
    model = study["model"].ResUNet(size.channels, 4, (1, 1, 1, 1)).to(batch.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    pairs, losses = (batch - 280) / 15, []
    for _ in range(12):
        loss = torch.nn.functional.mse_loss(model(pairs[:, 0]), pairs[:, 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_kernels_are_told_apart(study):
    kinds = {
        "void cutlass::Kernel2<cutlass_80_wgmma>": "training", "Memcpy HtoD (Pinned -> Device)": "copies",
        "zstd_sequences": "decoding", "void assemble<4>": "decoding", "nvcomp::lz4DecompressBatchKernel": "decoding",
    }
    assert {name: study["bars"].kind_of(name) for name in kinds} == kinds


def test_spans_of_kernels(study):
    """Spans that touch are one; kernels of a kind that run side by side count once."""
    spans_of = study["bars"].spans_of
    events = [("conv", 1000.0, 1400.0), ("conv", 1300.0, 1500.0), ("conv", 1900.0, 2000.0), ("zstd_fse", 1500.0, 1750.0)]
    found = spans_of(events)
    assert found["timeline"] == {"training": [[0, 500], [900, 1000]], "decoding": [[500, 750]], "copies": []}
    assert found["busy"] == pytest.approx({"training": 0.6, "decoding": 0.25, "copies": 0.0})
    assert spans_of([])["timeline"] == {"training": [], "decoding": [], "copies": []}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


# What runs without a GPU and other readers, and what is measured for each of its stores.
RUNS = {
    "chunking": (["zarr-python", "dali_zarr", "kvikio"], 4, {"batches", "seconds", "samples_per_second", "gb_per_second"}),
    "reading": (["dali_zarr", "zarr-python"], 2, {"hours", "bytes", "seconds", "gb_per_second"}),
    "decompression": (["numcodecs", "dali_zarr, CPU", "nvCOMP"], 4, {"chunk", "gb_per_second"}),
    "bars": (["dali_zarr"], 4, {"real", "loading", "synthetic", "share"}),
    "gpus": ([], 3, {"real", "loading", "synthetic", "share"}),
    "skill": ([], 1, {"samples", "seconds", "epochs"}),
}


@pytest.mark.timeout_s(300)
@pytest.mark.parametrize("script", RUNS)
def test_experiments_run(script, data, tmp_path):
    """In processes of their own, on the smallest store; what can't run says why and leaves the rest alone."""
    ways, stores, measured = RUNS[script]
    words = [sys.executable, str(STUDY / f"{script}.py"), "--data", str(data), "--out", str(tmp_path), "--size", "tiny"]
    subprocess.run([*words, *(["--ways", *ways] if ways else [])], check=True)
    found = json.loads((tmp_path / f"{script}.json").read_text())
    assert found["size_name"] == "tiny" and found["machine"]["cores"] > 0 and "dali-zarr" in found["machine"]["versions"]
    rows = found["rows"]
    assert len(rows) == stores * len(ways or ["1", "2"])
    absent = {"kvikio", "nvCOMP"} if not torch.cuda.is_available() else set()
    for row in rows:
        if row["way"] in absent:
            assert row["error"], row
        elif "error" in row:
            # A machine with a GPU may still lack what a reader needs.
            assert torch.cuda.is_available() and row["way"] in ("kvikio", "nvCOMP"), row
        else:
            assert measured <= set(row) and all(row[key] > 0 for key in measured - {"epochs"}), row
    if script == "reading":
        assert {row["bytes"] for row in rows} == {40 * 2 * 32 * 64 * 4}
    if script == "skill":
        first, last = rows
        assert first["samples"] < last["samples"] and 0 < first["within_epoch"] < 26
        assert 0 < last["persistence"] and last["better"] == pytest.approx(1 - last["rmse"] / last["persistence"])
    subprocess.run([sys.executable, str(STUDY / "draw.py"), "--out", str(tmp_path)], check=True)
    assert (tmp_path / f"{script}.png").stat().st_size > 5000


def test_an_experiment_ends_with_its_budget(data, tmp_path):
    words = [sys.executable, str(STUDY / "chunking.py"), "--data", str(data), "--out", str(tmp_path), "--size", "tiny"]
    subprocess.run([*words, "--ways", "dali_zarr", "--budget", "0"], check=True, timeout=60)
    rows = json.loads((tmp_path / "chunking.json").read_text())["rows"]
    assert [row["error"] for row in rows] == ["not measured: the experiment's time is used up"] * 4


def test_timelines_are_drawn(tmp_path):
    spans = {kind: [[0, 900], [1500, 4000]] for kind in ("training", "decoding", "copies")}
    found = {"size_name": "whole", "machine": {"cores": 2, "gpus": ["H200"]}}
    rows = [{"way": "dali_zarr", "store": store, "timeline": spans} for store in ("one-hour", "ten-hours")]
    (tmp_path / "timelines.json").write_text(json.dumps({**found, "rows": rows}))
    subprocess.run([sys.executable, str(STUDY / "draw.py"), "--out", str(tmp_path)], check=True)
    assert (tmp_path / "timelines.png").stat().st_size > 5000


def test_numbers_of_a_page(study, tmp_path):
    filled = study["page"].filled
    rows = [{"store": "one-hour", "way": "dali_zarr, gds", "seconds": 0.5, "again": {"seconds": 0.25}},
            {"store": "one-hour", "way": "kvikio", "error": "none"}]
    (tmp_path / "reading.json").write_text(json.dumps({"rows": rows}))
    place = "reading/one-hour/dali_zarr, gds/"
    page = f'<span data-study="{place}seconds .2f">?</span> <span data-study="{place}seconds : {place}again.seconds .0%">?</span>'
    assert [part.split("<")[0] for part in filled(page, tmp_path).split(">")[1::2]] == ["0.50", "200%"]
    with pytest.raises(LookupError, match="none"):
        filled('<span data-study="reading/one-hour/kvikio/seconds .2f">?</span>', tmp_path)


def test_scripts_are_short():
    assert all(len(file.read_text().splitlines()) < 200 for file in STUDY.glob("*.py"))
