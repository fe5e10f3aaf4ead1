"""Starts the servers that the suites compare, each a process of its own on 127.0.0.1.

Ours are the real daemons: the activator alone in front of a pod (``bench/peers/lone_activator.py``), the queue-proxy as
a pod runs it, both in a row, and the queue-proxy in the app's process. The others are proxies as Debian packages them,
with their defaults, or web servers that run the app themselves.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[3]
HOST = "hello.default.localhost"
_START_WITHIN_S = 60.0
# A port may be taken by another process before it is used.
_TRIES_MAX = 3
_PYTHON = (sys.executable, "-m")
_APP = "tests.conformance.http.origin:app"

_NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log /dev/null crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{app}; proxy_http_version 1.1; proxy_set_header Connection ""; }} }}
}}
"""
_HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  server s 127.0.0.1:{app}
"""
_APACHE = """
ServerRoot "{folder}"
PidFile "{folder}/apache.pid"
ServerName localhost
Listen 127.0.0.1:{port}
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule proxy_module /usr/lib/apache2/modules/mod_proxy.so
LoadModule proxy_http_module /usr/lib/apache2/modules/mod_proxy_http.so
ErrorLog /dev/null
DefaultRuntimeDir "{folder}"
ProxyPass "/" "http://127.0.0.1:{app}/"
"""

_NGINX_GRPC = """
daemon off; master_process off; pid {folder}/nginx-grpc.pid; error_log /dev/null crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_max_body_size 0; client_body_temp_path {folder}/grpc-body; proxy_temp_path {folder}/grpc-proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{port} http2; location / {{ grpc_pass grpc://127.0.0.1:{app}; }} }}
}}
"""
_HAPROXY_GRPC = """
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend f
  bind 127.0.0.1:{port} proto h2
  default_backend b
backend b
  server s 127.0.0.1:{app} proto h2
"""

# Ours, in the order of tables.
OURS = ("serving", "queue-proxy", "in-process")
_PROGRAMS = {"nginx": "nginx", "haproxy": "haproxy", "apache": "apache2"}


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A running server: its name in tables, and where it listens."""

    name: str
    address: tuple[str, int]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


class Stage:
    """Processes that end with the block. ``folder`` holds their configurations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: Callable[[int], Sequence[str]], *, environment: Mapping[str, str] | None = None) -> int:
        """Start a process at a free port, given to ``command``, and wait until it accepts connections there."""
        for _ in range(_TRIES_MAX):
            port = free_port()
            process = subprocess.Popen(
                [*command(port)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **_pod(port), **(environment or {})},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self._processes.append(process)
            if _accepts(process, port):
                return port
        raise RuntimeError(f"it does not start: {' '.join(command(0))}")

    def close(self) -> None:
        """End all processes."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def configured(self, template: str, *command: str, app: int) -> int:
        """Start a program with a configuration file, whose path is put for ``{}`` in the command."""

        def at(port: int) -> list[str]:
            path = self.folder / f"{command[0]}-{port}.conf"
            path.write_text(template.format(folder=self.folder, port=port, app=app))
            return [word.replace("{}", str(path)) for word in command]

        return self.start(at)

    def app(self) -> int:
        """The origin, by uvicorn."""
        return self.start(lambda port: [*_PYTHON, "uvicorn", _APP, "--port", str(port), "--log-level", "critical"])

    def grpc_app(self) -> int:
        """The server of the interoperability cases."""
        return self.start(lambda port: [*_PYTHON, "tests.conformance.grpc.server", str(port)])

    def queue_proxy(self, app: int, protocol: str = "http1") -> int:
        """A queue-proxy in front of an app."""
        pod = {"SERVING_POD_APP": f"127.0.0.1:{app}", "SERVING_POD_PROTOCOL": protocol}
        return self.start(lambda _: [*_PYTHON, "serving.queueproxy.main"], environment=pod)

    def in_process(self) -> int:
        """The origin with the queue-proxy in its process."""
        return self.start(lambda _: [*_PYTHON, "serving.asgi", _APP], environment={"SERVING_POD_APP": "127.0.0.1:1"})

    def activator(self, pod: int) -> int:
        """An activator in front of a pod, for the host ``HOST``."""
        return self.start(lambda port: [sys.executable, "bench/peers/lone_activator.py", str(port), str(pod)])


def _accepts(process: subprocess.Popen[bytes], port: int) -> bool:
    """Whether a process accepts connections; False when it has ended, as when another one took its port."""
    deadline_s = time.monotonic() + _START_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return process.poll() is None
        time.sleep(0.01)
    return False


def _pod(port: int) -> dict[str, str]:
    """The environment of a pod, which other programs ignore."""
    return {
        "PORT": str(port),
        "SERVING_POD_NAMESPACE": "default",
        "SERVING_POD_REVISION": "hello-00001",
        "SERVING_POD_NAME": "hello-1",
        "SERVING_POD_LISTEN": f"127.0.0.1:{port}",
        "SERVING_POD_ADMIN_LISTEN": "127.0.0.1:0",
        "SERVING_POD_PROTOCOL": "http1",
    }


MAKERS: dict[str, Callable[[Stage, int], int]] = {
    "serving": lambda stage, app: stage.activator(stage.queue_proxy(app)),
    "queue-proxy": lambda stage, app: stage.queue_proxy(app),
    "in-process": lambda stage, _: stage.activator(stage.in_process()),
    "nginx": lambda stage, app: stage.configured(_NGINX, "nginx", "-c", "{}", "-p", str(stage.folder), app=app),
    "haproxy": lambda stage, app: stage.configured(_HAPROXY, "haproxy", "-db", "-f", "{}", app=app),
    "apache": lambda stage, app: stage.configured(_APACHE, "apache2", "-X", "-f", "{}", app=app),
    "uvicorn": lambda stage, _: stage.app(),
}

GRPC_MAKERS: dict[str, Callable[[Stage, int], int]] = {
    "serving": lambda stage, app: stage.activator(stage.queue_proxy(app, "h2c")),
    "queue-proxy": lambda stage, app: stage.queue_proxy(app, "h2c"),
    "nginx": lambda stage, app: stage.configured(_NGINX_GRPC, "nginx", "-c", "{}", "-p", str(stage.folder), app=app),
    "haproxy": lambda stage, app: stage.configured(_HAPROXY_GRPC, "haproxy", "-db", "-f", "{}", app=app),
    "grpcio": lambda _, app: app,
}


def is_installed(name: str) -> bool:
    """Whether this machine has the program of a server."""
    return name not in _PROGRAMS or shutil.which(_PROGRAMS[name], path=f"{os.environ['PATH']}:/usr/sbin") is not None


@contextlib.contextmanager
def started(names: Sequence[str], *, grpc: bool = False) -> Iterator[list[Server]]:
    """Start servers by their names, in front of one origin, which speaks gRPC if ``grpc``."""
    makers = GRPC_MAKERS if grpc else MAKERS
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        try:
            app = stage.grpc_app() if grpc else stage.app()
            yield [Server(name=name, address=("127.0.0.1", makers[name](stage, app))) for name in names]
        finally:
            stage.close()
