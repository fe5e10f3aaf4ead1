from typing import Any

import pytest

from serving.core.model.knative import CONDITION_DORMANT
from serving.nodes.placement.book import demand_of
from serving.tools.dashboard.coldstarts import StartFacts
from serving.tools.dashboard.views import lean_pod, node_view, pod_view, revision_view, service_view, start_facts

META = {"namespace": "default", "name": "hello", "creationTimestamp": "2026-11-21T07:00:00Z"}


def with_conditions(**statuses: str) -> list[dict[str, str]]:
    return [{"type": name, "status": status} for name, status in statuses.items()]


def test_service_view_has_url_traffic_and_readiness() -> None:
    traffic = [{"revisionName": "hello-00001", "percent": 100, "tag": "now"}, {"revisionName": "hello-00002"}]
    view = service_view(
        {
            "metadata": META,
            "status": {"url": "http://x", "traffic": traffic, "conditions": with_conditions(Ready="True")},
        }
    )
    assert (view["url"], view["ready"], view["name"]) == ("http://x", "True", "hello")
    assert view["traffic"][1] == {"revision": "hello-00002", "percent": 0, "tag": "", "is_latest": False}
    assert service_view({"metadata": META})["ready"] == "Unknown"


def test_revision_view_has_scaling_annotations_and_no_secret() -> None:
    labels = {"serving.knative.dev/service": "hello"}
    annotations = {"autoscaling.knative.dev/max-scale": "4", "serving.dev/command": "secret"}
    spec = {"containerConcurrency": 10, "containers": [{"env": [{"name": "PASSWORD", "value": "secret"}]}]}
    view = revision_view({"metadata": {**META, "labels": labels, "annotations": annotations}, "spec": spec})
    assert (view["service"], view["state"], view["concurrency"]) == ("hello", "Active", 10)
    assert view["scaling"] == {"max-scale": "4"}
    assert "secret" not in str(view)


def new_pod(**status: object) -> dict[str, Any]:
    return {"metadata": {**META, "labels": {"serving.knative.dev/revision": "r"}}, "status": status}


def test_pod_view_counts_oom_kills() -> None:
    statuses = [{"restartCount": 2, "lastState": {"terminated": {"reason": "OOMKilled", "message": "secret"}}}]
    lean = lean_pod({**new_pod(containerStatuses=statuses)})
    view = pod_view(lean)
    assert view is not None
    assert (view["restarts"], view["oom_kills"], "secret" in str(lean)) == (2, 2, False)


def test_pod_view_has_the_waiting_reason() -> None:
    pod = new_pod(
        phase="Pending", containerStatuses=[{"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 2}]
    )
    view = pod_view(pod)
    assert view is not None
    assert (view["reason"], view["ready"], view["restarts"]) == ("CrashLoopBackOff", False, 2)


@pytest.mark.parametrize(("limits", "bound"), [(["64Mi", "32Mi"], 96 * 2**20), (["64Mi", None], 0), ([], 0)])
def test_pod_view_has_the_sum_of_memory_limits(limits: list[str | None], bound: int) -> None:
    pod = new_pod()
    pod["spec"] = {"containers": [{"resources": {"limits": {"memory": limit}} if limit else None} for limit in limits]}
    assert (pod_view(lean_pod(pod)) or {})["memory_limit_bytes"] == bound


@pytest.mark.parametrize(("reason", "expected"), [("NotListening", "NotListening"), ("ContainersNotReady", "")])
def test_pod_view_has_the_reason_of_an_unready_running_pod(reason: str, expected: str) -> None:
    pod = new_pod(phase="Running", conditions=[{"type": "Ready", "status": "False", "reason": reason}])
    assert (pod_view(lean_pod(pod)) or {})["reason"] == expected


def test_pod_without_a_revision_has_no_view() -> None:
    assert pod_view({"metadata": META}) is None


def test_node_view_has_allocatable_resources_and_taints() -> None:
    result = {
        "metadata": {"name": "n"},
        "spec": {"taints": [{"key": "gone"}]},
        "status": {"allocatable": {"cpu": "2", "memory": "4Gi"}, "conditions": with_conditions(Ready="True")},
    }
    view = node_view(result)
    assert (view["cpu_millicores"], view["memory_bytes"], view["taints"]) == (2000, 2**32, ["gone"])


def test_lean_pod_has_the_same_view_without_large_fields() -> None:
    pod = new_pod(
        phase="Running",
        podIP="10.0.0.1",
        conditions=with_conditions(Ready="True", Initialized="True") + with_conditions(**{CONDITION_DORMANT: "True"}),
        containerStatuses=[{"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 2, "image": "long"}],
    )
    resources = {"requests": {"cpu": "1"}}
    pod["metadata"] |= {"resourceVersion": "7", "managedFields": [{"long": "long"}], "annotations": {"a": "long"}}
    containers = [{"name": "c", "image": "long", "env": [{"name": "A", "value": "secret"}], "resources": resources}]
    pod["spec"] = {"nodeName": "n", "containers": containers, "initContainers": containers, "volumes": ["long"]}
    lean = lean_pod(pod)
    assert pod_view(lean) == pod_view(pod)
    assert (pod_view(lean) or {})["dormant"]
    assert (demand_of(lean), lean["metadata"]["resourceVersion"]) == (demand_of(pod), "7")
    pod["spec"]["containers"] = [{"name": "queue-proxy"}, *containers]
    assert [(pod_view(lean_pod(manifest)) or {})["container"] for manifest in (pod, {**pod, "spec": {}})] == ["c", ""]
    assert "long" not in str(lean)
    assert "secret" not in str(lean)
    bare = {"metadata": {"name": "x"}}
    assert pod_view(lean_pod(bare)) is None


def test_invalid_cpu_quantity_of_a_node_is_zero() -> None:
    result = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "what", "memory": "4Gi"}}}
    assert (node_view(result)["cpu_millicores"], node_view(result)["memory_bytes"]) == (0, 2**32)


@pytest.mark.parametrize(
    ("saved", "target", "shown"),
    [
        ('{"total":10.33,"bound":"cpu","above":8.0,"cpu_s":0.01}', "learnt", "10.3 (cpu-bound above 8), in force"),
        ('{"total":250.0}', None, "250"),
        ('{"total":250.0}', "protect", "250, protect"),
        ("{}", "learnt", None),
        ("garbage", "learnt", None),
        (None, "learnt", None),
    ],
)
def test_revision_view_has_the_learnt_target(saved: str | None, target: str | None, shown: str | None) -> None:
    annotations = {"autoscaling.serving.dev/learnt-target": saved, "autoscaling.serving.dev/target": target}
    result = {"metadata": {"name": "r", "annotations": {name: text for name, text in annotations.items() if text}}}
    assert revision_view(result)["scaling"].get("learnt target") == shown


@pytest.mark.parametrize(
    ("command", "is_python"),
    [
        ("python3 app.py", True),
        ("/venv/bin/python3.12 -m app", True),
        ("sh -c 'X=1 exec uvicorn app:app'", True),
        ("./pythonista", False),
        ("node app.js", False),
        ("", False),
    ],
)
def test_start_facts_are_read_from_the_annotations(command: str, is_python: bool) -> None:
    annotations = {"serving.dev/command": command, "serving.dev/template": "preload", "serving.dev/dormant": "60s"}
    labels = {"serving.knative.dev/service": "hello"}
    new_start_facts = start_facts(
        {"metadata": {**META, "name": "hello-00001", "labels": labels, "annotations": annotations}}
    )
    assert new_start_facts == StartFacts(service="hello", is_preloaded=True, is_python=is_python, has_dormant=True)
    assert start_facts({"metadata": META}) == StartFacts(service="hello")


def test_lean_pod_retains_container_start_times() -> None:
    running = {"startedAt": "2026-11-24T10:00:00Z"}
    statuses = [{"name": "a", "state": {"running": running}}, {"name": "b", "state": {"waiting": {"reason": "x"}}}]
    entry = lean_pod({"metadata": META, "status": {"containerStatuses": statuses}})
    states = [container_status["state"] for container_status in entry["status"]["containerStatuses"]]
    assert states == [{"waiting": None, "running": running}, {"waiting": {"reason": "x"}, "running": None}]
