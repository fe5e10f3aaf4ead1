"""Connects to a Kubernetes API: to ``serving up`` by the standard library, to others by the ``kubernetes`` package.

The module imports the package on demand, because the import takes half a second.
"""

import contextlib
import http.client
import json
import os
import socket
import ssl
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from serving.core.model.errors import Problem, SettingsError, Unavailable
from serving.net.aio.inputfile import read_input_text
from serving.net.cluster.localserver import CLUSTER_EXTRA, LocalServer, local_server

_PIECE_BYTES = 65536
_TRIES_MAX = 3
_CURRENT = "current-context"
_KUBECONFIG_EXPECTED = "a kubeconfig, as `serving up` or a cluster's tool writes it"


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. ``timeout_s`` limits each wait for bytes; None means no limit."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = None
    timeout_s: float | None = None


class WebsocketPlace(msgspec.Struct, frozen=True):
    """The URL, the headers with the user's credentials, and the TLS settings of a websocket."""

    url: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None


def chosen_kubeconfig(named: str, context: str | None) -> tuple[str, str | None]:
    """The path of the kubeconfig (or several paths, as in KUBECONFIG), and the context to use.

    ``named`` is the value of KUBECONFIG. As in kubectl, missing files are skipped, and the first file with a value
    takes precedence. If the context belongs to a ``serving up``, only the path of its file is returned. Raises
    ``SettingsError`` for an unreadable file.
    """
    paths = [Path(name).expanduser() for name in named.split(os.pathsep) if name]
    files = [path for path in paths if path.exists()] or paths[:1]
    if len(files) < 2:
        return str(files[0]) if files else named, context
    # The import takes half a second, and a single file does not need the package.
    import yaml  # noqa: PLC0415 - as said

    contents: list[tuple[Path, dict[str, Any]]] = []
    for path in files:
        try:
            content = yaml.safe_load(read_input_text(path)) or {}
        except (OSError, yaml.YAMLError) as error:
            what = f"not readable: {str(error).splitlines()[0]}"
            raise SettingsError([Problem(where=str(path), what=what, expected=_KUBECONFIG_EXPECTED)]) from error
        if isinstance(content, dict) and content:
            contents.append((path, content))
    chosen = context or next((str(content[_CURRENT]) for _, content in contents if content.get(_CURRENT)), None)
    for path, content in contents:
        if any(entry.get("name") == chosen for entry in content.get("contexts") or ()):
            if local_server(read_input_text(path)) is not None:
                return str(path), chosen
            break
    return os.pathsep.join(str(path) for path, _ in contents), chosen


def connect(kubeconfig: str, context: str | None = None) -> "ApiConnection":
    """Create the client of an API; it connects with the first request. ``kubeconfig`` may have several paths.

    Raises ``SettingsError``.
    """
    if os.pathsep in kubeconfig:
        return ForeignConnection(kubeconfig, context)
    path = Path(kubeconfig)
    try:
        text = read_input_text(path)
    except OSError as error:
        what = f"not readable: {error.strerror}"
        problem = Problem(where=str(path), what=what, expected=_KUBECONFIG_EXPECTED)
        raise SettingsError([problem]) from error
    server = local_server(text)
    if server is not None and context in (None, server.context):
        return LocalConnection(server)
    if server is not None:
        names = [str(entry.get("name")) for entry in json.loads(text)["contexts"]]
        if context not in names:
            expected = f"one of {', '.join(names)}"
            raise SettingsError([Problem(where=str(path), what=f"there is no context {context}", expected=expected)])
    return ForeignConnection(kubeconfig, context)


class LocalConnection:
    """A connection to the API of ``serving up``, by ``http.client``. Each request uses a new TCP connection."""

    def __init__(self, server: LocalServer) -> None:
        url = urllib.parse.urlsplit(server.url)
        self._host = url.hostname or ""
        self._port = url.port or 80
        self._tls: ssl.SSLContext | None = None
        if url.scheme == "https":
            self._tls = ssl.create_default_context(cadata=server.authority or None)
        self._token = server.token
        self.namespace = server.namespace
        self.server = server.url

    def send(self, request: ApiRequest) -> "ApiResponse":
        """Send a request, and wait for the head of the response. Raises ``Unavailable``.

        A server that restarts, or was suspended, drops connections: a request that was not sent, and a GET, are sent
        again on another one.
        """
        try_count = 0
        while True:
            try_count += 1
            connection, is_sent = self._new_connection(request.timeout_s), False
            try:
                connection.connect()
                is_sent = True
                return self._exchange(connection, request)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                is_dropped = isinstance(error, ConnectionResetError | ssl.SSLEOFError)
                if try_count == _TRIES_MAX or not is_dropped or (is_sent and request.method != "GET"):
                    raise Unavailable(_reason(error)) from error

    def _new_connection(self, timeout_s: float | None) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)

    def _exchange(self, connection: http.client.HTTPConnection, request: ApiRequest) -> "LocalResponse":
        headers = {"Authorization": f"Bearer {self._token}", **request.headers}
        connection.request(request.method, request.path, body=request.body, headers=headers)
        # Stored here: after the head of the response, ``http.client`` drops a socket that will close.
        channel = connection.sock
        return LocalResponse(connection, connection.getresponse(), channel)

    def websocket(self, path: str) -> WebsocketPlace:
        """The URL and headers of a websocket."""
        return WebsocketPlace(self.server + path, {"Authorization": f"Bearer {self._token}"}, self._tls)


class LocalResponse:
    """One response; the caller must close it."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, channel: socket.socket
    ) -> None:
        self._connection = connection
        self._response = response
        self._channel = channel
        self.status: int = response.status

    def values(self, header: str) -> list[str]:
        """All values of a response header."""
        return self._response.headers.get_all(header, [])

    def pieces(self) -> Iterator[bytes]:
        """Yield the body in pieces as they arrive. Raises ``Unavailable`` when the connection breaks."""
        try:
            while piece := self._response.read1(_PIECE_BYTES):
                yield piece
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unavailable(_reason(error)) from error

    def close(self) -> None:
        """Close the connection. Another thread may call this to end ``pieces``."""
        # A shutdown wakes a reading thread; closing the file does not.
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class ForeignConnection:
    """A connection to a Kubernetes API other than that of ``serving up``, by the ``kubernetes`` package."""

    def __init__(self, path: str, context: str | None) -> None:
        # The import takes half a second, and the API of `serving up` does not need the package.
        import yaml  # noqa: PLC0415 - as said

        try:
            from kubernetes import config  # noqa: PLC0415 - as above
            from kubernetes.config.config_exception import ConfigException  # noqa: PLC0415 - as above
        except ImportError as error:
            problem = Problem(
                where=path,
                what="a kubeconfig of a cluster, which the package kubernetes reads",
                expected=CLUSTER_EXTRA,
            )
            raise SettingsError([problem]) from error

        expected = "a complete context: server, certificates and user"
        try:
            contexts, current = config.list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
            chosen = next((entry for entry in contexts if entry["name"] == context), current) if context else current
            if context and chosen["name"] != context:
                expected = f"one of {', '.join(entry['name'] for entry in contexts)}"
                raise ConfigException(f"there is no context {context}")  # noqa: TRY301 - handled like its own
            self._client = config.new_client_from_config(path, context=context)  # type: ignore[no-untyped-call]
        except (ConfigException, yaml.YAMLError, LookupError, TypeError, AttributeError, OSError, ValueError) as error:
            # The package's message is about the package's variables.
            is_other = isinstance(error, TypeError | AttributeError | LookupError)
            what = "not a kubeconfig" if is_other or not str(error) else str(error).splitlines()[0]
            raise SettingsError([Problem(where=path, what=what, expected=expected)]) from error
        self.namespace: str = (chosen.get("context") or {}).get("namespace") or "default"
        self.server = str(self._client.configuration.host)

    def send(self, request: ApiRequest) -> "ApiResponse":
        """Send a request, and wait for the head of the response. Raises ``Unavailable``."""
        import urllib3  # noqa: PLC0415 - comes with the package above

        headers = {**request.headers, **self._credentials()}
        timeout = urllib3.Timeout(connect=request.timeout_s or 30.0, read=request.timeout_s)
        try:
            response = self._client.rest_client.pool_manager.request(
                request.method,
                self.server + request.path,
                body=request.body,
                headers=headers,
                timeout=timeout,
                retries=False,
                preload_content=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(_reason(error)) from error
        return ForeignResponse(response)

    def _credentials(self) -> dict[str, str]:
        # Reading the credentials fetches a new token when the old one has expired.
        settings = self._client.configuration.auth_settings().values()
        return {
            setting["key"]: setting["value"] for setting in settings if setting["in"] == "header" and setting["value"]
        }

    def websocket(self, path: str) -> WebsocketPlace:
        """The URL and headers of a websocket. May run a credential plug-in to get new credentials."""
        configuration = self._client.configuration
        tls: ssl.SSLContext | None = None
        if self.server.startswith("https:"):
            tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
            if configuration.cert_file:
                tls.load_cert_chain(configuration.cert_file, configuration.key_file)
            if not configuration.verify_ssl:
                tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        return WebsocketPlace(self.server + path, self._credentials(), tls)


class ForeignResponse:
    """One response; the caller must close it."""

    def __init__(self, response: Any) -> None:  # noqa: ANN401 - urllib3 is not imported here
        self._response = response
        self.status: int = response.status

    def values(self, header: str) -> list[str]:
        """All values of a response header."""
        return list(self._response.headers.getlist(header))

    def pieces(self) -> Iterator[bytes]:
        """Yield the body in pieces as they arrive. Raises ``Unavailable`` when the connection breaks."""
        try:
            while piece := self._response.read1(_PIECE_BYTES):
                yield piece
        except Exception as error:  # The library raises various errors when a stream breaks or is closed.
            raise Unavailable(_reason(error)) from error

    def close(self) -> None:
        """Close the connection. Another thread may call this to end ``pieces``."""
        connection = self._response.connection
        with contextlib.suppress(OSError, AttributeError):
            connection.sock.shutdown(socket.SHUT_RDWR)
        self._response.close()


ApiResponse = LocalResponse | ForeignResponse
ApiConnection = LocalConnection | ForeignConnection
"""A connection for API requests: the server's URL, the namespace of the context, and ways to send."""


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
