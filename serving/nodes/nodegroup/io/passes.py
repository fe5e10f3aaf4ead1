"""The passes of all node groups: observe, decide, write the state, act, write the status.

The state is written to the NodeGroup's status before machines are requested, so that a crash in between never requests
them twice. The next pass gets the failed effects. A group with invalid settings, or whose cloud does not respond, is
skipped. Nodes and pods come from reflectors. A pass also stores its own writes, before the watch delivers them.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from serving.core.model.errors import AlreadyExists, CloudError, ClusterError, Conflict, NotFound, NotLeading, Problem
from serving.core.model.event import EventText
from serving.core.model.knative import CONDITION_READY, NODE_GROUP_STATE_ANNOTATION, ORIGIN_LABEL, REVISION_LABEL
from serving.core.model.objects import (
    Object,
    annotations_of,
    condition_of,
    labels_of,
    merge_difference,
    name_of,
    nested,
    version_of,
)
from serving.core.settings.nodegroup import NodeGroupSettings
from serving.net.aio.clock import stamp, wall_s
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import NODE, NODE_GROUP, POD
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector, ReflectorSettings
from serving.nodes.nodegroup.book import NodeGroupBook
from serving.nodes.nodegroup.cloud import Cloud
from serving.nodes.nodegroup.decide import decide
from serving.nodes.nodegroup.facts import node_of, pod_of
from serving.nodes.nodegroup.group_memory import NodeGroupState
from serving.nodes.nodegroup.groups import GroupReading, RefusedGroup, WrittenGroup, group_of, spec_of
from serving.nodes.nodegroup.io.actor import Actor, Done, NodeGroupNotes
from serving.nodes.nodegroup.io.anticipating import PodAnticipation
from serving.nodes.nodegroup.plan import Effect, GroupPlan, IncreaseSize
from serving.nodes.nodegroup.records import CloudGroup, Failures
from serving.nodes.nodegroup.status import (
    CLOUD_REACHABLE,
    KEYS_KNOWN,
    Verdict,
    annotation_text,
    keys_status,
    recovered_state,
    refused_status,
    state_from,
    status_of,
    why_of,
    written_state,
)

_log = logging.getLogger("nodegroup")

_ORIGIN = "config-nodegroup"


class GroupPass(msgspec.Struct, kw_only=True):
    """One pass of one group at ``at_s``: its plan, and what was ``done`` of it. For metrics and tests.

    ``pod_counts`` has the pods by node before the pass.
    """

    settings: NodeGroupSettings
    plan: GroupPlan
    state: NodeGroupState
    cloud: CloudGroup
    pod_counts: Mapping[str, int]
    done: Done
    at_s: float


class _GroupMemory(msgspec.Struct, kw_only=True):
    """A group's state between passes. ``unsure_target`` is the target of a scale-up without a response, or None."""

    state: NodeGroupState
    failures: Failures = Failures()
    unsure_target: int | None = None


class NodeGroupPasses:
    """Makes passes: in each, every node group is decided on once, and its plan is executed.

    ``written`` returns the groups of the ConfigMap; NodeGroup objects are watched.

    ``on_groups`` is called with the groups before their passes. ``on_pass`` is called with each finished pass of a
    group and the book. ``on_cloud_error`` is called with the name of a group whose cloud failed.
    """

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        cluster: Cluster,
        cloud: Cloud,
        *,
        written: Callable[[], GroupReading],
        check: Callable[[], None] = lambda: None,
        dry_mode: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = wall_s,
        on_groups: Callable[[Sequence[WrittenGroup]], None] = lambda _: None,
        on_pass: Callable[[GroupPass, NodeGroupBook], None] = lambda _, __: None,
        on_cloud_error: Callable[[str, CloudError], None] = lambda _, __: None,
    ) -> None:
        self.book = NodeGroupBook()
        self._on_groups = on_groups
        self._on_pass = on_pass
        self._on_cloud_error = on_cloud_error
        self._cluster = cluster
        self._cloud = cloud
        self._written = written
        self._dry_mode = dry_mode
        self._clock = clock
        self._memories: dict[str, _GroupMemory] = {}
        self._own_versions: dict[str, int] = {}
        self._notes = NodeGroupNotes(cluster)
        self._actor = Actor(cluster, cloud, check=check, notes=self._notes, seen=self._seen)
        # Images and environments of 50,000 pods are not needed here.
        self._nodes = Reflector(cluster, NODE, on_change=self._node_changed)
        self._pods = Reflector(
            cluster,
            POD,
            field_selector="status.phase!=Succeeded,status.phase!=Failed",
            settings=ReflectorSettings(transform=_bare_pod),
            on_change=self._pod_changed,
        )
        self._groups = Reflector(cluster, NODE_GROUP)
        self._anticipation = PodAnticipation(cluster)

    async def watch(self) -> None:
        """Watch nodes, pods and groups until cancelled."""
        async with supervise() as group:
            for reflector in (self._nodes, self._pods, self._groups):
                group.start(reflector.run(), name=f"nodegroup {reflector.kind.plural}")
            group.start(self._anticipation.watch(), name="nodegroup anticipation")

    async def synced(self) -> None:
        """Wait until every kind has been listed once."""
        for reflector in (self._nodes, self._pods, self._groups):
            await reflector.synced.wait()

    async def run_once(self) -> list[GroupPass]:
        """Make one pass of each group, in order. Raises ``NotLeading``."""
        groups = await self._present_groups()
        self.book.set_groups([group.settings for group in groups])
        self._on_groups(groups)
        is_wanted = any(group.settings.anticipation for group in groups)
        self._anticipation.put(self.book, is_wanted=is_wanted, now_s=self._clock())
        for name in self._memories.keys() - {group.settings.name for group in groups}:
            del self._memories[name]
        passes: list[GroupPass] = []
        for group in groups:
            try:
                group_pass = await self._pass(group)
            except NotLeading:
                raise
            except ClusterError as error:
                _log.warning("pass.failed", extra={"group": group.settings.name, "error": str(error)})
                continue
            if group_pass is not None:
                passes.append(group_pass)
                self._on_pass(group_pass, self.book)
        return passes

    async def _pass(self, group: WrittenGroup) -> GroupPass | None:
        settings = group.settings
        name = settings.name
        about = await self._report_ignored(await self._cluster.get(NODE_GROUP, "", name), group.ignored)
        try:
            cloud = await self._cloud.describe(settings.cloud_provider_group_name)
        except CloudError as error:
            self._on_cloud_error(name, error)
            verdict = Verdict(is_true=False, reason=error.reason, message=str(error))
            await self._write_status(about, refused_status(about, CLOUD_REACHABLE, verdict, stamp=stamp()))
            await self._notes.write(about, EventText(reason=error.reason, message=str(error), is_warning=True))
            return None
        now_s = self._clock()
        memory = self._memory_of(name, about, cloud, now_s=now_s)
        facts = self.book.facts(name, cloud, _with_unsure(memory, cloud))
        pod_counts = dict(facts.pod_counts)
        state, plan = decide(memory.state, facts, settings, now_s=now_s)
        _log_plan(settings, plan)
        if any(isinstance(effect, IncreaseSize) for effect in plan.effects):
            about = await self._write_state(about, state)
        about = await self._save_state(about, state)
        self._memories[name] = _GroupMemory(state=state)
        done = await self._actor.carry_out(settings, plan.effects, pod_counts=pod_counts, about=about, why=why_of(plan))
        self._memories[name] = _GroupMemory(
            state=state, failures=done.failures(), unsure_target=_unsure_target(plan.effects, cloud, done)
        )
        if plan.unregistered_count:
            message = f"{plan.unregistered_count} machines of the cloud are no nodes of this group"
            await self._notes.write(about, EventText(reason="MachinesMissing", message=message, is_warning=True))
        status = status_of(
            about,
            plan=plan,
            state=state,
            cloud=cloud,
            done=done.sentences,
            problems=done.problems,
            stamp=stamp(),
        )
        await self._write_status(about, status)
        return GroupPass(
            settings=settings, plan=plan, state=state, cloud=cloud, pod_counts=pod_counts, done=done, at_s=now_s
        )

    def _memory_of(self, name: str, about: Object, cloud: CloudGroup, *, now_s: float) -> _GroupMemory:
        memory = self._memories.get(name)
        if memory is not None:
            return memory
        state = state_from(about)
        if state is None:
            node_count = len(self.book.facts(name, cloud, Failures()).nodes)
            state = recovered_state(cloud, node_count=node_count, now_s=now_s)
        return _GroupMemory(state=state)

    async def _present_groups(self) -> list[WrittenGroup]:
        """The groups of the ConfigMap, each with its NodeGroup, and the groups of all other NodeGroups."""
        reading = self._written()
        objects = {key[1]: node_group for key, node_group in self._groups.cache.items()}
        ours = {name for name, node_group in objects.items() if labels_of(node_group).get(ORIGIN_LABEL) == _ORIGIN}
        groups: list[WrittenGroup] = []
        for group in reading.groups:
            name = group.settings.name
            if name in objects and name not in ours:
                _log.error("group.twice", extra={"group": name, "kept": "NodeGroup"})
                continue
            await self._ensure_group(name, spec_of(group.options), objects.get(name))
            groups.append(group)
        shown = {group.settings.name for group in reading.groups}
        for wrong in reading.refused:
            if wrong.name and wrong.name not in shown:
                await self._show_refused(wrong, objects, ours)
        if not reading.problems:
            # If the ConfigMap is partly invalid, a missing group may only be misspelt.
            for name in ours - {group.settings.name for group in groups}:
                await self._remove(name)
        for name in sorted(objects.keys() - ours):
            object_reading = group_of(objects[name])
            for wrong in object_reading.refused:
                await self._refuse(objects[name], wrong.problems)
            groups += object_reading.groups
        is_dry = self._dry_mode()
        return [_dry(group) if is_dry else group for group in groups]

    async def _show_refused(self, group: RefusedGroup, objects: Mapping[str, Object], ours: Collection[str]) -> None:
        """Write the problems of a ConfigMap's group into the status of its NodeGroup.

        The NodeGroup's spec stays the last valid one.
        """
        if group.name in objects and group.name not in ours:
            return
        try:
            if group.name not in objects:
                await self._ensure_group(group.name, {}, None)
            await self._refuse(await self._cluster.get(NODE_GROUP, "", group.name), group.problems)
        except NotLeading:
            raise
        except ClusterError as error:
            _log.warning("group.not_shown", extra={"group": group.name, "error": str(error)})

    async def _report_ignored(self, about: Object, ignored: tuple[Problem, ...]) -> Object:
        """Write the keys without effect into a condition. If they have changed, also write an Event."""
        status = keys_status(about, ignored, stamp=stamp())
        if not status or status["conditions"] == nested(about, "status", "conditions"):
            return about
        if ignored:
            text = condition_of({"status": status}, KEYS_KNOWN)["message"]
            await self._notes.write(about, EventText(reason="KeysIgnored", message=text, is_warning=True))
        return await self._cluster.patch(NODE_GROUP, "", name_of(about), patch={"status": status}, subresource="status")

    async def _ensure_group(self, name: str, spec: Object, present: Object | None) -> None:
        if present is None:
            body = {"metadata": {"name": name, "labels": {ORIGIN_LABEL: _ORIGIN}}, "spec": spec}
            try:
                await self._cluster.create(NODE_GROUP, body)
            except AlreadyExists:
                return
        elif (difference := merge_difference(present.get("spec") or {}, spec)) != {}:
            await self._cluster.patch(NODE_GROUP, "", name, patch={"spec": difference})

    async def _remove(self, name: str) -> None:
        try:
            await self._cluster.delete(NODE_GROUP, "", name)
        except NotFound:
            return

    async def _refuse(self, about: Object, problems: tuple[Problem, ...]) -> None:
        text = "; ".join(str(problem) for problem in problems)
        verdict = Verdict(is_true=False, reason="SettingsInvalid", message=text)
        await self._write_status(about, refused_status(about, CONDITION_READY, verdict, stamp=stamp()))
        await self._notes.write(about, EventText(reason="SettingsInvalid", message=text, is_warning=True))

    async def _write_state(self, about: Object, state: NodeGroupState) -> Object:
        """Write the state before any cloud call. An error stops the pass."""
        patch = {"status": {"state": merge_difference(nested(about, "status", "state") or {}, written_state(state))}}
        return await self._cluster.patch(NODE_GROUP, "", name_of(about), patch=patch, subresource="status")

    async def _save_state(self, about: Object, state: NodeGroupState) -> Object:
        """Write the state of lock and breaker into the annotation, if it has changed."""
        text = annotation_text(state)
        if annotations_of(about).get(NODE_GROUP_STATE_ANNOTATION, "") == text:
            return about
        patch = {"metadata": {"annotations": {NODE_GROUP_STATE_ANNOTATION: text or None}}}
        return await self._cluster.patch(NODE_GROUP, "", name_of(about), patch=patch)

    async def _write_status(self, about: Object, status: Object) -> None:
        before = about.get("status") or {}
        difference = merge_difference({key: before[key] for key in status if key in before}, status)
        if not difference:
            return
        try:
            await self._cluster.patch(
                NODE_GROUP, "", name_of(about), patch={"status": difference}, subresource="status"
            )
        except (NotFound, Conflict):
            return

    def _seen(self, name: str, node: Object | None) -> None:
        """Store the latest Node that this process read or wrote; None means a deleted Node."""
        if node is None:
            self.book.drop_node(name)
            return
        version = version_of(node)
        self._own_versions[name] = int(version) if version.isdecimal() else 0
        self.book.set_node(node_of(node))

    def _node_changed(self, change: CacheChange) -> None:
        name, version = change.key[1], version_of(change.new)
        if change.type is EventType.DELETED:
            self._own_versions.pop(name, None)
            self.book.drop_node(name)
            return
        own = self._own_versions.get(name)
        if own is not None and version.isdecimal() and int(version) < own:
            return
        self._own_versions.pop(name, None)
        self.book.set_node(node_of(change.new))

    def _pod_changed(self, change: CacheChange) -> None:
        name = "/".join(change.key)
        if change.type is EventType.DELETED:
            self.book.drop_pod(name)
            self._anticipation.pods.drop_pod(name)
        else:
            self._anticipation.pods.set_pod(name, change.new)
            self.book.set_pod(pod_of(change.new))


def _dry(group: WrittenGroup) -> WrittenGroup:
    return msgspec.structs.replace(group, settings=msgspec.structs.replace(group.settings, dry_mode=True))


def _with_unsure(memory: _GroupMemory, cloud: CloudGroup) -> Failures:
    """The failures of the last plan. A scale-up without a response has failed if the cloud's target is still lower."""
    if memory.unsure_target is None or cloud.target_size >= memory.unsure_target:
        return memory.failures
    return msgspec.structs.replace(memory.failures, increase_failed=True)


def _unsure_target(effects: tuple[Effect, ...], cloud: CloudGroup, done: Done) -> int | None:
    if not done.is_increase_unsure:
        return None
    return cloud.target_size + sum(effect.count for effect in effects if isinstance(effect, IncreaseSize))


def _bare_pod(pod: Object) -> Object:
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    fields = ("name", "namespace", "resourceVersion", "ownerReferences", "annotations", "deletionTimestamp")
    revision = labels_of(pod).get(REVISION_LABEL)
    return {
        "metadata": {
            **{key: metadata[key] for key in fields if key in metadata},
            **({} if revision is None else {"labels": {REVISION_LABEL: revision}}),
        },
        "spec": {
            "containers": [_bare_container(container) for container in spec.get("containers") or ()],
            "initContainers": [_bare_container(init_container) for init_container in spec.get("initContainers") or ()],
            **{key: spec[key] for key in ("nodeName", "nodeSelector", "affinity", "overhead") if key in spec},
        },
        "status": {
            "phase": nested(pod, "status", "phase"),
            "conditions": [
                condition
                for condition in nested(pod, "status", "conditions") or ()
                if condition.get("type") == "PodScheduled"
            ],
        },
    }


def _bare_container(container: Object) -> Object:
    return {key: container[key] for key in ("resources", "restartPolicy") if key in container}


def _log_plan(settings: NodeGroupSettings, plan: GroupPlan) -> None:
    extra = {
        "group": settings.name,
        "rule": plan.decided_by.value,
        "delta": plan.requested_delta,
        "effects": len(plan.effects),
        "withheld": len(plan.withheld),
        "limits": [limit.value for limit in plan.limits],
        "error": plan.error.value if plan.error else "",
        "nodes": len(plan.nodes.untainted),
        "pods": plan.pod_count,
    }
    _log.info("group.decided", extra=extra)
