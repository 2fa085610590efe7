"""Stores that users hold: each entry point reads from them what it reads from their paths, and shows no secrets."""

from __future__ import annotations

import gc
import json
import logging
import pickle
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import dali_zarr
import numpy as np
import pytest
import zarr
from support.loaders import fields, write
from support.pipelines import run_script
from support.remote import upload
from support.server import Server

torch = pytest.importorskip("torch")
fsspec = pytest.importorskip("fsspec")

from dali_zarr.torch import Dataset, Loader  # noqa: E402

# No other test writes them, so they are nowhere else in what is searched.
KEY, SECRET, TOKEN = "AKIDHANDLE7351", "hunter2/handles+Secret=", "hunter3-token"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    base = tmp_path_factory.mktemp("handles")
    write(base / "store.zarr" / "group")
    zarr.open_group(base / "store.zarr", mode="a")
    with zarr.storage.ZipStore(base / "store.zip", mode="w") as archive:
        group = zarr.open_group(archive, mode="w")
        group.create_array("group/field", data=fields(), chunks=(2, 2, 3, 4), dimension_names=("time", "level", "lat", "lon"))
    return base


def field_of(store=None, **args) -> np.ndarray:
    """All samples of the field, by a loader on the CPU."""
    loader = Loader(store, **({"arrays": ["field"]} | args), device="cpu", batch_size=23, host_memory_limit="128MiB")
    (batch,) = loader
    return batch["field"].numpy()


def reading(store):
    """A pipeline that reads the field."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=23, num_threads=1, device_id=None)
    def defined():
        return fn.zarr_reader(path=store, arrays=["field"], host_memory_limit=1 << 27)

    pipe = defined()
    pipe.build()
    return pipe


def local_handles(path):
    store = zarr.storage.LocalStore(path / "store.zarr")
    group = zarr.open_group(store, path="group", mode="r")
    mapper = fsspec.get_mapper(f"{path}/store.zarr/group")
    cached = fsspec.filesystem("simplecache", target_protocol="file", cache_storage=f"{path}/cache")
    return {
        "group": group, "group from a path": zarr.open_group(path / "store.zarr" / "group", mode="r"),
        "store": zarr.storage.LocalStore(path / "store.zarr" / "group"), "store and path": zarr.storage.StorePath(store, "group"),
        "logging": zarr.storage.LoggingStore(zarr.storage.LocalStore(path / "store.zarr" / "group")), "mapper": mapper,
        "fsspec store": zarr.storage.FsspecStore.from_mapper(mapper), "cached": cached.get_mapper(f"{path}/store.zarr/group"),
        "folder": fsspec.filesystem("dir", path=f"{path}/store.zarr", target_protocol="file").get_mapper("group"),
        "zip": zarr.open_group(zarr.storage.ZipStore(path / "store.zip", mode="r"), path="group", mode="r"),
        "zip by fsspec": fsspec.filesystem("zip", fo=f"{path}/store.zip").get_mapper("group"),
    }


KINDS = [
    "group", "group from a path", "store", "store and path", "logging", "mapper", "fsspec store", "cached", "folder", "zip",
    "zip by fsspec",
]


@pytest.mark.parametrize("kind", KINDS)
def test_local_stores(path, kind):
    handle = local_handles(path)[kind]
    assert np.array_equal(field_of(handle), fields())
    assert dali_zarr.explain(handle, arrays=["field"])["samples"] == 23


def test_every_entry_point(path):
    group = zarr.open_group(path / "store.zarr" / "group", mode="r")
    limits = {"host_memory_limit": "128MiB"}
    from nvidia.dali import fn, ops, pipeline_def

    @pipeline_def(batch_size=23, num_threads=1, device_id=None)
    def defined():
        by_class = ops.readers.Zarr(path=group, arrays=["field"], host_memory_limit=1 << 27)
        typed = dali_zarr.zarr_reader(path=[group], arrays=["field"], **limits)
        return fn.zarr_reader(path=group["field"], host_memory_limit=1 << 27), by_class(), typed

    pipe = defined()
    pipe.build()
    for output in pipe.run():
        assert np.array_equal(np.asarray(output.as_tensor()), fields())
    assert np.array_equal(Dataset(group, arrays=["field"], device="cpu", **limits)[3]["field"].numpy(), fields()[3])
    parts = dali_zarr.splits(path=group, arrays=["field"], train=slice(None, "2020-01-01T12"))
    assert parts["train"]["path"] == str(path / "store.zarr" / "group")
    found = dali_zarr.statistics(path=group, arrays=["row"], channels=[], progress=False)
    assert found["arrays"]["row"]["mean"] == pytest.approx(np.arange(69).mean())


def test_jax(path):
    jax = pytest.importorskip("dali_zarr.jax")
    group = zarr.open_group(path / "store.zarr" / "group", mode="r")
    (batch,) = jax.Loader(group, arrays=["field"], device="cpu", batch_size=23, host_memory_limit="128MiB")
    assert np.array_equal(np.asarray(batch["field"]), fields())


def test_dynamic(path):
    out = run_script(
        "import sys, zarr, dali_zarr, numpy as np\n"
        "import nvidia.dali.experimental.dynamic as ndd\n"
        "group = zarr.open_group(sys.argv[1], mode='r')\n"
        "reader = ndd.readers.Zarr(path=group, arrays=['row'], device='cpu', host_memory_limit=1 << 27)\n"
        "print(sum(float(np.asarray(out[0].tensors[0].cpu()).sum()) for out in reader.next_epoch(batch_size=23)))",
        str(path / "store.zarr" / "group"), imports="torch",
    )
    assert float(out.split()[-1]) == 3.0, "the first row"


def test_arrays(path):
    """An array as path is read by its name, with its group's coordinates; arrays may each be given."""
    group = zarr.open_group(path / "store.zarr" / "group", mode="r")
    loader = Loader(group["field"], device="cpu", batch_size=23, host_memory_limit="128MiB")
    (batch,) = loader
    assert np.array_equal(batch["field"].numpy(), fields()) and str(batch.coords["time"][2]).startswith("2020-01-01T02")
    row = np.arange(69, dtype="float32").reshape(23, 3)
    for arrays in ({"field": group["field"], "row": group["row"]}, [group["field"], group["row"]]):
        (batch,) = Loader(arrays=arrays, device="cpu", batch_size=23, host_memory_limit="128MiB")
        assert np.array_equal(batch["field"].numpy(), fields()) and np.array_equal(batch["row"].numpy(), row)
    both = {"field": "field", "other": group["row"]}
    (batch,) = Loader(group, arrays=both, device="cpu", batch_size=23, host_memory_limit="128MiB")
    assert np.array_equal(batch["other"].numpy(), row)
    (batch,) = Loader([group["field"]] * 2, concat="samples", device="cpu", batch_size=46, host_memory_limit="128MiB")
    assert np.array_equal(batch["field"].numpy()[23:], fields())


def test_relative_stores_mean_the_folder_of_now(path, monkeypatch):
    monkeypatch.chdir(path)
    group = zarr.open_group("store.zarr", path="group", mode="r")
    loader = Loader(group, arrays=["field"], device="cpu", batch_size=23, host_memory_limit="128MiB")
    monkeypatch.chdir("/")
    loader.refresh()
    assert np.array_equal(next(iter(loader))["field"].numpy(), fields())


def test_nothing_is_imported_for_paths(path):
    out = run_script(
        "import sys, dali_zarr\ndali_zarr.explain(sys.argv[1], arrays=['field'])\n"
        "print([name for name in ('zarr', 'fsspec', 'obstore', 'icechunk', 'xarray', 'upath') if name in sys.modules])",
        str(path / "store.zarr" / "group"), imports="nothing",
    )
    assert out.split() == ["[]"]


# Stores on servers.


def test_http(path):
    obstore = pytest.importorskip("obstore.store")
    with Server(path) as server:
        url = f"{server.url}/store.zarr/group"
        handles = [fsspec.get_mapper(url), obstore.HTTPStore(url, client_options={"allow_http": True, "timeout": "7s"})]
        handles.append(zarr.storage.FsspecStore.from_url(url))
        handles.append(zarr.storage.ObjectStore(handles[1]))
        for handle in handles:
            assert np.array_equal(field_of(handle), fields())


def test_s3_of_obstore(path, s3):
    obstore = pytest.importorskip("obstore.store")
    upload(s3, path / "store.zarr", "handles")
    store = obstore.S3Store(
        "bucket", prefix="handles", endpoint=s3, region="us-east-1", access_key_id=KEY, secret_access_key=SECRET,
        client_options={"allow_http": True}, retry_config={"max_retries": 3},
    )
    for handle in (zarr.open_group(zarr.storage.ObjectStore(store), path="group", mode="r"), zarr.storage.StorePath(
        zarr.storage.ObjectStore(store), "group")):
        assert np.array_equal(field_of(handle), fields())


class S3FileSystem(fsspec.AbstractFileSystem):
    """s3fs's settings, without its requests."""

    protocol = ("s3", "s3a")
    cachable = False


def test_s3_of_fsspec(path, s3):
    upload(s3, path / "store.zarr", "handles-fsspec")
    files = S3FileSystem(key=KEY, secret=SECRET, endpoint_url=s3, client_kwargs={"region_name": "us-east-1"}, asynchronous=False)
    assert np.array_equal(field_of(files.get_mapper("bucket/handles-fsspec/group")), fields())
    store = zarr.storage.FsspecStore.__new__(zarr.storage.FsspecStore)
    store.fs, store.path = files, "bucket/handles-fsspec/group"
    assert np.array_equal(field_of(store), fields())


class _Guarded(SimpleHTTPRequestHandler):
    """Serves those who sign with KEY, and without a token."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def _is_allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        self.seen.append(given)
        if f"Credential={KEY}/" in given and self.headers.get("x-amz-security-token") is None:
            return True
        body = b"<Error><Code>InvalidAccessKeyId</Code></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command == "GET" else b"")
        return False

    def do_GET(self) -> None:
        if self._is_allowed():
            super().do_GET()

    def do_HEAD(self) -> None:
        if self._is_allowed():
            super().do_HEAD()

    def log_message(self, *_) -> None:
        """Prints nothing."""


@pytest.fixture
def guarded(path):
    (path / "bucket").exists() or (path / "bucket").symlink_to(path / "store.zarr")
    handler = type("Handler", (_Guarded,), {"seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler.seen
        server.shutdown()


def test_credentials_are_used_and_shown_nowhere(path, guarded, monkeypatch, caplog, capfd):
    """Those of the store count, and none of the environment's is mixed with them."""
    url, seen = guarded
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the environment".replace(" ", "-"))
    files = S3FileSystem(key=KEY, secret=SECRET, endpoint_url=url, client_kwargs={"region_name": "us-east-1"})
    mapper = files.get_mapper("bucket/group")
    args = {"device": "cpu", "batch_size": 4, "host_memory_limit": "128MiB"}
    with caplog.at_level(logging.DEBUG):
        loader = Loader(mapper, arrays=["field"], random_shuffle=True, **args)
        first = next(iter(loader))
        state = loader.state_dict()
        loader.load_state_dict(state)
        list(loader)
        loader.refresh()
        explained = dali_zarr.explain(mapper, arrays=["field"])
        with pytest.raises(ValueError, match="window: ") as missing:
            Loader(mapper, arrays=["field"], window=[99], **args)
        with pytest.raises(TypeError, match="can be pickled only without credentials") as pickled:
            pickle.dumps(loader)
        pipe = reading(mapper)
        assert np.array_equal(np.asarray(pipe.run()[0].as_tensor()), fields())
    assert first["field"].shape == (4, 2, 3, 5) and all(f"Credential={KEY}" in one for one in seen)
    texts = [
        repr(loader), json.dumps(state), str(explained), json.dumps(explained), caplog.text, str(missing.value), str(pickled.value),
        json.dumps(loader.counters()), repr(loader._asked._given), repr(loader._plan), "".join(capfd.readouterr()),
        pipe.serialize().decode("latin1"),
    ]
    for text in texts:
        assert KEY not in text and "hunter2" not in text
    # Without them the store is closed.
    with pytest.raises(ValueError, match="necessary privileges"):
        Loader("s3://bucket/group", arrays=["field"], storage_options={"aws_endpoint": url, "aws_allow_http": True}, **args)


def test_credentials_end_with_what_uses_them(path, guarded):
    url, _ = guarded
    files = S3FileSystem(key=KEY, secret=SECRET, endpoint_url=url, client_kwargs={"region_name": "us-east-1"})
    loader = Loader(files.get_mapper("bucket/group"), arrays=["field"], device="cpu", host_memory_limit="128MiB")
    options = [str(option) for option in loader._plan.arguments["storage_options"]]
    assert np.array_equal(field_of("s3://bucket/group", storage_options=options), fields())
    del loader
    gc.collect()
    with pytest.raises(ValueError, match="the credentials of the store that was given aren't in this process's memory"):
        field_of("s3://bucket/group", storage_options=options)


# What becomes of settings, and what is refused.


def options_of(files, root="bucket/a"):
    from dali_zarr._handles import filesystems

    place = filesystems.of_path("path", files, root)
    return place.path, dict(place.options), dict(place.secrets)


class GCSFileSystem(fsspec.AbstractFileSystem):
    protocol = ("gs", "gcs")
    cachable = False


class AzureBlobFileSystem(fsspec.AbstractFileSystem):
    protocol = ("abfs", "az", "abfss")
    cachable = False


def test_settings_of_file_systems(tmp_path):
    both = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    assert options_of(S3FileSystem(anon=True)) == ("s3://bucket/a", {"aws_skip_signature": "true"}, {})
    assert options_of(S3FileSystem(), "b/ü %/c") == ("s3://b/%C3%BC%20%25/c", {}, {})
    found = options_of(S3FileSystem(client_kwargs={f"aws_{k}": v for k, v in zip(
        ("access_key_id", "secret_access_key", "session_token"), (KEY, SECRET, TOKEN), strict=True)}, requester_pays=True))
    assert found == ("s3://bucket/a", {"aws_request_payer": "true"}, both | {"aws_session_token": TOKEN})
    assert options_of(S3FileSystem(key=KEY, secret=SECRET, anon=True))[2] == {}
    assert options_of(GCSFileSystem(token="anon")) == ("gs://bucket/a", {"google_skip_signature": "true"}, {})
    (tmp_path / "keys.json").write_text("{}")
    assert options_of(GCSFileSystem(token=str(tmp_path / "keys.json")))[1] == {
        "google_application_credentials": str(tmp_path / "keys.json")}
    account = {"type": "service_account", "private_key": SECRET}
    assert options_of(GCSFileSystem(token=account, project="p")) == (
        "gs://bucket/a", {}, {"google_service_account_key": json.dumps(account)})
    assert options_of(AzureBlobFileSystem(account_name="acc", sas_token="?sv=1&sig=x")) == (
        "az://bucket/a", {"azure_storage_account_name": "acc"}, {"azure_storage_sas_key": "sv=1&sig=x"})


def test_paths_of_universal_pathlib(path):
    """As they are seen from here: by their package, a file system and a path in it."""

    class CloudPath:
        fs, path = S3FileSystem(anon=True), "bucket/a"

    CloudPath.__module__ = "upath.core"
    from dali_zarr import _handles

    found = _handles.translated({"path": [CloudPath()], "arrays": ["a"]})
    assert found["path"] == ["s3://bucket/a"] and found["storage_options"] == ["aws_skip_signature=true"]


def test_settings_of_obstore():
    obstore = pytest.importorskip("obstore.store")
    from dali_zarr._handles import objects

    azure = objects.of_store("path", obstore.AzureStore("c", prefix="a/b", account_name="acc", account_key="aGk="))
    assert azure.path == "az://c/a/b" and dict(azure.options) == {"azure_storage_account_name": "acc"}
    assert dict(azure.secrets) == {"azure_storage_account_key": "aGk="} and "aGk=" not in repr(azure)
    google = objects.of_store("path", obstore.GCSStore("b", skip_signature=True))
    assert google.path == "gs://b" and dict(google.options) == {"google_skip_signature": "true"}
    local = objects.of_store("path", obstore.LocalStore("/tmp"))
    assert local.path == "/tmp"
    for store, words in (
        (obstore.MemoryStore(), "in this process's memory"),
        (obstore.S3Store("b", region="r", credential_provider=lambda: {}), "credential_provider"),
        (obstore.HTTPStore("http://h", client_options={"default_headers": {"x": SECRET}}), "default_headers"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            Loader(store, arrays=["a"])
        assert SECRET not in str(caught.value)


REFUSED = {
    "memory": (lambda path: zarr.storage.MemoryStore(), "it is in this process's memory; write it to a folder"),
    "fsspec's memory": (lambda path: fsspec.get_mapper("memory://a"), "can't read memory; write it to a folder"),
    "a file system": (lambda path: fsspec.filesystem("file"), r"give filesystem.get_mapper\(PATH\)"),
    "a session of s3fs": (lambda path: S3FileSystem(session=object()).get_mapper("b/a"), "can't use its setting 'session'"),
    "headers": (
        lambda path: fsspec.filesystem("http", client_kwargs={"headers": {"x": SECRET}}).get_mapper("http://h/a"),
        "can't use its setting 'client_kwargs'",
    ),
    "a profile": (lambda path: S3FileSystem(profile="lab").get_mapper("b/a"), "set AWS_PROFILE"),
    "without names": (lambda path: S3FileSystem(True).get_mapper("b/a"), "arguments without names"),
    "a token": (lambda path: GCSFileSystem(token=object()).get_mapper("b/a"), "set GOOGLE_APPLICATION_CREDENTIALS"),
    "an open zip": (lambda path: fsspec.filesystem("zip", fo=open(path / "store.zip", "rb")).get_mapper(""), "open file"),
    "two stores": (
        lambda path: [S3FileSystem(anon=True).get_mapper("b/a"), S3FileSystem(requester_pays=True).get_mapper("b/c")],
        "they have different options",
    ),
    "two accounts": (
        lambda path: [S3FileSystem(key=KEY, secret=one).get_mapper("b/a") for one in (SECRET, "x")],
        "they have different credentials",
    ),
    "two names": (
        lambda path: [zarr.open_array(path / "store.zarr/group", path=one, mode="r") for one in ("field", "row")],
        "expected arrays of one name, but found field, row",
    ),
    "a group and an array": (
        lambda path: [zarr.open_group(path / "store.zarr/group"), zarr.open_array(path / "store.zarr/group/row", mode="r")],
        "expected only arrays beside it",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(path, what, monkeypatch):
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    make, words = REFUSED[what]
    with pytest.raises(ValueError, match=f"^zarr_reader: path: .*{words}") as caught:
        dali_zarr.explain(make(path))
    assert "hunter2" not in str(caught.value) and KEY not in str(caught.value)


def test_arrays_that_are_refused(path):
    group = zarr.open_group(path / "store.zarr" / "group", mode="r")
    with pytest.raises(ValueError, match="expected arrays with different names"):
        dali_zarr.explain(arrays=[group["row"], group["row"]])
    with pytest.raises(ValueError, match="expected none beside an array as path"):
        dali_zarr.explain(group["row"], arrays=["field"])
    with pytest.raises(TypeError, match="expected a path or a list of paths, found") as caught:
        dali_zarr.explain({"secret": SECRET})
    assert "hunter2" not in str(caught.value)


# Hugging Face.


def test_hugging_face(path, monkeypatch):
    """What huggingface_hub calls the files of a repository are URLs that anyone may read."""
    served = path / "served"
    places = "datasets/org/name/resolve/main", "datasets/org/name/resolve/v1", "buckets/org/name/resolve", "org/model/resolve/main"
    for place in places:
        (served / place).mkdir(parents=True, exist_ok=True)
        (served / place / "a.zarr").exists() or (served / place / "a.zarr").symlink_to(path / "store.zarr" / "group")
    with Server(served) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        for url in (
            "hf://datasets/org/name/a.zarr", "hf://datasets/org/name@v1/a.zarr", "hf://buckets/org/name/a.zarr", "hf://org/model/a.zarr",
        ):
            assert np.array_equal(field_of(url), fields()), url
        assert np.array_equal(field_of(None, arrays={"field": "hf://datasets/org/name/a.zarr/field"}), fields())
        hub = pytest.importorskip("huggingface_hub")
        mapper = hub.HfFileSystem().get_mapper("datasets/org/name/a.zarr")
        assert np.array_equal(field_of(mapper), fields())
    for url, words in (
        ("hf://datasets/org", "expected hf://datasets/ORG/NAME/PATH"), ("hf://datasets/org/name@refs/pr/1/a", "a commit's hash"),
        ("hf://buckets/org/name@v1/a", "buckets have no revisions"), ("hf://datasets/org/name@/a", "another revision than ''"),
    ):
        with pytest.raises(ValueError, match=f"^zarr_reader: path: .*{words}"):
            dali_zarr.explain(url)
