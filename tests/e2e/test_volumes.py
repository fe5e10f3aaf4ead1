"""Persistent volumes, with one system for all tests."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli_stage import Stage, staged
from tests.integration.image_stage import app_image, needs_containers

# Images may use any user; only root can change the owner of files.
_OWNER = (1000, 1001) if os.geteuid() == 0 else (os.geteuid(), os.getegid())

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


def test_volume_data_survives_pods_and_used_volume_is_not_deleted(serving: Stage, tmp_path: Path) -> None:
    """Starts three pods, and waits for the last to end."""
    (tmp_path / "app.py").write_text(APP)
    deploy = ("deploy", "notes", str(tmp_path), "--command", f"{sys.executable} app.py")
    missing = serving(*deploy, "--volume", "db:/data", code=2)
    assert "there is no volume db in namespace default; `serving volume create db`" in missing.stderr
    serving("volume", "create", "db", "--size", "10Mi")
    serving(*deploy, "--volume", "db:/data")
    assert serving("invoke", "notes", "/one").stdout == "/one"
    # Another revision has another pod, which has another user if this process is root.
    serving("update", "notes", "-e", "A=1")
    serving.until_status("/one/two", "notes", "/two")
    refused = serving("volume", "delete", "db", code=1)
    assert "volume db is used by pod/notes-" in refused.stderr
    assert "revision/notes-00001" in refused.stderr
    folder = serving.state / "volumes" / "default" / "db"
    assert str(folder) in serving("volume", "list").stdout
    # The same name in another namespace is another volume, which does not exist.
    other = serving(*deploy, "--volume", "db:/data", "-n", "other", code=2)
    assert "there is no volume db in namespace other" in other.stderr
    serving("delete", "notes", "--wait")
    serving("volume", "delete", "db")
    until_s = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < until_s, "the folder of the deleted volume stays"
        time.sleep(0.05)


def test_backup_with_volumes_is_restored_into_an_empty_folder(serving: Stage, tmp_path: Path) -> None:
    """Starts a second system, which takes seconds."""
    (tmp_path / "app.py").write_text(APP)
    serving("apply", "-f", "-", stdin="{apiVersion: v1, kind: Namespace, metadata: {name: other}}")
    for namespace in ("default", "other"):
        serving("volume", "create", "kept", "-n", namespace)
    serving("deploy", "keeper", str(tmp_path), "--command", f"{sys.executable} app.py", "--volume", "kept:/data")
    assert serving("invoke", "keeper", "/one").stdout == "/one"
    ours, theirs = (serving.state / "volumes" / namespace / "kept" for namespace in ("default", "other"))
    (theirs / "log").write_text("theirs")
    (theirs / "log").chmod(0o640)
    os.chown(theirs / "log", *_OWNER)
    written = owners(ours), owners(theirs)
    file = tmp_path / "saved.tar.gz"
    assert "with volumes" in serving("backup", str(file), "--volumes").output
    assert "in use by process" in serving("restore", str(file), code=1).output
    # The backup does not contain later writes.
    assert serving("invoke", "keeper", "/late").stdout == "/one/late"
    target = tmp_path / "restored"
    assert "volumes begin empty" not in Stage(state=target, pid=0)("restore", str(file)).output
    assert tuple(owners(target / "volumes" / namespace / "kept") for namespace in ("default", "other")) == written
    # The app's folder does not exist on another machine; the snapshot is used.
    (tmp_path / "app.py").unlink()
    written_by_users = specs(serving)
    with staged(target) as restored:
        restored("wait", "keeper")
        assert specs(restored) == written_by_users
        assert restored("invoke", "keeper", "/two").stdout == "/one/two"
        assert (target / "volumes/other/kept/log").read_text() == "theirs"
        assert str(target / "volumes/other/kept") in restored("volume", "list", "-n", "other").stdout
    # Neither system writes into the folder of the other.
    assert (ours / "log").read_text() == "/one/late"
    serving("delete", "keeper", "--wait")


def specs(stage: Stage) -> list[Any]:
    """The specs of the services."""
    return [service["spec"] for service in json.loads(stage("get", "services", "-o", "json").stdout)["items"]]


def owners(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Mode, user and group of a folder and all that is in it."""
    result = {str(path.relative_to(folder)): path.lstat() for path in (folder, *folder.rglob("*"))}
    return {name: (values.st_mode, values.st_uid, values.st_gid) for name, values in result.items()}


@needs_containers()
def test_container_volume_survives_its_container(serving: Stage, tmp_path: Path) -> None:
    """Starts two containers, one after the other."""
    app_image(tmp_path / "web.tar", Entrypoint=["/bin/sh", "-c", "id -u >> /data/log; exec httpd -f -p $PORT -h /data"])
    serving("image", "import", str(tmp_path / "web.tar"))
    serving("volume", "create", "web")
    serving("deploy", "web", "--image", "test.local/web:1", "--volume", "web:/data")
    assert serving("invoke", "web", "/log").stdout == "0\n"
    serving("update", "web", "-e", "A=1")
    serving.until_status("0\n0\n", "web", "/log")
    log = serving.state / "volumes" / "default" / "web" / "log"
    assert (log.read_text(), log.stat().st_uid) == ("0\n0\n", 0)
    assert "volume web is used by" in serving("volume", "delete", "web", code=1).stderr
    serving("delete", "web", "--wait")
