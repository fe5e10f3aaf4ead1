"""Requests that the autoscaler allows a peer, by its certificate."""

import pytest

from serving.autoscaler.peer_rules import StatsPeer, objection
from serving.core.model.identities import ACTIVATOR, AUTOSCALER, DASHBOARD, PodIdentity

PLAIN, STRANGER = StatsPeer(), StatsPeer(is_tls=True)
LOOPBACK = StatsPeer(is_loopback=True)
POD_NAMES = {"namespace": "shop", "revision": "front-00001", "pod": "front-x"}
POD = PodIdentity(**POD_NAMES).spiffe_id


def of(identity: str) -> StatsPeer:
    return StatsPeer(is_tls=True, identity=identity)


@pytest.mark.parametrize(
    ("path", "names", "peer"),
    [
        ("/healthz", {}, PLAIN),
        ("/metrics", {}, PLAIN),
        ("/credentials", POD_NAMES, STRANGER),
        ("/stats", POD_NAMES, of(POD)),
        ("/announce", POD_NAMES, of(POD)),
        ("/stats", {"activator": "a"}, of(ACTIVATOR)),
        ("/stats", {"autoscaler": "b"}, of(AUTOSCALER)),
        ("/decisions", {}, of(DASHBOARD)),
        ("/decisions", {}, LOOPBACK),
        # The query token is checked later.
        ("/decisions", {}, STRANGER),
        ("/policies", {}, STRANGER),
        ("/metrics", {}, STRANGER),
    ],
)
def test_strict_mode_accepts_authorized_peers(path: str, names: dict[str, str], peer: StatsPeer) -> None:
    assert objection(path, names, peer, is_strict=True) is None


@pytest.mark.parametrize(
    ("path", "names", "peer", "why"),
    [
        ("/stats", POD_NAMES, PLAIN, "needs TLS"),
        ("/stats", POD_NAMES, LOOPBACK, "needs TLS"),
        ("/announce", POD_NAMES, LOOPBACK, "needs TLS"),
        ("/announce", POD_NAMES | {"pod": "front-y"}, of(POD), "may not report for"),
        ("/credentials", POD_NAMES, PLAIN, "needs TLS"),
        ("/decisions", {}, PLAIN, "needs TLS"),
        ("/stats", POD_NAMES, STRANGER, "needs a certificate"),
        ("/other", {}, STRANGER, "needs a certificate"),
        ("/decisions", {}, of(POD), "may not ask this"),
        ("/metrics", {}, of(POD), "may not ask this"),
        ("/policies", {}, PLAIN, "needs TLS"),
        ("/stats", {"activator": "a"}, of(POD), "may not report for"),
        ("/stats", POD_NAMES | {"pod": "front-y"}, of(POD), "may not report for"),
        ("/stats", {}, of(POD), "this name"),
    ],
)
def test_strict_mode_rejects_unauthorized_peers(path: str, names: dict[str, str], peer: StatsPeer, why: str) -> None:
    text = objection(path, names, peer, is_strict=True)
    assert text is not None
    assert why in text


def test_permissive_mode_accepts_plain_peers_and_checks_certificates() -> None:
    assert objection("/stats", POD_NAMES, PLAIN, is_strict=False) is None
    assert objection("/stats", {"activator": "a"}, of(POD), is_strict=False)
