"""The controller at work: what watches bring goes into ``ControllerCache``, what it decides is written through the port.

One reflector for each kind, one queue of keys, a few workers. A key is decided on what is known when its turn comes, and
its writes are made in their order; what the server answers is known at once, so that the next decision does not wait for
the watch. A conflict means that something has changed that is not known yet: the key comes again shortly. What the server
refuses for good is told in the status. Nothing is remembered that a restart would miss.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict

from serving.aio.clock import now_s, stamp, wall_s
from serving.aio.cooperative import turn
from serving.aio.periodic import every
from serving.cluster.identity import system_namespace
from serving.cluster.kinds import EVENT, KINDS, Kind
from serving.cluster.port import Cluster, EventType, Object
from serving.cluster.reflector import CacheChange, Reflector
from serving.cluster.workqueue import WorkQueue, WorkQueueSettings
from serving.controller.activators import ACTIVATOR_SERVICE
from serving.controller.cache import ControllerCache, WorkKey
from serving.controller.events import event_name, note_event
from serving.controller.public import MANAGED_BY, MANAGER, SERVICE_NAME
from serving.controller.settingsnotes import httproutes_missing, httproutes_note
from serving.controller.sidecar import Sidecar
from serving.controller.writes import Create, Delete, Note, Patch, ResourceKind, Write, WritePlan
from serving.metrics.controller import ControllerMetrics
from serving.model.errors import AlreadyExists, ClusterError, Conflict, Forbidden, Invalid, NotFound
from serving.model.event import repeated
from serving.model.objects import name_of, namespace_of, version_of
from serving.settings.autoscaler import AutoscalerSettings
from serving.settings.controller import ControllerSettings

__all__ = ["Controller"]

_log = logging.getLogger(__name__)

_KINDS: dict[ResourceKind, Kind] = {
    ResourceKind(kind.resource): kind for kind in KINDS if kind.resource in set(ResourceKind)
}
# Changes of children that come within this time are told together.
_COMPANY_S = 0.05
# Keys that are woken in one step: 1 µs each.
_WOKEN_AT_ONCE_MAX = 256
# Events of which the count is known without asking; the rest is asked for.
_EVENTS_KNOWN_MAX = 1024
# How often to look for the definition of HTTPRoutes, where it is not.
_LOOK_AGAIN_S = 2.0


class Controller:
    """What runs as one: cache, queue, and the hand that writes."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        settings: ControllerSettings | None = None,
        scaling: AutoscalerSettings | None = None,
        sidecar: Sidecar | None = None,
        metrics: ControllerMetrics | None = None,
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._settings, self._scaling = settings or ControllerSettings(), scaling or AutoscalerSettings()
        self._cache = ControllerCache(self._settings, self._scaling, sidecar=sidecar)
        patience = WorkQueueSettings(retry_max_s=self._settings.retry_delay_max_s)
        self._queue: WorkQueue[WorkKey] = WorkQueue("controller", settings=patience, on_error=_log_failure)
        self._counted_s: dict[WorkKey, float] = {}
        self._waiting_s: dict[WorkKey, float] = {}
        self._crowds: asyncio.Queue[set[WorkKey]] = asyncio.Queue()
        self._notes: asyncio.Queue[Note] = asyncio.Queue()
        self._told: OrderedDict[tuple[str, str], Object] = OrderedDict()
        self._reflectors = {resource: self._reflector(resource) for resource in ResourceKind if self._wants(resource)}
        self.writes_count = 0
        if metrics is not None:
            metrics.waiting = lambda: len(self._queue)
            metrics.writes = lambda: self.writes_count

    def __repr__(self) -> str:
        return f"Controller({self._cache}, {self._queue}, {self.writes_count} writes)"

    def reconfigure(self, settings: ControllerSettings, scaling: AutoscalerSettings) -> None:
        """Decide with these settings from now on, and look at everything with them."""
        if (settings, scaling) != (self._settings, self._scaling):
            self._settings, self._scaling = settings, scaling
            self._wake(self._cache.reconfigure(settings, scaling))

    def tell(self, note: Note) -> None:
        """Say something that no plan says, while it runs."""
        self._notes.put_nowait(note)

    async def settled(self) -> None:
        """Wait until nothing is left to be decided on what is known."""
        await self._queue.settled()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until told to stop; what is being written then is finished or comes again after a restart."""
        optional = self._reflectors.get(ResourceKind.HTTP_ROUTE)
        reflectors = [one for one in self._reflectors.values() if one is not optional]
        if self._settings.public_services:
            reflectors.append(self._activators())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one.run(), name=f"controller-{one}") for one in reflectors]
            known = [one.synced for one in reflectors]
            if optional is not None:
                known.append(asyncio.Event())
                following = self._follow_httproutes(optional, known[-1])
                tasks.append(group.create_task(following, name=f"controller-{optional}"))
            # Decided on half of what there is, a child that is not seen yet would be made twice.
            for one in known:
                await one.wait()
            tasks.append(
                group.create_task(self._queue.run(self._settings.workers, self._measured_work), name="controller-work")
            )
            tasks.append(group.create_task(self._tell_notes(), name="controller-notes"))
            tasks.append(group.create_task(self._wake_crowds(), name="controller-crowds"))
            await every(self._settings.resync_period_s, self._resync, stop=stop, on_error=_log_resync)
            for task in tasks:
                task.cancel()

    def _wants(self, resource: ResourceKind) -> bool:
        match resource:
            case ResourceKind.ENDPOINT_SLICE:
                return self._settings.public_services
            case ResourceKind.HTTP_ROUTE:
                return bool(self._settings.gateway)
            case _:
                return True

    def _reflector(self, resource: ResourceKind) -> Reflector:
        def changed(change: CacheChange) -> None:
            if change.type is EventType.DELETED:
                self._wake(self._cache.drop(resource, change.key), of=resource)
            else:
                self._wake(self._cache.put(resource, change.new), of=resource)

        selector = f"{MANAGED_BY}={MANAGER}" if resource is ResourceKind.ENDPOINT_SLICE else ""
        reflector = Reflector(self._cluster, _KINDS[resource], label_selector=selector)
        reflector.on_change(changed)
        return reflector

    async def _follow_httproutes(self, reflector: Reflector, known: asyncio.Event) -> None:
        """Follow HTTPRoutes from when the server has them. ``known`` is set once it is clear whether it has."""
        while True:
            try:
                await self._cluster.list(_KINDS[ResourceKind.HTTP_ROUTE], page_size=1)
                break
            except (NotFound, Forbidden) as error:
                why = httproutes_missing(self._settings.gateway, error)
                if not known.is_set():
                    _log.error("controller.no_httproutes", extra={"error": why})
                    self.tell(httproutes_note(system_namespace(), why))
                self._wake(self._cache.set_httproutes_missing(why))
                known.set()
            except ClusterError as error:
                _log.warning("controller.httproutes_unknown", extra={"error": str(error)})
            await asyncio.sleep(_LOOK_AGAIN_S)
        async with asyncio.TaskGroup() as group:
            group.create_task(reflector.run(), name="controller-httproutes")
            await reflector.synced.wait()
            self._wake(self._cache.set_httproutes_missing(""))
            known.set()

    def _activators(self) -> Reflector:
        """Follows who the activators are."""

        def changed(change: CacheChange) -> None:
            if change.type is EventType.DELETED:
                self._wake(self._cache.drop_activators(change.key))
            else:
                self._wake(self._cache.put_activators(change.key, change.new))

        reflector = Reflector(
            self._cluster,
            _KINDS[ResourceKind.ENDPOINT_SLICE],
            system_namespace(),
            label_selector=f"{SERVICE_NAME}={ACTIVATOR_SERVICE}",
        )
        reflector.on_change(changed)
        return reflector

    def _wake(self, keys: set[WorkKey], *, of: ResourceKind | None = None) -> None:
        if len(keys) > _WOKEN_AT_ONCE_MAX:
            self._crowds.put_nowait(keys)
            return
        for key in keys:
            self._queue.add_after(key, _company_s(key[0], of))

    async def _wake_crowds(self) -> None:
        """Wake many, a few at a time: new settings and other activators concern everybody."""
        while True:
            for key in await self._crowds.get():
                self._queue.add(key)
                await turn()

    async def _resync(self) -> None:
        """Look at what gets older by itself, and forget what no watch knows of: a creation that was undone unseen."""
        for resource, reflector in self._reflectors.items():
            for _, namespace, name in self._cache.keys(resource):
                if (namespace, name) not in reflector.cache:
                    self._wake(self._cache.drop(resource, (namespace, name)))
                await turn()
        self._wake(set(self._cache.keys(ResourceKind.CONFIGURATION)))

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
            self._metrics.looked(key[0].value, time.perf_counter() - begun_s, result)
        return again_after_s

    async def _work(self, key: WorkKey) -> float | None:
        """One decision about one resource, carried out; returns when to look again."""
        at_s = wall_s()
        plan = self._cache.decide(key, now=stamp(at_s), now_s=at_s)
        if plan.company_s:
            rest_s = self._waiting_s.setdefault(key, now_s()) + plan.company_s - now_s()
            if rest_s > 0:
                return rest_s
        self._waiting_s.pop(key, None)
        if plan.can_wait:
            rest_s = self._counted_s.get(key, 0.0) + self._settings.count_period_s - now_s()
            if rest_s > 0:
                return rest_s
            self._counted_s[key] = now_s()
        await self._carry_out(key, plan)
        for note in plan.notes:
            await self._tell(note)
        if self._cache.get(key[0], (key[1], key[2])) is None:
            self._counted_s.pop(key, None)
        return plan.again_after_s

    async def _carry_out(self, key: WorkKey, plan: WritePlan) -> None:
        # What this plan has made of an object: its next patch is fenced by that, and not by what was known before.
        versions: dict[WorkKey, str] = {}
        for write in plan.writes:
            try:
                await self._write(write, versions)
            except AlreadyExists:
                # Made before, and not seen yet; its arrival wakes this key.
                _log.debug("controller.already_exists", extra={"key": str(key)})
            except NotFound:
                _log.debug("controller.gone", extra={"key": str(key)})
            except Invalid as error:
                if not isinstance(write, Create):
                    raise
                _log.warning("controller.refused", extra={"key": str(key), "error": str(error)})
                self._wake(self._cache.refuse(key, str(error)))

    async def _write(self, write: Write, versions: dict[WorkKey, str]) -> None:
        self.writes_count += 1
        kind = _KINDS[write.resource]
        match write:
            case Create(body=body):
                written = await self._cluster.create(kind, body)
                self._wake(self._cache.put_written(write.resource, written))
                extra = {"kind": write.resource.value, "namespace": namespace_of(body), "object": name_of(body)}
                _log.info("controller.created", extra=extra)
            case Patch(namespace=namespace, name=name):
                written = await self._cluster.patch(
                    kind, namespace, name, patch=_fenced(write, versions), subresource=write.subresource
                )
                versions[write.resource, namespace, name] = version_of(written)
                woken = self._cache.put_written(write.resource, written)
                if write.resource is ResourceKind.REVISION and write.subresource == "status":
                    # Decided on what is known, its status says what was decided: nothing to look at again.
                    woken.discard((write.resource, namespace, name))
                self._wake(woken)
            case Delete(namespace=namespace, name=name, uid=uid, resource_version=version):
                await self._cluster.delete(kind, namespace, name, uid=uid, resource_version=version)
                _log.info(
                    "controller.deleted", extra={"kind": write.resource.value, "namespace": namespace, "object": name}
                )

    async def _tell_notes(self) -> None:
        while True:
            await self._tell(await self._notes.get())

    async def _tell(self, note: Note) -> None:
        """Make an Event, or count one more. What cannot be told is logged: nobody's work hangs on it."""
        now = stamp()
        namespace, name = namespace_of(note.about), event_name(note)
        try:
            before = self._told.get((namespace, name))
            if before is None:
                with contextlib.suppress(AlreadyExists):
                    self.writes_count += 1
                    self._remember(await self._cluster.create(EVENT, note_event(note, now=now)))
                    return
                before = await self._cluster.get(EVENT, namespace, name)
            self.writes_count += 1
            patch = repeated(before, now=now)
            self._remember(await self._cluster.patch(EVENT, namespace, name, patch=patch))
        except ClusterError as error:
            self._told.pop((namespace, name), None)
            _log.warning(
                "controller.untold", extra={"reason": note.reason, "message_": note.message, "error": str(error)}
            )

    def _remember(self, event: Object) -> None:
        self._told[namespace_of(event), name_of(event)] = event
        while len(self._told) > _EVENTS_KNOWN_MAX:
            self._told.popitem(last=False)


def _company_s(resource: ResourceKind, of: ResourceKind | None) -> float:
    """How long a resource waits for company of a change, of which kind ever: what sums up others tells of all at once."""
    match resource, of:
        case ResourceKind.SERVICE, _ if of is not ResourceKind.SERVICE:
            return _COMPANY_S
        case ResourceKind.REVISION, ResourceKind.POD | ResourceKind.DEPLOYMENT:
            return _COMPANY_S
        case _:
            return 0.0


def _fenced(write: Patch, versions: dict[WorkKey, str]) -> Object:
    version = versions.get((write.resource, write.namespace, write.name))
    if version is None:
        return write.patch
    return {**write.patch, "metadata": {**write.patch["metadata"], "resourceVersion": version}}


def _log_failure(key: WorkKey, error: Exception) -> None:
    if isinstance(error, Conflict):
        _log.debug("controller.conflict", extra={"key": str(key)})
    elif isinstance(error, ClusterError):
        _log.warning("controller.failed", extra={"key": str(key), "error": str(error)})
    else:
        _log.error("controller.failed", extra={"key": str(key), "error": str(error)}, exc_info=error)


def _log_resync(error: Exception) -> None:
    _log.error("controller.resync_failed", extra={"error": str(error)}, exc_info=error)
