"""Watches revisions and ScaledWorkloads, and keeps an entry for each.

``RevisionWatch`` follows Revisions, their Deployments, Pods and public EndpointSlices. It stores the observed state of
each revision, and calls its listener on changes. It decides nothing. ``WorkloadWatch`` watches ScaledWorkloads, their
targets, and the targets' pods. It passes each change to ``RevisionWatch`` in the form of a revision, so that no other
module distinguishes the two. Targets and pods are watched only in namespaces of workloads; a target's selector selects
its pods. The scale of a custom kind is read every two seconds.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from serving.autoscaler.announcements import workload_announcement_of
from serving.autoscaler.entry import RevisionEntry
from serving.core.model.errors import ClusterError, Invalid, SettingsError
from serving.core.model.knative import REVISION_LABEL, RevisionKey, ServingState
from serving.core.model.objects import Object, is_older_version, labels_of, name_of, nested, uid_of
from serving.core.model.quantity import Resources
from serving.core.model.scaledworkload import ScaledWorkloadSpec, Schedule, WorkloadTarget
from serving.core.scaling.decision.path import PUBLIC_SLICES, public_slice_of
from serving.core.scaling.policies.usage import Usages, requests_of
from serving.core.scaling.revision import (
    ScaledDeployment,
    ScaledPod,
    ScaledRevision,
    deployment_of,
    pod_of,
    revision_of,
    target_of,
    workload_of,
)
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.net.aio.clock import now_s
from serving.net.aio.periodic import next_beat
from serving.net.cluster.kinds import (
    DEPLOYMENT,
    ENDPOINT_SLICE,
    POD,
    REVISION,
    SCALED_WORKLOAD,
    TARGET_KINDS,
    Kind,
    target_kind,
)
from serving.net.cluster.namespaced import NamespacedReflectors
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector
from serving.net.cluster.scalable import SCALES_PERIOD_S, ScalableKinds
from serving.net.cluster.selectors import LabelSelector, label_selector, written_selector
from serving.net.wire.frames import AnnouncedPod

_log = logging.getLogger("autoscaler")


class RevisionListener(Protocol):
    """Callbacks of a revision watch, called immediately at each change; they must not block."""

    def complete(self, key: RevisionKey, entry: RevisionEntry, *, is_restart: bool) -> None:
        """Start decisions if their inputs are complete; ``is_restart``: the revision already had a scale."""

    def changed(self, key: RevisionKey) -> None:
        """Schedule a decision. Called when an input of the revision's decisions has changed."""

    def schedules_changed(self, change: CacheChange, schedules: Sequence[Schedule]) -> None:
        """Store the schedules of a changed workload; an empty list if it is deleted or not scaled here."""

    def pod_ready(self, announced: AnnouncedPod) -> None:
        """Announce a pod of a workload that has become ready."""

    def pod_gone(self, key: RevisionKey, name: str) -> None:
        """Drop a deleted pod. Decisions are made about its revision here."""

    def pod_killed(self, revision: ScaledRevision, pod: ScaledPod) -> None:
        """Report the OOM kill of a container in a pod of a revision with decisions."""

    def stopped(self, key: RevisionKey) -> None:
        """Stop deciding about a revision."""

    def gone(self, revision: ScaledRevision) -> None:
        """Drop a deleted revision."""


class RevisionWatch:
    """The entries of all revisions. The caller runs ``jobs``; ``entries`` is a live view."""

    def __init__(self, cluster: Cluster, *, settings: AutoscalerSettings, listener: RevisionListener) -> None:
        self.entries: dict[RevisionKey, RevisionEntry] = {}
        self._settings = settings
        self._listener = listener
        self._revisions = Reflector(cluster, REVISION, on_change=self._revision_changed)
        deployments = Reflector(cluster, DEPLOYMENT, label_selector=REVISION_LABEL, on_change=self._deployment_changed)
        self._pods = Reflector(cluster, POD, label_selector=REVISION_LABEL, on_change=self._pod_changed)
        slices = Reflector(cluster, ENDPOINT_SLICE, label_selector=PUBLIC_SLICES, on_change=self._slice_changed)
        self._reflectors = (self._revisions, deployments, self._pods, slices)
        self._workloads = WorkloadWatch(cluster, settings=settings, sink=self, listener=listener)

    @property
    def scaled_count(self) -> int:
        """The number of scaled revisions."""
        return sum(entry.scaler is not None for entry in self.entries.values())

    def jobs(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """The tasks of the watch: names, and coroutines that run until cancelled."""
        for reflector in self._reflectors:
            yield f"autoscaler {reflector.kind.plural}", reflector.run()
        yield from self._workloads.jobs()

    async def synced(self) -> None:
        """Wait until every kind has been listed once."""
        for reflector in self._reflectors:
            await reflector.synced.wait()
        await self._workloads.synced()

    def reconfigure(self, settings: AutoscalerSettings) -> None:
        """Resolve all revisions again from new settings, soon."""
        self._settings = settings
        self._revisions.repeat_all()
        self._workloads.reconfigure(settings)

    def pod(self, namespace: str, name: str) -> Object | None:
        """The last observed state of a revision's or workload's pod; None if it is unknown."""
        return self._pods.cache.get((namespace, name)) or self._workloads.pod(namespace, name)

    def ready_pods(self, key: RevisionKey) -> Iterator[ScaledPod]:
        """The ready pods of a revision, by name."""
        entry = self.entries.get(key)
        if entry is not None and entry.revision is not None and entry.revision.is_workload:
            yield from self._workloads.ready_pods(key, entry.ready_names)
        elif entry is not None:
            yield from entry.ready_pods(key[0], self._pods.cache)

    def requests(self, key: RevisionKey) -> dict[str, Resources]:
        """The cpu and memory that each container of a revision requests, by container name."""
        revision = self._revisions.cache.get(key)
        return {} if revision is None else requests_of((revision.get("spec") or {}).get("containers") or ())

    def learns_target(self) -> bool:
        """Whether decisions about any revision with pods depend on its learnt target."""
        return any(
            entry.ready_names and entry.revision is not None and entry.revision.depends_on_usage
            for entry in self.entries.values()
        )

    def measured(self, usages: Usages, now_s: float) -> None:
        """Add the usage of all revisions' pods to the learnt targets."""
        for key, entry in self.entries.items():
            entry.measured(key[0], usages, now_s)

    def written(self, key: RevisionKey, resource: Object) -> None:
        """Store the Revision returned by a write; one with another uid is ignored."""
        entry = self.entries.get(key)
        is_workload = entry is not None and entry.revision is not None and entry.revision.is_workload
        revision = self._workloads.revision(key, resource) if is_workload else revision_of(resource, self._settings)
        if entry is None or revision is None or entry.revision is None or entry.revision.uid != revision.uid:
            return
        self._apply(key, entry, revision, is_own=True)

    def _revision_changed(self, change: CacheChange) -> None:
        is_gone = change.type is EventType.DELETED
        self.set_revision(change.key, None if is_gone else revision_of(change.new, self._settings))

    def is_taken(self, key: RevisionKey) -> bool:
        """Whether a Revision has this key; a ScaledWorkload with the same key is not scaled."""
        return key in self._revisions.cache

    def set_revision(self, key: RevisionKey, revision: ScaledRevision | None) -> None:
        """Store the current revision or workload; None if it is deleted or not scaled here."""
        entry = self._entry(key)
        if revision is None or (entry.revision is not None and entry.revision.uid != revision.uid):
            self._stop(key, entry)
            if entry.revision is not None:
                self._listener.gone(entry.revision)
            entry.revision = None
        if revision is None:
            self._drop_if_empty(key, entry)
        else:
            self._apply(key, entry, revision)

    def _apply(self, key: RevisionKey, entry: RevisionEntry, revision: ScaledRevision, *, is_own: bool = False) -> None:
        """Apply the current revision, from a watch or from the response to a call (``is_own``)."""
        before = entry.revision
        if before is not None and is_older_version(revision.resource_version, before.resource_version):
            return
        if before is not None and (before.class_name, before.spec.policy) != (
            revision.class_name,
            revision.spec.policy,
        ):
            entry.scaler = None
        entry.revision = revision
        was_reserved = before is not None and before.serving_state is ServingState.RESERVE
        entry.is_woken = entry.is_woken or (was_reserved and revision.serving_state is ServingState.ACTIVE)
        if entry.scaler is None:
            # A workload had a scale before this autoscaler took it over.
            self._listener.complete(key, entry, is_restart=before is not None or revision.is_workload)
            return
        entry.scaler.update(revision, now_s())
        is_flipped = before is None or before.serving_state is not revision.serving_state
        # The latest decision led to the state of an own write, also if the watch delivers it before the response, and
        # to pods for requests that wake a revision.
        latest, is_reserved = entry.latest, revision.serving_state is ServingState.RESERVE
        is_expected = latest is not None and (latest.to_reserve if is_reserved else bool(latest.apply_count))
        is_decided = is_own or (is_expected and (is_reserved or entry.is_woken))
        if before is None or before.spec != revision.spec or (is_flipped and not is_decided):
            self._listener.changed(key)

    def _deployment_changed(self, change: CacheChange) -> None:
        deployment = deployment_of(change.new)
        if deployment is not None:
            self.set_deployment(deployment, is_gone=change.type is EventType.DELETED)

    def set_deployment(self, deployment: ScaledDeployment, *, is_gone: bool) -> None:
        """Store a revision's Deployment, or a workload's target."""
        entry = self._entry(deployment.key)
        if is_gone:
            if entry.deployment is not None and entry.deployment.name == deployment.name:
                entry.deployment = None
                self._drop_if_empty(deployment.key, entry)
            return
        if entry.deployment is not None and is_older_version(
            deployment.resource_version, entry.deployment.resource_version
        ):
            return
        has_changed = entry.set_deployment(deployment, now_s())
        if entry.scaler is None:
            self._listener.complete(deployment.key, entry, is_restart=deployment.target is not None)
        elif has_changed:
            self._listener.changed(deployment.key)

    def _pod_changed(self, change: CacheChange) -> None:
        pod = pod_of(change.new)
        if pod is not None:
            self.set_pod(pod, is_gone=change.type is EventType.DELETED)

    def set_pod(self, pod: ScaledPod, *, is_gone: bool) -> bool:
        """Store a pod of a revision or workload; return whether it has become ready."""
        entry = self._entry(pod.key)
        was_ready = pod.name in entry.ready_names
        is_ready = pod.is_ready and not is_gone
        is_killed = entry.set_pod(pod, now_s(), is_gone=is_gone)
        if is_killed and entry.scaler is not None and entry.revision is not None:
            self._listener.pod_killed(entry.revision, pod)
        if is_gone and entry.scaler is not None:
            entry.scaler.forget_pod(pod.name, now_s())
            self._listener.pod_gone(pod.key, pod.name)
        if is_ready == was_ready:
            self._drop_if_empty(pod.key, entry)
            return False
        (entry.ready_names.add if is_ready else entry.ready_names.discard)(pod.name)
        self._listener.changed(pod.key)
        self._drop_if_empty(pod.key, entry)
        return is_ready

    def _slice_changed(self, change: CacheChange) -> None:
        public_slice = public_slice_of(change.new)
        if public_slice is None:
            return
        entry = self._entry(public_slice.key)
        if entry.public.update(public_slice, now_s(), is_gone=change.type is EventType.DELETED):
            self._listener.changed(public_slice.key)
        self._drop_if_empty(public_slice.key, entry)

    def _entry(self, key: RevisionKey) -> RevisionEntry:
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = RevisionEntry(self._settings.decisions_kept)
        return entry

    def _stop(self, key: RevisionKey, entry: RevisionEntry) -> None:
        """Stop deciding about a revision."""
        entry.scaler, entry.latest = None, None
        self._listener.stopped(key)

    def _drop_if_empty(self, key: RevisionKey, entry: RevisionEntry) -> None:
        if entry.is_empty:
            self.entries.pop(key, None)


class _Workload:
    """A workload, and the selector of its target's pods; None while the target is unknown.

    ``target_port`` is the port of these pods, if pods that become ready are announced.
    """

    __slots__ = ("pods", "selector", "spec", "target_port", "uid")

    def __init__(self, spec: ScaledWorkloadSpec, resource: Object) -> None:
        self.spec = spec
        self.uid = uid_of(resource)
        self.target_port: int | str | None = nested(resource, "status", "targetPort")
        self.selector: LabelSelector | None = None
        self.pods: set[str] = set()

    @property
    def target(self) -> WorkloadTarget:
        """The object that is scaled."""
        return self.spec.target


class WorkloadWatch:
    """Watches workloads; passes changes to ``sink`` and schedules to ``listener``. The caller runs ``jobs``."""

    def __init__(
        self, cluster: Cluster, *, settings: AutoscalerSettings, sink: RevisionWatch, listener: RevisionListener
    ) -> None:
        self._kinds = ScalableKinds(cluster)
        self._has_others = asyncio.Event()
        self._settings = settings
        self._sink = sink
        self._listener = listener
        self._known: dict[RevisionKey, _Workload] = {}
        # A changed pod is compared only with the workloads of its namespace.
        self._names: defaultdict[str, set[str]] = defaultdict(set)
        self._workloads = Reflector(cluster, SCALED_WORKLOAD, on_change=self._workload_changed)
        self._targets = {
            kind: NamespacedReflectors(cluster, kind, on_change=partial(self._target_changed, kind))
            for kind in TARGET_KINDS
        }
        self._pods = NamespacedReflectors(cluster, POD, on_change=self._pod_changed)

    def jobs(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """The tasks of the watch: names, and coroutines that run until cancelled."""
        yield "autoscaler workloads", self._workloads.run()
        for reflectors in (*self._targets.values(), self._pods):
            yield f"autoscaler {reflectors.kind.plural} of workloads", reflectors.run()
        yield "autoscaler scales of workloads", self._read_scales()

    async def synced(self) -> None:
        """Wait until all workloads, targets and pods have been listed once."""
        await self._workloads.synced.wait()
        for reflectors in (*self._targets.values(), self._pods):
            await reflectors.synced()

    def reconfigure(self, settings: AutoscalerSettings) -> None:
        """Resolve all workloads again from new settings, soon."""
        self._settings = settings
        self._workloads.repeat_all()

    def pod(self, namespace: str, name: str) -> Object | None:
        """The last observed pod in a namespace with workloads; None if it is unknown."""
        return self._pods.cache(namespace).get((namespace, name))

    def revision(self, key: RevisionKey, resource: Object) -> ScaledRevision | None:
        """A ScaledWorkload as a revision; None if it is being deleted.

        Raises ``SettingsError`` if neither the present nor an earlier spec is readable.
        """
        return workload_of(resource, self._spec(key, resource), self._settings)

    def _spec(self, key: RevisionKey, resource: Object) -> ScaledWorkloadSpec:
        """The spec of a workload; the last readable spec if the present spec is unreadable."""
        try:
            return ScaledWorkloadSpec.from_object(resource)
        except SettingsError:
            if (known := self._known.get(key)) is None:
                raise
            return known.spec

    def ready_pods(self, key: RevisionKey, names: Collection[str]) -> Iterator[ScaledPod]:
        """The pods of a workload with these names, by name."""
        namespace, workload = key
        for name in sorted(names):
            resource = self.pod(namespace, name)
            if resource is not None and (pod := pod_of(resource, workload=workload)) is not None:
                yield pod

    def _workload_changed(self, change: CacheChange) -> None:
        key = change.key
        revision, workload = None, None
        if change.type is not EventType.DELETED and not self._sink.is_taken(key):
            try:
                workload = _Workload(self._spec(key, change.new), change.new)
            except SettingsError as error:
                _log.error("workload.unreadable", extra={"namespace": key[0], "workload": key[1], "error": str(error)})
                return
            revision = workload_of(change.new, workload.spec, self._settings)
        self._listener.schedules_changed(change, () if workload is None else workload.spec.scaling.schedules)
        before = self._known.get(key)
        has_moved = before is None or workload is None or (before.target, before.uid) != (workload.target, workload.uid)
        if before is not None and has_moved:
            self._drop(key, before)
        if workload is not None and before is not None and not has_moved:
            before.spec, before.target_port = workload.spec, workload.target_port
        if workload is not None and revision is not None and has_moved:
            self._known[key] = workload
            self._names[key[0]].add(key[1])
        self._choose()
        if (revision is not None or before is not None) and not self._sink.is_taken(key):
            self._sink.set_revision(key, revision)
        if workload is not None and revision is not None and has_moved:
            self._find_target(key, workload)

    def _drop(self, key: RevisionKey, workload: _Workload) -> None:
        """Drop a workload, its target and its pods."""
        del self._known[key]
        self._names[key[0]].discard(key[1])
        if not self._names[key[0]]:
            del self._names[key[0]]
        self._forget_pods(key, workload, set(workload.pods))
        gone = target_of({"metadata": {}}, key, workload.target, uid=workload.uid)
        self._sink.set_deployment(gone, is_gone=True)

    def _choose(self) -> None:
        """Watch targets and pods in the workloads' namespaces; also read scales if a target's kind is not watched."""
        for kind, reflectors in self._targets.items():
            reflectors.choose({key[0] for key, workload in self._known.items() if _is_of(kind, workload.target)})
        self._pods.choose(self._names.keys())
        (self._has_others.set if self._others() else self._has_others.clear)()

    def _in(self, namespace: str) -> list[tuple[RevisionKey, _Workload]]:
        """The workloads of a namespace, by name."""
        keys = [(namespace, name) for name in sorted(self._names.get(namespace, ()))]
        return [(key, self._known[key]) for key in keys]

    def _find_target(self, key: RevisionKey, workload: _Workload) -> None:
        for kind, reflectors in self._targets.items():
            place = (key[0], workload.target.name)
            if _is_of(kind, workload.target) and (resource := reflectors.cache(key[0]).get(place)) is not None:
                self._object_seen(key, workload, resource)

    async def _read_scales(self) -> None:
        """Read the scales of targets of other kinds until cancelled."""
        while True:
            await self._has_others.wait()
            for key, workload in self._others():
                await self._read_scale(key, workload)
            await next_beat(SCALES_PERIOD_S)

    def _others(self) -> list[tuple[RevisionKey, _Workload]]:
        """The workloads with targets of kinds that are not watched."""
        known = self._known.items()
        return [(key, it) for key, it in known if target_kind(it.target.api_version, it.target.kind) is None]

    async def _read_scale(self, key: RevisionKey, workload: _Workload) -> None:
        try:
            scale = await self._kinds.scale(workload.target, key[0])
            selector = label_selector(str(nested(scale, "status", "selector") or ""))
        except (ClusterError, Invalid) as error:
            _log.warning("target.unreadable", extra={"namespace": key[0], "workload": key[1], "error": str(error)})
            return
        if self._known.get(key) is not workload:
            return
        if scale is None:
            gone = target_of({"metadata": {}}, key, workload.target, uid=workload.uid)
            self._sink.set_deployment(gone, is_gone=True)
        else:
            self._target_seen(key, workload, scale, selector=selector)

    def _target_changed(self, kind: Kind, change: CacheChange) -> None:
        namespace, name = change.key
        for key, workload in self._in(namespace):
            if workload.target.name != name or not _is_of(kind, workload.target):
                continue
            if change.type is EventType.DELETED:
                gone = target_of(change.new, key, workload.target, uid=workload.uid)
                self._sink.set_deployment(gone, is_gone=True)
            else:
                self._object_seen(key, workload, change.new)

    def _object_seen(self, key: RevisionKey, workload: _Workload, resource: Object) -> None:
        try:
            selector = written_selector(nested(resource, "spec", "selector") or {})
        except Invalid as error:
            _log.error("target.unreadable", extra={"namespace": key[0], "workload": key[1], "error": str(error)})
            return
        self._target_seen(key, workload, resource, selector=selector)

    def _target_seen(self, key: RevisionKey, workload: _Workload, resource: Object, *, selector: LabelSelector) -> None:
        """Store the scale of a target, and its pods if their selector has changed."""
        if selector != workload.selector:
            workload.selector = selector
            selected = {
                pod: resource for pod, resource in self._pods.cache(key[0]).items() if _selects(selector, resource)
            }
            self._forget_pods(key, workload, workload.pods - {name for _, name in selected})
            for pod in selected.values():
                self._pod_seen(key, workload, pod, is_gone=False)
        self._sink.set_deployment(target_of(resource, key, workload.target, uid=workload.uid), is_gone=False)

    def _pod_changed(self, change: CacheChange) -> None:
        for key, workload in self._in(change.key[0]):
            is_ours = workload.selector is not None and _selects(workload.selector, change.new)
            if is_ours or change.key[1] in workload.pods:
                is_gone = change.type is EventType.DELETED or not is_ours
                self._pod_seen(key, workload, change.new, is_gone=is_gone)

    def _pod_seen(self, key: RevisionKey, workload: _Workload, resource: Object, *, is_gone: bool) -> None:
        pod = pod_of(resource, workload=key[1])
        assert pod is not None
        (workload.pods.discard if is_gone else workload.pods.add)(name_of(resource))
        if self._sink.set_pod(pod, is_gone=is_gone) and workload.target_port is not None:
            announced = workload_announcement_of(key, resource, workload.target_port)
            if announced is not None:
                self._listener.pod_ready(announced)

    def _forget_pods(self, key: RevisionKey, workload: _Workload, names: set[str]) -> None:
        for name in sorted(names):
            resource = self.pod(key[0], name) or {"metadata": {"name": name, "namespace": key[0]}}
            self._pod_seen(key, workload, resource, is_gone=True)


def _is_of(kind: Kind, target: WorkloadTarget) -> bool:
    return target_kind(target.api_version, target.kind) == kind


def _selects(selector: LabelSelector, pod: Object) -> bool:
    """Whether a selector matches a pod; an empty selector matches no pod."""
    return bool(selector.requirements) and selector.matches(labels_of(pod))
