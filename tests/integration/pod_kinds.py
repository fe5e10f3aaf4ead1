"""The runtimes of pods, and apps that run in each of them."""

import sys

import msgspec

from tests.integration.local_stage import HELLO

_CGI = (
    r"""busybox mkdir -p /tmp/cgi-bin; printf '#!/bin/sh\nsleep 1; printf "Content-Type: text/plain\\r\\n\\r\\nslow"' """
    "> /tmp/cgi-bin/slow; busybox chmod 755 /tmp/cgi-bin/slow; exec /server"
)
# Both use 200 MiB while they handle a request.
_GREEDY_SHELL = (
    r"printf '#!/bin/sh\nread line && exec dd 3>&1 if=/dev/zero of=/dev/null bs=200M count=100' > /tmp/greedy; "
    "busybox chmod 755 /tmp/greedy; exec busybox nc -ll -p $PORT -e /tmp/greedy"
)
_GREEDY_PROCESS = """
import os, time
from http.server import BaseHTTPRequestHandler, HTTPServer
class Greedy(BaseHTTPRequestHandler):
    def do_GET(self):
        held = b"x" * (200 << 20)
        time.sleep(60)
HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Greedy).serve_forever()
"""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime: its name, its apps with a slow path, and the variables that it adds to the environment."""

    name: str
    server: str
    slow_server: str
    slow_path: str
    greedy_server: str
    adds: frozenset[str]


PROCESS = Kind(
    name="process",
    server=f"exec {sys.executable} {HELLO}",
    slow_server=f"exec {sys.executable} {HELLO}",
    slow_path="/sleep/4",
    greedy_server=f"exec {sys.executable} -c '{_GREEDY_PROCESS}'",
    adds=frozenset(),
)
CONTAINERS = [
    Kind(
        name=name,
        server="exec /server",
        slow_server=_CGI,
        slow_path="/cgi-bin/slow",
        greedy_server=_GREEDY_SHELL,
        adds=frozenset({"TARGET"}),
    )
    for name in ("crun", "runc", "rootless")
]
