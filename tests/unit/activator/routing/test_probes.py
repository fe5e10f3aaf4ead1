"""Probes of the activator itself."""

import pytest

from serving.activator.routing.probes import ProbeQuestion, ProbeResponse, is_probe_agent, probe_response
from serving.activator.routing.sites import Listener, Site
from serving.core.model.rollout import split_digest

ACTIVATOR = ProbeResponse(status=200, body=b"activator")
SITE = Site(route="default/r", namespace="default", revisions=("a", "b"), bounds=(90, 100))
OK = ProbeResponse(status=200, body=b"ok")


def respond(
    target: bytes = b"/",
    *,
    probe: bytes | None = None,
    agent: bytes = b"curl/8",
    is_site: bool = True,
    is_draining: bool = False,
    listener: Listener = Listener.PUBLIC,
) -> ProbeResponse | None:
    question = ProbeQuestion(network_probe=probe, user_agent=agent, target=target, listener=listener)
    digest_of = {"default/hello": "abc"}.get
    return probe_response(question, site=SITE if is_site else None, digest_of=digest_of, is_draining=is_draining)


@pytest.mark.parametrize("is_site", [True, False])
def test_activator_probe_returns_activator(is_site: bool) -> None:
    assert respond(probe=b"activator", is_site=is_site) == ACTIVATOR


def test_host_probe_returns_the_traffic_digest() -> None:
    assert respond(probe=b"probe") == ProbeResponse(status=200, body=split_digest([("a", 90), ("b", 10)]).encode())
    assert respond(probe=b"probe", is_site=False) is None


@pytest.mark.parametrize("is_site", [True, False])
def test_inner_listener_returns_the_digest_of_a_route(is_site: bool) -> None:
    response = respond(b"/routes/default/hello", probe=b"route", is_site=is_site, listener=Listener.INNER)
    assert response == ProbeResponse(status=200, body=b"abc")


def test_an_unknown_route_has_no_digest() -> None:
    response = respond(b"/routes/default/other", probe=b"route", listener=Listener.INNER)
    assert response == ProbeResponse(status=404, body=b"no such route")


def test_public_listener_returns_no_route_digest() -> None:
    assert respond(b"/routes/default/hello", probe=b"route") is None


def test_unknown_network_probe_is_not_answered() -> None:
    assert respond(probe=b"queue") is None


@pytest.mark.parametrize("target", [b"/healthz", b"/healthz?verbose"])
def test_healthz_returns_200_without_a_service_at_the_host(target: bytes) -> None:
    assert respond(target, is_site=False) == OK


def test_healthz_of_a_service_is_not_intercepted() -> None:
    assert respond(b"/healthz") is None


def test_kubelet_probe_returns_200_without_a_service_at_the_host() -> None:
    assert respond(agent=b"kube-probe/1.32", is_site=False) == OK


def test_kubelet_probe_of_a_service_is_not_intercepted() -> None:
    assert respond(agent=b"kube-probe/1.32") is None


def test_healthz_returns_503_while_draining() -> None:
    assert respond(b"/healthz", is_site=False, is_draining=True) == ProbeResponse(status=503, body=b"shutting down")


def test_ordinary_request_is_not_a_probe() -> None:
    assert respond(is_site=False) is None


@pytest.mark.parametrize(
    ("agent", "is_probe"),
    [
        (b"kube-probe/1.32", True),
        (b"Knative-Activator-Probe", True),
        (b"KNATIVE-Autoscaling-Probe/2", True),
        (b"curl/8 kube-probe/1", False),
        (b"", False),
    ],
)
def test_probe_user_agents_are_recognized(agent: bytes, is_probe: bool) -> None:
    assert is_probe_agent(agent) is is_probe
