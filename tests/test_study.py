"""The experiments of the study: readers give the same pairs of hours, forms of the store the same values; results are drawn."""

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

pytest.importorskip("dask")
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
        import readers
        import store

        size = common.Size(23, 2, 32, 64, 2, 0.1, 4)
        folder = tmp_path_factory.mktemp("study")
        yield {"bars": bars, "model": model, "readers": readers, "size": size, "paths": store.prepare(folder, size)}
    finally:
        sys.path.remove(str(STUDY))


def test_forms_hold_the_same_values(study):
    arrays = {name: zarr.open_array(str(path), path="fields", mode="r") for name, path in study["paths"].items()}
    first = arrays["ten-hours"][...]
    assert first.shape == (23, 2, 32, 64) and len(np.unique(first)) > 1000
    assert all(np.array_equal(first, array[...]) for array in arrays.values())
    assert {name: (array.chunks, array.shards) for name, array in arrays.items()} == {
        "ten-hours": ((10, 1, 32, 64), None), "one-hour": ((1, 1, 32, 64), None), "blosc-lz4": ((1, 1, 32, 64), None),
        "uncompressed": ((1, 1, 32, 64), None), "sharded": ((1, 1, 32, 64), (10, 2, 32, 64)),
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


def test_results_are_drawn(tmp_path):
    """One picture for each experiment, with what failed left out."""
    common = {"small": True, "size": {}, "machine": {"cores": 2, "gpus": ["H200"]}}
    spans = [{"kind": kind, "spans": [[0, 900], [1500, 4000]]} for kind in ("training", "decoding", "copies")]
    share = {"real": 9.0, "loading": 30.0, "synthetic": 10.0, "share": 0.9}
    for name, rows in {
        "chunking": [{"store": "one-hour", "reader": "dali_zarr", "gb_per_second": 3.0},
                     {"store": "one-hour", "reader": "kvikio", "error": "no kvikio"}],
        "reading": [{"store": "one-hour", "way": "dali_zarr", "bytes": 10**9, "seconds": 1.0, "gb_per_second": 1.0}],
        "decompression": [{"way": "nvCOMP", "chunk": 1 << n, "gb_per_second": float(n)} for n in (16, 22)],
        "bars": [{"loader": "dali_zarr", "store": "one-hour", "timeline": spans, **share}],
        "gpus": [{"store": "one-hour", "processes": n, **share} for n in (1, 2)],
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**common, "study": {"real": 52, "synthetic": 558}, "rows": rows}))
    subprocess.run([sys.executable, str(STUDY / "draw.py"), "--out", str(tmp_path)], check=True)
    assert {file.stem for file in tmp_path.glob("*.png")} == {
        "chunking", "reading", "decompression", "bars", "chain", "timeline-dali_zarr-one-hour", "gpus",
    }


def test_scripts_are_short():
    assert all(len(file.read_text().splitlines()) < 200 for file in STUDY.glob("*.py"))
