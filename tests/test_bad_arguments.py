"""Bad arguments and metadata are refused when the pipeline is built, by the right exception and in words that help."""

from __future__ import annotations

import json
import re

import dali_zarr
import numpy as np
import pytest
from dali_zarr import _arguments
from support.pipelines import build, check
from support.stores import Layout, metadata, write_array, write_era5


@pytest.fixture(scope="module")
def era5(tmp_path_factory):
    path = tmp_path_factory.mktemp("bad") / "era5.zarr"
    write_era5(path, hours=8)
    return path


def refused(device, kind, *words, **args):
    """Asserts that building raises ``kind`` with all ``words`` in its message; returns the message."""
    with pytest.raises(kind) as caught:
        build(device, 2, **args)
    message = str(caught.value)
    for word in ("zarr_reader", *words):
        assert word in message, f"{word!r} isn't in {message!r}"
    return message


def test_wrong_path(tmp_path, device):
    refused(device, ValueError, "nowhere.zarr", path=tmp_path / "nowhere.zarr", arrays=["a"])


def test_a_path_without_zarr(tmp_path, device):
    (tmp_path / "notes.txt").write_text("not a store")
    refused(device, ValueError, str(tmp_path), path=tmp_path, arrays=["a"])
    refused(device, ValueError, "notes.txt", path=tmp_path / "notes.txt", arrays=["a"])


def test_no_path(device):
    with pytest.raises((ValueError, RuntimeError, TypeError), match="path"):
        build(device, 2, arrays=["a"])
    refused(device, ValueError, "path", path=[], arrays=["a"])


def test_one_of_several_paths_is_wrong(era5, tmp_path, device):
    refused(device, ValueError, "gone.zarr", path=[era5, tmp_path / "gone.zarr"], arrays=["t2m"])


@pytest.mark.parametrize("name", ["num_samples", "samples_per_volume", "max_length", "initial_fill"])
@pytest.mark.parametrize("value", [[], [3, 4], np.array([5])], ids=str)
def test_a_list_where_one_integer_is_meant(era5, device, name, value):
    refused(device, TypeError, f"{name}: expected integers, found [", path=era5, arrays=["t2m"], **{name: value})


@pytest.mark.parametrize("name", ["ragged", "ragged_ends", "concat", "out_of_bounds_policy"])
@pytest.mark.parametrize("value", [[], ["X/indptr"], np.arange(10**6), True, 5], ids=lambda value: str(value)[:20])
def test_what_is_no_text(era5, device, name, value):
    """Nor is an array shown in full."""
    message = refused(device, TypeError, f"{name}: expected text, found ", path=era5, arrays=["t2m"], **{name: value})
    assert len(message.split("\n")[0]) < 150


def test_wrong_array_name(era5, device):
    """The message lists the names that there are."""
    refused(device, ValueError, "t3m", "t2m", "lsm", "time", path=era5, arrays=["t3m"])


def test_arrays_must_be_named_where_there_are_several(era5, device):
    refused(device, ValueError, "t2m", "lsm", "arrays", path=era5)


def test_wrong_dims(era5, device):
    """The message lists the dimensions that there are."""
    refused(device, ValueError, "lattitude", "latitude", path=era5, arrays=["t2m"], dims=["lattitude"])
    refused(device, ValueError, "3", path=era5, arrays=["t2m"], dims=["3"])
    refused(device, ValueError, "time", path=era5, arrays=["t2m"], dims=["time", "time"])
    refused(device, ValueError, "time", path=era5, arrays=["t2m"], dims=["time", "0"])


@pytest.mark.parametrize(
    "args",
    [
        {"window": [9]}, {"window": [3], "stride": [4]}, {"window": [2], "roi_start": [7]}, {"roi_start": [4], "roi_end": [4]},
        {"offsets": [0, 8]}, {"offsets": [-9]}, {"window": [2], "offsets": [-4, 4]},
    ],
    ids=str,
)
def test_no_samples(era5, device, args):
    """A window, region or offset that leaves no sample: the message says what is too long for what."""
    message = refused(device, ValueError, "time", path=era5, arrays=["t2m"], dims=["time"], **args)
    assert re.search(r"\b8\b|sample", message), message


@pytest.mark.parametrize(
    "args",
    [
        {"window": [-2]}, {"step": [0]}, {"step": [-1]}, {"stride": [0]}, {"stride": [-2]}, {"window": [1, 2]},
        {"step": [1, 1]}, {"stride": [1, 1]}, {"roi_start": [1, 1]}, {"roi_end": [9]}, {"roi_start": [-9]},
        {"roi_start": [5], "roi_end": [2]}, {"window": [2**62], "stride": [2**62]}, {"offsets": [2**63 - 1]},
        {"window": [2**31], "step": [2**62], "out_of_bounds_policy": "pad"},
    ],
    ids=str,
)
def test_numbers_that_make_no_sense(era5, device, args):
    refused(device, ValueError, next(iter(args)) if len(args) == 1 else "", path=era5, arrays=["t2m"], dims=["time"], **args)


@pytest.mark.parametrize("name", ["out_of_bounds_policy", "decode_device"])
def test_unknown_choices(era5, device, name):
    """The message lists what may be chosen."""
    known = {"out_of_bounds_policy": ["error", "drop", "pad"], "decode_device": ["auto", "gpu", "cpu"]}[name]
    refused(device, ValueError, "sideways", *known, path=era5, arrays=["t2m"], **{name: "sideways"})


def test_pick(era5, device):
    refused(device, IndexError, "level", "5", path=era5, arrays=["z"], pick=["level=0,5"])
    refused(device, IndexError, "level", "-6", path=era5, arrays=["z"], pick=["level=-6"])
    refused(device, ValueError, "lvl", "level", path=era5, arrays=["z"], pick=["lvl=0"])
    for nonsense in ("level", "level=", "level=a", "level=1.5", "=1"):
        with pytest.raises(ValueError, match="pick"):
            build(device, 2, path=era5, arrays=["z"], pick=[nonsense])


def test_statistics_of_the_wrong_length(era5, device):
    for name in ("mean", "stddev"):
        refused(device, ValueError, name, "3", "2", path=era5, arrays=["t2m", "lsm"], **{name: [1.0, 2.0, 3.0]})
    refused(device, ValueError, "mean", path=era5, arrays=["t2m", "z"], stack_arrays=True, mean=[1.0] * 5)


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 1, 1), (1, 2, 1, 1)])
def test_numbers_of_channels_as_broadcasting_wants_them(shape):
    mean = np.array([1.0, 2.0]).reshape(shape)
    found = _arguments.resolved({"mean": mean, "stddev": {"a": mean}})
    assert found["mean"] == [1.0, 2.0] and list(map(float, found["stddev"]["a"])) == [1.0, 2.0]
    assert _arguments.resolved({"mean": np.ones((2, 3))})["mean"] == [[1.0] * 3] * 2, "which is refused later"


def test_stack_of_different_types(tmp_path, device):
    write_array(tmp_path, "a", np.ones((3, 4), "float32"), dims=("t", "x"))
    write_array(tmp_path, "b", np.ones((3, 4), "int16"), dims=("t", "x"))
    with pytest.raises((ValueError, TypeError), match="(?s)float32.*int16.*dtype"):
        build(device, 2, path=tmp_path, arrays=["a", "b"], stack_arrays=True)


def test_dimensions_that_disagree(tmp_path, device):
    """Arrays that are stacked, or cut along a dimension, must agree on its length."""
    write_array(tmp_path, "a", np.ones((3, 4), "float32"), dims=("t", "x"))
    write_array(tmp_path, "b", np.ones((3, 5), "float32"), dims=("t", "x"))
    for arguments in ({"stack_arrays": True}, {"dims": ["t", "x"]}):
        words = ("x", "4", "5", "pick as many indices of both")
        message = refused(device, ValueError, *words, path=tmp_path, arrays=["a", "b"], **arguments)
        assert "two readers" not in message, "shuffled, they wouldn't stay in step"


def test_stores_that_disagree(tmp_path, device):
    """Joined stores must have the same arrays: types, dimensions, and lengths but along the first of dims."""
    write_array(tmp_path / "1", "a", np.ones((3, 4), "float32"), dims=("t", "x"))
    write_array(tmp_path / "2", "a", np.ones((3, 5), "float32"), dims=("t", "x"))
    write_array(tmp_path / "3", "a", np.ones((3, 4), "float64"), dims=("t", "x"))
    write_array(tmp_path / "4", "a", np.ones((3, 4), "float32"), dims=("t", "y"))
    for other in "234":
        refused(device, ValueError, "'a'", path=[tmp_path / "1", tmp_path / other], arrays=["a"])


@pytest.mark.parametrize("count", [-1, 0, 1025, 10**12])
@pytest.mark.parametrize("name", ["io_threads", "io_concurrency", "decode_threads", "prefetch_queue_depth"])
def test_absurd_counts(era5, device, name, count):
    """Before any thread is started, for stores on servers too."""
    for path in (era5, "http://127.0.0.1:9/nothing"):
        refused(device, ValueError, name, path=path, arrays=["t2m"], **{name: count})


@pytest.mark.parametrize(
    ("zarr_format", "dtype"),
    [(2, "S5"), (3, "U4"), (2, [("a", "i4"), ("b", "f4")])],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")
def test_types_that_dali_lacks(tmp_path, device, zarr_format, dtype):
    """A TypeError that names the array; the others of the store can still be read."""
    import zarr

    group = zarr.open_group(str(tmp_path), mode="w", zarr_format=zarr_format)
    group.create_array("wave", shape=(4, 3), chunks=(2, 3), dtype=dtype)
    group.create_array("fine", shape=(4, 3), chunks=(2, 3), dtype="f4")[:] = 1
    refused(device, TypeError, "wave", path=tmp_path, arrays=["wave"])
    check(device, 2, path=tmp_path, arrays=["fine"])


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_unknown_codec(tmp_path, device, zarr_format):
    """The codec's name is in the message."""
    write_array(tmp_path, "a", np.ones((4, 3), "float32"), zarr_format=zarr_format, dims=("t", "x"))
    file, content = metadata(tmp_path, "a")
    if zarr_format == 3:
        content["codecs"][-1] = {"name": "frobnicate", "configuration": {"level": 3}}
    else:
        content["compressor"] = {"id": "frobnicate"}
    file.write_text(json.dumps(content))
    refused(device, ValueError, "frobnicate", "'a'", path=tmp_path, arrays=["a"])


def _set(**changes):
    return lambda text: json.dumps(json.loads(text) | changes)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "bend",
    [
        lambda t: t[: len(t) // 2], lambda t: "", lambda t: "[]", lambda t: "null", lambda t: "\x00\xff" * 50,
        lambda t: "[" * 100_000, _set(zarr_format=9), _set(shape="many"), _set(shape=[-4, 3]), _set(shape=[4.5, 3]),
        _set(shape=[4]), _set(shape=[2**63, 2**63]), _set(shape=[4, 3, 2]),
    ],
    ids=["cut", "empty", "list", "null", "binary", "deep", "format", "string", "negative", "fraction", "rank", "huge", "more"],
)
def test_unreadable_metadata(tmp_path, device, zarr_format, bend):
    """Whatever stands in the metadata document, the answer is a ValueError that names the array or the file."""
    write_array(tmp_path, "a", np.ones((4, 3), "float32"), zarr_format=zarr_format, dims=("t", "x"))
    file, _ = metadata(tmp_path, "a")
    file.write_text(bend(file.read_text()), encoding="latin-1")
    refused(device, ValueError, path=tmp_path, arrays=["a"])


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("chunks", [[0, 3], [-1, 3], [2], [2**63, 2**63], [2**40, 2**40], "all"], ids=str)
def test_impossible_chunks(tmp_path, device, zarr_format, chunks):
    """Chunk shapes that are empty, negative, of another rank or beyond any memory."""
    write_array(tmp_path, "a", np.ones((4, 3), "float32"), zarr_format=zarr_format, dims=("t", "x"))
    file, content = metadata(tmp_path, "a")
    if zarr_format == 3:
        content["chunk_grid"]["configuration"]["chunk_shape"] = chunks
    else:
        content["chunks"] = chunks
    file.write_text(json.dumps(content))
    refused(device, ValueError, path=tmp_path, arrays=["a"])


@pytest.mark.parametrize("limit", ["host_memory_limit", "device_memory_limit"])
def test_budget_too_small(tmp_path, device, limit):
    """The message says the smallest budget that would do, and that one does."""
    if limit == "device_memory_limit" and device == "cpu":
        pytest.skip("the CPU reader holds no device memory")
    values = np.arange(8 * 256 * 256, dtype="float32").reshape(8, 256, 256)
    write_array(tmp_path, "a", values, layout=Layout((2, 256, 256)), dims=("t", "y", "x"))
    args = {"path": tmp_path, "arrays": ["a"]}
    message = refused(device, ValueError, limit, **args, **{limit: 4096})
    smallest = re.search(r"at least (\d+)", message)
    assert smallest, f"no 'at least N' in {message!r}"
    check(device, 2, epochs=2, **args, **{limit: int(smallest[1])})
    refused(device, ValueError, limit, **args, **{limit: int(smallest[1]) - 1})


@pytest.mark.parametrize(
    ("args", "kind", "words"),
    [
        ({"path": 5}, TypeError, ("path", "5")),
        ({"path": ["a.zarr", 5]}, TypeError, ("path", "5")),
        ({"window": 2.5}, TypeError, ("window", "2.5")),
        ({"window": "3"}, TypeError, ("window", "'3'")),
        ({"stride": [1, None]}, TypeError, ("stride", "None")),
        ({"num_shards": 2.0}, TypeError, ("num_shards", "2.0")),
        ({"seed": 2**63}, ValueError, ("seed", "64 bits")),
        ({"dtype": "float23"}, TypeError, ("dtype", "types.FLOAT", "'float23'")),
        ({"dtype": "complex64"}, TypeError, ("dtype", "'complex64'")),
        ({"window": np.int64}, TypeError, ("window", "int64")),
        ({"window": [True]}, TypeError, ("window", "True")),
        ({"random_shuffle": "no"}, TypeError, ("random_shuffle", "True or False", "'no'")),
        ({"pad_last_batch": 1}, TypeError, ("pad_last_batch", "True or False", "1")),
        ({"host_memory_limit": "10 apples"}, ValueError, ("host_memory_limit", "'10GB'", "'10 apples'")),
        ({"host_memory_limit": 1e9}, TypeError, ("host_memory_limit", "'10GB'", "1000000000.0")),
        ({"mean": {"t2m": "much"}}, TypeError, ("mean: expected numbers, found 'much'",)),
        ({"fillna": "zero"}, TypeError, ("fillna: expected numbers, found 'zero'",)),
        ({"fillna": {"t2m": None}}, TypeError, ("fillna: expected numbers, found None",)),
        ({"fill_na": 0.0}, TypeError, ("did you mean fillna?",)),
        ({"windows": 3}, TypeError, ("windows: there is no such argument; did you mean window?",)),
        ({"randomshuffle": True}, TypeError, ("did you mean random_shuffle?",)),
        ({"xyzzy": 3}, TypeError, ("xyzzy: there is no such argument; see help(dali_zarr.zarr_reader)",)),
        ({"storage_options": {"anon": True}}, ValueError, ("'anon' is fsspec's name", "{'skip_signature': True}")),
        ({"storage_options": {"token": "anon"}}, ValueError, ("'token' is fsspec's name", "write {'skip_signature': True}")),
        ({"storage_options": {"token": "t.json"}}, ValueError, ("'token' is fsspec's name", "GOOGLE_APPLICATION_CREDENTIALS")),
        ({"path": "gs://b/x", "storage_options": {"requester_pays": True}}, ValueError, ("the project that pays",)),
        ({"path": "s3://b/x", "storage_options": {"requester_pays": True}}, ValueError, ("write {'aws_request_payer': True}",)),
        ({"storage_options": {"key": "AKIA"}}, ValueError, ("'key' is fsspec's name", "AWS_ACCESS_KEY_ID")),
        ({"storage_options": {"client_kwargs": {}}}, ValueError, ("'client_kwargs' is fsspec's name", "aws_endpoint")),
        ({"storage_options": {"aws_endpoint": "http://localhost:9000"}}, ValueError, ("{'aws_allow_http': True}",)),
    ],
)
def test_values_of_the_wrong_type(era5, device, args, kind, words):
    """Nothing is converted silently."""
    import dali_zarr  # noqa: F401  (loads the operator)
    from nvidia.dali import fn

    with pytest.raises(kind) as caught:
        fn.zarr_reader(**({"device": device, "path": era5, "arrays": ["t2m"], "dims": ["time"]} | args))
    for word in ("zarr_reader", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("args", "first"),
    [
        ({"arrays": ["t3m"]}, "expected an array 't3m', but found the arrays 'lsm', 't2m', 'time', 'z'; did you mean t2m?"),
        ({"dims": ["lattitude"]}, "the dimensions are time, latitude, longitude; did you mean latitude?"),
        ({"path": "/nowhere"}, "/nowhere"),
    ],
    ids=["array", "dimension", "path"],
)
def test_the_message_comes_first(era5, device, args, first):
    """Before DALI's account of where the operator was made; explain says the same."""
    import dali_zarr

    args = {"path": era5, "arrays": ["t2m"]} | args
    line = refused(device, ValueError, "which was used in the pipeline", **args).splitlines()[0]
    assert line.startswith("zarr_reader: ") and first in line
    with pytest.raises(ValueError) as caught:
        dali_zarr.explain(**args)
    assert str(caught.value) == line


def test_the_message_of_a_damaged_chunk_comes_first(tmp_path, device):
    write_array(tmp_path, "a", np.ones((4, 3), "float32"), dims=("t", "x"))
    next((tmp_path / "a" / "c").rglob("0")).joinpath("0").write_bytes(b"xx")
    pipe = build(device, 2, path=tmp_path, arrays=["a"])
    with pytest.raises(RuntimeError) as caught:
        pipe.run()
    assert re.match("zarr_reader: store .*chunk is damaged", str(caught.value).splitlines()[0])


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float32, "float32"), (np.dtype("int16"), "int16"), ("float16", "float16"), ("types.FLOAT64", "float64"),
        ("torch.uint8", "uint8"), (float, "float64"), (bool, "bool"), ("torch", "float16"), ("torch", "float32"),
    ],
)
def test_types_by_any_name(era5, dtype, name):
    """NumPy's, PyTorch's and text, in the operator and in explain."""
    import dali_zarr
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    if dtype == "torch":
        dtype = getattr(pytest.importorskip("torch"), name)
    pipe = Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipe:
        pipe.set_outputs(fn.zarr_reader(path=era5, arrays=["t2m"], dtype=dtype, host_memory_limit="128MiB"))
    assert np.asarray(pipe.run()[0].as_array()).dtype == name
    (output,) = dali_zarr.explain(path=era5, arrays=["t2m"], dtype=dtype)["outputs"]
    assert output["dtype"] == name


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MB", 64 * 10**6), ("64 MiB", 64 << 20), ("0.5GB", 5 * 10**8), ("1gib", 1 << 30),
        ("70000000", 7 * 10**7), ("64000000B", 64 * 10**6),
    ],
)
def test_sizes_as_text(era5, text, size):
    import dali_zarr

    assert dali_zarr.explain(path=era5, arrays=["t2m"], host_memory_limit=text)["memory"]["host_memory_limit"] == size


def test_the_home_directory(era5, monkeypatch):
    monkeypatch.setenv("HOME", str(era5.parent))
    build("cpu", 2, path=f"~/{era5.name}", arrays=["t2m"]).run()
    build("cpu", 2, path=[f"~/{era5.name}"], arrays=["t2m"]).run()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("path", "/data/\udc80"), ("path", ["/data", "/data/\udc80"]), ("path", b"/data/\x80"), ("path", [b"/data/\x80"]),
        ("arrays", "\udc80"), ("arrays", ["t2m", "a\ud800"]), ("dims", ["\udfff"]), ("random_crop", ["\udc80"]),
        ("pick", ["\udc80=1"]), ("pick", {"\udc80": [1]}), ("pick", {"\udc80": [1.0]}), ("out_of_bounds_policy", "\udc80"),
        ("decode_device", "\udc80"), ("io", "\udc80"), ("cache_dir", "/cache/\udc80"), ("cache_dir", b"/cache/\x80"),
        ("name", "\udc80"), ("storage_options", {"user_agent": "\udc80"}), ("storage_options", ["user_agent=\udc80"]),
        ("storage_options", {"\udc80": "me"}),
    ],
    ids=ascii,
)
def test_surrogates(era5, device, name, value):
    """Text that has no UTF-8: names of files that aren't UTF-8, for example. In the operator and in explain."""
    import dali_zarr
    from nvidia.dali import fn

    args = {"path": str(era5), "arrays": ["t2m"], name: value}
    words = f"^zarr_reader: {name}: expected text that UTF-8 can encode, but found .* with the surrogate U\\+D[89A-F]"
    for call in (lambda: fn.zarr_reader(device=device, **args), lambda: dali_zarr.explain(device=device, **args)):
        with pytest.raises(ValueError, match=words) as caught:
            call()
        assert caught.type is ValueError and (name != "storage_options" or "user_agent" not in str(caught.value))


@pytest.mark.parametrize("name", ["device", "dtype"])
def test_surrogates_in_explain(era5, name):
    import dali_zarr

    with pytest.raises(ValueError, match=f"zarr_reader: {name}: expected text that UTF-8 can encode"):
        dali_zarr.explain(path=era5, arrays=["t2m"], **{name: "\udc80"})


def test_integers_of_more_than_32_bits_are_told_in_another_way(tmp_path):
    """DALI before 2.4 has no lists of them."""
    plain = _arguments.to_operator({"window": [2**31 - 1], "roi_start": (-(2**31),), "offsets": [0, 1]})
    assert plain == {"window": [2**31 - 1], "roi_start": [-(2**31)], "offsets": [0, 1]}
    wide = _arguments.to_operator({"window": [2**31, 3], "roi_start": 5})
    assert wide == {"roi_start": 5, "_arguments": '{"window": [2147483648, 3]}'}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concat", b"dims"), ("breaks", {3}), ("window", [1j]), ("window", {"time": {1}}), ("dims", [float("nan")]),
        ("dims", {1}), ("random_crop", [1.5]), ("arrays", True), ("arrays", [1.5]), ("mean", 1j), ("pick", b"x"),
        ("segments", slice("a", 3)), ("segments", slice(None, None, 0)),
    ],
    ids=str,
)
def test_what_no_argument_is(era5, name, value):
    """The message names the argument, whatever Python has in its place."""
    with pytest.raises((TypeError, ValueError), match=f"zarr_reader: {name}: expected"):
        dali_zarr.explain(**{"path": era5, "arrays": ["t2m"], name: value})


def test_numpys_numbers_in_lists(era5):
    """They are numbers, wherever they stand."""
    one, two, no = np.int64(1), np.int32(2), np.bool_(False)
    found, same = (
        dali_zarr.explain(
            path=era5, arrays=["t2m"], dims=[0, "latitude"], window=[two, two], step={"time": one}, offsets=[one], breaks=[4],
            segments=which, mean=[np.float32(1)], pick={"longitude": (one, two)},
        )
        for two, one, which in ((two, one, [~no, no]), (2, 1, [True, False]))
    )
    assert found == same
