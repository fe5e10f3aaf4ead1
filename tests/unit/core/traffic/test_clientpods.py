"""The pods of client addresses."""

import pytest

from serving.core.traffic import clientpods
from serving.core.traffic.clientpods import ClientPods

KEY, OTHER = ("default", "shop"), ("default", "cart")


def test_client_retains_pod_until_timeout_after_last_request() -> None:
    pods = ClientPods()
    assert pods.pod_of(KEY, "1.1.1.1", 0.0) == ""
    pods.record(KEY, "1.1.1.1", "10.0.0.1:80", until_s=10.0)
    assert pods.pod_of(KEY, "1.1.1.1", 9.9) == "10.0.0.1:80"
    pods.record(KEY, "1.1.1.1", "10.0.0.1:80", until_s=19.9)
    assert pods.pod_of(KEY, "1.1.1.1", 19.8) == "10.0.0.1:80"
    assert pods.pod_of(KEY, "1.1.1.1", 19.9) == ""
    assert pods.pod_of(OTHER, "1.1.1.1", 0.0) == pods.pod_of(KEY, "2.2.2.2", 0.0) == ""


def test_least_recent_client_is_dropped_beyond_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clientpods, "_CLIENTS_MAX", 2)
    pods = ClientPods()
    for client in ("a", "b", "a", "c"):
        pods.record(KEY, client, f"pod of {client}", until_s=10.0)
    assert [pods.pod_of(KEY, client, 0.0) for client in "abc"] == ["pod of a", "", "pod of c"]
