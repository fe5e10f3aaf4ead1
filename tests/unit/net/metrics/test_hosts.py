import pytest

from serving.net.metrics.queries import host_names_of, is_own_host

NAMES = host_names_of(" Scale.Example ,,other.example")


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1:6081", True),
        ("10.1.2.3", True),
        ("[::1]:6081", True),
        ("[::1]", True),
        ("localhost:6081", True),
        ("LOCALHOST", True),
        ("autoscaler:6081", True),
        ("autoscaler.knative-serving.svc:6081", True),
        ("autoscaler.knative-serving.svc.cluster.local", True),
        ("scale.example:6081", True),
        ("OTHER.example", True),
        ("evil.example:6081", False),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.svc.example", False),
        ("localhost.evil.example:6081", False),
        ("127.0.0.1:evil.example", False),
    ],
)
def test_only_addresses_local_names_and_configured_hosts_are_own_hosts(host: str, is_own: bool) -> None:
    assert is_own_host(host, NAMES) is is_own


def test_empty_text_has_no_host_names() -> None:
    assert host_names_of("") == frozenset()
