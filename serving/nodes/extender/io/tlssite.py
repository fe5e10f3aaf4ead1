"""A TLS listener that reloads its certificate and client authorities from files.

A changed file creates a new TLS context and a new site on the same socket. The new site serves new connections;
existing ones continue. Invalid files are reported once, and the last valid ones stay in use.
"""

import logging
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from serving.core.model.errors import InvalidCertificate
from serving.core.settings.placement import ExtenderTlsSettings
from serving.net.proxy.tls.certificate import Pair, load_certificate

_log = logging.getLogger("placement")


class TlsSite:
    """Serves one application on one socket, over TLS if the settings name a certificate."""

    def __init__(self, runner: web.AppRunner, listener: socket.socket, settings: ExtenderTlsSettings) -> None:
        self._runner = runner
        self._listener = listener
        self._settings = settings
        self._seen: Mapping[str, bytes] = {}
        self._site: web.SockSite | None = None

    async def start(self) -> None:
        """Start serving. Raises ``InvalidCertificate`` for invalid files."""
        if self._settings.paths:
            self._seen = _read(self._settings)
            await self._serve(_context(self._settings, self._seen))
        else:
            await self._serve(None)

    async def reload(self) -> None:
        """Load the current content of the files."""
        if not self._settings.paths:
            return
        try:
            seen = _read(self._settings)
            if seen == self._seen:
                return
            self._seen = seen
            context = _context(self._settings, seen)
        except InvalidCertificate as error:
            _log.warning("certificate.refused", extra={"where": error.where, "reason": error.reason})
            return
        await self._serve(context)
        _log.info("certificate.changed", extra={"where": self._settings.certificate_file})

    async def _serve(self, context: ssl.SSLContext | None) -> None:
        before = self._site
        # A duplicate for each site, because a site closes its socket and the next one needs it.
        self._site = web.SockSite(self._runner, self._listener.dup(), ssl_context=context)
        await self._site.start()
        if before is not None:
            await before.stop()


def _read(settings: ExtenderTlsSettings) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for path in settings.paths:
        try:
            contents[path] = Path(path).read_bytes()
        except OSError as error:
            raise InvalidCertificate(where=path, reason=error.strerror or str(error)) from error
    return contents


def _context(settings: ExtenderTlsSettings, contents: Mapping[str, bytes]) -> ssl.SSLContext:
    where = f"{settings.certificate_file} with {settings.key_file}"
    pair = Pair(
        where=where,
        certificate_pem=contents[settings.certificate_file],
        key_pem=contents[settings.key_file],
    )
    context = load_certificate(settings.certificate_file, pair).context
    # The application speaks HTTP/1.1 only.
    context.set_alpn_protocols(["http/1.1"])
    if settings.client_ca_file:
        try:
            context.load_verify_locations(cadata=contents[settings.client_ca_file].decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise InvalidCertificate(where=settings.client_ca_file, reason=str(error)) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
