"""Output of recorded requests, also from unreachable, older or foreign activators."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from serving.core.traffic.requesthistory import ErrorCause, RequestRecord, RequestReport
from serving.home.state import kubeconfig
from serving.tools.cli.main import main
from serving.tools.cli.services.requests import error_table, logs_command, time_text

ONE = RequestRecord(
    service="cart",
    revision="cart-00001",
    at_wall_s=1_700_000_000.5,
    method="POST",
    path="/pay",
    status=502,
    failed_by="app",
    why="the app or its pod ended",
    is_cold=True,
    start_s=1.01,
    app_s=0.194,
    duration_s=1.204,
    pod="cart-00001-a",
    trace_id="0af7",
)
FINE = msgspec.structs.replace(
    ONE,
    at_wall_s=ONE.at_wall_s + 1,
    status=200,
    failed_by="",
    why="",
    is_cold=False,
    duration_s=0.0001,
    start_s=0,
    app_s=0,
)
CAUSE = ErrorCause(failed_by="app", status=0, why="gone", count=7, first_wall_s=1.0, last_wall_s=2.0)
REPORT = RequestReport(
    service="cart", revision="cart-00001", failed=[ONE], slow=[ONE, FINE], sampled=[ONE, FINE], errors=[CAUSE]
)


class _Activator(http.server.BaseHTTPRequestHandler):
    """Responds as an activator with ``status`` and ``body``; ``paths`` are the requested paths."""

    status = 200
    body = b""
    paths: list[str]

    def do_GET(self) -> None:
        type(self).paths.append(self.path)
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(name="activator")
def _activator() -> Iterator[tuple[type[_Activator], str]]:
    handler = type("Handler", (_Activator,), {"paths": [], "body": msgspec.json.encode([REPORT])})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield handler, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def run_requests(folder: Path, *arguments: str) -> Result:
    (folder / "kubeconfig").write_text(kubeconfig("http://127.0.0.1:1", "secret"), encoding="utf-8")
    return CliRunner().invoke(main, ["requests", "cart", "--state", str(folder), *arguments], env={"KUBECONFIG": None})


def test_time_text_lists_nonzero_parts_of_the_duration() -> None:
    assert time_text(ONE) == "1204 ms, cold: start 1010, app 194"
    assert time_text(FINE) == "0 ms"


def test_logs_command_selects_pod_and_time_of_a_request() -> None:
    command = logs_command(ONE, "shop")
    assert command.startswith("serving logs cart -n shop --pod cart-00001-a --since 20")
    assert " --until 20" in command


def test_most_frequent_error_is_listed_first() -> None:
    rare = msgspec.structs.replace(CAUSE, count=1, why="rare", status=500)
    lines = error_table([rare, CAUSE])
    assert lines[1].split()[0] == "7"
    assert lines[2].endswith("rare")
    assert error_table([]) == []


@pytest.mark.parametrize(
    ("flags", "statuses"), [((), ["502", "200"]), (("--failed",), ["502"]), (("--slow",), ["502", "200"])]
)
def test_each_request_is_listed_once(
    activator: tuple[type[_Activator], str], tmp_path: Path, flags: tuple[str, ...], statuses: list[str]
) -> None:
    handler, url = activator
    done = run_requests(tmp_path, *flags, "--activator", url)
    assert [
        word for line in done.output.splitlines() if " POST " in line for word in line.split() if word in {"502", "200"}
    ] == statuses
    assert "    app: the app or its pod ended" in done.output
    assert "pod cart-00001-a, trace 0af7" in done.output
    assert handler.paths == ["/requests/default/cart"]


def test_json_output_merges_reports_of_activators(activator: tuple[type[_Activator], str], tmp_path: Path) -> None:
    _, url = activator
    done = run_requests(tmp_path, "-o", "json", "--activator", url, "--activator", f"{url}/metrics")
    (report,) = msgspec.json.decode(done.stdout, type=list[RequestReport])
    assert [error_cause.count for error_cause in report.errors] == [14]
    assert len(report.failed) == 2


@pytest.mark.parametrize(
    ("status", "body", "part"),
    [
        (401, b"", "refuses the query token"),
        (404, b"", "answers 404: it may be older than this command"),
        (200, b"<html>", "does not answer: JSON is malformed"),
    ],
)
def test_activator_failure_is_reported_in_one_line(
    activator: tuple[type[_Activator], str], tmp_path: Path, status: int, body: bytes, part: str
) -> None:
    handler, url = activator
    handler.status, handler.body = status, body
    done = run_requests(tmp_path, "--activator", url)
    assert done.exit_code == 1
    assert part in done.output
    assert len(done.output.splitlines()) == 1


def test_requests_are_listed_if_one_of_two_activators_responds(
    activator: tuple[type[_Activator], str], tmp_path: Path
) -> None:
    _, url = activator
    done = run_requests(tmp_path, "--activator", "http://127.0.0.1:1", "--activator", url)
    assert done.exit_code == 0
    assert "the activator at http://127.0.0.1:1 does not answer" in done.output
    assert " 502 POST /pay" in done.output


def test_requests_without_a_running_system_advise_serving_up(tmp_path: Path) -> None:
    done = run_requests(tmp_path)
    assert done.exit_code == 1
    assert "serving up" in done.output
