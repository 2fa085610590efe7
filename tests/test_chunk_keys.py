"""``check`` and ``info`` count the chunks that are where the metadata say, and warn where an array has none."""

from __future__ import annotations

import functools
import json
import shutil
import zipfile

import numpy as np
import pytest
import zarr
from dali_zarr._commands.keys import Keys
from support.command_line import command

pytestmark = pytest.mark.filterwarnings("ignore")

VALUES = np.arange(1, 25, dtype="i4").reshape(4, 6)
NONE = "no chunk is stored where the metadata say, so all values are the fill value"
# How an array is written; what its metadata are changed to; how its files look then.
MISPLACED = {
    "v2, files with dots": (2, ("v2", "."), "/", 'the separator were "."'),
    "v2, files in folders": (2, ("v2", "/"), None, 'the separator were "/"'),
    "v3, files with dots": (3, ("default", "."), ("default", "/"), 'the separator were "."'),
    "v3, files in folders": (3, ("default", "/"), ("default", "."), 'the separator were "/"'),
    "v3, files of another kind": (3, ("v2", "."), ("default", "/"), 'chunk_key_encoding were "v2" and the separator were "."'),
    "v3, files with c": (3, ("default", "/"), ("v2", "/"), 'chunk_key_encoding were "default" and the separator were "/"'),
}


@pytest.fixture
def run(monkeypatch, capsys):
    return functools.partial(command, monkeypatch, capsys)


def told(run, subcommand, *words):
    """What the command tells of each array, by name; and its exit status."""
    status, out, err = run(subcommand, *words, "--json", *(["--quiet"] if subcommand == "check" else []))
    assert status in (0, 1) and out, err
    found = json.loads(out)
    arrays = found["stores"][0]["arrays"] if subcommand == "check" else found[0]["arrays"]
    return {array["name"]: array for array in arrays}, status


def write(path, zarr_format=3, keys=("default", "/"), name="a", **more):
    kind, separator = keys
    group = zarr.open_group(str(path), mode="a", zarr_format=zarr_format)
    how = {"chunks": (2, 3), "compressors": None, "chunk_key_encoding": {"name": kind, "separator": separator}} | more
    group.create_array(name, shape=VALUES.shape, dtype=VALUES.dtype, **how)[...] = VALUES
    return path / name / (".zarray" if zarr_format == 2 else "zarr.json")


def misplace(path, case):
    """Writes an array whose metadata say other keys than its files have; gives how these look."""
    zarr_format, keys, changed, looks = MISPLACED[case]
    document = write(path, zarr_format, keys)
    metadata = json.loads(document.read_text())
    if zarr_format == 3:
        metadata["chunk_key_encoding"] = {"name": changed[0], "configuration": {"separator": changed[1]}}
    elif changed:
        metadata["dimension_separator"] = changed
    else:
        del metadata["dimension_separator"]
    document.write_text(json.dumps(metadata))
    return looks


@pytest.mark.parametrize("case", MISPLACED)
def test_files_under_other_keys(tmp_path, run, case):
    looks = misplace(tmp_path / "s", case)
    write(tmp_path / "s", MISPLACED[case][0], ("v2", "/") if MISPLACED[case][0] == 2 else ("default", "/"), name="right")
    arrays, status = told(run, "info", tmp_path / "s")
    assert status == 0
    assert (arrays["a"]["files"], arrays["a"]["files_if_complete"], arrays["a"]["stored_bytes"]) == (0, 4, 0)
    assert arrays["a"]["warning"] == f"{NONE}; its files look as if {looks}"
    assert (arrays["right"]["files"], arrays["right"]["stored_bytes"], arrays["right"]["warning"]) == (4, 96, None)
    assert f"warning: {NONE}" in " ".join(run("info", tmp_path / "s")[1].split())
    arrays, status = told(run, "check", tmp_path / "s")
    assert status == 1 and (arrays["a"]["chunks"], arrays["a"]["missing"], arrays["a"]["sound"]) == (4, 4, False)
    assert arrays["a"]["warning"] == f"{NONE}; its files look as if {looks}"
    assert (arrays["right"]["missing"], arrays["right"]["sound"], arrays["right"]["warning"]) == (0, True, None)
    _, out, _ = run("check", tmp_path / "s", "--quiet")
    assert "a: 4 chunks; 4 chunks missing, with the fill value" in out and looks in " ".join(out.split())
    assert "all stored chunks can be decoded" not in out


@pytest.mark.parametrize("shards", [None, (4, 3)])
def test_missing_chunks_are_counted(tmp_path, run, shards):
    """They are no damage; and an array that was never written is warned of."""
    write(tmp_path / "s", shards=shards)
    (tmp_path / "s/a/c/0/1").unlink()
    zarr.open_group(str(tmp_path / "s")).create_array("empty", shape=(4, 6), chunks=(2, 3), dtype="f4", shards=shards)
    files, of = (1, 2) if shards else (3, 4)
    arrays, status = told(run, "check", tmp_path / "s")
    assert status == 0
    assert [(one["chunks"], one["missing"], one["sound"], one["warning"]) for one in arrays.values()] == [
        (4, 1, True, None), (4, of, True, NONE),
    ]
    state = f"a: 4 chunks, sound; 1 {'shard' if shards else 'chunk'} missing, with the fill value"
    assert state in run("check", tmp_path / "s", "--quiet")[1]
    # A part of an array that has chunks elsewhere is nothing to warn of.
    arrays, _ = told(run, "check", tmp_path / "s", "--isel", "dim_0=0", "dim_1=5", "--arrays", "a")
    assert (arrays["a"]["chunks"], arrays["a"]["missing"], arrays["a"]["warning"]) == (1, 1, None)
    arrays, _ = told(run, "info", tmp_path / "s")
    found = [(one["files"], one["files_if_complete"], one["warning"]) for one in arrays.values()]
    assert found == [(files, of, None), (0, of, NONE)]


@pytest.mark.parametrize("folder", ["", "s.zarr/"])
def test_archives(tmp_path, run, folder):
    """Their entries are counted, in a folder of the archive too."""
    looks = misplace(tmp_path / "s", "v3, files in folders")
    write(tmp_path / "s", name="right")
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        for file in sorted((tmp_path / "s").rglob("*")):
            if file.is_file():
                archive.write(file, f"{folder}{file.relative_to(tmp_path / 's')}")
    wrong, right = f"{folder}a", f"{folder}right"
    arrays, _ = told(run, "info", tmp_path / "s.zip")
    assert (arrays[wrong]["files"], arrays[wrong]["warning"]) == (0, f"{NONE}; its files look as if {looks}")
    assert (arrays[right]["files"], arrays[right]["stored_bytes"], arrays[right]["warning"]) == (4, 96, None)
    arrays, status = told(run, "check", tmp_path / "s.zip")
    assert (status, arrays[wrong]["missing"], arrays[right]["missing"]) == (1, 4, 0) and looks in arrays[wrong]["warning"]


def test_buckets(tmp_path, run, s3, s3_options):
    """Their keys are listed, of large arrays by ``check`` alone."""
    import boto3

    looks = misplace(tmp_path / "s", "v2, files in folders")
    write(tmp_path / "s", 2, ("v2", "."), name="right")
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    client.create_bucket(Bucket="keys")
    for file in (tmp_path / "s").rglob("*"):
        if file.is_file():
            client.put_object(Bucket="keys", Key=f"s/{file.relative_to(tmp_path / 's')}", Body=file.read_bytes())
    texts = {name: str(value).lower() if value is True else value for name, value in s3_options.items()}
    options = ["--storage_options", *(f"{name}={value}" for name, value in texts.items())]
    arrays, status = told(run, "info", "s3://keys/s", *options)
    assert (status, arrays["a"]["files"], arrays["right"]["files"], arrays["right"]["stored_bytes"]) == (0, 0, 4, None)
    assert arrays["a"]["warning"] == f"{NONE}; its files look as if {looks}" and arrays["right"]["warning"] is None
    arrays, status = told(run, "check", "s3://keys/s", *options)
    assert (status, arrays["a"]["missing"], arrays["right"]["missing"]) == (1, 4, 0) and looks in arrays["a"]["warning"]


def test_icechunk(tmp_path, run):
    """It knows its chunks by their coordinates. An array without any is warned of."""
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "s")))
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("a", shape=(4, 6), chunks=(2, 3), dtype="i4")[:2] = VALUES[:2]
    group.create_array("empty", shape=(4, 6), chunks=(2, 3), dtype="i4")
    session.commit("a")
    for subcommand in ("info", "check"):
        arrays, status = told(run, subcommand, tmp_path / "s")
        assert status == 0 and {name: one["warning"] for name, one in arrays.items()} == {"a": None, "empty": NONE}
    assert {name: one["missing"] for name, one in arrays.items()} == {"a": 2, "empty": 4}


def test_references(tmp_path, run):
    write(tmp_path / "s", 2, ("v2", "."))
    document = json.loads((tmp_path / "s/a/.zarray").read_text()) | {"dimension_separator": "/"}
    references = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(document)}
    references |= {f"a/{i}.{j}": [str(tmp_path / f"s/a/{i}.{j}")] for i in range(2) for j in range(2)}
    (tmp_path / "r.json").write_text(json.dumps({"version": 1, "refs": references}))
    arrays, status = told(run, "check", tmp_path / "r.json")
    assert status == 1 and arrays["a"]["missing"] == 4
    assert arrays["a"]["warning"] == f'{NONE}; its files look as if the separator were "."'


def test_an_array_alone(tmp_path, run):
    """As a store, and with a store of its own."""
    looks = misplace(tmp_path / "s", "v2, files with dots")
    for words in ((tmp_path / "s/a",), ("--arrays", tmp_path / "s/a")):
        for subcommand in ("info", "check"):
            (array,), _ = told(run, subcommand, *words)[0].values(), None
            assert array["warning"] == f"{NONE}; its files look as if {looks}", (subcommand, words)


def test_files_beside_the_grid_are_no_chunks(tmp_path, run):
    """Such as those that an array had before it shrank, and numbers that are written in another way."""
    write(tmp_path / "s", 2, ("v2", "."))
    for name in ("2.0", "0.2", "00.1", "0.1.0", "1", "-1.0", "0.1.partial", "\u0661.0"):
        shutil.copy(tmp_path / "s/a/0.0", tmp_path / "s/a" / name)
    arrays, _ = told(run, "info", tmp_path / "s")
    assert (arrays["a"]["files"], arrays["a"]["stored_bytes"]) == (4, 96)


def test_irregular_grids_are_counted(tmp_path, run):
    """One chunk of each length, which no division of the shape gives."""
    document = write(tmp_path / "s")
    metadata = json.loads(document.read_text())
    metadata["chunk_grid"] = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[1, 1, 2], [1, 5]]}}
    document.write_text(json.dumps(metadata))
    shutil.rmtree(tmp_path / "s/a/c")
    for i, rows in enumerate((slice(0, 1), slice(1, 2), slice(2, 4))):
        (tmp_path / f"s/a/c/{i}").mkdir(parents=True)
        for j, columns in enumerate((slice(0, 1), slice(1, 6))):
            (tmp_path / f"s/a/c/{i}/{j}").write_bytes(np.ascontiguousarray(VALUES[rows, columns]).tobytes())
    arrays, _ = told(run, "info", tmp_path / "s")
    assert (arrays["a"]["files"], arrays["a"]["files_if_complete"], arrays["a"]["warning"]) == (6, 6, None)


@pytest.mark.parametrize(("first", "grid", "has", "lacks"), [
    ("c/0/0", (2, 3), ["c/1/2"], ["c/2/0", "c.1.2", "1/2", "c/1", "c/1/2/0", "c/01/2", "c/ 1/2"]),
    ("c.0.0", (2, 3), ["c.1.2"], ["c/1/2", "1.2", "c.1"]),
    ("0.0", (2, 3), ["1.2"], ["1/2", "c.1.2", ".zarray", "1"]),
    ("0/0", (2, 3), ["1/2"], ["1.2", "1", "1/"]),
    ("c/0", (4,), ["c/3"], ["c/4", "3", "c.3", "c"]),
    ("c.0", (4,), ["c.3"], ["c/3", "3"]),
    ("0", (4,), ["3"], ["4", "c/3"]),
    ("c", (), ["c"], ["0", "c/0"]),
    ("0", (), ["0"], ["c", "1"]),
])
def test_keys(first, grid, has, lacks):
    keys = Keys.of(first, [range(count) for count in grid])
    assert all(map(keys.has, [first, *has])) and not any(map(keys.has, lacks))
