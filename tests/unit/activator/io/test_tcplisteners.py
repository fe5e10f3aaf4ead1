"""TCP port claims of a route, and the involved object of their Events."""

from typing import Any

import pytest

from serving.activator.io.tcplisteners import TcpClaim, tcp_claims_of
from serving.activator.routing.hostclaims import ServedRoute, route_of
from serving.core.model.knative import ACCESS_ANNOTATION, TCP_ANNOTATION, VISIBILITY_LABEL
from serving.core.settings.controller import ControllerSettings

SINCE = "2026-11-24T10:00:00Z"


def route(annotations: dict[str, str], **metadata: Any) -> ServedRoute:  # noqa: ANN401 - fields of the API
    result = {
        "metadata": {
            "name": "db",
            "namespace": "default",
            "creationTimestamp": SINCE,
            "annotations": annotations,
            **metadata,
        },
        "spec": {"traffic": [{"latestRevision": True, "percent": 100}, {"latestRevision": True, "tag": "new"}]},
    }
    served_route = route_of(result, ControllerSettings().host_rules)
    assert isinstance(served_route, ServedRoute)
    return served_route


def test_route_claims_each_tcp_port_for_its_public_host() -> None:
    claims = tcp_claims_of(route({TCP_ANNOTATION: "5432,1883"}))
    assert claims == tuple(
        TcpClaim(since=SINCE, route="default/db", port=port, host="db.default.localhost") for port in (5432, 1883)
    )


@pytest.mark.parametrize(
    "served",
    [
        route({}),
        route({TCP_ANNOTATION: "none"}),
        route({TCP_ANNOTATION: "5432", ACCESS_ANNOTATION: "private"}),
        route({TCP_ANNOTATION: "5432"}, labels={VISIBILITY_LABEL: "cluster-local"}),
    ],
    ids=["not asked for", "unreadable", "private", "cluster-local"],
)
def test_route_without_public_tcp_port_claims_none(served: ServedRoute) -> None:
    assert tcp_claims_of(served) == ()


def test_only_tls_claim_shares_its_port() -> None:
    plain, shared = tcp_claims_of(route({TCP_ANNOTATION: "5432,8883/tls"}))
    assert (plain.is_tls, shared.is_tls) == (False, True)


def test_event_object_is_the_owning_service_else_the_route() -> None:
    owners = [{"kind": "Other", "name": "x"}, {"kind": "Service", "name": "db", "uid": "s", "controller": True}]
    owned = route({TCP_ANNOTATION: "5432"}, uid="r", ownerReferences=owners).service
    assert (owned.kind, owned.name, owned.uid) == ("Service", "db", "s")
    alone = route({TCP_ANNOTATION: "5432"}, uid="r").service
    assert (alone.kind, alone.name, alone.uid) == ("Route", "db", "r")


def test_older_tcp_claim_sorts_first() -> None:
    old = TcpClaim(since="2026-01-01T00:00:00Z", route="default/z", port=1, host="z")
    young = TcpClaim(since="2026-01-02T00:00:00Z", route="default/a", port=1, host="a")
    assert sorted([young, old]) == [old, young]
