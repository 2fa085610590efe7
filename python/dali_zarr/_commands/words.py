"""The arguments of a command: ``--name value ...``.

argparse finds the arguments and their words. What the words mean is here, since it depends on the argument and on all of
its words: ``DIM=FIRST..LAST``, ``OUTPUT=ARRAY``, ranges, or JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .. import _dali
from .._arguments import by_name, names, values
from .._hints import did_you_mean

# Arguments that may be long lists of whole numbers. Ranges may be written as Python's slices: 0:24 or 0:240:24.
_RANGES = ("segments", "breaks", "offsets")
_RANGE = re.compile(r"(-?\d+)?:(-?\d+)?(?::(-?\d+)?)?")
# Arguments of rechunk that are text.
_TEXT = ("chunks", "shards", "codec", "memory", "scheduler", "for", "target_options")


def _is_text(name: str) -> bool:
    """Returns whether an argument's values are text, whatever they look like."""
    if name in ("dtype", "device", "sel", "isel", "method", "output", "weights", *by_name.OF_DIMS, *_TEXT) or name in values.BYTES:
        return True
    return name in names.of_type("STRING", "_STRING_VEC") and name != "storage_options"


def of_reader() -> dict[str, bool]:
    """Returns the reader's arguments that may be given beside the store, and for each whether it is a bool."""
    types, schema = _dali.module("types"), _dali.schema()
    given: set[str] = set(schema.GetArgumentNames()) - names.DALIS - {"path"}
    others = dict.fromkeys((*names.SELECTION, "batch_size", "device"), False)
    return others | {name: schema.GetArgumentType(name) == types.BOOL for name in given}


class _Argument(argparse.Action):
    """An argument that takes any number of words, which are converted together. ``const``: what it is without words; None: it
    needs some."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None,
    ) -> None:
        name = self.dest
        if name in namespace:
            raise argparse.ArgumentError(None, f"--{name}: given twice; give all its values at once, as --{name} A B")
        if not values and self.const is None:
            raise argparse.ArgumentError(None, f"--{name}: expected a value after it")
        try:
            found = _converted(name, values)
        except ValueError as error:
            raise argparse.ArgumentError(None, str(error)) from None
        setattr(namespace, name, self.const if not found else found[0] if len(found) == 1 else found)


def parsed(words: Sequence[str], known: Mapping[str, bool], **how: Any) -> tuple[list[str], dict[str, Any]]:
    """Returns the stores, and the arguments that follow them as ``--name value ...``. Several values are a list, and no value
    stands for true.

    The process ends with a message if a name isn't known or is given twice, or if a value is missing or can't be read.

    Args:
        words: The words after the command.
        known: The names of arguments, and for each whether it is a bool.
        how: Arguments of the parser: what it tells with an error.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, **how)
    parser.add_argument("store", nargs="*", type=_unmarked)
    for name, is_bool in known.items():
        spellings = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
        parser.add_argument(
            *spellings, dest=name, nargs="*", type=_unmarked, action=_Argument, const=True if is_bool else None,
            default=argparse.SUPPRESS,
        )
    found, rest = parser.parse_known_args(list(_separated(words)))
    if rest:
        parser.error(_unknown(rest[0].removeprefix("--"), known))
    return found.store, {name: value for name, value in vars(found).items() if name != "store"}


def _separated(words: Iterable[str]) -> Iterator[str]:
    """Yields names and values apart. Values are marked by a space before them, so that the parser takes none for a name (-3:,
    -inf). It takes what has a space for a value, so names have other ones, which don't break lines."""
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "=", word)
        if name:
            yield name.replace(" ", "\N{NO-BREAK SPACE}")
        if equals:
            yield f" {value}"


def _unmarked(word: str) -> str:
    return word.removeprefix(" ")


def _unknown(word: str, known: Mapping[str, bool]) -> str:
    """Returns the message for ``--word``, which isn't known."""
    name = word.replace("-", "_")
    if name == "path":
        return "--path: the stores are given already, as STORE before the options; leave --path out"
    if name in of_reader():
        others = ", ".join("--" + other for other in sorted(known))
        return f"--{word}: this command has no such argument; this command takes {others}"
    otherwise = "see help(fn.zarr_reader) for the arguments that there are"
    return f"--{word}: there is no such argument; {did_you_mean(name, known, otherwise, prefix='--')}"


def _converted(name: str, words: Sequence[str]) -> list[Any]:
    """Returns an argument's values, given its words.

    Raises:
        ValueError: A word can't be read.
    """
    found = [_value(name, word) for word in words]
    if name in ("sel", "isel"):
        return [_selection(name, found)] if found else []
    if name in _RANGES:
        return _ranges(name, found)
    if name == "pick":
        picks = [_picked(word) for word in found]
        # One by output stays in its list: a dictionary alone would be the form of Python, which has lists of numbers.
        return [picks] if any(isinstance(pick, dict) for pick in picks) else picks
    if name == "arrays":
        return _arrays([part for word in found for part in ([word] if names.is_location(word) else word.split(","))])
    if name == "storage_options":
        return _options(found)
    if name in by_name.PER_DIM:
        found = [part for word in found for part in _dims_of(word)]
    return _by_name(name, found) if name in by_name.PER_DIM | by_name.PER_OUTPUT else found


def _dims_of(word: Any) -> list[Any]:
    """Converts ``DIM=VALUE,DIM=VALUE`` to ``DIM=VALUE`` words; returns any other word as it is, such as
    ``OUTPUT=DIM=VALUE,DIM=VALUE``."""
    parts = word.split(",") if isinstance(word, str) else []
    return parts if len(parts) > 1 and all(part.count("=") == 1 for part in parts) else [word]


def _options(words: list[Any]) -> list[Any]:
    """Converts ``NAME=VALUE`` words to a single dictionary, whose names are checked; returns other words as they are, which the
    reader refuses."""
    entries = [str(word).partition("=") for word in words]
    is_named = bool(entries) and all(name and equals for name, equals, _ in entries)
    return [{name: value for name, _, value in entries}] if is_named else words


def _value(name: str, text: str) -> Any:
    """Converts a word to a value: anything that is JSON, such as a number or true; one of DALI's types; else the text
    itself."""
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


def _arrays(words: list[str]) -> list[Any]:
    """Returns names of arrays as they are, or ``OUTPUT=ARRAY`` as a single dictionary. A word that begins like a
    location has no output, even if it contains "="."""
    entries = [word.partition("=") for word in words]
    named = [bool(equals) and not names.is_location(os.path.expanduser(output)) for output, equals, _ in entries]
    if not any(named):
        return words
    if not all(named):
        found = words[named.index(False)]
        raise ValueError(f"--arrays: expected OUTPUT=ARRAY for each, since some have outputs, but found {found!r}")
    by_output = {output: array for output, _, array in entries}
    if len(by_output) < len(words) or not all(by_output) or not all(by_output.values()):
        raise ValueError(f"--arrays: expected OUTPUT=ARRAY, another output for each, but found {' '.join(words)!r}")
    return [by_output]


def _by_name(name: str, words: list[Any]) -> list[Any]:
    """Converts ``NAME=VALUE``, ``NAME=A,B`` or, by output and dimension, ``NAME=DIM=VALUE,DIM=VALUE`` to a single
    dictionary; returns other words as they are."""
    entries = [word.partition("=") if isinstance(word, str) else ("", "", "") for word in words]
    # Any other word of mean and stddev is a file, whose name may contain "=".
    is_file = name in ("mean", "stddev") and not all(_is_number(part) for _, _, text in entries for part in text.split(","))
    if is_file or not any(equals for _, equals, _ in entries):
        return words
    found = {key: _named(name, text) for key, equals, text in entries if key and equals and text}
    if len(found) < len(words):
        kind = "DIM=NUMBER or OUTPUT=DIM=NUMBER,DIM=NUMBER" if name in by_name.PER_DIM else "OUTPUT=VALUE"
        raise ValueError(f"--{name}: expected {kind}, another name for each, but found {' '.join(map(str, words))!r}")
    return [found]


def _named(name: str, text: str) -> Any:
    if "=" in text:
        entries = [part.partition("=") for part in text.split(",")]
        return {dim: _value(name, value) for dim, _, value in entries}
    found = [_value(name, part) for part in text.split(",")]
    return found[0] if len(found) == 1 else found


def _slice(text: Any) -> slice | None:
    """Converts ``FIRST:END`` or ``FIRST:END:STEP`` to a slice; each number may be left out. Returns None for anything
    else."""
    match = _RANGE.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else slice(*(None if part is None else int(part) for part in match.groups()))


def _ranges(name: str, words: list[Any]) -> list[Any]:
    """Replaces ranges by their numbers. If segments are a single range, it becomes a slice, and may be open."""
    found: list[Any] = []
    for word in words:
        given = _slice(word)
        if given is None:
            found.append(word)
        elif name == "segments" and len(words) == 1:
            found.append(given)
        else:
            found += _numbers(name, word, given)
    return found


def _numbers(name: str, word: str, given: slice) -> list[int]:
    if given.start is None or given.stop is None or given.step == 0 or (given.start < 0) != (given.stop < 0):
        raise ValueError(f"--{name}: expected FIRST:END or FIRST:END:STEP, with both on one side of 0, but found {word!r}")
    found = list(range(given.start, given.stop, given.step or 1))
    if not found:
        raise ValueError(f"--{name}: expected a range with numbers in it, but {word!r} has none; its end isn't in it")
    return found


def _picked(word: str) -> str | dict[str, str]:
    """Returns ``DIM=0:3,7`` with its ranges written out; ``OUTPUT=DIM=0:3,7`` as a dictionary."""
    dim, equals, text = word.rpartition("=")
    output, of_output, dim = dim.rpartition("=")
    lists = [[one for part in of.split(",") for one in _of_part(part)] for of in text.split("|")]
    found = dim + equals + "|".join(",".join(one) for one in lists)
    return {output: found} if of_output else found


def _of_part(part: str) -> list[str]:
    given = _slice(part)
    return [part] if given is None else [str(number) for number in _numbers("pick", part, given)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _selection(name: str, words: list[str]) -> dict[str, Any]:
    """Converts ``DIM=LABEL``, ``DIM=A,B`` or ``DIM=FIRST..LAST`` (``..STEP``) to a dictionary; for ``isel`` also
    ``DIM=FIRST:END``."""
    found: dict[str, Any] = {}
    for word in words:
        dim, equals, text = word.partition("=")
        if not equals or not text:
            raise ValueError(f"--{name}: expected DIM=LABEL, DIM=LABEL,LABEL or DIM=FIRST..LAST, found {word!r}")
        positions = _slice(text) if name == "isel" else None
        if positions is not None:
            found[dim] = positions
        elif ".." in text:
            bounds = [_label(part) if part else None for part in text.split("..")]
            found[dim] = slice(*bounds)
        else:
            labels = [_label(part) for part in text.split(",")]
            found[dim] = labels[0] if len(labels) == 1 else labels
    return found


def _label(text: str) -> Any:
    """Returns a number, if the text is one, else the text. Years are numbers here; they are looked up as dates
    later."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text
