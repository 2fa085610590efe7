"""``dali-zarr``, or ``python -m dali_zarr``: what is in a store, whether it is sound, what a reader would do and how fast it is,
what statistics the values have; and how the store is rechunked."""

import argparse
import json
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from . import DALI_VERSIONS, __version__, _native
from ._commands import bench, check, info, owned, rechunk, words
from ._inspect import explained
from ._rechunk.codecs import NAMES as CODECS
from ._selection import select
from ._statistics.compute import statistics

_FLAGS = ("--json", "--quiet")
# Arguments of statistics beside the reader's, and for each whether it is a bool.
_OF_STATISTICS = {"output": False, "weights": False, "channels": False, "device_id": False}


def _computed(path: Any, options: Mapping[str, Any], as_json: bool, quiet: bool) -> int:
    """Prints statistics and where they were written, in the process of rank 0."""
    found = statistics(path, progress=not quiet, **options)
    if os.environ.get("RANK", "0") == "0":
        wrote = f"\nwrote {options['output']}" if "output" in options else ""
        print(json.dumps(found, indent=1) if as_json else f"{found}{wrote}")
    return 0


def _known(command: str) -> dict[str, bool]:
    """Returns the arguments that a command takes beside the store, and for each whether it is a bool."""
    known = words.of_reader()
    match command:
        case "info":
            return {name: known[name] for name in ("arrays", *select.NAMES, *info.ARGUMENTS)}
        case "check":
            return {name: known[name] for name in ("arrays", *select.NAMES, *check.RESOURCES)}
        case "bench":
            return known | bench.ARGUMENTS
        case "statistics":
            return known | _OF_STATISTICS
        case "rechunk":
            return dict(rechunk.ARGUMENTS)
        case _:
            return known | {"drop_last": True, "order": False}


def _run(command: str, stores: list[str], options: dict[str, Any], as_json: bool, quiet: bool) -> int:
    """Runs a command; returns the exit status."""
    path = stores if len(stores) > 1 else stores[0] if stores else None
    match command:
        case "info":
            return info.run(stores, options, as_json)
        case "check":
            return check.run(stores, options, as_json, quiet)
        case "bench":
            return bench.run(path, options, as_json, quiet)
        case "statistics":
            return _computed(path, options, as_json, quiet)
        case "rechunk":
            return rechunk.run_command(stores, options, as_json, quiet)
        case _:
            print(explained(path=path, json=as_json, **options))
            return 0


def _parser(prog: str) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    parser = argparse.ArgumentParser(prog=prog, description="NVIDIA DALI operator for Zarr arrays")
    version = f"dali_zarr {__version__}, for NVIDIA DALI {', '.join(DALI_VERSIONS)}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command")

    def command(
        name: str, summary: str, options: str, description: str, epilog: str, stores: str = "[STORE ...]",
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, allow_abbrev=False, help=summary, description=description, epilog=epilog,
            usage=f"{prog} {name} {stores} {options}[--json] [--ARGUMENT VALUE ...] ...",
        )
        made.add_argument(
            "store", nargs="*",
            help="directories or URLs; several are joined along the first of --dims; none where --arrays have stores of their own",
        )
        made.add_argument("--json", action="store_true", help="print JSON")
        return made

    informing = command(
        "info", "say what is in a store", "",
        "Tells the arrays of a store: dimensions, chunks, codecs, packing, sizes, what a GPU decodes, and a call that reads them. "
        "Several stores are told each, and arrays with stores of their own (--arrays image=./a.zarr/0 label=./b.zarr/0) together. "
        "Reads metadata only.",
        f"Of fn.zarr_reader's arguments these may be given: {', '.join(('arrays', *select.NAMES, *info.ARGUMENTS))}.",
    )
    explaining = command(
        "explain", "say what a reader would do, without reading data", "",
        "Says what fn.zarr_reader would do: samples, outputs, how often chunks are read, where they are decoded, what memory "
        "allows, what would make it faster. Reads metadata only.",
        "All arguments of fn.zarr_reader may be given, as --batch_size 16 --device gpu --arrays t2m z --random_shuffle "
        "--pick level=0,5 --sel time=2015-01..2016 level=500,850; see help(fn.zarr_reader).",
    )
    checking = command(
        "check", "decode every chunk, and name those that are damaged", "[--quiet] ",
        "Decodes every chunk on the CPU, one after the other, and names those that can't be read. Several stores are checked "
        "each. The exit status is 1 if there are any, 2 for wrong arguments.",
        f"Of fn.zarr_reader's arguments these may be given: {', '.join(('arrays', *select.NAMES, *check.RESOURCES))}. With sel or "
        "isel the chunks from the first selected element to the last along that dimension are checked.",
    )
    measuring = command(
        "bench", "measure what a store gives on this machine", "[--seconds 10] [--quiet] ",
        "Reads batches and drops them, for --seconds 10: how fast they come, what bounds that, and which chunks would be faster. "
        "What the operating system has in its page cache comes faster than the first time.",
        "All arguments of fn.zarr_reader may be given, as of explain, with --device gpu and --device_id too.",
    )
    computing = command(
        "statistics", "compute mean, stddev, min, max and share of NaN", "--output FILE [--quiet] ",
        "Computes mean, standard deviation, minimum, maximum and share of NaN of each array and channel in one pass, and writes "
        "them for mean and stddev of readers. Under torchrun each process reads its shard.",
        "The arguments of dali_zarr.statistics may be given, as --arrays t2m z --offsets 6 --weights cos_latitude --device gpu "
        "--channels level --sel time=2015..2017 --breaks meta/episode_ends --segments 0:180; see help(dali_zarr.statistics).",
    )
    computing.add_argument(
        "--output", help="the file to write: a Zarr group if its name ends in .zarr, else JSON; default: only print",
    )
    rechunking = command(
        "rechunk", "write a store with other chunks, shards, codecs or types", "[--verify] [--quiet] ",
        "Writes TARGET with the arrays of SOURCE in other chunks (--chunks time=1,level=1, the rest whole), --shards, --codec, "
        "--format and --dtype, or in those that suit a reader (--for). Both are folders or URLs. After an interruption the same "
        "command goes on. "
        f"--codec takes {CODECS}, each with :LEVEL.",
        f"These may be given: {', '.join('--' + name for name in rechunk.ARGUMENTS)}. --for takes arguments of fn.zarr_reader as "
        '"window=2, offsets=[0, 6], batch_size=16"; --memory bytes such as 2GiB, with --scheduler of each worker.',
        "SOURCE TARGET",
    )
    for made in (checking, measuring, computing, rechunking):
        made.add_argument("--quiet", action="store_true", help="show no progress")
    made_commands = (informing, explaining, checking, measuring, computing, rechunking)
    return parser, {made.prog.rpartition(" ")[2]: made for made in made_commands}


def main() -> int:
    """Parses the command line; returns the exit status."""
    prog = "dali-zarr" if os.path.basename(sys.argv[0]) == "dali-zarr" else "python -m dali_zarr"
    parser, commands = _parser(prog)
    # The parser doesn't know the reader's arguments, which need DALI: so the words after the command are parsed again.
    known, rest = parser.parse_known_args(sys.argv[1:])
    if known.command is None:
        if rest:
            parser.error(f"unknown arguments: {' '.join(rest)}")
        parser.print_help()
        return 0
    command = commands[known.command]
    place = sys.argv.index(known.command, 1)
    if place > 1:
        parser.error(f"expected arguments after {known.command}, but found {' '.join(sys.argv[1:place])} before it")
    given = [word for word in sys.argv[place + 1 :] if word not in _FLAGS]
    stores, options = words.parsed(given, _known(known.command), prog=command.prog, usage=command.usage)
    if not stores and not owned.has_all(options.get("arrays")):
        command.error("expected a store before the options, or --arrays OUTPUT=LOCATION ... that all have stores of their own")
    try:
        quiet = getattr(known, "quiet", True)
        if known.command == "rechunk":
            # rechunk is all Python. When it is interrupted, it records what it has done.
            status = _run(known.command, stores, options, known.json, quiet)
        else:
            status = _native.interruptible(lambda: _run(known.command, stores, options, known.json, quiet))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The program that reads the output (`| head`) has ended. Python mustn't flush the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, TypeError, IndexError, RuntimeError, MemoryError, ImportError, OSError) as error:
        print(f"{prog} {known.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # zarr-python may have been about to wait for a coroutine. Python would warn of it at its end.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        print(f"{prog} {known.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
