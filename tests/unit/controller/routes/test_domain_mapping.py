"""Conditions of a DomainMapping, and creation and deletion of its claim."""

from typing import Any

import msgspec
import pytest

from serving.controller.routes.domain_mapping import (
    MappingContext,
    reconcile_claim,
    reconcile_domain_mapping,
    target_of,
)
from serving.core.model.objects import Object
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Delete
from tests.unit.controller.builders import (
    NOW,
    SETTINGS,
    a_route,
    a_service,
    condition_values,
    merged,
    stored,
    written_status,
)

CLAIMING = msgspec.structs.replace(SETTINGS, autocreate_cluster_domain_claims=True)
HOST = "shop.example.com"


def a_mapping(*, tls: str = "", **ref: Any) -> Object:  # noqa: ANN401 - JSON
    whole = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello", "namespace": "default", **ref}
    spec: Object = {"ref": whole, **({"tls": {"secretName": tls}} if tls else {})}
    return stored(
        {
            "apiVersion": "serving.knative.dev/v1beta1",
            "kind": "DomainMapping",
            "metadata": {"name": HOST},
            "spec": spec,
        }
    )


def a_claim(namespace: str = "default", **labels: str) -> Object:
    claim = {"kind": "ClusterDomainClaim", "metadata": {"name": HOST, "labels": labels}}
    return stored({**claim, "spec": {"namespace": namespace}}, namespace="")


def reachable(fields: Object, host: str = "hello.default.svc.cluster.local") -> Object:
    return {**fields, "status": {"address": {"url": f"http://{host}:8081"}}}


def status_of(mapping: Object, **context: Any) -> Object:  # noqa: ANN401 - of any kind
    values = {"claim": a_claim(), "target": reachable(a_service()), **context}
    plan = reconcile_domain_mapping(mapping, MappingContext(**values), settings=SETTINGS, now=NOW)
    return written_status(plan, kinds.DOMAIN_MAPPING)


def conditions(mapping: Object, **context: Any) -> dict[str, tuple[str, str]]:  # noqa: ANN401 - of any kind
    result = status_of(mapping, **context)["conditions"]
    return {condition["type"]: (condition["status"], condition.get("reason", "")) for condition in result}


def test_claimed_and_resolved_mapping_is_ready_with_url() -> None:
    status = status_of(a_mapping())
    assert status["url"] == status["address"]["url"] == f"http://{HOST}:8080"
    assert status["observedGeneration"] == 1
    assert conditions(a_mapping()) == {
        "CertificateProvisioned": ("True", "TLSNotEnabled"),
        "DomainClaimed": ("True", ""),
        "IngressReady": ("True", ""),
        "Ready": ("True", ""),
        "ReferenceResolved": ("True", ""),
    }


@pytest.mark.parametrize(("port", "url"), [(8443, f"https://{HOST}:8443"), (443, f"https://{HOST}")])
def test_mapping_with_certificate_has_https_url(port: int, url: str) -> None:
    settings = msgspec.structs.replace(SETTINGS, public_tls_port=port)
    context = MappingContext(claim=a_claim(), target=reachable(a_service()))
    plan = reconcile_domain_mapping(a_mapping(tls="cert"), context, settings=settings, now=NOW)
    assert written_status(plan, kinds.DOMAIN_MAPPING)["url"] == url
    assert conditions(a_mapping(tls="cert"))["CertificateProvisioned"] == ("True", "CertificateExternallyProvided")


def test_settled_mapping_plans_no_writes() -> None:
    mapping = a_mapping()
    after = {**mapping, "status": status_of(mapping)}
    context = MappingContext(claim=a_claim(), target=reachable(a_service()))
    assert reconcile_domain_mapping(after, context, settings=SETTINGS, now="later").writes == ()


def test_terminating_mapping_plans_no_writes() -> None:
    going = merged(a_mapping(), {"metadata": {"deletionTimestamp": NOW}})
    assert reconcile_domain_mapping(going, MappingContext(), settings=CLAIMING, now=NOW).writes == ()


def test_missing_claim_is_reported_with_setting_to_create_it() -> None:
    entry = conditions(a_mapping(), claim=None)
    assert entry["DomainClaimed"] == entry["Ready"] == ("False", "DomainClaimFailed")
    assert entry["IngressReady"] == ("Unknown", "IngressNotConfigured")
    (text,) = [
        condition
        for condition in status_of(a_mapping(), claim=None)["conditions"]
        if condition["type"] == "DomainClaimed"
    ]
    assert "autocreate-cluster-domain-claims" in text["message"]


def test_claim_of_another_namespace_blocks_the_mapping() -> None:
    assert conditions(a_mapping(), claim=a_claim("other"))["DomainClaimed"] == ("False", "DomainAlreadyClaimed")


def test_autocreated_claim_is_created_before_and_deleted_after_mapping() -> None:
    (write,) = reconcile_domain_mapping(a_mapping(), MappingContext(), settings=CLAIMING, now=NOW).writes
    assert isinstance(write, Create)
    assert (write.body["metadata"]["name"], write.body["spec"]) == (HOST, {"namespace": "default"})
    (gone,) = reconcile_claim(stored(write.body, namespace=""), None).writes
    assert isinstance(gone, Delete)
    assert gone.name == HOST


def test_claim_in_use_or_created_by_others_is_not_deleted() -> None:
    own_claim = a_claim(**{"app.kubernetes.io/managed-by": "serving-controller"})
    assert reconcile_claim(own_claim, a_mapping()).writes == ()
    assert reconcile_claim(a_claim(), None).writes == ()
    assert reconcile_claim(merged(own_claim, {"metadata": {"deletionTimestamp": NOW}}), None).writes == ()


@pytest.mark.parametrize(
    ("ref", "target", "message"),
    [
        ({}, None, 'services.serving.knative.dev "hello" not found'),
        ({}, a_service(), 'address not set for services.serving.knative.dev "hello"'),
        ({}, reachable(a_service(), "x.y"), "must be of the form http://hello.default.svc.cluster.local"),
        ({"namespace": "other"}, reachable(a_service()), "must be in same namespace as DomainMapping"),
        ({"kind": "Revision"}, None, 'serving.knative.dev/v1 Revision "hello" takes no requests'),
        ({"apiVersion": "", "group": "batch", "kind": "Job"}, None, "batch Job"),
        ({"apiVersion": "v1"}, stored({"kind": "Service", "metadata": {"name": "hello"}}), "of no Route or Revision"),
    ],
)
def test_unresolvable_reference_is_reported_with_cause(ref: Object, target: Object | None, message: str) -> None:
    mapping = a_mapping(**ref)
    assert conditions(mapping, target=target)["ReferenceResolved"] == ("False", "ResolveFailed")
    (entry,) = [
        condition
        for condition in status_of(mapping, target=target)["conditions"]
        if condition["type"] == "ReferenceResolved"
    ]
    assert message in entry["message"]


def test_route_and_its_public_service_are_valid_targets() -> None:
    route = a_mapping(kind="Route", namespace="")
    assert conditions(route, target=reachable(a_route()))["Ready"] == ("True", "")
    public = stored({"kind": "Service", "metadata": {"name": "hello", "ownerReferences": [{"kind": "Route"}]}})
    assert conditions(a_mapping(apiVersion="v1"), target=public)["Ready"] == ("True", "")


def test_host_of_a_route_is_not_mapped() -> None:
    results = condition_values(status_of(a_mapping(), holder=("other", "shop")), "IngressReady")
    assert (results[0], results[1]) == ("False", "DomainAlreadyClaimed")


def test_mapping_target_is_service_route_or_core_service() -> None:
    assert target_of(a_mapping()) == (kinds.SERVING_SERVICE, ("default", "hello"))
    assert target_of(a_mapping(kind="Route")) == (kinds.ROUTE, ("default", "hello"))
    assert target_of(a_mapping(apiVersion="v1")) == (kinds.SERVICE, ("default", "hello"))
    assert target_of(a_mapping(apiVersion="", group="serving.knative.dev")) == (
        kinds.SERVING_SERVICE,
        ("default", "hello"),
    )
    assert target_of({"metadata": {"name": HOST}}) is None
