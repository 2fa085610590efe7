"""What users write, as they write it: those of the examples that take processes or servers, each run as a program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import psutil
import pytest
import zarr
from support import remote
from support.pipelines import why_no_gpu
from support.processes import ranked, start_program
from support.stores import write_array, write_era5

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = [EXAMPLES / f"{name}.py" for name in ("bucket", "lightning_fit", "weather", "xbatcher_switch")]


@pytest.fixture(scope="module")
def reanalysis(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "era5.zarr"
    write_era5(path, hours=48)
    zarr.open_group(path)["time"].attrs.update({"units": "hours since 2020-01-01", "calendar": "standard"})
    write_array(path, "level", np.array([1000, 850, 500, 300, 100]), dims=("level",))
    return path


def torchrun(processes: int, *words: object, kill_after: int | None = None) -> list[list[str]]:
    """The lines that all processes printed, in words; with ``kill_after``, until so many were there."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(
        [*command, *map(str, words)], env=environment, stdout=subprocess.PIPE, text=True,
    )
    lines: list[list[str]] = []
    for line in running.stdout:
        lines.append(line.split())
        if len(lines) == kill_after:
            # All at once, as when a machine fails; torchrun's workers have sessions of their own.
            for process in [*psutil.Process(running.pid).children(recursive=True), running]:
                process.kill()
            running.wait(60)
            return lines + [line.split() for line in running.stdout]
    assert running.wait(60) == 0
    return lines


def hours(lines: list[list[str]], kind: str, epoch: int) -> list[str]:
    return sorted(hour for line in lines if line[:2] == [kind, str(epoch)] for hour in line[2:])


def script(*words: object, imports: str = "torch", **environment: str) -> tuple[int, str, str]:
    """How a program ends, and what it prints."""
    process = start_program(*words, imports=imports, env={"OMP_NUM_THREADS": "1"} | environment)
    out, err = process.communicate(200)
    return process.returncode, out, err


def test_scripts_are_short():
    for file in SCRIPTS:
        assert len([line for line in file.read_text().splitlines() if line.strip()]) < 40, file


@pytest.mark.timeout_s(300)
@pytest.mark.filterwarnings("ignore")
def test_weather_by_dates_after_a_crash(reanalysis, tmp_path):
    """Two ranks are killed in mid-epoch, three go on with the model of the checkpoint: each sample of each epoch was trained on,
    and only the step that the crash cut off may have been twice."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("xarray")
    checkpoint = tmp_path / "checkpoint.pt"
    first = torchrun(2, EXAMPLES / "weather.py", reanalysis, checkpoint, 2, kill_after=7)
    # So far away that the steps which are left don't bring it back.
    kept = torch.load(checkpoint)
    kept["model"]["module.bias"].fill_(1e6)
    torch.save(kept, checkpoint)
    second = torchrun(3, EXAMPLES / "weather.py", reanalysis, checkpoint, 2)
    resumed = torch.load(checkpoint)
    assert (resumed["model"]["module.bias"] > 9e5).all()
    assert resumed["optimizer"]["state"][0]["step"] > kept["optimizer"]["state"][0]["step"] > 0
    train = [str(np.datetime64("2020-01-01T00", "h") + n) for n in range(30)]
    assert set(hours(first + second, "train", 0)) == set(train)
    assert len(hours(first + second, "train", 0)) <= len(train) + 2 * 2
    assert hours(second, "train", 1) == train
    validation = [str(np.datetime64("2020-01-02T12", "h") + n) for n in range(6)]
    assert hours(second, "validation", 0) == hours(second, "validation", 1) == validation
    assert [line[:2] for line in second if line[0] == "loss"] == [["loss", "0"], ["loss", "1"]]


@pytest.mark.timeout_s(900)
@pytest.mark.parametrize(
    ("device", "ranks"),
    [("cpu", 2), pytest.param("cuda", 1, marks=pytest.mark.skipif(bool(why_no_gpu()), reason=f"{why_no_gpu()}"))],
)
def test_distributed_data_parallel_goes_on(reanalysis, tmp_path, device, ranks):
    """By Gloo on CPUs, and by NCCL on a GPU. The second run goes on from the last checkpoint with the samples that the
    first run had after it. On CPUs its losses are the same to the last digit, so model, optimizer and loader were restored."""
    pytest.importorskip("torch")
    command = (ranks, EXAMPLES / "ddp.py", reanalysis, tmp_path / "checkpoint.pt", "--device", device)
    first, second = (sorted(ranked(*command)) for _ in range(2))
    epochs = [[json.loads(line.partition("hours ")[2]) for line in first if line.startswith(f"epoch {e} ")] for e in range(2)]
    for batches in epochs:
        # 47 pairs of hours. What isn't a full batch for all ranks is left out.
        hours = sorted(hour for batch in batches for hour in batch)
        assert len(hours) == len(set(hours)) == (44 if ranks == 2 else 46) and set(hours) <= set(range(47))
    assert sorted(epochs[0]) != sorted(epochs[1])
    # A checkpoint after each fifth batch: the last one after the tenth of 11 on two ranks, and after the twentieth of 23 on one.
    assert len(second) == (2 if ranks == 2 else 3)
    kept = (lambda line: line) if device == "cpu" else (lambda line: re.sub("loss [^ ]+", "", line))
    assert {kept(line) for line in second} < {kept(line) for line in first}


def test_the_switch_from_xbatcher(reanalysis):
    """Each patch is xbatcher's, with its times."""
    pytest.importorskip("xbatcher")
    status, out, err = script(EXAMPLES / "xbatcher_switch.py", reanalysis)
    assert status == 0, err
    # 24 hours in patches of 4 that overlap by 2, with 2 x 2 on the grid: a batch of 8 has two times.
    begins = [str(np.datetime64("2020-01-01T06", "h") + 4 * n) for n in range(6)]
    assert [line.split() for line in out.splitlines()] == [[b, "4" if b == begins[-1] else "8", "same"] for b in begins]


@pytest.mark.timeout_s(400)
def test_lightning_after_a_stop(reanalysis, tmp_path):
    """Stopped in the first epoch and started again, training sees each hour once in each epoch, and validation all of its own."""
    pytest.importorskip("lightning")
    lines: list[list[str]] = []
    for steps in (3, 100):
        status, out, err = script(EXAMPLES / "lightning_fit.py", reanalysis, tmp_path, steps, imports="lightning")
        assert status == 0, err
        lines += [line.split() for line in out.splitlines()]
    train = [hour for line in lines if line[:1] == ["train"] for hour in line[1:]]
    every = [str(np.datetime64("2020-01-01T00", "h") + n) for n in range(24)]
    assert sorted(train[:24]) == every and sorted(train[24:]) == every and train[:24] != train[24:]
    validation = [hour for line in lines if line[:1] == ["validation"] for hour in line[1:]]
    assert validation == 2 * [str(np.datetime64("2020-01-02T06", "h") + n) for n in range(12)]


@pytest.mark.timeout_s(300)
def test_a_notebook(reanalysis, monkeypatch):
    """The cells run, and show what they are for: what explain says, the loader, the batch, a picture, a number."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("STORE", str(reanalysis))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    notebook = nbformat.read(EXAMPLES / "notebooks" / "first_look.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
    shown = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert "samples: 24; 6 batches of 4 per epoch" in shown[0][-1].text
    texts = [outputs[-1].data["text/plain"] for outputs in shown[1:]]
    assert texts[0].startswith("<Loader of t2m, z from ") and ": 24 samples, 6 batches of 4" in texts[0]
    assert texts[1] == "Batch({'t2m': float32 (4, 12, 20), 'z': float32 (4, 2, 12, 20)})"
    assert len(shown[3][-1].data["image/png"]) > 10_000
    assert int(texts[3]) > 0


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
        for name, actions in (("reader", ["s3:GetObject", "s3:ListBucket"]), ("nobody", [])):
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


@pytest.mark.timeout_s(300)
def test_a_bucket(reanalysis, guarded):
    """The right key reads; with a wrong one, no permission or another bucket the first line says why, within seconds."""
    url, keys = guarded
    status, out, err = script(EXAMPLES / "bucket.py", "s3://era5/store", url, **keys["reader"])
    assert status == 0, err
    means = zarr.open_array(reanalysis / "t2m", mode="r")[:].mean(axis=(1, 2))
    np.testing.assert_allclose([float(word) for word in out.split()], means, rtol=1e-5)
    wrong = keys["reader"] | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    unknown = {"AWS_ACCESS_KEY_ID": "AKIAUNKNOWN", "AWS_SECRET_ACCESS_KEY": "wrong"}
    for place, key, messages in (
        ("s3://era6/store", keys["reader"], ["store s3://era6/store: ", "there is no bucket 'era6'", "check the path"]),
        ("s3://era5/stores", keys["reader"], ["store s3://era5/stores: expected a Zarr group or array", "check the path"]),
        ("s3://era5/store", wrong, ["SignatureDoesNotMatch", "credentials come from the environment"]),
        ("s3://era5/store", unknown, ["InvalidAccessKeyId", "credentials come from the environment"]),
        ("s3://era5/store", keys["nobody"], ["AccessDenied", "credentials come from the environment"]),
    ):
        began = time.monotonic()
        status, _, err = script(EXAMPLES / "bucket.py", place, url, **key)
        assert status == 1 and time.monotonic() - began < 60
        assert err.startswith("zarr_reader: store s3://"), err
        assert all(message in err for message in messages), err
        assert key["AWS_SECRET_ACCESS_KEY"] == "wrong" or key["AWS_SECRET_ACCESS_KEY"] not in err
