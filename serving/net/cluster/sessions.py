"""Connections to an API server: by ``aiohttp`` to that of ``serving up`` and of a pod, by ``kubernetes.aio`` to others.

That library takes 0.45 s and 20 MiB to import. The first connection to another server imports it, in a thread. It is
the extra ``cluster``, because neither one machine nor a pod needs it.
"""

import asyncio
import contextlib
import ipaddress
import math
import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter

from serving.core.model.errors import NotLeading, Unavailable
from serving.net.cluster.fenced import last_check
from serving.net.cluster.localserver import CLUSTER_EXTRA, LocalServer, TokenServer, local_server
from serving.net.cluster.podserver import pod_server

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient, Configuration

# Parallel watches and calls of a daemon: 15 kinds, and bursts of /scale patches. The library's limit is 100.
_CONNECTIONS_MAX = 256
# How long a pod's token is used before its file is read again; the kubelet replaces it long before it expires.
_TOKEN_VALID_S = 60.0
# Longer than the daemons' call periods, because each new connection costs both ends a handshake.
_KEPT_S = 60.0
# A line of a watch may be a whole object. The library's own value.
_READ_BUFFER_BYTES = 2**21


class CheckedRequest(aiohttp.ClientRequest):
    """A session's request class that checks the lease before it sends. Raises ``NotLeading``."""

    async def send(self, conn: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        """Start sending, unless the lease is lost."""
        last_check()
        return await super().send(conn)

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: aiohttp.connector.Connection, content_length: int | None = None
    ) -> None:
        """Pass head and body to the transport, unless the lease was lost while the request waited."""
        try:
            last_check()
        except NotLeading as error:
            # The caller waiting for the response gets this error, and closes the connection.
            if conn.protocol is not None:
                conn.protocol.set_exception(error)
            return
        await super().write_bytes(writer, conn, content_length)


class ServerSession(Protocol):
    """Sends requests to one server with credentials. A request is sent only once."""

    async def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: object,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - handed down; it bounds each step of the answer too
    ) -> aiohttp.ClientResponse:
        """Send a request, and wait for the response head. ``body`` is encoded as JSON; None sends no body."""
        ...

    async def renew(self) -> None:
        """Reload the credentials, which may have been replaced. Raises ``Unavailable``."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


async def session_of(kubeconfig: str | None) -> ServerSession:
    """A session for a kubeconfig's current context, or with None for this pod's server.

    Raises ``Unavailable`` if the kubeconfig is unusable.
    """
    if kubeconfig is None:
        # Proxies from the environment apply, as for other clients of a cluster.
        return TokenSession(_read_pod(), read=_read_pod, valid_s=_TOKEN_VALID_S, trust_env=True)
    server = _read_local(kubeconfig)
    if server is not None:
        # Proxies from the environment are for other hosts: one would get the token, and could not reach loopback.
        return TokenSession(server, read=lambda: _read_local(kubeconfig), valid_s=math.inf, trust_env=False)
    return LibrarySession(kubeconfig, await library_client(kubeconfig))


def _read_local(kubeconfig: str) -> LocalServer | None:
    try:
        return local_server(Path(kubeconfig).read_bytes())
    except OSError:
        # The library's error contains the file name.
        return None


def _read_pod() -> TokenServer:
    return pod_server(os.environ)


class TokenSession:
    """A session with a server that authenticates by a bearer token.

    ``read`` returns the server with the current token, and is called again after ``valid_s`` seconds. If it returns
    None or raises ``Unavailable``, the earlier token stays. ``trust_env``: proxies from the environment apply. Raises
    ``Unavailable`` if the certificate authority is unreadable.
    """

    def __init__(
        self, server: TokenServer, *, read: Callable[[], TokenServer | None], valid_s: float, trust_env: bool
    ) -> None:
        self._server, self._read, self._valid_s = server, read, valid_s
        self._read_at_s = time.monotonic()
        try:
            tls = ssl.create_default_context(cadata=server.authority) if server.authority else True
        except ssl.SSLError as error:
            raise Unavailable(f"the authority of {server.url} is no certificate: {error}") from error
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS_MAX, ssl=tls, keepalive_timeout=_KEPT_S),
            request_class=CheckedRequest,
            read_bufsize=_READ_BUFFER_BYTES,
            trust_env=trust_env,
        )

    async def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: object,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - handed down
    ) -> aiohttp.ClientResponse:
        """Send a request, and wait for the response head."""
        if time.monotonic() - self._read_at_s >= self._valid_s:
            await self.renew()
        return await self._session.request(
            method,
            f"{self._server.url}{path}",
            headers={**headers, "Authorization": f"Bearer {self._server.token}"},
            data=None if body is None else msgspec.json.encode(body),
            timeout=timeout,
        )

    async def renew(self) -> None:
        """Read the token again."""
        self._read_at_s = time.monotonic()
        with contextlib.suppress(Unavailable):
            self._server = self._read() or self._server

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


class LibrarySession:
    """A session that uses the ``kubernetes`` package, for all kubeconfigs except those of ``serving up``."""

    def __init__(self, kubeconfig: str, client: "ApiClient") -> None:
        self._kubeconfig = kubeconfig
        self._client = client

    async def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: object,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - handed down
    ) -> aiohttp.ClientResponse:
        """Send a request, and wait for the response head."""
        header_params = dict(headers)
        await self._client.update_params_for_auth(header_params, [], ["BearerToken"], path, method, body)
        url = f"{self._client.configuration.host}{path}"
        reply = await self._client.call_api(
            method, url, header_params=header_params, body=body, _request_timeout=timeout
        )
        response: aiohttp.ClientResponse = reply.response
        return response

    async def renew(self) -> None:
        """Reload the kubeconfig."""
        self._client.configuration.api_key = (await _settings_of(self._kubeconfig)).api_key

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call] # the library's own


async def library_client(kubeconfig: str) -> "ApiClient":
    """A client of the ``kubernetes`` package without retries. Raises ``Unavailable`` for an unusable kubeconfig."""
    settings = await _settings_of(kubeconfig)
    from kubernetes.aio import client  # noqa: PLC0415 - 0.45 s, see the module docstring

    # None rather than False, which the library treats as 0; a client with 0 attempts retries forever.
    settings.retries = None
    settings.connection_pool_maxsize = _CONNECTIONS_MAX
    settings.client_session_kwargs = {"request_class": CheckedRequest}
    if _is_loopback(settings.host):
        settings.client_session_kwargs["trust_env"] = False
    return client.ApiClient(settings)


async def _settings_of(kubeconfig: str) -> "Configuration":
    """A kubeconfig's address and credentials. Raises ``Unavailable`` if the kubeconfig is unusable."""
    await asyncio.to_thread(_import_library)
    import yaml  # noqa: PLC0415 - the library has imported it by now
    from kubernetes.aio import client, config  # noqa: PLC0415 - as above

    settings = client.Configuration()
    try:
        await config.load_kube_config(kubeconfig, client_configuration=settings, persist_config=False)  # type: ignore[no-untyped-call] # the library's own
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        # The loader does not catch errors in malformed files.
        raise Unavailable(f"no usable kubeconfig in {kubeconfig}: {error}") from error
    return settings


def _import_library() -> None:
    try:
        import kubernetes.aio.client  # noqa: PLC0415 - as above
        import kubernetes.aio.config  # noqa: F401, PLC0415 - as above
    except ImportError as error:
        raise Unavailable(f"an API server other than that of serving up needs {CLUSTER_EXTRA}") from error


def _is_loopback(host: str) -> bool:
    name = urlsplit(host).hostname or ""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
