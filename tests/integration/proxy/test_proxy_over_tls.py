"""The proxy's tests again, with TLS between clients and proxy."""

from collections.abc import Callable, Iterator

import pytest

from serving.net.proxy.tls.keeper import Certificates
from serving.net.proxy.tls.layer import TlsLayer
from tests.integration.proxy import (
    test_proxy_answers,
    test_proxy_lost,
    test_proxy_requests,
    test_proxy_streams,
)
from tests.integration.proxy.peers import WAY
from tests.integration.tls_stage import client_context, issued

pytestmark = pytest.mark.slow

# asyncio's client cannot half-close a connection over TLS, and discards unread bytes when a connection
# ends without close_notify. Other tests expect the scheme http, or a 503 above the connection limit; test_tls.py
# has their counterparts. The last ones test a queue-proxy, which has no TLS here.
_OTHERWISE = {
    "test_tunnel_forwards_bytes_both_ways_after_101",
    "test_half_close_of_upstream_is_forwarded_through_tunnel",
    "test_half_closed_client_receives_its_responses",
    "test_client_half_closed_within_a_request_is_disconnected",
    "test_half_closed_client_is_disconnected_after_seconds_without_response",
    "test_bytes_sent_before_request_timeout_are_delivered",
    "test_websocket_messages_are_forwarded_both_ways",
    "test_hop_by_hop_headers_are_removed_and_forwarded_headers_are_added",
    "test_connection_above_limit_receives_503",
    "test_one_connection_too_many_of_an_address_gets_503",
    # Over TLS, the connection is closed during the handshake.
    "test_client_receives_503_when_all_descriptors_are_in_use",
    "test_unmarked_request_receives_502_when_app_dies",
    "test_only_request_in_flight_is_not_returned_to_activator_when_app_dies",
    "test_concurrent_marked_requests_are_returned_to_activator_when_app_dies",
    "test_activator_receives_undelivered_mark_if_app_is_unreachable",
}


def _tests() -> Iterator[tuple[str, Callable[..., object]]]:
    for module in (test_proxy_answers, test_proxy_lost, test_proxy_requests, test_proxy_streams):
        for name, test in vars(module).items():
            if name.startswith("test_") and name not in _OTHERWISE:
                yield name, test


globals().update(_tests())


@pytest.fixture(autouse=True)
def over_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use TLS between all clients and proxies."""
    certificates = Certificates(handshake_max_s=10.0)
    certificates.update({"h": issued("h")})
    terms = certificates.terms
    monkeypatch.setattr(WAY, "make", lambda registry, wiring: TlsLayer(registry, wiring, terms))
    monkeypatch.setattr(WAY, "client", client_context())
