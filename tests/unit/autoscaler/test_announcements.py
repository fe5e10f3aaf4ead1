"""Addresses of announced pods."""

from typing import Any

import pytest

from serving.autoscaler import announcements
from serving.autoscaler.announcements import AnnouncementPace, announcement_of, workload_announcement_of
from serving.autoscaler.token_review import PodClaim
from serving.core.model.nodata import NoData
from serving.net.wire.frames import AnnouncedPod

CLAIM = PodClaim(namespace="default", revision="hello-00001", pod="p")


def pod(*, revision: str = "hello-00001", is_ending: bool = False, **status: Any) -> dict[str, Any]:  # noqa: ANN401
    metadata: dict[str, Any] = {"name": "p", "labels": {"serving.knative.dev/revision": revision}}
    if is_ending:
        metadata["deletionTimestamp"] = "2026-11-26T19:00:00Z"
    return {"metadata": metadata, "status": status}


def address_of(seen: dict[str, Any], host: str, port: str = "8012") -> str:
    announcement = announcement_of(CLAIM, seen, host=host, port=port)
    return announcement.missing if isinstance(announcement, NoData) else announcement


def test_announced_address_is_that_of_the_connection() -> None:
    assert address_of(pod(), "10.1.0.7") == "10.1.0.7:8012"


@pytest.mark.parametrize(
    ("host", "address"),
    [("::ffff:10.1.0.7", "10.1.0.7:8012"), ("fd00::7", "[fd00::7]:8012")],
)
def test_ipv4_mapped_and_ipv6_addresses_are_normalized(host: str, address: str) -> None:
    assert address_of(pod(), host) == address


@pytest.mark.parametrize(
    "status",
    [{"podIP": "10.1.0.7"}, {"podIP": "fd00::7", "podIPs": [{"ip": "fd00::7"}, {"ip": "10.1.0.7"}]}],
)
def test_connection_must_come_from_a_pod_ip_in_the_status(status: dict[str, Any]) -> None:
    assert address_of(pod(**status), "10.1.0.7") == "10.1.0.7:8012"
    assert address_of(pod(**status), "10.1.0.8").endswith("the pod's address: it comes from 10.1.0.8")


def test_pod_with_a_loopback_ip_may_announce_it() -> None:
    assert address_of(pod(podIP="127.64.0.3"), "127.64.0.3") == "127.64.0.3:8012"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "169.254.1.1", "", "/run/socket"])
def test_host_that_is_no_pod_address_is_rejected(host: str) -> None:
    assert address_of(pod(), host) == f"a connection from a pod's address, and not from {host}"


@pytest.mark.parametrize("port", ["", "0", "65536", "-1", "8012;", "٣", "80.12", "9" * 5000])
def test_invalid_port_is_rejected(port: str) -> None:
    assert address_of(pod(), "10.1.0.7", port).startswith("a port from 1 to 65535")


def test_pod_of_another_revision_is_rejected() -> None:
    assert address_of(pod(revision="other-00001"), "10.1.0.7") == (
        "a pod of revision hello-00001: it is one of other-00001"
    )


@pytest.mark.parametrize("seen", [pod(is_ending=True), pod(phase="Failed"), pod(phase="Succeeded")])
def test_terminating_or_finished_pod_is_rejected(seen: dict[str, Any]) -> None:
    assert address_of(seen, "10.1.0.7") == "a pod that does not end"


def test_pod_announcement_is_relayed_once_per_second() -> None:
    pace = AnnouncementPace()
    assert [pace.is_due(("default", "p"), now_s) for now_s in (0.0, 0.9, 1.0)] == [True, False, True]
    assert pace.is_due(("default", "q"), 1.0)


def test_known_pods_of_the_announcement_pace_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "_KNOWN_MAX", 2)
    pace = AnnouncementPace()
    assert all(pace.is_due(("default", name), 0.0) for name in ("a", "b", "c"))
    assert pace.is_due(("default", "a"), 0.1), "forgotten, so it is passed on again"


@pytest.mark.parametrize(
    ("ip", "port", "address"),
    [
        ("10.1.0.7", 80, "10.1.0.7:80"),
        ("10.1.0.7", "web", "10.1.0.7:8080"),
        ("fd00::7", "web", "[fd00::7]:8080"),
        ("10.1.0.7", "grpc", None),
        ("", 80, None),
    ],
)
def test_workload_pod_is_announced_at_the_target_port_of_its_service(
    ip: str, port: int | str, address: str | None
) -> None:
    containers = [{"name": "sidecar"}, {"name": "app", "ports": [{"name": "web", "containerPort": 8080}]}]
    seen = {"metadata": {"name": "p"}, "spec": {"containers": containers}, "status": {"podIP": ip} if ip else {}}
    expected = address and AnnouncedPod(namespace="default", revision="shop", pod="p", address=address, scheme="http")
    assert workload_announcement_of(("default", "shop"), seen, port) == expected
