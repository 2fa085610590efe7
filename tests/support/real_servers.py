"""Web servers of others that serve a directory, with their own access logs: aiohttp's files, and nginx where it is installed.

The server of ``server.py`` answers as its author thinks that servers do. The servers here were made without this reader
in mind.

``python real_servers.py ROOT LOG`` serves with aiohttp, and prints the URL.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

KINDS = ["aiohttp", "nginx"]


def why_not(kind: str) -> str | None:
    """Returns None where this server can be started, else the reason why not."""
    return "no nginx: it isn't installed" if kind == "nginx" and shutil.which("nginx") is None else None


@dataclass(frozen=True)
class Request:
    """A request, as the server logged it."""

    method: str
    path: str
    range: str
    status: int
    connection: str
    """The same for requests that came one after the other by the same connection."""


class RealServer:
    """Serves ``root`` until :meth:`close`, or the end of a ``with`` block; what it needs besides lies in ``work``."""

    def __init__(self, kind: str, root: Path, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self._log = work / "access.log"
        self._log.touch()
        self._read = self._marks = 0
        start = {"aiohttp": self._aiohttp, "nginx": self._nginx}[kind]
        self.url, self._process = start(Path(root), work)
        self.take_log()

    def __enter__(self) -> RealServer:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _aiohttp(self, root: Path, _work: Path) -> tuple[str, subprocess.Popen[str]]:
        command = [sys.executable, __file__, str(root), str(self._log)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        url = process.stdout.readline().strip()
        if not url:
            process.wait(5)
            raise RuntimeError("aiohttp's server didn't start; see what it printed")
        return url, process

    def _nginx(self, root: Path, work: Path) -> tuple[str, subprocess.Popen[str]]:
        # nginx can't choose a free port itself. Before it listens to the one found here, another program may take that.
        for _ in range(5):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            (work / "nginx.conf").write_text(_nginx_configuration(root, work, self._log, port))
            process = subprocess.Popen(
                ["nginx", "-p", str(work), "-c", "nginx.conf", "-e", str(work / "error.log")], stderr=subprocess.DEVNULL, text=True
            )
            url = f"http://127.0.0.1:{port}"
            if _answers(url, process):
                return url, process
        raise RuntimeError(f"nginx didn't start: {(work / 'error.log').read_text()}")

    def take_log(self) -> list[Request]:
        """Returns the requests that were answered since the last call. A request is logged after its answer. So a
        request of our own, the mark, is sent last, and this waits until it is in the log."""
        self._marks += 1
        mark = f"/mark-{self._marks}"
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(self.url + mark, timeout=30)
        for _ in range(1000):
            text = self._log.read_text()[self._read :]
            lines = text.splitlines(keepends=True)
            if text.endswith("\n") and any(f'"{mark}"' in line for line in lines):
                break
            time.sleep(0.02)
        self._read += len(text)
        requests = [Request(**json.loads(line)) for line in lines if f'"{mark}"' not in line]
        return [replace(r, path=unquote(r.path)) for r in requests]


def _answers(url: str, process: subprocess.Popen[str]) -> bool:
    """Waits until the server answers. Returns False if its process ends before, or if it takes too long."""
    for _ in range(200):
        if process.poll() is not None:
            return False
        try:
            urllib.request.urlopen(f"{url}/is-anybody-there", timeout=5)
        except urllib.error.HTTPError:
            return True
        except OSError:
            time.sleep(0.02)
    process.kill()
    process.wait()
    return False


def _nginx_configuration(root: Path, work: Path, log: Path, port: int) -> str:
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    line = '{"method":"$request_method","path":"$request_uri","range":"$http_range","status":$status,"connection":"$connection"}'
    return f"""
daemon off; master_process off; pid {work}/nginx.pid; error_log {work}/error.log;
events {{ worker_connections 1024; }}
http {{
    {" ".join(f"{name}_temp_path {work}/{name};" for name in temporary)}
    log_format requests escape=json '{line}';
    access_log {log} requests;
    default_type application/octet-stream;
    server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


def _serve(root: Path, log: Path) -> None:
    import asyncio

    from aiohttp import web
    from aiohttp.abc import AbstractAccessLogger

    file = log.open("a", buffering=1)

    class Log(AbstractAccessLogger):
        def log(self, request, response, _time) -> None:
            # A client that is gone has no address any more.
            peer = request.transport.get_extra_info("peername") if request.transport else None
            print(json.dumps({
                "method": request.method, "path": request.raw_path, "range": request.headers.get("Range", ""),
                "status": response.status, "connection": str(peer[1]) if peer else "",
            }), file=file)

    async def run() -> None:
        application = web.Application()
        application.router.add_static("/", root)
        runner = web.AppRunner(application, access_log_class=Log)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), Path(sys.argv[2]))
