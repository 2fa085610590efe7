"""Keeps what `make bench` measured, one file for each run, and draws it over time.

    python tests/bench/history.py bench-data/results.json     # adds the run to docs/assets/bench

`make docs` draws the page docs/project/bench.md of all these files. Nothing but the standard library is used.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "assets" / "bench"
READER = "dali_zarr"
# The keys that a run must have, so that numbers that were measured years apart can be compared.
KNOWN = ("date", "version", "commit", "machine", "device", "fields", "batch_size", "threads", "repeats")
COLOURS = ["#00897b", "#c2185b", "#3949ab", "#ef6c00", "#6d4c41", "#7b1fa2", "#558b2f", "#0288d1", "#9e9d24"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 340, 44, 150, 12, 40


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """Returns the medians of a run, in GB/s by store and reader, with what they depend on."""
    if missing := [name for name in KNOWN if results.get(name) in (None, "")]:
        raise ValueError(f"expected results of bench.py that tell {', '.join(KNOWN)}, but {', '.join(missing)} are missing")
    medians = {
        store: {reader: round(statistics.median(found["gbps"]), 2) for reader, found in row.items() if "gbps" in found}
        for store, row in results["results"].items()
    }
    if not any(READER in row for row in medians.values()):
        raise ValueError(f"expected throughput of {READER} in at least one store, but found none")
    return {name: results[name] for name in KNOWN} | {"gbps": medians}


def add(results: Path, folder: Path) -> Path:
    """Writes the run's file, and returns its path. A later run of the same day, version of the sources and device
    replaces it."""
    run = summary(json.loads(results.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run['date'][:10]}-{run['commit']}-{run['device']}.json"
    path.write_text(json.dumps(run, indent=1) + "\n")
    return path


def runs(folder: Path) -> list[dict[str, Any]]:
    """All runs, the oldest first."""
    return sorted((json.loads(path.read_text()) for path in folder.glob("*.json")), key=lambda run: run["date"])


def processor(run: dict[str, Any]) -> str:
    """Returns the machine without the version of its driver: runs on the same one are compared."""
    return re.sub(r", [\d.]+$", "", run["machine"])


def page(folder: Path) -> str:
    """Returns Markdown: for each machine a picture of all its runs, and a table of the last one."""
    found = runs(folder)
    machines = {processor(run): [other for other in found if processor(other) == processor(run)] for run in reversed(found)}
    if not machines:
        return "No run is recorded yet.\n"
    parts: list[str] = []
    for machine, own in machines.items():
        last = own[-1]
        # Markdown leaves a div as it is.
        parts += [f"## {machine}", f"<div>\n{picture(own)}\n</div>"]
        parts.append(
            f"The last run: {last['date'][:10]}, version {last['version']} ({last['commit']}), {last['machine']}, "
            f"{last['threads']} threads, batches of {last['batch_size']}, median of {last['repeats']} repeats."
        )
        rows = ["| store | dali_zarr | best peer |", "|---|---|---|"]
        for store, row in last["gbps"].items():
            peers = {reader: value for reader, value in row.items() if reader != READER}
            best = max(peers, key=lambda reader: peers[reader], default="")
            rows.append(f"| {store} | {row.get(READER, '')} | {f'{peers[best]} {best}' if best else ''} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def picture(own: list[dict[str, Any]]) -> str:
    """An SVG of the GB/s of each store, run after run."""
    stores = list(dict.fromkeys(store for run in own for store, row in run["gbps"].items() if READER in row))
    top = max(row[READER] for run in own for row in run["gbps"].values() if READER in row) * 1.05
    inner, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(number: int) -> float:
        return round(LEFT + inner * (number + 0.5) / len(own), 1)

    def y(value: float) -> float:
        return round(TOP + high * (1 - value / top), 1)

    lines = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="GB/s of each store over time" font-size="12" '
             'font-family="sans-serif" fill="currentColor" style="max-width: 100%">']
    step = next(size for size in (0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, float("inf")) if top / size <= 7)
    for tick in range(int(top / step) + 1):
        at = y(tick * step)
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}" stroke="currentColor" stroke-opacity="0.2"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{at + 4}" text-anchor="end">{tick * step:g}</text>')
    for number, run in enumerate(own):
        # Dates that would overlap are left out.
        if number % (1 + len(own) // 7) == 0:
            lines.append(f'<text x="{x(number)}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{escape(run["date"][:10])}</text>')
    labels: list[tuple[float, str, str]] = []
    for store, colour in zip(stores, COLOURS * (1 + len(stores) // len(COLOURS)), strict=False):
        points = [(x(i), y(run["gbps"][store][READER])) for i, run in enumerate(own) if READER in run["gbps"].get(store, {})]
        path = " ".join(f"{a},{b}" for a, b in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{a}" cy="{b}" r="3.5" fill="{colour}"/>' for a, b in points]
        labels.append((points[-1][1], store, colour))
    free = float(TOP)
    for at, store, colour in sorted(labels):
        free = max(at + 4, free)
        lines.append(f'<circle cx="{WIDTH - RIGHT + 8}" cy="{round(free - 4, 1)}" r="4" fill="{colour}"/>')
        lines.append(f'<text x="{WIDTH - RIGHT + 18}" y="{round(free, 1)}">{escape(store)}</text>')
        free += 14
    lines.append(f'<text x="{LEFT}" y="{HEIGHT - 4}">decoded GB/s over the runs: higher is better</text></svg>')
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="what bench.py --json wrote")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    args = parser.parse_args()
    print(f"wrote {add(args.results, args.folder)}")


if __name__ == "__main__":
    main()
