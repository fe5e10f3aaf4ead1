"""Views of node groups on the dashboard."""

from typing import Any

from serving.core.model.knative import FORCE_REMOVAL_TAINT, REMOVAL_TAINT
from serving.core.settings.placement import PlacementSettings
from serving.tools.dashboard.nodes import NodeGroups, Nodes, removal_of

STATUS = {
    "minSize": 1,
    "maxSize": 4,
    "nodes": {"total": 3, "untainted": 2, "tainted": 1, "forceTainted": 0, "cordoned": 0, "coming": 1},
    "podCount": 5,
    "anticipatedPodCount": 2,
    "utilization": {"cpuPercent": 85.5, "memoryPercent": 20.0},
    "lastPass": {"rule": "scale-up", "delta": 1, "limits": ["cloud-max"]},
    "lastAction": {"time": "2026-01-01T00:00:00Z", "rule": "scale-up", "what": ["ask the cloud for 1 node"]},
    "kept": [{"node": "a", "reason": "pods on it are asked to leave"}],
    "conditions": [
        {"type": "Ready", "status": "False", "reason": "BreakerOpen", "message": "3 scale-ups brought no node"},
        {"type": "AbleToScale", "status": "False", "reason": "BreakerOpen", "message": "3 scale-ups brought no node"},
        {"type": "Healthy", "status": "True"},
    ],
}


def group(name: str = "default", **status: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    spec = {"labelKey": "pool", "labelValue": name}
    return {"metadata": {"name": name}, "spec": spec, "status": {**STATUS, **status}}


def node(name: str, pool: str, *taints: str, **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    results = [{"key": taint, "effect": "NoSchedule"} for taint in taints]
    return {"metadata": {"name": name, "labels": {"pool": pool}}, "spec": {"taints": results, **spec}, "status": {}}


def test_node_group_view_shows_nodes_rule_action_and_problems() -> None:
    groups = NodeGroups()
    assert groups.replace([group()])
    (view,) = groups.views
    assert (view["nodes"]["coming"], view["min"], view["max"], view["anticipated_count"]) == (1, 1, 4, 2)
    assert (view["rule"], view["delta"], view["limits"]) == ("scale-up", 1, ["cloud-max"])
    assert view["did"]["what"] == ["ask the cloud for 1 node"]
    # Ready only repeats what another condition says.
    assert [problem["type"] for problem in view["problems"]] == ["AbleToScale"]


def test_invalid_node_group_shows_its_problem_without_a_pass() -> None:
    groups = NodeGroups()
    wrong = {"type": "Ready", "status": "False", "reason": "SettingsInvalid", "message": "maxNodes"}
    groups.replace([{"metadata": {"name": "wrong"}, "status": {"conditions": [wrong]}}])
    (view,) = groups.views
    assert (view["rule"], view["min"], view["problems"]) == (
        "",
        None,
        [{"type": "Ready", "reason": "SettingsInvalid", "message": "maxNodes"}],
    )


def test_replace_reports_only_real_changes() -> None:
    groups = NodeGroups()
    assert groups.replace([group()])
    assert not groups.replace([group()])
    assert groups.replace([group(podCount=6)])


def test_removal_state_of_a_node_is_read_from_taints_and_cordon() -> None:
    assert removal_of(node("a", "x", REMOVAL_TAINT)) == "tainted"
    assert removal_of(node("a", "x", REMOVAL_TAINT, FORCE_REMOVAL_TAINT)) == "forced"
    assert removal_of(node("a", "x", unschedulable=True)) == "cordoned"
    assert removal_of(node("a", "x", "dedicated")) == ""


def test_node_lines_show_group_removal_and_retention_reason() -> None:
    nodes = Nodes(PlacementSettings())
    nodes.put_node("a", node("a", "default", REMOVAL_TAINT))
    nodes.put_node("b", node("b", "other"))
    before = nodes.shown("", 0.0)
    nodes.set_groups([group()])
    shown = nodes.shown("", 0.0)
    assert shown is not before
    lines = {line["name"]: line for line in shown["lines"]}
    assert (lines["a"]["group"], lines["a"]["removal"], lines["a"]["kept_for"]) == (
        "default",
        "tainted",
        "pods on it are asked to leave",
    )
    assert (lines["b"]["group"], lines["b"]["removal"], lines["b"]["kept_for"]) == ("", "", "")
    assert "labels" not in lines["a"]
    assert [entry["name"] for entry in shown["groups"]] == ["default"]
