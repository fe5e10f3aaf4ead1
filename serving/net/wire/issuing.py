"""The inner TLS of a daemon with the cluster key: it signs its own certificate, and renews it."""

import asyncio
import logging

from serving.core.settings.innertls import InnerTlsSettings
from serving.net.aio.clock import stamp, wall_s
from serving.net.aio.mutualtls import MutualTls, PeerTls

_log = logging.getLogger("tls")

# How often clocks are compared, in seconds, so that a suspend or a clock change is detected.
_LOOK_S = 30.0


class DaemonTls:
    """The TLS contexts of one daemon, and the authority of its cluster key."""

    def __init__(self, key: bytes, identity: str, settings: InnerTlsSettings) -> None:
        from serving.net.wire.authority import Authority  # noqa: PLC0415 - a start without inner TLS is spared cryptography

        self.settings = settings
        self.authority: Authority = Authority(key)
        self.tls = MutualTls(self.authority.certificate)
        self._identity = identity
        self._renew()

    def to(self, expected: str) -> PeerTls:
        """The TLS parameters for connections to a peer with this SPIFFE id."""
        return PeerTls(tls=self.tls, expected=expected, takes_plain=not self.settings.is_strict)

    async def renew(self) -> None:
        """Replace the certificate after half of its lifetime, until cancelled."""
        while True:
            left_s = self.tls.not_after_s - wall_s()
            life_s = self.settings.certificate_life_s
            # The remaining lifetime exceeds the total: the clock was set back, and peers may consider it not yet valid.
            if left_s <= life_s / 2 or left_s > life_s + 1:
                self._renew()
            else:
                await asyncio.sleep(min(_LOOK_S, left_s - life_s / 2))

    def _renew(self) -> None:
        issued = self.authority.issue(self._identity, now_s=wall_s(), life_s=self.settings.certificate_life_s)
        self.tls.replace(issued.certificate, issued.key, not_after_s=issued.not_after_s)
        _log.info("tls.certificate", extra={"identity": self._identity, "not_after": stamp(issued.not_after_s)})


def authority_of(key: bytes, settings: InnerTlsSettings) -> str:
    """The authority's certificate as PEM, for pods; "" if the settings disable inner TLS."""
    if not settings.is_on:
        return ""
    from serving.net.wire.authority import Authority  # noqa: PLC0415 - as above

    return Authority(key).certificate


def daemon_tls(key: bytes, identity: str, settings: InnerTlsSettings) -> DaemonTls | None:
    """The inner TLS of a daemon; None if the settings disable it."""
    return DaemonTls(key, identity, settings) if settings.is_on else None
