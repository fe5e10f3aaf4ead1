"""SPIFFE ids of daemons and pods."""

import itertools

from serving.core.model.identities import ACTIVATOR, DAEMONS, PodIdentity, host_of, pods_of

# The words of all ids, and names that begin with others.
NAMES = ("ns", "revision", "pod", "daemon", "activator", "autoscaler", "controller", "dashboard", "a", "a-b", "pod-a")


def test_pod_id_has_namespace_revision_and_pod() -> None:
    spiffe_id = PodIdentity(namespace="shop", revision="front-00001", pod="front-x").spiffe_id
    assert spiffe_id == "spiffe://serving.local/ns/shop/revision/front-00001/pod/front-x"
    assert spiffe_id == pods_of("shop", "front-00001") + "front-x"


def test_daemon_ids_do_not_have_prefix_of_pods() -> None:
    assert len(DAEMONS) == 4
    for namespace, revision in itertools.product(NAMES, NAMES):
        assert not any(daemon.startswith(pods_of(namespace, revision)) for daemon in DAEMONS)


def test_prefix_is_that_of_no_other_revision() -> None:
    pairs = list(itertools.product(NAMES, NAMES))
    for (namespace, revision), other in itertools.product(pairs, pairs):
        spiffe_id = PodIdentity(namespace=namespace, revision=revision, pod="pod").spiffe_id
        assert spiffe_id.startswith(pods_of(*other)) == ((namespace, revision) == other)


def test_daemon_has_host_name() -> None:
    assert host_of(ACTIVATOR) == "activator.serving.local"
