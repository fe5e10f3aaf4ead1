"""Revisions that a HorizontalPodAutoscaler scales."""

from typing import Any

import msgspec
import pytest

from serving.controller.decide import decide
from serving.controller.revisions.hpa import hpa_writes, is_of_an_hpa
from serving.controller.revisions.revision_status import start_scale
from serving.core.model.objects import Object, is_controlled_by
from serving.core.settings.autoscaler import HPA_CLASS, AutoscalerSettings
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Delete, Patch
from tests.unit.config.strict import faults
from tests.unit.controller.builders import NOW, NOW_S, SCALING, a_cache, a_revision, stored

GROUP = "autoscaling.knative.dev/"
KEY = (kinds.REVISION, "default", "hello-00001")


def new_revision(**arguments: str) -> Object:
    """A revision with annotations of the group; the default ``class`` is that of an hpa."""
    values = {"class": HPA_CLASS, **{name.replace("_", "-"): text for name, text in arguments.items()}}
    return a_revision(metadata={"annotations": {GROUP + name: text for name, text in values.items()}})


def made(fields: Object, settings: AutoscalerSettings = SCALING) -> Object:
    (write,) = hpa_writes(fields, None, settings)
    assert isinstance(write, Create)
    assert write.kind is kinds.HORIZONTAL_POD_AUTOSCALER
    return dict(write.body)


def spec_of(**arguments: str) -> Object:
    spec: Object = made(new_revision(**arguments))["spec"]
    return spec


def test_an_hpa_is_its_revisions_and_scales_its_deployment() -> None:
    revision = new_revision()
    body = made(revision)
    assert (body["apiVersion"], body["metadata"]["name"]) == ("autoscaling/v2", "hello-00001")
    assert is_controlled_by(body, revision)
    assert body["spec"] == {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "hello-00001-deployment"},
        "minReplicas": 1,
        "maxReplicas": SCALING.max_scale_limit,
    }
    assert body["metadata"]["labels"]["serving.knative.dev/revision"] == "hello-00001"


@pytest.mark.parametrize(
    ("annotations", "metric"),
    [
        (
            {"target": "70.5"},
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 71}},
            },
        ),
        (
            {"metric": "memory", "target": "1024"},
            {
                "type": "Resource",
                "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}},
            },
        ),
        (
            {"metric": "queue-length", "target": "1500"},
            {
                "type": "Pods",
                "pods": {
                    "metric": {"name": "queue-length"},
                    "target": {"type": "AverageValue", "averageValue": "1500"},
                },
            },
        ),
    ],
)
def test_the_target_is_compared_with_the_metric(annotations: dict[str, str], metric: Object) -> None:
    assert spec_of(**annotations)["metrics"] == [metric]


@pytest.mark.parametrize(("target", "quantity"), [("1", "1"), ("2000", "2k"), ("3000000", "3M"), ("1001", "1001")])
def test_amounts_are_written_as_the_server_writes_them(target: str, quantity: str) -> None:
    (metric,) = spec_of(metric="m", target=target)["metrics"]
    assert metric["pods"]["target"]["averageValue"] == quantity


def test_the_largest_amount_has_the_largest_suffix() -> None:
    (metric,) = spec_of(metric="m", target="1" + 21 * "0")["metrics"]
    assert metric["pods"]["target"]["averageValue"] == "1000E"


def test_a_window_goes_for_both_directions() -> None:
    rules = {"stabilizationWindowSeconds": 30}
    assert spec_of(window="30s")["behavior"] == {"scaleDown": rules, "scaleUp": rules}


@pytest.mark.parametrize(
    ("annotations", "settings", "bounds"),
    [
        ({"min_scale": "2", "max_scale": "5"}, {}, (2, 5)),
        ({"min_scale": "0", "max_scale": "0"}, {"max_scale_limit": 0}, (1, 2**31 - 1)),
        ({}, {"min_scale": 3, "max_scale": 4}, (3, 4)),
        ({}, {"max_scale_limit": 9}, (1, 9)),
    ],
)
def test_the_bounds_are_the_revisions_or_those_of_the_settings(
    annotations: dict[str, str], settings: dict[str, Any], bounds: tuple[int, int]
) -> None:
    spec = made(new_revision(**annotations), AutoscalerSettings(**settings))["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == bounds


def test_a_revision_that_no_route_names_keeps_one_pod() -> None:
    revision = new_revision(min_scale="3")
    revision["metadata"]["labels"]["serving.knative.dev/routingState"] = "reserve"
    assert made(revision)["spec"]["minReplicas"] == 1


def test_the_class_of_the_settings_counts_where_a_revision_has_none() -> None:
    settings = msgspec.structs.replace(SCALING, pod_autoscaler_class=HPA_CLASS)
    assert is_of_an_hpa({}, settings)
    assert not is_of_an_hpa({GROUP + "class": "kpa.autoscaling.knative.dev"}, settings)
    assert not is_of_an_hpa({}, SCALING)


def test_a_revision_of_another_class_has_no_hpa() -> None:
    assert hpa_writes(a_revision(), None, SCALING) == ()


def test_one_that_is_as_it_should_be_is_left_alone_with_all_that_the_server_filled_in() -> None:
    revision = new_revision(target="70", window="30s")
    resource = stored(made(revision))
    resource["spec"]["behavior"]["scaleUp"] = {
        **resource["spec"]["behavior"]["scaleUp"],
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}],
    }
    assert hpa_writes(revision, resource, SCALING) == ()


def test_only_what_is_different_is_patched() -> None:
    result = stored(made(new_revision(min_scale="2", window="30s")))
    (write,) = hpa_writes(new_revision(min_scale="3", window="40s"), result, SCALING)
    assert isinstance(write, Patch)
    rules = {"stabilizationWindowSeconds": 40}
    assert write.patch == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"minReplicas": 3, "behavior": {"scaleDown": rules, "scaleUp": rules}},
    }


def test_one_that_is_wanted_no_more_goes() -> None:
    result = stored(made(new_revision()))
    (write,) = hpa_writes(a_revision(), result, SCALING)
    assert isinstance(write, Delete)


def test_an_object_of_another_owner_is_left_alone() -> None:
    resource = stored({**made(new_revision()), "spec": {}})
    resource["metadata"]["ownerReferences"] = []
    assert hpa_writes(new_revision(), resource, SCALING) == ()
    assert hpa_writes(a_revision(), resource, SCALING) == ()


def test_it_starts_with_a_pod_because_an_hpa_leaves_zero_alone() -> None:
    settings = AutoscalerSettings(allow_zero_initial_scale=True, initial_scale=0)
    assert start_scale({GROUP + "class": HPA_CLASS}, settings).start_count == 1
    assert start_scale({}, settings).start_count == 0


def test_requests_go_to_its_pods_directly() -> None:
    assert new_revision()["metadata"]["annotations"]["serving.dev/traffic-path"] == "serve"
    assert "serving.dev/traffic-path" not in a_revision()["metadata"]["annotations"]


@pytest.mark.parametrize("metric", ["cpu", "memory", "own"])
def test_it_is_one_that_kubernetes_takes(metric: str) -> None:
    assert faults(made(new_revision(metric=metric, target="5", window="30s", max_scale="3"))) == []


def test_what_an_hpa_says_is_looked_at_when_its_spec_changes_and_not_when_it_scales() -> None:
    cache = a_cache((kinds.REVISION, new_revision()))
    (write,) = [
        each_write
        for each_write in decide(cache, KEY, now=NOW, now_s=NOW_S).writes
        if each_write.kind is kinds.HORIZONTAL_POD_AUTOSCALER
    ]
    assert isinstance(write, Create)
    assert cache.put(kinds.HORIZONTAL_POD_AUTOSCALER, stored(write.body)) == {KEY}
    assert [
        each_write
        for each_write in decide(cache, KEY, now=NOW, now_s=NOW_S).writes
        if each_write.kind is kinds.HORIZONTAL_POD_AUTOSCALER
    ] == []
    scaled = stored({**write.body, "status": {"currentReplicas": 3}}, resourceVersion="8")
    assert cache.put(kinds.HORIZONTAL_POD_AUTOSCALER, scaled) == set()
    assert cache.drop(kinds.HORIZONTAL_POD_AUTOSCALER, ("default", "hello-00001")) == {KEY}
