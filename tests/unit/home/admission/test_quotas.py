"""Quota usage of objects, rejection above a quota, and LimitRanges."""

from collections.abc import Iterable
from typing import Any

import pytest

from serving.core.model.objects import Object, annotations_of
from serving.home.admission.defaults import with_requests
from serving.home.admission.quotas import (
    Claim,
    claim_of,
    counted_kinds,
    limit_breaches,
    pod_sums,
    quota_refusal,
    quota_status,
    with_limit_defaults,
)
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, POD, SECRET, SERVICE, Kind

_MIXED = {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"cpu": "500m"}}


def pod(*resources: Object, **spec: Any) -> Object:  # noqa: ANN401 - JSON
    containers = [{"name": f"c{number}", "resources": resource} for number, resource in enumerate(resources)]
    return with_requests({"metadata": {"name": "p"}, "spec": {"containers": containers, **spec}})


def quota(hard: Object, name: str = "q", **spec: object) -> Object:
    return {"metadata": {"name": name}, "spec": {"hard": hard, **spec}}


def refusal(new: Object, *quotas: Object, there: Iterable[Object] = (), kind: Kind = POD) -> str:
    return quota_refusal(
        kind, new, quotas, claims_of=lambda claimed_kind: [claim_of(claimed_kind, resource) for resource in there]
    )


def usage(kind: Kind, whole: Object) -> dict[str, str]:
    return {name: str(amount) for name, amount in claim_of(kind, whole).usage.items()}


def test_pod_usage_has_requests_and_limits() -> None:
    assert usage(POD, pod(_MIXED)) == {
        "count/pods": "1",
        "pods": "1",
        "requests.cpu": "200m",
        "cpu": "200m",
        "requests.memory": "1Gi",
        "memory": "1Gi",
        "limits.cpu": "500m",
    }


def test_device_usage_has_requests_only() -> None:
    entry = usage(POD, pod({"limits": {"nvidia.com/gpu": 2, "hugepages-2Mi": "4Mi"}}))
    assert entry["requests.nvidia.com/gpu"] == "2"
    assert entry["hugepages-2Mi"] == "4Mi"
    assert "nvidia.com/gpu" not in entry


def test_ended_pod_counts_only_as_object() -> None:
    assert usage(POD, {**pod(_MIXED), "status": {"phase": "Succeeded"}}) == {"count/pods": "1"}


def test_init_container_counts_if_larger_than_the_containers() -> None:
    def cpu(amount: int, **more: str) -> Object:
        return {"resources": {"requests": {"cpu": amount}}, **more}

    first = [cpu(1, restartPolicy="Always"), cpu(4)]
    exact_amounts = pod_sums(
        {"initContainers": first, "containers": [cpu(1), cpu(2)], "overhead": {"cpu": "1"}}, "requests"
    )
    assert str(exact_amounts["cpu"]) == "6"
    exact_amounts = pod_sums({"initContainers": [first[0]], "containers": [cpu(1), cpu(2)]}, "requests")
    assert str(exact_amounts["cpu"]) == "4"


def test_object_usage_is_counted_by_resource() -> None:
    assert usage(SECRET, {}) == {"count/secrets": "1", "secrets": "1"}
    assert usage(DEPLOYMENT, {}) == {"count/deployments.apps": "1"}
    result = usage(SERVICE, {"spec": {"type": "LoadBalancer"}})
    assert result == {"count/services": "1", "services": "1", "services.loadbalancers": "1"}


def test_pod_above_quota_is_rejected_as_by_kubernetes() -> None:
    there = [pod({"requests": {"cpu": "400m"}})]
    text = refusal(pod(_MIXED), quota({"requests.cpu": "500m", "pods": "1", "limits.cpu": "4"}), there=there)
    assert text == (
        "exceeded quota: q, requested: pods=1,requests.cpu=200m, used: pods=1,requests.cpu=400m, "
        "limited: pods=1,requests.cpu=500m"
    )


def test_first_exceeded_quota_by_name_is_reported() -> None:
    quotas = quota({"pods": 0}, "b"), quota({"cpu": 0}, "a")
    assert refusal(pod(_MIXED), *quotas).startswith(
        "exceeded quota: a, requested: cpu=200m, used: cpu=0, limited: cpu=0"
    )


def test_pod_within_all_quotas_is_admitted() -> None:
    assert refusal(pod(_MIXED), quota({"requests.cpu": "200m"}), quota({"secrets": 0}, "other")) == ""


def test_container_without_a_limited_resource_is_rejected() -> None:
    text = refusal(pod({}, _MIXED, {}), quota({"limits.cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}))
    assert text == "failed quota: q: must specify limits.cpu for: c0,c2; memory for: c0,c2"


def test_object_count_quota_rejects_another_object() -> None:
    text = refusal({}, quota({"count/configmaps": "1"}), there=[{}], kind=CONFIG_MAP)
    assert text == (
        "exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=1, limited: count/configmaps=1"
    )


@pytest.mark.parametrize(
    ("spec", "new", "is_refused"),
    [
        ({"scopes": ["BestEffort"]}, pod({}), True),
        ({"scopes": ["BestEffort"]}, pod(_MIXED), False),
        ({"scopes": ["NotBestEffort", "Terminating"]}, pod(_MIXED), False),
        ({"scopes": ["NotBestEffort", "Terminating"]}, pod(_MIXED, activeDeadlineSeconds=5), True),
        ({"scopes": ["PriorityClass"]}, pod({}), False),
        ({"scopes": ["PriorityClass"]}, pod({}, priorityClassName="high"), True),
    ],
)
def test_scoped_quota_counts_pods_that_match_all_scopes(spec: Object, new: Object, is_refused: bool) -> None:
    assert bool(refusal(new, quota({"pods": 0}, **spec))) is is_refused


@pytest.mark.parametrize(
    ("operator", "name", "is_refused"),
    [
        ("In", "high", True),
        ("In", "low", False),
        ("NotIn", "low", True),
        ("NotIn", "high", False),
        ("DoesNotExist", "", True),
        ("DoesNotExist", "high", False),
        ("Exists", "high", True),
    ],
)
def test_scope_selector_matches_priority_class(operator: str, name: str, is_refused: bool) -> None:
    request_count = {"scopeName": "PriorityClass", "operator": operator, "values": ["high"]}
    bound = quota({"pods": 0}, scopeSelector={"matchExpressions": [request_count]})
    assert bool(refusal(pod({}, priorityClassName=name), bound)) is is_refused
    assert refusal({}, quota({"count/secrets": 0}, scopes=["BestEffort"]), kind=SECRET) == ""


def test_quota_status_has_usage_of_each_limit() -> None:
    bound = quota({"cpu": "1", "services.nodeports": "2", "count/secrets": "5"})
    there = {POD: [pod(_MIXED), pod(_MIXED)], SERVICE: [{"spec": {"type": "NodePort"}}], SECRET: []}

    def claims_of(kind: Kind) -> Iterable[Claim]:
        return (claim_of(kind, resource) for resource in there[kind])

    assert counted_kinds(bound) == {POD, SERVICE, SECRET}
    assert quota_status(bound, claims_of) == {
        "hard": {"cpu": "1", "services.nodeports": "2", "count/secrets": "5"},
        "used": {"cpu": "400m", "services.nodeports": "1", "count/secrets": "0"},
    }


def pod_of_limitranges(*resources: Object, **spec: Any) -> Object:  # noqa: ANN401 - JSON
    containers = [{"name": f"c{number}", "resources": resource} for number, resource in enumerate(resources)]
    return {"metadata": {"name": "p"}, "spec": {"containers": containers, **spec}}


def limits(item: Object, kind: str = "Container", name: str = "l") -> Object:
    return {"metadata": {"name": name}, "spec": {"limits": [{"type": kind, **item}]}}


def test_container_gets_limit_range_defaults() -> None:
    limit_defaults = with_limit_defaults(
        pod_of_limitranges({"limits": {"cpu": "2"}}, initContainers=[{"name": "i"}]),
        [limits({"default": {"memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}, "min": {"cpu": "50m"}})],
    )
    (first,), (init,) = limit_defaults["spec"]["containers"], limit_defaults["spec"]["initContainers"]
    # Its CPU request defaults to its CPU limit.
    assert first["resources"] == {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "2", "memory": "1Gi"}}
    assert init["resources"] == {"limits": {"memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "1Gi"}}
    assert annotations_of(limit_defaults)["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: memory request for container c0; memory limit for container c0; "
        "cpu, memory request for init container i; memory limit for init container i"
    )


def test_first_limit_range_by_name_sets_maximum_as_default() -> None:
    ranges = [limits({"default": {"cpu": "3"}}, name="b"), limits({"max": {"cpu": "1"}}, name="a")]
    (container,) = with_limit_defaults(pod_of_limitranges({}), ranges)["spec"]["containers"]
    assert container["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}


def test_complete_pod_is_unchanged_by_limit_ranges() -> None:
    whole = pod_of_limitranges({"limits": {"cpu": "1"}})
    assert with_limit_defaults(whole, [limits({"max": {"cpu": "1"}})]) is whole


@pytest.mark.parametrize(
    ("item", "resources", "message"),
    [
        ({"min": {"cpu": "100m"}}, {}, "minimum cpu usage per Container is 100m.  No request is specified"),
        (
            {"min": {"cpu": "100m"}},
            {"requests": {"cpu": "50m"}},
            "minimum cpu usage per Container is 100m, but request is 50m",
        ),
        (
            {"min": {"cpu": "100m"}},
            {"requests": {"cpu": "100m"}, "limits": {"cpu": "50m"}},
            "minimum cpu usage per Container is 100m, but limit is 50m",
        ),
        ({"max": {"memory": "1Gi"}}, {}, "maximum memory usage per Container is 1Gi.  No limit is specified"),
        (
            {"max": {"cpu": "1"}},
            {"limits": {"cpu": "1500m"}},
            "maximum cpu usage per Container is 1, but limit is 1500m",
        ),
        (
            {"max": {"cpu": "1"}},
            {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}},
            "maximum cpu usage per Container is 1, but request is 2",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {"limits": {"cpu": "3"}, "requests": {"cpu": "1"}},
            "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {},
            "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {"requests": {"cpu": "1"}},
            "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0",
        ),
    ],
)
def test_limit_range_violation_message_equals_kubernetes(item: Object, resources: Object, message: str) -> None:
    assert limit_breaches(pod_of_limitranges(resources), [limits(item)]) == [message]


def test_container_within_limit_range_has_no_violation() -> None:
    item = {"min": {"cpu": "1"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "2"}}
    assert limit_breaches(pod_of_limitranges({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}), [limits(item)]) == []


def test_pod_limit_range_applies_to_the_sum_of_containers() -> None:
    two = pod_of_limitranges({"limits": {"cpu": "1"}}, {"limits": {"cpu": "1"}})
    results = limit_breaches(two, [limits({"max": {"cpu": "1500m"}}, "Pod")])
    assert results == ["maximum cpu usage per Pod is 1500m, but limit is 2"]
