"""The list of what the library is made of that `make wheel` leaves beside the wheel."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def bill(tmp_path_factory):
    if shutil.which("cargo") is None:
        pytest.skip("cargo isn't installed")
    file = tmp_path_factory.mktemp("sbom") / "bill.cdx.json"
    subprocess.run([sys.executable, ROOT / "cmake/sbom.py", file], check=True, timeout=300)
    return json.loads(file.read_text())


def test_crates_of_others_have_licence_and_checksum(bill):
    ours = {f"dali-zarr-{name}" for name in ("base", "stores", "codecs", "samples", "engine", "kernels")}
    lock = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    for component in bill["components"]:
        checksum = lock[component["name"], component["version"]]
        assert (checksum is None) == (component["name"] in ours)
        if checksum:
            assert component["hashes"] == [{"alg": "SHA-256", "content": checksum}]
            assert component["licenses"][0]["expression"]


def test_it_has_what_is_linked_and_nothing_else(bill):
    names = {component["name"] for component in bill["components"]}
    assert {"zarrs", "zstd-sys", "blosc-src", "ring", "tokio", "libc", "cxx"} <= names
    # A test's, a build script's, a macro, and one of another system.
    assert names.isdisjoint({"proptest", "cc", "cxx-build", "serde_derive", "windows-sys"})
    refs = {bill["metadata"]["component"]["bom-ref"], *(component["bom-ref"] for component in bill["components"])}
    assert refs == {entry["ref"] for entry in bill["dependencies"]}
    assert all(refs.issuperset(entry["dependsOn"]) for entry in bill["dependencies"])
