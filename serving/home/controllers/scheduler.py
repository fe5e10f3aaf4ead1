"""The scheduler of one machine: binds each pod to a node, or reports why none fits.

A pod of a Deployment gets its node at creation (``PlacedCreation``), without a second write. A pod created by a user is
bound by a second write. An unschedulable pod stays Pending, with ``PodScheduled`` False and the Event FailedScheduling,
and is retried after each change of a node or pod. Without virtual nodes there is one node. Its cordon, taints and
labels apply, but not its free amounts.
"""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from serving.core.model.errors import ClusterError, Conflict, InvalidValue, NotFound
from serving.core.model.event import EventText, digest
from serving.core.model.objects import (
    Key,
    Object,
    condition_of,
    is_being_deleted,
    key_of,
    labels_of,
    name_of,
    nested,
    version_of,
)
from serving.core.model.quantity import amounts_of
from serving.core.settings.placement import NODE_POLICIES, PlacementSettings
from serving.home.admission.quotas import pod_sums
from serving.net.aio.clock import now_s, stamp
from serving.net.aio.supervise import supervise
from serving.net.cluster.events import announce
from serving.net.cluster.kinds import NODE, POD
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector, start_synced
from serving.net.cluster.selectors import written_selector
from serving.nodes.placement.book import NodeBook, PlacedPod, demand_of, node_of, pod_of
from serving.nodes.placement.scores.pod import PodDemand
from serving.nodes.placement.scores.provider import Scorer, pick

_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_BINDING_EFFECTS = ("NoSchedule", "NoExecute")

_RESERVED = "reserved for a pod that is being created"
_log = logging.getLogger("scheduler")

_COMPONENT = "default-scheduler"
_UNSCHEDULABLE = "Unschedulable"
_ONE_NODE = "local"
_WATCH_LAG_MAX_S = 5.0


def refusal(node: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """Why a node cannot run a pod even when empty; "" if it can."""
    tolerations = nested(pod, "spec", "tolerations") or ()
    if nested(node, "spec", "unschedulable") and not _is_tolerated(_UNSCHEDULABLE_TAINT, tolerations):
        return "node(s) were unschedulable"
    if not _is_selected(node, pod):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in nested(node, "spec", "taints") or ():
        if taint.get("effect") in _BINDING_EFFECTS and not _is_tolerated(taint, tolerations):
            return f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value', '')}}}"
    return ""


def unschedulable_message(reasons: Iterable[str]) -> str:
    """The message of an unschedulable pod, from the reason of each node.

    "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu."
    """
    counts = Counter(reasons)
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items(), key=lambda entry: entry[0]))
    return f"0/{counts.total()} nodes are available: {listed or 'there is no node'}."


def excess_message(node: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """The event text for a pod that requests more than the whole node has; "" if the pod fits on an empty node.

    Such a pod starts anyway.
    """
    try:
        has, asks = amounts_of(nested(node, "status", "allocatable")), pod_sums(nested(pod, "spec") or {}, "requests")
    except InvalidValue:
        return ""
    over = [
        f"{asks[name]} {name} of {has[name]}" for name in has if name in asks and asks[name].nanos > has[name].nanos
    ]
    if not over:
        return ""
    return (
        f"the pod requests {' and '.join(over)} on {name_of(node)}; it starts anyway, "
        "because requests are only enforced with virtual nodes (serving up --nodes)"
    )


def _is_tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether a toleration matches a taint.

    An empty effect matches all effects; Exists without a key matches all taints.
    """
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key, exists = toleration.get("key"), toleration.get("operator") == "Exists"
    if not key:
        return exists
    return key == taint.get("key") and (exists or toleration.get("value", "") == taint.get("value", ""))


def _is_selected(node: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    labels = labels_of(node)
    wanted = nested(pod, "spec", "nodeSelector") or {}
    if not wanted.items() <= labels.items():
        return False
    required = nested(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    terms = required.get("nodeSelectorTerms") or ()
    return any(_matches(term, node, labels) for term in terms)


def _matches(term: Mapping[str, Any], node: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a node satisfies all expressions of a term; a term without expressions selects no node."""
    fields = term.get("matchFields") or ()
    expressions = term.get("matchExpressions") or ()
    if not fields and not expressions:
        return False
    names = written_selector({"matchExpressions": fields})
    return written_selector({"matchExpressions": expressions}).matches(labels) and names.matches(
        {"metadata.name": name_of(node)}
    )


class NodePlacing:
    """The nodes with their free resources. Raises ``SettingsError`` for a policy whose library is missing."""

    def __init__(self, policy: str) -> None:
        self.book = NodeBook()
        self._nodes: dict[str, Object] = {}
        self._scorer = Scorer(PlacementSettings(provider=NODE_POLICIES[policy]))
        self._turn = 0

    def set_node(self, node: Object) -> None:
        """Add or update a node."""
        self._nodes[name_of(node)] = node
        self.book.set_node(node_of(node))

    def drop_node(self, name: str) -> None:
        """Drop a deleted node."""
        self._nodes.pop(name, None)
        self.book.drop_node(name)

    def set_pod(self, key: tuple[str, str], pod: Object | None) -> None:
        """Record a new or changed pod; None if it is deleted."""
        placed = None if pod is None else pod_of(pod)
        if placed is None:
            self.book.drop_pod(key)
        else:
            self.book.set_pod(placed)

    def reserve(self, token: str, node: str, pod: Mapping[str, Any]) -> None:
        """Reserve a pod's resources on a node until the pod's object exists. ``token`` identifies the reservation."""
        self.book.set_pod(PlacedPod(key=(_RESERVED, token), node=node, demand=demand_of(pod)))

    def release(self, token: str) -> None:
        """Release the resources reserved for a pod."""
        self.book.drop_pod((_RESERVED, token))

    def choose(self, pod: Mapping[str, Any], *, now_s: float) -> tuple[str, str]:
        """The best node and ""; or "" and why no node fits the pod."""
        table, demand = self.book.table(), demand_of(pod)
        reasons = {name: self._refusal(name, node, pod=pod, demand=demand) for name, node in self._nodes.items()}
        feasible = np.array([reasons.get(name, "gone") == "" for name in table.index_by_name], dtype=bool)
        if not feasible.any():
            return "", unschedulable_message(reasons.values())
        self._turn += 1
        column = pick(self._scorer.score(table, demand, now_s=now_s).total, feasible=feasible, turn=self._turn)
        assert isinstance(column, int), "a node is feasible"
        return list(table.index_by_name)[column], ""

    def _refusal(self, name: str, node: Object, *, pod: Mapping[str, Any], demand: PodDemand) -> str:
        why = refusal(node, pod)
        if why:
            return why
        table, facts = self.book.table(), self.book.node(name)
        column = table.index_by_name[name]
        for row, (resource, request) in enumerate(
            (("cpu", demand.request_cpu_m), ("memory", demand.request_memory_bytes))
        ):
            if request > max(0, int(table.allocatable[row, column] - table.request[row, column])):
                return f"Insufficient {resource}"
        if facts is not None and facts.pod_count_max is not None and self.book.pod_count(name) >= facts.pod_count_max:
            return "Too many pods"
        return ""


class PlacedCreation(msgspec.Struct, frozen=True, kw_only=True):
    """A pod to create, with its node. ``token`` identifies the resources that are reserved for it until it exists."""

    pod: Object
    token: str


class PodScheduler:
    """Binds pods to nodes. ``placing`` has the free amounts of virtual nodes; None if this machine is the only node."""

    def __init__(self, cluster: Cluster, placing: "NodePlacing | None" = None) -> None:
        self._cluster = cluster
        self._placing = placing
        self._nodes = Reflector(cluster, NODE, on_change=self._node_changed)
        self._pods = Reflector(cluster, POD, on_change=self._pod_changed)
        self._waiting: dict[Key, Object] = {}
        # Pods that request more than the single node has, with their requests.
        self._excessive: list[tuple[Object, str]] = []
        # The version of the last write to a pod that the watch has not delivered yet.
        self._written: dict[Key, int] = {}
        self._wake = asyncio.Event()
        self._tokens = itertools.count()

    async def run(self) -> None:
        """Follow nodes and pods and bind waiting pods, until cancelled."""
        async with supervise() as group:
            await start_synced(group, (self._nodes, self._pods), owner="scheduler")
            while True:
                await self._wake.wait()
                self._wake.clear()
                for key in list(self._waiting):
                    await self._try(key)
                while self._excessive:
                    pod, message = self._excessive.pop()
                    await self._warn(pod, message, reason="RequestsExceedNode")

    def place(self, pod: Object) -> PlacedCreation:
        """The pod with its node, or without one if none fits. Call ``created`` afterwards."""
        token = str(next(self._tokens))
        # With the nodes but not all pods known, all nodes would seem empty, so the pod is bound later.
        is_blind = self._placing is not None and not (self._nodes.synced.is_set() and self._pods.synced.is_set())
        name = "" if is_blind else self._choose(pod)[0]
        if not name:
            return PlacedCreation(pod=pod, token=token)
        if self._placing is not None:
            self._placing.reserve(token, name, pod)
        return PlacedCreation(pod={**pod, "spec": {**pod["spec"], "nodeName": name}}, token=token)

    def created(self, placed: PlacedCreation, pod: Object | None) -> None:
        """Replace the reservation of a created pod by its object.

        ``pod`` is None if the creation failed or its response was lost.
        """
        self._settle(placed.token, pod)

    def _settle(self, token: str, pod: Object | None) -> None:
        """Replace a reservation by the written pod. ``pod`` is None if the write failed or its response was lost."""
        if self._placing is None:
            return
        if pod is None:
            # If the pod exists, the watch has delivered it by then.
            asyncio.get_running_loop().call_later(_WATCH_LAG_MAX_S, self._release, token)
            return
        self._placing.release(token)
        self._placing.set_pod(key_of(pod), pod)
        self._written[key_of(pod)] = int(version_of(pod))

    def _release(self, token: str) -> None:
        assert self._placing is not None
        self._placing.release(token)
        self._retry()

    def _choose(self, pod: Object) -> tuple[str, str]:
        if self._placing is not None:
            return self._placing.choose(pod, now_s=now_s())
        nodes = self._nodes.cache.values()
        if not nodes and not self._nodes.synced.is_set():
            # The first pods after a restart: this machine is about to register.
            return _ONE_NODE, ""
        reasons = {node["metadata"]["name"]: refusal(node, pod) for node in nodes}
        free = next((name for name, reason in reasons.items() if not reason), "")
        return free, "" if free else unschedulable_message(reasons.values())

    async def _try(self, key: Key) -> None:
        pod = self._waiting.get(key)
        if pod is None:
            return
        name, message = self._choose(pod)
        try:
            if name:
                await self._bind(pod, name)
            else:
                await self._refuse(pod, message)
        except (Conflict, NotFound):
            # It changed or was deleted; the change wakes this loop.
            return
        except ClusterError as error:
            _log.warning("pod.unscheduled", extra={"pod": key[1], "namespace": key[0], "error": str(error)})

    async def _bind(self, pod: Object, name: str) -> None:
        namespace, pod_name = key_of(pod)
        token, bound = str(next(self._tokens)), None
        if self._placing is not None:
            # Other pods are created while this one is written.
            self._placing.reserve(token, name, pod)
        version = {"resourceVersion": version_of(pod)}
        patch = {"metadata": version, "spec": {"nodeName": name}}
        try:
            bound = await self._cluster.patch(POD, namespace, pod_name, patch=patch)
        finally:
            self._settle(token, bound)
        self._waiting.pop((namespace, pod_name), None)

    async def _refuse(self, pod: Object, message: str) -> None:
        if condition_of(pod, "PodScheduled").get("message") == message:
            return
        namespace, name = key_of(pod)
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": _UNSCHEDULABLE,
            "message": message,
            "lastTransitionTime": stamp(),
        }
        status = {"phase": "Pending", "conditions": [condition]}
        written = await self._cluster.patch(POD, namespace, name, patch={"status": status}, subresource="status")
        if (namespace, name) in self._waiting:
            # It may have been deleted meanwhile.
            self._waiting[namespace, name] = written
        await self._warn(pod, message, reason="FailedScheduling")

    async def _warn(self, pod: Object, message: str, *, reason: str) -> None:
        words = EventText(reason=reason, message=message, is_warning=True)
        await announce(self._cluster, pod, words, suffix=digest(message), component=_COMPONENT)

    def _record_excess(self, pod: Object) -> None:
        """Record a pod that requests more than the single node has."""
        node = self._nodes.cache.get(("", nested(pod, "spec", "nodeName") or ""))
        message = excess_message(node, pod) if node is not None and self._placing is None else ""
        if message:
            self._excessive.append((pod, message))
            self._wake.set()

    def _node_changed(self, change: CacheChange) -> None:
        if self._placing is not None:
            if change.type is EventType.DELETED:
                self._placing.drop_node(change.key[1])
            else:
                self._placing.set_node(change.new)
        self._retry()

    def _pod_changed(self, change: CacheChange) -> None:
        is_gone = change.type is EventType.DELETED
        if not is_gone and int(version_of(change.new)) < self._written.get(change.key, 0):
            # The state from before binding: its amounts would count as free until the watch catches up.
            return
        self._written.pop(change.key, None)
        if self._placing is not None:
            self._placing.set_pod(change.key, None if is_gone else change.new)
        if not is_gone and _waits(change.new):
            self._waiting[change.key] = change.new
            if change.old is None or nested(change.old, "spec") != nested(change.new, "spec"):
                self._wake.set()
            return
        self._waiting.pop(change.key, None)
        if not is_gone and (change.old is None or _waits(change.old)):
            self._record_excess(change.new)
        if is_gone:
            # Another pod may be waiting for its amounts.
            self._retry()

    def _retry(self) -> None:
        if self._waiting:
            self._wake.set()


def _waits(pod: Object) -> bool:
    return not nested(pod, "spec", "nodeName") and not is_being_deleted(pod)
