"""Node groups, and nodes with their pods' requests, their use, and their scores for the next pod of a revision. Pure.

Input: Nodes, all Pods, Revisions and NodeMetrics as API objects; output: lines for the page and the terminal. Requests
and scores come from the scheduler extender's code and settings (``serving.nodes.placement``), so the page shows the
scheduler's values.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from serving.core.model.errors import SettingsError
from serving.core.model.knative import FORCE_REMOVAL_TAINT, REMOVAL_TAINT, REVISION_LABEL
from serving.core.model.objects import FINISHED_PHASES, conditions_of, name_of, nested
from serving.core.settings.placement import PlacementSettings, read_weights
from serving.nodes.placement.book import NodeBook, NodeLoads, demand_of, node_of, pod_of
from serving.nodes.placement.scores.balanced import BalancedWhy
from serving.nodes.placement.scores.fit import FitWhy
from serving.nodes.placement.scores.load_variation import LoadVariationWhy, ResourceLoad
from serving.nodes.placement.scores.low_risk import LowRiskWhy
from serving.nodes.placement.scores.nodes import NodeTable
from serving.nodes.placement.scores.pod import PodDemand
from serving.nodes.placement.scores.provider import PROVIDERS, ScorePart, Scorer, Scores
from serving.nodes.placement.scores.score import NODE_SCORES
from serving.tools.dashboard.views import View, amount, node_view

# The last action, truncated to fit into a line.
_ACTIONS_MAX = 5

_GIB = 2**30

SCORE_WORDS: Mapping[str, str] = {
    "LeastRequested": "least requested",
    "MostRequested": "most requested",
    "BalancedResourceAllocation": "balanced",
    "LowRiskOverCommitment": "low risk",
    "LoadVariationRiskBalancing": "steady load",
}
"""Display names of node scores by their names in the settings."""

NODES_MAX = 100
"""Maximum number of nodes per response.

Above it: the nodes of the revision's pods, then the nodes with the best scores.
"""

# metrics-server measures every 15 s; this is four intervals.
_VALID_S = 60.0
# Validity of a score without changes: scores of measured load depend on the load's age.
_STANDS_S = 10.0
_KEPT_MAX = 100
_SCORE_MAX = 10.0
_WITH_SCIPY = frozenset({"LowRiskOverCommitment"})


class NodeGroups:
    """All NodeGroups of a cluster."""

    def __init__(self) -> None:
        self.views: list[View] = []
        self._labels: list[tuple[str, str, str]] = []
        self._kept: dict[str, str] = {}

    def replace(self, items: Iterable[Mapping[str, Any]]) -> bool:
        """Replace all NodeGroups; return whether anything changed."""
        listed = sorted(items, key=name_of)
        before = (self.views, self._labels, self._kept)
        self.views = [_group_view(group) for group in listed]
        self._labels = [
            (
                name_of(group),
                str(nested(group, "spec", "labelKey") or ""),
                str(nested(group, "spec", "labelValue") or ""),
            )
            for group in listed
        ]
        self._kept = {
            str(entry.get("node")): str(entry.get("reason"))
            for group in listed
            for entry in nested(group, "status", "kept") or ()
        }
        return before != (self.views, self._labels, self._kept)

    def of_node(self, view: View) -> View:
        """Further fields of a node's line: its ``group`` or "", and ``kept_for``, why the node is kept."""
        labels = view["labels"]
        group = next((name for name, key, value in self._labels if key and labels.get(key) == value), "")
        return {"group": group, "kept_for": self._kept.get(view["name"], "")}


def removal_of(node: Mapping[str, Any]) -> str:
    """The removal state of a node: "forced" or "tainted", or "cordoned" by an administrator; else ""."""
    taints = {taint.get("key") for taint in nested(node, "spec", "taints") or ()}
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
            {
                "type": condition.get("type", ""),
                "reason": condition.get("reason", ""),
                "message": condition.get("message", ""),
            }
            for condition in conditions_of(group)
            if condition.get("status") == "False" and condition.get("type") != "Ready"
        ]
        or [
            {"type": "Ready", "reason": condition.get("reason", ""), "message": condition.get("message", "")}
            for condition in conditions_of(group)
            if condition.get("status") == "False"
        ],
    }


def sentence_of(why: msgspec.Struct) -> str:
    """The reason for a node's score as a sentence with numbers; "" for an unknown kind."""
    if isinstance(why, FitWhy):
        return (
            f"with the pod {why.cpu.total / 1000:g} of {why.cpu.allocatable / 1000:g} cores ({why.cpu.score} of 10) and "
            f"{why.memory.total / _GIB:.2g} of {why.memory.allocatable / _GIB:.2g} GiB ({why.memory.score} of 10)"
        )
    if isinstance(why, BalancedWhy):
        full = f"; {' and '.join(why.full)} full" if why.full else ""
        return f"with the pod {why.cpu_ratio:.0%} of cpu and {why.memory_ratio:.0%} of memory are requested{full}"
    if isinstance(why, LowRiskWhy):
        zero = f", forced to 0: {why.forced_zero.replace('_', ' ')}" if why.forced_zero else ""
        return f"risk of overuse: cpu {why.cpu.risk:.2f}, memory {why.memory.risk:.2f}; {why.worst} decides{zero}"
    if isinstance(why, LoadVariationWhy):
        return f"measured load with the pod: cpu {_load(why.cpu)}, memory {_load(why.memory)}; the worse decides"
    return ""


def _load(load: ResourceLoad | None) -> str:
    if load is None:
        return "not measured"
    return f"{load.mean_ratio:.0%} ± {load.deviation_ratio:.0%}"


class _PodOnNode(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a revision: creation time, requests, and node ("" while unscheduled)."""

    created: str
    demand: PodDemand
    node: str


class _NodeReading(msgspec.Struct, frozen=True, kw_only=True):
    """The newest measurement of a node, its timestamp, and the time of its receipt."""

    stamp: str
    at_s: float
    amounts: View


class Nodes:
    """All nodes of a cluster. Times come from the caller, in seconds."""

    def __init__(self, settings: PlacementSettings) -> None:
        self._views: dict[str, View] = {}
        self._groups = NodeGroups()
        self._book = NodeBook()
        self._loads = NodeLoads(settings.load_samples_max)
        self._used: dict[str, _NodeReading] = {}
        self._pods: dict[str, dict[tuple[str, str], _PodOnNode]] = {}
        self._revision_of_pod: dict[tuple[str, str], str] = {}
        self._revisions: dict[str, PodDemand] = {}
        # Number of pods by demand: pods are many, distinct demands are few.
        self._demands: Counter[PodDemand] = Counter()
        self._weights = read_weights(settings.score_weights) or PROVIDERS[settings.provider]
        self._settings = settings
        self._kept: dict[str, View] = {}
        self._kept_for: tuple[NodeTable, float] | None = None

    @functools.cached_property
    def _scorer(self) -> Scorer:
        # Imported on first use: scipy takes 10 MiB, and a single node is not scored.
        return _scorer(self._settings)

    def put_node(self, name: str, node: Mapping[str, Any] | None) -> None:
        """Store the current Node; None deletes the Node."""
        self._kept.clear()
        if node is None:
            self._views.pop(name, None)
            self._book.drop_node(name)
        else:
            self._views[name] = {**node_view(node), "removal": removal_of(node)}
            self._book.set_node(node_of(node))

    def set_groups(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Replace all NodeGroups."""
        if self._groups.replace(items):
            self._kept.clear()

    def put_pod(self, key: tuple[str, str], pod: Mapping[str, Any] | None) -> None:
        """Store the current Pod, of any owner, by namespace and name; None deletes the Pod."""
        before = self._revision_of_pod.pop(key, None)
        if before is not None:
            demand = self._pods[before].pop(key).demand
            if not self._pods[before]:
                del self._pods[before]
            self._demands[demand] -= 1
            if not self._demands[demand]:
                del self._demands[demand]
            self._kept.pop(before, None)
        facts = None if pod is None else pod_of(pod)
        if facts is None:
            self._book.drop_pod(key)
        else:
            self._book.set_pod(facts)
        if pod is not None:
            self._put_requester(key, pod, demand_of(pod) if facts is None else facts.demand)

    def put_revision(self, key: str, revision: Mapping[str, Any] | None) -> None:
        """Store the current Revision by "namespace/name"; None deletes the Revision."""
        self._kept.pop(key, None)
        if revision is None:
            self._revisions.pop(key, None)
        else:
            self._revisions[key] = demand_of(revision)

    def measured(self, items: Iterable[Mapping[str, Any]], now_s: float) -> None:
        """Replace all NodeMetrics. A repeated measurement keeps its age. A node without a measurement has no usage."""
        listed = list(items)
        self._book.set_usages(self._loads.update(listed, self._book.node, now_s))
        before, self._used = self._used, {}
        for item in listed:
            name, stamp, usage = item["metadata"]["name"], str(item.get("timestamp", "")), item.get("usage") or {}
            known = before.get(name)
            if known is None or known.stamp != stamp:
                cpu, memory = amount(usage.get("cpu"), is_cpu=True), amount(usage.get("memory"), is_cpu=False)
                known = _NodeReading(stamp=stamp, at_s=now_s, amounts={"cpu_millicores": cpu, "memory_bytes": memory})
            self._used[name] = known

    def shown(self, revision: str, now_s: float) -> View:
        """The nodes for the page: ``lines`` by name, the node ``count``, ``groups``, and the ``next_pod``'s requests.

        Nodes have scores if at least two nodes report their size. Returns the identical object until something changes.
        """
        table = self._book.table()
        if self._kept_for is None or self._kept_for[0] is not table or now_s - self._kept_for[1] >= _STANDS_S:
            self._kept_for = (table, now_s)
            self._kept.clear()
        elif len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        if revision not in self._kept:
            self._kept[revision] = self._shown(revision, table, now_s)
        return self._kept[revision]

    def _put_requester(self, key: tuple[str, str], pod: Mapping[str, Any], demand: PodDemand) -> None:
        metadata = pod["metadata"]
        name = (metadata.get("labels") or {}).get(REVISION_LABEL)
        if name is None or (pod.get("status") or {}).get("phase") in FINISHED_PHASES:
            return
        revision = f"{key[0]}/{name}"
        self._pods.setdefault(revision, {})[key] = _PodOnNode(
            created=str(metadata.get("creationTimestamp", "")),
            demand=demand,
            node=(pod.get("spec") or {}).get("nodeName", ""),
        )
        self._revision_of_pod[key] = revision
        self._demands[demand] += 1
        self._kept.pop(revision, None)

    def _shown(self, revision: str, table: NodeTable, now_s: float) -> View:
        pod = self._next_pod(revision)
        names, scores, totals = sorted(self._views), None, []
        if int((table.allocatable > 0).all(axis=0).sum()) > 1:
            scores = self._scorer.score(table, pod, now_s=now_s)
            totals = self._totals(scores)
        if len(names) > NODES_MAX:
            own = {pod.node for pod in self._pods.get(revision, {}).values()}
            total = dict(zip(table.index_by_name, totals, strict=False))
            names.sort(key=lambda name: (name not in own, -total.get(name, 0.0), name))
        lines = (self._line(name, table, now_s) for name in sorted(names[:NODES_MAX]))
        return {
            "count": len(self._views),
            "next_pod": {"cpu_millicores": pod.request_cpu_m, "memory_bytes": pod.request_memory_bytes},
            "lines": [{**line, **self._scored(line, scores, totals)} for line in lines],
            "groups": self._groups.views,
        }

    def _totals(self, scores: Scores) -> list[float]:
        """The score of each node as sent to a scheduler, 0 to 10, before rounding."""
        weights = [self._weights.get(part.name, 0) for part in scores.parts]
        points = np.zeros(scores.table.node_count)
        for weight, part in zip(weights, scores.parts, strict=True):
            points += weight * part.result.score / part.score_max
        totals: list[float] = (_SCORE_MAX * points / max(1, sum(weights))).round(1).tolist()
        return totals

    def _line(self, name: str, table: NodeTable, now_s: float) -> View:
        at, used, view = table.index_by_name[name], self._used.get(name), self._views[name]
        return {
            **{key: value for key, value in view.items() if key != "labels"},
            **self._groups.of_node(view),
            "pod_count": self._book.pod_count(name),
            "requested_millicores": int(table.request[0, at]),
            "requested_bytes": int(table.request[1, at]),
            "used": used.amounts if used is not None and now_s - used.at_s < _VALID_S else None,
        }

    def _scored(self, line: View, scores: Scores | None, totals: list[float]) -> View:
        if scores is None or not line["cpu_millicores"] or not line["memory_bytes"]:
            return {"score": None, "scores": []}
        name = line["name"]
        parts = [self._part(part) for part in scores.explain(name).parts]
        return {"score": totals[scores.table.index_by_name[name]], "scores": parts}

    def _part(self, part: ScorePart) -> View:
        return {
            "name": SCORE_WORDS.get(part.name, part.name),
            "score": part.score,
            "score_max": part.score_max,
            "weight": self._weights.get(part.name, 0),
            "why": sentence_of(part.why),
        }

    def _next_pod(self, revision: str) -> PodDemand:
        pods = self._pods.get(revision)
        if pods:
            # A running pod includes the sidecar's requests; a revision at zero has only its containers' requests.
            return max(pods.values(), key=lambda pod: pod.created).demand
        if revision in self._revisions:
            return self._revisions[revision]
        return _middle(self._demands)


def _middle(demands: Mapping[PodDemand, int]) -> PodDemand:
    """The median demand for each resource, weighted by the number of pods; an empty demand without pods."""
    if not demands:
        return PodDemand()
    half = (sum(demands.values()) + 1) // 2
    medians: dict[str, int] = {}
    for name in PodDemand.__struct_fields__:
        amounts = sorted((getattr(demand, name), count) for demand, count in demands.items())
        passed = itertools.accumulate(count for _, count in amounts)
        medians[name] = next(size for (size, _), up_to in zip(amounts, passed, strict=True) if up_to >= half)
    return PodDemand(**medians)


def _scorer(settings: PlacementSettings) -> Scorer:
    """A scorer that gives all scores weight 1. Without scipy, scores based on scipy are left out."""

    def scoring(names: Iterable[str]) -> Scorer:
        weights = ", ".join(f"{name}=1" for name in names)
        return Scorer(msgspec.structs.replace(settings, score_weights=weights))

    try:
        return scoring(NODE_SCORES)
    except SettingsError:
        return scoring(name for name in NODE_SCORES if name not in _WITH_SCIPY)
