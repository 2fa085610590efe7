"""``rechunk``: writes a store in the form that a training access pattern wants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._rechunk import function, options
from .._text import number_of, shape, size, wrapped

ARGUMENTS = options.ARGUMENTS


def rechunk(paths: list[str], given: Mapping[str, Any], show: bool) -> dict[str, Any]:
    """Returns the report of :func:`dali_zarr.rechunk`.

    Raises:
        ValueError, TypeError, IndexError, ImportError, RuntimeError: As that function.
    """
    if len(paths) != 2:
        raise ValueError(f"expected SOURCE and TARGET before the options, but found {number_of(len(paths), 'path')}")
    return function.rechunked(paths[0], paths[1], given, show)


def text(found: Mapping[str, Any]) -> str:
    """Formats the report for people."""
    lines: list[str] = []
    for array in found["arrays"]:
        stored = f"{shape(array['shape'])} {array['dtype']} in chunks of {shape(array['chunks'])}"
        if array["shards"]:
            stored += f" in shards of {shape(array['shards'])}"
        lines.append(f"{array['name'] or 'array'}: {stored}, before {shape(array['source_chunks'])}")
        if array["codecs_left_out"]:
            lines.append(f"  left out, since they lose values or don't fit: {', '.join(array['codecs_left_out'])}")
        if array.get("intermediate"):
            lines.append(f"  copied twice, with chunks of {shape(array['intermediate'])} between")
        elif array.get("copies") and array["copies"][0]["amplification"] > 1.05:
            lines.append(f"  source chunks were read {array['copies'][0]['amplification']:.1f} times")
    if found["was_complete"]:
        lines.append(f"{found['target']} was complete already")
    else:
        rate = found["bytes"] / max(found["seconds"], 1e-9)
        lines.append(f"{found['target']}: {size(found['bytes'])} in {found['seconds']:.1f} s, {size(rate)}/s")
    if found["verified"]:
        lines.append("all values are those of the source, to the bit")
    return "\n".join(map(wrapped, lines))


def run_command(paths: list[str], given: Mapping[str, Any], as_json: bool, quiet: bool) -> int:
    """Prints the report. Returns the exit status."""
    found = rechunk(paths, given, not quiet)
    print(json.dumps(found, indent=2) if as_json else text(found))
    return 0
