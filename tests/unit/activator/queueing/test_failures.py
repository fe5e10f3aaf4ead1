"""Attribution of failed requests to a component, with the reason."""

import msgspec
import pytest

from serving.activator.queueing.failures import RequestEnd, RequestFacts, failure_of, pod_wait_s
from serving.net.proxy.forwarding.phase import ExchangeOutcome
from serving.net.proxy.http1.rendering import render_pod_wait, render_proxy_status

END = RequestEnd(
    outcome=ExchangeOutcome.ANSWERED,
    status=200,
    response_lines=b"",
    is_sent=True,
    is_unread=False,
    is_overdue=False,
    timeout_text="activator request timeout",
)
ANSWERED, REFUSED, GONE, CUT = (
    ExchangeOutcome.ANSWERED,
    ExchangeOutcome.REFUSED,
    ExchangeOutcome.CLIENT_GONE,
    ExchangeOutcome.CUT,
)
QUEUE_FULL = b"A: b\r\n" + render_proxy_status(b"queue-proxy", b"pending request queue full")
NO_APP = render_proxy_status(b"queue-proxy", b'the app said "no"')


@pytest.mark.parametrize(
    ("changes", "failed_by", "part"),
    [
        ({}, "", ""),
        ({"status": 404}, "", ""),
        ({"status": 500}, "app", "the app responded 500"),
        ({"status": 503, "response_lines": b"Proxy-Status: other\r\n"}, "app", "the app responded 503"),
        (
            {"status": 503, "response_lines": QUEUE_FULL},
            "queue-proxy",
            "pending request queue full (from the queue-proxy)",
        ),
        ({"status": 502, "response_lines": NO_APP}, "app", 'the app said "no" (from the queue-proxy)'),
        ({"outcome": GONE, "status": 0}, "client", "left before the app responded"),
        ({"outcome": GONE, "status": 500}, "app", "the app responded 500"),
        ({"outcome": GONE}, "client", "before its response was complete"),
        ({"outcome": GONE, "status": 0, "is_sent": False}, "client", "while the request waited for a pod"),
        ({"outcome": GONE, "is_unread": True}, "client", "or did not read its response"),
        ({"outcome": CUT, "is_overdue": True}, "app", "its time was up"),
        ({"outcome": CUT, "is_unread": True}, "client", "did not read its response"),
        ({"outcome": CUT}, "app", "ended early"),
        ({"outcome": REFUSED, "status": 504}, "app", "activator request timeout: the app did not respond in time"),
        ({"outcome": REFUSED, "status": 504, "is_sent": False}, "activator", "no pod took the request in time"),
        ({"outcome": REFUSED, "status": 408}, "client", "refused the request with status 408"),
        ({"outcome": REFUSED, "status": 502}, "app", "ended the connection without a response"),
        ({"outcome": REFUSED, "status": 503, "is_sent": False}, "activator", "it sent the request to no pod"),
    ],
)
def test_request_end_is_attributed_to_one_component(changes: dict[str, object], failed_by: str, part: str) -> None:
    text, why = failure_of(msgspec.structs.replace(END, **changes), RequestFacts())
    assert text == failed_by
    assert part in why


def test_recorded_failure_explains_a_refused_request_only() -> None:
    facts = RequestFacts()
    facts.fail("queue-proxy", "no connection")
    end = msgspec.structs.replace(END, outcome=REFUSED, status=502)
    assert failure_of(end, facts) == ("queue-proxy", "no connection")
    # Another pod has responded successfully.
    assert failure_of(END, facts) == ("", "")


def test_client_disconnect_during_cold_start_is_reported_as_such() -> None:
    end = msgspec.structs.replace(END, outcome=GONE, status=0, is_sent=False)
    assert failure_of(end, RequestFacts(is_cold=True))[1].endswith("waited for a pod to start")


@pytest.mark.parametrize(
    ("lines", "wait_s"),
    [
        (b"", 0.0),
        (render_pod_wait(0.25), 0.25),
        (b"Date: x\r\nserver-timing: pod-wait;dur=12\r\n", 0.012),
        (b"Server-Timing: pod-wait;dur=1e9\r\n", 0.0),
        (render_pod_wait(0.25) + render_pod_wait(0.5), 0.75),
    ],
)
def test_pod_wait_is_read_from_server_timing(lines: bytes, wait_s: float) -> None:
    assert pod_wait_s(lines) == pytest.approx(wait_s)
