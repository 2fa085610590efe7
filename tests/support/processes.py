"""Processes that run Python code, and begin with their imports done.

Importing DALI takes most of a second of a core, PyTorch four seconds. So a parent process imports the slow modules,
does nothing else, waits for scripts, and forks a child for each. The children have loaded no plugin of ours and started
no thread. On a machine with a GPU each process starts with an interpreter of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

TESTS = Path(__file__).parents[1]
# The modules that each parent process has imported. The one with PyTorch also has DALI's dynamic mode, and the compiler that
# PyTorch imports for the first optimizer, in two seconds.
IMPORTS = {
    "dali": ["numpy", "zarr", "nvidia.dali.fn", "nvidia.dali.pipeline"],
    "torch": [
        "numpy", "zarr", "xarray", "nvidia.dali.fn", "torch.distributed", "torch._dynamo", "nvidia.dali.experimental.dynamic",
        "matplotlib.pyplot",
    ],
    "only torch": ["torch"],
    "dask": ["numpy", "zarr", "xarray", "dask.array", "distributed", "nvidia.dali.fn", "nvidia.dali.pipeline"],
    "distributed": ["zarr", "distributed.cli.dask_scheduler", "distributed.cli.dask_worker"],
    "server": ["support.server"],
    "lightning": ["numpy", "zarr", "xarray", "nvidia.dali.fn", "lightning"],
}


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """Returns the environment of this process, in which the tests' modules can be imported."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])} | (more or {})


class Process:
    """Runs a script. ``imports`` is a key of :data:`IMPORTS`: the script finds these modules imported, and must need
    them anyway."""

    def __init__(self, script: str, *argv: object, imports: str = "dali", env: dict[str, str] | None = None) -> None:
        out, err, control = os.pipe(), os.pipe(), os.pipe()
        asked = {"script": script, "argv": ["-c", *map(str, argv)], "env": environment(env), "cwd": os.getcwd()}
        socket.send_fds(_parent(imports), [json.dumps(asked).encode()], [out[1], err[1], control[1]])
        for _, end in (out, err, control):
            os.close(end)
        self._out, self._err, self._control = out[0], err[0], control[0]
        self.pid = int(_line(self._control))
        self.returncode: int | None = None

    def line(self) -> str:
        """Returns the next line that it prints."""
        return _line(self._out)

    def communicate(self, timeout: float = 90) -> tuple[str, str]:
        """Returns what it prints from now on, until it has ended: to stdout and to stderr."""
        came = {self._out: b"", self._err: b"", self._control: b""}
        until = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for end in came:
                selector.register(end, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select(max(0, until - time.monotonic())):
                    read = os.read(key.fd, 1 << 16)
                    came[key.fd] += read
                    if not read:
                        selector.unregister(key.fd)
                if time.monotonic() > until:
                    self.kill()
                    raise TimeoutError(f"a process took longer than {timeout} s; it printed {came}")
        out, err, status = (text.decode() for text in came.values())
        self.returncode = int(status) if status else self.returncode
        return out, err

    def poll(self) -> int | None:
        """Returns its exit status, if it has ended, else None."""
        if self.returncode is None and select.select([self._control], [], [], 0)[0]:
            self.returncode = int(os.read(self._control, 20))
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        for end in (self._out, self._err, self._control):
            os.close(end)


def _line(end: int) -> str:
    """Reads up to the end of a line and no byte further."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(end, 1)):
        line += byte
    return line.decode()


class Fresh(subprocess.Popen):
    """The same as :class:`Process`, with an interpreter of its own."""

    def __init__(self, script: str, *argv: object, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-c", script, *map(str, argv)]
        super().__init__(command, env=environment(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def line(self) -> str:
        return self.stdout.readline()


def start(script: str, *argv: object, imports: str = "dali", env: dict[str, str] | None = None) -> Process | Fresh:
    """Starts a process that runs a script. With ``imports="nothing"``, or with a GPU, it has an interpreter of its
    own."""
    from .pipelines import why_no_gpu

    if imports == "nothing" or not why_no_gpu():
        return Fresh(script, *argv, env=env)
    return Process(script, *argv, imports=imports, env=env)


def start_program(*words: object, imports: str = "dali", env: dict[str, str] | None = None) -> Process | Fresh:
    """Starts a file of Python with its arguments."""
    script = "import runpy, sys; sys.argv[:1] = []; sys.path[:1] = []; runpy.run_path(sys.argv[0], run_name='__main__')"
    return start(script, *words, imports=imports, env=env)


def ranked(processes: int, *words: object) -> list[str]:
    """Runs a program on several ranks, and returns the lines that all printed. It does without torchrun: each rank has
    the variables that torchrun sets, and begins with its imports done."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    place["OMP_NUM_THREADS"] = "1"
    ranks = [
        start_program(*words, imports="torch", env=place | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(processes)
    ]
    done = [rank.communicate(400) for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), done
    return [line for out, _ in done for line in out.splitlines()]


@functools.cache
def _parent(imports: str) -> socket.socket:
    """Returns a channel to the parent process, which all workers of a run share. It ends when the last channel is
    closed."""
    # An abstract address: the kernel keeps it, there is no file. It is free again when the parent has ended.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    address = f"\0dali-zarr-tests-{run}-{imports}"
    until = time.monotonic() + 120
    while time.monotonic() < until:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            channel.connect(address)
            # The greeting comes when the imports are done. A process that was about to end gives none.
            if channel.recv(1) == _GREETING:
                return channel
        except ConnectionRefusedError:
            _start_parent(imports, address)
        except ConnectionResetError:
            pass
        channel.close()
    raise TimeoutError(f"no process that has imported {imports!r} answers")


_GREETING = b"!"


def _start_parent(imports: str, address: str) -> None:
    """Starts the parent process behind an address, unless another worker does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return
        listener.listen(64)
        command = [sys.executable, "-m", "support.processes", str(listener.fileno()), imports]
        parent = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, pass_fds=[listener.fileno()])
    atexit.register(_end, imports, parent)


def _end(imports: str, parent: subprocess.Popen[bytes]) -> None:
    """Closes the channel. The parent process may have to go on for other workers."""
    _parent(imports).close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        parent.wait(0.2)


def _reap(*_: object) -> None:
    """Waits for children that have ended, so that their times count as this process's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _serve(listener: socket.socket) -> dict:
    """Forks for each script that comes by one of the channels. Returns only in the children, which run the scripts,
    with the request."""
    signal.signal(signal.SIGCHLD, _reap)
    channels: list[socket.socket] = []
    while True:
        for ready in select.select([listener, *channels], [], [])[0]:
            if ready is listener:
                channel, _ = listener.accept()
                channels.append(channel)
                # A client that has ended meanwhile has closed its channel: the next select finds that.
                with contextlib.suppress(OSError):
                    channel.send(_GREETING)
                continue
            message, ends, _, _ = socket.recv_fds(ready, 1 << 20, 3)
            if not message:
                ready.close()
                channels.remove(ready)
            elif os.fork() == 0:
                for one in (listener, *channels):
                    one.close()
                return _child(message, *ends)
            for end in ends:
                os.close(end)
        if not channels:
            os._exit(0)


def _child(message: bytes, out: int, err: int, control: int) -> dict:
    """Waits for the process that runs the script, and ends. Returns in that process, which has this one as its parent."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        os.close(out)
        os.close(err)
        os.write(control, f"{child}\n".encode())
        os.write(control, str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
        os._exit(0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for end in (out, err, control):
        os.close(end)
    return json.loads(message)


def _become(asked: dict) -> dict:
    """Makes this process look as if it was started with the script; returns the namespace of its main module."""
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    sys.argv = asked["argv"]
    sys.path[:] = ["", *dict.fromkeys([*asked["env"]["PYTHONPATH"].split(os.pathsep), *sys.path[1:]])]
    sys.modules["__main__"] = types.ModuleType("__main__")
    return sys.modules["__main__"].__dict__


if __name__ == "__main__":
    for _name in IMPORTS[sys.argv[2]]:
        importlib.import_module(_name)
    # Otherwise each child would copy all memory pages of the imported modules when it collects garbage.
    gc.collect()
    gc.freeze()
    _asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    exec(compile(_asked["script"], "<string>", "exec"), _become(_asked))
