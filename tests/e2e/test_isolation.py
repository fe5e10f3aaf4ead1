"""An attacker's app in a whole system: it can connect to the system's ports, which reject its requests."""

import json
import urllib.request
from pathlib import Path
from urllib.parse import quote

import pytest

from serving.home.state import StateFolder
from tests.e2e.cli_stage import Stage
from tests.integration.test_isolation import ATTACKER, command

pytestmark = pytest.mark.timeout(300)


def test_app_is_rejected_at_system_ports(serving: Stage, tmp_path: Path) -> None:
    serving("deploy", "evil", str(tmp_path), "--command", command(ATTACKER), "--min-scale", "1")
    ports = StateFolder(serving.state).read_ports()
    text = quote(json.dumps({"state": str(serving.state), "pid": 1, "pod": "", "ports": ports}))
    request = urllib.request.Request(f"http://127.0.0.1:{ports['public']}/?{text}")
    request.add_header("Host", "evil.default.localhost")
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310 - a local address
        document = json.load(response)
    assert len(document) == 4 + 15
    assert {name: refusal for name, refusal in document.items() if "status 4" not in refusal} == {}
