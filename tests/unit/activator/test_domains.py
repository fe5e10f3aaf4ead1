"""Which mappings an activator serves, and where their requests go."""

from typing import Any

from serving.activator.domains import DomainTarget, DomainTargets, domain_target_of
from serving.activator.routes import Routes
from serving.activator.sites import Listener
from tests.unit.activator.test_routes import facts

KEY = ("default", "shop.example.com")


def a_mapping(*, certificate: str = "", observed: int = 1, **conditions: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"ref": {"name": "hello"}, **({"tls": {"secretName": certificate}} if certificate else {})}
    stated = {"DomainClaimed": "True", "ReferenceResolved": "True", **conditions}
    return {
        "metadata": {"name": "shop.example.com", "namespace": "default", "generation": 1},
        "spec": spec,
        "status": {
            "observedGeneration": observed,
            "conditions": [{"type": name, "status": status} for name, status in stated.items()],
        },
    }


def test_a_mapping_leads_to_the_cluster_local_host_of_its_reference() -> None:
    wanted = DomainTarget(host="shop.example.com", inner_host="hello.default.svc.cluster.local")
    assert domain_target_of(a_mapping()) == wanted


def test_a_mapping_names_the_secret_of_its_certificate() -> None:
    found = domain_target_of(a_mapping(certificate="cert"))
    assert found is not None
    assert found.secret == ("default", "cert")


def test_a_mapping_is_not_served_before_its_host_is_claimed_and_its_reference_is_good() -> None:
    assert domain_target_of(a_mapping(DomainClaimed="False")) is None
    assert domain_target_of(a_mapping(ReferenceResolved="Unknown")) is None
    assert domain_target_of(a_mapping(observed=0)) is None
    assert domain_target_of({"metadata": {"name": "a.b", "generation": 1}}) is None


def test_only_changes_of_what_is_served_are_news() -> None:
    targets = DomainTargets()
    assert targets.put(KEY, a_mapping(certificate="cert"))
    assert not targets.put(KEY, a_mapping(certificate="cert"))
    assert targets.hosts == {"shop.example.com": "hello.default.svc.cluster.local"}
    assert targets.secrets == {"shop.example.com": ("default", "cert")}
    # The same host in a namespace that has not claimed it changes nothing.
    assert not targets.put(("other", "shop.example.com"), a_mapping(DomainClaimed="False"))
    assert targets.put(KEY, a_mapping())
    assert (targets.secrets, repr(targets)) == ({}, "DomainTargets(1)")
    assert targets.put(KEY, None)
    assert targets.hosts == {}


def test_a_mapped_host_finds_the_route_on_both_listeners() -> None:
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
