"""ScaledWorkloads: reading, problems, writing, and the view as a Revision."""

from typing import Any

import msgspec
import pytest

from serving.core.model.errors import SettingsError
from serving.core.model.knative import ServingState
from serving.core.model.scaledworkload import (
    PLACEHOLDER,
    ColdStart,
    HeaderMatch,
    PlaceholderResponse,
    RoutingRule,
    ScaledWorkloadSpec,
    Schedule,
    WorkloadScaling,
    WorkloadService,
    WorkloadTarget,
    as_revision,
    is_wildcard,
    serving_state_patch,
    spec_patch,
)

HOST = 'a host in lower case without a port, as "shop.example.com" or "*.example.com"'
SPEC: dict[str, Any] = {"target": {"name": "shop"}, "service": {"name": "shop"}}


def workload(**spec: object) -> dict[str, Any]:
    metadata = {"name": "shop", "namespace": "default", "uid": "u", "resourceVersion": "7"}
    return {"metadata": metadata, "spec": {**SPEC, **spec}}


def read(**spec: object) -> ScaledWorkloadSpec:
    return ScaledWorkloadSpec.from_object(workload(**spec))


def problems(**spec: object) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(**spec)
    return [str(problem) for problem in caught.value.problems]


def test_minimal_spec_is_target_and_service() -> None:
    spec = read()
    assert spec.target == WorkloadTarget(name="shop", kind="Deployment", api_version="apps/v1")
    assert spec.target.shown == "Deployment shop"
    assert spec.service == WorkloadService(name="shop", port=None)
    assert spec.routing == (RoutingRule(),)


def test_full_spec_round_trips() -> None:
    whole = workload(
        target={"name": "db", "kind": "StatefulSet"},
        service={"name": "db", "port": "http"},
        hosts=["a.example.com", "*.b.example.com"],
        paths=["/api"],
        headers=[{"name": "X-Tenant", "value": "a"}, {"name": "X-Any"}],
        rules=[{"hosts": ["c.example.com"], "paths": ["/"]}],
        scaling={
            "min": 0,
            "max": 5,
            "target": 2.5,
            "metric": "rps",
            "schedules": [{"start": "0 8 * * *", "end": "0 9 * * *", "min": 2}],
        },
        timeoutSeconds=30,
        containerConcurrency=8,
    )
    spec = ScaledWorkloadSpec.from_object(whole)
    written = spec.to_object(name="db", namespace="prod")
    assert (written["kind"], written["metadata"]) == ("ScaledWorkload", {"name": "db", "namespace": "prod"})
    assert ScaledWorkloadSpec.from_object(written) == spec
    assert written["spec"]["headers"] == [{"name": "X-Tenant", "value": "a"}, {"name": "X-Any"}]
    assert "window" not in written["spec"]["scaling"]


def test_unset_fields_are_omitted() -> None:
    target = {"name": "shop", "kind": "Deployment", "apiVersion": "apps/v1"}
    assert read().to_object(name="shop", namespace="default")["spec"] == {"target": target, "service": {"name": "shop"}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"target": {}}, "spec.target: Object missing required field `name`; expected a field of ScaledWorkload"),
        ({"host": "a"}, "spec: Object contains unknown field `host`; expected a field of ScaledWorkload"),
        ({"target": {"name": "A"}}, "spec.target.name: 'A'; expected the name of an object"),
        ({"target": {"name": "a", "kind": "a-b"}}, "spec.target.kind: 'a-b'; expected a kind, such as Deployment"),
        (
            {"target": {"name": "a", "apiVersion": "apps"}},
            "spec.target.apiVersion: 'apps'; expected group/version, such as apps/v1",
        ),
        ({"service": {"name": "a.b"}}, "spec.service.name: 'a.b'; expected the name of a Service"),
        (
            {"service": {"name": "a", "port": 0}},
            "spec.service.port: 0; expected a port of the Service, by number (80) or name (http)",
        ),
        (
            {"service": {"name": "a", "port": "80"}},
            "spec.service.port: '80'; expected a port of the Service, by number (80) or name (http)",
        ),
        (
            {"hosts": ["a.b:80"]},
            f"spec.hosts[0]: 'a.b:80'; expected {HOST}",
        ),
        (
            {"hosts": ["10.0.0.1"]},
            f"spec.hosts[0]: '10.0.0.1'; expected {HOST}",
        ),
        (
            {"rules": [{"paths": ["api"]}]},
            "spec.rules[0].paths[0]: 'api'; expected a path that begins with \"/\", without query, of at most 1024 characters",
        ),
        ({"headers": [{"name": "a b"}]}, "spec.headers[0].name: 'a b'; expected the name of a header"),
        ({"hosts": ["a"] * 17}, "spec.hosts: 17 entries; expected at most 16"),
        ({"scaling": {"min": -1}}, "spec.scaling.min: -1; expected a whole number from 0 to 2147483647"),
        ({"scaling": {"min": 3, "max": 2}}, "spec.scaling.min: 3 is above max, 2; expected at most 2"),
        ({"scaling": {"target": 0}}, "spec.scaling.target: 0.0; expected a number above 0"),
        ({"scaling": {"metric": "cpu"}}, "spec.scaling.metric: 'cpu'; expected one of concurrency, rps"),
        ({"scaling": {"window": "soon"}}, "spec.scaling.window: 'soon'; expected a duration, such as \"60s\""),
        (
            {"scaling": {"schedules": [{"start": "", "end": "", "min": 0}]}},
            "spec.scaling.schedules[0].min: 0; expected a whole number from 1 to 2147483647",
        ),
        ({"maxPendingRequests": 0}, "spec.maxPendingRequests: 0; expected a whole number from 1 to 2147483647"),
        ({"waitTimeoutSeconds": 3601}, "spec.waitTimeoutSeconds: 3601; expected a whole number from 1 to 3600"),
        ({"timeoutSeconds": 0}, "spec.timeoutSeconds: 0; expected a whole number from 1 to 3600"),
    ],
)
def test_problem_has_path_and_expected_form(spec: dict[str, Any], expected: str) -> None:
    assert problems(**spec) == [expected]


def test_all_problems_are_reported_together() -> None:
    assert len(problems(service={"name": "-", "port": 0}, hosts=["A", "b"])) == 3


def test_missing_spec_is_one_problem() -> None:
    with pytest.raises(SettingsError, match="spec: Expected `object`, got `null`"):
        ScaledWorkloadSpec.from_object({"metadata": {"name": "a"}})


def test_rules_follow_first_rule_or_replace_an_empty_first_rule() -> None:
    rule = RoutingRule(hosts=("a",))
    assert ScaledWorkloadSpec(target=read().target, service=read().service, rules=(rule,)).routing == (rule,)
    first = RoutingRule(headers=(HeaderMatch(name="x"),))
    assert read(headers=[{"name": "x"}], rules=[{"hosts": ["a"]}]).routing == (first, rule)


def test_scaling_fields_become_revision_annotations() -> None:
    scaling = WorkloadScaling(
        min_count=1,
        target=20.0,
        window="30s",
        policy="adaptive",
        schedules=(Schedule(start="0 8 * * *", end="0 9 * * *", min_count=2),),
    )
    assert scaling.annotations == {
        "autoscaling.knative.dev/min-scale": "1",
        "autoscaling.knative.dev/target": "20",
        "autoscaling.knative.dev/window": "30s",
        "autoscaling.serving.dev/policy": "adaptive",
    }


def test_workload_converts_to_revision() -> None:
    resource = workload(scaling={"max": 3}, timeoutSeconds=9)
    resource["metadata"]["annotations"] = {
        "serving.dev/serving-state": "Reserve",
        "autoscaling.knative.dev/max-scale": "9",
        "autoscaling.knative.dev/initial-scale": "2",
    }
    resource["metadata"]["labels"] = {"serving.knative.dev/configuration": "of-another"}
    resource["status"] = {"desiredReplicas": 2, "conditions": [{"type": "Ready", "status": "True"}]}
    revision = as_revision(resource, ScaledWorkloadSpec.from_object(resource))
    assert revision["spec"] == {"servingState": "Reserve", "containerConcurrency": 0, "timeoutSeconds": 9}
    assert revision["status"] == {"desiredReplicas": 2}
    metadata = revision["metadata"]
    assert (metadata["name"], metadata["resourceVersion"], metadata["labels"]) == ("shop", "7", {})
    assert metadata["annotations"]["autoscaling.knative.dev/max-scale"] == "3"
    assert metadata["annotations"]["autoscaling.knative.dev/initial-scale"] == "2"


def test_workload_with_unknown_state_is_active() -> None:
    resource = workload()
    resource["metadata"]["annotations"] = {"serving.dev/serving-state": "Sleeping"}
    assert as_revision(resource, ScaledWorkloadSpec.from_object(resource))["spec"]["servingState"] == "Active"


def test_serving_state_patch_depends_on_kind() -> None:
    metadata = {"resourceVersion": "7"}
    spec = {"servingState": "Reserve"}
    assert serving_state_patch(ServingState.RESERVE, resource_version="7", is_workload=False) == {
        "metadata": metadata,
        "spec": spec,
    }
    annotations = {"serving.dev/serving-state": "Active"}
    assert serving_state_patch(ServingState.ACTIVE, resource_version="7", is_workload=True) == {
        "metadata": {**metadata, "annotations": annotations}
    }


def test_wildcard_host_begins_with_star() -> None:
    assert is_wildcard("*.example.com")
    assert not is_wildcard("example.com")


def test_spec_patch_is_empty_for_equal_spec() -> None:
    wanted = ScaledWorkloadSpec(
        target=WorkloadTarget(name="shop"), service=WorkloadService(name="shop"), hosts=("a.b",)
    )
    same = wanted.to_object(name="shop", namespace="team")
    same["spec"]["scaling"] = {}
    assert spec_patch(same, wanted) == {}
    other = msgspec.structs.replace(wanted, hosts=("b.c",)).to_object(name="shop", namespace="team")
    assert spec_patch(other, wanted) == {"hosts": ["a.b"]}
    assert spec_patch({"spec": {"target": 1}}, wanted)["target"]["name"] == "shop"


def test_cold_start_round_trips() -> None:
    cold_start = {
        "fallback": {"name": "maintenance", "port": "http"},
        "placeholder": {"statusCode": 202, "headers": {"Refresh": "5"}, "body": "soon"},
        "overflow": "Placeholder",
    }
    spec = read(coldStart=cold_start)
    assert spec.to_object(name="shop", namespace="default")["spec"]["coldStart"] == cold_start
    bare = read(coldStart={"placeholder": {}})
    assert bare.to_object(name="shop", namespace="default")["spec"]["coldStart"] == {"placeholder": {}}


@pytest.mark.parametrize(
    ("cold_start", "expected"),
    [
        ({"fallback": {"name": "A", "port": 0}}, ["spec.coldStart.fallback.name", "spec.coldStart.fallback.port"]),
        ({"overflow": "Drop"}, ["spec.coldStart.overflow: 'Drop'; expected Reject or Placeholder"]),
        ({"overflow": "Placeholder"}, ["spec.coldStart.overflow: there is no placeholder"]),
        ({"placeholder": {"statusCode": 150}}, ["spec.coldStart.placeholder.statusCode: 150"]),
        ({"placeholder": {"body": "a" * 32769}}, ["spec.coldStart.placeholder.body: 32769 characters"]),
        ({"placeholder": {"headers": {"a b": "c"}}}, ["spec.coldStart.placeholder.headers: 'a b'"]),
        ({"placeholder": {"headers": {"a": "b\r\nc: d"}}}, ["spec.coldStart.placeholder.headers[a]: "]),
        ({"placeholder": {"headers": {"Content-Length": "3"}}}, ["spec.coldStart.placeholder.headers: 'Content-Len"]),
        (
            {"placeholder": {"headers": {str(number): "" for number in range(17)}}},
            ["spec.coldStart.placeholder.headers: 17"],
        ),
    ],
)
def test_cold_start_problem_has_path(cold_start: dict[str, Any], expected: list[str]) -> None:
    texts = problems(coldStart=cold_start)
    assert len(texts) == len(expected)
    assert all(text.startswith(start) for text, start in zip(texts, expected, strict=True)), texts


def test_overflow_placeholder_applies_after_waiting_limit() -> None:
    page = PlaceholderResponse()
    at_once, on_overflow = ColdStart(placeholder=page), ColdStart(placeholder=page, overflow=PLACEHOLDER)
    assert (at_once.placeholder_at_once(waiting_max=3), at_once.placeholder_on_overflow) == (page, None)
    assert (on_overflow.placeholder_at_once(waiting_max=3), on_overflow.placeholder_on_overflow) == (None, page)
    assert on_overflow.placeholder_at_once(waiting_max=None) == page
