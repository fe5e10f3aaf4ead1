"""Several acceptors on one listening socket, as in processes that share it."""

import asyncio
import socket
from collections.abc import Iterator
from typing import cast

import pytest

from serving.net.proxy.server.listener import Acceptor

CLIENTS = 20


class Named(asyncio.Protocol):
    """Responds with the name of the acceptor."""

    def __init__(self, name: str) -> None:
        self.name = name

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert data == b"?"
        self.transport.write(self.name.encode())
        self.transport.close()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=CLIENTS) as sock:
        sock.setblocking(False)
        yield sock


def acceptor(listening: socket.socket, name: str) -> Acceptor:
    return Acceptor(listening.dup(), lambda: Named(name))


async def reply_to(client: socket.socket) -> str:
    client.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=client)
    writer.write(b"?")
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()


async def test_simultaneous_connections_are_distributed_evenly_between_acceptors(listening: socket.socket) -> None:
    clients = [socket.create_connection(listening.getsockname()) for _ in range(CLIENTS)]
    acceptors = [acceptor(listening, name) for name in "ab"]
    results = await asyncio.gather(*map(reply_to, clients))
    assert sorted(results) == ["a"] * (CLIENTS // 2) + ["b"] * (CLIENTS // 2)
    for each_acceptor in acceptors:
        each_acceptor.close()


async def test_connection_not_accepted_by_closed_acceptor_is_accepted_by_another(listening: socket.socket) -> None:
    first = acceptor(listening, "a")
    assert first.sockets[0].getsockname() == listening.getsockname()
    client = socket.create_connection(listening.getsockname())
    first.close()
    first.close()
    second = acceptor(listening, "b")
    assert await reply_to(client) == "b"
    second.close()
