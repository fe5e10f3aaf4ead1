import sys
from typing import Any

import msgspec
import pytest

from serving.core.model.nodata import NoData
from serving.core.model.quantity import Resources
from serving.core.settings.placement import PlacementSettings
from serving.nodes.placement.scores.metrics import NodeUsage, Usage
from serving.nodes.placement.scores.nodes import ScoredNode, node_table
from serving.nodes.placement.scores.pod import Container, PodContainers, pod_demand
from serving.nodes.placement.scores.provider import Scorer
from serving.nodes.placement.scores.score import NODE_SCORES
from serving.tools.dashboard.nodes import NODES_MAX, SCORE_WORDS, Nodes, sentence_of

REVISION = "serving.knative.dev/revision"

GIB = 2**30


def node(name: str, cpu: str = "4", memory: str = "8Gi") -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu, "memory": memory}}}


def pod(on: str = "a", *, cpu: str = "2", memory: str = "4Gi", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    requests = {"cpu": cpu, "memory": memory}
    return {
        "metadata": {"labels": {REVISION: "r"}, "creationTimestamp": more.get("created", "")},
        "spec": {"nodeName": on, "containers": [{"resources": {"requests": requests}}]},
        "status": {"phase": more.get("phase", "Running")},
    }


def put(nodes: Nodes, key: str, resource: dict[str, Any] | None) -> None:
    namespace, name = key.split("/")
    named = (
        None
        if resource is None
        else {**resource, "metadata": {**resource["metadata"], "namespace": namespace, "name": name}}
    )
    nodes.put_pod((namespace, name), named)


def new_nodes(*names: str, **settings: Any) -> Nodes:  # noqa: ANN401 - of several types
    nodes = Nodes(PlacementSettings(**settings))
    for name in names or ("a", "b", "c"):
        nodes.put_node(name, node(name))
    put(nodes, "default/p", pod())
    return nodes


def lines(nodes: Nodes, revision: str = "default/r", now_s: float = 0.0) -> dict[str, dict[str, Any]]:
    return {line["name"]: line for line in nodes.shown(revision, now_s)["lines"]}


def points(line: dict[str, Any]) -> dict[str, int]:
    return {score["name"]: score["score"] for score in line["scores"]}


def test_nodes_are_scored_for_the_next_pod_with_reasons() -> None:
    entry = lines(new_nodes())
    a, b = entry["a"], entry["b"]
    assert (points(a)["least requested"], points(b)["least requested"]) == (0, 5)
    assert (points(a)["most requested"], points(b)["most requested"]) == (10, 5)
    assert b["scores"][0]["why"] == "with the pod 2 of 4 cores (5 of 10) and 4 of 8 GiB (5 of 10)"
    # Least requested and balanced count, once each.
    assert (a["score"], b["score"]) == (0.0, 7.5)
    assert {score["name"]: score["weight"] for score in b["scores"]}["most requested"] == 0


def test_score_weights_of_the_settings_are_applied() -> None:
    entry = lines(new_nodes(score_weights="MostRequested=3, BalancedResourceAllocation=1"))
    # (3 * 5 + 10) / 4, with one digit.
    assert entry["b"]["score"] == 6.2


def test_other_pods_use_node_resources_until_they_finish() -> None:
    nodes = new_nodes()
    other = {**pod("b", cpu="1"), "metadata": {}}
    put(nodes, "kube-system/other", other)
    assert (lines(nodes)["b"]["requested_millicores"], lines(nodes)["b"]["pod_count"]) == (1000, 1)
    put(nodes, "kube-system/other", {**other, "status": {"phase": "Succeeded"}})
    assert (lines(nodes)["b"]["requested_millicores"], lines(nodes)["b"]["pod_count"]) == (0, 0)
    put(nodes, "default/p", None)
    assert lines(nodes)["a"]["requested_bytes"] == 0


def test_next_pod_size_is_newest_pod_else_revision_else_median() -> None:
    nodes = new_nodes()
    put(nodes, "default/q", pod(cpu="1", created="2026"))
    # A pod that waits for a node and one that has failed.
    put(nodes, "default/waits", pod("", cpu="500m", created="2027"))
    put(nodes, "default/over", pod(cpu="9", created="2028", phase="Failed"))
    request_count = {
        name: nodes.shown(name, 0.0)["next_pod"]["cpu_millicores"] for name in ("default/r", "default/none")
    }
    assert request_count == {"default/r": 500, "default/none": 1000}
    nodes.put_revision("default/none", {"spec": pod(cpu="3")["spec"]})
    assert nodes.shown("default/none", 0.0)["next_pod"]["cpu_millicores"] == 3000
    nodes.put_revision("default/none", None)
    for name in ("p", "q", "waits"):
        put(nodes, f"default/{name}", None)
    assert nodes.shown("default/none", 0.0)["next_pod"] == {"cpu_millicores": 0, "memory_bytes": 0}


def test_median_pod_size_is_weighted_by_pod_count() -> None:
    nodes = new_nodes()
    for number, cpu in enumerate(("3", "1", "1", "5", "4")):
        put(nodes, f"default/{number}", pod(cpu=cpu))
    # 1, 1, 2, 3, 4, 5
    assert nodes.shown("", 0.0)["next_pod"]["cpu_millicores"] == 2000
    for number in (1, 2, 4):
        put(nodes, f"default/{number}", None)
    assert nodes.shown("", 0.0)["next_pod"]["cpu_millicores"] == 3000


def test_low_risk_score_needs_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    assert points(lines(new_nodes())["b"]).keys() == {"least requested", "most requested", "balanced", "steady load"}


def test_node_usage_is_shown_until_it_is_outdated() -> None:
    nodes = new_nodes()
    listed = [{"metadata": {"name": "a"}, "timestamp": "t", "usage": {"cpu": "500m", "memory": "1Gi"}}]
    nodes.measured(listed, 0.0)
    nodes.measured(listed, 15.0)
    entry = lines(nodes, now_s=59.0)
    assert (entry["a"]["used"], entry["b"]["used"]) == ({"cpu_millicores": 500, "memory_bytes": 2**30}, None)
    assert lines(nodes, now_s=70.0)["a"]["used"] is None


def test_usage_of_a_node_without_metrics_is_removed() -> None:
    nodes = new_nodes()
    nodes.measured([{"metadata": {"name": "a"}, "timestamp": "t", "usage": {"cpu": "500m", "memory": "1Gi"}}], 0.0)
    assert lines(nodes, now_s=1.0)["a"]["used"] is not None
    nodes.measured([], 15.0)
    assert lines(nodes, now_s=15.0)["a"]["used"] is None


def test_scores_need_two_nodes_with_a_size() -> None:
    nodes = new_nodes("a")
    nodes.put_node("sizeless", {"metadata": {"name": "sizeless"}})
    assert {line["score"] for line in lines(nodes).values()} == {None}
    nodes.put_node("b", node("b"))
    assert {name: line["score"] is None for name, line in lines(nodes).items()} == {
        "a": False,
        "b": False,
        "sizeless": True,
    }
    nodes.put_node("b", None)
    assert sorted(lines(nodes)) == ["a", "sizeless"]


def test_unchanged_node_view_is_cached_for_10_s() -> None:
    nodes = new_nodes()
    first = nodes.shown("default/r", 0.0)
    assert nodes.shown("default/r", 9.0) is first
    assert nodes.shown("default/r", 10.0) is not first
    put(nodes, "default/q", pod("b"))
    assert nodes.shown("default/r", 11.0)["lines"][1]["pod_count"] == 1


def test_cached_node_views_are_bounded() -> None:
    nodes = new_nodes()
    first = nodes.shown("default/r", 0.0)
    for number in range(300):
        nodes.shown(f"default/{number}", 0.0)
    assert nodes.shown("default/r", 0.0) is not first


def test_nodes_are_limited_to_the_revisions_own_and_the_best() -> None:
    nodes = new_nodes(*(f"n{number:03}" for number in range(NODES_MAX + 50)), "z")
    # The node is full, so it scores worst, and runs a pod of the revision.
    put(nodes, "default/p", pod("z", cpu="4"))
    for number in range(40):
        put(nodes, f"other/{number}", {**pod(f"n{number:03}"), "metadata": {}})
    shown = nodes.shown("default/r", 0.0)
    names = [line["name"] for line in shown["lines"]]
    assert (shown["count"], len(names), names[0], names[-1]) == (NODES_MAX + 51, NODES_MAX, "n040", "z")


def sentences(used: Usage | None) -> dict[str, str]:
    """Sentences about a node of 4 cores and 8 GiB, for a pod with requests of half of it and limits of all."""
    usage = NoData(missing="x") if used is None else NodeUsage(at_s=0.0, cpu=used, memory=used)
    node = ScoredNode(name="a", allocatable_cpu_m=4000, allocatable_memory_bytes=8 * GIB, usage=usage)
    half, whole = Resources(cpu_m=2000, memory_bytes=4 * GIB), Resources(cpu_m=4000, memory_bytes=8 * GIB)
    demand = pod_demand(PodContainers(containers=(Container(request=half, limit=whole),)))
    scorer = Scorer(PlacementSettings(score_weights=", ".join(f"{name}=1" for name in NODE_SCORES)))
    explained = scorer.score(node_table([node], version=1), demand, now_s=1.0).explain("a")
    return {SCORE_WORDS[part.name]: sentence_of(part.why) for part in explained.parts}


def test_each_node_score_has_a_reason() -> None:
    assert SCORE_WORDS.keys() == NODE_SCORES.keys()
    entry = sentences(Usage(mean_percent=20.0, deviation_percent=5.0))
    assert entry["least requested"] == "with the pod 2 of 4 cores (5 of 10) and 4 of 8 GiB (5 of 10)"
    assert entry["balanced"] == "with the pod 50% of cpu and 50% of memory are requested"
    assert entry["low risk"].startswith("risk of overuse: cpu 0.")
    assert entry["steady load"] == "measured load with the pod: cpu 70% ± 5%, memory 70% ± 5%; the worse decides"


def test_unmeasured_load_is_reported_in_the_reason() -> None:
    assert sentences(None)["steady load"].startswith("measured load with the pod: cpu not measured")


def test_unknown_reason_type_has_an_empty_sentence() -> None:
    assert sentence_of(msgspec.defstruct("Why", [])()) == ""
