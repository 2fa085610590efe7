"""``python -m dali_zarr``: says what is installed, what a reader would do, and what statistics a store's values have."""

import argparse
import itertools
import json
import os
import sys
from typing import Any

from . import DALI_VERSION, __version__, _dali
from ._arguments import names, values
from ._hints import did_you_mean
from ._inspect import explained
from ._statistics.compute import statistics


def _is_text(name: str) -> bool:
    """Whether an argument's values are text, whatever they look like."""
    if name in ("dtype", "device", "sel", "isel", "method", "output", "weights", "channels") or name in values.BYTES:
        return True
    return name in names.of_type("STRING", "_STRING_VEC") and name != "storage_options"


def _value(name: str, text: str) -> Any:
    """A number, true, false or anything else that is JSON; one of DALI's types; else the text itself."""
    if name == "dtype" and text.startswith("types."):
        types = _dali.module("types")
        found = getattr(types, text.removeprefix("types."), None)
        if not isinstance(found, types.DALIDataType):
            raise ValueError(f"--dtype: nvidia.dali has no {text}; give one of its types, such as types.FLOAT, or float32")
        return found
    if _is_text(name):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


# What statistics take beside the reader's arguments, and whether it is true or false.
_OF_STATISTICS = {"output": False, "weights": False, "channels": False, "device_id": False}


def _arguments() -> dict[str, bool]:
    """What may be given beside the store, and whether it is true or false."""
    types, schema = _dali.module("types"), _dali.schema()
    # The first has no place here, and two are for all of DALI's operators.
    given: set[str] = set(schema.GetArgumentNames()) - {"path", "bytes_per_sample_hint", "preserve"}
    others = dict.fromkeys((*names.SELECTION, "batch_size", "device"), False)
    return others | {name: schema.GetArgumentType(name) == types.BOOL for name in given}


def _name(word: str, arguments: dict[str, bool]) -> str:
    """The argument that is meant by ``--word``."""
    name = word.replace("-", "_")
    if name == "path":
        raise ValueError("--path: the stores are given already, as STORE before the options; leave --path out")
    if name not in arguments:
        hint = did_you_mean(name, arguments, "see help(fn.zarr_reader) for the arguments that there are", prefix="--")
        raise ValueError(f"--{word}: there is no such argument; {hint}")
    return name


def _selection(name: str, words: list[str]) -> dict[str, Any]:
    """``DIM=LABEL``, ``DIM=A,B`` or ``DIM=FIRST..LAST`` (``..STEP``) as a dictionary."""
    found: dict[str, Any] = {}
    for word in words:
        dim, equals, text = word.partition("=")
        if not equals or not text:
            raise ValueError(f"--{name}: expected DIM=LABEL, DIM=LABEL,LABEL or DIM=FIRST..LAST, found {word!r}")
        if ".." in text:
            bounds = [_label(part) if part else None for part in text.split("..")]
            found[dim] = slice(*bounds)
        else:
            labels = [_label(part) for part in text.split(",")]
            found[dim] = labels[0] if len(labels) == 1 else labels
    return found


def _label(text: str) -> Any:
    """A number, or text: a year is text, a date."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text


def _computed(path: Any, options: dict[str, Any], as_json: bool, progress: bool) -> Any:
    """Statistics as text; None in processes other than that of rank 0."""
    found = statistics(path, progress=progress, **options)
    if os.environ.get("RANK", "0") != "0":
        return None
    return json.dumps(found, indent=1) if as_json else found


def _options(words: list[str], others: dict[str, bool]) -> dict[str, Any]:
    """``--name value ...`` as arguments: several values are a list, and none stands for true. ``others`` are arguments
    beside the reader's."""
    arguments = _arguments() | others
    options: dict[str, list[Any]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            given, equals, value = word[2:].partition("=")
            name = _name(given, arguments)
            if name in options:
                raise ValueError(f"--{name}: given twice; give all its values at once, as --{name} A B")
            options[name] = [_value(name, value)] if equals else []
        else:
            options[name].append(_value(name, word))
    for name in ("sel", "isel"):
        if options.get(name):
            options[name] = [_selection(name, options[name])]
    for name, given in options.items():
        if not given and not arguments[name]:
            raise ValueError(f"--{name}: expected a value after it")
    return {name: True if not given else given[0] if len(given) == 1 else given for name, given in options.items()}


def main() -> int:
    """Parses the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dali_zarr", description="NVIDIA DALI operator for Zarr arrays")
    version = f"dali_zarr {__version__}, for NVIDIA DALI {DALI_VERSION}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command")
    explaining = commands.add_parser(
        "explain", allow_abbrev=False, help="say what a reader would do, without reading data",
        usage="python -m dali_zarr explain STORE [STORE ...] [--json] [--ARGUMENT VALUE ...] ...",
        description="Says what fn.zarr_reader would do: samples, outputs, how often chunks are read, where they are decoded, "
        "what memory allows, what would make it faster. Reads metadata only.",
        epilog="All arguments of fn.zarr_reader may be given, as --batch_size 16 --device gpu --arrays t2m z --random_shuffle "
        "--pick level=0,5 --sel time=2015-01..2016 level=500,850; see help(fn.zarr_reader).",
    )
    explaining.add_argument("store", nargs="+", help="directories or URLs; several are joined along the first of --dims")
    explaining.add_argument("--json", action="store_true", help="print JSON")
    computing = commands.add_parser(
        "statistics", allow_abbrev=False, help="compute mean, stddev, min, max and share of NaN",
        usage="python -m dali_zarr statistics STORE [STORE ...] --output FILE [--json] [--quiet] [--ARGUMENT VALUE ...] ...",
        description="Computes mean, standard deviation, minimum, maximum and share of NaN of each array and channel in one pass, "
        "and writes them as JSON that mean and stddev of readers take. Under torchrun each process reads its shard.",
        epilog="The arguments of dali_zarr.statistics may be given, as --arrays t2m z --offsets 6 --weights cos_latitude "
        "--batch_size 8 --device gpu --channels level --sel time=2015..2017; see help(dali_zarr.statistics).",
    )
    computing.add_argument("store", nargs="+", help="directories or URLs; several are joined along the first of --dims")
    computing.add_argument("--output", help="the file to write; default: only print")
    computing.add_argument("--json", action="store_true", help="print JSON instead of a table")
    computing.add_argument("--quiet", action="store_true", help="show no progress")
    # Arguments of the reader are more than are listed here, so what follows the command is read by hand.
    known, rest = parser.parse_known_args(sys.argv[1:])
    if known.command is None:
        if rest:
            parser.error(f"unknown arguments: {' '.join(rest)}")
        parser.print_help()
        return 0
    command = explaining if known.command == "explain" else computing
    words = [word for word in sys.argv[sys.argv.index(known.command) + 1 :] if word not in ("--json", "--quiet")]
    stores = list(itertools.takewhile(lambda word: not word.startswith("--"), words))
    if not stores:
        command.error("expected a store before the options")
    path = stores if len(stores) > 1 else stores[0]
    try:
        options = _options(words[len(stores) :], _OF_STATISTICS if command is computing else {})
    except ValueError as error:
        command.error(str(error))
    try:
        if command is explaining:
            found = explained(path=path, json=known.json, **options)
        else:
            found = _computed(path, options, known.json, not known.quiet)
    except (ValueError, TypeError, IndexError, RuntimeError, OSError) as error:
        print(f"python -m dali_zarr {known.command}: {error}", file=sys.stderr)
        return 1
    if found is not None:
        print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
