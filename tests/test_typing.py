"""The typed function and DALI's schema are the same interface. `make lint` runs the type checker: see typed_uses.py."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
from dali_zarr._arguments import names, values
from dali_zarr._arguments.types import ReaderArguments
from nvidia.dali import backend, fn
from nvidia.dali.pipeline import Pipeline
from support.stores import write_era5

ROOT = Path(__file__).parents[1]
SCHEMA = backend.GetSchema("readers__Zarr")
ARGUMENTS = {name for name in SCHEMA.GetArgumentNames() if not name.startswith("_")}
# Without the operator's input.
PARAMETERS = {name: one for name, one in inspect.signature(dali_zarr.zarr_reader).parameters.items() if name != "samples"}
# What every operator of DALI takes, and no schema lists.
COMMON = {"device": "cpu", "name": None}


def default_of(name: str) -> Any:
    """The schema's default, as Python writes it; None where there is none, or an empty list."""
    if not SCHEMA.HasArgumentDefaultValue(name):
        return None
    text = SCHEMA.GetArgumentDefaultValueString(name)
    return None if text == "[]" else eval(text, {"__builtins__": {}}, {"True": True, "False": False})


def test_the_signature_is_the_schemas():
    assert set(PARAMETERS) == ARGUMENTS | set(COMMON) | names.SELECTION
    assert all(PARAMETERS[name].default is None for name in names.SELECTION)
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in PARAMETERS.values())
    for name in ARGUMENTS:
        assert SCHEMA.IsArgumentOptional(name) == (PARAMETERS[name].default is not inspect.Parameter.empty), name
        if SCHEMA.IsArgumentOptional(name):
            expected = default_of(name)
            expected = expected[0] if name == "bytes_per_sample_hint" else expected
            assert PARAMETERS[name].default == expected, name
            assert type(PARAMETERS[name].default) is type(expected), name
    assert {name: PARAMETERS[name].default for name in COMMON} == COMMON


def test_the_types_are_the_schemas():
    """A bool is a bool, and whole numbers, sizes and lists are what DALI has them for."""
    hints = {name: hint.__forward_arg__ for name, hint in ReaderArguments.__annotations__.items()}
    assert set(hints) == ARGUMENTS - {"path", "preserve", "bytes_per_sample_hint"} | {"name"} | names.SELECTION
    of_hint = {
        "bool": "BOOL", "int": "INT64", "Bytes": "INT64", "Integers": "_INT64_VEC", "float": "FLOAT", "Statistics": "_FLOAT_VEC",
        "Names": "_STRING_VEC", "Pick": "_STRING_VEC", "StorageOptions": "_STRING_VEC", "Path": "STRING",
        "OutOfBounds": "STRING", "Concat": "STRING", "MissingDates": "STRING", "FillMissing": "STRING", "Orders": "_STRING_VEC",
        "str": "STRING", "Squeezed": "_STRING_VEC", "Groups": "_STRING_VEC",
        "ScaleBy": "STRING", "ScaleMethod": "STRING", "OnBadChunk": "STRING", "Lengths": "_INT64_VEC",
        "LengthsOfOutput": "_INT64_VEC",
        "DecodeDevice": "STRING", "Io": "STRING", "DType": "DATA_TYPE", "PerDim": "_INT64_VEC", "PerDimOfOutput": "_INT64_VEC",
        "Arrays": "_STRING_VEC", "Table": "STRING", "Breaks": "_INT64_VEC", "Segments": "_INT64_VEC",
        "Channels": "_STRING_VEC",
    }
    for name in set(hints) & ARGUMENTS:
        # What else there may be is a dictionary by name.
        hint, *others = hints[name].removesuffix(" | None").split(" | ")
        assert SCHEMA.GetArgumentType(name).name == of_hint[hint], name
        assert others in ([], [f"Mapping[str, {hint}]"]), name
    assert values.BYTES == {"cache_size", "cache_dir_size", "device_memory_limit", "host_memory_limit"}
    assert hints == {name: PARAMETERS[name].annotation for name in hints}


def test_every_argument_is_explained():
    # Python 3.13 takes the indentation of a docstring away.
    doc = inspect.cleandoc(dali_zarr.zarr_reader.__doc__)
    explained = {name.strip() for line in doc.splitlines() if line.startswith(" " * 4) and ":" in line
             for name in line.split(":")[0].split(",")}
    assert set(PARAMETERS) <= explained


def test_it_is_the_operator(tmp_path):
    write_era5(tmp_path, hours=8)
    args = {"path": tmp_path, "arrays": ["t2m"], "offsets": np.array([0, 1]), "mean": 1 / 3, "dtype": np.float64}

    def read(function):
        pipe = Pipeline(batch_size=3, num_threads=1, device_id=None)
        with pipe:
            pipe.set_outputs(*function(host_memory_limit=128 << 20, **args))
        return [np.asarray(out.as_array()) for out in pipe.run()]

    for ours, dalis in zip(read(dali_zarr.zarr_reader), read(fn.zarr_reader), strict=True):
        assert ours.tobytes() == dalis.tobytes() and ours.dtype == "float64"


def test_what_is_not_given_is_not_passed(monkeypatch):
    """So that DALI's own defaults hold, whatever they are."""
    seen = {}
    monkeypatch.setattr(fn, "zarr_reader", lambda **arguments: seen.update(arguments))
    dali_zarr.zarr_reader(path="s", seed=-1, num_shards=2, pad_last_batch=False, offsets=[0])
    assert seen == {"path": "s", "num_shards": 2, "offsets": [0]}


@pytest.mark.parametrize("where", ["explain", "statistics", "torch.Loader", "jax.Loader"])
def test_notebooks_complete_arguments(where):
    """The names that type checkers know are in the signature too, by which notebooks complete and ``help`` lists."""
    module, _, name = where.rpartition(".")
    if module:
        pytest.importorskip(module)
    function = getattr(importlib.import_module(f"dali_zarr.{module}") if module else dali_zarr, name)
    parameters = inspect.signature(function).parameters
    assert not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    assert {"path", "arrays", "sel", "mask_and_scale", "host_memory_limit"} < set(parameters)
    assert next(iter(parameters)) == "path" and parameters["sel"].default is None
    if name == "Loader":
        assert set(parameters) >= set(PARAMETERS) - set(COMMON) - {"preserve", "bytes_per_sample_hint"}
        assert parameters["initial_fill"].default == PARAMETERS["initial_fill"].default


@pytest.mark.parametrize("module", ["fn", "fn.readers"])
def test_the_operator_names_what_python_adds(module):
    """``fn.zarr_reader`` has labels in its signature and its help, though its schema hasn't."""
    function = fn.zarr_reader if module == "fn" else fn.readers.zarr
    assert set(inspect.signature(function).parameters) == {*PARAMETERS, "samples"}
    assert all(re.search(rf"^{name} :", function.__doc__, re.MULTILINE) for name in ARGUMENTS - {"preserve"} | names.SELECTION)


@pytest.mark.parametrize(
    "call", ["dali_zarr.zarr_reader", "dali_zarr.torch.Loader", "dali_zarr.statistics", "fn.zarr_reader", "ndd.readers.Zarr"],
)
def test_hovering_and_completion(call):
    """What notebooks and consoles show of a call, by jedi, which IPython brings: all arguments, and what they mean."""
    jedi = pytest.importorskip("jedi")
    pytest.importorskip("torch")
    dynamic = importlib.import_module("nvidia.dali.experimental.dynamic")
    importlib.import_module("dali_zarr.torch")
    interpreter = jedi.Interpreter(f"{call}(", [{"dali_zarr": dali_zarr, "fn": fn, "ndd": dynamic}])
    expected = {"path", "arrays", "roi_start", "mask_and_scale", "host_memory_limit"}
    expected |= {"sel"} if not call.startswith("ndd") else set()
    (signature,) = interpreter.get_signatures()
    assert expected <= {parameter.name for parameter in signature.params}
    assert {f"{name}=" for name in expected} <= {completion.name for completion in interpreter.complete()}
    shown = eval(call, {"dali_zarr": dali_zarr, "fn": fn, "ndd": dynamic})
    text = (shown.__init__ if isinstance(shown, type) else shown).__doc__
    assert "arrays" in text and "path" in text


def test_the_package_is_typed():
    assert (Path(dali_zarr.__file__).parent / "py.typed").exists()
