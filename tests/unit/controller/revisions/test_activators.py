"""The activators as endpoints, from the slices of their Service."""

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


def test_the_slices_of_a_service_add_up() -> None:
    activators = Activators()
    assert activators.put(KEY, a_slice("10.0.0.2"))
    assert activators.put((KEY[0], "other"), a_slice("10.0.0.1", "10.0.0.2"))
    assert named(activators) == ["10.0.0.1", "10.0.0.2"]
    assert activators.backends["IPv4"].port == 8081


def test_each_family_has_its_own() -> None:
    activators = Activators()
    activators.put(KEY, a_slice("10.0.0.1"))
    activators.put((KEY[0], "six"), a_slice("fd00::1", family="IPv6"))
    assert (named(activators), named(activators, "IPv6")) == (["10.0.0.1"], ["fd00::1"])


def test_what_is_not_ready_or_goes_takes_no_requests_and_what_does_not_say_does() -> None:
    activators = Activators()
    assert not activators.put(KEY, a_slice("10.0.0.1", ready=False))
    assert not activators.put(KEY, a_slice("10.0.0.1", ready=True, terminating=True))
    assert activators.put(KEY, a_slice("10.0.0.1"))
    assert activators.put(KEY, {**a_slice("10.0.0.1"), "endpoints": [{"addresses": []}]})
    assert not activators.backends


def test_of_two_ports_that_of_most_counts() -> None:
    activators = Activators()
    activators.put(KEY, a_slice("10.0.0.1", "10.0.0.2"))
    activators.put((KEY[0], "new"), a_slice("10.0.0.3", port=8082))
    assert (activators.backends["IPv4"].port, named(activators)) == (8081, ["10.0.0.1", "10.0.0.2"])


def test_a_slice_without_the_request_port_names_no_pod() -> None:
    activators = Activators()
    assert not activators.put(KEY, {**a_slice("10.0.0.1"), "ports": [{"name": "other", "port": 1}]})
    assert not activators.put(KEY, {**a_slice("10.0.0.1"), "ports": None})


def test_the_same_again_is_no_change_and_a_slice_that_goes_is() -> None:
    activators = Activators()
    activators.put(KEY, a_slice("10.0.0.1"))
    assert not activators.put(KEY, a_slice("10.0.0.1"))
    assert activators.drop(KEY)
    assert not activators.drop(KEY)


def test_there_is_an_end_to_how_many_are_named() -> None:
    activators = Activators()
    activators.put(KEY, a_slice(*[f"10.0.{number}.1" for number in range(200)]))
    assert len(named(activators)) == 100


def test_each_activator_has_one_address() -> None:
    activators = Activators()
    assert activators.addresses == ()
    activators.put((KEY[0], "six"), a_slice("fd00::1", family="IPv6"))
    assert list(activators.addresses) == ["[fd00::1]:8081"]
    activators.put(KEY, a_slice("10.0.0.1", "10.0.0.2"))
    assert list(activators.addresses) == ["10.0.0.1:8081", "10.0.0.2:8081"]


def test_each_activator_has_a_page_where_the_service_names_its_port() -> None:
    activators, slice_ = Activators(), a_slice("10.0.0.1", "10.0.0.2")
    activators.put(KEY, slice_)
    assert activators.pages == ("10.0.0.1:9090", "10.0.0.2:9090")
    assert activators.addresses == ("10.0.0.1:8081", "10.0.0.2:8081")
    activators.put(KEY, {**slice_, "ports": [port for port in slice_["ports"] if port["name"] == "http"]})
    assert not activators.pages
