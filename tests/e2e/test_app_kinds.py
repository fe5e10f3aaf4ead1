"""Kinds of apps that a new user deploys: a shell script, a slow start, large bodies."""

import hashlib
import http.client
import shlex
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.cli_stage import Stage

pytestmark = pytest.mark.timeout(300)

_START_S = 10
_GIB = 2**30
_PIECE = bytes(range(256)) * 4096
_PATIENCE_S = 120.0
_SCRIPT = """#!/bin/sh
# The interpreter is named here, not in the manifest.
set -eu
mkdir -p "$HOME/pages"
echo "$GREETING from a script" >"$HOME/pages/index.html"
cd "$HOME/pages"
exec {python} -m http.server --bind 127.0.0.1 "$PORT"
"""
_SLOW = """
import os, time
time.sleep(SECONDS)
import http.server
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
# Responds to a POST with the digest of its body, and to a GET with the number of bytes in its path.
_LARGE = """
import hashlib, http.server, os

class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        digest, left = hashlib.sha256(), int(self.headers["Content-Length"])
        while left:
            piece = self.rfile.read(min(left, 1 << 20))
            digest.update(piece)
            left -= len(piece)
        self.answer(len(digest.hexdigest()), [digest.hexdigest().encode()])

    def do_GET(self):
        size, piece = int(self.path[1:]), bytes(range(256)) * 4096
        self.answer(size, (piece for _ in range(size // len(piece))))

    def answer(self, size, pieces):
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)

http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), App).serve_forever()
"""


def test_shell_script_is_deployed(serving: Stage, tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text(_SCRIPT.format(python=shlex.quote(sys.executable)), encoding="utf-8")
    script.chmod(0o755)
    done = serving("deploy", "script", str(tmp_path), "--command", "./start.sh", "-e", "GREETING=hello")
    assert done.stdout.startswith("http://script.default.localhost:")
    serving.until_status("hello from a script", "script")


@pytest.mark.slow
def test_app_with_ten_second_start_is_deployed(serving: Stage, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(_SLOW.replace("SECONDS", str(_START_S)), encoding="utf-8")
    begun_s = time.monotonic()
    serving("deploy", "slow", str(tmp_path), "--command", f"{shlex.quote(sys.executable)} app.py")
    assert time.monotonic() - begun_s >= _START_S
    assert "200 OK" in serving("invoke", "slow").stderr


@pytest.mark.slow
def test_bodies_of_a_gibibyte_are_sent_in_both_directions(serving: Stage, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(_LARGE, encoding="utf-8")
    url = serving("deploy", "large", str(tmp_path), "--command", f"{shlex.quote(sys.executable)} app.py").stdout
    serving("invoke", "large", "/0")
    host = url.splitlines()[0].removeprefix("http://")
    connection = http.client.HTTPConnection("127.0.0.1", int(host.rpartition(":")[2]), timeout=_PATIENCE_S)
    count, sent, received = _GIB // len(_PIECE), hashlib.sha256(), 0
    for _ in range(count):
        sent.update(_PIECE)
    headers = {"Host": host, "Content-Length": str(_GIB)}
    connection.request("POST", "/", body=(_PIECE for _ in range(count)), headers=headers)
    assert connection.getresponse().read().decode() == sent.hexdigest()
    connection.request("GET", f"/{_GIB}", headers={"Host": host})
    respond = connection.getresponse()
    while piece := respond.read(len(_PIECE)):
        received += len(piece)
    connection.close()
    assert (respond.status, received) == (200, _GIB)
