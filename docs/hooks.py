"""What MkDocs does to pages beside Markdown: the design notes and docstrings are written for other readers too."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

NOTES = Path(__file__).parents[1] / "src" / "engine" / "DESIGN.md"
HISTORY = Path(__file__).parents[1] / "tests" / "bench" / "history.py"
# A test of the engine reads these blocks; Markdown takes no second word beside a fence's language.
ORDER = re.compile(r"^```module-order ([\w/]+)$", re.MULTILINE)
# Roles of Sphinx, as editors and help() show them.
ROLE = re.compile(r":(?:func|class|meth|data|mod|attr):(?=<code>)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The design page is the notes beside the engine's sources. Measured runs are drawn."""
    if page.file.src_uri == "project/bench.md":
        history = runpy.run_path(str(HISTORY))
        return markdown.replace("<!-- runs -->", history["page"](history["FOLDER"]))
    if page.file.src_uri != "project/design.md":
        return markdown
    return ORDER.sub(lambda found: f'```text title="{found[1]}"', NOTES.read_text())


def on_page_content(html: str, **_: Any) -> str:
    return ROLE.sub("", html)
