"""SPIFFE ids of daemons and pods."""

from serving.core.model.identities import ACTIVATOR, DAEMONS, PodIdentity, host_of, pods_of


def test_pod_id_has_namespace_revision_and_pod() -> None:
    spiffe_id = PodIdentity(namespace="shop", revision="front-00001", pod="front-x").spiffe_id
    assert spiffe_id == "spiffe://serving.local/ns/shop/revision/front-00001/pod/front-x"
    assert spiffe_id == pods_of("shop", "front-00001") + "front-x"


def test_daemon_ids_do_not_have_prefix_of_pods() -> None:
    assert ACTIVATOR in DAEMONS
    assert not any(daemon.startswith(pods_of("daemon", "activator")) for daemon in DAEMONS)


def test_daemon_has_host_name() -> None:
    assert host_of(ACTIVATOR) == "activator.serving.local"
