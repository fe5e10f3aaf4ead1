"""Which readiness probes the queue-proxy runs."""

from typing import Any

import pytest

from serving.model.readinessprobe import kubelet_decides, runs_in_queue_proxy, with_kubernetes_scheme

PORTS = [{"containerPort": 8080}]


@pytest.mark.parametrize(
    ("probe", "runs"),
    [
        ({"httpGet": {"path": "/"}}, True),
        ({"httpGet": {"path": "/", "scheme": "HTTP"}}, True),
        ({"httpGet": {"path": "/", "scheme": "http"}}, True),
        ({"httpGet": {"path": "/", "scheme": "HTTPS"}}, False),
        ({"httpGet": {"path": "/", "host": "other"}}, False),
        ({"tcpSocket": {}}, True),
        ({"tcpSocket": {"host": "other"}}, False),
        ({"exec": {"command": ["true"]}}, False),
        ({"grpc": {"port": 1}}, False),
        ({}, False),
        (None, False),
    ],
)
def test_plain_http_and_tcp_run_in_the_queue_proxy(probe: dict[str, Any] | None, runs: bool) -> None:
    assert runs_in_queue_proxy(probe) is runs


@pytest.mark.parametrize(
    ("probe", "scheme"),
    [
        ({"httpGet": {"scheme": "http"}}, "HTTP"),
        ({"httpGet": {"scheme": "https"}}, "https"),
        ({"httpGet": {"path": "/"}}, None),
        ({"tcpSocket": {"port": 0}}, None),
    ],
)
def test_only_the_scheme_that_the_queue_proxy_speaks_is_respelt(probe: dict[str, Any], scheme: str | None) -> None:
    assert with_kubernetes_scheme(probe).get("httpGet", {}).get("scheme") == scheme


@pytest.mark.parametrize(
    ("containers", "decides"),
    [
        ([], False),
        ([{}], False),
        ([{"ports": PORTS}], False),
        ([{"ports": PORTS, "readinessProbe": {"tcpSocket": {}}}], False),
        ([{"ports": PORTS, "readinessProbe": {"exec": {}}}], True),
        ([{"ports": PORTS}, {"readinessProbe": {"tcpSocket": {}}}], True),
        ([{"ports": PORTS}, {}], False),
        # As a real API server stores a revision that names no port.
        ([{"readinessProbe": {"tcpSocket": {"port": 0}}}], False),
        ([{"readinessProbe": {"exec": {}}}], True),
    ],
)
def test_the_kubelet_decides_where_it_runs_a_probe(containers: list[dict[str, Any]], decides: bool) -> None:
    assert kubelet_decides(containers) is decides
