"""What is read from Revisions and EndpointSlices."""

from typing import Any

import pytest

from serving.activator.revisions import PodFacts, RevisionFacts, SliceFacts, Slices, revision_of, slice_of
from serving.model.knative import ServingState
from serving.model.nodata import NoData
from serving.scaling.resolve import resolve
from serving.settings.annotations import read_annotations
from serving.settings.autoscaler import AutoscalerSettings

SCALING = AutoscalerSettings()


def revision(
    *,
    annotations: dict[str, str] | None = None,
    scaling: AutoscalerSettings = SCALING,
    **parts: Any,  # noqa: ANN401 - JSON
) -> RevisionFacts:
    metadata = {"name": "hello-00001", "namespace": "default", "resourceVersion": "7", "annotations": annotations}
    read = revision_of({"metadata": metadata, **parts}, scaling)
    assert isinstance(read, RevisionFacts)
    return read


def endpoint(address: str, **conditions: bool | None) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": f"pod-{address}"}}


def slice_facts(
    *endpoints: dict[str, Any], name: str = "s", of: str = "hello-00001", ports: list[dict[str, Any]] | None = None
) -> SliceFacts:
    read = slice_of(
        {
            "metadata": {"name": name, "namespace": "default", "labels": {"serving.knative.dev/revision": of}},
            "addressType": "IPv4",
            "endpoints": list(endpoints),
            "ports": ports,
        }
    )
    assert isinstance(read, SliceFacts)
    return read


def addresses(facts: SliceFacts) -> list[str]:
    return [pod.address for pod in facts.pods]


def test_a_revision_is_read() -> None:
    spec = {
        "servingState": "Reserve",
        "containerConcurrency": 10,
        "timeoutSeconds": 60,
        "responseStartTimeoutSeconds": 5,
        "idleTimeoutSeconds": 7,
        "containers": [{}],
    }
    assert revision(spec=spec, status={"desiredReplicas": 3}) == RevisionFacts(
        key=("default", "hello-00001"),
        resource_version="7",
        serving_state=ServingState.RESERVE,
        target_concurrency=7.0,
        container_concurrency=10,
        timeout_s=60,
        response_start_timeout_s=5,
        idle_timeout_s=7,
        desired_count=3,
    )


def test_a_revision_that_says_little_gets_the_defaults() -> None:
    assert revision(spec={"idleTimeoutSeconds": 0}) == RevisionFacts(
        key=("default", "hello-00001"),
        resource_version="7",
        serving_state=ServingState.ACTIVE,
        target_concurrency=70.0,
    )


@pytest.mark.parametrize(
    ("condition", "failure"),
    [
        ({"type": "Ready", "status": "False", "reason": "ExitCode1", "message": "it died"}, "ExitCode1: it died"),
        ({"type": "Ready", "status": "False"}, "not ready"),
        ({"type": "Ready", "status": "Unknown", "reason": "Deploying"}, None),
        ({"type": "Active", "status": "False", "reason": "NoTraffic"}, None),
        ({"type": "Ready", "status": "True"}, None),
    ],
)
def test_only_ready_false_is_a_failure(condition: dict[str, str], failure: str | None) -> None:
    assert revision(status={"conditions": [condition]}).failure == failure


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulingGated"])
def test_a_pod_without_a_node_delays_a_revision_and_does_not_fail_it(reason: str) -> None:
    condition = {"type": "Ready", "status": "False", "reason": reason, "message": "0/1 nodes are available"}
    facts = revision(status={"conditions": [condition]})
    assert (facts.failure, facts.delay) == (None, f"{reason}: 0/1 nodes are available")


@pytest.mark.parametrize(
    ("annotations", "target"),
    [
        ({}, 70.0),
        ({"autoscaling.knative.dev/target": "5"}, 3.5),
        ({"autoscaling.knative.dev/target": "0"}, 70.0),
        ({"autoscaling.knative.dev/target": "many"}, 70.0),
        ({"autoscaling.knative.dev/target": "5", "autoscaling.knative.dev/metric": "concurrency"}, 3.5),
        ({"autoscaling.knative.dev/target": "5", "autoscaling.knative.dev/metric": "rps"}, 70.0),
        ({"autoscaling.knative.dev/target-utilization-percentage": "20"}, 20.0),
        ({"autoscaling.knative.dev/targetUtilizationPercentage": "20"}, 20.0),
    ],
)
def test_the_target_is_the_one_that_the_autoscaler_aims_at(annotations: dict[str, str], target: float) -> None:
    asked = read_annotations(annotations, SCALING).scaling
    aimed_at = resolve(SCALING, asked, container_concurrency=0, reachable=True)
    found = revision(annotations=annotations).target_concurrency
    assert found == aimed_at.target_concurrency == pytest.approx(target)
    assert aimed_at.metric != "concurrency" or found == aimed_at.target_value


def test_the_target_follows_the_autoscalers_settings() -> None:
    assert revision(scaling=AutoscalerSettings(container_concurrency_target_default=10.0)).target_concurrency == 7.0


def test_a_revision_that_cannot_be_read_is_no_data() -> None:
    assert isinstance(revision_of({"metadata": {"name": "r"}, "spec": {"servingState": "Asleep"}}, SCALING), NoData)


def test_a_pod_has_an_address_and_a_name() -> None:
    facts = slice_facts(endpoint("127.64.0.3", ready=True), ports=[{"name": "http", "port": 8012}])
    assert facts.pods == (PodFacts(address="127.64.0.3:8012", namespace="default", name="pod-127.64.0.3"),)


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
def test_a_pod_is_ready_unready_or_terminates(conditions: dict[str, bool | None], ready: bool, unready: bool) -> None:
    facts = slice_facts(endpoint("10.0.0.1", **conditions))
    assert (bool(facts.pods), bool(facts.unready)) == (ready, unready)


def test_an_address_that_one_slice_lists_as_ready_is_ready() -> None:
    made = Slices()
    made.set(slice_facts(endpoint("10.0.0.1", ready=False), endpoint("10.0.0.2", ready=False), name="a"))
    made.set(slice_facts(endpoint("10.0.0.1", ready=True), name="b"))
    key = ("default", "hello-00001")
    assert (list(made.pods_of(key)), list(made.unready_of(key))) == (["10.0.0.1:8012"], ["10.0.0.2:8012"])


def test_a_readiness_probe_of_the_kubelet_is_seen() -> None:
    probed = {"readinessProbe": {"exec": {"command": ["true"]}}}
    assert revision(spec={"containers": [probed]}).kubelet_decides
    assert not revision(spec={"containers": [{}]}).kubelet_decides


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
def test_the_port_is_the_one_named_http_else_the_first(ports: list[dict[str, Any]] | None, port: int) -> None:
    assert addresses(slice_facts(endpoint("10.0.0.1"), ports=ports)) == [f"10.0.0.1:{port}"]


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    assert addresses(slice_facts({"addresses": ["fd00::1"]})) == ["[fd00::1]:8012"]


def test_an_endpoint_without_a_pod_has_no_name() -> None:
    assert [pod.name for pod in slice_facts({"addresses": ["10.0.0.1", "10.0.0.2"]}).pods] == [""]


@pytest.mark.parametrize(
    "endpoint_slice", [{"metadata": {"name": "s"}}, {"metadata": {"name": "s", "labels": {}}}, {"metadata": 1}]
)
def test_a_slice_of_no_revision_is_no_data(endpoint_slice: dict[str, Any]) -> None:
    assert isinstance(slice_of(endpoint_slice), NoData)


def test_slices_of_a_revision_add_up() -> None:
    slices = Slices()
    slices.set(slice_facts(endpoint("10.0.0.1"), name="s1"))
    slices.set(slice_facts(endpoint("10.0.0.2"), endpoint("10.0.0.3"), name="s2"))
    found = slices.pods_of(("default", "hello-00001"))
    assert sorted(found) == ["10.0.0.1:8012", "10.0.0.2:8012", "10.0.0.3:8012"]
    assert repr(slices) == "Slices(2 of 1 revisions)"


def test_a_slice_that_changes_hands_changes_both_revisions() -> None:
    slices = Slices()
    slices.set(slice_facts(endpoint("10.0.0.1")))
    changed = slices.set(slice_facts(endpoint("10.0.0.1"), of="hello-00002"))
    assert changed == {("default", "hello-00001"), ("default", "hello-00002")}
    assert slices.pods_of(("default", "hello-00001")) == {}


def test_a_changed_slice_changes_its_revision() -> None:
    slices = Slices()
    slices.set(slice_facts(endpoint("10.0.0.1")))
    assert slices.set(slice_facts()) == {("default", "hello-00001")}


def test_a_slice_that_is_gone_takes_its_pods_along() -> None:
    slices = Slices()
    for name in ("s1", "s2"):
        slices.set(slice_facts(endpoint(f"10.0.0.{name[1]}"), name=name))
    assert slices.remove("default/s1") == ("default", "hello-00001")
    assert list(slices.pods_of(("default", "hello-00001"))) == ["10.0.0.2:8012"]


def test_a_slice_that_never_was_is_nobodys() -> None:
    assert Slices().remove("default/s") is None
