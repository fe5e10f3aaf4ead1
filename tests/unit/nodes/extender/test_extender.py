import json
from typing import Any

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.settings.placement import CLUSTER_AUTOSCALER_PROVIDER, PlacementSettings
from serving.nodes.extender.extender import Extender, read_call
from serving.nodes.placement.book import NodeBook, node_of, pod_of
from serving.nodes.placement.scores.provider import Scorer
from tests.unit.nodes.placement.builders import node, pod

NODES = ("empty", "half", "full")


def new_extender(provider: str = "default") -> Extender:
    """An extender of three nodes of 4 cores: one empty, one half full, one full."""
    book = NodeBook()
    for name in NODES:
        book.set_node(node_of(node(name)))
    for name, cpu, memory in (("half", "2", "4Gi"), ("full", "3900m", "8000Mi")):
        placed_pod = pod_of(pod(f"on-{name}", on=name, cpu=cpu, memory=memory))
        assert placed_pod is not None
        book.set_pod(placed_pod)
    return Extender(book, Scorer(PlacementSettings(provider=provider)))


def extender_args(*names: str, **requests: str) -> bytes:
    return json.dumps({"Pod": pod("p", **requests), "NodeNames": names}).encode()


def filtered(extender: Extender, body: bytes) -> Any:  # noqa: ANN401 - JSON
    return json.loads(extender.filter(read_call(body)))


def test_prioritize_scores_nodes_from_0_to_10_in_request_order() -> None:
    extender = new_extender()
    document = json.loads(
        extender.prioritize(read_call(extender_args("full", "half", "empty", cpu="400m", memory="800Mi")), now_s=0)
    )
    assert [entry["Host"] for entry in document] == ["full", "half", "empty"]
    full, half, empty = (entry["Score"] for entry in document)
    assert 0 <= full < half < empty <= 10


def test_cluster_autoscaler_provider_prefers_fuller_node() -> None:
    extender = new_extender(CLUSTER_AUTOSCALER_PROVIDER)
    document = json.loads(
        extender.prioritize(read_call(extender_args("half", "empty", cpu="400m", memory="800Mi")), now_s=0)
    )
    assert document[0]["Score"] > document[1]["Score"]


def test_unknown_node_passes_filter_and_scores_0() -> None:
    extender = new_extender()
    assert json.loads(extender.prioritize(read_call(extender_args("new")), now_s=0)) == [{"Host": "new", "Score": 0}]
    assert filtered(extender, extender_args("new", cpu="100"))["NodeNames"] == ["new"]


def test_filter_rejects_nodes_without_room_with_reasons() -> None:
    entry = filtered(new_extender(), extender_args("full", "half", "empty", cpu="1", memory="1Gi"))
    assert entry["NodeNames"] == ["half", "empty"]
    assert entry["Error"] == ""
    assert entry["FailedNodes"] == {
        "full": "requests 1000m of cpu, 100m are free; requests 1073741824 bytes of memory, 201326592 bytes are free"
    }


def test_pod_without_requests_fits_full_node() -> None:
    extender = new_extender()
    assert filtered(extender, extender_args("full"))["NodeNames"] == ["full"]


def test_filter_rejects_node_at_its_pod_limit() -> None:
    book = NodeBook()
    book.set_node(node_of(node("a", pods="0")))
    book.set_node(node_of(node("b", pods=None)))
    entry = filtered(Extender(book, Scorer(PlacementSettings())), extender_args("a", "b"))
    assert entry["FailedNodes"] == {"a": "runs 0 of 0 pods"}


def test_filter_returns_whole_nodes_when_request_has_whole_nodes() -> None:
    body = {"pod": pod("p", cpu="1"), "nodes": {"items": [node("full"), node("half")]}, "nodenames": None}
    entry = filtered(new_extender(), json.dumps(body).encode())
    assert [Node["metadata"]["name"] for Node in entry["Nodes"]["items"]] == ["half"]
    assert "NodeNames" not in entry


def test_explain_omits_unknown_nodes() -> None:
    (entry,) = json.loads(new_extender().explain(read_call(extender_args("half", "new", cpu="400m")), now_s=0))
    assert entry["node"] == "half"
    assert {part["name"] for part in entry["parts"]} == {"LeastRequested", "BalancedResourceAllocation"}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"Pod": {}, "NodeNames": [1]}', b'{"Pod": 1, "NodeNames": []}', b'{"Pod": {}, "Nodes": 1}'],
)
def test_invalid_extender_args_are_rejected(body: bytes) -> None:
    with pytest.raises(InvalidValue, match="ExtenderArgs"):
        read_call(body)
