"""Where tables of starts come from, what is refused, and the memory that they take."""

from __future__ import annotations

import gc
import os
import re
import struct

import numpy as np
import pytest
from support import processes
from support.pipelines import build, same
from support.starts import expected, random_table, read, reader, write


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("starts"))


WRONG = {
    "step": ({"step": [2]}, "starts, step: "), "random_crop": ({"random_crop": ["t"]}, "starts, random_crop: "),
    "two columns": ({"starts": np.zeros((4, 2), int)}, "a column for each of dims \\(t\\), but the table has 2"),
    "no row": ({"starts": np.zeros((0, 1), int)}, "at least one row"),
    "all out": ({"starts": np.array([70, -80])}, "all 2 rows reach beyond"),
    "far out": ({"starts": np.array([3, 1 << 60]), "out_of_bounds_policy": "pad"}, "row 1 starts at 1152921504606846976"),
    "least": ({"starts": np.array([-(1 << 63)]), "out_of_bounds_policy": "error"}, "row 0 starts at -9223372036854775808"),
    "floats": ({"starts": np.zeros(4)}, "an array of whole numbers"), "bools": ({"starts": np.zeros(4, bool)}, "whole numbers"),
    "uint64": ({"starts": np.zeros(4, "uint64")}, "whole numbers that int64 can hold"),
    "three dimensions": ({"starts": np.zeros((4, 1, 1), int)}, "of the shape \\(4, 1, 1\\)"),
    "no file": ({"starts": "nowhere.npy"}, "nowhere.npy"), "no array": ({"starts": "./nowhere.zarr"}, "nowhere.zarr"),
    "remote npy": ({"starts": "s3://bucket/rows.npy"}, "a .npy file on a local disk"),
    "gone": ({"starts": "table:1:1"}, "isn't in this process's memory"),
    "segments": ({"breaks": [6], "segments": [0]}, "starts, segments: starts says where"),
    "pads": ({"pad_before": [1], "out_of_bounds_policy": "edge"}, "starts, pad_before: starts says where"),
    "negative": ({"weights": [1.0, 2.0, -3.0, -4.0]}, "sample 2 is -3"), "nan": ({"weights": [1, np.nan, 1, 1]}, "sample 1 is NaN"),
    "zeros": ({"weights": [0, 0, 0, 0]}, "all 4 are 0"), "few": ({"weights": [1, 1]}, "each of the 4 samples, but found 2"),
    "too many": ({"weights": [1, 0, 1, 1], "replacement": False}, "only 3 have a positive weight"),
    "shuffled": ({"weights": [1, 1, 1, 1], "random_shuffle": True}, "contradict each other"),
    "num_samples": ({"num_samples": 3}, "num_samples: expected weights too"),
    "replacement": ({"replacement": False}, "replacement: expected weights too"),
    "no samples": ({"weights": [1, 1, 1, 1], "num_samples": 0}, "num_samples: expected a whole number of at least 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_contradictions_are_errors(path, case):
    args, message = WRONG[case]
    given = {"starts": np.array([1, 5, 9, 2])} | args
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        build(path=path, arrays=["a"], dims=["t"], window=[2], **given)


def damaged(table):
    """Files that aren't tables, and what is said of them."""
    good, whole = b"\x93NUMPY\x01\x00", table.tobytes()
    header = "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n"

    def made(descr="<i8", fortran=False, shape="(30, 2)", data=whole):
        text = (header % (descr, fortran, shape)).encode()
        return good + struct.pack("<H", len(text)) + text + data

    yield b"", "ends after 0 bytes"
    yield b"PK\x03\x04" + bytes(300), "it begins with"
    yield made()[:100], "expected"
    yield made(data=table.tobytes()[:-1]), "was not written completely"
    yield made(data=table.tobytes() + b"x"), "was not written completely"
    yield made(descr="<i4"), "expected int64"
    yield made(descr="<f8"), "expected int64"
    yield made(descr="|O"), "expected int64"
    yield made(shape="(9223372036854775807, 2)"), "more than can be addressed"
    yield made(shape="(1000000000000, 2)"), "was not written completely"
    yield made(shape="(30, 2, 1)"), "one or two dimensions"
    yield made(shape="(30, -2)"), "damaged"
    yield good + struct.pack("<H", 60000) + b"{" * 100, "ends after"
    yield b"\x93NUMPY\x07\x00" + bytes(100), "version 1, 2 or 3"


def test_files_in_fortran_order(path, tmp_path):
    table = random_table(np.random.default_rng(5), 30, (0, 1), (2, 3))
    found = []
    for rows in (table, np.asfortranarray(table), np.asfortranarray(table).astype(">i8")):
        np.save(tmp_path / "rows.npy", rows)
        found.append(read(reader(path, tmp_path / "rows.npy", (0, 1), (2, 3)), 30, 5)[1].tolist())
    assert found[0] == found[1] == found[2] == table.tolist()


def test_damaged_files_are_errors(path, tmp_path):
    table = random_table(np.random.default_rng(3), 30, (0, 1), (2, 3))
    for bytes_, message in damaged(table):
        (tmp_path / "rows.npy").write_bytes(bytes_)
        with pytest.raises((ValueError, TypeError), match=f"starts: .*rows.npy: .*{message}"):
            reader(path, tmp_path / "rows.npy", (0, 1), (2, 3))
    with pytest.raises(ValueError, match="expected a file"):
        (tmp_path / "folder.npy").mkdir()
        reader(path, tmp_path / "folder.npy", (0, 1), (2, 3))


def kept_tables() -> int:
    """Whether the next name is known tells nothing, so the memory that tables take is looked at."""
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_tables_are_given_back_with_their_pipelines(path):
    table = np.zeros((1 << 21, 1), np.int64)
    pipe = reader(path, table, (0,), (0,))
    # The definition is over, and nothing but the pipeline holds the table.
    gc.collect()
    pipe.run()
    del pipe
    gc.collect()
    before = kept_tables()
    for _ in range(8):
        reader(path, table, (0,), (0,)).run()
        gc.collect()
    assert kept_tables() - before < 4 * table.nbytes, "of eight tables of 16 MiB, half would be 64 MiB"


def test_names_are_released(path):
    import dali_zarr
    from dali_zarr._arguments import tables

    name = tables.named("starts", np.array([3, 1]))
    again = tables.named("starts", name)
    assert again is name and re.fullmatch(rf"table:{os.getpid()}:\d+", name)
    text = str(name)
    spec = {"path": str(path), "arrays": ["a"], "dims": ["t"], "starts": name}
    assert dali_zarr.explain(**spec)["samples"] == 2
    del name, again, spec
    gc.collect()
    with pytest.raises(ValueError, match="isn't in this process's memory"):
        dali_zarr.explain(path=str(path), arrays=["a"], dims=["t"], starts=text)


def test_a_pipeline_in_another_process_says_that_its_table_is_gone(path, tmp_path):
    pipe = reader(path, np.array([3, 1]), (0,), (0,))
    (tmp_path / "pipe").write_bytes(pipe.serialize())
    code = (
        "import sys, dali_zarr\nfrom nvidia.dali.pipeline import Pipeline\n"
        "pipe = Pipeline.deserialize(open(sys.argv[1], 'rb').read())\npipe.build()\n"
    )
    process = processes.start(code, tmp_path / "pipe")
    _, err = process.communicate(60)
    assert process.returncode and "save it as .npy and give its path" in err


def test_tables_count_against_the_limit(path):
    table = np.zeros((1 << 19, 1), np.int64)
    args = {"random_shuffle": True, "initial_fill": 64}
    with pytest.raises(ValueError, match="host_memory_limit: expected at least .* bytes of tables of starts and weights"):
        reader(path, table, (0,), (0,), host_memory_limit=(4 << 20) + 9000)
    with pytest.raises(ValueError, match="host_memory_limit: "):
        reader(path, table, (0,), (0,), host_memory_limit=7 << 20, **args)
    reader(path, table, (0,), (0,), host_memory_limit=12 << 20, **args).run()


def test_a_long_table_opens_fast(path, tmp_path):
    """A hundredth of what it is made for."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "rows.npy", random_table(rng, 1_000_000, (0, 2), (2, 3)))
    pipe = reader(path, tmp_path / "rows.npy", (0, 2), (2, 3), random_shuffle=True)
    assert pipe.reader_meta("reader")["epoch_size"] == 1_000_000
    values, index = read(pipe, 5, 5)
    same(values[0], expected(index[0], (0, 2), (2, 3)), "the first sample")
