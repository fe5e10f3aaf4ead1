"""Selection of the revision for a request."""

import json
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.activator.routing.hostclaims import ServedRoute, claims_of, owner_of_rules, route_of, rules_of
from serving.activator.routing.routes import Routes
from serving.activator.routing.sites import Listener, Site, choose
from serving.core.model.knative import (
    ACCESS_ANNOTATION,
    CLAIMED_TAGS_ANNOTATION,
    ROLLOUT_ANNOTATION,
    SESSION_AFFINITY_ANNOTATION,
)
from serving.core.model.nodata import NoData
from serving.core.model.rollout import ConfigurationRollout, RevisionShare, Rollout, write_rollout
from serving.core.settings.controller import ControllerSettings

RULES = ControllerSettings().host_rules
PUBLIC, INNER = Listener.PUBLIC, Listener.INNER

STATUS_HOSTS = st.sampled_from(
    ["victim.other.localhost", "hello.default.localhost", "shop.example.com", "victim.other.svc.cluster.local", "[", ""]
)
STATUS_URLS = st.one_of(st.none(), STATUS_HOSTS.map(lambda host: f"http://{host}:8080"), STATUS_HOSTS)
TARGETS = st.fixed_dictionaries(
    {
        "revisionName": st.sampled_from(["forger-00001", "victim-00001", ""]),
        "percent": st.sampled_from([0, 50, 100]),
        "tag": st.sampled_from(["", "victim", "taken", "victim.other", "x", "*"]),
        "url": STATUS_URLS.map(lambda url: url or ""),
    }
)
STATUSES = st.fixed_dictionaries(
    {
        "url": STATUS_URLS,
        "address": STATUS_URLS.map(lambda url: {"url": url}),
        "domain": STATUS_HOSTS,
        "traffic": st.lists(TARGETS, max_size=4),
        "conditions": st.just([{"type": "Ready", "status": "True"}]),
    }
)


def entry(revision: str, percent: int | None = None, tag: str = "") -> dict[str, Any]:
    return {"revisionName": revision, "percent": percent, "tag": tag, "latestRevision": False}


def facts(
    name: str = "hello",
    *traffic: dict[str, Any],
    namespace: str = "default",
    created: str = "2026-11-21T04:00:00Z",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> ServedRoute:
    tags = json.dumps({target["tag"]: created for target in traffic if target["tag"]})
    read = route_of(
        {
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Route",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "creationTimestamp": created,
                "labels": labels,
                "annotations": {CLAIMED_TAGS_ANNOTATION: tags, **(annotations or {})},
            },
            "spec": {"traffic": list(traffic)},
            "status": {
                "traffic": list(traffic or [entry(f"{name}-00001", 100)]),
            },
        },
        RULES,
    )
    assert isinstance(read, ServedRoute)
    return read


def new_routes(*served_routes: ServedRoute) -> Routes:
    routes = Routes()
    for served_route in served_routes:
        routes.set(served_route)
    return routes


def revision_at(routes: Routes, listener: Listener, host: str, *, tag: str | None = None) -> str | None:
    site = routes.find(listener, host)
    return None if site is None else choose(site, tag=tag, draw=lambda: 0.0)[1]


@pytest.mark.parametrize(
    "host",
    [
        "hello.default.localhost",
        "hello.default.localhost:8080",
        "HELLO.Default.LocalHost:1",
        "hello.default.localhost.",
        "hello.default.localhost.:80",
        "hello.default.localhost:",
    ],
)
def test_host_lookup_ignores_case_port_and_final_dot(host: str) -> None:
    assert revision_at(new_routes(facts()), PUBLIC, host) == "hello-00001"


@pytest.mark.parametrize(
    "host", ["", "other.default.localhost", "hello.default.localhost:80a", "[::1]:80", "localhost"]
)
def test_an_unclaimed_host_is_not_found(host: str) -> None:
    assert new_routes(facts()).find(PUBLIC, host) is None


def test_inner_host_is_served_on_the_inner_listener_only() -> None:
    routes = new_routes(facts())
    inner = "hello.default.svc.cluster.local"
    assert (routes.find(PUBLIC, inner), revision_at(routes, INNER, inner)) == (None, "hello-00001")


def test_public_host_is_not_served_on_the_inner_listener() -> None:
    assert new_routes(facts()).find(INNER, "hello.default.localhost") is None


def test_cluster_local_route_has_no_public_host() -> None:
    routes = new_routes(facts(labels={"networking.knative.dev/visibility": "cluster-local"}))
    assert routes.find(PUBLIC, "hello.default.localhost") is None


@given(STATUSES, st.sampled_from([None, "cluster-local"]))
def test_forged_status_cannot_claim_a_host_of_another_route(status: dict[str, Any], visibility: str | None) -> None:
    """Also if the forging route is the oldest, and also within its own namespace."""
    labels = {"networking.knative.dev/visibility": visibility} if visibility else {}
    others = [facts("victim", namespace="other"), facts("taken-forger"), facts("hello")]
    forged = route_of(
        {
            "metadata": {"name": "forger", "namespace": "default", "creationTimestamp": "2001", "labels": labels},
            "spec": {"traffic": [{"percent": 100, "configurationName": "forger"}]},
            "status": status,
        },
        RULES,
    )
    before, after = new_routes(*others), new_routes(*others)
    # An external host mapped to a service.
    for routes in (before, after):
        routes.set_domains({"shop.example.com": "hello.default.svc.cluster.local"})
    if isinstance(forged, ServedRoute):
        after.set(forged)
    known = {(claim.listener, claim.host) for served_route in others for claim in claims_of(served_route)}
    known |= {(listener, "shop.example.com") for listener in Listener}
    for listener, host in known:
        assert after.find(listener, host) == before.find(listener, host)
    mine = [claim.host for claim in (claims_of(forged) if isinstance(forged, ServedRoute) else ())]
    assert all(
        host.removesuffix(".localhost").removesuffix(".svc.cluster.local").endswith("forger.default") for host in mine
    )


def test_hosts_follow_the_domain_and_tag_templates() -> None:
    rules = msgspec.structs.replace(
        RULES,
        domain="example.com",
        cluster_domain="house",
        domain_template="{{.Name}}-of-{{.Namespace}}.{{.Domain}}",
        tag_template="{{.Name}}--{{.Tag}}",
    )
    targets = [entry("r", 100, tag="new")]
    read = route_of(
        {
            "metadata": {"name": "hello", "namespace": "default"},
            "spec": {"traffic": targets},
            "status": {"traffic": targets},
        },
        rules,
    )
    assert isinstance(read, ServedRoute)
    assert {(claim.listener, claim.host) for claim in claims_of(read)} == {
        (PUBLIC, "hello-of-default.example.com"),
        (PUBLIC, "hello--new-of-default.example.com"),
        (INNER, "hello.default.svc.house"),
        (INNER, "hello--new.default.svc.house"),
    }


def test_a_tag_has_its_own_host_on_both_listeners() -> None:
    routes = new_routes(facts("hello", entry("hello-00001", 100), entry("hello-00002", tag="new")))
    results = [
        revision_at(routes, PUBLIC, "new-hello.default.localhost"),
        revision_at(routes, INNER, "new-hello.default.svc.cluster.local"),
    ]
    assert results == ["hello-00002", "hello-00002"]


def test_tag_header_selects_the_tag_on_the_routes_own_host() -> None:
    routes = new_routes(facts("hello", entry("hello-00001", 100), entry("hello-00002", 0, tag="new")))
    assert revision_at(routes, PUBLIC, "hello.default.localhost", tag="new") == "hello-00002"


def test_tag_rollout_splits_traffic_by_host_and_header() -> None:
    shares = tuple(RevisionShare(revision_name=name, percent=percent) for name, percent in (("r1", 90), ("r2", 10)))
    target = ConfigurationRollout(configuration_name="hello", tag="new", percent=100, revisions=shares)
    state = {ROLLOUT_ANNOTATION: write_rollout(Rollout(configurations=(target,)))}
    routes = new_routes(facts("hello", entry("r0", 100), entry("r2", tag="new"), annotations=state))
    for host, tag in (("new-hello.default.localhost", None), ("hello.default.localhost", "new")):
        site = routes.find(PUBLIC, host)
        assert site is not None
        assert [choose(site, tag=tag, draw=lambda: share)[1] for share in (0.89, 0.91)] == ["r1", "r2"]  # noqa: B023
    assert revision_at(routes, PUBLIC, "hello.default.localhost") == "r0"


def test_unknown_tag_header_is_ignored() -> None:
    routes = new_routes(facts("hello", entry("hello-00001", 100), entry("hello-00002", 0, tag="new")))
    assert revision_at(routes, PUBLIC, "hello.default.localhost", tag="old") == "hello-00001"


def test_a_tag_header_is_ignored_on_the_host_of_another_tag() -> None:
    routes = new_routes(facts("hello", entry("hello-00001", 100, tag="old"), entry("hello-00002", 0, tag="new")))
    assert revision_at(routes, PUBLIC, "old-hello.default.localhost", tag="new") == "hello-00001"


def test_route_without_traffic_has_a_host_without_revisions() -> None:
    read = route_of({"metadata": {"name": "hello", "namespace": "default"}, "status": {}}, RULES)
    assert isinstance(read, ServedRoute)
    site = new_routes(read).find(PUBLIC, "hello.default.localhost")
    assert site is not None
    assert site.revisions == ()


def test_tag_host_is_served_without_other_traffic() -> None:
    routes = new_routes(facts("hello", entry("hello-00001", 0, tag="new"), entry("", 100)))
    assert revision_at(routes, PUBLIC, "new-hello.default.localhost") == "hello-00001"
    site = routes.find(PUBLIC, "hello.default.localhost")
    assert site is not None
    assert site.revisions == ()


def test_tag_without_a_revision_has_a_host_without_revisions() -> None:
    read = route_of(
        {"metadata": {"name": "hello", "namespace": "default"}, "spec": {"traffic": [{"tag": "new", "percent": 100}]}},
        RULES,
    )
    assert isinstance(read, ServedRoute)
    site = new_routes(read).find(PUBLIC, "new-hello.default.localhost")
    assert site is not None
    assert site.revisions == ()


def test_invalid_route_is_no_data() -> None:
    assert isinstance(route_of({"metadata": {"name": 1}}, RULES), NoData)


def test_older_claim_owns_the_host() -> None:
    # The tag "x" of route "y" and the route "x-y" want the same name.
    older = facts("y", entry("y-00001", 100), entry("y-00002", tag="x"), created="2026-01-01T00:00:00Z")
    younger = facts("x-y", created="2026-02-01T00:00:00Z")
    answers = [
        revision_at(new_routes(*order), PUBLIC, "x-y.default.localhost")
        for order in [(older, younger), (younger, older)]
    ]
    assert answers == ["y-00002", "y-00002"]


def test_tag_added_later_does_not_claim_the_host_of_a_route() -> None:
    tagged = facts(
        "y",
        entry("y-00001", 100),
        entry("y-00002", tag="x"),
        created="2026-01-01T00:00:00Z",
        annotations={"serving.dev/claimed-tags": '{"x": "2026-03-01T00:00:00Z"}'},
    )
    assert revision_at(new_routes(tagged, facts("x-y")), PUBLIC, "x-y.default.localhost") == "y-00002"
    later = facts("x-y", created="2026-02-01T00:00:00Z")
    assert revision_at(new_routes(tagged, later), PUBLIC, "x-y.default.localhost") == "x-y-00001"


def test_invalid_claimed_tags_annotation_is_ignored() -> None:
    noted = facts("y", entry("y-00001", 100), annotations={"serving.dev/claimed-tags": "["})
    assert {claim.since for claim in claims_of(noted)} == {"2026-11-21T04:00:00Z"}


def test_lost_host_is_served_after_the_older_claim_is_removed() -> None:
    older = facts("y", entry("y-00001", 100), entry("y-00002", tag="x"), created="2026-01-01T00:00:00Z")
    routes = new_routes(older, facts("x-y", created="2026-02-01T00:00:00Z"))
    assert [claim.route for claim in routes.lost()] == ["default/x-y", "default/x-y"]
    routes.remove("default/y")
    assert (routes.lost(), revision_at(routes, PUBLIC, "x-y.default.localhost")) == ([], "x-y-00001")


def test_changed_route_loses_its_former_tag_host() -> None:
    routes = new_routes(facts("hello", entry("hello-00001", 100), entry("hello-00002", tag="new")), facts())
    assert routes.find(PUBLIC, "new-hello.default.localhost") is None


@pytest.mark.parametrize(
    "host", ["hello.default", "hello.default.svc", "hello.default.svc.cluster.local", "Hello.Default:80"]
)
def test_inner_listener_accepts_short_forms_of_cluster_hosts(host: str) -> None:
    routes = new_routes(facts())
    assert revision_at(routes, INNER, host) == "hello-00001"
    assert routes.find(PUBLIC, host) is None
    assert routes.find(INNER, "hello.default.svc.elsewhere") is None
    assert routes.find(INNER, "hello.default.x") is None


def test_revision_host_is_served_on_the_inner_listener_only() -> None:
    routes = Routes()
    routes.set_revision(("default", "hello-00001"))
    turn = routes.turn
    routes.set_revision(("default", "hello-00001"))
    assert routes.turn == turn, "what is known changes nothing"
    assert revision_at(routes, INNER, "hello-00001.default.svc.cluster.local") == "hello-00001"
    assert routes.find(PUBLIC, "hello-00001.default.svc.cluster.local") is None
    routes.remove_revision(("default", "hello-00001"))
    assert routes.find(INNER, "hello-00001.default.svc.cluster.local") is None


def test_route_precedes_a_revision_of_the_same_name() -> None:
    routes = Routes()
    routes.set_revision(("default", "hello"))
    routes.set(facts("hello"))
    assert revision_at(routes, INNER, "hello.default") == "hello-00001"
    routes.remove("default/hello")
    assert revision_at(routes, INNER, "hello.default") == "hello"


def test_removing_an_unknown_route_has_no_effect() -> None:
    routes = Routes()
    routes.remove("default/hello")
    assert routes.find(INNER, "hello.default") is None


@pytest.mark.parametrize(("drawn", "revision"), [(0.0, "a"), (0.89, "a"), (0.9, "b"), (0.999999, "b")])
def test_draw_selects_the_revision_of_its_share(drawn: float, revision: str) -> None:
    site = Site(route="default/hello", namespace="default", revisions=("a", "b"), bounds=(90, 100))
    assert choose(site, tag=None, draw=lambda: drawn) == ("default", revision)


@given(
    percents=st.lists(st.integers(1, 100), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
)
def test_draws_match_the_percentages_statistically(percents: list[int], seed: int) -> None:
    served_route = facts("hello", *(entry(str(place), percent) for place, percent in enumerate(percents)))
    (site,) = [claim.site for claim in claims_of(served_route) if claim.listener is PUBLIC]
    dice, draws = random.Random(seed), 2000
    counts = Counter(choose(site, tag=None, draw=dice.random)[1] for _ in range(draws))
    for place, percent in enumerate(percents):
        share = percent / sum(percents)
        # Six standard deviations of a binomial count: a false alarm in a billion runs.
        assert abs(counts[str(place)] - draws * share) <= 6 * (draws * share * (1 - share)) ** 0.5 + 1e-9


def named(namespace: str = "default", revision: str = "hello-00001") -> tuple[list[bytes], list[bytes]]:
    return [namespace.encode()], [revision.encode()]


def test_revision_header_overrides_the_host_on_the_inner_listener_only() -> None:
    routes = Routes()
    routes.set(facts("hello"))
    routes.set_revision(("default", "hello-00007"))
    for host in ("hello.default.example.com", "hello.default", "", "hello-00001.default"):
        site = routes.find(INNER, host, named=named(revision="hello-00007"))
        assert site is not None
        assert (site.namespace, site.revisions, site.tags) == ("default", ("hello-00007",), {})
    public = routes.find(PUBLIC, "hello.default.localhost", named=named(revision="hello-00007"))
    assert public is not None
    assert public == routes.find(PUBLIC, "hello.default.localhost")
    routes.remove_revision(("default", "hello-00007"))
    assert routes.find(INNER, "hello.default", named=named(revision="hello-00007")) is None, "it or nobody"


@pytest.mark.parametrize(
    "names",
    [
        ([], []),
        ([b"default"], []),
        ([], [b"hello-00007"]),
        ([b"default"], [b"hello-00007", b"hello-00007"]),
        ([b"default", b"other"], [b"hello-00007"]),
    ],
)
def test_incomplete_or_repeated_revision_headers_are_ignored(names: tuple[list[bytes], list[bytes]]) -> None:
    routes = Routes()
    routes.set(facts("hello"))
    routes.set_revision(("default", "hello-00007"))
    assert routes.find(INNER, "hello.default", named=names) == routes.find(INNER, "hello.default")
    assert routes.find(INNER, "hello.default.example.com", named=names) is None


@pytest.mark.parametrize("key", [("default/hello", ""), ("default", "hello"), ("", ""), ("default", "hello:revision")])
def test_revision_header_with_another_name_finds_no_site(key: tuple[str, str]) -> None:
    routes = Routes()
    routes.set(facts("hello"))
    routes.set_revision(("default", "hello-00007"))
    assert routes.find(INNER, "hello.default", named=named(*key)) is None


def test_tag_with_a_cluster_local_url_has_no_public_host() -> None:
    local = {**entry("hello-00001", tag="blue"), "url": "http://blue-hello.default.svc.cluster.local:8081"}
    routes = new_routes(facts("hello", entry("hello-00001", 100), local))
    assert revision_at(routes, INNER, "blue-hello.default.svc.cluster.local") == "hello-00001"
    for host in ("blue-hello.default.svc.cluster.local", "blue-hello.default.localhost"):
        assert routes.find(PUBLIC, host) is None
    assert revision_at(routes, PUBLIC, "hello.default.localhost") == "hello-00001"


def test_digest_of_a_route_is_known_until_its_removal() -> None:
    routes, read = new_routes(facts()), facts()
    assert routes.digest_of(read.key) == read.digest
    routes.remove(read.key)
    assert routes.digest_of(read.key) is None


def test_only_public_hosts_exclude_mappings() -> None:
    routes = new_routes(facts())
    assert routes.holds("hello.default.localhost")
    assert routes.holder_of("hello.default.localhost") == "default/hello"
    assert not routes.holds("hello.default.svc.cluster.local")


def test_revision_is_private_until_its_last_private_route_is_removed() -> None:
    private = {ACCESS_ANNOTATION: "private"}
    target = entry("hello-00001", 100)
    routes = new_routes(facts("hello", target, annotations=private), facts("other", target, annotations=private))
    routes.set_revision(("default", "hello-00001"))
    named = ([b"default"], [b"hello-00001"])
    site = routes.find(INNER, "anything", named=named)
    assert site is not None
    assert site.access is not None
    assert site.access.route == "hello"
    routes.remove("default/hello")
    site = routes.find(INNER, "anything", named=named)
    assert site is not None
    assert site.access is not None
    assert site.access.route == "other"
    routes.remove("default/other")
    opened = routes.find(INNER, "anything", named=named)
    assert opened is not None
    assert opened.access is None
    assert not routes._private, "nothing is kept of revisions that come and go"


def test_session_affinity_host_overrides_the_header_of_its_own_revision() -> None:
    routes = new_routes(facts("hello", entry("hello-00001", 100), annotations={SESSION_AFFINITY_ANNOTATION: "cookie"}))
    for name in ("hello-00001", "hello-00002"):
        routes.set_revision(("default", name))
    host = "hello.default.localhost"
    site = routes.find(INNER, host, named=([b"default"], [b"hello-00001"]))
    assert site == routes.find(PUBLIC, host)
    other = routes.find(INNER, host, named=([b"default"], [b"hello-00002"]))
    assert other is not None
    assert other.revisions == ("hello-00002",)


def test_services_share_a_host_by_path() -> None:
    routes = Routes()
    shown = {"api": "shop.example.com/api", "web": "shop.example.com", "inner": "shop.example.com/inner"}
    for name, paths in shown.items():
        labels = {"networking.knative.dev/visibility": "cluster-local"} if name == "inner" else None
        route = facts(name, labels=labels, annotations={"serving.dev/paths": f"{paths}, x.default.svc.cluster.local"})
        routes.set(route)
        routes.set_rules(owner_of_rules(route.key), rules_of(route))

    def route_at(target: bytes, listener: Listener = PUBLIC, host: str = "shop.example.com") -> str | None:
        site = routes.find(listener, host, target=target)
        return None if site is None else site.route

    assert (route_at(b"/"), route_at(b"/api/1"), route_at(b"/inner")) == ("default/web", "default/api", "default/web")
    assert route_at(b"/inner", INNER) == "default/inner"
    assert route_at(b"/", INNER, "x.default.svc.cluster.local") is None
    assert rules_of(facts()) == []
    turn = routes.turn
    routes.set_rules(owner_of_rules("default/none"), ())
    assert routes.turn == turn
    routes.set_rules(owner_of_rules("default/web"), ())
    assert route_at(b"/") is None
