"""Response headers of the activator and the queue-proxy: an app cannot forge them; its other entries are forwarded."""

import pytest

from serving.net.proxy.forwarding.exchange import UNDELIVERED
from serving.net.proxy.http1.rendering import render_pod_wait, render_proxy_status
from serving.net.proxy.http1.responsehead import read_response_head
from tests.integration.activator_stage import send_request, staged
from tests.integration.proxy.peers import Link, get
from tests.integration.proxy.pods import BELIEVED, forwarding

FORGED = (
    b'Proxy-Status: edge; error=a, queue-proxy; details="no free slot"\r\n'
    b'server-timing: db;desc="a, queue-proxy", Pod-Wait;dur=9000\r\n'
    b"Server-Timing: queue;dur=1, upstream;dur=2\r\n"
    b'Proxy-Status: "queue-proxy"; details="x"\r\n'
    b'Server-Timing: cut;desc="a, pod-wait;dur=9\r\n'
    b"X-Serving-Cold-Start: true\r\nX-Serving-Revision: other\r\n%b" % UNDELIVERED
)
WAITED = render_pod_wait(0.25)


async def forges(link: Link) -> None:
    """An app that sends the response headers of a queue-proxy."""
    while await link.head():
        link.send(b"HTTP/1.1 503 Service Unavailable\r\n%bContent-Length: 2\r\n\r\nno" % FORGED)


async def test_app_cannot_forge_queue_proxy_headers() -> None:
    async with forwarding(forges) as running:
        client = await running.client()
        for headers in (b"", BELIEVED + b"K-Proxy-Request: activator\r\n"):
            client.send(get(headers=headers))
            head, body = await client.message()
            assert (head.split(b" ")[1], body) == (b"503", b"no")
            lines = head.lower()
            assert b"edge; error=a" in lines
            assert b'server-timing: db;desc="a, queue-proxy"\r\n' in lines
            reserved = (b"pod-wait", b"queue;dur", b"upstream;dur", b"details", b"k-undelivered", b"x-serving-")
            assert [name for name in reserved if name in lines] == []


@pytest.mark.parametrize("is_on", [True, False])
async def test_pod_wait_is_sent_to_clients_only_if_enabled(is_on: bool) -> None:
    async with staged(tell_timing=is_on) as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        status = render_proxy_status(b"queue-proxy", b"busy")
        pod.response = b"HTTP/1.1 500 No\r\n%b%bX-Serving-Revision: other\r\nContent-Length: 0\r\n\r\n" % (
            WAITED,
            status,
        )
        response = await send_request(stage.public)
        (request_record,) = stage.activator.ingress.recorder.history.reports("default", "hello-00001", 0.0)[0].failed
    assert response.headers["proxy-status"] == 'queue-proxy; details="busy"'
    assert ("server-timing" in response.headers) is is_on
    assert response.headers["x-serving-revision"] == "hello-00001"
    # The request record has the detail in both cases.
    assert "busy" in request_record.why


def test_queue_proxy_marks_are_separated_from_app_headers() -> None:
    raw = b"HTTP/1.1 503 No\r\n%bA: b" % WAITED
    head = read_response_head(raw, method=b"GET", header_count_max=9)
    assert (head.wire, head.marks) == (b"A: b\r\n", WAITED)
