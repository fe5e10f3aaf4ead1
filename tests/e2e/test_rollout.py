"""A gradual rollout with a rollout check, with real processes and requests."""

import http.client
import json
import sys
import time
import urllib.parse
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from serving.home.state import StateFolder
from tests.e2e.cli_stage import Stage

pytestmark = pytest.mark.timeout(300)

HOST = "rolled.default.localhost"
_PATIENCE_S = 120.0
APP = """
import http.server, os

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = os.environ["K_REVISION"].encode()
        self.send_response(int(os.environ["STATUS"]))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


def deploy(serving: Stage, folder: Path, status: int, check: str) -> None:
    """Apply the service; its new revision responds with ``status``."""
    (folder / "app.py").write_text(APP)
    annotations = {"serving.knative.dev/rollout-duration": "4s", "serving.dev/rollout-check": check}
    env = [{"name": "STATUS", "value": str(status)}]
    container = {"image": "app", "command": [sys.executable, str(folder / "app.py")], "env": env}
    body = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "rolled", "annotations": annotations},
        "spec": {
            "template": {
                "metadata": {"annotations": {"serving.dev/dir": str(folder)}},
                "spec": {"containers": [container]},
            }
        },
    }
    (folder / "service.json").write_text(json.dumps(body))
    serving("apply", "-f", str(folder / "service.json"))


def ready(serving: Stage) -> dict[str, Any]:
    document = json.loads(serving("get", "ksvc", "rolled", "-o", "json").stdout)
    conditions = {condition["type"]: condition for condition in document["status"].get("conditions", ())}
    return {**conditions.get("Ready", {}), "traffic": document["status"].get("traffic")}


def requested(serving: Stage, *, until_reason: str = "", until_revision: str = "") -> Counter[tuple[int, str]]:
    """Send requests until the service has a reason, or a revision all of its traffic; count statuses by revision."""
    port, counts = StateFolder(serving.state).read_ports()["public"], Counter[tuple[int, str]]()
    ends_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < ends_s:
        for _ in range(100):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/", headers={"Host": HOST})
            response = connection.getresponse()
            counts[response.status, response.read().decode()] += 1
            connection.close()
        state = ready(serving)
        shares = {target["revisionName"]: target["percent"] for target in state["traffic"] or ()}
        if (until_reason and state.get("reason") == until_reason) or shares == {until_revision: 100}:
            return counts
    raise AssertionError((ready(serving), counts))


def check_history(serving: Stage) -> None:
    """Check that stats and cost report the history."""
    ends_s = time.monotonic() + _PATIENCE_S
    results: list[dict[str, Any]] = []
    while not any(entry["pod_hours"] for entry in results if entry["service"] == "rolled"):
        assert time.monotonic() < ends_s
        results = json.loads(serving("cost", "--from", "10m", "-o", "json").stdout)
        time.sleep(0.2)
    table = serving("stats", "rolled", "--from", "10m", "-o", "csv").stdout.splitlines()
    assert table[0].startswith("time,revision,running,held,")
    assert table[1].count(",") == table[0].count(",")
    (entry,) = (entry for entry in results if entry["service"] == "rolled")
    assert entry["service"] == "rolled"
    assert entry["pod_hours"] <= entry["always_on_pod_hours"]
    assert serving("cost", "rolled").stdout.startswith("SERVICE")
    assert "is not before --to" in serving("stats", "rolled", "--from", "5m", "--to", "1h", code=2).stderr


def roll_back(serving: Stage) -> str:
    """Call the action of the "Roll back" button, and return its message."""
    link, token = serving("dashboard").stdout.strip(), serving("dashboard", "--token").stdout.strip()
    body = json.dumps({"namespace": "default", "service": "rolled"}).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(link).netloc, timeout=60)
    connection.request("POST", "/actions/rollback", body, headers)
    text = str(json.load(connection.getresponse())["said"])
    connection.close()
    return text


def check_rollback(serving: Stage, folder: Path) -> None:
    """Check a rollback from the dashboard during a rollout: it ends the rollout, and ``serving why`` reports it."""
    deploy(serving, folder, 201, "errors<11%,p99<30s")
    ends_s = time.monotonic() + _PATIENCE_S
    # The first step waits for responses of the new revision.
    while [target["revisionName"] for target in ready(serving)["traffic"]] != ["rolled-00003", "rolled-00004"]:
        assert time.monotonic() < ends_s, ready(serving)
        time.sleep(0.1)
    message = roll_back(serving)
    assert message.startswith("rolled: rolled back to rolled-00003 from rolled-00004 (1 %); ")
    requested(serving, until_revision="rolled-00003")
    serving("wait", "rolled", "--timeout", "60s")
    route = json.loads(serving("get", "route", "rolled", "-o", "json").stdout)
    assert "networking.internal.knative.dev/rollout" not in route["metadata"]["annotations"]
    assert f"rolled requested in the dashboard: {message}" in serving("why", "rolled").stdout
    compared = json.loads(serving("compare", "rolled", "3", "4", "-o", "json").stdout)
    assert [revision["traffic_percent"] for revision in compared["revisions"]] == [100, 0]
    assert [setting["name"] for setting in compared["settings"]] == ["env STATUS"]


def test_failing_revision_is_rolled_back_and_healthy_one_completes(serving: Stage, tmp_path: Path) -> None:
    deploy(serving, tmp_path, 200, "errors<5%,p99<30s")
    serving("wait", "rolled", "--timeout", "60s")
    deploy(serving, tmp_path, 500, "errors<5%,p99<30s")
    counts = requested(serving, until_reason="RolledBack")
    assert {status for status, revision in counts if revision == "rolled-00001"} == {200}
    state = ready(serving)
    assert [(target["revisionName"], target["percent"]) for target in state["traffic"]] == [("rolled-00001", 100)]
    assert 'Revision "rolled-00002" is rolled back by errors<5%,p99<30s: ' in state["message"]
    assert "RolledBack" in serving("describe", "rolled").stdout
    assert "Revision rolled-00002 is rolled back by errors<5%" in serving("why", "rolled").stdout
    deploy(serving, tmp_path, 200, "errors<10%,p99<30s")
    requested(serving, until_revision="rolled-00003")
    assert ready(serving)["status"] in {"True", "Unknown"}
    check_history(serving)
    check_rollback(serving, tmp_path)
