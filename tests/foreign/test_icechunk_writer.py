"""What Icechunk writes: versions, shards, chunks that are moved, and virtual chunks in files of others."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.foreign import Foreign, compare, writer
from support.pipelines import batches, build, same

icechunk = writer("icechunk")

pytestmark = pytest.mark.filterwarnings("ignore")
VALUES = np.random.default_rng(0).integers(-1000, 1000, (12, 10)).astype("i4")
DIMS = ["y", "x"]


def _repository(path: Path, prefix: str | None = None) -> Any:
    """A new repository, which may refer to files under a URL."""
    config = icechunk.RepositoryConfig()
    given: dict[str, Any] = {}
    if prefix is not None:
        store = icechunk.local_filesystem_store(prefix.removeprefix("file://"))
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
        given["authorize_virtual_chunk_access"] = {prefix: None}
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)), config=config, **given)


def _array(session: Any, name: str, values: np.ndarray = VALUES, **more: Any) -> Any:
    group = zarr.open_group(session.store, mode="a")
    array = group.create_array(
        name, shape=values.shape, dtype=values.dtype, dimension_names=DIMS, **({"chunks": (4, 5)} | more),
    )
    array[...] = values
    return array


def _compare(device: str, path: Path, repository: Any, name: str, values: np.ndarray, **version: str) -> None:
    session = repository.readonly_session(**(version or {"branch": "main"}))
    read = np.asarray(zarr.open_array(session.store, path=name, mode="r")[...])
    options = {"storage_options": version} if version else {}
    compare(device, Foreign(path, name, {"what was written": values, "zarr-python": read}, DIMS, options), tries=2)


LAYOUTS = {
    "chunks": {}, "shards": {"chunks": (2, 5), "shards": (4, 10)}, "no codec": {"compressors": None},
    "a large chunk": {"chunks": (12, 10)}, "fill values": {"fill_value": int(VALUES[0, 0])},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path, device, layout):
    repository = _repository(tmp_path / "r")
    session = repository.writable_session("main")
    _array(session, "group/a", **LAYOUTS[layout])
    session.commit("a")
    _compare(device, tmp_path / "r", repository, "group/a", VALUES)


def test_versions(tmp_path, device):
    """Each branch, tag and snapshot has its own values, after expired snapshots were removed, too."""
    repository = _repository(tmp_path / "r")
    snapshots = []
    for number in range(3):
        session = repository.writable_session("main")
        if number == 0:
            _array(session, "a")
        else:
            zarr.open_array(session.store, path="a")[number] = number
        snapshots.append(session.commit(str(number)))
    repository.create_tag("second", snapshot_id=snapshots[1])
    repository.create_branch("old", snapshot_id=snapshots[0])
    expected = [VALUES.copy() for _ in snapshots]
    expected[1][1] = 1
    expected[2][1:3] = [[1], [2]]
    for kind, values in (
        ({}, expected[2]), ({"branch": "old"}, expected[0]), ({"tag": "second"}, expected[1]),
        ({"snapshot_id": snapshots[0]}, expected[0]),
    ):
        _compare(device, tmp_path / "r", repository, "a", values, **kind)
    repository.delete_branch("old")
    repository.expire_snapshots(older_than=datetime.datetime.now(datetime.UTC))
    repository.garbage_collect(datetime.datetime.now(datetime.UTC))
    _compare(device, tmp_path / "r", repository, "a", expected[2])


def test_a_moved_array(tmp_path, device):
    """Its chunks stay what they are."""
    repository = _repository(tmp_path / "r")
    if not hasattr(repository, "rearrange_session"):
        assert icechunk.__version__.startswith("1.")
        return
    session = repository.writable_session("main")
    _array(session, "a")
    session.commit("a")
    session = repository.rearrange_session("main")
    session.move("/a", "/b")
    session.commit("b")
    _compare(device, tmp_path / "r", repository, "b", VALUES)


def test_virtual_chunks(tmp_path, device):
    """Beside chunks of its own, and one that is nowhere."""
    (tmp_path / "files").mkdir()
    for i in range(3):
        (tmp_path / f"files/{i} ü.bin").write_bytes(b"head" + np.ascontiguousarray(VALUES[4 * i : 4 * i + 4]).tobytes())
    prefix = f"file://{tmp_path}/files/"
    repository = _repository(tmp_path / "r", prefix)
    session = repository.writable_session("main")
    array = _array(session, "a", np.zeros_like(VALUES), chunks=(4, 10), compressors=None)
    array[:4] = VALUES[:4]
    session.store.set_virtual_ref("a/c/1/0", f"{prefix}1 ü.bin", offset=4, length=160)
    session.commit("a")
    expected = VALUES.copy()
    expected[8:] = 0
    pipe = build(device, 1, path=tmp_path / "r", arrays=["a"], dims=["y"], window=[12], storage_options={"virtual_chunks": prefix})
    ((found,),) = next(batches(pipe))
    same(found, expected, "a")
