"""Stores in S3 (moto's server), and at Google and Azure, whose URLs and ranges a server of these tests knows."""

from __future__ import annotations

import numpy as np
import pytest
from support.pipelines import build, same, settled, to_numpy
from support.remote import DIMS, SHAPE, STORES, compare, upload
from support.server import Server
from support.stores import Layout, chunk_files, write_array

# ---- S3 ----


@pytest.mark.parametrize("kind", STORES)
def test_s3_gives_what_the_files_hold(tmp_path, device, values, s3, s3_options, kind):
    write_array(tmp_path, "a", values, dims=DIMS, **STORES[kind])
    prefix = f"{kind}-{device}/deep/store"
    upload(s3, tmp_path, prefix)
    compare(device, tmp_path, f"s3://bucket/{prefix}", arrays=["a"], storage_options=s3_options)
    # Here listing is possible: the only array needs no name.
    compare(device, tmp_path, f"s3://bucket/{prefix}/", storage_options=s3_options, name_arrays=False)


def test_s3_missing_chunks_and_stores(tmp_path, values, s3, s3_options):
    write_array(tmp_path, "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    for file in chunk_files(tmp_path, "a")[::3]:
        file.unlink()
    upload(s3, tmp_path, "missing")
    compare("cpu", tmp_path, "s3://bucket/missing", arrays=["a"], storage_options=s3_options)
    with pytest.raises(ValueError, match="expected a Zarr group or array"):
        build("cpu", 1, path="s3://bucket/nothing", arrays=["a"], storage_options=s3_options)
    with pytest.raises(ValueError, match="expected an array 'b', but found only the array 'a'"):
        build("cpu", 1, path="s3://bucket/missing", arrays=["b"], storage_options=s3_options)


def test_names_with_control_characters(tmp_path, values, s3, s3_options):
    """Over HTTP and from S3, with a signature: as names of arrays and in the store's path, and in lists of arrays."""
    odd = "t\tb\x01\x7f"
    root = tmp_path / "r\to"
    write_array(root / "g", odd, values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    upload(s3, tmp_path, "odd")
    with Server(tmp_path) as server:
        for path in ("s3://bucket/odd/r%09o/g", "s3://bucket/odd/r\to/g", f"{server.url}/r\to/g"):
            options = s3_options if path.startswith("s3") else {}
            pipe = build("cpu", 24, path=path, arrays=[odd], storage_options=options)
            same(to_numpy(pipe.run()[0]), values, path)
            with pytest.raises(ValueError, match=r"r%09o/g.*'t\\tb\\u\{2\}'") as caught:
                build("cpu", 24, path=path, arrays=["t\tb\x02"], storage_options=options)
            assert not set(map(chr, range(32))) - {"\n"} & set(str(caught.value).splitlines()[0])
        # Here listing is possible: the only array needs no name.
        pipe = build("cpu", 24, path="s3://bucket/odd/r%09o/g", storage_options=s3_options)
        same(to_numpy(pipe.run()[0]), values, "listed")


def test_stores_of_several_kinds_have_options_together(tmp_path, values, s3, s3_options):
    """Each takes those that its kind has; one that no kind has is refused."""
    for name, offset in (("one", 0), ("two", 100)):
        write_array(tmp_path / name, "a", values + offset, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    upload(s3, tmp_path / "one", "mixed")
    with Server(tmp_path) as server:
        paths = ["s3://bucket/mixed", f"{server.url}/two"]
        pipe = build("cpu", 48, path=paths, arrays=["a"], storage_options=s3_options | {"user_agent": "me"})
        same(to_numpy(pipe.run()[0])[:, 0], np.concatenate([values, values + 100])[:, 0], "both stores")
        with pytest.raises(ValueError, match="nonsense isn't an option"):
            build("cpu", 1, path=paths, arrays=["a"], storage_options=s3_options | {"nonsense": "1"})


def test_a_profile_gives_credentials(tmp_path, values, s3, monkeypatch):
    write_array(tmp_path / "store", "a", values, dims=DIMS, codec="zstd", layout=Layout(SHAPE))
    upload(s3, tmp_path / "store", "profile")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    credentials = tmp_path / "credentials"
    credentials.write_text("[lab]\naws_access_key_id = testing\naws_secret_access_key = testing\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    options = {"aws_endpoint": s3, "aws_region": "us-east-1", "aws_allow_http": "true"}
    compare("cpu", tmp_path / "store", "s3://bucket/profile", arrays=["a"], storage_options=options)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ValueError, match="AWS_PROFILE: expected a profile \"nobody\""):
        build("cpu", 1, path="s3://bucket/profile", arrays=["a"], storage_options=options)


# ---- Google and Azure ----


def test_a_cache_tells_servers_of_the_environment_apart(tmp_path, values, monkeypatch):
    for offset in (0, 100):
        write_array(tmp_path / f"{offset}/bucket/s", "a", values + offset, dims=DIMS, codec="none", layout=Layout((1, 8, 16)))
        with Server(tmp_path / str(offset)) as server:
            monkeypatch.setenv("GOOGLE_BASE_URL", server.url)
            google = {"google_skip_signature": True, "allow_http": True}
            cache = {"cache_dir": tmp_path / "cache", "cache_validate": False}
            pipe = build("cpu", 24, path="gs://bucket/s", arrays=["a"], storage_options=google, **cache)
            same(to_numpy(pipe.run()[0])[:, 0], (values + offset)[:, 0], f"the server with {offset}")
            assert settled(pipe)["cache_dir_writes"] > 0
            del pipe


def test_arrays_must_be_named_where_listing_is_refused(tmp_path, values):
    write_array(tmp_path / "bucket/s", "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    with Server(tmp_path, fault=lambda _n, _m, path: None if (tmp_path / path[1:]).is_file() else 403) as server:
        google = {"google_base_url": server.url, "google_skip_signature": True, "allow_http": True}
        with pytest.raises(ValueError, match="expected arrays to be named, .* can't be listed .*403.*give arrays"):
            build("cpu", 1, path="gs://bucket/s", storage_options=google)
        compare("cpu", tmp_path / "bucket/s", "gs://bucket/s", arrays=["a"], storage_options=google)


def test_google_and_azure(tmp_path, values):
    """Azure gives no suffixes: the length of a shard is asked for, and only there."""
    write_array(tmp_path / "bucket/s", "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 4, 16), shards=(6, 8, 16)))
    with Server(tmp_path) as server:
        google = {"google_base_url": server.url, "google_skip_signature": True, "allow_http": True}
        compare("cpu", tmp_path / "bucket/s", "gs://bucket/s", arrays=["a"], storage_options=google)
        assert all(method == "GET" for method, _ in server.counts())
        azure = {"azure_endpoint": server.url, "azure_skip_signature": True, "azure_allow_http": True}
        azure["azure_storage_account_name"] = "account"
        compare("cpu", tmp_path / "bucket/s", "az://bucket/s", arrays=["a"], storage_options=azure)
        counts = server.counts()
        assert {path for method, path in counts if method == "HEAD"} == {f"/bucket/s/a/c/{i}/0/0" for i in range(4)}
