import pytest

from serving.net.proxy.forwarding.client import peer_address


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (("192.0.2.7", 80), "192.0.2.7"),
        (("::ffff:192.0.2.7", 80, 0, 0), "192.0.2.7"),
        (("2001:db8::1", 80, 0, 0), "2001:db8::1"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_peer_address_unmaps_ipv4_and_defaults_to_unknown(name: object, address: str) -> None:
    assert peer_address(name) == address
