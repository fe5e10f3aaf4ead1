"""Parsing of EndpointSlices."""

from typing import Any

import msgspec
import pytest

from serving.activator.queueing import slices as module
from serving.activator.queueing.slices import (
    PodEndpoints,
    ServedPod,
    ServedSlice,
    SliceIndex,
    slice_of,
    workload_slice_of,
)
from serving.core.model.knative import RevisionKey
from serving.core.model.nodata import NoData

REVISION = ("default", "hello-00001")


def endpoint(address: str, **conditions: bool | None) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": f"pod-{address}"}}


def slice_facts(
    *endpoints: dict[str, Any], name: str = "s", of: str = "hello-00001", ports: list[dict[str, Any]] | None = None
) -> ServedSlice:
    read = slice_of(
        {
            "metadata": {"name": name, "namespace": "default", "labels": {"serving.knative.dev/revision": of}},
            "addressType": "IPv4",
            "endpoints": list(endpoints),
            "ports": ports,
        }
    )
    assert isinstance(read, ServedSlice)
    return read


def addresses(facts: ServedSlice) -> list[str]:
    return [pod.address for pod in facts.pods]


def test_endpoint_gives_address_name_and_node_of_a_pod() -> None:
    facts = slice_facts(endpoint("127.64.0.3", ready=True), ports=[{"name": "http", "port": 8012}])
    assert facts.pods == (ServedPod(address="127.64.0.3:8012", namespace="default", name="pod-127.64.0.3"),)
    assert slice_facts({**endpoint("127.64.0.3", ready=True), "nodeName": "n"}).pods[0].node == "n"


@pytest.mark.parametrize(
    ("conditions", "ready", "unready"),
    [
        ({"ready": True}, True, False),
        ({"ready": None}, True, False),
        ({}, True, False),
        ({"ready": False}, False, True),
        ({"ready": False, "serving": True}, False, True),
        ({"ready": True, "terminating": True}, False, False),
        ({"ready": False, "serving": True, "terminating": True}, False, False),
    ],
)
def test_endpoint_conditions_classify_ready_unready_and_terminating(
    conditions: dict[str, bool | None], ready: bool, unready: bool
) -> None:
    facts = slice_facts(endpoint("10.0.0.1", **conditions))
    assert (bool(facts.pods), bool(facts.unready)) == (ready, unready)


def test_address_is_ready_if_any_slice_lists_it_as_ready() -> None:
    slice_index = SliceIndex()
    slice_index.set(slice_facts(endpoint("10.0.0.1", ready=False), endpoint("10.0.0.2", ready=False), name="a"))
    slice_index.set(slice_facts(endpoint("10.0.0.1", ready=True), name="b"))
    key = ("default", "hello-00001")
    assert (list(slice_index.pods_of(key)), list(slice_index.unready_of(key))) == (["10.0.0.1:8012"], ["10.0.0.2:8012"])


@pytest.mark.parametrize(
    ("ports", "port"),
    [
        (None, 8012),
        ([], 8012),
        ([{"name": "h2", "port": 1}, {"name": "http", "port": 2}], 2),
        ([{"name": "a", "port": 1}, {"port": 2}], 1),
        ([{"name": "http", "port": None}], 8012),
    ],
)
def test_port_named_http_is_preferred_over_the_first(ports: list[dict[str, Any]] | None, port: int) -> None:
    assert addresses(slice_facts(endpoint("10.0.0.1"), ports=ports)) == [f"10.0.0.1:{port}"]


def test_ipv6_address_is_bracketed() -> None:
    assert addresses(slice_facts({"addresses": ["fd00::1"]})) == ["[fd00::1]:8012"]


def test_endpoint_without_target_ref_is_one_unnamed_pod() -> None:
    assert [pod.name for pod in slice_facts({"addresses": ["10.0.0.1", "10.0.0.2"]}).pods] == [""]


@pytest.mark.parametrize(
    "endpoint_slice", [{"metadata": {"name": "s"}}, {"metadata": {"name": "s", "labels": {}}}, {"metadata": 1}]
)
def test_slice_without_revision_label_is_no_data(endpoint_slice: dict[str, Any]) -> None:
    assert isinstance(slice_of(endpoint_slice), NoData)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_slice_with_invalid_port_is_no_data(port: int) -> None:
    labels = {"serving.knative.dev/revision": "hello-00001"}
    assert isinstance(slice_of({"metadata": {"name": "s", "labels": labels}, "ports": [{"port": port}]}), NoData)


def test_slice_of_type_fqdn_is_no_data() -> None:
    labels = {"serving.knative.dev/revision": "hello-00001"}
    named = {"metadata": {"name": "s", "labels": labels}, "addressType": "FQDN", "endpoints": [endpoint("a" * 70)]}
    assert isinstance(slice_of(named), NoData)
    assert isinstance(workload_slice_of(named, "shop", port_name=None), NoData)


def test_pods_of_all_slices_of_a_revision_are_combined() -> None:
    slices = SliceIndex()
    slices.set(slice_facts(endpoint("10.0.0.1"), name="s1"))
    slices.set(slice_facts(endpoint("10.0.0.2"), endpoint("10.0.0.3"), name="s2"))
    served_pods = slices.pods_of(("default", "hello-00001"))
    assert sorted(served_pods) == ["10.0.0.1:8012", "10.0.0.2:8012", "10.0.0.3:8012"]


def test_slice_moved_to_another_revision_changes_both() -> None:
    slices = SliceIndex()
    slices.set(slice_facts(endpoint("10.0.0.1")))
    changed = slices.set(slice_facts(endpoint("10.0.0.1"), of="hello-00002"))
    assert changed == {("default", "hello-00001"), ("default", "hello-00002")}
    assert slices.pods_of(("default", "hello-00001")) == {}


def test_a_changed_slice_changes_its_revision() -> None:
    slices = SliceIndex()
    slices.set(slice_facts(endpoint("10.0.0.1")))
    assert slices.set(slice_facts()) == {("default", "hello-00001")}


def test_removed_slice_removes_its_pods() -> None:
    slices = SliceIndex()
    for name in ("s1", "s2"):
        slices.set(slice_facts(endpoint(f"10.0.0.{name[1]}"), name=name))
    assert slices.remove("default/s1") == ("default", "hello-00001")
    assert list(slices.pods_of(("default", "hello-00001"))) == ["10.0.0.2:8012"]


def test_a_missing_slice_has_no_owner() -> None:
    assert SliceIndex().remove("default/s") is None


def pod(address: str = "10.0.0.1:8012", name: str = "p") -> ServedPod:
    return ServedPod(address=address, namespace="default", name=name)


def ways(override: str = "") -> PodEndpoints:
    def lines_to(pod: ServedPod, revision: RevisionKey) -> bytes:
        return f"{revision[1]}/{pod.name}".encode()

    return PodEndpoints(override, lines_to=lines_to)


@pytest.mark.parametrize(
    ("address", "override", "expected"),
    [
        ("10.0.0.1:8012", "", ("10.0.0.1", 8012)),
        ("[fd00::1]:8012", "", ("fd00::1", 8012)),
        ("10.0.0.1:8012", "10.=127.", ("127.0.0.1", 8012)),
        ("11.0.0.1:8012", "10.=127.", ("11.0.0.1", 8012)),
    ],
)
def test_pod_address_is_split_and_overridden_for_sockets(
    address: str, override: str, expected: tuple[str, int]
) -> None:
    assert ways(override).to(pod(address), REVISION).address == expected


def test_endpoint_is_cached_until_another_pod_gets_the_address() -> None:
    known = ways()
    first = known.to(pod(), REVISION)
    assert first.lines == b"hello-00001/p"
    assert known.to(pod(), REVISION) is first
    assert known.to(pod(name="q"), REVISION).lines == b"hello-00001/q"


def test_cached_endpoints_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ENDPOINTS_MAX", 2)
    known = ways()
    for number in range(3):
        known.to(pod(f"10.0.0.{number}:1"), REVISION)
    assert len(known._endpoints) == 1


def test_address_maps_to_pod_identity_and_scheme() -> None:
    known = ways()
    address = known.to(pod(), ("default", "hello-00001")).address
    assert known.identity_at(address).endswith("/ns/default/revision/hello-00001/pod/p")
    assert known.identity_at(("10.9.9.9", 1)) == ""
    assert known.scheme_at(address) == ""
    app = msgspec.structs.replace(ServedPod(address="10.0.0.9:80", namespace="default", name="q"), scheme="https")
    assert known.scheme_at(known.to(app, REVISION).address) == "https"
    proxied = msgspec.structs.replace(app, scheme="")
    assert known.scheme_at(known.to(proxied, REVISION).address) == ""
