"""Simulates nodes below pods: the product's node scores place pods, its node groups grow and shrink the nodes.

The product's code makes the decisions: ``nodegroup.decide`` each scan interval, node scores for each pod, and
anticipated pods for groups that count them. The cloud is simulated: a requested machine is a node after its boot time.
Unplaced pods wait in order; an evicted pod finishes its requests while its replacement is placed.
"""

import heapq
import math
from collections import deque

import msgspec

from serving.core.scaling.decision.policy import RevisionPolicy
from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.scaler.anticipation import Anticipation, validity_s
from serving.nodes.nodegroup.book import NodeGroupBook
from serving.nodes.nodegroup.decide import decide
from serving.nodes.nodegroup.group_memory import NodeGroupState
from serving.nodes.nodegroup.plan import DeleteNodes, Drain, Effect, IncreaseSize, Taint, Untaint
from serving.nodes.nodegroup.records import (
    CloudGroup,
    Failures,
    GroupNode,
    GroupPod,
    Placement,
    PodPhase,
    RemovalTaint,
)
from serving.nodes.nodegroup.states import DEFAULT_GROUP
from serving.tools.simulator.nodes import NodePlan, NodeTenant, SimulatedPlacing
from serving.tools.simulator.pods import SimulatedPod
from serving.tools.simulator.results import NodesResult, PodSeries

_PASS, _BOOTED, _LEFT = range(3)


class _Anticipated(msgspec.Struct):
    """The anticipated pods of a revision's last decision."""

    tenant: NodeTenant
    state: Anticipation
    count: int
    at_s: float


class SimulatedNodes:
    """The nodes of one run, which starts with ``count`` nodes."""

    def __init__(self, plan: NodePlan, until_s: float) -> None:
        self.result = NodesResult()
        self.tenant: NodeTenant | None = None
        self._plan = plan
        self._until_s = until_s
        # From a decision until a node requested by the pass accepts pods.
        self._boot_s = plan.boot_s + plan.scan_interval_s
        self._placing = SimulatedPlacing(plan.policy, cpu_m=plan.pod.cpu_m, memory_bytes=plan.pod.memory_bytes)
        self._book = NodeGroupBook()
        self._book.set_groups([plan.group])
        self._state = NodeGroupState()
        self._target = 0
        self._nodes: dict[str, GroupNode] = {}
        self._pods: dict[str, dict[str, tuple[NodeTenant, SimulatedPod]]] = {}
        self._node_of: dict[str, str] = {}
        self._waiting: deque[tuple[NodeTenant, SimulatedPod]] = deque()
        self._anticipated: dict[str, _Anticipated] = {}
        self._counted: set[str] = set()
        self._series = PodSeries(until_s)
        self._sequence = self._number = 0
        self._events: list[tuple[float, int, int, str]] = []
        for _ in range(plan.count):
            self._target += 1
            self._boot(self._new_name(), 0.0)
        self._push(0.0, _PASS, "")

    # Called by revisions.

    @property
    def next_s(self) -> float:
        """The time of the next pass, new node or leaving pod; infinite at the end."""
        at_s = self._events[0][0]
        return at_s if at_s < self._until_s else math.inf

    def place(self, tenant: NodeTenant, pod: SimulatedPod, now_s: float) -> bool:
        """Place the pod now, or queue it; return whether it was placed."""
        name = _name_of(tenant, pod)
        if not self._waiting and self._put(tenant, pod, now_s):
            return True
        self._waiting.append((tenant, pod))
        self._book.set_pod(self._group_pod(name, None))
        tenant.limit_s = min(tenant.limit_s, self.next_s)
        return False

    def release(self, tenant: NodeTenant, pod: SimulatedPod, at_s: float) -> None:
        """Remove a pod from its node at ``at_s``, or from the queue immediately."""
        name = _name_of(tenant, pod)
        if pod.is_placed:
            self._push(at_s, _LEFT, name)
            if self._waiting and self.tenant is not None:
                self.tenant.limit_s = min(self.tenant.limit_s, at_s)
            return
        self._book.drop_pod(name)
        self._waited(pod, at_s)

    def decided(self, tenant: NodeTenant, outcome: ScalerOutcome, policy: RevisionPolicy) -> None:
        """After a decision, compute the pods that its revision needs when a node requested now has booted."""
        if not self._plan.group.anticipation:
            return
        anticipated = self._anticipated.setdefault(tenant.name, _Anticipated(tenant, Anticipation(), 0, 0.0))
        anticipated.count = anticipated.state.update(outcome, policy, boot_s=self._boot_s)
        anticipated.at_s = outcome.at_s

    def step(self) -> list[NodeTenant]:
        """Run the next event of the nodes; return the affected revisions."""
        at_s, _, kind, name = heapq.heappop(self._events)
        if kind == _BOOTED:
            self._boot(name, at_s)
        elif kind == _LEFT:
            self._placing.remove(name)
            self._book.drop_pod(name)
            del self._pods[self._node_of.pop(name)][name]
        else:
            self._push(at_s + self._plan.scan_interval_s, _PASS, "")
            return [*self._pass(at_s), *self._place_waiting(at_s)]
        return self._place_waiting(at_s)

    def finish(self) -> NodesResult:
        """The result at the end."""
        for node in self._nodes.values():
            self._count_node(node, self._until_s)
        for _, pod in self._waiting:
            if not pod.is_ending:
                self._waited(pod, self._until_s)
        self.result.node_series = self._series.means()
        return self.result

    # The pass and its requests.

    def _pass(self, now_s: float) -> list[NodeTenant]:
        self._anticipate(now_s)
        plan = self._plan
        cloud = CloudGroup(target_size=self._target, min_size=plan.count, max_size=plan.count_max)
        facts = self._book.facts(plan.group.name, cloud, Failures())
        self._state, decided = decide(self._state, facts, plan.group, now_s=now_s)
        changed: list[NodeTenant] = []
        for effect in decided.effects:
            changed += self._carry_out(effect, now_s)
        return changed

    def _carry_out(self, effect: Effect, now_s: float) -> list[NodeTenant]:
        match effect:
            case Taint() | Untaint():
                is_tainted = isinstance(effect, Taint)
                taint = RemovalTaint(at_s=effect.at_s) if isinstance(effect, Taint) else None
                node = msgspec.structs.replace(self._nodes[effect.node_name], removal_taint=taint)
                self._nodes[node.name] = node
                self._book.set_node(node)
                self._placing.set_taint(node.name, is_tainted=is_tainted)
            case Drain():
                return self._evict_all(effect.node_name, now_s)
            case DeleteNodes():
                changed: list[NodeTenant] = []
                for name in effect.node_names:
                    changed += self._evict_all(name, now_s)
                    self._count_node(self._nodes.pop(name), now_s)
                    self._placing.drop_node(name)
                    self._book.drop_node(name)
                    self._target -= 1
                return changed
            case IncreaseSize():
                self._target += effect.count
                self.result.node_starts += effect.count
                for _ in range(effect.count):
                    self._push(now_s + self._plan.boot_s, _BOOTED, self._new_name())
        return []

    def _evict_all(self, node: str, now_s: float) -> list[NodeTenant]:
        going = [placed for placed in self._pods[node].values() if not placed[1].is_ending]
        for tenant, pod in going:
            self.result.evictions += 1
            tenant.pods.evict(pod, now_s)
            for replacement in tenant.pods.create(1, now_s):
                if self.place(tenant, replacement, now_s):
                    tenant.start_container(replacement, now_s)
        return [tenant for tenant, _ in going]

    def _anticipate(self, now_s: float) -> None:
        """Add anticipated pods that do not exist yet to the node group's demand, as pending pods."""
        wanted: set[str] = set()
        for name, anticipated in self._anticipated.items():
            if now_s - anticipated.at_s < validity_s(self._boot_s):
                missing = anticipated.count - anticipated.tenant.pods.scale
                wanted |= {f"{name}/anticipated-{number}" for number in range(missing)}
        for name in self._counted - wanted:
            self._book.drop_pod(name)
        for name in wanted - self._counted:
            self._book.set_pod(msgspec.structs.replace(self._group_pod(name, None), is_anticipated=True))
        self._counted = wanted

    # Nodes and places.

    def _new_name(self) -> str:
        self._number += 1
        return f"node-{self._number}"

    def _boot(self, name: str, at_s: float) -> None:
        group, amount = self._plan.group, self._plan.node
        node = GroupNode(name=name, created_at_s=at_s, allocatable=amount, labels={group.label_key: group.label_value})
        self._nodes[name] = node
        self._pods[name] = {}
        self._book.set_node(node)
        self._placing.put_node(name, cpu_m=amount.cpu_m, memory_bytes=amount.memory_bytes)
        self.result.nodes_max = max(self.result.nodes_max, len(self._nodes))

    def _put(self, tenant: NodeTenant, pod: SimulatedPod, now_s: float) -> bool:
        name = _name_of(tenant, pod)
        node = self._placing.place(name, now_s=now_s)
        if node is None:
            return False
        pod.is_placed = True
        self._node_of[name] = node
        self._pods[node][name] = (tenant, pod)
        self._book.set_pod(self._group_pod(name, node))
        return True

    def _place_waiting(self, now_s: float) -> list[NodeTenant]:
        """Place waiting pods in order of arrival."""
        changed: list[NodeTenant] = []
        while self._waiting:
            tenant, pod = self._waiting[0]
            if not pod.is_ending:
                if not self._put(tenant, pod, now_s):
                    break
                self._waited(pod, now_s)
                tenant.start_container(pod, now_s)
                changed.append(tenant)
            self._waiting.popleft()
        return changed

    def _waited(self, pod: SimulatedPod, until_s: float) -> None:
        self.result.pods_pending += 1
        self.result.pending_pod_seconds += until_s - pod.created_s

    def _group_pod(self, name: str, node: str | None) -> GroupPod:
        group = self._plan.group
        selector = {} if group.name == DEFAULT_GROUP else {group.label_key: group.label_value}
        return GroupPod(
            name=name,
            request=self._plan.pod,
            phase=PodPhase.PENDING if node is None else PodPhase.RUNNING,
            node_name=node,
            is_scheduled=node is not None,
            placement=Placement(node_selector=selector),
        )

    def _count_node(self, node: GroupNode, until_s: float) -> None:
        """Count a node's cost from the request for the node. An initial node counts from the start."""
        from_s = max(0.0, node.created_at_s - self._plan.boot_s) if node.created_at_s else 0.0
        self.result.node_seconds += until_s - from_s
        self._series.add(from_s, until_s)

    def _push(self, at_s: float, kind: int, name: str) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at_s, self._sequence, kind, name))


def _name_of(tenant: NodeTenant, pod: SimulatedPod) -> str:
    return f"{tenant.name}/{pod.address}"
