"""The certificates of a route's public hosts."""

from typing import Any

import msgspec
import pytest

from serving.controller.decide import decide
from serving.controller.values.writes import WritePlan
from serving.core.model.knative import CLUSTER_LOCAL, DISABLE_TLS_ANNOTATIONS, VISIBILITY_LABEL
from serving.core.model.objects import Object
from serving.core.settings.controller import ControllerSettings
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Delete, Patch
from tests.unit.controller.builders import (
    NOW,
    NOW_S,
    SETTINGS,
    a_cache,
    a_configuration,
    a_revision,
    a_route,
    condition_values,
    stored,
    with_ready,
    written_status,
)

ENABLED = msgspec.structs.replace(SETTINGS, external_domain_tls="enabled", public_tls_port=443)
LOCAL = msgspec.structs.replace(SETTINGS, cluster_local_domain_tls="enabled", inner_port=80)
KEY = (kinds.ROUTE, "default", "hello")
OWN, BLUE = "route-uid-of-route-hello", "route-uid-of-route-hello-69140905"
TRAFFIC: list[Object] = [{"revisionName": "hello-00001", "percent": 100, "tag": "blue"}]


def plan_of(
    *certificates: Object,
    missing: str = "",
    settings: ControllerSettings = ENABLED,
    **metadata: Any,  # noqa: ANN401 - JSON
) -> WritePlan:
    cache = a_cache(
        (kinds.CONFIGURATION, a_configuration()),
        (kinds.REVISION, with_ready(a_revision(), "True")),
        (kinds.ROUTE, a_route(traffic=TRAFFIC, **metadata)),
        settings=settings,
    )
    for certificate in certificates:
        assert KEY in cache.put(kinds.CERTIFICATE, certificate)
    assert bool(cache.set_missing(kinds.CERTIFICATE, missing)) is bool(missing)
    return decide(cache, KEY, now=NOW, now_s=NOW_S)


def created_certificates(**arguments: Any) -> dict[str, Object]:  # noqa: ANN401 - as plan_of
    plan = plan_of(**arguments)
    bodies = [write.body for write in plan.writes if isinstance(write, Create) and write.kind is kinds.CERTIFICATE]
    return {body["metadata"]["name"]: stored(body) for body in bodies}


def issued(certificate: Object, status: str = "True", **condition: object) -> Object:
    return {**certificate, "status": {"conditions": [{"type": "Ready", "status": status, **condition}]}}


def test_each_public_host_has_a_certificate_of_the_issuer() -> None:
    certificates = created_certificates()
    assert set(certificates) == {OWN, BLUE}
    assert certificates[BLUE]["spec"] == {
        "secretName": BLUE,
        "dnsNames": ["blue-hello.default.localhost"],
        "commonName": "blue-hello.default.localhost",
        "issuerRef": {"kind": "ClusterIssuer", "name": "knative-selfsigned-issuer"},
    }


@pytest.mark.parametrize("key", DISABLE_TLS_ANNOTATIONS)
def test_route_with_tls_disabled_by_annotation_has_no_certificate(key: str) -> None:
    annotations = {key: "true"}
    assert created_certificates(annotations=annotations) == {}
    status = written_status(plan_of(annotations=annotations), kinds.ROUTE)
    assert condition_values(status, "CertificateProvisioned")[:2] == ("True", "TLSNotEnabled")
    assert set(created_certificates(annotations={key: "false"})) == {OWN, BLUE}


def test_urls_are_http_until_a_certificate_is_ready() -> None:
    certificates = created_certificates()
    plan = plan_of(issued(certificates[OWN]), issued(certificates[BLUE], "False", message="the order is pending"))
    status = written_status(plan, kinds.ROUTE)
    assert status["url"] == "https://hello.default.localhost"
    assert status["traffic"][0]["url"] == "http://blue-hello.default.localhost:8080"
    state, reason, message = condition_values(status, "CertificateProvisioned")
    assert (state, reason) == ("True", "HTTPDowngrade")
    assert message == f'Certificate "{BLUE}" of blue-hello.default.localhost is not ready: the order is pending'


def test_all_urls_are_https_with_ready_certificates() -> None:
    status = written_status(plan_of(*map(issued, created_certificates().values())), kinds.ROUTE)
    assert status["traffic"][0]["url"] == "https://blue-hello.default.localhost"
    assert condition_values(status, "CertificateProvisioned")[0] == "True"


def test_changed_certificate_is_patched_and_unused_is_deleted() -> None:
    certificates = created_certificates()
    changed = issued({**certificates[OWN], "spec": {**certificates[OWN]["spec"], "dnsNames": ["evil.example"]}})
    old = issued({**certificates[BLUE], "metadata": {**certificates[BLUE]["metadata"], "name": "route-old"}})
    plan = plan_of(changed, certificates[BLUE], old)
    writes = [write for write in plan.writes if write.kind is kinds.CERTIFICATE]
    assert [write.patch["spec"] for write in writes if isinstance(write, Patch)] == [
        {"dnsNames": ["hello.default.localhost"]}
    ]
    assert [write.name for write in writes if isinstance(write, Delete)] == ["route-old"]
    assert written_status(plan, kinds.ROUTE)["url"].startswith("http://")


def test_certificate_of_another_owner_is_not_changed() -> None:
    foreign = issued(created_certificates()[OWN])
    foreign["metadata"].pop("ownerReferences")
    plan = plan_of(foreign)
    assert [type(write) for write in plan.writes if write.kind is kinds.CERTIFICATE] == [Create]
    assert written_status(plan, kinds.ROUTE)["url"].startswith("http://")


def test_missing_cert_manager_is_reported_in_condition() -> None:
    status = written_status(plan_of(missing="there is none"), kinds.ROUTE)
    assert condition_values(status, "CertificateProvisioned") == ("False", "CertManagerMissing", "there is none")


def test_cluster_local_route_has_no_public_certificate() -> None:
    plan = plan_of(labels={VISIBILITY_LABEL: CLUSTER_LOCAL})
    assert [write for write in plan.writes if write.kind is kinds.CERTIFICATE] == []


def test_cluster_local_host_has_certificate_and_https_address() -> None:
    certificates = created_certificates(settings=LOCAL)
    assert set(certificates) == {f"{OWN}-local", f"{BLUE}-local"}
    assert certificates[f"{OWN}-local"]["spec"]["dnsNames"] == [
        "hello.default",
        "hello.default.svc",
        "hello.default.svc.cluster.local",
    ]
    before = written_status(plan_of(settings=LOCAL), kinds.ROUTE)
    assert before["address"]["url"] == "http://hello.default.svc.cluster.local"
    after = written_status(plan_of(*map(issued, certificates.values()), settings=LOCAL), kinds.ROUTE)
    assert after["address"]["url"] == "https://hello.default.svc.cluster.local"
    assert after["url"].startswith("http://hello.default.localhost")
    labels = {VISIBILITY_LABEL: CLUSTER_LOCAL}
    local = written_status(plan_of(*map(issued, certificates.values()), settings=LOCAL, labels=labels), kinds.ROUTE)
    assert local["url"] == "https://hello.default.svc.cluster.local"
    assert local["traffic"][0]["url"] == "https://blue-hello.default.svc.cluster.local"
    own_port = msgspec.structs.replace(LOCAL, inner_port=8081)
    other = written_status(plan_of(*map(issued, certificates.values()), settings=own_port), kinds.ROUTE)
    assert other["address"]["url"] == "https://hello.default.svc.cluster.local:8081"


def test_route_service_has_https_port_with_cluster_local_tls() -> None:
    for settings, names in ((LOCAL, ["http", "https"]), (ENABLED, ["http"])):
        controller_settings = msgspec.structs.replace(settings, public_services=True)
        writes = plan_of(settings=controller_settings).writes
        services = [write.body for write in writes if isinstance(write, Create) and write.kind is kinds.SERVICE]
        assert [[port["name"] for port in service["spec"]["ports"]] for service in services] == [names, names]
