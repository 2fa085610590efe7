"""The experiments of the study: all of them run, readers give the same pairs of hours, forms of the store the same values; results
are drawn."""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from support.processes import ranked

STUDY = Path(__file__).parents[1] / "examples/study"
pytestmark = pytest.mark.filterwarnings("ignore")


NAMES = ("bars", "chunking", "common", "decompression", "draw", "gpus", "model", "page", "reading", "readers", "skill", "store",
         "timelines")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The experiments' modules, by name, and a tiny store in all forms."""
    threads, settings = torch.get_num_threads(), copy.deepcopy(zarr.config.config)
    sys.path.insert(0, str(STUDY))
    try:
        modules = {name: importlib.import_module(name) for name in NAMES}
        # Threads that wait for one another cost more than they bring here.
        torch.set_num_threads(1)
        size = modules["common"].Size(23, 2, 32, 64, 2, 0.1, 4)
        folder = tmp_path_factory.mktemp("study")
        yield {**modules, "size": size, "paths": modules["store"].prepare(folder, size)}
    finally:
        torch.set_num_threads(threads)
        # Where there is a GPU, some of the readers set zarr-python's buffers to it.
        zarr.config.config.update(settings)
        sys.path.remove(str(STUDY))
        for name in NAMES:
            sys.modules.pop(name, None)


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
    model = study["model"].ResUNet(size.channels, 16, (1, 1, 1, 1)).to(batch.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    pairs, losses = (batch - 280) / 15, []
    for _ in range(24):
        loss = torch.nn.functional.mse_loss(model(pairs[:, 0]), pairs[:, 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_kernels_are_told_apart(study):
    """The model's are those that run on synthetic data too, also if they copy."""
    of_model = {"void cutlass::Kernel2<cutlass_80_wgmma>", "Memset (Device)"}
    kinds = {
        "void cutlass::Kernel2<cutlass_80_wgmma>": "training", "Memset (Device)": "training",
        "Memcpy HtoD (Pinned -> Device)": "copies", "zstd_sequences": "decoding",
    }
    assert {name: study["timelines"].kind_of(name, of_model) for name in kinds} == kinds


def test_what_ran_on_the_gpu_is_read_from_a_trace(study):
    kernel = {"ph": "X", "cat": "kernel", "name": "conv", "ts": 10.5, "dur": 2.0}
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 11, "dur": 1}
    launch, name = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 9, "dur": 1}, {"ph": "M", "name": "process"}
    found = study["timelines"].on_gpu({"traceEvents": [name, launch, kernel, copy]})
    assert found == [("conv", 10.5, 12.5), ("Memcpy HtoD", 11, 12)]


def test_shares_of_a_timeline(study):
    """Kernels of a kind that run side by side count once, and one that runs over a point's end counts in both."""
    events = [("conv", 1000.0, 1400.0), ("conv", 1300.0, 1500.0), ("zstd_fse", 1500.0, 2250.0), ("conv", 2900.0, 4500.0)]
    found = study["timelines"].shares(events, {"conv"}, 0.003, 0.001)
    assert found == {"training": [50, 10, 100], "decoding": [50, 25, 0], "copies": [0, 0, 0]}
    assert study["timelines"].shares([], set(), 0.002, 0.001)["training"] == [0, 0]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


def in_process(study, monkeypatch, script: str, *words: str) -> None:
    """Runs a script. What would be processes of its own are calls here, for imports take most of their time."""
    file = str(STUDY / f"{script}.py")

    def run(words, seconds, env=None):
        told = []
        with monkeypatch.context() as patched:
            patched.setattr(sys, "argv", list(words))
            for module in (study["common"], study[script]):
                patched.setattr(module, "tell", told.append, raising=False)
            patched.setattr(study["common"].os, "_exit", sys.exit)
            with contextlib.suppress(SystemExit):
                study[script].main()
        return told, "no result"

    with monkeypatch.context() as patched:
        patched.setattr(sys, "argv", [file, *words])
        for module in (study["common"], study[script]):
            patched.setattr(module, "run", run, raising=False)
        study[script].main()


# What runs without a GPU and other readers, and what is measured for each of its stores.
RUNS = {
    "reading": (["dali_zarr", "zarr-python", "zarr-python GPU"], 2, {"hours", "bytes", "seconds", "gb_per_second"}),
    "decompression": (["numcodecs", "dali_zarr, CPU", "dali_zarr, GPU"], 4, {"chunk", "gb_per_second"}),
    "bars": (["dali_zarr"], 4, {"real", "loading", "synthetic", "share"}),
    "timelines": (["dali_zarr"], 1, {"busy", "timeline"}),
    "skill": (["first half", "second half"], 1, {"samples", "seconds", "epochs"}),
}


@pytest.mark.timeout_s(300)
@pytest.mark.parametrize("script", RUNS)
def test_experiments_run(script, study, data, tmp_path, monkeypatch, capsys):
    """On the smallest store; what can't run says why and leaves the rest alone."""
    ways, stores, measured = RUNS[script]
    words = ["--data", str(data), "--out", str(tmp_path), "--size", "tiny"]
    in_process(study, monkeypatch, script, *words, *(["--ways", *ways] if script != "skill" else []))
    of_gpu = {"zarr-python GPU", "dali_zarr, GPU"} | ({"dali_zarr"} if script == "timelines" else set())
    rows = checked(tmp_path, script, ways, stores, measured, of_gpu)
    if script == "reading":
        assert torch.cuda.is_available() or {row.get("error") for row in rows[4:]} == {"RuntimeError: no GPU"}
        assert {row["bytes"] for row in rows if "error" not in row} == {40 * 2 * 32 * 64 * 4}
    if script == "skill":
        first, last = rows
        assert first["samples"] < last["samples"] and 0 < first["within_epoch"] < 18
        assert 0 < last["persistence"] and last["better"] == pytest.approx(1 - last["rmse"] / last["persistence"])
    capsys.readouterr()
    in_process(study, monkeypatch, "draw", "--out", str(tmp_path))
    drawn = capsys.readouterr().out
    if any("error" not in row for row in rows):
        assert (tmp_path / f"{script}.png").stat().st_size > 3000 and f"drew {script}" in drawn
    else:
        assert not (tmp_path / f"{script}.png").exists() and f"{script}: nothing was measured: " in drawn


def checked(out: Path, script: str, ways: list[str], stores: int, measured: set[str], of_gpu: set[str]) -> list[dict[str, Any]]:
    """The rows of a script's results."""
    found = json.loads((out / f"{script}.json").read_text())
    assert found["size_name"] == "tiny" and found["machine"]["cores"] > 0 and "dali-zarr" in found["machine"]["versions"]
    rows = found["rows"]
    assert [row["way"] for row in rows] == [way for way in ways for _ in range(stores)]
    for row in rows:
        if "error" in row or row["way"] in of_gpu and not torch.cuda.is_available():
            # A machine with a GPU may still lack what a reader needs.
            assert row["way"] in of_gpu and row["error"], row
        else:
            assert measured <= set(row) and all(row[key] for key in measured - {"epochs"}), row
    return rows


@pytest.mark.timeout_s(300)
def test_ways_have_processes(study, data, tmp_path, monkeypatch):
    """One for each, which has no longer than the experiment."""
    words = ["chunking.py", "--data", str(data), "--out", str(tmp_path), "--size", "tiny", "--ways"]
    monkeypatch.setattr(sys, "argv", [*words, "dali_zarr", "kvikio"])
    study["chunking"].main()
    measured = {"batches", "seconds", "samples_per_second", "gb_per_second"}
    checked(tmp_path, "chunking", ["kvikio", "dali_zarr"], 4, measured, {"kvikio"})
    monkeypatch.setattr(sys, "argv", [*words, "dali_zarr", "--budget", "0"])
    study["chunking"].main()
    rows = json.loads((tmp_path / "chunking.json").read_text())["rows"]
    assert [row["error"] for row in rows] == ["not measured: the experiment's time is used up"] * 4


@pytest.mark.timeout_s(300)
def test_two_processes_train_together(study, data, tmp_path, monkeypatch):
    """As torchrun would start them; users/test_weather.py has torchrun itself."""
    if torch.cuda.device_count() == 1:
        pytest.skip("one GPU, where two or none are needed")

    def run(words, _seconds, _env):
        assert words[:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        told = [line.removeprefix(study["common"]._RESULT) for line in ranked(2, *words[5:]) if line.startswith("RESULT ")]
        return [json.loads(line) for line in told], "no result"

    monkeypatch.setattr(study["gpus"], "run", run)
    monkeypatch.setattr(sys, "argv", ["gpus.py", "--data", str(data), "--out", str(tmp_path), "--size", "tiny", "--ways", "2"])
    study["gpus"].main()
    checked(tmp_path, "gpus", ["2"], 3, {"real", "loading", "synthetic", "share"}, set())
    in_process(study, monkeypatch, "draw", "--out", str(tmp_path))
    assert (tmp_path / "gpus.png").stat().st_size > 3000


def test_timelines_are_drawn(study, tmp_path, monkeypatch):
    values = {kind: [0, 90, 100, 40] for kind in ("training", "decoding", "copies")}
    found = {"size_name": "whole", "machine": {"cores": 2, "gpus": ["H200"]}, "point": 0.005}
    busy = dict.fromkeys(values, 0.5)
    rows = [{"way": "dali_zarr", "store": store, "timeline": values, "busy": busy} for store in ("one-hour", "ten-hours")]
    (tmp_path / "timelines.json").write_text(json.dumps({**found, "rows": rows}))
    in_process(study, monkeypatch, "draw", "--out", str(tmp_path))
    assert (tmp_path / "timelines.png").stat().st_size > 3000


def results_for(study, folder: Path) -> None:
    """A number for each way and store of the page's experiments, all of them different."""
    number = itertools.count(1)
    for name in ("bars", "bars-cuda-graph", "gpus", "timelines", "reading", "decompression", "chunking", "skill"):
        module = study[name.removesuffix("-cuda-graph")]
        if name == "skill":
            pairs = [("one-hour", part) for part in module.PARTS]
        elif name == "gpus":
            pairs = [(store, way) for store in module.STORES for way in ("1", "2")]
        elif name == "decompression":
            pairs = [(str(chunk), way) for way in module.WAYS for chunk in module.CHUNKS]
        elif isinstance(module.WAYS, dict) and name != "reading":
            pairs = [(store, way) for way, stores in module.WAYS.items() for store in stores]
        else:
            pairs = [(store, way) for way in module.WAYS for store in module.STORES]
        like = "bars" if name in ("bars-cuda-graph", "gpus") else name
        keys = RUNS.get(like, RUNS["reading"])[2] | {"better", "rmse", "persistence"}
        rows = [{"store": store, "way": way, **{key: next(number) / 64 for key in keys}} for store, way in pairs]
        rows = [{**row, "busy": {"training": 0.5}} for row in rows]
        machine = {"gpus": ["H200"], "cores": 16, "versions": {"zarr": "3.1.6"}}
        (folder / f"{name}.json").write_text(json.dumps({"size_name": "whole", "machine": machine, "rows": rows}))


def test_the_page_takes_its_numbers_from_the_results(study, tmp_path):
    page = study["page"]
    results_for(study, tmp_path)
    template = page.TEMPLATE.read_text()
    text = page.filled(template, tmp_path)
    assert "{{" not in text and "on 1 x H200, 16 cores; zarr 3.1.6, unless" in text
    real = next(row for row in json.loads((tmp_path / "bars.json").read_text())["rows"] if row["way"] == "external_source")
    assert f"| external_source | one-hour | {real['real']:.1f} | {real['loading']:.1f} |" in text
    pictures = set(re.findall(r"\(\.\./assets/study/(\w+)\.png\)", template))
    assert pictures == {"bars", "timelines", "reading", "decompression", "chunking", "skill"}


def test_numbers_of_a_page(study, tmp_path):
    filled = study["page"].filled
    rows = [{"store": "one-hour", "way": "dali_zarr, gds", "seconds": 0.5, "again": {"seconds": 0.25}},
            {"store": "one-hour", "way": "kvikio", "error": "none"},
            {"store": "one-hour", "way": "zarr-python", "error": "not measured: the experiment's time is used up"}]
    (tmp_path / "reading.json").write_text(json.dumps({"size_name": "whole", "rows": rows}))
    place = "reading/one-hour/dali_zarr, gds/"
    assert filled(f"{{{{{place}seconds .2f}}}} {{{{{place}seconds : {place}again.seconds .0%}}}}", tmp_path) == "0.50 200%"
    assert filled("{{reading/one-hour/zarr-python/seconds .2f}}", tmp_path) == "not measured"
    section = "## A\n{{reading/one-hour/dali_zarr, gds/seconds .1f}}\n"
    assert filled(section + "## B\n{{skill/one-hour/last/rmse .1f}}\n" + section, tmp_path) == 2 * "## A\n0.5\n"
    with pytest.raises(LookupError, match="none"):
        filled("{{reading/one-hour/kvikio/seconds .2f}}", tmp_path)
    (tmp_path / "reading.json").write_text(json.dumps({"size_name": "small", "rows": rows}))
    with pytest.raises(LookupError, match="small"):
        filled(f"{{{{{place}seconds .2f}}}}", tmp_path)


def test_the_page_is_of_the_committed_results(study):
    """Where there is a page: it was made from them, and its pictures are small."""
    page = study["page"]
    results = page.PAGE.parents[1] / "assets/study"
    if not page.PAGE.exists():
        assert not results.exists(), "results without a page: examples/study/page.py writes it"
        return
    assert page.filled(page.TEMPLATE.read_text(), results) == page.PAGE.read_text()
    assert all(file.stat().st_size < 300_000 for file in results.iterdir())


def test_scripts_are_short():
    assert all(len(file.read_text().splitlines()) < 200 for file in STUDY.glob("*.py"))
