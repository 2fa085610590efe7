"""The C ABI is the one that tests/c_abi/abi.txt lists: what was compiled with a header runs with each library of its version."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import dali_zarr
import pytest
from support import abi

PACKAGE = Path(dali_zarr.__file__).parent
ADVICE = "The C ABI has changed: tests/support/abi.py says what that needs, and writes the list anew."

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def test_the_abi_is_the_listed_one():
    assert abi.abi(PACKAGE / "include/dali_zarr.h", dali_zarr.__version__) == abi.listed(abi.LIST.read_text()), ADVICE


def test_the_library_has_the_functions_of_the_list_and_no_others():
    functions = [line for line in abi.listed(abi.LIST.read_text()) if line.startswith("function ")]
    names = {line.split("(")[0].split()[-1].lstrip("*") for line in functions}
    assert len(names) == len(functions) > 40
    assert abi.exported(PACKAGE / "lib/libdali_zarr.so") == names, ADVICE


HEADER = """
#include <stddef.h>
#include <stdint.h>
/* A comment; with int old(void); in it. */
enum kind { FIRST = 0, SECOND = 7 };
typedef struct opaque opaque;
typedef struct pair {
  int32_t one; /* a number */
  const char *two;
  void (*call)(void **type);
  uint8_t bytes[3];
} pair;
const char *text(void);
int32_t take(
    const opaque *it,
             pair *both);
"""
LINES = [
    "version 1.2",
    "const FIRST 0", "const SECOND 7",
    "struct pair 32", "field pair.one 0 4", "field pair.two 8 8", "field pair.call 16 8", "field pair.bytes 24 3",
    "function const char *text(void)", "function int32_t take(const opaque *it, pair *both)",
]


def test_everything_of_a_header_is_found(tmp_path):
    header = tmp_path / "header.h"
    header.write_text(HEADER)
    assert abi.abi(header, "1.2.3") == LINES
    header.write_text(HEADER.replace("int32_t one;", "int64_t one;"))
    changed = abi.abi(header, "1.2.3")
    assert "field pair.one 0 8" in changed and abi.lost(LINES, changed) == ["field pair.one 0 4"]


def test_changes_need_another_version_and_additions_do_not():
    assert abi.lost(LINES, [*LINES, "function void more(void)"]) == []
    assert abi.lost(LINES, LINES[:-1]) == LINES[-1:]
    assert abi.lost(LINES, ["version 1.3", *LINES[1:-1]]) == []


def test_the_list_is_not_written_over_a_change_of_the_same_version(tmp_path):
    """By the command, with a list that has a function more."""
    version = ".".join(dali_zarr.__version__.split(".")[:2])
    old = tmp_path / "abi.txt"
    old.write_text(f"version {version}\nfunction void dali_zarr_gone(void)\n")
    script = "import sys; from pathlib import Path; from support import abi; abi.LIST = Path(sys.argv[1]); abi.main()"
    command = [sys.executable, "-c", script, str(old)]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "dali_zarr_gone" in done.stderr and "Cargo.toml" in done.stderr
    assert len(old.read_text().splitlines()) == 2
    old.write_text("version 0.0\nfunction void dali_zarr_gone(void)\n")
    subprocess.run(command, cwd=Path(__file__).parent, check=True)
    assert abi.listed(old.read_text()) == abi.listed(abi.LIST.read_text())
