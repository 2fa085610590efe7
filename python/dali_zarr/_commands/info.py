"""``info``: what is in a store, how it is stored, what a GPU decodes of it, and a call that reads it."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from typing import Any, cast

from .._text import columns, number_of, read_as, shape, size, wrapped
from . import keys, owned, suggest
from .arrays import ReadableArray, RefusedArray, listed

# The reader's arguments that the command takes, beside those that select arrays and elements.
ARGUMENTS = ("storage_options", "dims", "window", "offsets")


def info(path: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is known of one store, or of arrays that all have stores of their own. ``options`` are the reader's.

    Raises:
        ValueError, TypeError, IndexError, RuntimeError, ImportError: The store can't be opened, or an argument is wrong.
    """
    given = dict(options)
    asked = given.pop("arrays", None)
    listing = listed(path, asked, given.get("storage_options"))
    entries = [_entry(path, array, given.get("storage_options")) for array in listing.arrays]
    by_output = cast("dict[str, str]", asked) if isinstance(asked, dict) else {}
    outputs = None if asked is None else {array: output for output, array in by_output.items()}
    taken = [array for array in listing.arrays if isinstance(array, ReadableArray)]
    return {"path": path, "arrays": entries, "is_cut": listing.is_cut, **suggest.suggested(path, given, taken, outputs)}


def _entry(path: str | None, array: ReadableArray | RefusedArray, storage_options: Any) -> dict[str, Any]:
    if isinstance(array, RefusedArray):
        return {"name": array.name, "refused": array.message}
    found = keys.stored(path, array, storage_options)
    return {
        "name": array.name, "dims": list(array.dims), "shape": list(array.shape), "dtype": array.dtype,
        "stored": array.stored, "chunks": list(array.chunks),
        "shards": None if array.shards is None else list(array.shards), "codecs": array.codecs,
        "lossy_images": array.lossy_images, "chunk_bytes": array.chunk_bytes, "decoded_bytes": array.decoded_bytes,
        # The bytes of stored chunks or shards, of folders and archives; their number; and their number if none were missing.
        "stored_bytes": found.bytes, "files": found.count, "files_if_complete": math.prod(array.objects),
        "warning": found.warning,
        "packing": dict(array.packing), "gpu": array.decoded_on == "gpu",
        "decoded_on": array.decoded_on, "why": array.why,
    }


def text(found: Mapping[str, Any]) -> str:
    """Formats what is known for people."""
    taken = [array for array in found["arrays"] if "refused" not in array]
    decoded = size(sum(array["decoded_bytes"] for array in taken))
    place = "stores of their own" if found["path"] is None else f"store {found['path']}"
    lines = [f"{place}: {number_of(len(found['arrays']), 'array')}, {decoded} decoded"]
    for array in found["arrays"]:
        lines += _described(array)
    if found["is_cut"]:
        lines.append("and perhaps more: the list has a limit; name others with --arrays")
    lines = [wrapped(line) for line in lines]
    if found["suggested"]:
        about = f" ({found['about']})" if found["about"] else ""
        lines += ["", f"To read it{about}:", "", "    import dali_zarr.torch", "", *_call(found["suggested"]), ""]
        lines.append("The loader delivers to the GPU if there is one.")
        shown = ", ".join(f"{one['name']} {shape(one['shape'])} {one['dtype']}" for one in found["explained"]["outputs"])
        lines.append(wrapped(f"{number_of(found['explained']['samples'], 'sample')}: {shown}"))
        lines += [wrapped(f"advice: {one}") for one in found["explained"]["advice"]]
    return "\n".join(lines)


def _call(text: str) -> list[str]:
    """Returns the lines of an assignment of a call; arguments stay whole."""
    line = f"    loader = {text}"
    call = cast("ast.Call", ast.parse(text, mode="eval").body)
    if len(line) <= columns():
        return [line]
    arguments = [ast.get_source_segment(text, node) or "" for node in (*call.args, *call.keywords)]
    lines = [f"    loader = {ast.unparse(call.func)}(", f"        {arguments[0]}"]
    for argument in arguments[1:]:
        lines[-1] += ","
        if len(lines[-1]) + len(argument) + 2 > columns():
            lines.append(f"        {argument}")
        else:
            lines[-1] += f" {argument}"
    return [*lines, "    )"]


def _described(array: Mapping[str, Any]) -> list[str]:
    if "refused" in array:
        return [f"{array['name']}: readers don't take it", f"  {array['refused']}"]
    lines = [f"{array['name']} ({', '.join(array['dims'])}), {read_as(array)}"]
    stored = f"  {shape(array['shape'])} in chunks of {shape(array['chunks'])} ({size(array['chunk_bytes'])})"
    if array["shards"]:
        stored += f" in shards of {shape(array['shards'])}"
    lossy = {True: " (lossy images)", None: " (images, perhaps lossy)", False: ""}[array["lossy_images"]]
    lines.append(f"{stored}, {array['codecs']}{lossy}")
    sizes = f"  {size(array['decoded_bytes'])} decoded"
    if array["stored_bytes"] is not None:
        sizes += f", {size(array['stored_bytes'])} stored"
    if array["files"] is not None:
        kind = "shards" if array["shards"] else "chunks"
        if array["files"] < array["files_if_complete"]:
            sizes += f"; {array['files']} of {array['files_if_complete']} {kind} are stored, the others are the fill value"
    lines.append(sizes)
    if array["warning"]:
        lines.append(f"  warning: {array['warning']}")
    if array["packing"]:
        # Missing values alone don't pack anything.
        kind = "packed" if array["packing"].keys() - {"_FillValue", "missing_value"} else "missing values"
        lines.append(f"  {kind}: " + ", ".join(f"{name} {value}" for name, value in array["packing"].items()))
    where = {"gpu": "decoded there", "cpu": f"decoded by the CPU, since {array['why']}", "nowhere": array["why"]}
    lines.append(f"  for a GPU: {where[array['decoded_on']]}")
    return lines


def run(paths: list[str], options: Mapping[str, Any], as_json: bool) -> int:
    """Prints what is known of each store. Returns the exit status."""
    found = [info(path, options) for path in owned.places(paths, options.get("arrays"))]
    print(json.dumps(found, indent=2) if as_json else "\n\n".join(map(text, found)))
    return 0
