"""Events about ports for TCP: how they are written and read."""

from serving.core.model.event import About
from serving.core.model.knative import TCP_ANNOTATION
from serving.core.model.objects import Object
from serving.core.model.tcpevents import tcp_event, tcp_states

SERVICE = About(api_version="serving.knative.dev/v1", kind="Service", namespace="default", name="db", uid="u")


def an_event(number: int, problem: str, now: str) -> Object:
    return tcp_event(SERVICE, number, problem=problem, now=now, instance="activator-0")


def test_an_event_names_its_port_and_equal_ones_share_a_name() -> None:
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


def test_the_newest_event_of_a_port_counts() -> None:
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
