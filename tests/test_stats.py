"""stats counts what readers do, of the right reader, while they live; profilers see the stages."""

from __future__ import annotations

import gc
import json
import subprocess

import dali_zarr
import numpy as np
import pytest
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline
from support.pipelines import at_rest, build, run_script, settled
from support.stores import Layout, chunk_files, write_array

DIMS = ("time", "lat", "lon")
COUNTERS = {
    "chunks_read", "chunks_missing", "bytes_read", "reads", "index_reads", "chunks_decoded_cpu", "chunks_decoded_gpu",
    "chunks_uncompressed", "chunks_failed", "cpu_fallbacks", "chunks_shared", "batches_shared", "shared_reserve",
    "shared_threads", "chunks_from_memory", "chunks_read_again", "evictions", "batches", "waits", "waves", "read_seconds",
    "copy_seconds", "decode_seconds", "assemble_seconds", "wait_seconds",
}


@pytest.fixture
def values():
    return np.random.default_rng(0).standard_normal((48, 8, 16)).astype("float32")


def ends(counters) -> int:
    """What became of the chunks that were read."""
    return sum(counters[f"chunks_{end}"] for end in ("decoded_gpu", "decoded_cpu", "uncompressed", "failed"))


@pytest.mark.parametrize(
    ("codec", "end"),
    [("none", "uncompressed"), ("zstd", "decoded"), ("blosc-lz4-shuffle", "decoded"), ("numcodecs-bz2", "decoded_cpu")],
)
@pytest.mark.parametrize("shards", [None, (8, 8, 16)], ids=["chunks", "shards"])
def test_every_chunk_that_was_read_has_one_end(tmp_path, device, values, codec, end, shards):
    write_array(tmp_path / "s", "a", values, codec=codec, layout=Layout((1, 8, 16), shards=shards), dims=DIMS)
    pipe = build(device, 4, path=tmp_path / "s", arrays="a", prefetch_queue_depth=2)
    for _ in range(12):
        pipe.run()
    counters = settled(pipe)
    assert counters.keys() >= COUNTERS
    assert ends(counters) == counters["chunks_read"] >= 48, counters
    if end == "decoded":
        end = "decoded_gpu" if device == "gpu" else "decoded_cpu"
    assert counters[f"chunks_{end}"] == counters["chunks_read"], counters
    assert counters["cpu_fallbacks"] == counters["chunks_failed"] == counters["chunks_missing"] == 0, counters
    assert counters["index_reads"] == (6 if shards else 0), counters
    assert counters["batches"] >= 12, counters
    assert counters["waits"] <= counters["batches"] + 1, counters
    assert (counters["waves"] > 0) == (device == "gpu"), counters
    if not shards:
        size = {f.stat().st_size for f in chunk_files(tmp_path / "s", "a")}
        assert counters["chunks_read"] == counters["reads"], counters
        assert min(size) <= counters["bytes_read"] / counters["reads"] <= max(size), counters


def test_chunks_are_served_from_memory(tmp_path, device, values):
    """Chunks of four fields in batches of two: every second batch finds its chunk in memory."""
    write_array(tmp_path / "s", "a", values, codec="zstd", layout=Layout((4, 8, 16)), dims=DIMS)
    pipe = build(device, 2, path=tmp_path / "s", arrays="a", prefetch_queue_depth=1)
    for _ in range(24):
        pipe.run()
    counters = settled(pipe)
    # Each batch needs one chunk; the last one that was prepared has perhaps not been asked for.
    assert counters["chunks_read"] + counters["chunks_from_memory"] == counters["batches"], counters
    assert counters["chunks_from_memory"] >= 12, counters
    assert counters["chunks_read_again"] == counters["evictions"] == 0, counters


def test_missing_and_damaged_chunks(tmp_path, device, values):
    """Missing chunks aren't read; a damaged one is read, and fails."""
    write_array(
        tmp_path / "s", "a", values, codec="gzip", layout=Layout((1, 8, 16)), dims=DIMS,
        missing=tuple((i, 0, 0) for i in range(8, 48)),
    )
    files = sorted(chunk_files(tmp_path / "s", "a"))
    files[0].write_bytes(b"not gzip")
    pipe = build(device, 4, path=tmp_path / "s", arrays="a", prefetch_queue_depth=1)
    failed = 0
    for _ in range(6):
        try:
            pipe.run()
        except RuntimeError:
            failed += 1
            break
    assert failed == 1
    (counters,) = at_rest(lambda: [c for c in dali_zarr.counters() if c["path"] == [str(tmp_path / "s")]])
    assert counters["chunks_failed"] == 1, counters
    assert ends(counters) == counters["chunks_read"] <= 8, counters
    assert counters["cpu_fallbacks"] == 0, counters


def test_readers_of_one_name_are_told_apart(tmp_path, values):
    """Two pipelines, a copy of one by serialization, and two readers in one pipeline."""
    for name, chunk in (("s", 1), ("t", 8)):
        write_array(tmp_path / name, "a", values, codec="none", layout=Layout((chunk, 8, 16)), dims=DIMS)
    first = build(batch_size=4, path=tmp_path / "s", arrays="a", prefetch_queue_depth=1)
    second = build(batch_size=4, path=tmp_path / "t", arrays="a", prefetch_queue_depth=1)
    copy = Pipeline.deserialize(first.serialize())
    copy.build()
    for _ in range(20):
        second.run()
    assert dali_zarr.counters(first)["reader"]["path"] == [str(tmp_path / "s")]
    assert dali_zarr.counters(second)["reader"]["path"] == [str(tmp_path / "t")]
    numbers = {dali_zarr.counters(pipe)["reader"]["reader"] for pipe in (first, second, copy)}
    assert len(numbers) == 3
    assert dali_zarr.counters(copy)["reader"]["path"] == [str(tmp_path / "s")]
    assert dali_zarr.counters(second)["reader"]["batches"] >= 20 > settled(copy)["batches"]
    both = Pipeline(batch_size=2, num_threads=1, device_id=None)
    with both:
        limit = 16 << 20
        x = fn.zarr_reader(path=str(tmp_path / "s"), arrays="a", name="x", host_memory_limit=limit)
        y = fn.zarr_reader(path=str(tmp_path / "t"), arrays="a", name="y", host_memory_limit=limit)
        both.set_outputs(x, y)
    found = dali_zarr.counters(both)
    assert {name: counters["path"] for name, counters in found.items()} == {
        "x": [str(tmp_path / "s")], "y": [str(tmp_path / "t")],
    }
    assert numbers | {c["reader"] for c in found.values()} <= {c["reader"] for c in dali_zarr.counters()}
    del first, second, copy, both, x, y
    gc.collect()
    assert not numbers & {c["reader"] for c in dali_zarr.counters()}, "a reader that is gone has no counters"


@pytest.mark.parametrize(
    "executor", [{"exec_dynamic": True}, {"exec_dynamic": False}, {"exec_async": False, "exec_pipelined": False}], ids=str
)
def test_every_executor_lets_the_operator_be_asked(tmp_path, values, executor):
    """Before the first run too, and without a name of the user's."""
    write_array(tmp_path / "s", "a", values, codec="none", layout=Layout((1, 8, 16)), dims=DIMS)
    pipe = Pipeline(batch_size=2, num_threads=1, device_id=None, **executor)
    with pipe:
        pipe.set_outputs(fn.zarr_reader(path=str(tmp_path / "s"), arrays="a", host_memory_limit=16 << 20))
    (counters,) = dali_zarr.counters(pipe).values()
    assert counters["path"] == [str(tmp_path / "s")]
    pipe.run()
    (counters,) = dali_zarr.counters(pipe).values()
    assert counters["batches"] >= 1


def test_other_pipelines_and_other_things(tmp_path):
    (tmp_path / "f").write_bytes(b"x")
    pipe = Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipe:
        pipe.set_outputs(*fn.readers.file(files=[str(tmp_path / "f")], name="reader"))
    assert dali_zarr.counters(pipe) == {}
    with pytest.raises(TypeError, match="expected a loader, a pipeline"):
        dali_zarr.counters("reader")


def test_the_dynamic_mode(tmp_path, values):
    """A reader of the dynamic mode is asked itself."""
    write_array(tmp_path / "s", "a", values, codec="zstd", layout=Layout((1, 8, 16)), dims=DIMS)
    script = (
        "import json, sys\n"
        "import dali_zarr\n"
        "import nvidia.dali.experimental.dynamic as ndd\n"
        "reader = ndd.readers.Zarr(path=sys.argv[1], arrays='a', device='cpu', host_memory_limit=1 << 24)\n"
        "try:\n"
        "    dali_zarr.counters(reader)\n"
        "except RuntimeError as error:\n"
        "    assert 'delivered' in str(error)\n"
        "for batch in reader.next_epoch(batch_size=4):\n"
        "    pass\n"
        "one, (every,) = dali_zarr.counters(reader), dali_zarr.counters()\n"
        "assert one['reader'] == every['reader'] and one['batches'] >= 12, one\n"
    )
    run_script(script, str(tmp_path / "s"), imports="torch")


# A profiler: counts ranges and names of threads, and writes them when the process ends.
PROFILER = r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

static std::mutex lock;
static std::map<std::string, int> pushed, named;
static int depth = 0;
static thread_local int open_ranges = 0;

static int push(const char *name) {
  std::lock_guard<std::mutex> hold(lock);
  if (std::string(name).rfind("dali_zarr", 0) == 0) pushed[name]++;
  return open_ranges++;
}

static int pop() {
  if (open_ranges == 0) depth = -1;
  return --open_ranges;
}

static void name_thread(uint32_t, const char *name) {
  std::lock_guard<std::mutex> hold(lock);
  named[name]++;
}

static void report() {
  FILE *file = std::fopen(std::getenv("RANGES_FILE"), "w");
  std::fprintf(file, "{\"balanced\": %s", depth == 0 ? "true" : "false");
  for (auto *counts : {&pushed, &named})
    for (const auto &[name, n] : *counts) std::fprintf(file, ", \"%s\": %d", name.c_str(), n);
  std::fprintf(file, "}");
  std::fclose(file);
}

extern "C" int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
  struct Callbacks {
    size_t bytes;
    int (*module_table)(unsigned, void ****, unsigned *);
  };
  const auto *callbacks = static_cast<const Callbacks *>(export_table(1));
  void ***table = nullptr;
  unsigned size = 0;
  if (!callbacks || callbacks->bytes < sizeof(Callbacks) || !callbacks->module_table(1, &table, &size) || size < 16) return 0;
  *table[9] = reinterpret_cast<void *>(&push);
  *table[11] = reinterpret_cast<void *>(&pop);
  *table[14] = reinterpret_cast<void *>(&name_thread);
  static bool once = (std::atexit(report), true);
  (void)once;
  return 1;
}
"""


def test_profilers_see_the_stages(tmp_path, device, values):
    """A profiler that is loaded as NVTX loads them counts as many ranges as there were stages, on named threads."""
    write_array(tmp_path / "s", "a", values, codec="zstd", layout=Layout((1, 8, 16)), dims=DIMS)
    source, library, file = tmp_path / "profiler.cc", tmp_path / "profiler.so", tmp_path / "ranges.json"
    source.write_text(PROFILER)
    subprocess.run(["c++", "-std=c++17", "-shared", "-fPIC", "-o", library, source], check=True)
    script = (
        "import sys\n"
        "from support.pipelines import build, settled\n"
        "import json\n"
        "pipe = build(sys.argv[2], 4, path=sys.argv[1], arrays='a', prefetch_queue_depth=2, io_threads=2, decode_threads=2)\n"
        "for _ in range(24):\n"
        "    pipe.run()\n"
        "now = settled(pipe)\n"
        "del pipe\n"
        "print(json.dumps(now))\n"
    )
    out = run_script(
        script, str(tmp_path / "s"), device, env={"NVTX_INJECTION64_PATH": str(library), "RANGES_FILE": str(file)}
    )
    counters, ranges = json.loads(out.splitlines()[-1]), json.loads(file.read_text())
    assert ranges["balanced"]
    assert ranges["dali_zarr read"] == counters["reads"]
    assert ranges.get("dali_zarr wait", 0) in (counters["waits"], counters["waits"] + 1)
    assert {"dali-zarr-fetch-0", "dali-zarr-fetch-1", "dali-zarr-plan", "dali-zarr-schedule"} <= ranges.keys()
    if device == "cpu":
        assert ranges["dali_zarr decode"] == counters["chunks_decoded_cpu"]
        assert {"dali-zarr-decode-0", "dali-zarr-decode-1"} <= ranges.keys()
    else:
        assert ranges["dali_zarr wave"] == counters["waves"]
        assert ranges["dali_zarr copy"] == ranges["dali_zarr decode"] == counters["waves"]
        assert ranges["dali_zarr assemble"] == counters["waves"]
        assert "dali-zarr-lane-0" in ranges


def test_a_profiler_that_is_not_there(tmp_path, values):
    """A path that can't be loaded is told once, and changes nothing."""
    write_array(tmp_path / "s", "a", values, codec="zstd", layout=Layout((1, 8, 16)), dims=DIMS)
    script = (
        "import sys\n"
        "from support.pipelines import build\n"
        "build('cpu', 4, path=sys.argv[1], arrays='a').run()\n"
    )
    run_script(script, str(tmp_path / "s"), env={"NVTX_INJECTION64_PATH": str(tmp_path / "nothing.so")})


def test_counters_of_what_users_hold(tmp_path, device, values):
    """DALI's iterators, iterations over loaders, and lists."""
    plugin = pytest.importorskip("nvidia.dali.plugin.pytorch", exc_type=ImportError)
    loaders = pytest.importorskip("dali_zarr.torch")
    write_array(tmp_path / "s", "a", values, layout=Layout((1, 8, 16)), dims=DIMS)
    pipes = [build(device, 4, path=tmp_path / "s", arrays="a", num_shards=2, shard_id=i, prefetch_queue_depth=1) for i in range(2)]
    one = plugin.DALIGenericIterator(pipes[:1], ["a"], reader_name="reader")
    assert next(one)[0]["a"].shape[0] == 4
    assert dali_zarr.counters(one).keys() == {"reader"} and dali_zarr.counters(one)["reader"]["batches"] >= 1
    assert dali_zarr.counters(iter(one)).keys() == {"reader"}
    both = plugin.DALIGenericIterator(pipes, ["a"], reader_name="reader")
    numbers = [found["reader"]["reader"] for found in dali_zarr.counters(both)]
    assert len(set(numbers)) == 2 and [c["reader"]["reader"] for c in dali_zarr.counters(pipes)] == numbers
    loader = loaders.Loader(tmp_path / "s", batch_size=4, device="cpu", host_memory_limit="64MB")
    iteration = iter(loader)
    next(iteration)
    assert dali_zarr.counters(iteration)["reader"] == dali_zarr.counters(loader)["reader"]
    assert [type(found) for found in dali_zarr.counters((iteration, pipes[0]))] == [dict, dict]
    for nothing in (3, [3], "pipe", values):
        with pytest.raises(TypeError, match="counters: expected a loader, a pipeline, an iterator of DALI's, .* but found"):
            dali_zarr.counters(nothing)
