"""Runs the lines of docs/from/cellmap-data.md, and compares their patches with CellMapDataset's. Prints JSON: how many patches
are equal at 8 nm, and at 16 nm of those that begin at an element there, and of those that begin between two."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import torch  # noqa: E402
from support.documents import page  # noqa: E402

with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
    names: dict[str, Any] = {"__name__": "page"}
    for block in page(ROOT / "docs" / "from" / "cellmap-data.md").blocks:
        if block.language == "python":
            exec(compile(block.source, block.place, "exec"), names)
    dataset, fine, coarse, other = names["dataset"], 0, 0, 0
    in_order = list(range(0, len(dataset), 25))
    shuffled = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(1))[:200].tolist()
    for indices in (in_order, shuffled):
        own = iter(indices)
        for batch in names["patches"](dataset, indices):
            for number, place in enumerate(batch.index.tolist()):
                wanted = dataset[next(own)]
                for name in ("raw", "output"):
                    assert torch.equal(batch[name][number], wanted[name][0]), (name, place)
                fine += 1
                assert torch.equal(batch["around"][number], wanted["around"][0]), place
                is_between = any(start % 2 for start in place)
                coarse, other = coarse + (not is_between), other + is_between
    print("FOUND" + json.dumps([fine, coarse, other]))
