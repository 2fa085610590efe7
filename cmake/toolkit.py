"""Prints the CUDA packages that the build requires, one per line, as pyproject.toml pins them."""

import tomllib
from pathlib import Path

with (Path(__file__).parent.parent / "pyproject.toml").open("rb") as file:
    requires = tomllib.load(file)["build-system"]["requires"]
print(*(r for r in requires if r.startswith("nvidia-") and "dali" not in r), sep="\n")
