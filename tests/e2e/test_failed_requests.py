"""``serving requests`` on a running system: a cold start, app errors, a client abort and a timeout."""

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable

import msgspec
import pytest

from serving.core.traffic.requesthistory import RequestRecord, RequestReport
from serving.home.state import StateFolder
from tests.e2e.cli_stage import Stage

pytestmark = pytest.mark.timeout(300)

APP = """
import os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/slow"):
            time.sleep(600)
        self.send_response({"/broken": 500, "/later": 501}.get(self.path.partition("?")[0], 200))
        self.end_headers()
ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


@pytest.fixture(scope="module", autouse=True)
def _apps(serving: Stage, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("failed")
    (folder / "app.py").write_text(APP)
    command = ["--command", f"{sys.executable} app.py", "--concurrency", "10"]
    serving("deploy", "pay", str(folder), *command, "--initial-scale", "0")
    # Always has a pod, so that no cold start uses up its short timeout.
    serving("deploy", "late", str(folder), *command, "--min-scale", "1", "--timeout", "1")
    serving("invoke", "pay")


def sent(stage: Stage, path: str, *, service: str = "pay", timeout_s: float = 60.0) -> int:
    """The status of a GET at the public port; 0 if the client timed out."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", StateFolder(stage.state).read_ports()["public"], timeout=timeout_s
    )
    try:
        connection.request("GET", path, headers={"Host": f"{service}.default.localhost"})
        response = connection.getresponse()
        response.read()
    except TimeoutError:
        return 0
    else:
        return response.status
    finally:
        connection.close()


def recorded(stage: Stage, is_it: Callable[[RequestRecord], bool], *, name: str = "pay") -> RequestRecord:
    """Wait for a record, which an activator writes at the end of the response or when the client has disconnected."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        reports = msgspec.json.decode(stage("requests", name, "-o", "json").stdout, type=list[RequestReport])
        for request_record in (
            record for report in reports for record in (*report.failed, *report.sampled) if is_it(record)
        ):
            return request_record
        time.sleep(0.05)
    raise AssertionError(stage("requests", name).output)


def test_cold_request_record_has_start_duration(serving: Stage) -> None:
    request_record = recorded(serving, lambda record: record.is_cold)
    assert (request_record.status, request_record.failed_by, request_record.revision, request_record.service) == (
        200,
        "",
        "pay-00001",
        "pay",
    )
    assert 0 < request_record.start_s < request_record.duration_s


def test_app_errors_are_counted_by_cause_with_log_command(serving: Stage) -> None:
    assert [sent(serving, f"/broken?card={number}") for number in range(3)] == [500] * 3
    request_record = recorded(serving, lambda record: record.status == 500)
    assert (request_record.path, request_record.failed_by, request_record.why) == (
        "/broken",
        "app",
        "the app responded 500",
    )
    text = serving("requests", "pay", "--failed").stdout
    assert next(line.split()[0] for line in text.splitlines() if line.endswith("the app responded 500")) == "3"
    command = next(line for line in text.splitlines() if line.startswith("logs of the last failed one: serving "))
    serving(*command.split()[7:])


def test_client_abort_and_app_timeout_are_distinguished(serving: Stage) -> None:
    assert sent(serving, "/slow/client", timeout_s=0.5) == 0
    remaining = recorded(serving, lambda request_record: request_record.path == "/slow/client")
    assert (remaining.failed_by, remaining.status) == ("client", 0)
    assert sent(serving, "/slow/app", service="late") == 504
    late = recorded(serving, lambda request_record: request_record.status == 504, name="late")
    assert (late.failed_by, late.status, late.is_cold) == ("app", 504, False)
    assert late.app_s > 0.5
    assert late.pod


def test_requests_follow_prints_further_requests(serving: Stage) -> None:
    with serving.process("requests", "pay", "--failed", "-f", "-o", "json") as process:
        assert process.stdout is not None
        # Requests before the command's first query are not followed, so send until one is printed.
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.append(process.stdout.readline()))  # type: ignore[union-attr]
        reader.start()
        until_s = time.monotonic() + 60
        while not lines and time.monotonic() < until_s:
            sent(serving, "/later")
            time.sleep(0.2)
        reader.join(60)
    assert json.loads(lines[0])["path"] == "/later"


def test_requests_of_an_unknown_name_fails(serving: Stage) -> None:
    done = serving("requests", "nobody", code=1)
    assert "no such service, workload or revision" in done.stderr
