"""What ``--help`` of the commands says. Which words an argument takes is in :mod:`.words`."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import DALI_VERSIONS, __version__
from .._rechunk.codecs import NAMES as CODECS

_STORE = "a directory or a URL; several stores are joined along the first of --dims"
_ARRAYS = ("--arrays NAME ...", "names of arrays, or OUTPUT=NAME; default: the only one")
_SELECTION = ("--sel, --isel DIM=FIRST..LAST ...", "select labels or positions, such as time=2015..2017 level=500,850")
_DEVICE = ("--device cpu|gpu", "where batches are delivered; default: cpu")
_BATCH = ("--batch_size N", "samples in a batch; default: 1")
_STORAGE = ("--storage_options NAME=VALUE ...", "options of remote stores, such as skip_signature=true for public buckets")
_READERS = "All other arguments of fn.zarr_reader may be given too, such as --window time=4 --random_shuffle."


@dataclass(frozen=True)
class _Command:
    """The help of a command. ``options`` are shown; :data:`_FLAGS` are parsed here too."""

    summary: str
    description: str
    options: tuple[tuple[str, str], ...]
    more: str = ""
    stores: str = "STORE [STORE ...]"
    flags: tuple[str, ...] = ("json",)
    positionals: Mapping[str, str] = field(default_factory=lambda: {"STORE": _STORE})


_FLAGS = {"json": "print JSON", "quiet": "show no progress"}
_COMMANDS = {
    "info": _Command(
        "say what is in a store",
        "Lists the arrays of a store: dimensions, chunks, codecs, packing, sizes, whether a GPU decodes them, and a call that "
        "reads them. Each of several stores is described on its own. Reads metadata only.",
        (_ARRAYS, _SELECTION, ("--window, --dims, --offsets", "how samples are cut, for the call that is suggested"), _STORAGE),
    ),
    "explain": _Command(
        "say what a reader would do, without reading data",
        "Says what fn.zarr_reader would do: samples, outputs, how often chunks are read, where they are decoded, what memory "
        "allows, what would make it faster. Reads metadata only.",
        (_ARRAYS, _SELECTION, _BATCH, _DEVICE, ("--drop_last", "leave out a last batch that isn't full"), _STORAGE), _READERS,
    ),
    "check": _Command(
        "decode every chunk, and name those that are damaged",
        "Decodes every chunk on the CPU and names each one that can't be read. The exit status is 1 if there is one, and 2 for "
        "wrong arguments.",
        (
            _ARRAYS, ("--sel, --isel DIM=FIRST..LAST ...", "check the chunks from the first selected element to the last"),
            ("--host_memory_limit, --decode_threads, --io_threads,", ""),
            ("--io_concurrency, --io, --use_o_direct", "as of fn.zarr_reader"),
            _STORAGE,
        ),
        flags=("json", "quiet"),
    ),
    "bench": _Command(
        "measure what a store gives on this machine",
        "Reads batches and drops them: how fast they come, what limits that, and which chunks would be faster. Data that is in the "
        "page cache of the operating system comes faster than the first time.",
        (
            ("--seconds N", "how long to measure; default: 10"), _ARRAYS, _SELECTION,
            ("--batch_size N", "samples in a batch; default: 16"), _DEVICE, ("--device_id N", "the number of the GPU; default: 0"),
            _STORAGE,
        ),
        _READERS, flags=("json", "quiet"),
    ),
    "statistics": _Command(
        "compute mean, stddev, min, max and share of NaN",
        "Computes mean, standard deviation, minimum, maximum and share of NaN of each array and channel in one pass. Readers take "
        "the file as --mean and --stddev. Under torchrun each process reads a part.",
        (
            ("--output FILE", "where to write them: a Zarr group if the name ends in .zarr, else JSON; default: only print"),
            _ARRAYS, _SELECTION, ("--offsets N ...", "also of differences x(t + N) - x(t)"),
            ("--channels DIM ...", "dimensions of which each element has its own numbers"),
            ("--weights cos_latitude", "weight rows of a grid by their area"),
            ("--breaks NAME, --segments FIRST:END", "which episodes count"), _DEVICE, _STORAGE,
        ),
        "See help(dali_zarr.statistics).", flags=("json", "quiet"),
    ),
    "rechunk": _Command(
        "write a store with other chunks, shards, codecs or types",
        "Copies the arrays of SOURCE to TARGET in another form. After an interruption the same command goes on.",
        (
            ("--chunks DIM=N,DIM=N", "lengths of chunks; other dimensions aren't divided; default: as in SOURCE"),
            ("--shards DIM=N,DIM=N", "lengths of shards (Zarr v3)"),
            ("--codec NAME[:LEVEL]", f"{CODECS}; default: the source's"),
            ("--for ARGUMENTS", 'choose all these for a reader such as "window=2, offsets=[0, 6], batch_size=16"'),
            ("--format 2|3", "the Zarr format"), ("--dtype TYPE", "the type of numbers, such as float16"),
            ("--arrays NAME ...", "arrays that are copied, with their coordinates; default: all"), _SELECTION,
            ("--method, --tolerance", "how labels of --sel are looked up, as in xarray"),
            ("--verify", "compare all values with the source at the end"),
            ("--memory SIZE", "memory of all tasks, such as 2GiB; with --scheduler of each worker"),
            ("--workers N", "tasks at a time; default: the number of cores"),
            ("--scheduler ADDRESS", "a dask.distributed cluster, such as tcp://HOST:8786"),
            ("--storage_options, --target_options NAME=VALUE ...", "options of remote stores"),
        ),
        "", "SOURCE TARGET", ("json", "quiet"),
        {"SOURCE": "the store to copy: a directory, an archive or a URL", "TARGET": "the store to write: a directory or a URL"},
    ),
}


class _Help(argparse.HelpFormatter):
    def _format_usage(self, usage: str | None, actions: object, groups: object, prefix: str | None) -> str:
        return textwrap.fill(f"usage: {usage}", self._width, subsequent_indent=" " * 4) + "\n\n"


def made(prog: str) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Returns the parser of the command line, and those of the commands by name."""
    parser = argparse.ArgumentParser(prog=prog, description="Looks at Zarr stores and prepares them for fn.zarr_reader.")
    version = f"dali_zarr {__version__}, for NVIDIA DALI {', '.join(DALI_VERSIONS)}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    return parser, {name: _made(commands, prog, name, command) for name, command in _COMMANDS.items()}


def _made(commands: Any, prog: str, name: str, command: _Command) -> argparse.ArgumentParser:
    found = commands.add_parser(
        name, allow_abbrev=False, help=command.summary, description=command.description, add_help=False, formatter_class=_Help,
        usage=f"{prog} {name} {command.stores} [--ARGUMENT VALUE ...] ...",
    )
    found.add_argument("store", nargs="*", help=argparse.SUPPRESS)
    found.add_argument("-h", "--help", action=_ShowHelp, nargs=0, help=argparse.SUPPRESS)
    for flag in command.flags:
        found.add_argument(f"--{flag}", action="store_true", help=argparse.SUPPRESS)
    return found


class _ShowHelp(argparse.Action):
    """Prints the help of a command: argparse would fold the table of arguments into a paragraph."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option_string: str | None = None,
    ) -> None:
        print(_shown(parser, _COMMANDS[parser.prog.rpartition(" ")[2]]))
        parser.exit()


def _shown(parser: argparse.ArgumentParser, command: _Command) -> str:
    """Returns the help of a command, as wide as the terminal."""
    width = max(shutil.get_terminal_size().columns - 2, 40)
    rows = [*command.positionals.items(), *command.options, *((f"--{flag}", _FLAGS[flag]) for flag in command.flags)]
    lines = [parser.format_usage().rstrip(), "", textwrap.fill(command.description, width), ""]
    for names, text in rows:
        begin = f"  {names:<24}"
        text = textwrap.fill(text, width, initial_indent=" " * 28, subsequent_indent=" " * 28)
        lines += [f"{begin}  {text.lstrip()}"] if len(begin) <= 26 else [begin.rstrip(), *([text] if text else [])]
    return "\n".join([*lines, *(["", textwrap.fill(command.more, width)] if command.more else [])])
