"""Endpoints of the activators, read from the slices of their Service."""

from serving.controller.revisions.public import Activators
from serving.core.model.objects import Object

KEY = ("knative-serving", "activator-service-x")


def a_slice(*addresses: str, port: int = 8081, family: str = "IPv4", **conditions: bool) -> Object:
    return {
        "addressType": family,
        "ports": [{"name": "metrics", "port": 9090}, {"name": "http", "port": port}],
        "endpoints": [{"addresses": [address], "conditions": conditions} for address in addresses],
    }


def named(activators: Activators, family: str = "IPv4") -> list[str]:
    return [endpoint["addresses"][0] for endpoint in activators.backends[family].endpoints]


def test_endpoints_of_all_slices_are_merged() -> None:
    activators = Activators()
    assert activators.put(KEY, a_slice("10.0.0.2"))
    assert activators.put((KEY[0], "other"), a_slice("10.0.0.1", "10.0.0.2"))
    assert named(activators) == ["10.0.0.1", "10.0.0.2"]
    assert activators.backends["IPv4"].port == 8081


def test_ip_families_have_separate_backends() -> None:
    activators = Activators()
    activators.put(KEY, a_slice("10.0.0.1"))
    activators.put((KEY[0], "six"), a_slice("fd00::1", family="IPv6"))
    assert (named(activators), named(activators, "IPv6")) == (["10.0.0.1"], ["fd00::1"])


def test_unready_and_terminating_endpoints_are_excluded() -> None:
    activators = Activators()
    assert not activators.put(KEY, a_slice("10.0.0.1", ready=False))
    assert not activators.put(KEY, a_slice("10.0.0.1", ready=True, terminating=True))
    assert activators.put(KEY, a_slice("10.0.0.1"))
    assert activators.put(KEY, {**a_slice("10.0.0.1"), "endpoints": [{"addresses": []}]})
    assert not activators.backends


def test_most_common_port_is_used() -> None:
    activators = Activators()
    activators.put(KEY, a_slice("10.0.0.1", "10.0.0.2"))
    activators.put((KEY[0], "new"), a_slice("10.0.0.3", port=8082))
    assert (activators.backends["IPv4"].port, named(activators)) == (8081, ["10.0.0.1", "10.0.0.2"])


def test_slice_without_http_port_is_ignored() -> None:
    activators = Activators()
    assert not activators.put(KEY, {**a_slice("10.0.0.1"), "ports": [{"name": "other", "port": 1}]})
    assert not activators.put(KEY, {**a_slice("10.0.0.1"), "ports": None})


def test_unchanged_slice_is_no_change_and_removed_slice_is_one() -> None:
    activators = Activators()
    activators.put(KEY, a_slice("10.0.0.1"))
    assert not activators.put(KEY, a_slice("10.0.0.1"))
    assert activators.drop(KEY)
    assert not activators.drop(KEY)


def test_at_most_100_endpoints_are_listed() -> None:
    activators = Activators()
    activators.put(KEY, a_slice(*[f"10.0.{number}.1" for number in range(200)]))
    assert len(named(activators)) == 100


def test_activator_addresses_prefer_ipv4() -> None:
    activators = Activators()
    assert activators.addresses == ()
    activators.put((KEY[0], "six"), a_slice("fd00::1", family="IPv6"))
    assert list(activators.addresses) == ["[fd00::1]:8081"]
    activators.put(KEY, a_slice("10.0.0.1", "10.0.0.2"))
    assert list(activators.addresses) == ["10.0.0.1:8081", "10.0.0.2:8081"]


def test_activator_pages_use_the_metrics_port() -> None:
    activators, slice_ = Activators(), a_slice("10.0.0.1", "10.0.0.2")
    activators.put(KEY, slice_)
    assert activators.pages == ("10.0.0.1:9090", "10.0.0.2:9090")
    assert activators.addresses == ("10.0.0.1:8081", "10.0.0.2:8081")
    activators.put(KEY, {**slice_, "ports": [port for port in slice_["ports"] if port["name"] == "http"]})
    assert not activators.pages
