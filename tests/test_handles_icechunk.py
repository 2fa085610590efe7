"""Icechunk's repositories, sessions and stores as path: the snapshot that they have is read, also of repositories in S3."""

from __future__ import annotations

import dali_zarr
import numpy as np
import pytest
import zarr

torch = pytest.importorskip("torch")
icechunk = pytest.importorskip("icechunk")

from dali_zarr.torch import Loader  # noqa: E402

DIMS = ("time", "lat")
SECRET = "hunter2/icechunk+Secret="


def values(number):
    return np.random.default_rng(number).normal(280, 8, (9, 5)).astype("f4")


def write(repository):
    """Three snapshots of an array; the first has a tag, the second another branch. Returns their names."""
    names = []
    for number in range(3):
        session = repository.writable_session("main")
        if number == 0:
            group = zarr.open_group(session.store, mode="a").create_group("group")
            group.create_array("t", shape=(9, 5), chunks=(2, 5), dtype="f4", dimension_names=DIMS)
            group.create_array("time", shape=(9,), dtype="i8", dimension_names=("time",))[:] = np.arange(9)
            group.create_array("ends", shape=(2,), dtype="i8", dimension_names=("end",))[:] = [4, 9]
        zarr.open_array(session.store, path="group/t")[:] = values(number)
        names.append(session.commit(str(number)))
    repository.create_tag("first", snapshot_id=names[0])
    repository.create_branch("second", snapshot_id=names[1])
    return names


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path_factory.mktemp("icechunk") / "r")))
    made.names = write(made)
    return made


def read(store=None, **args):
    (batch,) = Loader(store, **({"arrays": ["group/t"]} | args), device="cpu", batch_size=9, host_memory_limit="128MiB")
    (found,) = (value for name, value in batch.items())
    return found.numpy()


def test_versions(repository):
    sessions = {
        0: [repository.readonly_session(tag="first"), repository.readonly_session(snapshot_id=repository.names[0])],
        1: [repository.readonly_session("second")], 2: [repository.readonly_session("main"), repository.writable_session("main")],
    }
    for number, held in sessions.items():
        for session in held:
            for handle in (session, session.store, zarr.open_group(session.store, mode="r")):
                assert np.array_equal(read(handle), values(number))
    assert np.array_equal(read(repository), values(2))
    assert np.array_equal(read(repository, storage_options={"tag": "first"}), values(0))
    several = [repository.readonly_session(tag="first"), repository.readonly_session("main")]
    (batch,) = Loader(several, arrays=["group/t"], device="cpu", batch_size=18, host_memory_limit="128MiB")
    assert np.array_equal(batch["group/t"].numpy(), np.concatenate([values(0), values(2)]))


def test_groups_and_arrays(repository):
    """No path leads into a repository, so names of arrays do, and outputs have the names that were given."""
    session = repository.readonly_session(tag="first")
    group = zarr.open_group(session.store, path="group", mode="r")
    assert np.array_equal(read(group, arrays=["t"]), values(0))
    (batch,) = Loader(group, arrays=["t"], breaks="ends", device="cpu", batch_size=9, host_memory_limit="128MiB")
    assert list(batch) == ["t"] and batch.coords["time"].tolist() == list(range(9))
    (batch,) = Loader(group["t"], device="cpu", batch_size=9, host_memory_limit="128MiB")
    assert np.array_equal(batch["t"].numpy(), values(0))
    assert np.array_equal(read(arrays={"x": group["t"]}), values(0))
    assert np.array_equal(read(group, arrays={"x": group["t"]}), values(0))
    with pytest.raises(ValueError, match="expected arrays too, since it doesn't have a single one: ends, t, time"):
        dali_zarr.explain(group)
    with pytest.raises(ValueError, match="no path leads to an array in them"):
        other = zarr.open_array(repository.readonly_session("main").store, path="group/t", mode="r")
        dali_zarr.explain(arrays={"x": group["t"], "y": other})


def test_what_is_refused(repository, tmp_path):
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="group/t")[0] = 1
    with pytest.raises(ValueError, match="changes that aren't committed, which the reader can't see; commit them"):
        dali_zarr.explain(session)
    with pytest.raises(ValueError, match="expected no branch, tag or snapshot_id beside a session"):
        dali_zarr.explain(repository.readonly_session("main"), storage_options={"tag": "first"})
    memory = icechunk.Repository.create(icechunk.in_memory_storage())
    with pytest.raises(ValueError, match="in this process's memory"):
        dali_zarr.explain(memory)


def test_in_s3(s3, monkeypatch):
    """With the credentials that the repository was given: the environment has none."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    storage = icechunk.s3_storage(
        bucket="bucket", prefix="handles/icechunk", region="us-east-1", endpoint_url=s3, allow_http=True, force_path_style=True,
        access_key_id="testing", secret_access_key=SECRET,
    )
    made = icechunk.Repository.create(storage)
    write(made)
    for handle in (made, made.readonly_session("main"), made.readonly_session("main").store):
        loader = Loader(handle, arrays=["group/t"], device="cpu", batch_size=9, host_memory_limit="128MiB")
        (batch,) = loader
        assert np.array_equal(batch["group/t"].numpy(), values(2))
        assert SECRET not in f"{loader!r} {loader._plan} {loader.state_dict()}"


def test_virtual_chunks_that_are_allowed(tmp_path):
    """Containers to which a repository was given access are allowed to the reader too."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files/0.bin").write_bytes(values(5).tobytes())
    prefix = f"file://{tmp_path}/files/"
    config, files = icechunk.RepositoryConfig(), icechunk.local_filesystem_store(f"{tmp_path}/files/")
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, files))
    made = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(tmp_path / "r")), config=config, authorize_virtual_chunk_access={prefix: None},
    )
    session = made.writable_session("main")
    zarr.create_array(session.store, name="t", shape=(9, 5), chunks=(9, 5), dtype="f4", compressors=None, dimension_names=DIMS)
    session.store.set_virtual_ref("t/c/0/0", f"{prefix}0.bin", offset=0, length=180)
    session.commit("virtual")
    assert np.array_equal(read(made, arrays=["t"]), values(5))


def test_a_dataset(repository):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("dask")
    ds = xarray.open_zarr(repository.readonly_session(tag="first").store, group="group", consolidated=False, chunks={})
    ds = ds[["t"]].rename(t="x").isel(time=slice(2, 7))
    (batch,) = Loader(ds, device="cpu", batch_size=5, host_memory_limit="128MiB")
    assert np.array_equal(batch["x"].numpy(), values(0)[2:7])
