"""The reflectors that fill the controller's cache, and the notes about ConfigMaps and optional kinds.

HTTPRoutes, Certificates and KEDA's kinds are optional. While a server lacks their definitions, the list is retried.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence

from serving.controller.cache import ControllerCache
from serving.controller.keda.conversion import PAGE_LABEL
from serving.controller.revisions.public import ACTIVATOR_SERVICE, MANAGED_BY, MANAGER, SERVICE_NAME
from serving.controller.values.writes import KEDA_ROUTES, WATCHED_KINDS, Note, WorkKey
from serving.controller.workloads.rights import BINDING_SELECTOR, SELECTOR
from serving.core.model.errors import ClusterError, Forbidden, NotFound
from serving.core.model.objects import Object
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.live import AppliedConfigMap
from serving.net.aio.periodic import next_beat
from serving.net.aio.supervise import supervise
from serving.net.cluster import kinds
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import Kind
from serving.net.cluster.namespaced import NamespacedReflectors
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector
from serving.net.cluster.scalable import SCALES_PERIOD_S, ScalableKinds

# The ConfigMap whose setting needs the kind, and the reason of the Event without it.
_OPTIONAL = {
    kinds.HTTP_ROUTE: ("config-controller", "GatewayApiMissing"),
    kinds.CERTIFICATE: ("config-network", "CertManagerMissing"),
}
# A cluster has them with the component keda-http of config/. A KEDA of the cluster's own serves them itself.
_KEDA = (kinds.KEDA_SCALED_OBJECT, kinds.CONFIG_MAP, *KEDA_ROUTES)
_RIGHTS = (kinds.ROLE_BINDING, kinds.NAMESPACE)
_SELECTORS = {
    kinds.ENDPOINT_SLICE: f"{MANAGED_BY}={MANAGER}",
    kinds.CONFIG_MAP: PAGE_LABEL,
    kinds.NAMESPACE: SELECTOR,
    kinds.ROLE_BINDING: BINDING_SELECTOR,
}
# Followed in the namespaces of ScaledWorkloads only.
_NEARBY = (kinds.STATEFUL_SET, kinds.REPLICA_SET)

_log = logging.getLogger(__name__)

# Time between two checks for an optional kind, in seconds.
_OPTIONAL_RETRY_S = 2.0
_TOGETHER_RETRY_S = 30.0

Wake = Callable[[set[WorkKey], Kind | None], None]


def settings_notes(applied: AppliedConfigMap, config_map: Object) -> Iterator[Note]:
    """The messages, to be written as Events, about applying a ConfigMap to the settings of one daemon."""
    # Items of a list lack their kind.
    about = {**config_map, "apiVersion": "v1", "kind": "ConfigMap"}
    if applied.problems:
        problems = "; ".join(str(problem) for problem in applied.problems)
        message = f"The {applied.daemon} keeps the settings that it has: {problems}"
        yield Note(about=about, reason="SettingsRefused", message=message, warning=True)
    if applied.unknown:
        problems = "; ".join(str(problem) for problem in applied.unknown)
        message = f"Keys without effect, the others apply: {problems}"
        yield Note(about=about, reason="SettingsUnknown", message=message, warning=True)
    if applied.changed:
        message = f"The {applied.daemon} has taken over: {', '.join(applied.changed)}"
        yield Note(about=about, reason="SettingsChanged", message=message)
    if applied.waiting:
        message = f"The {applied.daemon} takes over when it is started again: {', '.join(applied.waiting)}"
        yield Note(about=about, reason="SettingsWaitForRestart", message=message, warning=True)


def missing_reason(kind: Kind, error: ClusterError, *, gateway: str) -> str:
    """Why the server has no Certificates or HTTPRoutes, from the error of a list."""
    what = f"{'does not know' if isinstance(error, NotFound) else 'does not let us list'} {kind.name}s"
    if kind is kinds.CERTIFICATE:
        setting = "Certificates of hosts are enabled in config-network"
        expected = "cert-manager, and the component cert-manager of config/"
    else:
        setting = f'Gateway "{gateway}" is set'
        expected = "the definitions of the Gateway API, and the component gateway of config/"
    return f"{setting}, and the server {what}; expected {expected}: {error}"


def missing_note(kind: Kind, namespace: str, why: str) -> Note:
    """The message that the server lacks a kind required by the settings. ``namespace`` is the system's."""
    name, reason = _OPTIONAL[kind]
    metadata = {"name": name, "namespace": namespace}
    about: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    return Note(about=about, reason=reason, message=why, warning=True)


class CacheSources:
    """The watches that fill the cache. ``run`` runs all; ``synced`` is set once the first lists are cached.

    ``wake`` is called with the keys that a change affects, and the kind of the changed object. ``note`` reports a
    missing API.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: ControllerCache,
        *,
        settings: ControllerSettings,
        wake: Wake,
        note: Callable[[Note], None],
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._gateway = settings.gateway
        self._wake = wake
        self._note = note
        self._reflectors = {kind: self._reflector(kind) for kind in WATCHED_KINDS if _wants(kind, settings)}
        self._activators = self._activator_reflector()
        self._nearby = [
            NamespacedReflectors(cluster, kind, on_change=functools.partial(self._changed, kind)) for kind in _NEARBY
        ]
        self._namespaces = frozenset[str]()
        self._kinds = ScalableKinds(cluster)
        self._has_others = asyncio.Event()
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """Watch all kinds until cancelled."""
        optional = {kind: self._reflectors[kind] for kind in _OPTIONAL if kind in self._reflectors}
        others = (*_OPTIONAL, *_KEDA, *_RIGHTS)
        required = [reflector for kind, reflector in self._reflectors.items() if kind not in others]
        required.append(self._activators)
        known = [reflector.synced for reflector in required]
        async with supervise() as group:
            for reflector in required:
                group.start(reflector.run(), name=f"controller-{reflector}")
            for reflectors in self._nearby:
                group.start(reflectors.run(), name=f"controller-{reflectors.kind.plural}")
            group.start(self._watch_together(_KEDA), name="controller-keda")
            group.start(self._watch_together(_RIGHTS), name="controller-rights")
            group.start(self._read_scales(), name="controller-scales")
            for kind, reflector in optional.items():
                known.append(asyncio.Event())
                following = self._watch_optional(kind, reflector, known[-1])
                group.start(following, name=f"controller-{reflector}")
            # A decision on an incomplete list could create a child twice.
            for event in known:
                await event.wait()
            for reflectors in self._nearby:
                await reflectors.synced()
            self.synced.set()

    def _changed(self, kind: Kind, change: CacheChange) -> None:
        is_gone = change.type is EventType.DELETED
        woken = self._cache.drop(kind, change.key) if is_gone else self._cache.put(kind, change.new)
        if kind is kinds.SCALED_WORKLOAD:
            self._choose_namespaces()
            self._has_others.set()
        self._wake(woken, kind)

    def _choose_namespaces(self) -> None:
        """Watch the targets of workloads in the workloads' namespaces."""
        namespaces = self._cache.indexes.workloads.namespaces
        if namespaces == self._namespaces:
            return
        self._namespaces = namespaces
        for reflectors in self._nearby:
            reflectors.choose(namespaces)
            for kind, namespace, name in self._cache.keys(reflectors.kind):
                if namespace not in namespaces:
                    self._cache.drop(kind, (namespace, name))

    def _reflector(self, kind: Kind) -> Reflector:
        reflector = Reflector(
            self._cluster,
            kind,
            label_selector=_SELECTORS.get(kind, ""),
            on_change=functools.partial(self._changed, kind),
            on_list=lambda version: self._wake(self._cache.apply_list(kind, reflector.cache, version=version), kind),
        )
        return reflector

    def _activator_reflector(self) -> Reflector:
        def changed(change: CacheChange) -> None:
            if change.type is EventType.DELETED:
                self._wake(self._cache.drop_activators(change.key), None)
            else:
                self._wake(self._cache.put_activators(change.key, change.new), None)

        return Reflector(
            self._cluster,
            kinds.ENDPOINT_SLICE,
            system_namespace(),
            label_selector=f"{SERVICE_NAME}={ACTIVATOR_SERVICE}",
            on_change=changed,
        )

    async def _read_scales(self) -> None:
        """Read the scales of targets whose kinds are not watched, until cancelled."""
        while True:
            await self._has_others.wait()
            others = [known for known in self._cache.indexes.workloads if known.spec and known.target[0] is None]
            for known in others:
                assert known.spec is not None
                # Without such a kind, or the right to read it, the status says so.
                with contextlib.suppress(ClusterError):
                    scale = await self._kinds.scale(known.spec.target, known.key[0])
                    self._wake(self._cache.put_scale(known.key, scale), None)
            if not others:
                self._has_others.clear()
            await next_beat(SCALES_PERIOD_S)

    async def _watch_together(self, wanted: Sequence[Kind]) -> None:
        """Watch some kinds once the server has them and permits the list."""
        while not await self._has(wanted):
            await next_beat(_TOGETHER_RETRY_S)
        async with supervise() as group:
            for kind in wanted:
                group.start(self._reflectors[kind].run(), name=f"controller-{kind.plural}")
                # A decision on a KEDA route needs all ScaledObjects and ConfigMaps, one on a RoleBinding all namespaces.
                await self._reflectors[kind].synced.wait()
            self._wake(self._cache.rights_keys() if kinds.ROLE_BINDING in wanted else set(), None)

    async def _has(self, wanted: Sequence[Kind]) -> bool:
        try:
            for kind in wanted:
                await self._cluster.list(kind, page_size=1)
        except ClusterError:
            return False
        return True

    async def _watch_optional(self, kind: Kind, reflector: Reflector, known: asyncio.Event) -> None:
        """Watch an optional kind if the server has it; then set ``known``."""
        while True:
            try:
                await self._cluster.list(kind, page_size=1)
                break
            except (NotFound, Forbidden) as error:
                why = missing_reason(kind, error, gateway=self._gateway)
                if not known.is_set():
                    _log.error("controller.kind_missing", extra={"kind": kind.resource, "error": why})
                    self._note(missing_note(kind, system_namespace(), why))
                self._wake(self._cache.set_missing(kind, why), None)
                known.set()
            except ClusterError as error:
                _log.warning("controller.kind_unknown", extra={"kind": kind.resource, "error": str(error)})
            await asyncio.sleep(_OPTIONAL_RETRY_S)
        async with supervise() as group:
            group.start(reflector.run(), name=f"controller-{kind.plural}")
            await reflector.synced.wait()
            self._wake(self._cache.set_missing(kind, ""), None)
            known.set()


def _wants(kind: Kind, settings: ControllerSettings) -> bool:
    match kind:
        case kinds.STATEFUL_SET | kinds.REPLICA_SET:
            return False
        case kinds.HTTP_ROUTE:
            return bool(settings.gateway)
        case kinds.CERTIFICATE:
            return settings.wants_certificates
        case _:
            return True
