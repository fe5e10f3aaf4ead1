from typing import Any

import pytest

from serving.cluster.admission import admit
from serving.cluster.kinds import CONFIG_MAP, DEPLOYMENT, POD, Kind
from serving.cluster.podrules import pod_problems
from serving.model.errors import Invalid

CONTAINER = {"name": "a", "image": "i"}


def deployment(**spec: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    template = {"metadata": {"labels": {"app": "a", "more": "b"}}, "spec": {"containers": [CONTAINER]}}
    return {"spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template, **spec}}


@pytest.mark.parametrize(
    ("kind", "whole"),
    [
        (POD, {"spec": {"containers": [CONTAINER, {"image": "unnamed"}], "restartPolicy": "Never"}}),
        (POD, {"spec": {"containers": [CONTAINER], "initContainers": [{"name": "b", "image": "i"}]}}),
        (POD, {"spec": {"containers": [{**CONTAINER, "livenessProbe": {"periodSeconds": 0}, "startupProbe": None}]}}),
        (DEPLOYMENT, deployment()),
        (DEPLOYMENT, deployment(replicas=0)),
        (CONFIG_MAP, {"data": {}}),
    ],
)
def test_what_can_run_is_taken(kind: Kind, whole: dict[str, Any]) -> None:
    assert list(pod_problems(kind, whole)) == []


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (None, "spec.containers: Required value"),
        ({"containers": "x"}, "spec.containers: Required value"),
        ({"containers": []}, "spec.containers: Required value"),
        ({"containers": ["x"]}, "spec.containers[0]: Invalid value: not an object"),
        ({"containers": [CONTAINER, CONTAINER]}, 'spec.containers[1].name: Duplicate value: "a"'),
        ({"containers": [{"name": "../x"}]}, 'spec.containers[0].name: Invalid value: "../x": must be a DNS label'),
        ({"containers": [{"name": 1}]}, 'spec.containers[0].name: Invalid value: "1"'),
        ({"containers": [CONTAINER], "initContainers": "x"}, "spec.initContainers: Invalid value: not a list"),
        ({"containers": [CONTAINER], "initContainers": 1}, "spec.initContainers: Invalid value: not a list"),
        ({"containers": [CONTAINER], "initContainers": ["x"]}, "spec.initContainers[0]: Invalid value: not an object"),
        (
            {"containers": [CONTAINER], "initContainers": [CONTAINER]},
            'spec.initContainers[0].name: Duplicate value: "a"',
        ),
        (
            {"containers": [{**CONTAINER, "readinessProbe": {"periodSeconds": -3}}]},
            "spec.containers[0].readinessProbe.periodSeconds: Invalid value: -3: must be greater than or equal to 0",
        ),
        (
            {"containers": [{**CONTAINER, "livenessProbe": {"terminationGracePeriodSeconds": 0}}]},
            "spec.containers[0].livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than or equal to 1",
        ),
        (
            {"containers": [{**CONTAINER, "startupProbe": {"failureThreshold": "x"}}]},
            "spec.containers[0].startupProbe.failureThreshold: Invalid value: x",
        ),
        ({"containers": [CONTAINER], "restartPolicy": "Maybe"}, 'spec.restartPolicy: Unsupported value: "Maybe"'),
    ],
)
def test_a_pod_that_cannot_run_is_refused(spec: object, said: str) -> None:
    (problem,) = pod_problems(POD, {"spec": spec})
    assert f"{problem.where}: {problem.what}".startswith(said)


@pytest.mark.parametrize(
    ("whole", "said"),
    [
        ({}, "spec.template: Required value"),
        (deployment(template=None), "spec.template: Required value"),
        (deployment(replicas=-1), "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        (deployment(replicas="1"), "spec.replicas: Invalid value: 1"),
        (deployment(selector=None), "spec.selector: Required value"),
        (deployment(selector={"matchLabels": {"app": "b"}}), "spec.template.metadata.labels: Invalid value"),
    ],
)
def test_a_deployment_that_cannot_run_is_refused(whole: dict[str, Any], said: str) -> None:
    (problem,) = pod_problems(DEPLOYMENT, whole)
    assert f"{problem.where}: {problem.what}".startswith(said)


def test_only_the_machine_that_runs_pods_asks() -> None:
    new = {"metadata": {"name": "p"}, "spec": {}}
    assert admit(POD, new) is new
    with pytest.raises(Invalid, match=r'Pod "p" is invalid: spec.containers: Required value'):
        admit(POD, new, is_one_machine=True)
    # A status is written to whatever is there.
    assert admit(POD, new, new, subresource="status", is_one_machine=True) is new
