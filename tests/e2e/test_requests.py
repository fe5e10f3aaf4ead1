"""Policies of a service for its requests, from the command line: a token, sessions, a page while a pod starts."""

import json
from pathlib import Path

import httpx
import pytest

from tests.e2e.cli_stage import SAMPLE, Stage

pytestmark = pytest.mark.timeout(300)


def asked(serving: Stage, name: str, *header: str) -> httpx.Response:
    """A request with one header, as "Name: value", to the public port."""
    address = json.loads(serving("url", name, "-o", "json").stdout)
    headers = dict(text.split(": ", 1) for text in header)
    url = f"http://{address['connect_host']}:{address['connect_port']}/"
    return httpx.get(url, headers={"Host": address["host"], **headers}, timeout=60)


def test_a_private_service_needs_its_token_and_a_new_token_ends_the_old(serving: Stage, tmp_path: Path) -> None:
    serving("deploy", "billing", str(tmp_path), "--command", SAMPLE, "--access", "private")
    refused = asked(serving, "billing")
    assert refused.status_code == 401
    assert "service default/billing is private" in refused.text
    header = serving("token", "billing", "-o", "header").stdout.strip()
    assert asked(serving, "billing", header).status_code == 200
    assert serving("invoke", "billing").exit_code == 0
    new = serving("token", "billing", "--rotate").stdout.strip()
    assert new not in header
    # The route is ready again once the activators serve the change.
    serving("wait", "billing")
    while asked(serving, "billing", header).status_code != 401:
        pass
    assert asked(serving, "billing", f"Authorization: Bearer {new}").status_code == 200
    serving("deploy", "billing", str(tmp_path), "--command", SAMPLE, "--access", "public")
    while asked(serving, "billing").status_code != 200:
        pass
    assert "is public and has no token" in serving("token", "billing", code=1).stderr


def test_wrong_values_are_refused_before_anything_is_created(serving: Stage, tmp_path: Path) -> None:
    for option, text in (("--session-affinity", "sticky"), ("--route-by-header", "X-Beta")):
        done = serving("deploy", "wrong", str(tmp_path), "--command", SAMPLE, option, text, code=2)
        assert f'is "{text}", expected' in done.stderr
    assert "wrong" not in serving("get", "-o", "name").stdout


def test_a_browser_sees_a_page_and_then_the_response(serving: Stage, tmp_path: Path) -> None:
    command = f"sh -c 'sleep 3; exec {SAMPLE}'"
    options = ("--initial-scale", "0", "--placeholder-page", "true")
    serving("deploy", "slow", str(tmp_path), "--command", command, *options)
    accept = "Accept: text/html"
    page = asked(serving, "slow", accept)
    assert page.status_code == 503
    assert "slow is starting" in page.text
    assert page.headers["refresh"] == "1"
    while (response := asked(serving, "slow", accept)).status_code == 503:
        assert "slow is starting" in response.text
    assert response.status_code == 200
