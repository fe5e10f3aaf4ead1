"""The proxy's tests again, with TLS in between."""

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

# asyncio's client cannot close one half of a connection over TLS, and forgets what it has not read when a connection
# ends without close_notify; some speak of what is other over TLS, the scheme and what becomes of one connection too
# many: their like is in test_tls.py. The last ones are of a queue-proxy, which has no
# TLS.
_OTHERWISE = {
    "test_after_a_101_bytes_pass_both_ways",
    "test_the_upstreams_end_of_a_tunnel_is_the_clients",
    "test_a_client_that_closes_its_direction_gets_its_responses",
    "test_a_client_that_closes_its_direction_within_a_request_has_left",
    "test_a_client_that_closed_its_direction_has_left_when_nothing_is_sent_to_it_for_seconds",
    "test_what_was_sent_before_the_time_was_up_still_arrives",
    "test_a_real_websocket_passes",
    "test_hop_by_hop_headers_go_and_the_way_is_written_down",
    "test_one_connection_too_many_gets_503",
    "test_one_connection_too_many_of_an_address_gets_503",
    # The connection ends within the handshake.
    "test_a_client_is_refused_where_all_descriptors_are_in_use",
    "test_an_unmarked_request_gets_502_when_the_app_ends",
    "test_a_request_that_was_alone_in_the_app_when_it_died_is_not_handed_back",
    "test_marked_requests_that_were_in_the_app_together_are_handed_back_when_it_ends",
    "test_an_activator_learns_that_no_app_has_seen_its_request",
}


def _tests() -> Iterator[tuple[str, Callable[..., object]]]:
    for module in (test_proxy_answers, test_proxy_lost, test_proxy_requests, test_proxy_streams):
        for name, test in vars(module).items():
            if name.startswith("test_") and name not in _OTHERWISE:
                yield name, test


globals().update(_tests())


@pytest.fixture(autouse=True)
def over_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put TLS between all clients and proxies."""
    certificates = Certificates(handshake_max_s=10.0)
    certificates.update({"h": issued("h")})
    terms = certificates.terms
    monkeypatch.setattr(WAY, "make", lambda registry, wiring: TlsLayer(registry, wiring, terms))
    monkeypatch.setattr(WAY, "client", client_context())
