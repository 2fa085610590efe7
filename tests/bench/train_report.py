"""Rows of the benchmark of training as text, and rows of several processes as one."""

from __future__ import annotations

import statistics
from typing import Any

from train_draw import memory_text

# How rows of several processes are joined: rates and amounts add up, the slowest process decides times.
_SUMS = ("delivered_gbps", "decoded_gbps", "asked_gbps", "loading_gbps", "loading_decoded_gbps", "cores", "waits", "wait_seconds")
_LARGEST = ("real_ms", "synthetic_ms", "copies_ms", "synthetic_spread", "real_spread", "loading_spread", "tax_ms_per_decoded_gb")
_MEANS = (
    "ratio", "copies_ratio", "of_copies", "share_cpu", "share_gpu", "share_uncompressed", "decoded_per_delivered",
    "fetching_share",
)


def joined(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins all processes' rows for the same measurement to one row; ``ranks`` keeps each."""
    failed = [row for row in rows if "failed" in row]
    if len(rows) == 1 or failed:
        return (failed or rows)[0]
    row = dict(rows[0])
    for names, join in ((_SUMS, sum), (_LARGEST, max), (_MEANS, statistics.fmean)):
        for name in names:
            values = [r[name] for r in rows if r.get(name) is not None]
            if values:
                row[name] = join(values)
    row["steady"] = all(r.get("steady", True) for r in rows)
    row["checked"] = {
        "batches": sum(r.get("checked", {}).get("batches", 0) for r in rows),
        "wrong": [text for r in rows for text in r.get("checked", {}).get("wrong", [])],
    }
    row["memory"] = {name: sum(r["memory"][name] for r in rows) for name in rows[0]["memory"]}
    row["ranks"] = rows
    return row


def _name(row: dict[str, Any]) -> str:
    return f"{row['demand']:8} {row['store']:10} {row['decode_device']:4} {memory_text(row['memory_limit']):>9}"


def _beside(row: dict[str, Any], rows: list[dict[str, Any]]) -> float | None:
    """Returns the ratio of uncompressed data with the same model and memory limit; None where it wasn't measured."""
    for other in rows:
        same = all(other[key] == row[key] for key in ("demand", "memory_limit"))
        if same and other["store"] == "none" and "ratio" in other:
            return other["ratio"]
    return None


def line(rows: list[dict[str, Any]]) -> str:
    """Formats the last of the rows as a line, to be printed as soon as it is there."""
    row = rows[-1]
    if "failed" in row:
        return f"{_name(row)}  failed: {row['failed']}"
    text = _name(row)
    if "ratio" in row:
        none = _beside(row, rows)
        tax = row["tax_ms_per_decoded_gb"]
        text += (
            f"  real/synthetic {row['ratio']:.3f} +- {row['real_spread']:.3f} (synthetic +- {row['synthetic_spread']:.3f}"
            f", copies {row['copies_ratio']:.3f}, real/copies {row['of_copies']:.3f}"
            + (f", uncompressed {none:.3f}" if none is not None else "") + f")  tax {'-' if tax is None else f'{tax:.1f}'} ms/GB"
            f"  {row['real_ms']:.2f}/{row['synthetic_ms']:.2f} ms  delivered {row['delivered_gbps']:.2f} of {row['asked_gbps']:.2f}"
            f"  decoded {row['decoded_gbps']:.2f}"
            f"  on CPU {row['share_cpu']:.0%} ({row['shared_threads']} threads) GPU {row['share_gpu']:.0%}"
            f"  waits {row['waits_per_batch']:.2f}{'' if row['steady'] else '  NOT STEADY'}"
        )
    text += f"  alone {row['loading_gbps']:.2f} GB/s"
    memory = row["memory"]
    text += f"  host {memory['host_bytes'] / 2**30:.2f} GiB, GPU {memory['gpu_bytes'] / 2**30:.2f} GiB"
    if row.get("checked", {}).get("wrong"):
        text += f"  WRONG VALUES: {row['checked']['wrong'][0]}"
    return text


def table(results: dict[str, Any]) -> str:
    """Formats all rows as a table of Markdown."""
    head = (
        "| demand | store | decode_device | memory limit | copies / synthetic | real / synthetic | real / copies | spread "
        "| tax, ms/GB | delivered of asked, GB/s "
        "| decoded, GB/s | on CPU | loading alone, GB/s | GPU memory, GiB |"
    )
    lines = [results["machine"], "", head, "|" + "---|" * 14]
    for row in results["rows"]:
        cells = [row["demand"], row["store"], row["decode_device"], memory_text(row["memory_limit"])]
        if "failed" in row:
            lines.append("| " + " | ".join([*cells, row["failed"]]) + " |")
            continue
        if "ratio" in row:
            tax = row["tax_ms_per_decoded_gb"]
            cells += [
                f"{row['copies_ratio']:.3f}", f"{row['ratio']:.3f}", f"{row['of_copies']:.3f}", f"{row['real_spread']:.3f}",
                "" if tax is None else f"{tax:.1f}",
                f"{row['delivered_gbps']:.2f} of {row['asked_gbps']:.2f}", f"{row['decoded_gbps']:.2f}", f"{row['share_cpu']:.0%}",
            ]
        else:
            cells += ["", "", "", "", "", "", f"{row['loading_decoded_gbps']:.2f}", f"{row['loading_share_cpu']:.0%}"]
        cells += [f"{row['loading_gbps']:.2f}", f"{row['memory']['gpu_bytes'] / 2**30:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    if results["left_out"]:
        lines += ["", f"{len(results['left_out'])} rows were left out: the time limit was near."]
    return "\n".join(lines)
