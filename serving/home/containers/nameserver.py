"""The DNS server of this machine's pods, at their gateway: UDP and TCP.

``NameResponses`` resolves the names of services. Other queries are forwarded to the servers of /etc/resolv.conf.
Queries, connections and forwarded queries are bounded per pod, because pods are not trusted and the process has other
work.
"""

import asyncio
import contextlib
import ipaddress
import logging
import struct
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import cast

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.routehosts import named_address
from serving.net.aio.supervise import TaskOwner

_HEADER = struct.Struct("!HHHHHH")
_KIND_AND_CLASS = struct.Struct("!HH")
_CLUSTER = "cluster.local"
_SERVICE_LABELS = 5
_A, _INTERNET = 1, 1
_TTL_S = 5
# Flags of a response: QR, AA and RA; the low bits are the response code.
_RESPONSE, _RECURSION_WANTED = 0x8480, 0x0100
_NO_NAME, _SERVER_FAILURE = 3, 2
_LABEL_BYTES_MAX = 63
# Longest name with its lengths (RFC 1035, section 3.1), and longest query with all options (RFC 6891 recommends 4096).
_NAME_BYTES_MAX, _QUERY_BYTES_MAX = 255, 4096
# A pointer to the name in the question, which follows the header.
_SAME_NAME = 0xC00C

_log = logging.getLogger("names")

_PORT = 53
_TIMEOUT_S = 3.0
_IDLE_S = 10.0
# Limits per pod: queries per second (a lookup of an external name needs up to ten), forwarded queries, and
# connections. Excess queries are dropped, as by a full network, and their connection is closed.
_QUERIES_PER_S, _FORWARDED_MAX, _CONNECTIONS_MAX = 1000, 64, 16


def question_of(query: bytes) -> tuple[str, int, int]:
    """Parse a DNS query: its name in lower case, its type, and where the question ends. Raises ``InvalidValue``."""
    labels, at = [], _HEADER.size
    try:
        _, flags, count, *_ = _HEADER.unpack_from(query)
        while query[at]:
            length = query[at]
            is_too_long = length > _LABEL_BYTES_MAX or at + length + 2 - _HEADER.size > _NAME_BYTES_MAX
            if is_too_long or count != 1 or flags & 0x8000:
                raise InvalidValue(text=query[: at + 1].hex(), expected="one question")
            labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
            at += 1 + length
        kind, _ = _KIND_AND_CLASS.unpack_from(query, at + 1)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise InvalidValue(text=query[:20].hex(), expected="a question") from error
    return ".".join(labels).lower(), kind, at + 1 + _KIND_AND_CLASS.size


class NameResponses(msgspec.Struct, frozen=True, kw_only=True):
    """Responds to DNS queries about services with the address of the gateway's ``inner`` or ``public`` listener."""

    inner: str
    public: str

    def respond(self, query: bytes, hosts: Container[str], named: Container[str] = ()) -> bytes | None:
        """The response to a query; None if another DNS server must answer.

        ``hosts`` are the public hosts of services. ``named`` are the cluster-local hosts of services with a named port,
        at which clients reach the service by its short name. These hosts have a separate address per namespace.

        Raises:
            InvalidValue: when the datagram is not a query.
        """
        name, kind, end = question_of(query)
        address = self._address(name, hosts, named)
        if address is None:
            return None
        if not address:
            return _response(query, end, code=_NO_NAME)
        return _response(query, end, address=address if kind == _A else "")

    def _address(self, name: str, hosts: Container[str], named: Container[str]) -> str | None:
        """The address of a service's host; "" for NXDOMAIN, None for a name that another server must resolve."""
        if name == _CLUSTER or name.endswith(f".{_CLUSTER}"):
            if name in named:
                return named_address(self.inner, name.split(".")[1])
            is_service = name.endswith(f".svc.{_CLUSTER}") and len(name.split(".")) == _SERVICE_LABELS
            return self.inner if is_service else ""
        if name in hosts or name.endswith(".localhost"):
            return self.public
        return None


def failure(query: bytes) -> bytes:
    """A SERVFAIL response."""
    return _response(query, question_of(query)[2], code=_SERVER_FAILURE)


def _response(query: bytes, end: int, *, address: str = "", code: int = 0) -> bytes:
    number, flags, *_ = _HEADER.unpack_from(query)
    head = _HEADER.pack(number, _RESPONSE | (flags & _RECURSION_WANTED) | code, 1, int(bool(address)), 0, 0)
    record = b""
    if address:
        data = ipaddress.IPv4Address(address).packed
        record = struct.pack("!HHHIH", _SAME_NAME, _A, _INTERNET, _TTL_S, len(data)) + data
    return head + query[_HEADER.size : end] + record


def servers_of(resolv_conf: str) -> list[str]:
    """The servers in the text of a resolv.conf."""
    lines = (line.split() for line in resolv_conf.splitlines())
    return [line[1] for line in lines if len(line) > 1 and line[0] == "nameserver"]


class QueryCounts:
    """Counts each pod's queries in the current second."""

    def __init__(self, *, second_max: int = _QUERIES_PER_S) -> None:
        self._second_max = second_max
        self._second = 0
        self._counts: Counter[str] = Counter()

    def admits(self, address: str, now_s: float) -> bool:
        """Count a query of a pod; return whether the pod is within the limit."""
        second = int(now_s)
        if second != self._second:
            self._second = second
            self._counts = Counter()
        self._counts[address] += 1
        return self._counts[address] <= self._second_max


class NameServer:
    """Serves DNS for pods at ``address``. Names of services are resolved by ``responses``, others by ``resolv_conf``.

    ``hosts`` are the public hosts of services. ``named`` returns the cluster-local hosts of services with a named port.
    """

    def __init__(
        self,
        address: str,
        responses: NameResponses,
        hosts: Container[str],
        *,
        named: Callable[[], Container[str]] = tuple,
        resolv_conf: Path = Path("/etc/resolv.conf"),
    ) -> None:
        self._address = address
        self._responses = responses
        self._hosts = hosts
        self._resolv_conf = resolv_conf
        self._named = named
        self._tasks = TaskOwner()
        self._queries = QueryCounts()
        self._forwarded: Counter[str] = Counter()
        self._connections: Counter[str] = Counter()

    async def run(self, *, port: int = _PORT) -> None:
        """Serve until cancelled. If the port is not available, log that pods have no names."""
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_datagram_endpoint(
                lambda: _Datagrams(self), local_addr=(self._address, port)
            )
            server = await asyncio.start_server(self._connected, self._address, port)
        except OSError as error:
            _log.warning("names.unavailable", extra={"address": f"{self._address}:{port}", "error": str(error)})
            return
        try:
            async with server:
                await server.serve_forever()
        finally:
            transport.close()
            await self._tasks.close()

    def received(self, query: bytes, peer: tuple[str, int], transport: asyncio.DatagramTransport) -> None:
        """Handle a datagram."""
        if len(query) > _QUERY_BYTES_MAX or not self._queries.admits(peer[0], time.monotonic()):
            return

        async def respond() -> None:
            with contextlib.suppress(InvalidValue):
                transport.sendto(await self._respond(query, peer[0], over_tcp=False), peer)

        self._tasks.start(respond(), name="name")

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: str = writer.get_extra_info("peername")[0]
        with _counted(self._connections, peer) as count:
            try:
                while count <= _CONNECTIONS_MAX:
                    await self._respond_once(reader, writer, peer)
            except (OSError, EOFError, InvalidValue, TimeoutError):
                pass
            finally:
                writer.transport.abort()

    async def _respond_once(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        async with asyncio.timeout(_IDLE_S):
            length = int.from_bytes(await reader.readexactly(2))
            if length > _QUERY_BYTES_MAX:
                raise InvalidValue(text=f"{length} bytes", expected=f"a query of at most {_QUERY_BYTES_MAX} bytes")
            query = await reader.readexactly(length)
        if not self._queries.admits(peer, time.monotonic()):
            raise ConnectionAbortedError
        response = await self._respond(query, peer, over_tcp=True)
        writer.write(len(response).to_bytes(2) + response)
        async with asyncio.timeout(_IDLE_S):
            await writer.drain()
        # The next query may have arrived already; others are answered before it.
        await asyncio.sleep(0)

    async def _respond(self, query: bytes, peer: str, *, over_tcp: bool) -> bytes:
        """The response to a query from a pod. Raises ``InvalidValue``."""
        own = self._responses.respond(query, self._hosts, self._named())
        if own is not None:
            return own
        with _counted(self._forwarded, peer) as count:
            return failure(query) if count > _FORWARDED_MAX else await self._forward(query, over_tcp=over_tcp)

    async def _forward(self, query: bytes, *, over_tcp: bool) -> bytes:
        for server in self._servers():
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(_TIMEOUT_S):
                    return await (_forward_tcp(server, query) if over_tcp else _forward(server, query))
        return failure(query)

    def _servers(self) -> Iterator[str]:
        # It may change at run time, when a machine joins another network.
        with contextlib.suppress(OSError):
            yield from (server for server in servers_of(self._resolv_conf.read_text()) if server != self._address)


@contextlib.contextmanager
def _counted(counts: Counter[str], peer: str) -> Iterator[int]:
    """While the block runs, count one query or connection of a pod. Yields the count, including this one."""
    counts[peer] += 1
    try:
        yield counts[peer]
    finally:
        counts[peer] -= 1
        if not counts[peer]:
            del counts[peer]


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods, but is not a subclass.
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._server.received(data, addr, self._transport)


class _OneResponse(asyncio.DatagramProtocol):
    """Waits for the response to a query."""

    def __init__(self, query: bytes) -> None:
        self._query_id = query[:2]
        self.response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, _addr: tuple[str, int]) -> None:
        if not self.response.done() and data[:2] == self._query_id:
            self.response.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.response.done():
            self.response.set_exception(exc)


async def _forward(server: str, query: bytes) -> bytes:
    transport, waiting = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _OneResponse(query), remote_addr=(server, _PORT)
    )
    try:
        transport.sendto(query)
        return await waiting.response
    finally:
        transport.close()


async def _forward_tcp(server: str, query: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(server, _PORT)
    try:
        writer.write(len(query).to_bytes(2) + query)
        return await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
    finally:
        writer.close()
