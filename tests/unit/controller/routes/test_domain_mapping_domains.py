"""The DomainMappings that a change enqueues, in the index and in the cache around it."""

import msgspec

from serving.controller.cache import ControllerCache
from serving.controller.decide import decide
from serving.controller.routes.domain_mapping import Domains
from serving.controller.values.writes import WorkKey, WritePlan
from serving.core.model.objects import Object
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Delete
from tests.unit.controller.builders import (
    NOW,
    SCALING,
    SETTINGS,
    a_route,
    a_service,
    condition_values,
    stored,
    written_status,
)
from tests.unit.controller.routes.test_domain_mapping import CLAIMING, HOST, a_claim, a_mapping, reachable

KEY = ("default", HOST)
MAPPING: WorkKey = (kinds.DOMAIN_MAPPING, *KEY)
CLAIM: WorkKey = (kinds.CLUSTER_DOMAIN_CLAIM, "", HOST)


def later(fields: Object) -> Object:
    return stored(fields, resourceVersion="8")


def test_mappings_are_indexed_by_host_until_removed() -> None:
    domains = Domains()
    domains.put(KEY, before=None, after=a_mapping())
    domains.put(("other", HOST), before=None, after=a_mapping(kind="Job"))
    assert domains.of_host(HOST) == {KEY, ("other", HOST)}
    domains.put(("other", HOST), before=a_mapping(kind="Job"), after=None)
    domains.put(KEY, before=a_mapping(), after=None)
    assert (domains.of_host(HOST), domains._by_host) == (set(), {})


def test_removed_mapping_does_not_unindex_others_of_its_target() -> None:
    domains = Domains()
    for name in ("a.b", "c.d"):
        domains.put(("default", name), before=None, after=a_mapping())
    domains.put(("default", "a.b"), before=a_mapping(), after=None)
    woken = domains.woken(kinds.SERVING_SERVICE, ("default", "hello"), before=None, after=a_service())
    assert list(woken) == [(kinds.DOMAIN_MAPPING, "default", "c.d")]


def test_mapping_is_enqueued_by_its_target_only() -> None:
    cache = ControllerCache(SETTINGS, SCALING, system_namespace="knative-serving")
    assert cache.put(kinds.DOMAIN_MAPPING, a_mapping()) == {MAPPING, CLAIM}
    assert MAPPING in cache.put(kinds.SERVING_SERVICE, reachable(a_service()))
    # A change of fields that the mapping does not read does not enqueue it.
    assert MAPPING not in cache.put(kinds.SERVING_SERVICE, later(reachable(a_service())))
    assert MAPPING in cache.drop(kinds.SERVING_SERVICE, ("default", "hello"))
    moved = later(a_mapping(kind="Route"))
    cache.put(kinds.DOMAIN_MAPPING, moved)
    assert MAPPING not in cache.put(kinds.SERVING_SERVICE, reachable(a_service()))
    assert MAPPING in cache.put(kinds.ROUTE, a_route())


def test_claim_enqueues_mappings_of_its_host() -> None:
    cache = ControllerCache(SETTINGS, SCALING, system_namespace="knative-serving")
    cache.put(kinds.DOMAIN_MAPPING, a_mapping())
    assert cache.put(kinds.CLUSTER_DOMAIN_CLAIM, a_claim()) == {CLAIM, MAPPING}


def test_route_of_the_same_host_takes_precedence_over_mapping() -> None:
    settings = msgspec.structs.replace(
        SETTINGS, domain="example.com", domain_template="{{.Name}}-{{.Namespace}}.{{.Domain}}"
    )
    cache = ControllerCache(settings, SCALING, system_namespace="knative-serving")
    mapping = stored({**a_mapping(), "metadata": {"name": "shop-default.example.com"}})
    key: WorkKey = (kinds.DOMAIN_MAPPING, "default", "shop-default.example.com")
    cache.put(kinds.DOMAIN_MAPPING, mapping)
    assert key in cache.put(kinds.ROUTE, a_route("shop"))
    status = written_status(decide(cache, key, now=NOW, now_s=0.0), kinds.DOMAIN_MAPPING)
    assert {condition["type"]: condition["status"] for condition in status["conditions"]}["IngressReady"] == "False"
    assert key in cache.drop(kinds.ROUTE, ("default", "shop"))


def test_autocreated_claim_is_deleted_with_its_mapping() -> None:
    cache = ControllerCache(CLAIMING, SCALING, system_namespace="knative-serving")
    cache.put(kinds.DOMAIN_MAPPING, a_mapping())
    (create,) = decide(cache, MAPPING, now=NOW, now_s=0.0).writes
    assert isinstance(create, Create)
    cache.put(kinds.CLUSTER_DOMAIN_CLAIM, stored(create.body, namespace=""))
    assert decide(cache, CLAIM, now=NOW, now_s=0.0).writes == ()
    assert cache.drop(kinds.DOMAIN_MAPPING, KEY) == {MAPPING, CLAIM}
    (delete,) = decide(cache, CLAIM, now=NOW, now_s=0.0).writes
    assert isinstance(delete, Delete)
    assert (delete.kind, delete.namespace, delete.name) == CLAIM


ENABLED = msgspec.structs.replace(SETTINGS, external_domain_tls="enabled", public_tls_port=443)


def certified(*certificates: Object, mapping: Object, missing: str = "") -> WritePlan:
    cache = ControllerCache(ENABLED, SCALING, system_namespace="knative-serving")
    cache.put(kinds.SERVING_SERVICE, reachable(a_service()))
    cache.put(kinds.CLUSTER_DOMAIN_CLAIM, a_claim())
    cache.put(kinds.DOMAIN_MAPPING, mapping)
    for certificate in certificates:
        assert MAPPING in cache.put(kinds.CERTIFICATE, certificate)
    assert (MAPPING in cache.set_missing(kinds.CERTIFICATE, missing)) is bool(missing)
    return decide(cache, MAPPING, now=NOW, now_s=0.0)


def test_mapped_host_gets_certificate_and_https_url_once_issued() -> None:
    plan = certified(mapping=a_mapping())
    (create,) = [write for write in plan.writes if isinstance(write, Create)]
    assert create.kind is kinds.CERTIFICATE
    metadata, spec = create.body["metadata"], create.body["spec"]
    assert (metadata["ownerReferences"][0]["kind"], metadata.get("labels")) == ("DomainMapping", None)
    assert (spec["dnsNames"], spec["secretName"]) == ([HOST], metadata["name"])
    assert written_status(plan, kinds.DOMAIN_MAPPING)["url"] == f"http://{HOST}:8080"
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    plan = certified({**stored(create.body), **ready}, mapping=a_mapping())
    status = written_status(plan, kinds.DOMAIN_MAPPING)
    assert status["url"] == f"https://{HOST}"
    assert condition_values(status, "CertificateProvisioned") == ("True", "", "")


def test_mapping_certificate_is_deleted_if_user_has_one_or_host_is_lost() -> None:
    (create,) = [write for write in certified(mapping=a_mapping()).writes if isinstance(write, Create)]
    certificate = stored(create.body)
    plan = certified(certificate, mapping=a_mapping(tls="own"))
    assert [write.name for write in plan.writes if isinstance(write, Delete)] == [create.body["metadata"]["name"]]
    assert written_status(plan, kinds.DOMAIN_MAPPING)["url"] == f"https://{HOST}"
    lost = {"apiVersion": "x", "kind": "ClusterDomainClaim", "metadata": {"name": HOST}, "spec": {"namespace": "other"}}
    cache = ControllerCache(ENABLED, SCALING, system_namespace="knative-serving")
    cache.put(kinds.CLUSTER_DOMAIN_CLAIM, stored(lost, namespace=""))
    cache.put(kinds.DOMAIN_MAPPING, a_mapping())
    cache.put(kinds.CERTIFICATE, certificate)
    plan = decide(cache, MAPPING, now=NOW, now_s=0.0)
    assert [type(write) for write in plan.writes if getattr(write, "kind", None) is kinds.CERTIFICATE] == [Delete]
    status = written_status(plan, kinds.DOMAIN_MAPPING)
    assert condition_values(status, "CertificateProvisioned")[1] == "HTTPDowngrade"


def test_mapping_with_tls_disabled_by_annotation_has_no_certificate() -> None:
    mapping = a_mapping()
    mapping["metadata"]["annotations"] = {"networking.knative.dev/disable-external-domain-tls": "true"}
    plan = certified(mapping=mapping)
    assert [write for write in plan.writes if isinstance(write, Create)] == []
    assert condition_values(written_status(plan, kinds.DOMAIN_MAPPING), "CertificateProvisioned")[1] == "TLSNotEnabled"


def test_missing_cert_manager_is_reported_in_condition() -> None:
    status = written_status(certified(mapping=a_mapping(), missing="no cert-manager"), kinds.DOMAIN_MAPPING)
    assert condition_values(status, "CertificateProvisioned") == ("False", "CertManagerMissing", "no cert-manager")
