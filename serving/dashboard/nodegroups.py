"""Views of node groups for the page, and of each node's group and state.

Pure: NodeGroups and Nodes go in as API objects; views come out. Everything stands in the status that the node group daemon writes.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from serving.dashboard.views import View
from serving.model.knative import FORCE_REMOVAL_TAINT, REMOVAL_TAINT
from serving.model.objects import conditions_of, name_of, nested

# What was done last, as far as a line has room for it.
_ACTIONS_MAX = 5


class NodeGroups:
    """All NodeGroups of a cluster."""

    def __init__(self) -> None:
        self.views: list[View] = []
        self._labels: list[tuple[str, str, str]] = []
        self._kept: dict[str, str] = {}

    def take(self, items: Iterable[Mapping[str, Any]]) -> bool:
        """Replace all NodeGroups; whether anything changed."""
        listed = sorted(items, key=name_of)
        before = (self.views, self._labels, self._kept)
        self.views = [_group_view(one) for one in listed]
        self._labels = [
            (name_of(one), str(nested(one, "spec", "labelKey") or ""), str(nested(one, "spec", "labelValue") or ""))
            for one in listed
        ]
        self._kept = {
            str(one.get("node")): str(one.get("reason"))
            for group in listed
            for one in nested(group, "status", "kept") or ()
        }
        return before != (self.views, self._labels, self._kept)

    def of_node(self, view: View) -> View:
        """Extra fields of a node's line: its ``group`` ("" for none) and ``kept_for``, the reason it stays."""
        labels = view["labels"]
        group = next((name for name, key, value in self._labels if key and labels.get(key) == value), "")
        return {"group": group, "kept_for": self._kept.get(view["name"], "")}


def removal_of(node: Mapping[str, Any]) -> str:
    """Whether a node is "forced" or "tainted" to go, or "cordoned" by an administrator; else ""."""
    taints = {one.get("key") for one in nested(node, "spec", "taints") or ()}
    if FORCE_REMOVAL_TAINT in taints:
        return "forced"
    if REMOVAL_TAINT in taints:
        return "tainted"
    return "cordoned" if nested(node, "spec", "unschedulable") else ""


def _group_view(group: Mapping[str, Any]) -> View:
    status = group.get("status") or {}
    nodes, usage, last = status.get("nodes") or {}, status.get("utilization") or {}, status.get("lastPass") or {}
    action = status.get("lastAction") or {}
    return {
        "name": name_of(group),
        "nodes": {
            key: int(nodes.get(key) or 0)
            for key in ("total", "untainted", "tainted", "forceTainted", "cordoned", "coming")
        },
        "min": status.get("minSize"),
        "max": status.get("maxSize"),
        "cpu_percent": usage.get("cpuPercent"),
        "memory_percent": usage.get("memoryPercent"),
        "pod_count": int(status.get("podCount") or 0),
        "anticipated_count": int(status.get("anticipatedPodCount") or 0),
        "rule": last.get("rule", ""),
        "delta": int(last.get("delta") or 0),
        "limits": list(last.get("limits") or ()),
        "is_dry": bool(nested(group, "spec", "dryMode")),
        "did": {
            "at": action.get("time", ""),
            "rule": action.get("rule", ""),
            "what": list(action.get("what") or ())[:_ACTIONS_MAX],
        },
        "problems": [
            {"type": one.get("type", ""), "reason": one.get("reason", ""), "message": one.get("message", "")}
            for one in conditions_of(group)
            if one.get("status") == "False" and one.get("type") != "Ready"
        ]
        or [
            {"type": "Ready", "reason": one.get("reason", ""), "message": one.get("message", "")}
            for one in conditions_of(group)
            if one.get("status") == "False"
        ],
    }
