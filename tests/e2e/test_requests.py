"""Request policies of a service on the command line: access tokens, option errors and the placeholder page."""

import json
from pathlib import Path

import httpx
import pytest

from tests.e2e.cli_stage import SAMPLE, Stage

pytestmark = pytest.mark.timeout(300)


def response_of(serving: Stage, name: str, *header: str) -> httpx.Response:
    """The response to a request at the public port, with headers as "Name: value"."""
    address = json.loads(serving("url", name, "-o", "json").stdout)
    headers = dict(text.split(": ", 1) for text in header)
    url = f"http://{address['connect_host']}:{address['connect_port']}/"
    return httpx.get(url, headers={"Host": address["host"], **headers}, timeout=60)


def test_private_service_requires_its_token_and_rotation_revokes_it(serving: Stage, tmp_path: Path) -> None:
    serving("deploy", "billing", str(tmp_path), "--command", SAMPLE, "--access", "private")
    refused = response_of(serving, "billing")
    assert refused.status_code == 401
    assert "service default/billing is private" in refused.text
    header = serving("token", "billing", "-o", "header").stdout.strip()
    assert response_of(serving, "billing", header).status_code == 200
    assert serving("invoke", "billing").exit_code == 0
    new = serving("token", "billing", "--rotate").stdout.strip()
    assert new not in header
    # The route is ready again once the activators serve the change.
    serving("wait", "billing")
    while response_of(serving, "billing", header).status_code != 401:
        pass
    assert response_of(serving, "billing", f"Authorization: Bearer {new}").status_code == 200
    serving("deploy", "billing", str(tmp_path), "--command", SAMPLE, "--access", "public")
    while response_of(serving, "billing").status_code != 200:
        pass
    assert "is public and has no token" in serving("token", "billing", code=1).stderr


def test_invalid_request_options_are_rejected_before_creation(serving: Stage, tmp_path: Path) -> None:
    for option, text in (("--session-affinity", "sticky"), ("--route-by-header", "X-Beta")):
        done = serving("deploy", "wrong", str(tmp_path), "--command", SAMPLE, option, text, code=2)
        assert f'is "{text}", expected' in done.stderr
    assert "wrong" not in serving("get", "-o", "name").stdout


def test_placeholder_page_is_served_until_the_pod_is_ready(serving: Stage, tmp_path: Path) -> None:
    command = f"sh -c 'sleep 3; exec {SAMPLE}'"
    options = ("--initial-scale", "0", "--placeholder-page", "true")
    serving("deploy", "slow", str(tmp_path), "--command", command, *options)
    accept = "Accept: text/html"
    page = response_of(serving, "slow", accept)
    assert page.status_code == 503
    assert "slow is starting" in page.text
    assert page.headers["refresh"] == "1"
    while (response := response_of(serving, "slow", accept)).status_code == 503:
        assert "slow is starting" in response.text
    assert response.status_code == 200
