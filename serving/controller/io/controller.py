"""Runs the controller: reflectors fill the cache, workers decide about queued keys, and a writer executes the plans.

A worker decides on a key with the present state, and makes the writes in order. The server's responses enter the cache
immediately. A conflict means that the object has changed; the key is then retried shortly. The controller has no state
that a restart would lose.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from serving.controller.cache import ControllerCache, activator_pages
from serving.controller.decide import decide
from serving.controller.io.digest_resolver import DigestResolver
from serving.controller.io.plan_writer import NoteWriter, PlanWriter, UnreadWrites
from serving.controller.io.rollout_watcher import RolloutWatcher
from serving.controller.io.route_prober import RouteProber
from serving.controller.io.sources import CacheSources, settings_notes
from serving.controller.revisions.concurrency import ConcurrencyLimit
from serving.controller.revisions.revision import revision_debounce_s
from serving.controller.revisions.sidecar import Sidecar
from serving.controller.values.naming import deployment_name
from serving.controller.values.writes import (
    DEBOUNCE_S,
    Note,
    WaitingWrites,
    WorkKey,
    WritePlan,
    text_of,
)
from serving.core.model.errors import ClusterError, Conflict, Unavailable
from serving.core.model.objects import Key, Object
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.daemons import AUTOSCALER, CONTROLLER, DAEMONS, ELECTION
from serving.core.settings.live import AppliedConfigMap, LiveSettings
from serving.core.settings.queueproxy import QUEUEPROXY, QueueProxySettings
from serving.net.aio.clock import now_s, stamp, wall_s
from serving.net.aio.cooperative import turn
from serving.net.aio.mutualtls import DaemonQueries
from serving.net.aio.periodic import every
from serving.net.aio.supervise import supervise
from serving.net.cluster import kinds
from serving.net.cluster.configmaps import ConfigMapWatch
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Cluster
from serving.net.cluster.reflector import objects_map
from serving.net.cluster.schedules import schedule_problems
from serving.net.cluster.workqueue import WorkQueue, WorkQueueSettings
from serving.net.metrics.controller import ControllerMetrics
from serving.net.metrics.queries import QueryGate

_log = logging.getLogger(__name__)

# The kinds that change together when a revision wakes or rests.
_QUICK_KINDS = (kinds.REVISION, kinds.DEPLOYMENT, kinds.POD)
# Keys enqueued per step, at 1 µs each.
_WOKEN_AT_ONCE_MAX = 256


class Controller:
    """The cache, queue and writers of one controller."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        settings: ControllerSettings | None = None,
        scaling: AutoscalerSettings | None = None,
        sidecar: Sidecar | None = None,
        metrics: ControllerMetrics | None = None,
        statuses: UnreadWrites | None = None,
    ) -> None:
        self._metrics = metrics
        self._statuses = statuses
        self._settings = settings or ControllerSettings()
        self._scaling = scaling or AutoscalerSettings()
        objects = functools.partial(objects_map, cluster)
        self._cache = ControllerCache(
            self._settings,
            self._scaling,
            sidecar=sidecar,
            system_namespace=system_namespace(),
            check_schedules=schedule_problems,
            objects_map=objects,
            counts_pods=statuses is not None,
        )
        retries = WorkQueueSettings(retry_max_s=self._settings.retry_delay_max_s)
        self._queue: WorkQueue[WorkKey] = WorkQueue("controller", settings=retries, on_error=_log_failure)
        self._waiting = WaitingWrites()
        self._crowd: set[WorkKey] = set()
        self._has_crowd = asyncio.Event()
        self._events = NoteWriter(cluster)
        self._limit = ConcurrencyLimit(low=self._settings.workers, high=self._settings.workers_max)
        is_strict = sidecar is not None and sidecar.inner_tls.is_strict
        queries = DaemonQueries.over_tls(sidecar.authority) if sidecar is not None and is_strict else DaemonQueries()
        self._prober = RouteProber(
            addresses=self._cache.activator_addresses,
            confirmed=lambda route, digest: self._wake(self._cache.confirm(route, digest)),
            queries=queries,
        )
        self._watcher = RolloutWatcher(
            addresses=functools.partial(activator_pages, self._cache),
            headers=QueryGate.of_environment().headers,
            judged=lambda route, judgements: self._wake(self._cache.judge(route, judgements)),
            queries=queries,
        )
        self._resolver = DigestResolver(
            cluster,
            settings=lambda: self._settings,
            resolved=lambda revision, uid, resolution: self._wake(self._cache.resolve(revision, uid, resolution)),
        )
        self._sources = CacheSources(
            cluster, self._cache, settings=self._settings, wake=self._wake_of, note=self._events.enqueue
        )
        self._writer = PlanWriter(cluster, self._cache, wake=self._wake, on_call=self._record_call)

    @property
    def waiting_count(self) -> int:
        """Resources that wait for a decision."""
        return len(self._queue)

    @property
    def writes_count(self) -> int:
        """Objects created, patched or deleted, including Events."""
        return self._writer.writes_count + self._events.writes_count

    def reconfigure(
        self, settings: ControllerSettings, scaling: AutoscalerSettings, proxy: QueueProxySettings | None = None
    ) -> None:
        """Apply new settings, and decide on every resource again.

        ``proxy`` are the settings of queue-proxies that are containers; None keeps the present settings.
        """
        sidecar = self._cache.sidecar
        has_other_proxy = sidecar is not None and proxy not in (None, sidecar.proxy)
        if has_other_proxy or (settings, scaling) != (self._settings, self._scaling):
            self._settings = settings
            self._scaling = scaling
            self._wake(self._cache.reconfigure(settings, scaling, proxy))

    def report(self, note: Note) -> None:
        """Write an Event that is not part of a plan."""
        self._events.enqueue(note)

    async def settled(self) -> None:
        """Wait until the queue of keys is empty."""
        await self._queue.settled()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set. A write that is interrupted is repeated after a restart."""
        async with supervise() as group:
            tasks = [
                group.start(self._sources.run(), name="controller-sources"),
                group.start(self._prober.run(), name="controller-prober"),
                group.start(self._watcher.run(), name="controller-watcher"),
            ]
            if self._cache.sidecar is not None:
                # On a single machine the kubelet pins the images of a revision.
                tasks.append(group.start(self._resolver.run(), name="controller-resolver"))
            await self._sources.synced.wait()
            tasks += [
                group.start(
                    self._queue.run(self._settings.workers_max, self._measured_work, limit=lambda: self._limit.limit),
                    name="controller-work",
                ),
                group.start(self._events.run(), name="controller-events"),
                group.start(self._wake_crowds(), name="controller-crowds"),
            ]
            await every(self._settings.resync_period_s, self._resync, stop=stop, on_error=_log_resync)
            for task in tasks:
                task.cancel()

    def _record_call(self, duration_s: float, error: ClusterError | None) -> None:
        if isinstance(error, Unavailable):
            self._limit.record_refusal(now_s=now_s())
        else:
            self._limit.record_call(duration_s, active_count=self._queue.active_count, now_s=now_s())

    def _wake(self, keys: set[WorkKey]) -> None:
        self._wake_of(keys, None)

    def _wake_of(self, keys: set[WorkKey], changed: Kind | None) -> None:
        """Enqueue keys after a change of an object of kind ``changed``; None for a change without an object."""
        if len(keys) > _WOKEN_AT_ONCE_MAX:
            self._crowd |= keys
            self._has_crowd.set()
            return
        for key in keys:
            if key[0] is kinds.REVISION and changed in _QUICK_KINDS:
                revision = self._cache.get(key[0], (key[1], key[2]))
                deployment = self._cache.get(kinds.DEPLOYMENT, (key[1], deployment_name(key[2])))
                count_period_s = self._settings.count_period_s
                debounce_s = revision_debounce_s(revision, deployment, changed, count_period_s=count_period_s)
                # Only the number of pods changes, which no decision uses.
                is_last = debounce_s > DEBOUNCE_S
            else:
                debounce_s, is_last = _debounce_s(key[0], changed), False
            self._queue.add_after(key, debounce_s, is_last=is_last)

    async def _wake_crowds(self) -> None:
        """Enqueue the keys in ``_crowd`` until cancelled, after each key letting other tasks run.

        New settings or activators affect every resource, and so enqueue all keys.
        """
        while True:
            await self._has_crowd.wait()
            self._has_crowd.clear()
            while self._crowd:
                self._queue.add(self._crowd.pop())
                await turn()

    async def _resync(self) -> None:
        self._wake(set(self._cache.keys(kinds.CONFIGURATION)))

    async def _measured_work(self, key: WorkKey) -> float | None:
        if self._metrics is None:
            return await self._work(key)
        begun_s, result = time.perf_counter(), "failed"
        try:
            again_after_s = await self._work(key)
            result = "done"
        except Conflict:
            result = "conflict"
            raise
        finally:
            self._metrics.count_reconciliation(key[0].resource, time.perf_counter() - begun_s, result)
        return again_after_s

    async def _work(self, key: WorkKey) -> float | None:
        """Decide on one resource and execute the plan; return the seconds until the next decision.

        None: the next decision follows only after a change. Writes of the plan may be delayed until the next decision.
        """
        plan = self._decide(key)
        if self._statuses is not None:
            self._statuses.cancel(key)
            if plan.is_scale and self._statuses.delay(key, functools.partial(self._write_scale, key)):
                plan = msgspec.structs.replace(plan, writes=(), debounce_s=0.0)
        if key[0] is kinds.REVISION:
            self._resolve((key[1], key[2]), plan.unresolved)
        if rest_s := self._waiting.rest_s(key, plan.debounce_s, now_s=now_s()):
            self._queue.add_after(key, min(rest_s, plan.again_after_s or rest_s), is_last=True)
            return None
        await self._writer.carry_out(key, plan)
        for note in plan.notes:
            await self._events.write(note)
        if key[0] is kinds.ROUTE:
            self._probe(key, plan.unconfirmed)
            self._watcher.update((key[1], key[2]), plan.watch)
        return plan.again_after_s

    def _decide(self, key: WorkKey) -> WritePlan:
        at_s = wall_s()
        return decide(self._cache, key, now=stamp(at_s), now_s=at_s)

    async def _write_scale(self, key: WorkKey) -> None:
        plan = self._decide(key)
        if plan.is_scale:
            # The change behind a conflict causes another decision.
            with contextlib.suppress(Conflict):
                await self._writer.carry_out(key, plan)

    def _resolve(self, revision: Key, images: Sequence[str]) -> None:
        known = self._cache.get(kinds.REVISION, revision)
        if known is not None and images:
            self._resolver.start(known, images)
        else:
            self._resolver.forget(revision)

    def _probe(self, key: WorkKey, digest: str) -> None:
        route = (key[1], key[2])
        if digest:
            self._prober.start(route, digest)
        else:
            self._prober.forget(route)


def _debounce_s(kind: Kind, changed: Kind | None) -> float:
    """Seconds to wait for further changes of a resource, which are then handled together."""
    is_owner = kind is kinds.SERVING_SERVICE and changed is not kinds.SERVING_SERVICE
    return DEBOUNCE_S if is_owner or kind is kinds.SCALED_WORKLOAD else 0.0


def _log_failure(key: WorkKey, error: Exception) -> None:
    if isinstance(error, Conflict):
        _log.debug("controller.conflict", extra={"key": text_of(key)})
    elif isinstance(error, ClusterError):
        _log.warning("controller.failed", extra={"key": text_of(key), "error": str(error)})
    else:
        _log.error("controller.failed", extra={"key": text_of(key), "error": str(error)}, exc_info=error)


def _log_resync(error: Exception) -> None:
    _log.error("controller.resync_failed", extra={"error": str(error)}, exc_info=error)


class ControllerConfig:
    """The live settings of controller, autoscaler and queue-proxies.

    Raises ``SettingsError`` if the environment is invalid.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.own = LiveSettings(CONTROLLER, registry=DAEMONS, environment=environment)
        self.scaling = LiveSettings(AUTOSCALER, registry=DAEMONS, environment=environment)
        self.proxy = LiveSettings(QUEUEPROXY, registry=DAEMONS, environment=environment)
        self.election = LiveSettings(ELECTION, registry=DAEMONS, environment=environment)
        others = [daemon for daemon in DAEMONS if daemon not in (CONTROLLER, AUTOSCALER, QUEUEPROXY, ELECTION)]
        self.all: list[LiveSettings[Any]] = [
            self.own,
            self.scaling,
            self.proxy,
            self.election,
            *(LiveSettings(other, registry=DAEMONS, environment={}) for other in others),
        ]

    @contextlib.contextmanager
    def applied_to(self, controller: Controller, watch: ConfigMapWatch) -> Iterator[None]:
        """While the context is open, apply changed settings to a controller and report them.

        Rejections from before are reported first.
        """

        def on_applied(applied: AppliedConfigMap, config_map: Object) -> None:
            if applied.changed and applied.daemon in (CONTROLLER.name, AUTOSCALER.name, QUEUEPROXY.name):
                controller.reconfigure(self.own.settings, self.scaling.settings, self.proxy.settings)
            for note in settings_notes(applied, config_map):
                controller.report(note)

        controller.reconfigure(self.own.settings, self.scaling.settings, self.proxy.settings)
        for applied, config_map in watch.refused.values():
            for note in settings_notes(applied, config_map):
                controller.report(note)
        with watch.reported_to(on_applied):
            yield
