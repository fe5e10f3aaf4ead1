"""Watches ScaledWorkloads, their targets, and the targets' pods.

Targets and pods are followed in the namespaces of workloads only; pods are those that a target's selector selects. Each change is
passed to a sink in the form of revisions, so that nothing else knows the difference.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Coroutine, Iterator
from functools import partial
from typing import Any, Protocol

from serving.core.model.errors import Invalid, SettingsError
from serving.core.model.knative import RevisionKey
from serving.core.model.objects import Object, labels_of, name_of, nested, uid_of
from serving.core.model.scaledworkload import ScaledWorkloadSpec, WorkloadTarget
from serving.core.scaling.revision import (
    ScaledDeployment,
    ScaledPod,
    ScaledRevision,
    pod_of,
    target_of,
    workload_of,
)
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.net.cluster.kinds import POD, SCALED_WORKLOAD, TARGET_KINDS, Kind, target_kind
from serving.net.cluster.namespaced import NamespacedReflectors
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector
from serving.net.cluster.selectors import LabelSelector, written_selector

_log = logging.getLogger("autoscaler")


class RevisionSink(Protocol):
    """Stores observed revisions and workloads."""

    def is_taken(self, key: RevisionKey) -> bool:
        """Whether a Revision has this key."""
        ...

    def set_revision(self, key: RevisionKey, revision: ScaledRevision | None) -> None:
        """Store the current workload; None if it is deleted."""
        ...

    def set_deployment(self, deployment: ScaledDeployment, *, is_gone: bool) -> None:
        """Store the current target."""
        ...

    def set_pod(self, pod: ScaledPod, *, is_gone: bool) -> None:
        """Store the current pod."""
        ...


class _Workload:
    """A workload, and the selector of its target's pods; None while the target is unknown."""

    __slots__ = ("pods", "selector", "spec", "uid")

    def __init__(self, spec: ScaledWorkloadSpec, uid: str) -> None:
        self.spec = spec
        self.uid = uid
        self.selector: LabelSelector | None = None
        self.pods: set[str] = set()

    @property
    def target(self) -> WorkloadTarget:
        """The object that is scaled."""
        return self.spec.target


class WorkloadWatch:
    """Watches workloads, and passes changes to ``sink``. The caller runs ``jobs``."""

    def __init__(self, cluster: Cluster, *, settings: AutoscalerSettings, sink: RevisionSink) -> None:
        self._settings = settings
        self._sink = sink
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
        """The last observed pod in a namespace with workloads."""
        return self._pods.cache(namespace).get((namespace, name))

    def revision(self, key: RevisionKey, resource: Object) -> ScaledRevision | None:
        """A ScaledWorkload as a revision; None if it is being deleted. Raises ``SettingsError`` if it could never be read."""
        return workload_of(resource, self._spec(key, resource), self._settings)

    def _spec(self, key: RevisionKey, resource: Object) -> ScaledWorkloadSpec:
        """The spec of a workload; the last one that could be read if its present one cannot."""
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
                workload = _Workload(self._spec(key, change.new), uid_of(change.new))
            except SettingsError as error:
                _log.error("workload.unreadable", extra={"namespace": key[0], "workload": key[1], "error": str(error)})
                return
            revision = workload_of(change.new, workload.spec, self._settings)
        before = self._known.get(key)
        has_moved = before is None or workload is None or (before.target, before.uid) != (workload.target, workload.uid)
        if before is not None and has_moved:
            self._drop(key, before)
        if workload is not None and before is not None and not has_moved:
            before.spec = workload.spec
        if workload is not None and revision is not None and has_moved:
            self._known[key] = workload
            self._names[key[0]].add(key[1])
        self._choose()
        if revision is not None or before is not None:
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
        """Watch targets and pods in namespaces that have workloads."""
        for kind, reflectors in self._targets.items():
            reflectors.choose({key[0] for key, workload in self._known.items() if _is_of(kind, workload.target)})
        self._pods.choose(self._names.keys())

    def _in(self, namespace: str) -> list[tuple[RevisionKey, _Workload]]:
        """The workloads of a namespace, by name."""
        keys = [(namespace, name) for name in sorted(self._names.get(namespace, ()))]
        return [(key, self._known[key]) for key in keys]

    def _find_target(self, key: RevisionKey, workload: _Workload) -> None:
        for kind, reflectors in self._targets.items():
            place = (key[0], workload.target.name)
            if _is_of(kind, workload.target) and (resource := reflectors.cache(key[0]).get(place)) is not None:
                self._target_seen(key, workload, resource)

    def _target_changed(self, kind: Kind, change: CacheChange) -> None:
        namespace, name = change.key
        for key, workload in self._in(namespace):
            if workload.target.name != name or not _is_of(kind, workload.target):
                continue
            if change.type is EventType.DELETED:
                gone = target_of(change.new, key, workload.target, uid=workload.uid)
                self._sink.set_deployment(gone, is_gone=True)
            else:
                self._target_seen(key, workload, change.new)

    def _target_seen(self, key: RevisionKey, workload: _Workload, resource: Object) -> None:
        try:
            selector = written_selector(nested(resource, "spec", "selector") or {})
        except Invalid as error:
            _log.error("target.unreadable", extra={"namespace": key[0], "workload": key[1], "error": str(error)})
            return
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
        self._sink.set_pod(pod, is_gone=is_gone)

    def _forget_pods(self, key: RevisionKey, workload: _Workload, names: set[str]) -> None:
        for name in sorted(names):
            resource = self.pod(key[0], name) or {"metadata": {"name": name, "namespace": key[0]}}
            self._pod_seen(key, workload, resource, is_gone=True)


def _is_of(kind: Kind, target: WorkloadTarget) -> bool:
    return target_kind(target.api_version, target.kind) == kind


def _selects(selector: LabelSelector, pod: Object) -> bool:
    """Whether a selector matches a pod; an empty one matches none."""
    return bool(selector.requirements) and selector.matches(labels_of(pod))
