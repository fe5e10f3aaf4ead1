"""The pod's credentials: its inner TLS certificate, and the caller token of its app.

An autoscaler issues both to the holder of the pod's stats token. The certificate is fetched at the start, before the
pod is ready, and again after half of its lifetime. The caller token is fetched when the app requests it. While no
autoscaler responds, the last certificate and token stay in use.
"""

import asyncio
import hashlib
import hmac
import logging
import math
import random
import ssl
from typing import TYPE_CHECKING

from serving.core.model.identities import AUTOSCALER
from serving.core.traffic.backoff import backoff_s
from serving.net.aio.clock import wall_s
from serving.net.aio.mutualtls import MutualTls, PeerTls
from serving.queueproxy.io.stats import stats_token
from serving.queueproxy.podspec import PodSpec

if TYPE_CHECKING:
    from serving.net.wire.podcredentials import IssuedCredentials

_LOG = logging.getLogger("tls")

_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 5.0
# How often clocks are compared, in seconds, so that a suspend or a clock change is detected.
_LOOK_S = 30.0
# How often a new query token is looked for, in seconds.
_QUERY_PAUSE_S = 10.0
# Longest wait for a certificate where plain HTTP is allowed, in seconds.
_PERMISSIVE_WAIT_S = 2.0


class Credentials:
    """The certificate and tokens of one pod.

    ``tls`` is None without inner TLS; ``secured`` has the TLS parameters of connections to autoscalers.
    """

    def __init__(self, spec: PodSpec) -> None:
        settings = spec.settings.inner_tls
        self.tls = MutualTls(spec.authority) if settings.is_on else None
        self.secured: PeerTls | None = None
        if self.tls is not None:
            self.secured = PeerTls(tls=self.tls, expected=AUTOSCALER, takes_plain=not settings.is_strict)
        self._spec = spec
        self._has_certificate = asyncio.Event()
        self._life_s = settings.certificate_life_s
        self._last: IssuedCredentials | None = None
        self._queried_s = -math.inf
        self._fetching = asyncio.Lock()

    async def wait(self) -> None:
        """Wait for the first certificate. The wait is bounded if plain HTTP is allowed."""
        if self.tls is None:
            return
        within_s = None if self._spec.settings.inner_tls.is_strict else _PERMISSIVE_WAIT_S
        try:
            async with asyncio.timeout(within_s):
                await self._has_certificate.wait()
        except TimeoutError:
            _LOG.warning("tls.no-certificate", extra={"waited_s": within_s})

    async def renew(self) -> None:
        """Fetch the certificate, and renew it after half of its lifetime, until cancelled."""
        failure_count = 0
        while self.tls is not None:
            left_s = self.tls.not_after_s - wall_s()
            if self._life_s / 2 < left_s <= self._life_s + 1:
                await asyncio.sleep(min(_LOOK_S, left_s - self._life_s / 2))
                continue
            try:
                await self._fetch()
                failure_count = 0
            except OSError as error:
                failure_count += 1
                if failure_count == 1:
                    _LOG.warning("tls.not-renewed", extra={"error": str(error), "left_s": left_s})
                pause_s = backoff_s(failure_count, first_s=_RETRY_FIRST_S, max_s=_RETRY_MAX_S)
                await asyncio.sleep(pause_s * (0.5 + random.random()))  # noqa: S311 - spreads pods

    async def caller_token(self) -> str:
        """A valid caller token, fetched again in the second half of its lifetime. Raises ``OSError``."""
        async with self._fetching:
            last = self._last
            if last is not None and last.caller_token_not_after_s - wall_s() > last.caller_token_life_s / 2:
                return last.caller_token
        try:
            return (await self._fetch()).caller_token
        except OSError:
            if last is not None and last.caller_token_not_after_s > wall_s():
                return last.caller_token
            raise

    async def opens_queries(self, token: str) -> bool:
        """Whether a token is the query token.

        Raises ``OSError`` if the token differs from the last known one, and the current one cannot be fetched.
        """
        digest = hashlib.sha256(token.encode("latin-1")).hexdigest()
        last, now_s = self._last, wall_s()
        if last is not None and last.query_digest and hmac.compare_digest(digest, last.query_digest):
            return True
        # Wrong tokens must not cause as many requests.
        if self._spec.stats_url is None or 0 <= now_s - self._queried_s < _QUERY_PAUSE_S:
            return False
        self._queried_s = now_s
        known = (await self._fetch()).query_digest
        return bool(known) and hmac.compare_digest(digest, known)

    async def _fetch(self) -> "IssuedCredentials":
        from serving.net.wire.podcredentials import fetch_credentials  # noqa: PLC0415 - most pods fetch none

        async with self._fetching:
            spec = self._spec
            assert spec.stats_url is not None
            names = {"namespace": spec.namespace, "revision": spec.revision, "pod": spec.pod}
            credentials = await fetch_credentials(
                spec.stats_url, names, token=stats_token(spec), network=spec.stats_network, secured=self.secured
            )
            self._last = credentials
            if self.tls is not None:
                if not credentials.certificate:
                    raise ConnectionError("the autoscaler speaks no inner TLS, and gave no certificate")
                try:
                    self.tls.replace(credentials.certificate, credentials.key, not_after_s=credentials.not_after_s)
                except ssl.SSLError as error:
                    raise ConnectionError(f"the autoscaler's certificate cannot be read: {error}") from error
                self._life_s = credentials.life_s
                self._has_certificate.set()
            return credentials
