"""Fetches and caches the keys of JSON Web Token issuers, in a thread, and refetches them after a rotation.

The first request that needs a key set fetches it. After 5 minutes the key set is fetched again in the background. A
token with an unknown key id also causes a fetch, at most every 10 seconds. While the issuer does not respond, the last
keys are used for an hour; after that, requests fail.
"""

import asyncio
import contextlib
import functools
import http.client
import json
import logging
import math
import socket
import threading
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from serving.core.model.accessrules import is_key_url
from serving.net.aio.supervise import TaskOwner

_log = logging.getLogger("jwks")

_REFRESH_S = 300.0
_KEPT_S = 3600.0
# Pause between fetches for unknown key ids and after a failure, because strangers may send any key id.
_PAUSE_S = 10.0
_FAILED_PAUSE_S = 1.0
_FETCH_S = 5.0
_BYTES_MAX = 2**18
_KEYS_MAX = 64
_PIECE_BYTES = 2**14
# A separate thread pool: rules can name issuers that do not respond, which would block the event loop's few threads.
_FETCHERS = ThreadPoolExecutor(max_workers=64, thread_name_prefix="jwks")
_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_RSA_BITS = range(2048, 8193)
# Issuers use 3 or 65537. With an exponent as long as a 3,072-bit key, a check would block the event loop for 8 ms.
_RSA_EXPONENT_MAX = 2**32
_CONFIGURATION = "/.well-known/openid-configuration"


class SigningKey(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A public key, and the algorithms that its tokens may name."""

    key: Any
    algorithms: frozenset[str]


class Connections:
    """The connections of one fetch. ``end`` also stops a fetch whose issuer sends slowly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._is_ended = False

    def add(self, connection: socket.socket) -> None:
        """Add an open connection. Raises ``TimeoutError`` after ``end``."""
        with self._lock:
            if self._is_ended:
                connection.close()
                raise TimeoutError
            # TLS replaces the socket object, so its duplicate is stored.
            self._sockets.append(connection.dup())

    def end(self) -> None:
        """Shut down all connections; pending reads return."""
        with self._lock:
            self._is_ended = True
            for connection in self._sockets:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
            self._sockets.clear()


class _Opened(http.client.HTTPConnection):
    """An HTTP connection that belongs to a fetch."""

    connections: Connections

    def connect(self) -> None:
        super().connect()
        self.connections.add(self.sock)


class _OpenedOverTls(http.client.HTTPSConnection, _Opened):
    """An HTTPS connection that belongs to a fetch: ``HTTPSConnection`` wraps the socket of ``_Opened``."""


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """A URL handler that opens connections of a fetch."""

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection_factory(_Opened), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection_factory(_OpenedOverTls), req)

    def _connection_factory(self, kind: type[_Opened]) -> Callable[..., _Opened]:
        def make(host: str, **options: Any) -> _Opened:  # noqa: ANN401 - those of urllib
            connection = kind(host, **options)
            connection.connections = self._connections
            return connection

        return make


def fetch_keys(url: str, *, issuer: str, connections: Connections) -> dict[str, SigningKey]:
    """Fetch the keys at a URL, by key id. Raises ``OSError`` or ``ValueError``.

    The call blocks; ``connections.end`` aborts it. If the URL returns an OpenID configuration, the keys are fetched
    from its ``jwks_uri``. The configuration must name the same issuer.
    """
    document = _read(url, connections)
    if url.endswith(_CONFIGURATION):
        if document.get("issuer") != issuer:
            raise ValueError(f"its configuration is that of issuer {str(document.get('issuer'))[:200]!r}")
        named = str(document.get("jwks_uri", ""))
        if not is_key_url(named):
            raise ValueError("its configuration names no jwks_uri that can be used")
        document = _read(named, connections)
    keys = document.get("keys")
    if not isinstance(keys, list):
        raise ValueError("it is not a key set: it has no list of keys")  # noqa: TRY004 - what is wrong is the data
    return dict(entry for entry in map(_usable, keys[:_KEYS_MAX]) if entry is not None)


def _read(url: str, connections: Connections) -> Mapping[str, Any]:
    # No redirect handler: an issuer's keys are at the issuer's address.
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(), _Handler(connections), urllib.request.HTTPDefaultErrorHandler()):
        opener.add_handler(handler)
    opener.add_handler(urllib.request.HTTPErrorProcessor())
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310 - checked by the rule
    data = b""
    try:
        with opener.open(request, timeout=_FETCH_S) as response:
            while piece := response.read1(_PIECE_BYTES):
                data += piece
                if len(data) > _BYTES_MAX:
                    raise ValueError(f"it has more than {_BYTES_MAX} bytes")
        document = json.loads(data)
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__} {error}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - what is wrong is the data
    return document


def _usable(jwk: Any) -> tuple[str, SigningKey] | None:  # noqa: ANN401 - JSON
    """A public signature key with its id; None for other keys, such as symmetric ones."""
    import jwt  # noqa: PLC0415 - only with a rule

    if not isinstance(jwk, dict) or jwk.get("kty") not in ("RSA", "EC", "OKP") or jwk.get("use", "sig") != "sig":
        return None
    try:
        key = jwt.PyJWK(jwk)
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
        return None
    is_rsa = jwk["kty"] == "RSA"
    if is_rsa and not _is_usual(key.key):
        return None
    algorithms = _RSA if is_rsa and "alg" not in jwk else frozenset({key.algorithm_name})
    return str(jwk.get("kid", "")), SigningKey(key=key.key, algorithms=algorithms)


def _is_usual(key: Any) -> bool:  # noqa: ANN401 - of RSA
    """Whether an RSA key is public, and of a size and exponent with fast signature checks."""
    return hasattr(key, "verify") and key.key_size in _RSA_BITS and key.public_numbers().e <= _RSA_EXPONENT_MAX


class KeySet:
    """The signing keys of one URL."""

    def __init__(self, url: str, issuer: str, *, clock: Callable[[], float], waiting_max: int = 1_000) -> None:
        self.keys: dict[str, SigningKey] = {}
        self.failure = ""
        self._url = url
        self._issuer = issuer
        self._clock = clock
        self._waiting_max = waiting_max
        self._fetched_s = self._fetch_began_s = -math.inf
        self._waiting: list[Callable[[], None]] = []
        self._is_fetching = False
        self._tasks = TaskOwner()

    @property
    def is_usable(self) -> bool:
        """Whether the keys exist and are recent enough."""
        return bool(self.keys) and self._clock() - self._fetched_s < _KEPT_S

    def refresh(self) -> None:
        """Refetch keys older than 5 minutes in the background."""
        if self._clock() - self._fetched_s > _REFRESH_S:
            self._begin(_PAUSE_S)

    def call_after_fetch(self, then: Callable[[], None]) -> bool:
        """Fetch the keys, and call ``then`` after the fetch; return whether ``then`` will be called.

        It is not called if too many callers wait already, or if the last fetch was too recent.
        """
        if len(self._waiting) >= self._waiting_max or not self._begin(_PAUSE_S if self.is_usable else _FAILED_PAUSE_S):
            return False
        self._waiting.append(then)
        return True

    def _begin(self, pause_s: float) -> bool:
        if not self._is_fetching:
            if self._clock() - self._fetch_began_s < pause_s:
                return False
            self._fetch_began_s, self._is_fetching = self._clock(), True
            self._tasks.start(self._fetch(), name=f"keys of {self._issuer}")
        return True

    async def _fetch(self) -> None:
        connections = Connections()
        try:
            async with asyncio.timeout(_FETCH_S):
                fetch = functools.partial(fetch_keys, self._url, issuer=self._issuer, connections=connections)
                keys = await asyncio.get_running_loop().run_in_executor(_FETCHERS, fetch)
            if not keys:
                raise ValueError("it has no public key that can be used")  # noqa: TRY301 - as a fetch that failed
        except (OSError, ValueError) as error:
            text = f"no answer within {_FETCH_S:g} s" if isinstance(error, TimeoutError) else str(error)
            if not self.failure:
                _log.warning("jwks.unavailable", extra={"url": self._url, "error": text, "keys": len(self.keys)})
            self.failure = text or type(error).__name__
        else:
            if self.failure or keys.keys() != self.keys.keys():
                _log.info("jwks.fetched", extra={"url": self._url, "key_ids": sorted(keys)})
            self.keys, self.failure, self._fetched_s = keys, "", self._clock()
        finally:
            connections.end()
            # Callers that come now, before the task has ended, wait for the next fetch.
            resumes, self._waiting, self._is_fetching = self._waiting, [], False
            for then in resumes:
                then()
