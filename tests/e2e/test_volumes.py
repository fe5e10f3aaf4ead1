"""Volumes that outlive pods, as a user meets them. One system serves all tests: its start takes seconds."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli_stage import Stage, staged

APP = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open("/data/log", "a") as file:
            file.write(self.path)
        os.chmod("/data/log", 0o600)
        body = open("/data/log", "rb").read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("volumes") / "state") as stage:
        yield stage


def test_data_outlives_pods_and_a_volume_in_use_is_kept(serving: Stage, tmp_path: Path) -> None:
    """Starts three pods, and waits for the last to end."""
    (tmp_path / "app.py").write_text(APP)
    deploy = ("deploy", "notes", str(tmp_path), "--command", f"{sys.executable} app.py")
    missing = serving(*deploy, "--volume", "db:/data", code=2)
    assert "there is no volume db in namespace default; `serving volume create db`" in missing.stderr
    serving("volume", "create", "db", "--size", "10Mi")
    serving(*deploy, "--volume", "db:/data")
    assert serving("invoke", "notes", "/one").stdout == "/one"
    # Another revision, and so another pod, with another user where this one is root.
    serving("update", "notes", "-e", "A=1")
    serving.until_status("/one/two", "notes", "/two")
    refused = serving("volume", "delete", "db", code=1)
    assert "volume db is used by pod/notes-" in refused.stderr
    assert "revision/notes-00001" in refused.stderr
    folder = serving.state / "volumes" / "default" / "db"
    assert str(folder) in serving("volume", "list").stdout
    # The same name in another namespace is another volume, and there is none.
    other = serving(*deploy, "--volume", "db:/data", "-n", "other", code=2)
    assert "there is no volume db in namespace other" in other.stderr
    serving("delete", "notes", "--wait")
    serving("volume", "delete", "db")
    until_s = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < until_s, "the folder of the deleted volume stays"
        time.sleep(0.05)
