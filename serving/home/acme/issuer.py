"""Issues the Certificates of one machine: orders pairs, keeps them as files, and writes Secrets and conditions.

Input: cert-manager's Certificates that name our issuer; the controller creates one for each public host. A pair is a file of its host, with
key and chain, in a private folder: a host that is claimed again gets the same pair. The Secret is a copy for the activators. Certificates
are ordered one at a time. A failure leaves the pair and the Secret in place, and is a condition and an Event.
"""

import asyncio
import base64
import contextlib
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography import x509

from serving.core.model.errors import AlreadyExists, ClusterError, NotFound
from serving.core.model.event import EventText, digest
from serving.core.model.knative import ConditionStatus
from serving.core.model.launch import ACME_ISSUER
from serving.core.model.objects import (
    Key,
    Object,
    condition_of,
    generation_of,
    name_of,
    namespace_of,
    nested,
    owner_reference,
    uid_of,
    with_transition_time,
)
from serving.home.acme.orders import IssuedPair, OrderFailed, SuggestedRenewal
from serving.home.acme.pace import Failures, host_failed, renewal_at_s, server_failed
from serving.home.state import write_private
from serving.net.aio.clock import stamp, wall_s
from serving.net.aio.supervise import supervise
from serving.net.cluster.events import announce
from serving.net.cluster.kinds import CERTIFICATE, ROUTE, SECRET
from serving.net.cluster.kubeclient import with_type
from serving.net.cluster.port import Cluster
from serving.net.cluster.reflector import CacheChange, Reflector, start_synced
from serving.net.cluster.workqueue import WorkQueue

_log = logging.getLogger("acme")

_COMPONENT = "serving-acme"
_ATTEMPTS = "attempts.json"
# The key of the server in the file of failures; no host is empty.
_SERVER = ""
_LOOK_S = 600.0
# The pause after a failed query, as RFC 9773 recommends.
_QUERY_PAUSE_S = 6 * 3600.0
_HOST = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")


class Orders(Protocol):
    """Orders certificates from an ACME server. All calls block."""

    def issue(self, hosts: Sequence[str]) -> IssuedPair:
        """Order a certificate for hosts. Raises ``OrderFailed``."""
        ...

    def suggest_renewal(self, certificate_pem: bytes) -> SuggestedRenewal:
        """Query when to renew a certificate. Raises ``OrderFailed``."""
        ...


class CertificateIssuer:
    """Issues and renews the Certificates of this machine. ``clock`` returns unix seconds.

    ``folder`` stores the key pairs and is readable only by its owner. The issuer checks each Certificate at least every
    ``look_s`` seconds, because the clock may jump, and timers stop while the machine is suspended.
    """

    def __init__(
        self,
        cluster: Cluster,
        orders: Orders,
        folder: Path,
        *,
        clock: Callable[[], float] = wall_s,
        look_s: float = _LOOK_S,
    ) -> None:
        self._cluster = cluster
        self._orders = orders
        self._folder = folder
        self._clock = clock
        self._look_s = look_s
        self._queue: WorkQueue[Key] = WorkQueue("certificates")
        self._reflector = Reflector(cluster, CERTIFICATE, on_change=self._changed)
        self._failures = self._read_failures()
        # By the certificate's PEM: the suggested time to renew it, and the time of the next query.
        self._suggestions: dict[bytes, tuple[float | None, float]] = {}

    async def run(self) -> None:
        """Issue and renew until cancelled."""
        async with supervise() as group:
            await start_synced(group, [self._reflector], owner="certificates")
            group.start(self._queue.run(1, self._settle), name="certificates work")

    def _changed(self, change: CacheChange) -> None:
        if change.old is None or generation_of(change.old) != generation_of(change.new):
            self._queue.add(change.key)

    async def _settle(self, key: Key) -> float | None:
        """Order or renew one certificate if it is due; return the seconds until the next check."""
        certificate = self._reflector.cache.get(key)
        if certificate is None or nested(certificate, "spec", "issuerRef", "name") != ACME_ISSUER:
            return None
        hosts = [str(host) for host in nested(certificate, "spec", "dnsNames") or ()]
        if not hosts or not all(_HOST.fullmatch(host) for host in hosts):
            await self._report(certificate, None, f"{', '.join(hosts) or 'no name'}: no host of a certificate")
            return None
        host, now_s = hosts[-1], self._clock()
        path = self._folder / f"{host}.pem"
        pair = await asyncio.to_thread(read_pair, path)
        if pair is not None:
            await self._query_renewal(pair)
        due_s = self._due_s(host, pair)
        error = ""
        if now_s >= due_s:
            pair, error = await self._order(certificate, hosts, path, before=pair)
            due_s = self._due_s(host, pair)
        elif host in self._failures:
            error = condition_of(certificate, "Issuing").get("message") or ""
        if pair is not None:
            await self._publish(certificate, pair)
        await self._report(certificate, pair, error)
        return min(self._look_s, max(due_s - self._clock(), 1.0))

    def _due_s(self, host: str, pair: "StoredPair | None") -> float:
        """The time for ordering the host's next certificate, in unix seconds.

        Without a certificate the order is due now, otherwise at the time of renewal. After a failure of the host or the
        server, the order also waits for the end of the pause.
        """
        renewal_s = 0.0
        if pair is not None:
            suggested_s, _ = self._suggestions.get(pair.certificate_pem, (None, 0.0))
            renewal_s = renewal_at_s(host, not_before_s=pair.not_before_s, not_after_s=pair.not_after_s)
            renewal_s = renewal_s if suggested_s is None else min(suggested_s, pair.not_after_s)
        pauses = [self._failures[name].retry_at_s for name in (host, _SERVER) if name in self._failures]
        return max(renewal_s, *pauses, 0.0)

    async def _query_renewal(self, pair: "StoredPair") -> None:
        """Ask the server when to renew a certificate, if a query is due. A failed query keeps the earlier answer."""
        now_s = self._clock()
        suggested_s, query_s = self._suggestions.get(pair.certificate_pem, (None, 0.0))
        if now_s < query_s or now_s >= pair.not_after_s:
            return
        pause_s = _QUERY_PAUSE_S
        try:
            suggestion = await asyncio.to_thread(self._orders.suggest_renewal, pair.certificate_pem)
            suggested_s, pause_s = suggestion.at_s, max(suggestion.ask_after_s, self._look_s)
        except OrderFailed as error:
            _log.info("renewal.unknown", extra={"error": str(error)})
        self._suggestions[pair.certificate_pem] = suggested_s, now_s + pause_s

    async def _order(
        self, certificate: Object, hosts: Sequence[str], path: Path, *, before: "StoredPair | None"
    ) -> tuple["StoredPair | None", str]:
        """Order a key pair and store it. Return the new pair and "", or the pair ``before`` and the error."""
        host = hosts[-1]
        try:
            issued = await asyncio.to_thread(self._orders.issue, hosts)
            write_private(path, issued.key_pem + issued.certificate_pem)
            pair = read_pair(path)
            if pair is None:
                raise OrderFailed("the server issued no certificate that can be read", of_server=True)  # noqa: TRY301 - one way for all failures
        except (OrderFailed, OSError) as error:
            self._record_failure(host, error)
            reason = str(error)
            _log.warning(
                "certificate.failed", extra={"host": host, "error": reason, "has_certificate": before is not None}
            )
            await self._announce(certificate, "IssuingFailed", f"no certificate for {host}: {reason}", is_warning=True)
            return before, reason
        if before is not None:
            self._suggestions.pop(before.certificate_pem, None)
        self._failures.pop(host, None)
        self._failures.pop(_SERVER, None)
        self._write_failures()
        until = stamp(pair.not_after_s)
        _log.info("certificate.issued", extra={"host": host, "until": until})
        await self._announce(certificate, "CertificateIssued", f"a certificate for {host}, valid until {until}")
        return pair, ""

    def _record_failure(self, host: str, error: Exception) -> None:
        now_s = self._clock()
        retry_after_s, of_server = 0.0, True
        if isinstance(error, OrderFailed):
            retry_after_s, of_server = error.retry_after_s, error.of_server
        if of_server:
            self._failures[_SERVER] = server_failed(self._failures.get(_SERVER), now_s)
        if not of_server or retry_after_s > 0:
            self._failures[host] = host_failed(self._failures.get(host), now_s, retry_after_s=retry_after_s)
        self._write_failures()

    async def _publish(self, certificate: Object, pair: "StoredPair") -> None:
        """Copy a key pair to the Secret of its Certificate. The Secret is deleted with the Certificate."""
        name = str(nested(certificate, "spec", "secretName"))
        parts = {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem}
        data = {part: base64.b64encode(pem).decode() for part, pem in parts.items()}
        try:
            secret = await self._cluster.get(SECRET, namespace_of(certificate), name)
        except NotFound:
            body = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {
                    "name": name,
                    "namespace": namespace_of(certificate),
                    "ownerReferences": [owner_reference(with_type(CERTIFICATE, certificate))],
                },
                "type": "kubernetes.io/tls",
                "data": data,
            }
            with contextlib.suppress(AlreadyExists):
                await self._cluster.create(SECRET, body)
            return
        if secret.get("data") != data:
            await self._cluster.patch(SECRET, namespace_of(certificate), name, patch={"data": data})

    async def _report(self, certificate: Object, pair: "StoredPair | None", error: str) -> None:
        """Write the conditions Ready and Issuing, and the validity times, if they have changed."""
        now_s = self._clock()
        is_valid = pair is not None and now_s < pair.not_after_s
        is_issuing = not error and not is_valid
        reason = "Ready" if is_valid else "Failed" if error else "Issuing"
        status = {
            "conditions": [
                _condition(certificate, "Ready", is_true=is_valid, reason=reason, message="" if is_valid else error),
                _condition(certificate, "Issuing", is_true=is_issuing, reason="Failed" if error else "", message=error),
            ],
            **({} if pair is None else {"notBefore": stamp(pair.not_before_s), "notAfter": stamp(pair.not_after_s)}),
        }
        if status != certificate.get("status"):
            with contextlib.suppress(NotFound):
                await self._cluster.patch(
                    CERTIFICATE,
                    namespace_of(certificate),
                    name_of(certificate),
                    patch={"status": status},
                    subresource="status",
                )

    async def _announce(self, certificate: Object, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Write an Event about the Service, Route or DomainMapping with the certificate's host."""
        words = EventText(reason=reason, message=message, is_warning=is_warning)
        subject = _owner_of(certificate) or with_type(CERTIFICATE, certificate)
        if subject["kind"] == ROUTE.name:
            with contextlib.suppress(ClusterError):
                route = await self._cluster.get(ROUTE, namespace_of(subject), name_of(subject))
                subject = _owner_of(route) or subject
        suffix = digest(uid_of(subject), message)
        await announce(self._cluster, subject, words, suffix=suffix, component=_COMPONENT)

    def _read_failures(self) -> dict[str, Failures]:
        """The stored failures by host, so that a restart does not shorten pauses."""
        try:
            return msgspec.json.decode((self._folder / _ATTEMPTS).read_bytes(), type=dict[str, Failures])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _write_failures(self) -> None:
        # A full disk shortens pauses after a restart; it stops no certificate.
        with contextlib.suppress(OSError):
            write_private(self._folder / _ATTEMPTS, msgspec.json.encode(self._failures))


class StoredPair(msgspec.Struct, frozen=True, kw_only=True):
    """A stored key and certificate chain in PEM, with its validity in unix seconds."""

    certificate_pem: bytes
    key_pem: bytes
    not_before_s: float
    not_after_s: float


def read_pair(path: Path) -> StoredPair | None:
    """Read a file with a key and a chain. None if it is missing or unreadable: the pair is then ordered again."""
    try:
        key, mark, chain = path.read_bytes().partition(b"-----BEGIN CERTIFICATE-----")
        leaf = x509.load_pem_x509_certificate(mark + chain)
    except (OSError, ValueError):
        return None
    return StoredPair(
        certificate_pem=mark + chain,
        key_pem=key,
        not_before_s=leaf.not_valid_before_utc.timestamp(),
        not_after_s=leaf.not_valid_after_utc.timestamp(),
    )


def _condition(certificate: Object, name: str, *, is_true: bool, reason: str, message: str) -> Object:
    condition = {
        "type": name,
        "status": str(ConditionStatus.TRUE if is_true else ConditionStatus.FALSE),
        "reason": reason,
        "message": message,
        "observedGeneration": generation_of(certificate),
    }
    return with_transition_time(condition, condition_of(certificate, name), now=stamp())


def _owner_of(resource: Object) -> Object | None:
    """The first owner of an object, as an object with only type, name, namespace and uid; None without an owner."""
    owner = next(iter(nested(resource, "metadata", "ownerReferences") or ()), None)
    if owner is None:
        return None
    metadata = {"name": owner["name"], "namespace": namespace_of(resource), "uid": owner["uid"]}
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "metadata": metadata}
