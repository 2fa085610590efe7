"""Lists what the library is made of, in the format CycloneDX 1.6: every crate that is linked into libdali_zarr.so, with its licence
and the checksum of its sources. Crates that only build, test or run on other systems aren't in it.

    python cmake/sbom.py TARGET.cdx.json [ARCH]    # this machine's by default, or aarch64
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIBRARY = "dali-zarr"


def metadata(arch: str) -> dict[str, Any]:
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", f"{arch}-unknown-linux-gnu"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)


def linked(found: dict[str, Any]) -> dict[str, list[str]]:
    """The packages that the library links, by their numbers in cargo, each with those that it needs directly."""
    macros = {
        package["id"] for package in found["packages"] if any("proc-macro" in target["kind"] for target in package["targets"])
    }
    nodes = {
        node["id"]: [
            one["pkg"] for one in node["deps"]
            if one["pkg"] not in macros and any(kind["kind"] is None for kind in one["dep_kinds"])
        ]
        for node in found["resolve"]["nodes"]
    }
    (root,) = (package["id"] for package in found["packages"] if package["name"] == LIBRARY)
    needed, waiting = {}, [root]
    while waiting:
        package = waiting.pop()
        if package not in needed:
            needed[package] = sorted(nodes[package])
            waiting += needed[package]
    return needed


def component(package: dict[str, Any], checksum: str | None) -> dict[str, Any]:
    name, version = package["name"], package["version"]
    purl = ref(package)
    made: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if package["description"]:
        made["description"] = " ".join(package["description"].split())
    if package["license"]:
        # Old crates write "MIT/Apache-2.0".
        made["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if checksum:
        made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return made


def bill(found: dict[str, Any], lock: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The document, which is the same for the same Cargo.lock."""
    packages = {package["id"]: package for package in found["packages"]}
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in lock}
    needed = linked(found)
    made = {}
    for number in sorted(needed):
        package = packages[number]
        made[number] = component(package, checksums[package["name"], package["version"]])
    (root,) = (number for number in needed if packages[number]["name"] == LIBRARY)
    main = made.pop(root)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": main, "tools": {"components": [{"type": "application", "name": "cmake/sbom.py of dali-zarr"}]}},
        "components": list(made.values()),
        "dependencies": [
            {"ref": ref(packages[number]), "dependsOn": sorted({ref(packages[one]) for one in others})}
            for number, others in needed.items()
        ],
    }


def ref(package: dict[str, Any]) -> str:
    return f"pkg:cargo/{package['name']}@{package['version']}"


def main(target: Path, arch: str = platform.machine()) -> None:
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    target.write_text(json.dumps(bill(metadata(arch), lock), indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
