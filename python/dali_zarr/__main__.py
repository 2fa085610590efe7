"""``dali-zarr``, or ``python -m dali_zarr``: what is in a store, whether it is sound, what a reader would do and how fast it is,
what statistics the values have; and how the store is rechunked."""

import json
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from . import _native
from ._commands import bench, check, info, owned, parser, rechunk, words
from ._hints import did_you_mean
from ._inspect import explained
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


def main() -> int:
    """Parses the command line; returns the exit status."""
    prog = "dali-zarr" if os.path.basename(sys.argv[0]) == "dali-zarr" else "python -m dali_zarr"
    top, commands = parser.made(prog)
    first = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if first is not None and first not in commands:
        otherwise = f"the commands are {', '.join(commands)}"
        top.error(f"there is no command {first!r}; {did_you_mean(first, commands, otherwise)}")
    # The parser doesn't know the reader's arguments, which need DALI: so the words after the command are parsed again.
    known, rest = top.parse_known_args(sys.argv[1:])
    if known.command is None:
        if rest:
            top.error(f"unknown arguments: {' '.join(rest)}")
        top.print_help()
        return 0
    command = commands[known.command]
    place = sys.argv.index(known.command, 1)
    if place > 1:
        top.error(f"expected arguments after {known.command}, but found {' '.join(sys.argv[1:place])} before it")
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
        # DALI adds where the pipeline was made, which is in this package.
        message = str(error).partition("\n\nCritical error when building pipeline")[0].strip()
        print(f"{prog} {known.command}: {message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # zarr-python may have been about to wait for a coroutine. Python would warn of it at its end.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        print(f"{prog} {known.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
