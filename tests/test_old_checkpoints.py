"""Checkpoints of ragged readers from before neighbouring chunks were shuffled as one block mean another order: they are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dali_zarr.torch import Loader
from support.stores import Layout, write_array

ROWS, CHUNK = 3000, 10


@pytest.fixture
def store(tmp_path):
    """More than 64 chunks in a window of all rows, and rows that reach into the next chunk."""
    offsets = np.concatenate([[0], np.cumsum(1 + np.arange(ROWS) % 3)])
    write_array(tmp_path, "data", np.arange(offsets[-1]), layout=Layout((CHUNK,)))
    write_array(tmp_path, "indptr", offsets)
    return tmp_path


def loader(store, initial_fill: int) -> Loader:
    return Loader(
        store, arrays=["data"], ragged="indptr", random_shuffle=True, initial_fill=initial_fill, batch_size=50, device="cpu",
    )


def test_of_ragged_rows(store):
    """What was written then had a block for each chunk, as small windows have it now."""
    now = loader(store, ROWS)
    state = now.state_dict()
    written = json.loads(state["reader"])
    then = json.loads(loader(store, CHUNK).state_dict()["reader"])
    blocks = "samples that share chunks"
    assert written["cut"][blocks] != then["cut"][blocks]
    written["cut"][blocks] = then["cut"][blocks]
    with pytest.raises(ValueError, match="samples that share chunks") as found:
        now.load_state_dict({**state, "reader": json.dumps(written)})
    assert "checkpoint" in str(found.value).splitlines()[0]
    now.load_state_dict(state)
    assert sum(len(batch["data"]) for batch in now) == ROWS


@pytest.mark.parametrize("version", [1, 3, None])
def test_of_other_versions(store, version):
    now = loader(store, ROWS)
    state = now.state_dict()
    written = json.loads(state["reader"])
    other = {**written, "version": version}
    with pytest.raises(ValueError, match=f"the checkpoint has version {'none' if version is None else version} of the format"):
        now.load_state_dict({**state, "reader": json.dumps(other)})
