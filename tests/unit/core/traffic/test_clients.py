"""Addresses of clients, behind trusted and untrusted proxies."""

import gc

import pytest

from serving.core.traffic.clients import Clients, client_address, network_of
from serving.net.proxy.forwarding.policy import member_of

TRUSTS = member_of("10.0.0.0/8")


@pytest.mark.parametrize(
    ("peer", "lines", "client"),
    [
        ("192.0.2.1", [b"1.1.1.1"], "192.0.2.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [b"1.1.1.1"], "1.1.1.1"),
        ("10.0.0.1", [b"6.6.6.6, 1.1.1.1"], "1.1.1.1"),
        ("10.0.0.1", [b"6.6.6.6", b"1.1.1.1 , 10.0.0.2"], "1.1.1.1"),
        ("10.0.0.1", [b"10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", [b"6.6.6.6, 1.1.1.1:4711"], "1.1.1.1"),
        ("10.0.0.1", [b"[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.1", [b"2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1", [b"1.1.1.1, unknown"], "10.0.0.1"),
        ("10.0.0.1", [b"1.1.1.1, "], "10.0.0.1"),
    ],
)
def test_last_untrusted_hop_is_client(peer: str, lines: list[bytes], client: str) -> None:
    assert client_address(peer, lines, trusts=TRUSTS) == client


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("1.1.1.1", "1.1.1.1"),
        ("::ffff:1.1.1.1", "1.1.1.1"),
        ("2001:db8:0:1::5", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
    ],
)
def test_ipv6_client_is_its_64_bit_network(address: str, client: str) -> None:
    assert network_of(address) == client


def test_requests_of_same_address_share_a_load() -> None:
    clients = Clients(TRUSTS)
    load = clients.load_of("10.0.0.1", [b"1.1.1.1"])
    assert load is clients.load_of("1.1.1.1", [])
    assert load is not clients.load_of("1.1.1.2", [])
    load.request_count += 1
    assert repr(load) == "ClientLoad(1.1.1.1, 1 requests)"


def test_unreferenced_client_load_is_dropped() -> None:
    clients = Clients(TRUSTS)
    load = clients.load_of("1.1.1.1", [])
    load.request_count = 5
    del load
    gc.collect()
    assert clients.load_of("1.1.1.1", []).request_count == 0
