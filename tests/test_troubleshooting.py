"""The messages of docs/guides/troubleshooting.md are those that users get: each is provoked here."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import zarr
from support.documents import ROOT
from support.pipelines import run_script
from support.server import Server

torch = pytest.importorskip("torch")
pytest.importorskip("jax")
pytest.importorskip("xarray")

import dali_zarr.jax  # noqa: E402
from dali_zarr.torch import Loader  # noqa: E402

PAGE = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text()
CSR = {"path": "cells.zarr", "arrays": ["X/data", "X/indices"], "ragged": "X/indptr"}


@pytest.fixture
def place(small_stores, tmp_path, monkeypatch) -> Path:
    """Some of the small stores, in the current folder."""
    for name in ("hours.zarr", "cells.zarr", "image.zarr"):
        (tmp_path / name).symlink_to(small_stores / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(**arguments: object) -> Loader:
    return Loader(**{"path": "hours.zarr", "arrays": ["t2m"], "batch_size": 4, "device": "cpu"} | arguments)


class Within(torch.utils.data.IterableDataset):
    """A loader that is made in the worker process of a DataLoader."""

    def __iter__(self):
        return iter(load())


def in_a_worker() -> None:
    list(torch.utils.data.DataLoader(Within(), batch_size=None, num_workers=1))


def sent_to_a_worker() -> None:
    list(torch.utils.data.DataLoader(load(), batch_size=None, num_workers=1, multiprocessing_context="spawn"))


def forbidden() -> None:
    with Server(Path(), fault=lambda _number, _method, _path: 403) as server:
        load(path=f"{server.url}/hours.zarr")


def damaged() -> None:
    shutil.copytree("hours.zarr", "damaged.zarr")
    chunk = Path("damaged.zarr/t2m/c/1/0/0")
    chunk.write_bytes(chunk.read_bytes()[:2000])
    list(load(path="damaged.zarr"))


def other_samples() -> None:
    state = load(random_shuffle=True).state_dict()
    loader = load(random_shuffle=True, offsets=[0, 6])
    loader.load_state_dict(state)
    next(iter(loader))


def packed_differently() -> None:
    for scale in (1, 2):
        zarr.create_array(f"{scale}.zarr/t", shape=(4, 3), dtype="int16", attributes={"scale_factor": scale / 10})
    load(path=["1.zarr", "2.zarr"], arrays=["t"])


def several_dimensions() -> None:
    zarr.create_array("square.zarr/a", shape=(4, 3, 3), dtype="float32")
    load(path="square.zarr", arrays=["a"], mean=[1.0, 2.0, 3.0])


def by_columns() -> None:
    shutil.copytree("cells.zarr", "genes.zarr")
    zarr.open_group("genes.zarr/X").attrs["encoding-type"] = "csc_matrix"
    load(**CSR | {"path": "genes.zarr"})


def not_loaded() -> None:
    run_script("from nvidia.dali import fn\nfn.zarr_reader(path='hours.zarr')")


PROVOKED: dict[str, Callable[[], object]] = {
    "there is no store": lambda: load(path="house.zarr"),
    "there is no array": lambda: load(arrays=["t3m"]),
    "no array is named": lambda: load(arrays=None),
    "text": lambda: load(path="cells.zarr", arrays=["obs/cell_type/categories"]),
    "there is no server": lambda: load(path="http://127.0.0.1:9/hours.zarr"),
    "forbidden": forbidden,
    "an option of fsspec": lambda: load(path="s3://bucket/hours.zarr", storage_options={"anon": True}),
    "a secret": lambda: load(path="s3://bucket/hours.zarr", storage_options={"aws_secret_access_key": "secret"}),
    "an argument": lambda: load(shuffle=True),
    "a dimension": lambda: load(dims=["lattitude"]),
    "no samples": lambda: load(window=[50]),
    "a label": lambda: load(sel={"latitude": 3.0}),
    "no coordinates": lambda: load(path="image.zarr", arrays=["0"], dims=["z", "y", "x"], sel={"x": "2020"}),
    "ascending": lambda: load(sel={"latitude": slice(-30, 30)}),
    "types of a stack": lambda: load(arrays=["t2m", "time"], stack_arrays=True),
    "means": lambda: load(arrays=["t2m", "z"], stack_arrays=True, mean=[1.0, 2.0, 3.0]),
    "several dimensions": several_dimensions,
    "decoded on the GPU": lambda: load(decode_device="gpu"),
    "a limit": lambda: load(host_memory_limit="10kB"),
    "packed differently": packed_differently,
    "levels": lambda: load(path="image.zarr", arrays={"image": "0", "label": "labels/cells/1"}, dims=["z", "y", "x"]),
    "by columns": by_columns,
    "damaged": damaged,
    "other samples": other_samples,
    "in a worker": in_a_worker,
    "sent to a worker": sent_to_a_worker,
    "64 bits": lambda: dali_zarr.jax.Loader("hours.zarr", arrays=["time"], device="cpu"),
    "ragged": lambda: dali_zarr.jax.Loader(**CSR, device="cpu"),
    "not loaded": not_loaded,
}


@pytest.mark.filterwarnings("ignore")
def test_each_message_is_raised(place):
    """And each of these faults is on the page."""
    patterns = {
        message: re.compile(".*".join(map(re.escape, message.split("..."))), re.DOTALL)
        for message in re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
    }
    assert len(patterns) == len(PROVOKED)
    explained: dict[str, list[str]] = {}
    for name, provoke in PROVOKED.items():
        with pytest.raises((ValueError, TypeError, RuntimeError, AssertionError)) as caught:
            provoke()
        explained[name] = [message for message, pattern in patterns.items() if pattern.search(str(caught.value))]
        assert len(explained[name]) == 1, f"{name}: {explained[name]} of the page explain {caught.value}"
    assert {message for messages in explained.values() for message in messages} == set(patterns)
