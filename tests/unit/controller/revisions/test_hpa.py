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


def new_hpa(fields: Object, settings: AutoscalerSettings = SCALING) -> Object:
    (write,) = hpa_writes(fields, None, settings)
    assert isinstance(write, Create)
    assert write.kind is kinds.HORIZONTAL_POD_AUTOSCALER
    return dict(write.body)


def spec_of(**arguments: str) -> Object:
    spec: Object = new_hpa(new_revision(**arguments))["spec"]
    return spec


def test_hpa_is_owned_by_revision_and_targets_its_deployment() -> None:
    revision = new_revision()
    body = new_hpa(revision)
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
def test_hpa_metric_has_target_of_annotation(annotations: dict[str, str], metric: Object) -> None:
    assert spec_of(**annotations)["metrics"] == [metric]


@pytest.mark.parametrize(("target", "quantity"), [("1", "1"), ("2000", "2k"), ("3000000", "3M"), ("1001", "1001")])
def test_target_quantity_has_canonical_form(target: str, quantity: str) -> None:
    (metric,) = spec_of(metric="m", target=target)["metrics"]
    assert metric["pods"]["target"]["averageValue"] == quantity


def test_quantity_above_exa_keeps_largest_suffix() -> None:
    (metric,) = spec_of(metric="m", target="1" + 21 * "0")["metrics"]
    assert metric["pods"]["target"]["averageValue"] == "1000E"


def test_window_sets_stabilization_of_both_directions() -> None:
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
def test_hpa_bounds_are_annotations_or_settings(
    annotations: dict[str, str], settings: dict[str, Any], bounds: tuple[int, int]
) -> None:
    spec = new_hpa(new_revision(**annotations), AutoscalerSettings(**settings))["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == bounds


def test_unrouted_revision_has_min_replicas_1() -> None:
    revision = new_revision(min_scale="3")
    revision["metadata"]["labels"]["serving.knative.dev/routingState"] = "reserve"
    assert new_hpa(revision)["spec"]["minReplicas"] == 1


def test_autoscaler_class_defaults_to_setting() -> None:
    settings = msgspec.structs.replace(SCALING, pod_autoscaler_class=HPA_CLASS)
    assert is_of_an_hpa({}, settings)
    assert not is_of_an_hpa({GROUP + "class": "kpa.autoscaling.knative.dev"}, settings)
    assert not is_of_an_hpa({}, SCALING)


def test_revision_of_other_class_has_no_hpa() -> None:
    assert hpa_writes(a_revision(), None, SCALING) == ()


def test_hpa_with_server_defaults_is_not_changed() -> None:
    revision = new_revision(target="70", window="30s")
    resource = stored(new_hpa(revision))
    resource["spec"]["behavior"]["scaleUp"] = {
        **resource["spec"]["behavior"]["scaleUp"],
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}],
    }
    assert hpa_writes(revision, resource, SCALING) == ()


def test_hpa_patch_has_only_changed_fields() -> None:
    result = stored(new_hpa(new_revision(min_scale="2", window="30s")))
    (write,) = hpa_writes(new_revision(min_scale="3", window="40s"), result, SCALING)
    assert isinstance(write, Patch)
    rules = {"stabilizationWindowSeconds": 40}
    assert write.patch == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"minReplicas": 3, "behavior": {"scaleDown": rules, "scaleUp": rules}},
    }


def test_hpa_is_deleted_after_change_of_class() -> None:
    result = stored(new_hpa(new_revision()))
    (write,) = hpa_writes(a_revision(), result, SCALING)
    assert isinstance(write, Delete)


def test_hpa_of_another_owner_is_not_changed() -> None:
    resource = stored({**new_hpa(new_revision()), "spec": {}})
    resource["metadata"]["ownerReferences"] = []
    assert hpa_writes(new_revision(), resource, SCALING) == ()
    assert hpa_writes(a_revision(), resource, SCALING) == ()


def test_hpa_revision_starts_with_at_least_one_pod() -> None:
    settings = AutoscalerSettings(allow_zero_initial_scale=True, initial_scale=0)
    assert start_scale({GROUP + "class": HPA_CLASS}, settings).start_count == 1
    assert start_scale({}, settings).start_count == 0


def test_hpa_revision_has_traffic_path_serve() -> None:
    assert new_revision()["metadata"]["annotations"]["serving.dev/traffic-path"] == "serve"
    assert "serving.dev/traffic-path" not in a_revision()["metadata"]["annotations"]


@pytest.mark.parametrize("metric", ["cpu", "memory", "own"])
def test_hpa_is_valid_for_kubernetes(metric: str) -> None:
    assert faults(new_hpa(new_revision(metric=metric, target="5", window="30s", max_scale="3"))) == []


def test_hpa_spec_change_wakes_revision_and_scaling_does_not() -> None:
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
