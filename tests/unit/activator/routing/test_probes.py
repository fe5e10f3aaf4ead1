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
def test_the_activator_says_that_it_is_in_the_path(is_site: bool) -> None:
    assert respond(probe=b"activator", is_site=is_site) == ACTIVATOR


def test_the_traffic_of_a_host_is_reported_as_a_digest() -> None:
    assert respond(probe=b"probe") == ProbeResponse(status=200, body=split_digest([("a", 90), ("b", 10)]).encode())
    assert respond(probe=b"probe", is_site=False) is None


@pytest.mark.parametrize("is_site", [True, False])
def test_the_inner_listener_answers_with_the_digest_of_a_route(is_site: bool) -> None:
    response = respond(b"/routes/default/hello", probe=b"route", is_site=is_site, listener=Listener.INNER)
    assert response == ProbeResponse(status=200, body=b"abc")


def test_an_unknown_route_has_no_digest() -> None:
    response = respond(b"/routes/default/other", probe=b"route", listener=Listener.INNER)
    assert response == ProbeResponse(status=404, body=b"no such route")


def test_the_public_listener_says_nothing_about_routes() -> None:
    assert respond(b"/routes/default/hello", probe=b"route") is None


def test_another_network_probe_is_not_believed() -> None:
    assert respond(probe=b"queue") is None


@pytest.mark.parametrize("target", [b"/healthz", b"/healthz?verbose"])
def test_health_is_reported_where_no_service_has_the_host(target: bytes) -> None:
    assert respond(target, is_site=False) == OK


def test_a_service_keeps_its_own_paths() -> None:
    assert respond(b"/healthz") is None


def test_a_kubelet_is_answered_where_no_service_has_the_host() -> None:
    assert respond(agent=b"kube-probe/1.32", is_site=False) == OK


def test_a_kubelet_is_not_believed_where_a_service_has_the_host() -> None:
    assert respond(agent=b"kube-probe/1.32") is None


def test_health_is_bad_while_we_go_away() -> None:
    assert respond(b"/healthz", is_site=False, is_draining=True) == ProbeResponse(status=503, body=b"shutting down")


def test_anything_else_is_no_probe() -> None:
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
def test_agents_of_probes_are_known(agent: bytes, is_probe: bool) -> None:
    assert is_probe_agent(agent) is is_probe
