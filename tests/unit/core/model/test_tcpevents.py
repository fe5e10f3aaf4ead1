"""Events about TCP ports: writing and reading."""

from serving.core.model.event import About
from serving.core.model.knative import TCP_ANNOTATION
from serving.core.model.objects import Object
from serving.core.model.tcpevents import tcp_event, tcp_states

SERVICE = About(api_version="serving.knative.dev/v1", kind="Service", namespace="default", name="db", uid="u")


def an_event(number: int, problem: str, now: str) -> Object:
    return tcp_event(SERVICE, number, problem=problem, now=now, instance="activator-0")


def test_event_has_port_and_deterministic_name() -> None:
    problem = an_event(5432, "another program listens", "2026-11-24T10:00:00Z")
    assert (problem["type"], problem["reason"]) == ("Warning", "TcpUnavailable")
    assert problem["involvedObject"]["uid"] == "u"
    fine = an_event(5432, "", "2026-11-24T10:00:05Z")
    assert (fine["type"], fine["reason"], fine["message"]) == (
        "Normal",
        "TcpListening",
        "port 5432 takes TCP connections",
    )
    again = an_event(5432, "another program listens", "2026-11-24T10:00:10Z")
    assert again["metadata"]["name"] == problem["metadata"]["name"] != fine["metadata"]["name"]


def test_newest_event_of_port_is_its_state() -> None:
    early, late = "2026-11-24T10:00:00Z", "2026-11-24T10:00:05Z"
    events = [
        an_event(1, "", late),
        an_event(1, "taken", early),
        an_event(2, "", early),
        an_event(2, "taken", late),
        an_event(3, "", early),
        an_event(3, "taken", early),
        {"reason": "TcpListening", "metadata": {"annotations": {TCP_ANNOTATION: "x"}}},
        {"reason": "Other", "metadata": {"annotations": {TCP_ANNOTATION: "4"}}},
    ]
    assert tcp_states(events) == {1: "", 2: "taken", 3: ""}
