"""Checks the built site: python tests/support/built_site.py build/docs/site

Pages load nothing from other servers, code fits in 79 characters, colours and diagrams have a contrast of 4.5, links and anchors
lead somewhere, and the search finds what people look for. MkDocs itself checks links between Markdown files.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

ROOT = Path(__file__).parents[2]
SOURCES = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
# What people type, and a page that must answer.
SEARCHED = {
    "normalize": "faq.html", "OOM": "faq.html", "num_workers": "faq.html", "docker": "getting-started.html", "conda": "faq.html",
    "A100": "reference/compatibility.html", "FAQ": "faq.html", "cite": "project/citation.html",
    "V100": "reference/compatibility.html", "checkpoint": "guides/checkpoints.html", "versions": "faq.html", "drivers": "faq.html",
    "AWS_PROFILE": "faq.html", "credentials": "stores/remote.html", "secrets": "stores/remote.html", "BibTeX": "faq.html",
    "Dockerfile": "faq.html", "workers": "faq.html", "standardize": "faq.html", "corrupted": "guides/bad-chunks.html",
}
CONTRAST, WIDTH = 4.5, 79
# The backgrounds of the theme's schemes.
LIGHT, DARK = "#ffffff", "#1e2129"


class Page(HTMLParser):
    """A page's anchors, links and what it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in SOURCES and SOURCES[tag] in given:
            self.loaded.append(given[SOURCES[tag]])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload", "dns-prefetch"):
            self.loaded.append(given["href"])
        if given.get("data-md-component") == "source":
            self.loaded.append("https://api.github.com")


def contrast(one: str, other: str) -> float:
    """The ratio that WCAG defines, of two colours such as ``#00695c``."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def of_pages(site: Path) -> Iterator[str]:
    site = site.resolve()  # as targets are
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        place = path.relative_to(site)
        for url in page.loaded:
            if urlparse(url).netloc:
                yield f"{place}: loads {url}"
        for link in page.links:
            parts = urlparse(link)
            if parts.scheme or parts.netloc or place.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{place}: {link} leads nowhere"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{place}: {link}: there is no such anchor"


def of_code() -> Iterator[str]:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.documents import pages

    for page in pages():
        for block in page.blocks:
            longest = max(map(len, block.source.splitlines()), default=0)
            if longest > WIDTH and "--8<--" not in block.source and page.path.name != "laboratory-log.md":
                yield f"{block.place}: a line of {longest} characters, of {WIDTH} at most"


def of_colours() -> Iterator[str]:
    text = (ROOT / "docs/assets/site.css").read_text()
    for selector, body in re.findall(r"^(\S[^{]*){([^}]*)}", text, re.MULTILINE):
        colours = dict(re.findall(r"(--[\w-]+): (#\w{6});", body))
        paper = DARK if "slate" in selector else LIGHT
        for name in ("--md-typeset-a-color", "--md-accent-fg-color"):
            if name in colours and contrast(colours[name], paper) < CONTRAST:
                yield f"site.css: {selector.strip()}: {name} has a contrast of {contrast(colours[name], paper):.1f}"
        head = colours.get("--md-primary-fg-color")
        if head is not None and contrast(head, colours["--md-primary-bg-color"]) < CONTRAST:
            yield "site.css: the head of pages has too little contrast"


def of_search(site: Path) -> Iterator[str]:
    """As the site's script divides text into words; what is typed may be a word's beginning."""
    index = json.loads((site / "search" / "search_index.json").read_text())
    separator = re.compile(index["config"]["separator"])
    for word, page in SEARCHED.items():
        sections = [one for one in index["docs"] if one["location"].startswith(page)]
        words = {found for one in sections for found in separator.split(f"{one['title']} {one['text']}".lower()) if found}
        if not any(found.startswith(word.lower()) for found in words):
            yield f"search: {word} isn't found in {page}"


def main(site: Path) -> int:
    found = [*of_pages(site), *of_code(), *of_colours(), *of_search(site)]
    print("\n".join(found), file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
