"""Failing apps of users: they must neither receive the traffic of a good revision nor expose their log."""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.core.model.objects import condition_of
from serving.home.state import StateFolder
from tests.e2e.cli_stage import Stage

pytestmark = pytest.mark.timeout(300)

INPUTS = Path(__file__).with_name("inputs")


def deploy(serving: Stage, app: Path, *options: str, code: int = 0) -> str:
    """The errors of a deployment of an app as a service of its name."""
    name = app.stem.replace("_", "-")
    command = f"{sys.executable} {app.name}"
    return serving("deploy", name, str(app.parent), "--command", command, *options, code=code).stderr


def responses(serving: Stage, host: str, *, count: int) -> list[tuple[int, str]]:
    """Status and body of a number of requests, one after the other; status 0 if the connection ends early."""
    url = f"http://127.0.0.1:{StateFolder(serving.state).read_ports()['public']}/"
    with httpx.Client(headers={"Host": f"{host}.default.localhost"}, timeout=60) as client:
        return [_response(client, url) for _ in range(count)]


def _response(client: httpx.Client, url: str) -> tuple[int, str]:
    try:
        response = client.get(url)
    except httpx.TransportError as error:
        return 0, str(error)
    return response.status_code, response.text


def read(serving: Stage, kind: str, name: str) -> Any:  # noqa: ANN401 - JSON
    return json.loads(serving("get", kind, name, "-o", "json").stdout)


def states(serving: Stage, name: str) -> tuple[set[tuple[int, str]], str, str]:
    """The different responses of 50 requests, then the latest ready revision and whether the Service is Ready."""
    observed = set(responses(serving, name, count=50))
    status = read(serving, "ksvc", name)["status"]
    return observed, status["latestReadyRevisionName"], condition_of({"status": status}, "Ready")["status"]


def test_revision_that_listens_and_exits_receives_no_traffic(serving: Stage) -> None:
    # knative/serving#10194
    app = INPUTS / "listens_then_crashes.py"
    name = "listens-then-crashes"
    deploy(serving, app, "--env", "VERSION=1", "--min-scale", "1")
    assert f"{name}-00002" in deploy(serving, app, "--env", "VERSION=2", "--min-scale", "1", code=1)
    # After a stall, the exit is seen late: the new revision then gets the traffic and loses it again.
    until_s = time.monotonic() + 60
    while (state := states(serving, name)) != ({(200, "served")}, f"{name}-00001", "False"):
        assert time.monotonic() < until_s, state


def test_deploy_reports_failure_of_an_app_that_listens_and_exits(serving: Stage, tmp_path: Path) -> None:
    # gunicorn whose worker fails
    app = shutil.copy(INPUTS / "listens_then_crashes.py", tmp_path / "first.py")
    assert "first-00001" in deploy(serving, Path(app), "--env", "VERSION=2", code=1)


def test_log_of_a_failing_app_is_shown_only_to_the_operator(serving: Stage, tmp_path: Path) -> None:
    app = Path(shutil.copy(INPUTS / "fails_with_secret.py", tmp_path / "shop.py"))
    deploy(serving, app, "--env", "DATABASE=away", "--initial-scale", "0")
    ((status, body),) = responses(serving, "shop", count=1)
    assert status == 503
    assert "PASSWORD" not in body
    until_s = time.monotonic() + 60
    while "postgres://" not in (page := serving("describe", "shop").stdout):
        assert time.monotonic() < until_s, page
        time.sleep(0.1)
