"""Streams: what is pushed comes, in the order of pushes, in one thread, in two, and in an event loop."""

from __future__ import annotations

import asyncio
import queue
import shutil
import threading
import time

import numpy as np
import pytest
from support.loaders import STEPS, fields, make, write
from support.pipelines import run_script
from support.stores import Layout, write_array

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("streams"))


def test_pushes_and_gets(path, device):
    loader = make(path, device, arrays=["n", "field"], random_shuffle=True)
    with loader.stream() as stream:
        stream.push([12, 7, 19])
        batch = stream.get()
        assert batch["n"].tolist() == [12, 7, 19]
        np.testing.assert_array_equal(batch["field"].cpu().numpy(), fields()[[12, 7, 19]])
        assert batch.index.tolist() == [[12], [7], [19]] and not batch.is_repeated.any()
        assert (batch.coords["time"] == np.datetime64("2020-01-01") + np.array([12, 7, 19]) * np.timedelta64(1, "h")).all()
        pushed = [np.random.default_rng(i).integers(0, STEPS, 1 + i % 4) for i in range(100)]
        for numbers in pushed:
            stream.push(numbers)
        assert len(stream) == 100
        assert [stream.get()["n"].tolist() for _ in pushed] == [numbers.tolist() for numbers in pushed]
        stream.push(torch.tensor([3]))
        stream.push(batch.index[1:])
        assert [stream.get()["n"].tolist() for _ in range(2)] == [[3], [7, 19]]
        assert len(stream) == 0 and stream.counters()["batches"] >= 103
    # The loader's own order is another matter.
    assert sorted(n for b in loader for n in b["n"].tolist()) == list(range(STEPS))


def test_two_threads(path, device):
    stream = make(path, device).stream()
    got = []

    def consume():
        for _ in range(300):
            got.append(stream.get()["n"].tolist())

    consumer = threading.Thread(target=consume)
    consumer.start()
    pushed = [[i % STEPS] * (1 + i % 4) for i in range(300)]
    for i, numbers in enumerate(pushed):
        stream.push(numbers, timeout=None)
        if i % 50 == 0:
            time.sleep(0.01)
    consumer.join()
    stream.close()
    assert got == pushed


def test_an_event_loop(path, device):
    async def run():
        stream = make(path, device).stream()
        first = asyncio.ensure_future(stream.aget())
        await asyncio.sleep(0.05)
        assert not first.done()
        stream.push([5])
        assert (await first)["n"].tolist() == [5]
        # One that is cancelled takes nothing away.
        lost = asyncio.ensure_future(stream.aget())
        await asyncio.sleep(0.01)
        lost.cancel()
        stream.push([6])
        assert (await stream.aget())["n"].tolist() == [6]
        stream.push([7])
        lost = asyncio.ensure_future(stream.aget())
        await asyncio.sleep(0)
        lost.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lost
        assert (await stream.aget())["n"].tolist() == [7]
        waiting = asyncio.ensure_future(stream.aget())
        await asyncio.sleep(0.01)
        stream.close()
        with pytest.raises(RuntimeError, match="the stream is closed"):
            await waiting

    asyncio.run(run())


def test_what_waits_is_bounded(path):
    with make(path, prefetch_queue_depth=1).stream() as stream:
        pushed = 0
        with pytest.raises(queue.Full, match="as many batches wait as may wait"):
            while True:
                stream.push([pushed % STEPS])
                pushed += 1
        assert pushed >= 1024
        begin = time.monotonic()
        with pytest.raises(queue.Full):
            stream.push([0], timeout=0.2)
        assert time.monotonic() - begin >= 0.2
        waiting = threading.Thread(target=stream.push, args=([22],), kwargs={"timeout": None})
        waiting.start()
        assert [stream.get()["n"].tolist() for _ in range(pushed)] == [[i % STEPS] for i in range(pushed)]
        assert stream.get()["n"].tolist() == [22]
        waiting.join()


def test_what_is_pushed_is_checked(path):
    with make(path).stream() as stream:
        for bad, kind, says in [
            ([STEPS], IndexError, f"from 0 to {STEPS - 1}, but found {STEPS}"),
            ([], ValueError, "from 1 to 4 samples in a batch"),
            (range(5), ValueError, "but 5 were pushed"),
            ([0.5], TypeError, "push: expected whole numbers of samples"),
            ([[1, 2]], ValueError, "expected samples by 1 numbers each"),
            (5, TypeError, "push: expected a list of samples, but found 5"),
            (torch.tensor(5), TypeError, "push: expected"),
        ]:
            with pytest.raises(kind, match=says):
                stream.push(bad)
        with pytest.raises(queue.Empty):
            stream.get(timeout=0.01)
        stream.push([1])
        assert stream.get()["n"].tolist() == [1]


def test_closing(path):
    stream = make(path).stream()
    failed = []

    def wait():
        try:
            stream.get()
        except RuntimeError as error:
            failed.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    stream.close()
    waiting.join(timeout=60)
    assert failed == ["dali_zarr: the stream is closed"]
    stream.close()
    for use in (stream.get, lambda: stream.push([1])):
        with pytest.raises(RuntimeError, match="the stream is closed"):
            use()
    # With batches that were pushed and not taken.
    stream = make(path).stream()
    for _ in range(50):
        stream.push([1, 2, 3])
    batch = stream.get()
    stream.close()
    assert batch["n"].tolist() == [1, 2, 3]
    make(path).stream().close()


def test_a_batch_that_fails_is_left_out(tmp_path, device):
    """The batches after it come, though DALI's pipeline can't go on after an error."""
    write_array(tmp_path, "n", np.arange(20, dtype="int64"), layout=Layout((1,)), dims=("t",), codec="zstd")
    (tmp_path / "n" / "c" / "7").write_bytes(b"no zstd")
    with make(tmp_path, device, batch_size=2).stream() as stream:
        for numbers in ([1, 2], [6, 7], [3], [7], [4, 5]):
            stream.push(numbers)
        got = []
        for _ in range(5):
            try:
                got.append(stream.get()["n"].tolist())
            except RuntimeError as error:
                assert "c/7" in str(error)
                got.append(None)
        assert got == [[1, 2], None, [3], None, [4, 5]]
        stream.push([0])
        assert stream.get()["n"].tolist() == [0]


def test_with_a_transform(path, device):
    from nvidia.dali import fn

    def transform(outputs):
        return {"row": outputs["row"] * 2, "mean": fn.reductions.mean(outputs["row"])}

    loader = make(path, device, arrays=["row"], transform=transform)
    with loader.stream() as stream:
        stream.push([3, 1])
        batch = stream.get()
        assert batch["row"].tolist() == [[18, 20, 22], [6, 8, 10]] and batch["mean"].tolist() == [10, 4]


def test_a_store_that_is_gone(path, tmp_path):
    shutil.copytree(path, tmp_path / "store")
    stream = make(tmp_path / "store").stream()
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(ValueError, match="store"):
        stream.push([1])
    stream.close()


@pytest.mark.parametrize("how", ["left open", "a thread waits", "a thread pushes", "interrupted"])
def test_processes_end(path, how):
    """With a stream that nobody closed, whose operator waits for a push."""
    script = f"""
import os, signal, sys, threading, time
from dali_zarr.torch import Loader
stream = Loader({str(path)!r}, arrays=["n"], device="cpu", batch_size=2, host_memory_limit="64MiB").stream()
for numbers in ([3], [4], [5, 6]):
    stream.push(numbers)
print(stream.get()["n"].tolist(), flush=True)
how = {how!r}
# A shell starts programs in the background with this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
if how == "a thread waits":
    threading.Thread(target=lambda: [stream.get() for _ in range(9)], daemon=True).start()
    time.sleep(0.2)
if how == "a thread pushes":
    threading.Thread(target=lambda: [stream.push([1], timeout=None) for _ in range(10**6)], daemon=True).start()
    time.sleep(0.2)
if how == "interrupted":
    stream.get(), stream.get()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        stream.get()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    stream.push([7])
    print(stream.get()["n"].tolist(), flush=True)
"""
    found = run_script(script, timeout=60).split("\n")
    assert found[0] == "[3]"
    assert how != "interrupted" or found[1:3] == ["interrupted", "[7]"]


def test_a_forked_process_is_refused(path):
    script = f"""
import os, warnings
warnings.simplefilter("ignore")
from dali_zarr.torch import Loader
stream = Loader({str(path)!r}, arrays=["n"], device="cpu", host_memory_limit="64MiB").stream()
stream.push([3])
child = os.fork()
if not child:
    try:
        stream.push([4])
    except (RuntimeError, ValueError) as error:
        os._exit(7 if "process" in str(error) else 1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(stream.get()["n"].tolist())
"""
    assert "[3]" in run_script(script, timeout=60)
