from typing import Any

from serving.dashboard.board import Board
from serving.dashboard.views import node_view, pod_view


def board() -> Board:
    made = Board(10)
    for name in ("a", "b", "c"):
        size = {"cpu": "4", "memory": "8Gi"}
        made.put("node", f"/{name}", node_view({"metadata": {"name": name}, "status": {"allocatable": size}}))
    made.put("pod", "default/p", pod_view(pod()))
    return made


def pod() -> dict[str, Any]:
    requests = {"cpu": "2", "memory": "4Gi"}
    return {
        "metadata": {"namespace": "default", "name": "p", "labels": {"serving.knative.dev/revision": "r"}},
        "spec": {"nodeName": "a", "containers": [{"resources": {"requests": requests}}]},
    }


def scores(line: dict[str, Any]) -> dict[str, int]:
    return {one["name"]: one["score"] for one in line["scores"]}


def test_nodes_score_for_the_next_pod_of_the_revision_with_a_reason() -> None:
    a, b, _ = board().scored_nodes("default/r", 0.0)
    assert (scores(a)["least requested"], scores(b)["least requested"]) == (0, 5)
    assert (scores(a)["most requested"], scores(b)["most requested"]) == (10, 5)
    assert b["scores"][0]["why"] == "with the pod 2 of 4 cores (5 of 10) and 4 of 8 GiB (5 of 10)"


def test_use_is_shown_until_nobody_measures_any_more() -> None:
    made = board()
    listed = [{"metadata": {"name": "a"}, "timestamp": "t", "usage": {"cpu": "500m", "memory": "1Gi"}}]
    made.uses.take(listed, 0.0)
    made.uses.take(listed, 15.0)
    a, b, _ = made.scored_nodes("", 59.0)
    assert (a["used"], b["used"]) == ({"cpu_millicores": 500, "memory_bytes": 2**30}, None)
    assert made.scored_nodes("", 60.0)[0]["used"] is None


def test_one_node_alone_has_no_scores() -> None:
    made = board()
    made.put("node", "/b", None)
    made.put("node", "/c", None)
    assert made.scored_nodes("default/r", 0.0)[0]["scores"] is None
