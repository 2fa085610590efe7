"""Numbers and explanations as text: what :func:`dali_zarr.explain` found out, in the order in which people ask for it."""

import math
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
# Columns of text that isn't written to a terminal.
_COLUMNS = 120


def size(n: float) -> str:
    """Formats a number of bytes, such as ``1.5 GiB``."""
    for unit, name in _UNITS:
        if n >= unit:
            return f"{n / unit:.1f} {name}"
    return "1 byte" if n == 1 else f"{n:.0f} bytes"


def limit(n: int) -> str:
    """Formats a number of bytes that is needed at least, rounded up: what is shown is enough if it is given as a limit."""
    for unit, name in _UNITS:
        if n >= unit:
            return f"{math.ceil(n / unit * 10) / 10:.1f} {name}"
    return size(n)


def shape(extents: Iterable[int]) -> str:
    """Formats lengths of dimensions, such as ``721x1440``; ``scalar`` where there are none."""
    return "x".join(map(str, extents)) or "scalar"


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message; the error's type where the message is empty."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def number_of(count: float, what: str) -> str:
    """Formats a count with its noun, in the plural unless it is 1."""
    text = _number(count)
    plural = "batches" if what == "batch" else f"{what}s"
    return f"{text} {what if text == '1' else plural}"


def _bits(output: dict[str, Any]) -> str:
    return f" (the bits of {output['bits_of']})" if output["bits_of"] else ""


def _offset(output: dict[str, Any]) -> str:
    return "" if output["offset"] is None else f" at offset {output['offset']}"


def _number(n: float) -> str:
    return f"{n:.0f}" if n == int(n) else f"{n:.2f}"


def _samples(e: dict[str, Any]) -> str:
    text = f"samples: {e['samples']}"
    if e["weighted"]:
        text += f" drawn by weights {e['weighted']}"
    if e["starts_from_table"]:
        text += " of those that start where a table says" if e["weighted"] else " starts from a table"
    if e["num_shards"] > 1:
        text += f" in {e['num_shards']} shards, {e['samples_of_this_shard']} in this one"
    return f"{text}; {number_of(e['batches_per_epoch'], 'batch')} of {e['batch_size']} per epoch, to the {e['device'].upper()}"


def read_as(array: Mapping[str, Any]) -> str:
    """Returns the type that a reader gives an array's elements, with the stored type where that differs."""
    return array["dtype"] + (f" (stored as {array['stored']})" if array["stored"] != array["dtype"] else "")


def _rows(r: dict[str, Any]) -> str:
    cut = f", of which {r['max_length']} are read" if r["max_length"] is not None and r["max_length"] < r["longest"] else ""
    return (
        f"rows: {r['rows']} of {r['elements']} elements, {r['empty']} of them empty, the longest of {r['longest']}{cut}; their "
        f"offsets take {size(r['bytes'])}"
    )


def _array(a: dict[str, Any]) -> list[str]:
    decoded = ", decoded by mask_and_scale" if a["mask_and_scale"] else ""
    filled = "" if a["fillna"] is None else f", NaN replaced by {a['fillna']}"
    by_channel = f", normalised by {', '.join(a['channels'])}" if a["channels"] else ""
    lines = [f"array {a['name']} ({', '.join(a['dims'])}), {read_as(a)}{decoded}{filled}{by_channel}"]
    seen: list[tuple[str, str]] = []
    for part in a["stores"]:
        stored = f"chunks of {shape(part['chunks'])} ({size(part['chunk_bytes'])})"
        if part["shards"]:
            stored += f" in shards of {shape(part['shards'])}"
        how = (f"{stored}, {part['codecs']}", f"decoded: {part['decoded_on']}; {part['why']}")
        if how not in seen:
            seen.append(how)
            lines += [f"  {shape(part['shape'])} in {how[0]}", f"  {how[1]}"]
    for dim, told in a["scaled"][0].items() if a["scaled"] else ():
        if told["first"] is not None:
            number, apart, beside = max(told["window"], 1), abs(told["distance"]), told["beside"]
            begin = "begin where its box does" if beside < 0.01 else f"begin up to {_number(beside)} elements beside its box"
            lines.append(f"  along {dim} a sample takes {number_of(number, 'element')} of {apart:g}, which {begin}")
    one = _number(a["chunks_per_sample"]) == "1"
    lines.append(
        f"  sample {size(a['bytes_per_sample'])}; its {'chunk' if one else number_of(a['chunks_per_sample'], 'chunk')} "
        f"{size(a['chunk_bytes_per_sample'])} ({_number(a['read_amplification'])}x); decoded per sample "
        f"{size(a['chunk_bytes_read_per_sample'])}"
    )
    reads = a["reads_per_chunk"]
    lines.append(f"  reads of a chunk per epoch: {_number(reads['in_order'])} in order, {_number(reads['shuffled'])} shuffled")
    return lines


def _reads(e: dict[str, Any]) -> str:
    # A caller's order is taken for a permutation of all samples, which ignores chunks.
    is_pushed = e["order"] == "pushed"
    reads = e["reads"]["shuffled" if is_pushed else e["order"]]
    order = "if its samples come once, at random" if is_pushed else e["order"].replace("_", " ")
    text = "order: the caller's\n" if is_pushed else ""
    text += (
        f"reads per epoch ({order}): {number_of(reads['reads'], 'read')} of {number_of(reads['chunks'], 'chunk')}, "
        f"{size(reads['chunk_bytes_read'])} decoded"
    )
    unhurried = e["reads"]["unhurried"]
    if unhurried["reads"] > reads["reads"]:
        text += f"; {_number(unhurried['reads'])} reads if batches are ready before they are taken"
    return text + (f" (estimated from the first {reads['samples_looked_at']} samples)" if reads["estimated"] else "")


def _shuffle(e: dict[str, Any]) -> list[str]:
    s = e["shuffle"]
    if e["order"] != "shuffled" or e["weighted"] or s["blocks_of_batch"] > 0.95 * s["blocks_of_batch_if_uniform"]:
        return []
    return [
        f"shuffled in windows of {s['initial_fill']} samples: a batch draws from {_number(s['blocks_of_batch'])} blocks of samples "
        f"that share chunks; shuffled over the whole epoch it would draw from {_number(s['blocks_of_batch_if_uniform'])}, and need "
        f"{size(s['chunk_bytes_if_uniform'])} of memory for chunks",
    ]


def _memory(m: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for which in ("device", "host"):
        given_limit = m[f"{which}_memory_limit"]
        if given_limit is not None:
            given = "given" if m[f"{which}_memory_limit_given"] else "default"
            smallest = m[f"smallest_{which}_memory_limit"]
            used = m.get(f"{which}_memory_used")
            used = "" if used is None else f", {size(used)} of it used"
            lines.append(f"{which} memory: {size(given_limit)} ({given}){used}; at least {limit(smallest)}")
    if m["refused"]:
        lines.append("refused; with the smallest limits:")
    sets = ""
    if m["lanes"]:
        sets = f"; the GPU decodes {number_of(m['lanes'], 'set')} of chunks at a time, each of {size(m['wave_bytes'])}"
    lines.append(
        f"this allows: {number_of(m['batches_in_preparation'], 'batch')} in preparation and {m['batches_planned_ahead']} more "
        f"planned; {number_of(m['chunks_in_flight'], 'chunk')} in flight; {size(m['decoded_bytes_kept'])} for decoded chunks{sets}"
    )
    lines.append(f"threads: {m['io_threads']} read, {m['decode_threads']} decode")
    return lines


def _cache(c: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for where, kind, ratio in (("host memory", "memory", "memory_ratio"), (c["directory"], "disk", "disk_ratio")):
        if c[kind] is None:
            continue
        # Some percent of a cache go to its records of the chunks.
        needed = c[ratio] / 0.95
        fits = "they fit" if needed <= 1 else f"they fit if encoded they are {_number(needed)} times smaller"
        lines.append(f"cache: {size(c[kind])} in {where}; an epoch's chunks are {size(c['epoch_bytes'])} decoded: {fits}")
    return lines


def _segments(s: dict[str, Any]) -> list[str]:
    if s["count"] < 2 and not s["padded_samples"]:
        return []
    read = "" if s["read"] == s["count"] else f", {s['read']} of them read"
    return [f"segments: {s['count']}{read}; {100 * s['padded_samples']:.3g} % of the samples have elements outside of theirs"]


def _scratch(o: dict[str, Any]) -> str:
    return f", and {size(o['scratch_bytes'])} for the elements that are interpolated" if o["scratch_bytes"] else ""


# What becomes of chunks that can't be decoded, by `on_bad_chunk`; without a text they are errors.
_BAD_CHUNKS = {
    "nan": "their elements are NaN, or the fill value in outputs that have no NaN",
    "skip": "the next sample takes the place of one that needs them",
}


def _stores(e: dict[str, Any]) -> list[str]:
    paths = e["path"]
    if e["groups"] is None or len(paths) < 3:
        return [f"store {path}" for path in paths]
    return [f"{len(paths)} groups: {paths[0]} to {paths[-1]}"]


def explanation_text(e: dict[str, Any]) -> str:
    """The text of an explanation."""
    lines = [*([f"reader {e['name']}"] if "name" in e else []), *_stores(e), _samples(e)]
    if e["without_samples"]:
        lines.append(f"without samples: {e['without_samples']} of the stores or groups, since no window fits in them")
    for o in e["outputs"]:
        layout = f", layout {o['layout']}" if o["layout"] else ""
        most, batch = ("up to ", f", {size(o['batch_bytes'])} a batch") if o["ragged"] else ("", "")
        differ = f"; samples differ in {', '.join(o['ragged_dims'])}" if o["ragged"] and not e["ragged"] else ""
        lines.append(
            f"output {o['name']}{_offset(o)}: {most}{shape(o['shape'])} {o['dtype']}{_bits(o)}{layout}, "
            f"{most}{size(o['sample_bytes'])} a sample{batch}{differ}{_scratch(o)}"
        )
    if e["ragged"]:
        lines.append(_rows(e["ragged"]))
    lines += _segments(e["segments"])
    if missing := e["missing_dates"]:
        left_out = missing["samples_left_out"]
        out = f"{left_out} samples read some of them and are left out"
        some = f"they are filled, except some without neighbours: {left_out} samples read these and are left out"
        filled = some if left_out else "they are filled"
        lines.append(f"missing dates: {missing['dates']}; {filled if missing['filled'] else out}")
    if then := _BAD_CHUNKS.get(e["on_bad_chunk"]):
        lines.append(f"bad chunks: {then}; they are logged, counted and listed")
    for a in e["arrays"]:
        lines += _array(a)
    lines += [_reads(e), *_shuffle(e), *_memory(e["memory"]), *(_cache(e["cache"]) if e["cache"] else [])]
    lines += [f"advice: {text}" for text in e["advice"]] or ["advice: none"]
    return "\n".join(wrapped(line) for line in lines)


def columns() -> int:
    """Returns how wide text may be: the terminal's width, or that of ``COLUMNS``."""
    return max(shutil.get_terminal_size((_COLUMNS, 24)).columns, 40)


def wrapped(line: str) -> str:
    """Wraps a line to fit the terminal; names and paths stay whole."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(line, columns(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
