"""What MkDocs does to pages beside Markdown: the design notes and docstrings are written for other readers too."""

from __future__ import annotations

import ast
import json
import re
import runpy
from pathlib import Path
from typing import Any

NOTES = Path(__file__).parents[1] / "src" / "engine" / "DESIGN.md"
READER = Path(__file__).parents[1] / "python" / "dali_zarr" / "_reader.py"
REFERENCE = Path(__file__).parent / "reference" / "arguments"
NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"
HISTORY = Path(__file__).parents[1] / "tests" / "bench" / "history.py"
# A test of the engine reads these blocks; Markdown takes no second word beside a fence's language.
ORDER = re.compile(r"^```module-order ([\w/]+)$", re.MULTILINE)
# Roles of Sphinx, as editors and help() show them.
ROLE_IN_TEXT = re.compile(r":(?:func|class|meth|attr):(?=`)")
NOTEBOOK = re.compile(r"^<!-- notebook: (\w+) -->$", re.MULTILINE)
ROLE = re.compile(r":(?:func|class|meth|data|mod|attr):(?=<code>)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The design page is the notes beside the engine's sources. Measured runs are drawn, and notebooks shown."""
    if page.file.src_uri == "gallery.md":
        return NOTEBOOK.sub(lambda found: notebook(NOTEBOOKS / f"{found[1]}.ipynb"), markdown)
    if page.file.src_uri == "reference/python.md":
        return markdown.replace("<!-- arguments of zarr_reader -->", reader_arguments())
    if page.file.src_uri == "project/bench.md":
        history = runpy.run_path(str(HISTORY))
        return markdown.replace("<!-- runs -->", history["page"](history["FOLDER"]))
    if page.file.src_uri != "project/design.md":
        return markdown
    return ORDER.sub(lambda found: f'```text title="{found[1]}"', NOTES.read_text())


def notebook(path: Path) -> str:
    """The cells of a notebook with the outputs that it stores, without its title. Pictures are within the page."""
    parts: list[str] = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"\A# .*\n*", "", source))
            continue
        parts.append(f"```python\n{source}\n```")
        # A cell that prints in a loop has an output for each part.
        printed = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f"![What the cell draws](data:image/png;base64,{''.join(data['image/png']).replace(chr(10), '')})")
            else:
                printed += "".join(data.get("text/plain", ""))
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts)


def reader_arguments() -> str:
    """The arguments of zarr_reader as tables, from its docstring, which has a section for each group of them."""
    functions = (node for node in ast.parse(READER.read_text()).body if isinstance(node, ast.FunctionDef))
    doc = next(ast.get_docstring(function) or "" for function in functions if function.name == "zarr_reader")
    places = {
        name: path.name for path in REFERENCE.glob("*.md") for name in re.findall(r"^### `(\w+)`", path.read_text(), re.MULTILINE)
    }
    found: list[str] = []
    for title, body in re.findall(r"^([A-Z][\w ]+):\n((?: {4}.*\n|\n)+)", f"{doc}\n", re.MULTILINE):
        if title in ("Returns", "Raises"):
            continue
        found += [f"**{title}**", "", "| argument | meaning |", "|---|---|"]
        for names, about in re.findall(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", body, re.MULTILINE):
            linked = [
                f"[`{name}`](arguments/{places[name]}#{name})" if name in places else f"`{name}`" for name in names.split(", ")
            ]
            text = " ".join(about.split()).replace("``", "`").replace("|", "\\|")
            found.append(f"| {', '.join(linked)} | {ROLE_IN_TEXT.sub('', text)} |")
        found.append("")
    return "\n".join(found)


def on_page_content(html: str, **_: Any) -> str:
    return ROLE.sub("", html)
