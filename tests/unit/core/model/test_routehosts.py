"""The hosts that a route claims, by its name, namespace, labels and tags alone."""

from typing import Any

import msgspec

from serving.core.model.knative import CLAIMED_TAGS_ANNOTATION, VISIBILITY_LABEL
from serving.core.model.routehosts import (
    Hosts,
    certificate_name,
    claimed_hosts,
    hosts_of,
    inner_host,
    inner_names,
    is_cluster_local,
    machine_gateway,
    named_address,
    named_network,
)
from serving.core.model.selectors import SelectedName
from serving.core.settings.controller import ControllerSettings
from tests.unit.controller.builders import CREATED, a_route

RULES = ControllerSettings().host_rules
BLUE = [{"revisionName": "hello-00001", "percent": 100, "tag": "blue"}]
HOST = "blue-hello.default.localhost"


def claims(route: dict[str, Any], *served_tags: str) -> dict[str, str]:
    result = claimed_hosts(route, RULES, served_tags=served_tags)
    return {claimed_host.host: claimed_host.since for claimed_host in result if claimed_host.is_public}


def test_route_has_public_and_inner_host() -> None:
    assert hosts_of(a_route(), RULES) == Hosts(shown="hello.default.localhost", inner="hello.default.svc.cluster.local")


def test_tag_is_prefix_of_route_name() -> None:
    assert hosts_of(a_route(), RULES, tag="blue").shown == HOST


def test_cluster_local_route_has_only_inner_host() -> None:
    route = a_route(labels={VISIBILITY_LABEL: "cluster-local"})
    assert is_cluster_local(route)
    assert hosts_of(route, RULES, tag="blue") == Hosts(
        shown="blue-hello.default.svc.cluster.local", inner="blue-hello.default.svc.cluster.local"
    )


def test_templates_order_parts_of_host() -> None:
    rules = msgspec.structs.replace(
        RULES, domain_template="{{.Name}}-{{ .Namespace }}.{{.Domain}}", tag_template="{{.Name}}-{{.Tag}}"
    )
    assert hosts_of(a_route(), rules, tag="blue").shown == "hello-blue-default.localhost"


def test_inner_host_has_configured_cluster_domain() -> None:
    rules = msgspec.structs.replace(RULES, cluster_domain="house")
    assert hosts_of(a_route(), rules).inner == inner_host("hello", "default", rules) == "hello.default.svc.house"


def test_claim_is_as_old_as_route_or_tag() -> None:
    later = "2027-01-01T00:00:00Z"
    route = a_route(traffic=BLUE, annotations={CLAIMED_TAGS_ANNOTATION: f'{{"blue": "{later}"}}'})
    assert claims(route) == {"hello.default.localhost": CREATED, HOST: later}
    # A tag without a recorded time claims its host last.
    assert claims(a_route(traffic=BLUE))[HOST] > later


def test_annotation_cannot_make_tag_older_than_route() -> None:
    route = a_route(traffic=BLUE, annotations={CLAIMED_TAGS_ANNOTATION: '{"blue": ""}'})
    assert claims(route)[HOST] == CREATED


def test_served_tag_outside_spec_claims_host_last() -> None:
    entry = claims(a_route(traffic=BLUE), "blue", "old")
    assert entry["old-hello.default.localhost"] > entry[HOST]


def test_served_tag_that_is_no_dns_label_claims_no_host() -> None:
    assert claims(a_route(), "a.other.localhost", "*", "") == claims(a_route())


def test_domain_below_cluster_domain_yields_no_public_host() -> None:
    rules = msgspec.structs.replace(RULES, domain="svc.cluster.local")
    assert [claimed_host.is_public for claimed_host in claimed_hosts(a_route(), rules)] == [False]


def test_namespace_addresses_are_hosts_in_network_of_gateway() -> None:
    assert named_network("10.138.7.9") == "10.147.9"
    assert named_network("10.138.255.9") == "10.163.9"
    named_addresses = {named_address("10.138.7.9", f"team-{number}") for number in range(2_000)}
    # Each of them is a host of the network, and none is its broadcast address.
    assert named_addresses == {f"10.147.9.{last}" for last in range(1, 255)}


def test_machine_network_addresses_avoid_loopback_range_of_pods() -> None:
    assert machine_gateway(8081) == "127.0.31.145"
    assert named_network(machine_gateway(8081)) == "127.171.145"
    # Above the addresses of pods, 127.64 to 127.66, also for the highest port.
    assert {named_network(machine_gateway(port)).split(".")[1] for port in range(1, 65536)} == set(
        map(str, range(140, 256))
    )


def test_domain_template_accepts_labels_and_annotations() -> None:
    template = '{{.Name}}.{{if .Labels.team}}{{.Labels.team}}{{else}}{{index .Annotations "sub"}}{{end}}.{{.Domain}}'
    rules = msgspec.structs.replace(RULES, domain_template=template)
    assert hosts_of(a_route(annotations={"sub": "eu"}), rules, tag="blue").shown == "blue-hello.eu.localhost"
    assert hosts_of(a_route(labels={"team": "red"}), rules).shown == "hello.red.localhost"


def test_failing_template_yields_no_public_host_and_a_problem() -> None:
    for broken in (
        {"domain_template": '{{.Name}}.{{index .Annotations "sub"}}.{{.Domain}}'},
        {"domain_template": "{{slice .Name 99}}.{{.Domain}}"},
        {"tag_template": "{{slice .Tag 9}}"},
    ):
        rules = msgspec.structs.replace(RULES, **broken)
        hosts = hosts_of(a_route(), rules, tag="blue")
        assert (hosts.shown, hosts.inner) == ("", "blue-hello.default.svc.cluster.local")
        assert f"{next(iter(broken)).replace('_', '-')} of config-network" in hosts.problem
        assert HOST not in {claimed_host.host for claimed_host in claimed_hosts(a_route(traffic=BLUE), rules)}


def test_cluster_local_host_has_three_names_and_a_certificate_name() -> None:
    assert inner_names("hello.default.svc.cluster.local", RULES) == (
        "hello.default",
        "hello.default.svc",
        "hello.default.svc.cluster.local",
    )
    assert [certificate_name("u", tag, is_local=True) for tag in ("", "blue")] == [
        "route-u-local",
        "route-u-69140905-local",
    ]


def test_labels_select_domain() -> None:
    names = (
        SelectedName(name="shop.example", labels=(("app", "shop"),)),
        SelectedName(name="svc.cluster.local", labels=(("app", "secret"),)),
    )
    rules = msgspec.structs.replace(RULES, domains=names)
    assert hosts_of(a_route(labels={"app": "shop"}), rules).shown == "hello.default.shop.example"
    assert hosts_of(a_route(), rules).shown == "hello.default.localhost"
    assert hosts_of(a_route(labels={"app": "secret"}), rules).is_local
