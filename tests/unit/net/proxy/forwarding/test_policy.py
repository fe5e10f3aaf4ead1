import pytest

from serving.net.proxy.forwarding.policy import NO_TIMEOUTS, Timeouts, member_of


def test_exchange_without_limits_never_expires() -> None:
    assert NO_TIMEOUTS.due_s(10.0, written_s=10.0, has_begun=False) == float("inf")


def test_earliest_timeout_applies() -> None:
    limits = Timeouts(total_s=100.0, response_start_s=5.0, idle_s=20.0)
    assert limits.due_s(10.0, written_s=10.0, has_begun=False) == 15.0
    assert limits.due_s(10.0, written_s=14.0, has_begun=True) == 34.0
    assert limits.due_s(10.0, written_s=100.0, has_begun=True) == 110.0


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
def test_address_is_matched_against_networks(networks: str, address: str, is_member: bool) -> None:
    assert member_of(networks)(address) is is_member


def test_invalid_network_raises_value_error() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        member_of("10.0.0.0/8, nowhere")
