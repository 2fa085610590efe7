"""Draws the picture of the page Training from the table there: python docs/assets/training.py

A range is drawn as its middle. A test compares the numbers that the picture keeps as its description with the table.
"""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "project" / "training.md"
ROW = re.compile(r"^\| `(\w+)` \| ([\w ]+) \| ([^|]*)\|[^|]*\| ([^|]*)\|[^|]*\| ([^|]*)\|$", re.MULTILINE)
# Readable on a light and on a dark background.
INK = "#808080"
COLOURS = {"auto": "#00897b", "gpu": "#9aa5b1", "cpu": "#d9a441"}


def numbers() -> dict[str, list[float | None]]:
    """For each row of the page's table the numbers of `auto`, `gpu` and `cpu`."""

    def middle(cell: str) -> float | None:
        found = [float(number) for number in re.findall(r"\d\.\d+", cell)]
        return round(sum(found) / len(found), 4) if found else None

    rows = ROW.findall(PAGE.read_text())
    return {f"{model}, {store}": [middle(cell) for cell in cells] for model, store, *cells in rows}


def description() -> str:
    return "; ".join(f"{name}: {values}" for name, values in numbers().items())


def draw(file: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    # The same bytes each time, so that a changed file means a changed picture.
    plt.rcParams.update({"svg.hashsalt": "training", "svg.fonttype": "path", "font.size": 10})
    figure, ax = plt.subplots(figsize=(8, 4.2), layout="constrained")
    rows = numbers()
    for place, (label, colour) in enumerate(COLOURS.items()):
        values = [values[place] for values in rows.values()]
        at = [row + 0.26 * (place - 1) for row, value in enumerate(values) if value]
        bars = ax.barh(at, [value for value in values if value], 0.24, color=colour, label=label)
        ax.bar_label(bars, [f"{value:.3f}" for value in values if value], padding=3, color=INK, fontsize=7)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set_xlim(0, 1.1)
    ax.set_xlabel("training on real data / on synthetic data", color=INK)
    ax.invert_yaxis()
    ax.tick_params(length=0, labelcolor=INK)
    legend = ax.legend(title="decode_device", loc="upper left", frameon=False, labelcolor=INK, fontsize=8, bbox_to_anchor=(1, 1))
    legend.get_title().set_color(INK)
    for spine in ax.spines.values():
        spine.set_visible(False)
    figure.savefig(file, transparent=True, metadata={"Date": None, "Description": description()})
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_name("training.svg"))
