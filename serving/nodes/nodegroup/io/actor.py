"""Executes the effects of a pass, in order, and reports failures.

The pass decided on a copy of the cluster. Before each write the node is read again, and an effect that no longer
applies is skipped. For example, a node is not deleted if it was cordoned, protected or untainted since, or got a pod.
Writes to the cluster have the version that was read, and are fenced by the lease. Calls to the cloud are made only
while this process has the lease. Effects of one kind on several nodes run concurrently.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.errors import (
    CloudError,
    CloudRefused,
    CloudUnavailable,
    ClusterError,
    Conflict,
    NotFound,
    NotLeading,
    TooManyRequests,
)
from serving.core.model.event import About, EventText, digest, new_event
from serving.core.model.knative import REMOVAL_TAINT
from serving.core.model.objects import Object, is_being_deleted, name_of, namespace_of, nested, uid_of, version_of
from serving.core.settings.nodegroup import NodeGroupSettings
from serving.net.aio.clock import stamp
from serving.net.aio.supervise import supervise
from serving.net.cluster.events import EventRecorder
from serving.net.cluster.kinds import NODE, POD
from serving.net.cluster.port import Cluster
from serving.nodes.nodegroup.cloud import Cloud, CloudMachine
from serving.nodes.nodegroup.facts import is_mirror_pod, node_of, pod_of
from serving.nodes.nodegroup.plan import DeleteNodes, Drain, Effect, IncreaseSize, Taint, Untaint
from serving.nodes.nodegroup.records import Failures, GroupNode
from serving.nodes.nodegroup.states import NodeState, holds_a_node, is_finished, state_of
from serving.nodes.nodegroup.status import sentence_of
from serving.nodes.nodegroup.view import pod_role

_log = logging.getLogger("nodegroup")

_NAMESPACE = "default"
_COMPONENT = "serving-nodegroup"

# Parallel calls: an API server's default share for one client.
_AT_ONCE_MAX = 16
# One second read after a conflict; the next pass retries.
_TRIES = 2


class NodeGroupNotes:
    """Writes Events about node groups. ``cluster`` may be one that rejects writes without the lease."""

    def __init__(self, cluster: Cluster) -> None:
        self._events = EventRecorder(cluster)

    async def write(self, resource: Mapping[str, Any], words: EventText) -> None:
        """Write an Event about an object, or increment its count."""
        about = About(
            api_version=resource["apiVersion"],
            kind=resource["kind"],
            namespace="",
            name=name_of(resource),
            uid=uid_of(resource),
        )
        suffix = digest(about.uid, words.reason, words.message)
        event = new_event(about, words, suffix=suffix, component=_COMPONENT, now=stamp())
        event["metadata"]["namespace"] = _NAMESPACE
        await self._events.record(event)


def taints_after(node: Mapping[str, Any], effect: Taint | Untaint) -> list[Object] | None:
    """The node's taints after the effect; None if they do not change."""
    taints: list[Object] = list(nested(node, "spec", "taints") or ())
    state = state_of(node_of(node))
    if isinstance(effect, Taint):
        if state is not NodeState.UNTAINTED:
            return None
        return [*taints, {"key": REMOVAL_TAINT, "value": str(effect.at_s), "effect": effect.effect}]
    if state is not NodeState.TAINTED:
        return None
    return [taint for taint in taints if taint.get("key") != REMOVAL_TAINT]


class Done(msgspec.Struct, kw_only=True):
    """The result of executing a plan: sentences about successful effects, and ``problems`` of failed ones.

    ``failed_nodes`` are the nodes of failed effects. ``increase_failed``: the cloud refused to grow.
    ``is_increase_unsure``: the cloud did not respond, and may have grown.
    """

    sentences: list[str] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)
    failed_nodes: set[str] = msgspec.field(default_factory=set)
    evicted_count: int = 0
    increase_failed: bool = False
    is_increase_unsure: bool = False

    def failures(self) -> Failures:
        """The failures to report to the next pass."""
        return Failures(increase_failed=self.increase_failed, node_names=frozenset(self.failed_nodes))


class Actor:
    """Executes effects for one group.

    ``check`` raises ``NotLeading`` without the lease. ``seen`` is called with each written Node.
    """

    def __init__(
        self,
        cluster: Cluster,
        cloud: Cloud,
        *,
        check: Callable[[], None],
        notes: NodeGroupNotes,
        seen: Callable[[str, Object | None], None],
    ) -> None:
        self._cluster = cluster
        self._cloud = cloud
        self._check = check
        self._notes = notes
        self._seen = seen
        self._at_once = asyncio.Semaphore(_AT_ONCE_MAX)

    async def carry_out(
        self,
        settings: NodeGroupSettings,
        effects: Sequence[Effect],
        *,
        pod_counts: Mapping[str, int],
        about: Object,
        why: str,
    ) -> Done:
        """Execute all effects in order. ``about`` is the NodeGroup, for Events.

        ``pod_counts`` are the numbers of pods by node in this pass. ``why`` is the reason stated in Events.
        """
        done = Done()
        for batch in _batches(effects):
            match batch[0]:
                case Taint() | Untaint():
                    await self._side_by_side(
                        self._retaint(effect, done) for effect in batch if isinstance(effect, Taint | Untaint)
                    )
                case Drain():
                    await self._side_by_side(self._drain(effect, done) for effect in batch if isinstance(effect, Drain))
                case DeleteNodes() as deletion:
                    await self._delete(settings, deletion, done=done, pod_counts=pod_counts)
                case IncreaseSize() as growth:
                    await self._grow(settings, growth, done)
        for text in done.sentences:
            await self._notes.write(about, EventText(reason=_reason(text), message=f"{text} ({why})" if why else text))
        for text in done.problems:
            await self._notes.write(about, EventText(reason="EffectFailed", message=text, is_warning=True))
        return done

    async def _side_by_side(self, work: Iterable[Awaitable[None]]) -> None:
        async def bounded(awaitable: Awaitable[None]) -> None:
            async with self._at_once:
                await awaitable

        async with supervise() as group:
            for awaitable in work:
                group.start(bounded(awaitable), name="node group effect")

    async def _retaint(self, effect: Taint | Untaint, done: Done) -> None:
        name = effect.node_name
        for attempt in range(_TRIES):
            try:
                node = await self._cluster.get(NODE, "", name)
                taints = taints_after(node, effect)
                if taints is not None:
                    version = {"resourceVersion": version_of(node)}
                    patch = {"metadata": version, "spec": {"taints": taints or None}}
                    node = await self._cluster.patch(NODE, "", name, patch=patch)
                    done.sentences.append(sentence_of(effect))
            except NotFound:
                self._seen(name, None)
            except ClusterError as error:
                if isinstance(error, Conflict) and attempt + 1 < _TRIES:
                    continue
                _failed(done, effect, [name], error=error)
            else:
                self._seen(name, node)
            return

    async def _drain(self, effect: Drain, done: Done) -> None:
        name = effect.node_name
        try:
            node = await self._cluster.get(NODE, "", name)
            if state_of(node_of(node)) is not NodeState.TAINTED:
                self._seen(name, node)
                return
            for pod in await self._pods_on(name):
                if _is_evicted(pod):
                    await self._evict(pod, effect, done)
        except NotFound:
            self._seen(name, None)
        except ClusterError as error:
            _failed(done, effect, [name], error=error)

    async def _evict(self, pod: Object, effect: Drain, done: Done) -> None:
        """Evict one pod. A refusal because of a PodDisruptionBudget does not delay other evictions."""
        name = f"{namespace_of(pod)}/{name_of(pod)}"
        try:
            await self._cluster.evict(namespace_of(pod), name_of(pod), uid=uid_of(pod))
        except TooManyRequests as error:
            # The server's message does not name the pod.
            _failed(done, effect, [effect.node_name], error=f"{name}: {error}")
        except (NotFound, Conflict):
            # The pod was deleted, or replaced by one with the same name: the next pass checks again.
            return
        else:
            done.evicted_count += 1
            done.sentences.append(f"evict pod {name} from node {effect.node_name}")

    async def _delete(
        self, settings: NodeGroupSettings, effect: DeleteNodes, *, done: Done, pod_counts: Mapping[str, int]
    ) -> None:
        machines: dict[str, CloudMachine] = {}
        uids: dict[str, str] = {}

        async def confirm(name: str) -> None:
            try:
                node = await self._cluster.get(NODE, "", name)
                self._seen(name, node)
                pods = await self._pods_on(name) if pod_counts.get(name, 0) == 0 else []
            except NotFound:
                self._seen(name, None)
                return
            except ClusterError as error:
                _failed(done, DeleteNodes(node_names=(name,)), [name], error=error)
                return
            if _may_be_deleted(node_of(node), settings) and not _occupied(pods, settings):
                uids[name] = uid_of(node)
                machines[name] = CloudMachine(
                    node_name=name, provider_id=str(nested(node, "spec", "providerID") or ""), node=node
                )

        await self._side_by_side(confirm(name) for name in effect.node_names)
        if not machines:
            return
        ordered = [machines[name] for name in effect.node_names if name in machines]
        self._check()
        try:
            deletion = await self._cloud.delete(settings.cloud_provider_group_name, ordered)
        except CloudError as error:
            _failed(done, DeleteNodes(node_names=tuple(machines)), list(machines), error=error)
            return
        for name, reason in deletion.failed.items():
            done.failed_nodes.add(name)
            done.problems.append(f"delete node {name}: {reason}")
        await self._side_by_side(self._forget(name, uids[name], done) for name in deletion.deleted)

    async def _forget(self, name: str, uid: str, done: Done) -> None:
        try:
            await self._cluster.delete(NODE, "", name, uid=uid)
        except (NotFound, Conflict):
            pass
        except ClusterError as error:
            _failed(done, DeleteNodes(node_names=(name,)), [name], error=error)
            return
        self._seen(name, None)
        done.sentences.append(f"delete node {name}")

    async def _grow(self, settings: NodeGroupSettings, effect: IncreaseSize, done: Done) -> None:
        self._check()
        try:
            await self._cloud.increase(settings.cloud_provider_group_name, effect.count)
        except CloudRefused as error:
            done.increase_failed = True
            _failed(done, effect, (), error=error)
        except CloudUnavailable as error:
            done.is_increase_unsure = True
            _failed(done, effect, (), error=error)
        else:
            done.sentences.append(sentence_of(effect))

    async def _pods_on(self, name: str) -> list[Object]:
        return (await self._cluster.list(POD, field_selector=f"spec.nodeName={name}")).items


def _batches(effects: Sequence[Effect]) -> list[list[Effect]]:
    """Group consecutive effects of the same kind. Deletions and growth are never grouped."""
    batches: list[list[Effect]] = []
    for effect in effects:
        alone = isinstance(effect, DeleteNodes | IncreaseSize)
        if batches and not alone and type(batches[-1][0]) is type(effect):
            batches[-1].append(effect)
        else:
            batches.append([effect])
    return batches


def _is_evicted(pod: Object) -> bool:
    """Whether a drain evicts the pod. DaemonSet and static pods stay."""
    facts = pod_of(pod)
    stays = is_finished(facts.phase) or not holds_a_node(facts.placement) or is_mirror_pod(pod)
    return not stays and not is_being_deleted(pod)


def _may_be_deleted(node: GroupNode, settings: NodeGroupSettings) -> bool:
    state = state_of(node)
    if node.is_protected:
        return state is NodeState.FORCE_TAINTED and settings.quirks.force_taint_overrides_no_delete
    return state in {NodeState.FORCE_TAINTED, NodeState.TAINTED}


def _occupied(pods: Sequence[Object], settings: NodeGroupSettings) -> bool:
    return any(pod_role(pod_of(pod), settings) is not None for pod in pods)


def _failed(done: Done, effect: Effect, names: Iterable[str], *, error: Exception | str) -> None:
    """Record a failed effect. Raises ``error`` again if it is ``NotLeading``, which ends the pass."""
    if isinstance(error, NotLeading):
        raise error
    text = f"{sentence_of(effect)}: {error}"
    done.failed_nodes.update(names)
    done.problems.append(text)
    _log.warning("effect.failed", extra={"effect": sentence_of(effect), "error": str(error)})


def _reason(sentence: str) -> str:
    """An Event's reason, made from the first word of its sentence."""
    return {"taint": "NodeTainted", "untaint": "NodeUntainted", "evict": "PodEvicted", "delete": "NodeDeleted"}.get(
        sentence.split(maxsplit=1)[0], "ScaledUp"
    )
