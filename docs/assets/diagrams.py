"""Draws the diagrams of the guides: python docs/assets/diagrams.py

They have a light background of their own, so that they can be read on light and dark pages. A test compares the files with what
this script writes, and the contrast of their texts with 4.5.
"""

from __future__ import annotations

import random
from pathlib import Path

WIDTH = 680
# Text on boxes: each of the first is written on its fill.
INK, PAPER, LINE = "#1f2933", "#ffffff", "#52606d"
HOST, GPU, PLAIN = "#e8eef7", "#def1ee", "#f2f4f7"
TEAL, ORANGE = "#00695c", "#9c4200"
COLOURS = ("#cfe8e4", "#fbe3c8", "#d9e2f5", "#f3d6e4")
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"


class Drawing:
    """Parts of a picture of a fixed width."""

    def __init__(self, height: int, title: str, width: int = WIDTH):
        self._height, self._title, self._width = height, title, width
        self._parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, fill: str = PAPER, line: str = LINE, dash: str = "") -> None:
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="4" fill="{fill}" stroke="{line}"{more}/>')

    def text(
        self, x: float, y: float, text: str, size: int = 14, fill: str = INK, anchor: str = "start", bold: bool = False,
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        how = f'x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}'
        self._parts.append(f"<text {how}>{text}</text>")

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, dash: str = "") -> None:
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(f'<path d="M{x1:g},{y1:g} L{x2:g},{y2:g}" stroke="{colour}" stroke-width="1.5"{more}/>')

    def labelled(self, x: float, y: float, w: float, head: str, about: str, fill: str = PAPER) -> None:
        """A box of two lines."""
        self.box(x, y, w, 56, fill)
        self.text(x + w / 2, y + 24, head, bold=True, anchor="middle")
        self.text(x + w / 2, y + 43, about, 12, anchor="middle")

    def arrow(self, *points: tuple[float, float]) -> None:
        path = " L".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<path d="M{path}" fill="none" stroke="{INK}" stroke-width="1.5" marker-end="url(#head)"/>')

    def svg(self) -> str:
        head = '<path d="M0,0 L8,4 L0,8 z" fill="' + INK + '"/>'
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {self._height}" font-family="{FONT}" role="img">',
            f"<title>{self._title}</title>",
            f'<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">{head}</marker></defs>',
            f'<rect width="{self._width}" height="{self._height}" rx="8" fill="{PAPER}"/>', *self._parts, "</svg>\n",
        ])


def path_of_data() -> str:
    """From a store to the model."""
    d = Drawing(476, "The path of the data: chunks are read, copied, decoded, cut into samples, and wait as batches for the model")
    d.labelled(20, 16, 180, "Zarr store", "disk, bucket, archive", PLAIN)
    d.box(12, 92, 656, 108, HOST, HOST)
    d.text(24, 112, "host", 13, bold=True)
    d.labelled(20, 126, 180, "read", "chunks of the next batches")
    d.labelled(250, 126, 180, "encoded chunks", "page-locked memory")
    d.labelled(480, 126, 180, "decode on the CPU", "other codecs; idle cores")
    d.box(12, 222, 656, 168, GPU, GPU)
    d.text(24, 242, "GPU", 13, bold=True)
    d.labelled(250, 232, 180, "decode on the GPU", "zstd, Blosc, LZ4, gzip")
    d.labelled(480, 232, 180, "decoded chunks", "once for all samples")
    d.labelled(480, 322, 180, "put samples together", "cut, normalise, cast")
    d.labelled(250, 322, 180, "finished batches", "prefetch_queue_depth")
    d.labelled(250, 408, 180, "your model", "PyTorch, JAX, DALI", PLAIN)
    d.arrow((110, 72), (110, 126))
    d.arrow((200, 154), (250, 154))
    d.arrow((430, 154), (480, 154))
    d.arrow((340, 182), (340, 232))
    d.arrow((570, 182), (570, 232))
    d.arrow((430, 260), (480, 260))
    d.arrow((570, 288), (570, 322))
    d.arrow((480, 350), (430, 350))
    d.arrow((340, 378), (340, 408))
    return d.svg()


def windows() -> str:
    """Windows, offsets, steps and episodes along time."""
    d = Drawing(330, "Samples along time: windows of 2 elements at offsets 0 and 4, a start every 2 elements, and a break")
    size, left = 29, 84
    d.text(16, 28, 'window=2, step=2, offsets={"input": 0, "target": 4}, breaks=[12]', 14, bold=True)
    d.text(16, 77, "elements", 13)
    for i in range(20):
        d.box(left + i * size, 56, size, 32, COLOURS[0] if i < 12 else COLOURS[2])
        d.text(left + (i + 0.5) * size, 77, str(i), 13, anchor="middle")
    d.text(left + 6 * size, 50, "first episode", 12, anchor="middle")
    d.text(left + 16 * size, 50, "second episode", 12, anchor="middle")
    rows = [("sample 0", 0), ("sample 1", 2), ("sample 2", 4), ("sample 3", 6), ("sample 4", 12), ("sample 5", 14)]
    for row, (name, start) in enumerate(rows):
        y = 104 + row * 34
        d.text(16, y + 17, name, 13)
        for offset, fill, word in ((0, TEAL, "input"), (4, ORANGE, "target")):
            x = left + (start + offset) * size
            d.box(x, y, 2 * size, 24, fill, fill)
            d.text(x + size, y + 17, word, 13, PAPER, "middle")
    end = left + 12 * size
    d.arrow((end, 92), (end, 308))
    d.text(end - 8, 300, "no sample reaches across the break", 12, anchor="end")
    d.text(16, 322, "step=2: each sample starts 2 elements after the one before", 12)
    return d.svg()


def chunks() -> str:
    """Chunks, shards and the window of the shuffle."""
    d = Drawing(330, "24 samples in 8 chunks and 4 shards: chunks are drawn at random, 4 for each shuffling window")
    size, left = 24, 92
    d.text(16, 30, "shards", 13)
    d.text(16, 70, "chunks", 13)
    d.text(16, 110, "samples", 13)
    for shard in range(4):
        d.box(left + shard * 6 * size + 2, 12, 6 * size - 4, 28, PLAIN)
        d.text(left + (shard * 6 + 3) * size, 31, f"file {shard}", 12, anchor="middle")
    for chunk in range(8):
        d.box(left + chunk * 3 * size + 2, 52, 3 * size - 4, 28, COLOURS[chunk % 4])
        d.text(left + (chunk * 3 + 1.5) * size, 71, f"chunk {chunk}", 12, anchor="middle")
    for sample in range(24):
        d.box(left + sample * size, 92, size, 28, COLOURS[sample // 3 % 4])
        d.text(left + (sample + 0.5) * size, 111, str(sample), 12, anchor="middle")
    # In each epoch anew: which chunks make a shuffling window, and in which order their samples come.
    rng = random.Random(3)
    drawn = rng.sample(range(8), 8)
    d.text(16, 168, "drawn", 13)
    for place, chunk in enumerate(drawn):
        d.box(left + place * 3 * size + 4, 150, 3 * size - 8, 28, COLOURS[chunk % 4])
        d.text(left + (place * 3 + 1.5) * size, 169, f"chunk {chunk}", 12, anchor="middle")
    order: list[int] = []
    for window in range(2):
        x = left + window * 12 * size
        d.box(x + 1, 144, 12 * size - 2, 40, "none", TEAL, "5 3")
        d.text(x + 6 * size, 139, "shuffling window", 12, TEAL, "middle", bold=True)
        d.arrow((x + 6 * size, 184), (x + 6 * size, 203))
        samples = [3 * chunk + i for chunk in drawn[4 * window : 4 * window + 4] for i in range(3)]
        order += rng.sample(samples, len(samples))
    d.text(16, 226, "batches", 13)
    for place, sample in enumerate(order):
        d.box(left + place * size, 207, size, 28, COLOURS[sample // 3 % 4])
        d.text(left + (place + 0.5) * size, 226, str(sample), 12, anchor="middle")
    for batch in range(6):
        d.box(left + batch * 4 * size + 1, 204, 4 * size - 2, 34, "none", INK)
    lines = [
        "Chunks are drawn at random until they have initial_fill samples (here 12), which are shuffled and delivered.",
        "A chunk stays in memory while its window is delivered, so it is read and decoded once an epoch.",
        "A shard is one file of several chunks. A reader takes single chunks out of it.",
    ]
    for i, line in enumerate(lines):
        d.text(16, 266 + i * 24, line, 12)
    return d.svg()


FILES = {"data-path.svg": path_of_data, "windows.svg": windows, "chunks.svg": chunks}

if __name__ == "__main__":
    for name, draw in FILES.items():
        Path(__file__).with_name(name).write_text(draw())
