"""The documentation as tests see it: its pages, their code blocks with their marks, headings and links.

A comment in the line before a block says how the block is tested::

    <!-- test: compile, REASON -->  compiled only, and the arguments of its calls compared with the functions' own
    <!-- test: gpu -->              where there is no GPU it is run on the CPU
    <!-- test: s3 -->               its buckets are those of a server that the tests start
    <!-- test: process -->          is run in a new process, which has the folder of the page's stores
    <!-- output -->                 not code: what the block before prints; ... stands for any text

The Python blocks of a page are one program, from top to bottom. But each one can be copied alone, unless the paragraph before it
says "after the block above".
"""

from __future__ import annotations

import builtins
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = "https://github.com/dali-zarr/dali-zarr/blob/main/"
FENCE = re.compile(r"^( *)(```+)(\w*)[^\n]*\n(.*?)^\1\2 *$", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"<!-- (?:test: (?P<how>\w+)(?:, (?P<why>[^>]*))?|(?P<output>output)) -->\n\Z")


@dataclass
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    source: str
    how: str = ""
    why: str = ""
    # What it prints, where the page says so.
    output: str | None = None
    # The paragraph before it.
    before: str = ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass
class Page:
    """A page with its blocks, in their order."""

    path: Path
    text: str
    blocks: list[Block] = field(default_factory=list)


def pages() -> list[Page]:
    """Returns the README, the pages that GitHub shows beside it, and all of docs/."""
    beside = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md", "examples/study/README.md")
    return [page(path) for path in [*(ROOT / name for name in beside), *sorted((ROOT / "docs").rglob("*.md"))] if path.exists()]


def page(path: Path) -> Page:
    text = path.read_text()
    found = Page(path, text)
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        mark = MARK.search(before)
        source = re.sub(rf"^{match[1]}", "", match[4], flags=re.MULTILINE)
        if mark and mark["output"]:
            assert found.blocks, f"{path}: an output without a block before it"
            found.blocks[-1].output = source
            continue
        how, why = (mark["how"] or "", mark["why"] or "") if mark else ("", "")
        paragraph = MARK.sub("", before).strip().rpartition("\n\n")[2]
        found.blocks.append(Block(path, before.count("\n") + 2, match[3], source, how, why, before=paragraph))
    return found


def missing_names(source: str) -> set[str]:
    """Returns names that a program uses and doesn't assign or import."""
    module = symtable.symtable(source, "block", "exec")
    made = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    used: set[str] = set()
    tables = [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (table is module or s.is_global())}
    return used - made - set(dir(builtins))


def slug(heading: str) -> str:
    """Returns a heading's anchor. GitHub's and MkDocs' are the same for headings of letters, digits, hyphens and
    spaces."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    return {slug(m[1]) for m in re.finditer(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)}


def links(text: str) -> Iterator[str]:
    """The targets of links and pictures, without those in code."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    for match in re.finditer(r"\]\(([^)\s]+)\)", prose):
        yield match[1]
