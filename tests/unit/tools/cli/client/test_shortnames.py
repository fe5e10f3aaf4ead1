import os
import socket
from pathlib import Path

import pytest

from serving.core.model.knative import NAMED_PORT_ANNOTATION
from serving.core.model.objects import Object
from serving.core.model.routehosts import machine_gateway, named_address
from serving.home.processes import mounts
from serving.home.state import StateFolder
from serving.tools.cli.client import shortnames
from serving.tools.cli.client.shortnames import UNRESOLVED, privileged_problem, short_name_problem, short_url

INNER_PORT = 8081
ADDRESS = named_address(machine_gateway(INNER_PORT), "default")


def named(port: int) -> Object:
    return {"metadata": {"name": "api", "namespace": "default", "annotations": {NAMED_PORT_ANNOTATION: str(port)}}}


def test_only_a_service_with_a_named_port_has_a_short_url() -> None:
    assert short_url(named(8080)) == "http://api:8080/"
    assert short_url({"metadata": {"name": "api", "namespace": "default"}}) == ""


def test_privileged_port_needs_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shortnames, "_UNPRIVILEGED", tmp_path / "missing")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert privileged_problem(80) == ""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert privileged_problem(80).startswith("port 80 needs root")
    assert privileged_problem(1024) == ""


def test_short_name_is_reported_until_its_port_is_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mounts, "can_mount", lambda: True)
    assert short_name_problem(named(8080), tmp_path).startswith("ports.json: ")
    StateFolder(tmp_path).write_ports({"inner": INNER_PORT})
    with socket.create_server((ADDRESS, 0)) as server:
        port = server.getsockname()[1]
        assert short_name_problem(named(port), tmp_path) == ""
    expected = f"{ADDRESS}:{port} is not open: Connection refused; see the log of the activator"
    assert short_name_problem(named(port), tmp_path) == expected


def test_short_names_need_mount_namespaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mounts, "can_mount", lambda: False)
    assert short_name_problem(named(8080), tmp_path) == UNRESOLVED
