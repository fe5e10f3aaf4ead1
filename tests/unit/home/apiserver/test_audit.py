"""The audit log."""

from typing import Any

import msgspec

from serving.core.model.grants import Grant, Role
from serving.home.apiserver.audit import AuditedRequest, AuditLog
from serving.home.apiserver.roles import FULL_GRANT, Access

ANN = Grant(user="ann", role=Role.VIEW, namespaces=frozenset({"team"}))
SCALE = Access(verb="patch", group="apps", resource="deployments", subresource="scale", namespace="team", name="d")


def request(**arguments: object) -> AuditedRequest:
    defaults: dict[str, Any] = {"uri": "/x?a=b", "verb": "get", "source": "127.0.0.1", "agent": "kubectl/1.32"}
    return msgspec.structs.replace(AuditedRequest(**defaults, received_s=0.0, audit_id="1"), **arguments)


def lines_of(*requests: AuditedRequest, code: int = 200, now_s: float = 1.5) -> list[dict[str, Any]]:
    written: list[bytes] = []
    log = AuditLog(written.append)
    for audited_request in requests:
        log.record(audited_request, code=code, now_s=now_s)
    return [msgspec.json.decode(line) for line in written]


def test_audit_event_has_kubernetes_format() -> None:
    assert lines_of(request(grant=ANN, access=SCALE, version="v1"), code=201) == [
        {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": "1",
            "stage": "ResponseComplete",
            "requestURI": "/x?a=b",
            "verb": "patch",
            "user": {"username": "ann", "groups": ["serving:view", "system:authenticated"]},
            "sourceIPs": ["127.0.0.1"],
            "userAgent": "kubectl/1.32",
            "objectRef": {
                "resource": "deployments",
                "namespace": "team",
                "name": "d",
                "apiGroup": "apps",
                "apiVersion": "v1",
                "subresource": "scale",
            },
            "responseStatus": {"code": 201, "metadata": {}},
            "requestReceivedTimestamp": "1970-01-01T00:00:00.000000Z",
            "stageTimestamp": "1970-01-01T00:00:01.500000Z",
            "annotations": {"authorization.k8s.io/decision": "allow"},
        }
    ]


def test_forbidden_request_is_logged_with_reason() -> None:
    (line,) = lines_of(request(grant=ANN, access=Access(verb="get", path="/y"), reason="no"), code=403)
    assert line["annotations"] == {"authorization.k8s.io/decision": "forbid", "authorization.k8s.io/reason": "no"}
    assert line["objectRef"] is None


def test_audit_line_is_escaped_and_limited_in_size() -> None:
    written: list[bytes] = []
    AuditLog(written.append).record(request(grant=ANN, agent='"}\n{"kind"' + "x" * 9999), code=200, now_s=0.0)
    assert b"\n" not in written[0]
    assert len(written[0]) < 1024


def test_daemon_reads_are_logged_only_for_secrets_or_failures() -> None:
    def read(resource: str, verb: str = "list") -> AuditedRequest:
        return request(grant=FULL_GRANT, access=Access(verb=verb, resource=resource, namespace=None))

    assert lines_of(read("pods"), read("services", "watch")) == []
    assert len(lines_of(read("secrets"), read("pods", "delete"))) == 2
    assert len(lines_of(read("pods"), code=403)) == 1


def test_unauthenticated_requests_are_rate_limited_in_the_log() -> None:
    written: list[bytes] = []
    log = AuditLog(written.append)
    for _ in range(50):
        log.record(request(), code=401, now_s=10.0)
    log.record(request(grant=ANN), code=200, now_s=10.0)
    assert len(written) == 11
    log.record(request(reason="it guesses"), code=429, now_s=10.0)
    assert msgspec.json.decode(written.pop())["annotations"] == {"authorization.k8s.io/reason": "it guesses"}
    log.record(request(), code=401, now_s=11.0)
    annotations = msgspec.json.decode(written[-1])["annotations"]
    assert annotations == {"authorization.k8s.io/reason": "40 requests without a valid token are not logged"}
