"""Tenant isolation: a namespace tries every way to claim a host of another namespace.

The attacker's objects are older, sort first, and have a forged status.
"""

from typing import Any

import pytest

from serving.activator.routing.hostclaims import DomainTargets, ServedRoute, route_of
from serving.activator.routing.routes import Routes
from serving.activator.routing.sites import Listener, Site
from serving.core.model.knative import CLAIMED_TAGS_ANNOTATION
from serving.core.settings.controller import ControllerSettings

RULES = ControllerSettings().host_rules
PUBLIC, INNER = Listener.PUBLIC, Listener.INNER
VICTIM, ATTACKER = "shop", "aaa"
MAPPED = "shop.example.com"
LONG_AGO = "2001-01-01T00:00:00Z"
# The victim's hosts in each form: route, tag, revision and domain mapping.
HOSTS = {
    "public": (PUBLIC, "front.shop.localhost"),
    "public tag": (PUBLIC, "new-front.shop.localhost"),
    "cluster-local": (INNER, "front.shop.svc.cluster.local"),
    "cluster-local, short": (INNER, "front.shop"),
    "cluster-local, with svc": (INNER, "front.shop.svc"),
    "cluster-local tag": (INNER, "new-front.shop.svc.cluster.local"),
    "revision": (INNER, "front-00001.shop.svc.cluster.local"),
    "mapped": (PUBLIC, MAPPED),
    "mapped, inside": (INNER, MAPPED),
}
# Names that might render to a host of the victim through the templates.
NAMES = ("front", "front.shop", "new-front", "front-00001", "front.shop.svc", "shop", MAPPED)
TAGS = ("new", "front", "front.shop", "new-front.shop", "x.", "*")


def route(namespace: str, name: str, *, tag: str = "", labels: dict[str, str] | None = None) -> ServedRoute:
    targets = [{"revisionName": f"{name}-00001", "percent": 100}]
    targets += [{"revisionName": f"{name}-00001", "tag": tag, "url": f"http://{MAPPED}"}] if tag else []
    body = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "creationTimestamp": "2026-11-21T04:00:00Z" if namespace == VICTIM else LONG_AGO,
            "annotations": {CLAIMED_TAGS_ANNOTATION: f'{{"{tag}": "{LONG_AGO}"}}'},
            "labels": labels,
        },
        "spec": {"traffic": targets},
        "status": {"url": "http://front.shop.localhost", "domain": "front.shop.localhost", "traffic": targets},
    }
    read = route_of(body, RULES)
    assert isinstance(read, ServedRoute)
    return read


def mapping(owner: str, host: str, *, to: str = "evil", **reference: str) -> dict[str, Any]:
    return {
        "metadata": {"name": host, "namespace": owner, "generation": 1, "creationTimestamp": LONG_AGO},
        "spec": {"ref": {"name": to, **reference}, "tls": {"secretName": "evil"}},
        "status": {"observedGeneration": 1, "conditions": [{"type": "ReferenceResolved", "status": "True"}]},
    }


class World:
    """An activator's routing with the victim's service, tag, revision and mapped host."""

    def __init__(self) -> None:
        self.routes, self.targets = Routes(), DomainTargets()
        self.routes.set(route(VICTIM, "front", tag="new"))
        self.routes.set_revision((VICTIM, "front-00001"))
        self.targets.claim(MAPPED, {"spec": {"namespace": VICTIM}})
        self.targets.put((VICTIM, MAPPED), mapping(VICTIM, MAPPED, to="front"))
        self.routes.set(route(ATTACKER, "evil"))
        self.settle()

    def settle(self) -> None:
        self.routes.set_domains(self.targets.hosts(RULES))

    def owners(self) -> dict[str, str]:
        """The namespace that serves each host of the victim."""
        return {name: _namespace(self.routes.find(*place)) for name, place in HOSTS.items()}


def _namespace(site: Site | None) -> str:
    return "nobody" if site is None else site.namespace


@pytest.fixture
def world() -> World:
    new_world = World()
    assert new_world.owners() == dict.fromkeys(HOSTS, VICTIM)
    return new_world


def test_route_or_tag_name_of_another_namespace_claims_no_host(world: World) -> None:
    for name in NAMES:
        for tag in ("", *TAGS):
            for labels in ({}, {"networking.knative.dev/visibility": "cluster-local"}):
                world.routes.set(route(ATTACKER, name, tag=tag, labels=labels))
    assert world.owners() == dict.fromkeys(HOSTS, VICTIM)


def test_revision_of_another_namespace_claims_no_host(world: World) -> None:
    for name in NAMES:
        world.routes.set_revision((ATTACKER, name))
    assert world.owners() == dict.fromkeys(HOSTS, VICTIM)


@pytest.mark.parametrize("is_claimed", [False, True])
def test_mapping_of_another_namespace_does_not_redirect_a_host(world: World, *, is_claimed: bool) -> None:
    """Also if the attacker holds the claim, as with claims created by the controller."""
    for _, host in HOSTS.values():
        world.targets.put((ATTACKER, host), mapping(ATTACKER, host))
        if is_claimed and host != MAPPED:
            world.targets.claim(host, {"spec": {"namespace": ATTACKER}})
    world.settle()
    assert world.owners() == dict.fromkeys(HOSTS, VICTIM)
    # No certificate of the attacker is used for a public host either.
    secrets = world.targets.secrets(world.routes.holds)
    assert {secrets[host][0] for listener, host in HOSTS.values() if listener is PUBLIC and host in secrets} == {VICTIM}


def test_transferred_claim_moves_the_mapped_host(world: World) -> None:
    """ClusterDomainClaims are cluster-scoped: the right to write them is the right to move hosts."""
    world.targets.put((ATTACKER, MAPPED), mapping(ATTACKER, MAPPED))
    world.targets.claim(MAPPED, {"spec": {"namespace": ATTACKER}})
    world.settle()
    assert world.owners() == dict.fromkeys(HOSTS, VICTIM) | {"mapped": ATTACKER, "mapped, inside": ATTACKER}


def test_mapping_cannot_refer_to_another_namespace(world: World) -> None:
    host = "evil.example.com"
    world.targets.claim(host, {"spec": {"namespace": ATTACKER}})
    world.targets.put((ATTACKER, host), mapping(ATTACKER, host, to="front", namespace=VICTIM))
    world.settle()
    for listener in Listener:
        assert world.routes.find(listener, host) is None


def test_revision_headers_are_ignored_on_the_public_listener(world: World) -> None:
    world.routes.set_revision((ATTACKER, "evil-00001"))
    named = ([ATTACKER.encode()], [b"evil-00001"])
    owners = {name: _namespace(world.routes.find(*place, named=named)) for name, place in HOSTS.items()}
    # Inside the cluster, each client may select a revision by name.
    assert owners == {name: VICTIM if listener is PUBLIC else ATTACKER for name, (listener, _) in HOSTS.items()}


def test_host_of_a_removed_route_is_unowned(world: World) -> None:
    world.routes.remove(f"{VICTIM}/front")
    assert world.owners()["public"] == "nobody"
