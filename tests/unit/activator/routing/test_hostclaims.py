"""DomainMappings served by an activator, and their targets."""

from typing import Any

import msgspec

from serving.activator.routing.hostclaims import (
    DomainTarget,
    DomainTargets,
    ServedRoute,
    certificates_of,
    domain_target_of,
    route_of,
)
from serving.activator.routing.routes import Routes
from serving.activator.routing.sites import Listener
from serving.core.settings.controller import ControllerSettings
from tests.unit.activator.routing.test_routes import facts

RULES = ControllerSettings().host_rules
HOST = "shop.example.com"
KEY = ("default", HOST)


def a_mapping(*, certificate: str = "", observed: int = 1, **conditions: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"ref": {"name": "hello"}, **({"tls": {"secretName": certificate}} if certificate else {})}
    stated = {"ReferenceResolved": "True", **conditions}
    return {
        "metadata": {"name": "shop.example.com", "namespace": "default", "generation": 1},
        "spec": spec,
        "status": {
            "observedGeneration": observed,
            "conditions": [{"type": name, "status": status} for name, status in stated.items()],
        },
    }


def a_claim(namespace: str) -> dict[str, Any]:
    return {"metadata": {"name": "shop.example.com"}, "spec": {"namespace": namespace}}


def not_taken(host: str) -> bool:
    del host
    return False


def test_mapping_targets_its_reference_with_its_certificate() -> None:
    wanted = DomainTarget(host="shop.example.com", namespace="default", name="hello")
    assert domain_target_of(a_mapping()) == wanted
    target = domain_target_of(a_mapping(certificate="cert"))
    assert target is not None
    assert (target.secret, msgspec.structs.replace(target, secret=None)) == ("cert", wanted)


def test_mapping_uses_its_issued_certificate() -> None:
    mapping = a_mapping(CertificateProvisioned="True")
    mapping["metadata"]["uid"] = "u"
    target = domain_target_of(mapping)
    assert target is not None
    assert (target.host, target.secret) == (HOST, "mapping-u")
    mapping["status"]["conditions"][-1]["reason"] = "HTTPDowngrade"
    target = domain_target_of(mapping)
    assert target is not None
    assert target.secret is None


def test_mapping_has_no_target_before_its_reference_is_resolved() -> None:
    assert domain_target_of(a_mapping(ReferenceResolved="Unknown")) is None
    assert domain_target_of(a_mapping(observed=0)) is None
    assert domain_target_of({"metadata": {"name": "a.b", "generation": 1}}) is None


def test_mapping_is_active_only_in_the_namespace_with_the_claim() -> None:
    targets = DomainTargets()
    assert targets.put(KEY, a_mapping(certificate="cert"))
    assert (targets.hosts(RULES), targets.secrets(not_taken)) == ({}, {})
    assert targets.claim(HOST, a_claim("default"))
    assert not targets.claim(HOST, a_claim("default"))
    assert not targets.put(KEY, a_mapping(certificate="cert"))
    assert targets.hosts(RULES) == {HOST: "hello.default.svc.cluster.local"}
    assert targets.claims == {HOST: "default"}
    assert targets.secrets(not_taken) == {HOST: ("default", "cert")}
    assert targets.put(KEY, a_mapping())
    assert targets.secrets(not_taken) == {}
    assert targets.claim(HOST, None)
    assert targets.hosts(RULES) == {}
    assert targets.put(KEY, None)


def test_forged_status_cannot_override_the_namespace_with_the_claim() -> None:
    """Each condition of the forged mapping is True; its namespace has no claim."""
    targets = DomainTargets()
    targets.claim(HOST, a_claim("default"))
    targets.put(KEY, a_mapping(certificate="cert"))
    forged = a_mapping(certificate="own", Ready="True", IngressReady="True")
    forged["metadata"]["namespace"] = "aaa"
    forged["status"] |= {"url": f"https://{HOST}", "address": {"url": f"https://{HOST}"}}
    for _ in range(2):
        targets.put(("aaa", HOST), forged)
        assert targets.hosts(RULES) == {HOST: "hello.default.svc.cluster.local"}
        assert targets.secrets(not_taken) == {HOST: ("default", "cert")}
        # The order of events makes no difference.
        targets.put(KEY, a_mapping(certificate="cert"))
    assert not targets.claim("other.example.com", {"spec": {}})


def test_host_of_a_route_gets_no_certificate_of_a_mapping() -> None:
    targets, routes = DomainTargets(), Routes()
    targets.claim("hello.default.localhost", a_claim("aaa"))
    mapping = a_mapping(certificate="own")
    mapping["metadata"] |= {"name": "hello.default.localhost", "namespace": "aaa"}
    targets.put(("aaa", "hello.default.localhost"), mapping)
    assert targets.secrets(routes.holds) == {"hello.default.localhost": ("aaa", "own")}
    routes.set(facts())
    assert targets.secrets(routes.holds) == {}


def test_mapped_host_is_routed_on_both_listeners() -> None:
    routes = Routes()
    routes.set(facts())
    turn = routes.turn
    routes.set_domains({"shop.example.com": "hello.default.svc.cluster.local"})
    assert routes.turn > turn
    for listener in Listener:
        site = routes.find(listener, "Shop.example.com:8080")
        assert site is not None
        assert site.route == "default/hello"
    assert routes.find(Listener.PUBLIC, "other.example.com") is None
    assert routes.find(Listener.PUBLIC, "") is None
    routes.remove("default/hello")
    assert routes.find(Listener.PUBLIC, "shop.example.com") is None


def test_public_host_has_a_certificate_once_its_url_is_https() -> None:
    rules = msgspec.structs.replace(RULES, has_certificates=True)
    traffic = [{"revisionName": "hello-00001", "percent": 100, "tag": "blue"}]
    route = {
        "metadata": {"name": "hello", "namespace": "default", "uid": "u", "creationTimestamp": "2026-11-21T04:00:00Z"},
        "spec": {"traffic": traffic},
        "status": {"url": "https://hello.default.localhost", "traffic": [{**traffic[0], "url": "http://blue"}]},
    }
    facts_of_route = route_of(route, rules)
    assert isinstance(facts_of_route, ServedRoute)
    assert certificates_of(facts_of_route, rules) == {"hello.default.localhost": ("default", "route-u")}
    assert certificates_of(facts_of_route, RULES) == {}


def test_cluster_local_host_has_a_certificate_once_its_address_is_https() -> None:
    rules = msgspec.structs.replace(RULES, has_local_certificates=True)
    name = "hello.default.svc.cluster.local"
    route = {"metadata": {"name": "hello", "namespace": "default", "uid": "u"}}
    for scheme, secrets in (
        ("http", {}),
        (
            "https",
            dict.fromkeys(
                (name.removesuffix(".svc.cluster.local"), "hello.default.svc", name), ("default", "route-u-local")
            ),
        ),
    ):
        facts_of_route = route_of({**route, "status": {"address": {"url": f"{scheme}://{name}"}}}, rules)
        assert isinstance(facts_of_route, ServedRoute)
        assert certificates_of(facts_of_route, rules) == secrets


def test_holder_is_reported_for_each_form_of_a_host() -> None:
    routes = Routes()
    routes.set(facts())
    for host in ("hello.default", "hello.default.svc", "hello.default.svc.cluster.local", "hello.default.localhost"):
        assert routes.holder_of(host) == "default/hello"
    assert routes.holder_of("other.default") == ""
