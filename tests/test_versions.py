"""The versions that the project declares are those that its parts need, name and test."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CARGO = tomllib.loads((ROOT / "Cargo.toml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUST = CARGO["workspace"]["package"]["rust-version"]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md", "docs/getting-started.md", "Makefile", "cmake/CMakeLists.txt"])
def test_texts_name_the_oldest_rust(file):
    found = re.findall(r"(?:Rust|find_package\(Cargo) (\d+\.\d+)", (ROOT / file).read_text())
    assert found and set(found) == {RUST}


def test_no_crate_needs_a_later_rust():
    """Clippy compares the standard library's functions with the declared version (`incompatible_msrv`), and the workflow compiles
    with it. A crate that declares no version isn't compared."""
    if shutil.which("cargo") is None:
        pytest.skip("cargo isn't installed")
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform=x86_64-unknown-linux-gnu"]
    packages = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)["packages"]
    needed = {package["name"]: package["rust_version"] for package in packages if package["rust_version"]}
    assert len(needed) > 50
    assert not {name: version for name, version in needed.items() if numbers(version)[:2] > numbers(RUST)}


def test_no_crate_is_built_twice():
    """Once for the library and once for Rust's tests, because these want more features of it. All that needs it would be built
    twice too. A feature that only tests need stands in ``Cargo.toml``'s ``workspace.dependencies`` for that reason."""
    if shutil.which("cargo") is None:
        pytest.skip("cargo isn't installed")

    def crates(*chosen: str) -> set[str]:
        command = ["cargo", "tree", "--locked", "--prefix=none", "--format={p} {f}", *chosen]
        lines = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        return {line.removesuffix(" (*)") for line in lines}

    library = crates("--package=dali-zarr", "--features=testing", "--edges=normal")
    assert len(library) > 100
    assert not library - crates("--workspace", "--features=dali-zarr/testing", "--edges=normal,dev")


def test_the_workflow_tests_the_versions_that_the_package_is_for():
    matrix = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["dali"] == PROJECT["tool"]["dali-zarr"]["dali"]
    assert f">={matrix['python'][0]}" == PROJECT["project"]["requires-python"]


@pytest.mark.parametrize("file", ["README.md", "docs/faq.md", "CHANGELOG.md"])
def test_texts_name_the_first_and_the_last_dali(file):
    versions = PROJECT["tool"]["dali-zarr"]["dali"]
    assert f"{versions[0]} to {versions[-1]}" in (ROOT / file).read_text()


def test_the_faq_has_the_citation():
    """As its page has it, and with the version that is built."""
    pages = [(ROOT / "docs" / name).read_text() for name in ("faq.md", "project/citation.md")]
    found = [re.findall(r"```bibtex\n(.*?)```", page, re.S) for page in pages]
    assert found[0] == found[1] and f"version = {{{CARGO['workspace']['package']['version']}}}" in found[0][0]


def test_the_workflow_fuzzes_every_target():
    fuzz = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["fuzz"]["strategy"]["matrix"]
    assert sorted(fuzz["target"]) == sorted(file.stem for file in (ROOT / "tests/fuzz/fuzz_targets").glob("*.rs"))


@pytest.mark.parametrize("name", ["ci", "release"])
def test_workflows_call_targets_that_there_are(name):
    """`actionlint` doesn't know them."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    called = set(re.findall(r"- run: make ([a-z-]+)", (ROOT / f".github/workflows/{name}.yml").read_text()))
    assert called and called <= targets
