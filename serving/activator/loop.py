"""What goes on beside requests: watching the cluster, waking revisions, reporting load.

``ClusterView`` tells the ingress what Routes, Revisions and EndpointSlices there are, in the turn of the loop in which a
watch brings them, and flips revisions from Reserve to Active: one PATCH with the version that was seen; if the object has
changed since, it is read again and patched once more. A flip that fails comes again when ``wake.py`` says so. The
activator writes nothing else. ``CertificateWatch`` looks at files and Secrets for certificates, each period anew.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from serving.activator.client import StatsClient
from serving.activator.domains import DomainTargets
from serving.activator.outcome import Outcome, Wake
from serving.activator.revisions import RevisionFacts, SliceFacts, revision_of, slice_of
from serving.activator.routes import RouteFacts, route_of
from serving.activator.server import Ingress
from serving.aio.periodic import every
from serving.cluster.kinds import DOMAIN_MAPPING, ENDPOINT_SLICE, REVISION, ROUTE, SECRET
from serving.cluster.port import Cluster, EventType, Object
from serving.cluster.reflector import CacheChange, Reflector
from serving.model.errors import ClusterError, Conflict, InvalidCertificate, NotFound
from serving.model.knative import REVISION_LABEL, RevisionKey, ServingState
from serving.model.nodata import NoData
from serving.proxy.exchange import Exchange
from serving.proxy.tls.certificate import Pair
from serving.proxy.tls.files import CertificateFiles
from serving.proxy.tls.keeper import Certificates
from serving.settings.autoscaler import AutoscalerSettings
from serving.settings.tls import TlsSettings

__all__ = ["CertificateWatch", "ClusterView", "report_loads"]

_log = logging.getLogger("activator")

_TLS_TYPE = "kubernetes.io/tls"


class ClusterView:
    """The cluster as an ingress sees it. ``run`` it; ``flip`` and ``synced`` work while it runs."""

    def __init__(
        self, cluster: Cluster, ingress: Ingress, scaling: AutoscalerSettings, *, clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._ingress = ingress
        self._scaling = scaling
        self._clock = clock
        self._group: asyncio.TaskGroup | None = None
        self._flipping: set[RevisionKey] = set()
        # Slices of other Services are none of ours.
        slices = Reflector(cluster, ENDPOINT_SLICE, label_selector=REVISION_LABEL)
        revisions, routes = Reflector(cluster, REVISION), Reflector(cluster, ROUTE)
        revisions.on_change(self._revision_changed)
        slices.on_change(self._slice_changed)
        routes.on_change(self._route_changed)
        self._revisions = revisions
        mappings = Reflector(cluster, DOMAIN_MAPPING)
        mappings.on_change(self._mapping_changed)
        self._reflectors = (revisions, slices, routes, mappings)
        self._domains = DomainTargets()
        self.on_secrets: Callable[[Mapping[str, tuple[str, str]]], None] | None = None
        """Called with the Secret of each mapped host whenever mappings change."""

    def __repr__(self) -> str:
        return f"ClusterView({self._ingress!r}, {len(self._flipping)} flips)"

    @property
    def is_flipping(self) -> bool:
        """Whether a revision is being made Active."""
        return bool(self._flipping)

    def reconfigure(self, scaling: AutoscalerSettings) -> None:
        """Resolve the targets of all revisions from these settings, soon."""
        if scaling != self._scaling:
            self._scaling = scaling
            self._revisions.tell_again()

    async def synced(self) -> None:
        """Wait until everything has been seen once."""
        for reflector in self._reflectors:
            await reflector.synced.wait()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name=f"activator {reflector!r}")

    def flip(self, wake: Wake) -> None:
        """Make a revision Active, if that is not being done already."""
        if self._group is None or wake.key in self._flipping:
            return
        self._flipping.add(wake.key)
        self._group.create_task(self._flip(wake.key, wake.resource_version), name=f"flip {wake.key[1]}")

    async def _flip(self, key: RevisionKey, resource_version: str) -> None:
        try:
            try:
                after = await self._patch(key, resource_version)
            except Conflict:
                after = await self._cluster.get(REVISION, *key)
                self._revision_seen(after)
                facts = revision_of(after, self._scaling)
                if isinstance(facts, NoData) or facts.serving_state is not ServingState.RESERVE:
                    return
                after = await self._patch(key, facts.resource_version)
            _log.info("revision.activated", extra={"namespace": key[0], "revision": key[1]})
            self._revision_seen(after)
        except NotFound:
            # The watch tells of it, and who waits is sent away.
            return
        except ClusterError as error:
            _log.warning(
                "revision.activation-failed", extra={"namespace": key[0], "revision": key[1], "error": str(error)}
            )
        finally:
            self._flipping.discard(key)

    async def _patch(self, key: RevisionKey, resource_version: str) -> Object:
        patch = {
            "metadata": {"resourceVersion": resource_version},
            "spec": {"servingState": ServingState.ACTIVE.value},
        }
        return await self._cluster.patch(REVISION, *key, patch=patch)

    def _revision_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self._ingress.routes.remove_revision(change.key)
            self._apply(self._ingress.desk.remove_revision(change.key, self._clock()))
        else:
            self._revision_seen(change.new)

    def _revision_seen(self, found: Object) -> None:
        facts = revision_of(found, self._scaling)
        if isinstance(facts, RevisionFacts):
            self._ingress.routes.set_revision(facts.key)
            self._apply(self._ingress.desk.set_revision(facts, self._clock()))
        else:
            _unreadable("Revision", found, facts)

    def _slice_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self._apply(self._ingress.desk.remove_slice("/".join(change.key), self._clock()))
            return
        facts = slice_of(change.new)
        if isinstance(facts, SliceFacts):
            self._apply(self._ingress.desk.set_slice(facts, self._clock()))
        else:
            _unreadable("EndpointSlice", change.new, facts)

    def _mapping_changed(self, change: CacheChange) -> None:
        if self._domains.put(change.key, None if change.type is EventType.DELETED else change.new):
            self._ingress.routes.set_domains(self._domains.hosts)
            if self.on_secrets is not None:
                self.on_secrets(self._domains.secrets)

    def _route_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self._ingress.routes.remove("/".join(change.key))
            return
        facts = route_of(change.new)
        if isinstance(facts, RouteFacts):
            self._ingress.routes.set(facts)
        else:
            _unreadable("Route", change.new, facts)

    def _apply(self, outcome: Outcome[Exchange]) -> None:
        self._ingress.apply(outcome)


class CertificateWatch:
    """The certificates of the TLS listener, kept as files and Secrets are.

    The Secrets of the settings are in ``namespace``, the system's; those of DomainMappings are in their own.
    """

    def __init__(self, settings: TlsSettings, cluster: Cluster, *, namespace: str) -> None:
        self.certificates = Certificates(default=settings.default_certificate, handshake_max_s=settings.handshake_max_s)
        self._settings = settings
        self._cluster = cluster
        self._namespace = namespace
        self._files = CertificateFiles(pairs=settings.pairs, folder=settings.folder)
        self._failures_told = 0
        self._mapped: Mapping[str, tuple[str, str]] = {}
        self._news = asyncio.Event()
        self.turn = 0
        """How often all has been looked at."""

    def __repr__(self) -> str:
        return f"CertificateWatch({self.certificates!r})"

    def set_mapped(self, secrets: Mapping[str, tuple[str, str]]) -> None:
        """Serve the certificates of DomainMappings: namespace and name of a Secret by host. They are read at once."""
        if secrets != self._mapped:
            self._mapped = secrets
            self._news.set()

    async def run(self, stop: asyncio.Event, *, looked: Callable[[], Awaitable[None]]) -> None:
        """Look at everything each period and whenever mappings change, until ``stop`` is set; call ``looked`` each time."""

        def on_error(error: Exception) -> None:
            _log.error("certificates.failed", exc_info=error)

        async def look() -> None:
            await self.look()
            await looked()

        async def look_at_news() -> None:
            while True:
                await self._news.wait()
                self._news.clear()
                try:
                    await look()
                except Exception as error:  # noqa: BLE001 - the next look may succeed
                    on_error(error)

        async with asyncio.TaskGroup() as group:
            news = group.create_task(look_at_news(), name="certificates of mappings")
            await every(self._settings.reload_period_s, look, stop=stop, on_error=on_error)
            news.cancel()

    async def look(self) -> None:
        """Serve what is there now. What cannot be read stays as it was, and is told once."""
        secrets = {name: await self._secret(self._namespace, name) for name in self._settings.secret_names}
        for host, (namespace, name) in self._mapped.items():
            found = await self._secret(namespace, name)
            # For its own host only: its names must not take the hosts of other namespaces.
            mapped = found if isinstance(found, InvalidCertificate) else msgspec.structs.replace(found, hosts=(host,))
            secrets[f"DomainMapping {namespace}/{host}"] = mapped
        # A certificate is tried by a handshake, some milliseconds that requests would wait.
        await asyncio.to_thread(lambda: self.certificates.update(self._files.read() | secrets))
        self.turn += 1
        failures = self.certificates.failures
        if failures.total() != self._failures_told:
            # One line for all of a period: whoever fails on purpose does not fill the log.
            _log.info("tls.handshakes-failed", extra={"since_start": dict(failures)})
            self._failures_told = failures.total()

    async def _secret(self, namespace: str, name: str) -> Pair | InvalidCertificate:
        where = f"Secret {namespace}/{name}"
        try:
            found = await self._cluster.get(SECRET, namespace, name)
        except ClusterError as error:
            return InvalidCertificate(where=where, reason=str(error))
        if found.get("type") != _TLS_TYPE:
            return InvalidCertificate(where=where, reason=f"its type is {found.get('type')}, not {_TLS_TYPE}")
        data = found.get("data") or {}
        try:
            certificate, key = (base64.b64decode(data[part], validate=True) for part in ("tls.crt", "tls.key"))
        except KeyError as error:
            return InvalidCertificate(where=where, reason=f"it has no {error.args[0]}")
        except (binascii.Error, TypeError):
            return InvalidCertificate(where=where, reason="its data is not base64")
        return Pair(where=where, certificate_pem=certificate, key_pem=key)


async def report_loads(
    ingress: Ingress, client: StatsClient, *, period_s: float, clock: Callable[[], float], stop: asyncio.Event
) -> None:
    """Tell the autoscaler the load of all revisions, once a period, until ``stop`` is set."""

    async def beat() -> None:
        client.tell(ingress.desk.report(clock()))
        ingress.tick_soon()

    def on_error(error: Exception) -> None:
        _log.error("report.failed", exc_info=error)

    await every(period_s, beat, stop=stop, on_error=on_error)


def _unreadable(kind: str, found: Object, why: NoData) -> None:
    _log.error(
        "object.unreadable", extra={"kind": kind, "object": found["metadata"].get("name"), "missing": why.missing}
    )
