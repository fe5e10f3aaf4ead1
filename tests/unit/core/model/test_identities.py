"""SPIFFE ids of daemons and pods."""

from serving.core.model.identities import ACTIVATOR, DAEMONS, PodIdentity, host_of, pods_of


def test_a_pod_is_named_below_its_revision() -> None:
    spiffe_id = PodIdentity(namespace="shop", revision="front-00001", pod="front-x").spiffe_id
    assert spiffe_id == "spiffe://serving.local/ns/shop/revision/front-00001/pod/front-x"
    assert spiffe_id == pods_of("shop", "front-00001") + "front-x"


def test_no_pod_can_have_the_id_of_a_daemon() -> None:
    assert ACTIVATOR in DAEMONS
    assert not any(daemon.startswith(pods_of("daemon", "activator")) for daemon in DAEMONS)


def test_a_daemon_has_a_host_name_beside_its_id() -> None:
    assert host_of(ACTIVATOR) == "activator.serving.local"
