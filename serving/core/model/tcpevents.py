"""Events about the TCP ports of a service at activators."""

from collections.abc import Iterable

from serving.core.model.event import About, EventText, digest, new_event
from serving.core.model.knative import TCP_ANNOTATION
from serving.core.model.objects import Object, annotations_of
from serving.core.model.ports import port_of

TCP_UNAVAILABLE, TCP_LISTENING = "TcpUnavailable", "TcpListening"
"""Event reasons of a TCP port; the newest Event says whether the port accepts connections."""


def tcp_event(subject: About, number: int, *, problem: str, now: str, instance: str) -> Object:
    """The Event about a TCP port. It reports ``problem``, or that the port accepts connections if ``problem`` is ""."""
    message = problem or f"port {number} takes TCP connections"
    words = EventText(reason=TCP_UNAVAILABLE if problem else TCP_LISTENING, message=message, is_warning=bool(problem))
    suffix = digest(subject.uid, words.reason, message)
    event = new_event(subject, words, suffix=suffix, component="serving-activator", now=now, instance=instance)
    event["metadata"]["annotations"] = {TCP_ANNOTATION: str(number)}
    return event


def tcp_states(events: Iterable[Object]) -> dict[int, str]:
    """The message of the newest Event by port; "" if the port accepts connections."""
    states: dict[int, str] = {}
    # Of two Events in the same second the problem counts as older, because a lasting problem is reported again.
    for event in sorted(
        events, key=lambda event: (event.get("lastTimestamp") or "", event.get("reason") == TCP_LISTENING)
    ):
        number = port_of(annotations_of(event).get(TCP_ANNOTATION, ""))
        if number and event.get("reason") in (TCP_UNAVAILABLE, TCP_LISTENING):
            states[number] = event.get("message", "") if event["reason"] == TCP_UNAVAILABLE else ""
    return states
