"""A user of a bucket, who gets the path, the keys or the permissions wrong."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
from support import remote
from support.programs import EXAMPLES, script
from support.server import Server


@pytest.fixture(scope="module")
def guarded(reanalysis, tmp_path_factory):
    """moto's S3 with the store in the bucket ``era5``, which checks keys and permissions; its URL, and users' keys by name."""
    boto3 = pytest.importorskip("boto3")
    log = tmp_path_factory.mktemp("moto") / "log"
    with remote.s3_server(log, {"INITIAL_NO_AUTH_ACTION_COUNT": "100000"}) as url:
        session = boto3.Session("any", "any", region_name="us-east-1")
        s3, iam = (session.client(name, endpoint_url=url) for name in ("s3", "iam"))
        s3.create_bucket(Bucket="era5")
        for file in reanalysis.rglob("*"):
            if file.is_file():
                s3.put_object(Bucket="era5", Key=f"store/{file.relative_to(reanalysis)}", Body=file.read_bytes())
        keys: dict[str, dict[str, str]] = {}
        users = {"reader": ["s3:GetObject", "s3:ListBucket"], "getter": ["s3:GetObject"], "nobody": []}
        for name, actions in users.items():
            iam.create_user(UserName=name)
            if actions:
                policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}]}
                iam.put_user_policy(UserName=name, PolicyName="own", PolicyDocument=json.dumps(policy))
            key = iam.create_access_key(UserName=name)["AccessKey"]
            keys[name] = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
        headers = {"Content-Type": "text/plain"}
        reset = urllib.request.Request(f"{url}/moto-api/reset-auth", data=b"0", headers=headers, method="POST")
        urllib.request.urlopen(reset, timeout=30).close()
        yield url, keys


def check_means(store, done):
    assert done.returncode == 0, done.stderr
    means = zarr.open_array(store / "t2m", mode="r")[:].mean(axis=(1, 2))
    np.testing.assert_allclose([float(word) for word in done.stdout.split()], means, rtol=1e-5)


@pytest.mark.timeout_s(600)
def test_a_bucket(reanalysis, guarded):
    """The right key reads; with a wrong one, no permission or another bucket the first line says why, without many tries."""
    url, keys = guarded
    wrong = keys["reader"] | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    unknown = {"AWS_ACCESS_KEY_ID": "AKIAUNKNOWN", "AWS_SECRET_ACCESS_KEY": "wrong"}
    cases = [
        ("s3://era5/store", keys["reader"], []),
        ("s3://era5/store", keys["getter"], []),
        ("s3://era6/store", keys["reader"], ["store s3://era6/store: ", "there is no bucket 'era6'", "check the path"]),
        ("s3://era5/stores", keys["reader"], ["store s3://era5/stores: expected a Zarr group or array", "check the path"]),
        ("s3://era5/store", wrong, ["SignatureDoesNotMatch", "credentials come from the environment"]),
        ("s3://era5/store", unknown, ["InvalidAccessKeyId", "credentials come from the environment"]),
        ("s3://era5/store", keys["nobody"], ["AccessDenied", "credentials come from the environment"]),
    ]

    def look(case):
        place, key, _ = case
        # Most of the time goes to imports, where the machine is busy. Repeating a request that is refused would take 180 s.
        began = time.monotonic()
        return script(EXAMPLES / "bucket.py", place, url, **key), time.monotonic() - began

    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(look, cases))
    for (_, key, messages), (done, seconds) in zip(cases, results, strict=True):
        if not messages:
            check_means(reanalysis, done)
            continue
        assert done.returncode == 1 and seconds < 150
        assert done.stderr.startswith("zarr_reader: store s3://"), done.stderr
        assert all(message in done.stderr for message in messages), done.stderr
        assert key["AWS_SECRET_ACCESS_KEY"] == "wrong" or key["AWS_SECRET_ACCESS_KEY"] not in done.stderr


@pytest.mark.timeout_s(600)
def test_a_bucket_that_may_not_be_listed(reanalysis, tmp_path):
    """Amazon, unlike moto, says 403 there of keys that are missing. What is there is read. Of a missing chunk, and of a wrong path,
    the first line names the permission, and refused requests weren't tried again and again."""
    shutil.copytree(reanalysis, tmp_path / "era5" / "store")
    shutil.copytree(reanalysis, tmp_path / "era5" / "holes", ignore=shutil.ignore_patterns("0"))
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    with Server(tmp_path, fault=lambda _number, _method, path: None if (tmp_path / path[1:]).is_file() else 403) as server:
        check_means(reanalysis, script(EXAMPLES / "bucket.py", "s3://era5/store", server.url, **keys))
        # 32 batches are prepared, 12 of them an epoch, and each asks for its chunks. Repeated, it would be 11 times (metadata: 5).
        for place, requests in (("s3://era5/holes", 3 + 1), ("s3://era5/stores", 2)):
            server.take_log()
            done = script(EXAMPLES / "bucket.py", place, server.url, **keys)
            assert max(server.counts().values()) <= requests
            assert done.returncode == 1 and done.stderr.startswith(f"zarr_reader: store {place}")
            assert "403 Forbidden" in done.stderr and "allow s3:ListBucket" in done.stderr
