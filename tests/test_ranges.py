"""Ranges: ``0:24`` on the command line, and slices of segments in Python, mean what Python's slices mean."""

from __future__ import annotations

import argparse
import functools
import json

import dali_zarr
import numpy as np
import pytest
from dali_zarr import __main__ as main
from dali_zarr._commands import words
from dali_zarr.torch import Loader
from support.command_line import command
from support.stores import write_array


@pytest.fixture
def run(monkeypatch, capsys):
    return functools.partial(command, monkeypatch, capsys)


def options(*given: str):
    stores, found = words.parsed(given, words.of_reader(), exit_on_error=False)
    assert stores == []
    return found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["--segments", "0:3"], {"segments": slice(0, 3)}),
        (["--segments", "180:"], {"segments": slice(180, None)}),
        (["--segments", "-3:"], {"segments": slice(-3, None)}),
        (["--segments", "0:3", "7", "10:20:5"], {"segments": [0, 1, 2, 7, 10, 15]}),
        (["--segments", "4"], {"segments": 4}),
        (["--breaks", "24:97:24", "100"], {"breaks": [24, 48, 72, 96, 100]}),
        (["--breaks", "meta/episode_ends"], {"breaks": "meta/episode_ends"}),
        (["--offsets", "0:25:6"], {"offsets": [0, 6, 12, 18, 24]}),
        (["--isel", "time=0:24", "level=3"], {"isel": {"time": slice(0, 24), "level": 3}}),
        (["--isel", "time=::2"], {"isel": {"time": slice(None, None, 2)}}),
        (["--isel", "time=0..24..2"], {"isel": {"time": slice(0, 24, 2)}}),
        (["--pick", "level=0:3,7"], {"pick": "level=0,1,2,7"}),
        (["--pick", "level=0:2|3:5", "member=1"], {"pick": ["level=0,1|3,4", "member=1"]}),
        # Labels may have colons.
        (["--sel", "time=2020-01-01T00:00"], {"sel": {"time": "2020-01-01T00:00"}}),
    ],
)
def test_words(given, found):
    assert options(*given) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--segments", "0:3", "7:"], "--segments: expected FIRST:END or FIRST:END:STEP"),
        (["--offsets", ":3"], "--offsets: expected FIRST:END"),
        (["--breaks", "3:3"], "--breaks: expected a range with numbers in it, but '3:3' has none; its end isn't in it"),
        (["--pick", "level=-2:2"], "--pick: expected FIRST:END or FIRST:END:STEP, with both on one side of 0"),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(argparse.ArgumentError, match=message):
        options(*given)


@pytest.mark.parametrize(
    ("given", "stores", "found"),
    [
        (["a", "-b", "--arrays", "-c", "d"], ["a", "-b"], {"arrays": ["-c", "d"]}),
        (["--fill_value", "-inf"], [], {"fill_value": "-inf"}),
        (["a", "--offsets", "-6", "-1e1", "--random-shuffle"], ["a"], {"offsets": [-6, -10.0], "random_shuffle": True}),
        (["a", "--arrays=b", "c", "--isel=x=-1"], ["a"], {"arrays": ["b", "c"], "isel": {"x": -1}}),
        (["a b", "--arrays", " c", "", "--method="], ["a b"], {"arrays": [" c", ""], "method": ""}),
    ],
)
def test_values_that_look_like_something_else(given, stores, found):
    """Only two dashes begin an argument."""
    assert words.parsed(given, words.of_reader(), exit_on_error=False) == (stores, found)


@pytest.mark.parametrize("word", ["--batch_sise", "--batch size", "--batch-sise=3", "--batch_siz e=3"])
def test_arguments_that_are_not_there(run, word):
    status, _, err = run("explain", "a", word, "3")
    assert status == 2 and "there is no such argument; did you mean --batch_size?" in err


@pytest.mark.parametrize("words", [["a", "b", "--arrays", "c"], ["a", "--json", "b", "--arrays", "--quiet", "c"]])
def test_flags_may_be_anywhere(monkeypatch, words, run):
    """They are no values, and end none."""
    told = []
    monkeypatch.setattr(main, "_run", lambda command, stores, options, *flags: told.append((command, stores, options)) or 0)
    assert run("check", *words)[0] == 0
    assert told == [("check", ["a", "b"], {"arrays": "c"})]


@pytest.fixture
def episodes(tmp_path):
    write_array(tmp_path, "a", np.arange(40.0).reshape(20, 2))
    write_array(tmp_path, "ends", np.array([3, 8, 12, 20]))
    return tmp_path


@pytest.mark.parametrize("chosen", [slice(1, 3), slice(2, None), slice(None, -1), slice(None, None, 2)], ids=str)
def test_slices_of_segments(episodes, chosen):
    """Of the loader, explain and statistics, and on the command line: as the list of their numbers."""
    told = {"path": episodes, "arrays": ["a"], "breaks": "ends"}
    numbers = list(range(4))[chosen]
    assert dali_zarr.explain(**told, segments=chosen) == dali_zarr.explain(**told, segments=numbers)
    assert dali_zarr.statistics(**told, segments=chosen) == dali_zarr.statistics(**told, segments=numbers)
    loader = Loader(**told, segments=chosen, device="cpu", batch_size=4)
    assert sorted({int(n) for batch in loader for n in batch.index[:, 0]}) == numbers


def test_commands(episodes, run):
    for given in ("0:3", "1:", "0:2 3"):
        word = ["--arrays", "a", "--breaks", "ends", "--segments", *given.split()]
        numbers = {"0:3": [0, 1, 2], "1:": [1, 2, 3], "0:2 3": [0, 1, 3]}[given]
        expected = dali_zarr.statistics(episodes, arrays=["a"], breaks="ends", segments=numbers)
        _, out, _ = run("statistics", episodes, *word, "--quiet", "--json")
        assert json.loads(out) == expected
        _, out, _ = run("explain", episodes, *word, "--json")
        assert json.loads(out)["segments"]["read"] == len(numbers)


def test_what_slices_refuse(episodes, tmp_path):
    told = {"arrays": ["a"], "breaks": "ends", "segments": slice(1, None)}
    with pytest.raises(ValueError, match="segments: expected at least one segment, but slice\\(9, None, None\\) has none"):
        dali_zarr.explain(path=episodes, **{**told, "segments": slice(9, None)})
    with pytest.raises(ValueError, match="segments: .*concat='samples' numbers the segments of each store; give one"):
        dali_zarr.explain(path=[episodes, episodes], concat="samples", **told)
    with pytest.raises(TypeError, match="breaks: expected integers or names, found slice"):
        dali_zarr.explain(path=episodes, arrays=["a"], breaks=slice(3))
