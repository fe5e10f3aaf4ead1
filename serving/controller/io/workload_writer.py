"""Keeps the status of each ScaledWorkload, as ``controller/workloads/status.py`` derives it.

It follows workloads, and the targets, Services and HorizontalPodAutoscalers in their namespaces, and writes a status when it differs.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from serving.controller.values.writes import status_patch
from serving.controller.workloads.status import WorkloadView, workload_status
from serving.core.model.errors import NotFound, Problem, SettingsError
from serving.core.model.objects import Key, Object, is_being_deleted
from serving.core.model.scaledworkload import ScaledWorkloadSpec
from serving.core.scaling.policies.index import schedules_as_policy
from serving.core.scaling.policies.scalingpolicy import ScalingPolicySpec
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.net.aio.clock import stamp
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import (
    HORIZONTAL_POD_AUTOSCALER,
    SCALED_WORKLOAD,
    SERVICE,
    TARGET_KINDS,
    Kind,
    target_kind,
)
from serving.net.cluster.namespaced import NamespacedReflectors
from serving.net.cluster.port import Cluster
from serving.net.cluster.reflector import CacheChange, Reflector
from serving.net.cluster.schedules import schedule_problems
from serving.net.cluster.workqueue import WorkQueue

# A rollout changes a target many times.
_DEBOUNCE_S = 0.05
_WORKERS = 2


class WorkloadWriter:
    """Runs until cancelled. ``is_revision`` tells whether a Revision has a name, ``holder`` what holds a host for another namespace."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        settings: ControllerSettings,
        scaling: AutoscalerSettings,
        is_revision: Callable[[Key], bool],
        holder: Callable[[str, str], str | None],
        now: Callable[[], str] = stamp,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._scaling = scaling
        self._is_revision = is_revision
        self._holder = holder
        self._now = now
        self._queue: WorkQueue[Key] = WorkQueue("workloads")
        self._workloads = Reflector(cluster, SCALED_WORKLOAD, on_change=self._workload_changed)
        self._nearby = {
            kind: NamespacedReflectors(cluster, kind, on_change=partial(self._nearby_changed, kind))
            for kind in (*TARGET_KINDS, SERVICE, HORIZONTAL_POD_AUTOSCALER)
        }

    def reconfigure(self, settings: ControllerSettings, scaling: AutoscalerSettings) -> None:
        """Decide with these settings from now on."""
        self._settings, self._scaling = settings, scaling
        for key in self._workloads.cache:
            self._queue.add(key)

    async def run(self) -> None:
        """Follow and write until cancelled."""
        async with supervise() as group:
            group.start(self._workloads.run(), name="workloads")
            for kind, reflectors in self._nearby.items():
                group.start(reflectors.run(), name=f"workloads {kind.plural}")
            await self._workloads.synced.wait()
            for reflectors in self._nearby.values():
                await reflectors.synced()
            await self._queue.run(_WORKERS, self._work)

    def _workload_changed(self, change: CacheChange) -> None:
        namespaces = {namespace for namespace, _ in self._workloads.cache}
        for reflectors in self._nearby.values():
            reflectors.choose(namespaces)
        # A host or a target may be free for another now.
        is_same = (
            change.old is not None
            and change.key in self._workloads.cache
            and change.old.get("spec") == change.new.get("spec")
        )
        for key in (change.key,) if is_same else self._workloads.cache:
            self._queue.add_after(key, _DEBOUNCE_S)

    def _nearby_changed(self, kind: Kind, change: CacheChange) -> None:
        namespace, name = change.key
        for key, workload in self._workloads.cache.items():
            if key[0] == namespace and _concerns(kind, name, workload):
                self._queue.add_after(key, _DEBOUNCE_S)

    async def _work(self, key: Key) -> None:
        workload = self._workloads.cache.get(key)
        if workload is None or is_being_deleted(workload):
            return
        status = workload_status(
            workload, self._view(key, workload), settings=self._settings, scaling=self._scaling, now=self._now()
        )
        for patch in status_patch(SCALED_WORKLOAD, workload, status):
            try:
                await self._cluster.write(patch)
            except NotFound:
                return

    def _view(self, key: Key, workload: Object) -> WorkloadView:
        try:
            spec = ScaledWorkloadSpec.from_object(workload)
        except SettingsError:
            return WorkloadView()
        namespace, _ = key
        target = spec.target
        kind = target_kind(target.api_version, target.kind)
        return WorkloadView(
            target=None if kind is None else self._nearby[kind].cache(namespace).get((namespace, target.name)),
            service=self._nearby[SERVICE].cache(namespace).get((namespace, spec.service.name)),
            is_known_kind=kind is not None,
            scalers=list(self._nearby[HORIZONTAL_POD_AUTOSCALER].cache(namespace).values()),
            others=[other for place, other in self._workloads.cache.items() if place != key],
            is_revision=self._is_revision(key),
            schedule_problems=_schedule_problems(workload),
            holders={host: holder for host in spec.all_hosts if (holder := self._holder(namespace, host)) is not None},
        )


def _schedule_problems(workload: Object) -> tuple[Problem, ...]:
    body = schedules_as_policy(workload)
    if body is None:
        return ()
    return tuple(schedule_problems(msgspec.convert(body["spec"], ScalingPolicySpec)))


def _concerns(kind: Kind, name: str, workload: Object) -> bool:
    """Whether an object is the target or the Service of a workload; any HorizontalPodAutoscaler may scale its target."""
    try:
        spec = ScaledWorkloadSpec.from_object(workload)
    except SettingsError:
        return False
    if kind == HORIZONTAL_POD_AUTOSCALER:
        return True
    if kind == SERVICE:
        return name == spec.service.name
    return name == spec.target.name and kind == target_kind(spec.target.api_version, spec.target.kind)
