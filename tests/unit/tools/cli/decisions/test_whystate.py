"""The output of ``serving why`` about ejected and dormant pods."""

import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serving.core.model.knative import CONDITION_DORMANT
from serving.core.traffic.ejection import EjectionReport
from serving.home.state import kubeconfig
from serving.tools.cli.client.api import ApiClient
from serving.tools.cli.client.output import clock_text
from serving.tools.cli.client.reach import Reach
from serving.tools.cli.decisions.whystate import dormant_lines, ejected_lines

SINCE_S = 1_700_000_000.0


def report(revision: str = "hello-00001", **changes: object) -> EjectionReport:
    made = EjectionReport(
        revision=revision,
        pod="hello-00001-x",
        address="127.64.0.3:8012",
        is_silent=True,
        failure_count=1,
        in_flight_count=4,
        since_wall_s=SINCE_S,
        until_wall_s=SINCE_S + 5,
    )
    return msgspec.structs.replace(made, **changes)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state folder of two activators: one responds with ``reports``, one is away."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (tmp_path / self.path.strip("/").replace("/", "-")).read_bytes()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        ports = {"public": 1, "activator-metrics": server.server_port, "activator-1-metrics": 1}
        (tmp_path / "ports.json").write_text(json.dumps(ports))
        (tmp_path / "kubeconfig").write_text(kubeconfig("http://127.0.0.1:1", "t"))
        yield tmp_path
        server.shutdown()
        thread.join()


def lines(state: Path, *reports: EjectionReport) -> list[str]:
    (state / "ejections-default").write_bytes(msgspec.json.encode(reports))
    return ejected_lines(Reach(ApiClient(state)), "default", lambda revision: revision == "hello-00001")


def test_a_silent_pod_is_named_with_its_requests_and_the_time_of_its_next_one(state: Path) -> None:
    (line,) = lines(state, report(), report("other-00001"))
    assert line.startswith(f"{clock_text(SINCE_S)} hello-00001 pod hello-00001-x (127.64.0.3:8012) answers nothing (4 ")
    assert line.endswith(f"ejected once); activator: it gets no requests until {clock_text(SINCE_S + 5)}")


def test_a_pod_that_takes_no_connection_is_distinguished_from_one_that_hangs(state: Path) -> None:
    (line,) = lines(state, report(is_silent=False, failure_count=3, until_wall_s=None))
    assert "takes no connection (3 times in a row); activator: it gets requests again" in line


def test_a_folder_without_a_system_has_none(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(kubeconfig("http://127.0.0.1:1", "t"))
    assert ejected_lines(Reach(ApiClient(tmp_path)), "default", lambda _: True) == []


def sleeper(revision: str, **condition: str) -> dict[str, Any]:
    return {
        "metadata": {"labels": {"serving.knative.dev/revision": revision}},
        "status": {"conditions": [{"type": CONDITION_DORMANT, **condition}]},
    }


def test_a_revision_says_how_many_of_its_pods_sleep_and_what_is_refused() -> None:
    pods = [
        sleeper("a", status="True", reason="Idle", message="m", lastTransitionTime="2026-11-24T10:00:00Z"),
        sleeper("a", status="False", reason="Refused", message="the quota cpu forbids it"),
        sleeper("b", status="False", reason="Running", message="m"),
        sleeper("c", status="True", reason="Idle", lastTransitionTime="?"),
        {"metadata": {"labels": {"serving.knative.dev/revision": "a"}}},
    ]
    first, second = dormant_lines(pods, {"a", "b"}.__contains__)
    assert re.fullmatch(r"a: 1 of 2 pods dormant, the longest since [\d: -]+; the quota cpu forbids it", first)
    assert second == "b: 0 of 1 pod dormant"
    assert list(dormant_lines(pods, {"c"}.__contains__)) == ["c: 1 of 1 pod dormant"]
