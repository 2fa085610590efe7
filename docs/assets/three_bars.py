"""Draws the picture of the README: python docs/assets/three_bars.py

The numbers are those of docs/project/measurements.md: decoded GB/s of the store v3-zstd, to float32 tensors on an NVIDIA H200 with
16 cores, batches of 16. A test compares them with the tables there.
"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

BARS = {"DataLoader over zarr-python,\n14 workers": 1.3, "DALI external_source\nover zarr-python": 4.1, "dali-zarr": 54.3}
# Readable on the light and the dark background of GitHub.
INK = "#808080"


def draw(file: Path) -> None:
    # The same bytes each time, so that a changed file means a changed picture.
    plt.rcParams.update({"svg.hashsalt": "three bars", "svg.fonttype": "path", "font.size": 12})
    figure, ax = plt.subplots(figsize=(8, 2.3), layout="constrained")
    bars = ax.barh(list(BARS), list(BARS.values()), color=["#9aa5b1", "#9aa5b1", "#00897b"], height=0.62)
    ax.bar_label(bars, [f"{value} GB/s" for value in BARS.values()], padding=5, color=INK, fontweight="bold")
    ax.set_xlim(0, 63)
    ax.invert_yaxis()
    ax.tick_params(length=0, labelcolor=INK)
    ax.xaxis.set_visible(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    figure.savefig(file, transparent=True, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_name("three-bars.svg"))
