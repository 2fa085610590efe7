"""The README and the pages of docs/: their code runs, links lead somewhere, and every argument has its place in the reference."""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import logging
import operator
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
import zarr
from dali_zarr import __main__ as command_line
from nvidia.dali import backend, fn
from nvidia.dali.pipeline import Pipeline
from support import remote
from support.built_site import contrast
from support.documents import ROOT, SITE, Block, Page, anchors, links, missing_names, pages
from support.pipelines import run_script, why_no_gpu

PAGES = pages()
SCHEMA = backend.GetSchema("readers__Zarr")
# Without the operator's input.
PARAMETERS = {name: one for name, one in inspect.signature(dali_zarr.zarr_reader).parameters.items() if name != "samples"}
REFERENCE = ROOT / "docs" / "reference"
# Shown whole by a page; tests of their own run them.
INCLUDED = re.compile(r'^--8<-- "([^"]+)"', re.MULTILINE)
COMPARED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
LINES = {"README.md": 200, "docs/project/measurements.md": 150, "docs/project/training.md": 150}


@pytest.fixture
def place(small_stores, tmp_path, monkeypatch) -> Path:
    """A folder of the page's own with the small stores, which is the current one."""
    for store in small_stores.iterdir():
        (tmp_path / store.name).symlink_to(store)
    monkeypatch.chdir(tmp_path)
    # Nothing is read from the environment of who runs the tests.
    for name in [name for name in os.environ if name.startswith(("AWS_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture(scope="session")
def uploaded(small_stores, s3) -> str:
    for name in ("hours.zarr", "image.zarr"):
        remote.upload(s3, small_stores / name, name)
    return s3


@pytest.fixture
def bucket(uploaded, monkeypatch) -> None:
    """``s3://bucket`` with some of the small stores: a server's address and keys come from the environment, as in production."""
    environment = {"AWS_ENDPOINT": uploaded, "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def programs() -> list[Any]:
    """The pages with Python in them; those with buckets need a server."""
    found = [page for page in PAGES if any(block.language in ("python", "console", "sh") for block in page.blocks)]
    return [pytest.param(page, id=str(page.path.relative_to(ROOT))) for page in found]


@pytest.mark.parametrize("page", programs())
@pytest.mark.filterwarnings("ignore")
def test_the_code_of_a_page_runs(page: Page, place, request, monkeypatch, restored_logging):
    if any(block.how == "s3" for block in page.blocks):
        request.getfixturevalue("bucket")
    monkeypatch.setattr(sys, "argv", ["page"])
    names: dict[str, Any] = {"__name__": "page"}
    for block in page.blocks:
        if block.language == "python" and not INCLUDED.search(block.source):
            run_python(block, names, monkeypatch)
        elif block.language in ("console", "sh"):
            run_commands(block, monkeypatch)


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Pages may set levels and handlers."""
    roots = [logging.getLogger(), logging.getLogger("dali_zarr")]
    before = [(one, one.level, list(one.handlers)) for one in roots]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


def run_python(block: Block, names: dict[str, Any], monkeypatch) -> None:
    """Runs a block among the names of its page. What it reads by ``fn.zarr_reader`` outside of a pipeline becomes one, of which a
    batch is read."""
    check_calls(block)
    # On the line that the page has it.
    code = "\n" * (block.line - 1) + (on_this_machine(block.source) if block.how == "gpu" else block.source)
    compiled = compile(code, str(block.page), "exec")
    if block.how == "compile":
        assert block.why, f"{block.place}: expected a reason"
        return
    if block.how == "process":
        printed_there = run_script(block.source, timeout=240)
        if block.output is not None:
            same_text(block, block.output, printed_there)
        return
    assert block.how in ("", "gpu", "s3"), f"{block.place}: {block.how!r}"
    outputs: list[Any] = []
    pipe = Pipeline(batch_size=2, num_threads=1, device_id=None if why_no_gpu() else 0)
    operator = fn.zarr_reader

    def collecting(*inputs: Any, **arguments: Any) -> Any:
        found = operator(*inputs, **arguments)
        if Pipeline.current() is pipe:
            outputs.extend(found if isinstance(found, list | tuple) else [found])
        return found

    printed = io.StringIO()
    with monkeypatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(fn, "zarr_reader", collecting)
        with pipe:
            exec(compiled, names)
    if outputs:
        pipe.set_outputs(*outputs)
        pipe.build()
        pipe.run()
    if block.output is not None:
        same_text(block, block.output, printed.getvalue())


def on_this_machine(source: str) -> str:
    """The same for the CPU where there is no GPU."""
    if not why_no_gpu():
        return source
    for there, here in (
        ('device="gpu"', 'device="cpu"'), ('device="cuda"', 'device="cpu"'), ("device_id=0", "device_id=None"),
        ('decode_device="gpu"', 'decode_device="auto"'),
    ):
        source = source.replace(there, here)
    return source


def same_text(block: Block, expected: str, found: str) -> None:
    assert doctest.OutputChecker().check_output(expected, found, COMPARED), (
        f"{block.place}: expected\n{expected}\nbut found\n{found}"
    )


def check_calls(block: Block) -> None:
    """Every argument by name of the package's functions exists; also in blocks that aren't run."""
    for node in ast.walk(ast.parse(block.source)):
        if not isinstance(node, ast.Call):
            continue
        words = {word.arg for word in node.keywords if word.arg}
        known = known_arguments(ast.unparse(node.func))
        assert known is None or words <= known, f"{block.place}: {sorted(words - known)}"


def known_arguments(function: str) -> set[str] | None:
    common = set(PARAMETERS)
    match function:
        case "fn.zarr_reader" | "dali_zarr.zarr_reader" | "fn.readers.zarr" | "ndd.readers.Zarr":
            return common | {"batch_size", "enable_checkpointing"}
        case "Loader" | "dali_zarr.torch.Loader" | "dali_zarr.jax.Loader":
            from dali_zarr import jax, torch

            own = set(inspect.signature(torch.Loader).parameters) | set(inspect.signature(jax.Loader).parameters)
            return common | own
        case "dali_zarr.explain":
            return common | {"batch_size", "json", "order"}
        case _:
            return None


def run_commands(block: Block, monkeypatch) -> None:
    """Runs the commands of this package, in this process; of others it checks that what they name exists. Lines after a command
    that begins with $ are what it prints."""
    for command, expected in commands(block):
        words = shlex.split(command, comments=True)
        if words[:3] == ["python", "-m", "dali_zarr"] or words[:1] == ["dali-zarr"]:
            monkeypatch.setattr(sys, "argv", ["dali-zarr", *(words[3:] if words[0] == "python" else words[1:])])
            printed, told = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
                try:
                    status = command_line.main()
                except SystemExit as ended:
                    status = ended.code
            assert not status, f"{block.place}: {command}: {status}: {told.getvalue()}"
            if expected:
                same_text(block, expected, printed.getvalue())
            continue
        assert not expected, f"{block.place}: expected no output of {command!r}"
        for word in words:
            if word.startswith(("examples/", "tests/", "docs/")) and "." in word:
                assert (ROOT / word).exists(), f"{block.place}: {word}"
        if words[:1] == ["make"] and len(words) > 1:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"{block.place}: {command}"


def commands(block: Block) -> Iterator[tuple[str, str]]:
    text = block.source.replace("\\\n", " ")
    if block.language == "sh":
        yield from ((line, "") for line in text.splitlines() if line.strip() and not line.startswith("#"))
        return
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


@pytest.mark.parametrize("page", programs())
def test_blocks_can_be_copied_alone(page: Page):
    """Each has its imports. It uses what blocks before it made only where the text says so. Where a page shows readers outside of
    pipelines, it says where they belong."""
    for block in page.blocks:
        if block.language != "python" or INCLUDED.search(block.source):
            continue
        missing = missing_names(block.source)
        said = re.search(r"after\s+the\s+blocks?\s+above", block.before, re.IGNORECASE)
        assert bool(missing) == bool(said), f"{block.place}: {sorted(missing)}"
        assert "fn.zarr_reader" not in block.source or "import dali_zarr\n" in block.source, block.place
        statements = [node for node in ast.parse(block.source).body if isinstance(node, ast.Assign | ast.Expr)]
        alone = any(isinstance(s.value, ast.Call) and ast.unparse(s.value.func).endswith(".zarr_reader") for s in statements)
        assert not alone or "getting-started.md#the-code-of-these-pages" in page.text, block.place


def test_what_pages_include_exists():
    """And it is run by a test."""
    tests = [ROOT / "tests" / "test_examples.py", *(ROOT / "tests" / "users").glob("test_*.py")]
    tested = "".join(file.read_text() for file in tests)
    for page in PAGES:
        for name in INCLUDED.findall(page.text):
            assert (ROOT / name).exists(), f"{page.path}: {name}"
            if name.startswith("examples/"):
                assert Path(name).stem in tested or Path(name).parent.name in tested, f"{page.path}: no test runs {name}"


def test_links_lead_somewhere():
    """Of the README, where MkDocs doesn't look, and of docs, which MkDocs checks once more when it builds the site."""
    missing: list[str] = []
    texts = {page.path: page.text for page in PAGES}
    for page in PAGES:
        for link in links(page.text):
            here = ROOT / link.removeprefix(SITE) if link.startswith(SITE) else page.path.parent / link
            if link.startswith(("http://", "https://", "mailto:")) and not link.startswith(SITE):
                continue
            path, _, anchor = str(here).partition("#")
            target = page.path if link.startswith("#") else Path(path).resolve()
            if not target.exists() or (anchor and target in texts and anchor not in anchors(texts[target])):
                missing.append(f"{page.path.relative_to(ROOT)}: {link}")
    assert not missing, "\n".join(missing)


def test_pages_are_in_the_navigation():
    """And below the length that they should have."""
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert listed == {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    for name, lines in LINES.items():
        assert len((ROOT / name).read_text().splitlines()) < lines, name


def described() -> dict[str, tuple[str, Path]]:
    """The arguments of the reference: the line below each heading, and the page."""
    found: dict[str, tuple[str, Path]] = {}
    for path in sorted(REFERENCE.glob("arguments/*.md")):
        for name, line in re.findall(r"^### `(\w+)`\n\n(.*)$", path.read_text(), re.MULTILINE):
            assert name not in found, f"{name} is described twice"
            found[name] = (line, path)
    return found


def test_every_argument_is_in_the_reference():
    """Those of DALI's schema and of the typed function, with their defaults."""
    schema = {name for name in SCHEMA.GetArgumentNames() if not name.startswith("_")}
    found = described()
    assert set(found) == schema | set(PARAMETERS)
    for name, (line, _) in found.items():
        default = PARAMETERS[name].default
        said = re.search(r"Default: `([^`]*)`\.?", line)
        if default in (None, "", inspect.Parameter.empty):
            continue
        assert said and ast.literal_eval(said[1]) == default, f"{name}: expected the default {default!r}, but found {line!r}"


@pytest.mark.parametrize("name", ["zarr_reader", "explain", "statistics", "splits", "mix", "rechunk", "torch.Loader", "jax.Loader"])
def test_docstrings_have_the_defaults(name):
    """Those of the schema and of the signatures: a default that is said is the function's, and one that isn't none, off or 0 is
    said."""
    if "." in name:
        pytest.importorskip(name.split(".")[0])
    function = operator.attrgetter(name)(dali_zarr)
    parameters = inspect.signature(function).parameters
    text = inspect.cleandoc((function.__init__ if inspect.isclass(function) else function).__doc__)
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    described = {one: " ".join(about.split()) for one, about in entries if one in parameters}
    assert described
    for one, about in described.items():
        default = parameters[one].default
        said = re.search(r"[Dd]efault: (?:``([^`]+)``|([-\d.]+))\.(?: |$)", about)
        found = ast.literal_eval(said[1] or said[2].rstrip(".")) if said else None
        if default in (None, inspect.Parameter.empty) and one not in ("offsets", "stride"):
            assert found is None or one == "batch_size", f"{name}: {one}: {about}"
        elif default not in (None, False, "", 0, -1) or isinstance(default, float):
            assert found == default, f"{name}: {one}: expected the default {default!r}, but found {about!r}"


@pytest.mark.parametrize("loader", ["torch", "jax"])
def test_every_argument_of_the_loaders_is_in_the_reference(loader):
    pytest.importorskip(loader)
    own = set(inspect.signature(getattr(dali_zarr, loader).Loader).parameters)
    listed = set(re.findall(r"^\| `(\w+)`", (REFERENCE / "loaders.md").read_text(), re.MULTILINE))
    assert own <= listed | set(described()), own - listed - set(described())


def test_the_tables_of_names_have_the_names_of_dali():
    """What readers of fn.readers.numpy come from: its arguments, all of which are theirs."""
    known = set(backend.GetSchema("readers__Numpy").GetArgumentNames())
    table = (ROOT / "docs" / "from" / "numpy-reader.md").read_text()
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `") and "`fn." not in row.split("|")[1]]
    named = {name for row in rows for name in re.findall(r"`(\w+)[`=]", row.replace("rel_roi_*", ""))}
    assert len(named) > 20 and named <= known | {"enable_checkpointing"}, named - known


def test_pages_and_pictures_have_the_numbers_of_the_results():
    """Those of the JSON files in docs/assets. After a change: python docs/assets/results.py"""
    script = runpy.run_path(str(ROOT / "docs" / "assets" / "results.py"))
    for name in script["PAGES"]:
        text = (ROOT / name).read_text()
        assert "<!-- results: " in text and script["filled"](text) == text, name
    for name, draw in script["PICTURES"].items():
        drawn = (ROOT / "docs" / "assets" / name).read_text()
        assert drawn == draw() and drawn.count("<rect") > 6, name
    assert min(contrast(script[name], "#ffffff") for name in ("OURS", "OTHERS", "THIRD")) > 4.5
    # What the text says beside the tables.
    bars = script["rows"]("bars")
    limit = min(row["synthetic"] for (_, way), row in bars.items() if way != "external_source")
    others = bars["one-hour", "external_source"]["synthetic"]
    for name in ("README.md", "docs/index.md"):
        text = (ROOT / name).read_text()
        told = f"the U-Net trains on {limit:.0f} ({others:.0f} where `external_source`"
        assert told in text and "14 worker processes" in text, name
        # An hour of each sample is that of the next one too.
        taken = f"{limit * 20 * 640 * 1280 * 4 / 1e9:.0f} GB/s"
        speeds = re.findall(r"\d+(?:\.\d+)? (?:GB/s|samples/s)", text)
        assert speeds == [taken], f"{name}: {speeds} beside the tables"
    assert "min(len(os.sched_getaffinity(0)) // shards, 14)" in (ROOT / "examples/study/readers.py").read_text()
    # Ranges that pages tell.
    found = [row["share"] for row in script["rows"]("gpus").values()]
    assert f"{min(found):.2f} to {max(found):.2f}" in (ROOT / "docs/project/training.md").read_text()
    found = [row["share"] for (_, way), row in script["rows"]("bars").items() if way == "dali_zarr"]
    assert f"{min(found):.2f} to {max(found):.2f}" in " ".join((ROOT / "docs/project/training.md").read_text().split())


def test_the_gallery_shows_all_notebooks():
    """With their outputs, and with code that fits."""
    hooks = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    named = hooks["NOTEBOOK"].findall((ROOT / "docs" / "gallery.md").read_text())
    assert set(named) == {path.stem for path in hooks["NOTEBOOKS"].glob("*.ipynb")}
    for name in named:
        shown = hooks["notebook"](hooks["NOTEBOOKS"] / f"{name}.ipynb")
        code = re.findall(r"^```python\n(.*?)^```$", shown, re.MULTILINE | re.DOTALL)
        assert code and "```text\n" in shown and not shown.startswith("# "), name
        assert max(len(line) for block in code for line in block.splitlines()) < 80, name


def test_there_is_one_first_example():
    """The README, the home page and Getting started show the same loop."""
    blocks = [
        next(block.source for block in page.blocks if "Loader" in block.source)
        for page in PAGES if page.path in (ROOT / "README.md", ROOT / "docs/index.md", ROOT / "docs/getting-started.md")
    ]
    assert len(blocks) == 3 and len(set(blocks)) == 1


def test_the_diagrams_are_drawn_from_their_script():
    """They are drawn anew after it has changed: python docs/assets/diagrams.py. Text can be read on the fill below it."""
    script = runpy.run_path(str(ROOT / "docs" / "assets" / "diagrams.py"))
    for name, draw in script["FILES"].items():
        assert (ROOT / "docs" / "assets" / name).read_text() == draw(), name
    papers = [script[name] for name in ("PAPER", "HOST", "GPU", "PLAIN")] + list(script["COLOURS"])
    assert min(contrast(script["INK"], paper) for paper in papers) > 4.5
    assert min(contrast(script[name], script["PAPER"]) for name in ("TEAL", "ORANGE")) > 4.5


def test_the_tables_of_results_have_their_keys():
    """Those of counters and of explain, and no others."""
    text = (REFERENCE / "results.md").read_text()
    counters, explained = text.split("## Explain")

    def keys(part: str) -> set[str]:
        rows = [row.split("|")[1] for row in part.splitlines() if row.startswith("| `")]
        return {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    of_counters = keys(counters) | set(re.findall(r"of them `(\w+)`", counters))
    from dali_zarr.torch import Loader

    with tempfile.TemporaryDirectory() as folder:
        zarr.create_array(f"{folder}/a", data=np.zeros((8, 3), "f4"))
        loader = Loader(folder, arrays=["a"], device="cpu", fillna=0.0)
        next(iter(loader))
        found = dali_zarr.counters(loader)
        assert of_counters == set(found), of_counters ^ set(found)
        found = dali_zarr.explain(folder, device="gpu", cache_size=1 << 20)
    top, arrays, memory = re.split(r"Each of `arrays` has:|`memory` has:", explained)
    for part, given in ((top, found), (arrays, found["arrays"][0]), (memory, found["memory"])):
        assert keys(part) == set(given), keys(part) ^ set(given)


def test_c_blocks_compile(tmp_path):
    """Statements of pages, in a function of their own; whole files have tests of their own."""
    for page in PAGES:
        for block in page.blocks:
            if block.language == "c" and not INCLUDED.search(block.source):
                source = tmp_path / "block.c"
                source.write_text(
                    f'#include <stdio.h>\n#include "dali_zarr.h"\nint main(void) {{\n#line {block.line} "{block.page}"\n'
                    f"{block.source}\nreturn 0;\n}}\n"
                )
                command = ["cc", "-fsyntax-only", "-Wall", "-Werror", f"-I{ROOT / 'include'}", str(source)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr
