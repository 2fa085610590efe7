"""The C ABI as a list: constants, structures and functions of the header, with sizes and offsets as the C compiler sees them.

`tests/c_abi/abi.txt` has the list of the version that it names. To write it anew, after `make build`:

    .venv/bin/python tests/support/abi.py

Lines may be added at any time. Programs that were compiled before don't run with a library in which one has changed or is gone, so
that needs another version in Cargo.toml: for 0.x the second number, as CMake's package says (SameMinorVersion).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

LIST = Path(__file__).parents[1] / "c_abi/abi.txt"

HEAD = """\
# The C ABI on Linux with 64 bits. test_abi.py compares it with the library; support/abi.py writes it.
# const NAME VALUE; struct NAME BYTES; field STRUCT.NAME OFFSET BYTES; function PROTOTYPE
"""


def declared(header: str) -> tuple[list[str], dict[str, list[str]], dict[str, str]]:
    """The constants, the fields of each structure, and the prototype of each function, in the header's order."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    enums = re.findall(r"\benum \w+ \{(.*?)\};", text, re.S)
    constants = [name for body in enums for name in re.findall(r"(\w+)\s*=", body)]
    structs: dict[str, list[str]] = {}
    for name, body in re.findall(r"\btypedef struct (\w+) \{(.*?)\}", text, re.S):
        fields = [one for one in body.split(";") if one.strip()]
        structs[name] = [re.search(r"\(\*(\w+)\)|(\w+)(?:\[\w*\])?\s*$", one).group(1, 2) for one in fields]  # type: ignore[union-attr]
        structs[name] = [pointer or plain for pointer, plain in structs[name]]
    found = re.findall(r"^(\w[\w \*]*?\b\w+\([^;{}]*\));", text, re.M)
    functions = {re.search(r"(\w+)\(", one)[1]: re.sub(r"\s+", " ", one).replace("( ", "(") for one in found}  # type: ignore[index]
    return constants, structs, functions


def abi(header: Path, version: str) -> list[str]:
    """The list's lines."""
    constants, structs, functions = declared(header.read_text())
    lines = ["#include <stdio.h>", f'#include "{header}"', "int main(void) {"]
    lines += [f'printf("const {name} %lld\\n", (long long){name});' for name in constants]
    for struct, fields in structs.items():
        lines.append(f'printf("struct {struct} %zu\\n", sizeof({struct}));')
        for name in fields:
            numbers = f"offsetof({struct}, {name}), sizeof((({struct} *)0)->{name})"
            lines.append(f'printf("field {struct}.{name} %zu %zu\\n", {numbers});')
    lines += ["return 0;", "}"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "abi.c")
        source.write_text("\n".join(lines))
        subprocess.run(["cc", "-Wall", "-Werror", source, "-o", source.with_suffix("")], check=True)
        printed = subprocess.run([source.with_suffix("")], stdout=subprocess.PIPE, text=True, check=True).stdout
    numbers = ".".join(version.split(".")[:2])
    return [f"version {numbers}", *printed.splitlines(), *(f"function {one}" for one in functions.values())]


def exported(library: Path) -> set[str]:
    """The functions of the C ABI that a library has. Its other symbols are for operators of the same build."""
    done = subprocess.run(["nm", "-D", "--defined-only", library], stdout=subprocess.PIPE, text=True, check=True)
    return {name for name in (line.split()[-1] for line in done.stdout.splitlines()) if name.startswith("dali_zarr_")}


def listed(text: str) -> list[str]:
    """The lines of a list."""
    return [line for line in text.splitlines() if not line.startswith("#")]


def lost(old: list[str], new: list[str]) -> list[str]:
    """The lines that may not be missing: those of the same version that have changed or are gone."""
    return [line for line in old if line not in new] if old[:1] == new[:1] else []


def main() -> None:
    import dali_zarr

    header = Path(dali_zarr.__file__).parent / "include/dali_zarr.h"
    new = abi(header, dali_zarr.__version__)
    if missing := lost(listed(LIST.read_text()) if LIST.exists() else [], new):
        sys.exit(f"{new[0]} has these, and a change of them needs another version in Cargo.toml:\n" + "\n".join(missing))
    LIST.write_text(HEAD + "\n".join(new) + "\n")


if __name__ == "__main__":
    main()
