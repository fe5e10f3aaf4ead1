import pytest

from serving.proxy.forwarding.trust import member_of


@pytest.mark.parametrize(
    ("networks", "address", "is_member"),
    [
        ("", "10.0.0.1", False),
        ("10.0.0.0/8", "10.255.0.1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.0/8, 192.0.2.7", "192.0.2.7", True),
        ("10.0.0.0/8", "::ffff:10.0.0.1", True),
        ("10.0.0.0/8", "::1", False),
        ("fe80::/10", "fe80::1%eth0", True),
        ("0.0.0.0/0", "unknown", False),
    ],
)
def test_an_address_is_in_a_network_or_not(networks: str, address: str, is_member: bool) -> None:
    assert member_of(networks)(address) is is_member


def test_what_is_no_network_is_an_error() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        member_of("10.0.0.0/8, nowhere")
