"""The host table selects the rule of a request."""

from collections.abc import Mapping

import pytest

from serving.activator.routing.hosttable import HostRule, HostTable, normal_path
from serving.activator.routing.sites import Listener, Site
from serving.core.model.scaledworkload import HeaderMatch

INNER = (Listener.INNER,)


def rule(
    name: str, host: str = "a.example.com", *, namespace: str = "n", since: str = "1", **fields: object
) -> HostRule:
    site = Site(route=f"{namespace}/{name}", namespace=namespace, revisions=(name,), bounds=(100,))
    return HostRule(since=since, owner=site.route, host=host, site=site, **fields)  # type: ignore[arg-type]


def table(*rules: HostRule) -> HostTable:
    table = HostTable()
    for host_rule in rules:
        table.set(host_rule.owner, [other for other in rules if other.owner == host_rule.owner])
    return table


def revision_for(
    table: HostTable,
    target: str = "/",
    host: str = "a.example.com",
    *,
    headers: Mapping[str, str] = {},
    listener: Listener = Listener.PUBLIC,
) -> str | None:
    def values(name: bytes) -> list[bytes]:
        return [value.encode() for key, value in headers.items() if key.encode() == name]

    match = table.find(listener, host, target=target.encode(), values=values)
    return None if match is None else match.site.revisions[0]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/", "all"),
        ("/api", "api"),
        ("/api/v1?x=/api/v2", "api"),
        ("/apis", "all"),
        ("/api/v2", "v2"),
        ("/api?x", "api"),
    ],
)
def test_longest_path_prefix_of_whole_segments_wins(target: str, expected: str) -> None:
    assert revision_for(table(rule("all"), rule("api", path="/api"), rule("v2", path="/api/v2")), target) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("a.example.com", "exact"),
        ("b.example.com", "near"),
        ("b.c.example.com", "near"),
        ("b.com", "far"),
        ("com", None),
    ],
)
def test_an_exact_host_wins_then_the_longer_wildcard(host: str, expected: str | None) -> None:
    hosts = table(rule("exact"), rule("near", "*.example.com"), rule("far", "*.com"))
    assert revision_for(hosts, host=host) == expected


def test_wildcard_host_receives_requests_not_matched_by_the_exact_host() -> None:
    hosts = table(rule("exact", path="/api"), rule("wide", "*.example.com"))
    assert (revision_for(hosts, "/api"), revision_for(hosts, "/")) == ("exact", "wide")


def test_rule_with_most_matching_headers_wins() -> None:
    beta, named = HeaderMatch(name="X-Beta", value="yes"), HeaderMatch(name="x-name")
    hosts = table(rule("all"), rule("beta", headers=(beta,)), rule("both", headers=(beta, named)))
    assert revision_for(hosts) == "all"
    assert revision_for(hosts, headers={"x-beta": "no"}) == "all"
    assert revision_for(hosts, headers={"x-beta": "yes"}) == "beta"
    assert revision_for(hosts, headers={"x-beta": "yes", "x-name": ""}) == "both"


def test_older_of_two_equal_rules_wins_until_removed() -> None:
    hosts = table(rule("new", since="2"), rule("old", since="1"))
    assert revision_for(hosts) == "old"
    hosts.set("n/old", ())
    assert revision_for(hosts) == "new"
    hosts.set("n/new", ())
    assert not hosts
    assert revision_for(hosts) is None


def test_host_belongs_to_the_first_namespace_until_it_leaves() -> None:
    """Another namespace cannot claim any path of the host."""
    hosts = table(rule("shop", namespace="good", since="1"), rule("login", namespace="evil", since="2", path="/login"))
    assert revision_for(hosts, "/login") == "shop"
    assert [lost.owner for lost in hosts.lost()] == ["evil/login"]
    hosts.set("good/shop", ())
    assert revision_for(hosts, "/login") == "login"
    assert not list(hosts.lost())


def test_a_claimed_host_belongs_to_the_namespace_of_its_claim() -> None:
    hosts = table(rule("shop", namespace="good", since="2"), rule("login", namespace="evil", since="1", path="/login"))
    hosts.claims = {"a.example.com": "good"}
    assert revision_for(hosts, "/login") == "shop"
    hosts.claims = {"a.example.com": "nobody"}
    assert revision_for(hosts, "/login") is None


def test_cluster_local_host_is_served_on_the_inner_listener_only() -> None:
    hosts = table(rule("shop", listeners=INNER))
    assert (revision_for(hosts), revision_for(hosts, listener=Listener.INNER)) == (None, "shop")


def test_changed_owner_loses_its_former_hosts() -> None:
    hosts = table(rule("shop"), rule("other"))
    hosts.set("n/shop", [rule("shop", "b.example.com")])
    assert (revision_for(hosts), revision_for(hosts, host="b.example.com")) == ("other", "shop")


def test_normal_path_removes_the_final_slash() -> None:
    assert [normal_path(path) for path in ("/", "/api/", "/api")] == ["", "/api", "/api"]
