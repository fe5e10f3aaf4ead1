"""kube-scheduler's HTTP extender: filters the nodes for a pod, and scores them from 0 to 10.

Input: the body of a call, the nodes, the scorer. Output: the body of the response. Follows k8s.io/kube-scheduler
extender/v1. Fields have their Go names; reading ignores case, because older schedulers used lower case. Calls contain
names of nodes (``nodeCacheCapable``) or whole Nodes. Only the names are used, because the extender watches Nodes
itself. An unknown node passes the filter with score 0: it has just joined, and the scheduler already knows it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from serving.core.model.errors import UNREADABLE, InvalidValue
from serving.core.model.nodata import NoData
from serving.nodes.placement.book import NodeBook, demand_of
from serving.nodes.placement.scores.nodes import NodeTable
from serving.nodes.placement.scores.pod import PodDemand
from serving.nodes.placement.scores.provider import Scorer, Scores

_BINDING_EXPECTED = "a kube-scheduler's ExtenderBindingArgs: an object with PodName, PodNamespace, PodUID and Node"
_EXPECTED = "a kube-scheduler's ExtenderArgs: an object with Pod, and NodeNames or Nodes"


class ExtenderCall(msgspec.Struct, frozen=True, kw_only=True):
    """A pending pod and its candidate nodes, in the scheduler's order.

    ``is_by_name``: the response must have names of nodes, rather than the Node objects in ``nodes``.
    """

    pod: Mapping[str, Any]
    node_names: tuple[str, ...]
    is_by_name: bool
    """Whether the scheduler expects names in the response, rather than the Nodes that it sent."""

    nodes: tuple[Mapping[str, Any], ...] = ()


class BindingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A pod, and the node that a scheduler chose for it."""

    pod: str
    namespace: str
    uid: str
    node: str


def read_binding(body: bytes) -> BindingCall:
    """Parse the body of a bind call. Raises ``InvalidValue``."""
    try:
        fields = {key.lower(): value for key, value in msgspec.json.decode(body, type=dict[str, str]).items()}
        parts = {"pod": "podname", "namespace": "podnamespace", "uid": "poduid", "node": "node"}
        call = BindingCall(**{field: fields[key] for field, key in parts.items()})
    except (*UNREADABLE, KeyError) as error:
        raise InvalidValue(text=f"{body[:80]!r} ({error})", expected=_BINDING_EXPECTED) from error
    if not (call.pod and call.namespace and call.node):
        raise InvalidValue(text=f"{body[:80]!r}", expected=_BINDING_EXPECTED)
    return call


def read_call(body: bytes) -> ExtenderCall:
    """Parse the body of a filter or prioritize call. Raises ``InvalidValue``."""
    try:
        whole = msgspec.json.decode(body, type=dict[str, Any])
        fields = {key.lower(): value for key, value in whole.items() if value is not None}
        pod, names = fields["pod"], fields.get("nodenames")
        nodes = tuple((fields.get("nodes") or {}).get("items") or ())
        if names is None:
            names = [node["metadata"]["name"] for node in nodes]
        return msgspec.convert(
            {"pod": pod, "node_names": names, "is_by_name": "nodenames" in fields, "nodes": nodes}, type=ExtenderCall
        )
    except (*UNREADABLE, KeyError, TypeError, AttributeError) as error:
        raise InvalidValue(text=f"{body[:80]!r} ({error})", expected=_EXPECTED) from error


class Extender:
    """Answers the calls of a scheduler from the nodes and pods in ``book``, with the scores of ``scorer``."""

    def __init__(self, book: NodeBook, scorer: Scorer) -> None:
        self._book = book
        self._scorer = scorer

    def filter(self, call: ExtenderCall) -> bytes:
        """The ExtenderFilterResult: the nodes with room for the pod, and why each other node has none."""
        table, demand = self._book.table(), demand_of(call.pod)
        failed = {name: why for name in call.node_names if (why := self._refusal(table, name, demand))}
        response: dict[str, Any] = {"FailedNodes": failed, "Error": ""}
        if call.is_by_name:
            response["NodeNames"] = [name for name in call.node_names if name not in failed]
        else:
            nodes = [node for node in call.nodes if node["metadata"]["name"] not in failed]
            response["Nodes"] = {"apiVersion": "v1", "kind": "NodeList", "items": nodes}
        return msgspec.json.encode(response)

    def prioritize(self, call: ExtenderCall, *, now_s: float) -> bytes:
        """The HostPriorityList: a whole number from 0 to 10 for each node."""
        scores = self._score(call.pod, now_s=now_s)
        node_scores, places = scores.extender_score(), scores.table.index_by_name
        return msgspec.json.encode(
            [
                {"Host": name, "Score": int(node_scores[places[name]]) if name in places else 0}
                for name in call.node_names
            ]
        )

    def explain(self, call: ExtenderCall, *, now_s: float) -> bytes:
        """Explain the scores of the nodes as JSON, for people. Unknown nodes are left out.

        The field ``usage_age_s`` is the age of the measured load, null without a measurement. Load that is too old
        counts as missing.
        """
        scores = self._score(call.pod, now_s=now_s)
        names = [name for name in call.node_names if name in scores.table.index_by_name]
        usages = {name: self._book.usage(name) for name in names}
        ages_s = {name: None if isinstance(usage, NoData) else now_s - usage.at_s for name, usage in usages.items()}
        return msgspec.json.encode(
            [msgspec.to_builtins(scores.explain(name)) | {"usage_age_s": ages_s[name]} for name in names]
        )

    def _score(self, pod: Mapping[str, Any], *, now_s: float) -> Scores:
        return self._scorer.score(self._book.table(), demand_of(pod), now_s=now_s)

    def _refusal(self, table: NodeTable, name: str, demand: PodDemand) -> str:
        """Why a pod does not fit on a node; "" if it does, or if the node is unknown."""
        node, column = self._book.node(name), table.index_by_name.get(name)
        if node is None or column is None:
            return ""
        reasons: list[str] = []
        requested = (("cpu", demand.request_cpu_m, "m"), ("memory", demand.request_memory_bytes, " bytes"))
        for row, (resource, amount, unit) in enumerate(requested):
            free = int(table.allocatable[row, column] - table.request[row, column])
            # A pod that does not request a resource fits even on a full node.
            if amount > max(0, free):
                reasons.append(f"requests {amount}{unit} of {resource}, {max(0, free)}{unit} are free")
        if node.pod_count_max is not None and self._book.pod_count(name) >= node.pod_count_max:
            reasons.append(f"runs {self._book.pod_count(name)} of {node.pod_count_max} pods")
        return "; ".join(reasons)
