"""An HTTP server of a directory, with ranges, a log of requests, latency, and faults on demand."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import os
import pickle
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import cloudpickle

from .processes import Process

# How a fault ends an answer, after its status, its headers and some bytes of its body: the connection is closed, at
# once or after 3 s.
CLOSE, STALL = "close", "stall"
# What has no end in an answer with a status of a fault.
BODY, HEADERS = "body", "headers"
# Seconds after which gathered requests are answered even if there are too few. Then the test fails.
GATHERING = 60


class Server:
    """Serves ``root`` until :meth:`close`, or the end of a ``with`` block.

    The server is a process of its own, so that it takes no time from the reader's process. ``fault`` is copied to it
    with what it refers to, and called there for each request (its number, its method and path). It returns None to
    answer, a status, a number of seconds (float) to wait first, or a pair: how many bytes to send, and ``CLOSE`` or
    ``STALL``; or a status, and ``BODY`` or ``HEADERS``, which have no end then. ``gather`` is a number and the beginning
    of paths: requests for such paths are answered only after that many requests were under way at a time.
    """

    running: ClassVar[set[Server]] = set()

    def __init__(
        self, root: Path, latency: float = 0.0, fault: Callable[[int, str, str], object] | None = None,
        gather: tuple[int, str] | None = None,
    ) -> None:
        with Listener(family="AF_UNIX") as listener:
            asked = (listener.address, Path(root), latency, _copied(fault), gather)
            script = "import sys; from support import server; server.serve(sys.argv[1])"
            self._process = Process(script, base64.b64encode(pickle.dumps(asked)).decode(), imports="server")
            self._pipe = listener.accept()
        self.url: str = self._pipe.recv()
        self.running.add(self)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self.running.discard(self)
        with contextlib.suppress(BrokenPipeError):
            self._pipe.send("close")
        self._pipe.close()
        out, err = self._process.communicate()
        assert self._process.returncode == 0, f"exit status {self._process.returncode}\n{out}\n{err}"

    def _ask(self, what: str):
        self._pipe.send(what)
        return self._pipe.recv()

    def take_log(self) -> list[tuple[str, str, str]]:
        """Returns method, path and range of each request; the log begins anew."""
        return self._ask("log")

    def counts(self) -> Counter[tuple[str, str]]:
        """Returns how often each path was asked for, by method; the log begins anew."""
        return Counter((method, path) for method, path, _ in self.take_log())

    @property
    def most_in_flight(self) -> int:
        return self._ask("most")

    @property
    def in_flight(self) -> int:
        return self._ask("now")


class _State:
    def __init__(self, root: Path, latency: float, fault, gather) -> None:
        self.root, self.latency, self.fault, self.gather = root, latency, fault, gather
        self.log: list[tuple[str, str, str]] = []
        self.lock = threading.Condition()
        self.count = self.in_flight = self.most = 0

    def begin(self, method: str, path: str, range_: str) -> int:
        with self.lock:
            self.log.append((method, path, range_))
            self.count += 1
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            self.lock.notify_all()
            return self.count

    def wait_for_others(self, path: str) -> None:
        if self.gather and path.startswith(self.gather[1]):
            with self.lock:
                self.lock.wait_for(lambda: self.most >= self.gather[0], GATHERING)

    def end(self) -> None:
        with self.lock:
            self.in_flight -= 1

    def take_log(self) -> list[tuple[str, str, str]]:
        with self.lock:
            log, self.log = self.log, []
        return log


def _copied(fault: Callable[[int, str, str], object] | None) -> bytes:
    """Pickles the function itself, and not the name of its module, which the server would have to import."""
    if fault is None:
        return cloudpickle.dumps(None)
    module = sys.modules[fault.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(fault)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def serve(asked: str) -> None:
    """Runs the process of a :class:`Server`."""
    address, root, latency, fault, gather = pickle.loads(base64.b64decode(asked))
    pipe = Client(address)
    state = _State(root, latency, pickle.loads(fault), gather)

    class Handler(_Handler):
        state_of_server = state

    http = _Http(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    pipe.send(f"http://127.0.0.1:{http.server_address[1]}")
    try:
        while True:
            match pipe.recv():
                case "close":
                    os._exit(0)
                case "log":
                    pipe.send(state.take_log())
                case "now":
                    pipe.send(state.in_flight)
                case _:
                    pipe.send(state.most)
    except EOFError:
        os._exit(0)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request, client_address) -> None:
        """Ignores errors: in some tests clients go away in the middle."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    state_of_server: _State

    def log_message(self, *_) -> None:
        """Prints nothing: the log is kept in ``_State``."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        server = self.state_of_server
        path = unquote(urlsplit(self.path).path)
        number = server.begin(self.command, path, self.headers.get("Range", ""))
        try:
            server.wait_for_others(path)
            if server.latency:
                time.sleep(server.latency)
            fault = server.fault(number, self.command, path) if server.fault else None
            if isinstance(fault, float):
                time.sleep(fault)
                fault = None
            if isinstance(fault, int):
                return self._status(fault)
            if fault and fault[1] in (BODY, HEADERS):
                return self._endless(*fault)
            file = server.root / path.lstrip("/")
            if not file.is_file():
                return self._status(404)
            self._file(file, fault)
        finally:
            server.end()

    def _status(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _endless(self, status: int, what: str) -> None:
        """Goes on until the client closes the connection."""
        self.send_response(status)
        piece = b"X-More: " + b"x" * 1000 + b"\r\n"
        if what == BODY:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        while True:
            self.wfile.write(piece)

    def _file(self, file: Path, fault) -> None:
        stat = file.stat()
        tag = '"' + hashlib.sha1(f"{stat.st_mtime_ns} {stat.st_size}".encode()).hexdigest() + '"'
        if self.headers.get("If-Match", tag) != tag:
            return self._status(412)
        first, end = 0, stat.st_size
        wanted = self.headers.get("Range")
        if wanted:
            start, last = wanted.removeprefix("bytes=").split("-")
            if start:
                first, end = int(start), min(int(last) + 1 if last else end, end)
            else:
                first = max(0, end - int(last))
            if first >= end:
                return self._status(416)
        with file.open("rb") as opened:
            opened.seek(first)
            body = opened.read(end - first)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", email.utils.formatdate(stat.st_mtime, usegmt=True))
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{stat.st_size}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault is None:
            self.wfile.write(body)
            return
        bytes_, then = fault
        self.wfile.write(body[:bytes_])
        self.wfile.flush()
        if then == STALL:
            time.sleep(3)
        self.close_connection = True
