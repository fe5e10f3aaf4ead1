"""Loads the TLS listener's certificates from files and Secrets, periodically and whenever DomainMappings change."""

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from serving.core.model.errors import ClusterError, InvalidCertificate
from serving.core.settings.tls import TlsSettings
from serving.net.aio.periodic import every
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import SECRET
from serving.net.cluster.port import Cluster
from serving.net.proxy.tls.certificate import Pair
from serving.net.proxy.tls.keeper import CertificateFiles, Certificates

_log = logging.getLogger("activator")

_TLS_TYPE = "kubernetes.io/tls"


class CertificateWatch:
    """Keeps the TLS listener's certificates in sync with files and Secrets.

    Secrets that the settings name are read from ``namespace``, the system's namespace. The Secret of a DomainMapping is
    read from the mapping's namespace.
    """

    def __init__(self, settings: TlsSettings, cluster: Cluster, *, namespace: str) -> None:
        self.certificates = Certificates(default=settings.default_certificate, handshake_max_s=settings.handshake_max_s)
        self._settings = settings
        self._cluster = cluster
        self._namespace = namespace
        self._files = CertificateFiles(pairs=settings.pairs, folder=settings.folder)
        self._failures_logged = 0
        self._mapped: Mapping[str, tuple[str, str]] = {}
        self._changed = asyncio.Event()
        self._reloading = asyncio.Lock()
        self.turn = 0
        """Number of reloads so far."""

    def set_mapped(self, secrets: Mapping[str, tuple[str, str]]) -> None:
        """Set the Secret (namespace, name) of each host with its own certificate, and reload immediately.

        The hosts are those of DomainMappings and of routes.
        """
        if secrets != self._mapped:
            self._mapped = secrets
            self._changed.set()

    async def run(self, stop: asyncio.Event, *, looked: Callable[[], Awaitable[None]]) -> None:
        """Reload periodically and after changes of mappings, until ``stop`` is set.

        Await ``looked`` after each reload.
        """

        def on_error(error: Exception) -> None:
            _log.error("certificates.failed", exc_info=error)

        async def reload() -> None:
            await self.reload()
            await looked()

        async def read_on_change() -> None:
            while True:
                await self._changed.wait()
                self._changed.clear()
                try:
                    await reload()
                except Exception as error:  # noqa: BLE001 - the next look may succeed
                    on_error(error)

        async with supervise() as group:
            news = group.start(read_on_change(), name="certificates of mappings")
            await every(self._settings.reload_period_s, reload, stop=stop, on_error=on_error)
            news.cancel()

    async def reload(self) -> None:
        """Reload all certificates. An invalid certificate is logged once, and its last valid version stays in use."""
        # A reload that read earlier must not replace what a later one has read.
        async with self._reloading:
            await self._reload()

    async def _reload(self) -> None:
        secrets = {name: await self._secret(self._namespace, name) for name in self._settings.secret_names}
        hosts_by_secret: dict[tuple[str, str], list[str]] = {}
        for host, secret in self._mapped.items():
            hosts_by_secret.setdefault(secret, []).append(host)
        for (namespace, name), hosts in hosts_by_secret.items():
            pair = await self._secret(namespace, name)
            # The certificate serves only these hosts; its other names must not claim hosts of other namespaces.
            mapped = pair if isinstance(pair, InvalidCertificate) else msgspec.structs.replace(pair, hosts=tuple(hosts))
            secrets[f"host {', '.join(sorted(hosts))} of namespace {namespace}"] = mapped
        # Verifying a certificate by a handshake takes some milliseconds, so it runs in a thread.
        await asyncio.to_thread(lambda: self.certificates.update(self._files.read() | secrets))
        self.turn += 1
        failures = self.certificates.failures
        if failures.total() != self._failures_logged:
            # At most one log line per period, so that failing clients cannot flood the log.
            _log.info("tls.handshakes-failed", extra={"since_start": dict(failures)})
            self._failures_logged = failures.total()

    async def _secret(self, namespace: str, name: str) -> Pair | InvalidCertificate:
        where = f"Secret {namespace}/{name}"
        try:
            secret = await self._cluster.get(SECRET, namespace, name)
        except ClusterError as error:
            return InvalidCertificate(where=where, reason=str(error))
        if secret.get("type") != _TLS_TYPE:
            return InvalidCertificate(where=where, reason=f"its type is {secret.get('type')}, not {_TLS_TYPE}")
        data = secret.get("data") or {}
        try:
            certificate, key = (base64.b64decode(data[part], validate=True) for part in ("tls.crt", "tls.key"))
        except KeyError as error:
            return InvalidCertificate(where=where, reason=f"it has no {error.args[0]}")
        except (binascii.Error, TypeError):
            return InvalidCertificate(where=where, reason="its data is not base64")
        return Pair(where=where, certificate_pem=certificate, key_pem=key)
