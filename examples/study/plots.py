"""How the study's pictures look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402

COLOURS = {
    "dali_zarr": "#1b7837", "external_source": "#5e81b5", "DataLoader": "#b2182b", "zarr-python": "#8c8c8c",
    "zarr-python GPU": "#c2a5cf", "kvikio": "#e08214", "numcodecs": "#8c8c8c",
    "dali_zarr, CPU": "#7fbf7b", "dali_zarr, GPU": "#1b7837", "dali_zarr, use_o_direct": "#7fbf7b", "dali_zarr, gds": "#a6dba0",
    "real data": "#1b7837", "synthetic data": "#8c8c8c",
}
Found = Mapping[str, Any]


def where(found: Found) -> str:
    """The machine, for a title."""
    machine = found["machine"]
    gpus = f"{len(machine['gpus'])} x {machine['gpus'][0]}, " if machine["gpus"] else "no GPU, "
    return f"{gpus}{machine['cores']} cores" + ("" if found["size_name"] == "whole" else f", {found['size_name']} store")


def finished(figure: Any, path: Path) -> None:
    """Of 256 colours, which is a third of the bytes."""
    figure.savefig(path, dpi=110)
    plt.close(figure)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def grouped(rows: Sequence[tuple[str, str, float]], path: Path, y: str, title: str) -> None:
    """Bars side by side with their values above them, from (group, bar, value)."""
    if not rows:
        return
    groups, names = list(dict.fromkeys(row[0] for row in rows)), list(dict.fromkeys(row[1] for row in rows))
    figure, axes = plt.subplots(figsize=(7.6, 4.6), layout="constrained")
    width = 0.84 / len(names)
    for i, name in enumerate(names):
        found = {group: value for group, bar, value in rows if bar == name}
        there = [(n, found[group]) for n, group in enumerate(groups) if group in found]
        at = np.array([n for n, _ in there]) + (i - (len(names) - 1) / 2) * width
        drawn = axes.bar(at, [value for _, value in there], width * 0.92, label=name, color=COLOURS.get(name))
        axes.bar_label(drawn, [f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for _, value in there], fontsize=8, padding=1)
    axes.set_xticks(range(len(groups)), groups, fontsize=9)
    axes.margins(y=0.12)
    plain(axes)
    axes.set(ylabel=f"{y}: higher is better", title=title)
    figure.legend(frameon=False, fontsize=9, ncols=min(len(names), 4), loc="outside lower center")
    finished(figure, path)
