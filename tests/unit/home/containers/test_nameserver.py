import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.routehosts import named_address
from serving.home.containers import nameserver
from serving.home.containers.nameserver import (
    NameResponses,
    NameServer,
    QueryCounts,
    failure,
    question_of,
    servers_of,
)
from tests.eventually import until

ANSWERS = NameResponses(inner="10.138.1.2", public="10.139.1.2")
A, AAAA = 1, 28


def query(name: str, kind: int = A) -> bytes:
    labels = b"".join(bytes([len(text)]) + text.encode() for text in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def outcome(response: bytes | None) -> tuple[int, str]:
    """The response code, and the address if there is one."""
    assert response is not None
    number, flags, questions, responses, *_ = struct.unpack_from("!HHHHHH", response)
    assert (number, questions, flags & 0x8000) == (7, 1, 0x8000)
    return flags & 0xF, ".".join(map(str, response[-4:])) if responses else ""


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("hello.default.svc.cluster.local", A, (0, "10.138.1.2")),
        ("Hello.Default.SVC.cluster.local", A, (0, "10.138.1.2")),
        ("hello.default.svc.cluster.local", AAAA, (0, "")),
        ("hello.default.svc.cluster.local.default.svc.cluster.local", A, (3, "")),
        ("example.org.svc.cluster.local", A, (0, "10.138.1.2")),
        ("hello.svc.cluster.local", A, (3, "")),
        ("cluster.local", A, (3, "")),
        ("hello.default.localhost", A, (0, "10.139.1.2")),
        ("shop.example.com", A, (0, "10.139.1.2")),
    ],
)
def test_service_names_resolve_to_the_gateway(name: str, kind: int, expected: tuple[int, str]) -> None:
    assert outcome(ANSWERS.respond(query(name, kind), {"shop.example.com"})) == expected


def test_named_port_service_resolves_to_its_namespaces_address() -> None:
    named = {"api.default.svc.cluster.local"}
    expected = (0, named_address("10.138.1.2", "default"))
    assert outcome(ANSWERS.respond(query("api.default.svc.cluster.local"), (), named)) == expected
    assert outcome(ANSWERS.respond(query("web.default.svc.cluster.local"), (), named)) == (0, "10.138.1.2")


def test_other_names_are_left_to_upstream_servers() -> None:
    assert ANSWERS.respond(query("example.org"), {"shop.example.com"}) is None
    assert outcome(failure(query("example.org"))) == (2, "")


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"x",
        query("a." * 127 + "a"),
        query("a.b")[:-3],
        query("a.b").replace(b"\x01a", b"\xc0a"),
        query("a")[:2] + b"\x80" + query("a")[3:],
    ],
)
def test_malformed_query_is_rejected(damaged: bytes) -> None:
    with pytest.raises(InvalidValue):
        question_of(damaged)


def test_upstream_servers_are_read_from_resolv_conf() -> None:
    assert servers_of("# x\nsearch a\nnameserver 1.2.3.4\nnameserver\nnameserver ::1\n") == ["1.2.3.4", "::1"]


def test_queries_per_pod_and_second_are_limited() -> None:
    counts = QueryCounts(second_max=2)
    admitted = [counts.admits(pod, at_s) for pod, at_s in (("a", 1.0), ("a", 1.5), ("a", 1.9), ("b", 1.9), ("a", 2.0))]
    assert admitted == [True, True, False, True, True]


@contextlib.asynccontextmanager
async def serving_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, int]]:
    """The address of a name server whose upstream server never responds."""
    with socket.socket(type=socket.SOCK_DGRAM) as silent, socket.socket() as free:
        silent.bind(("127.0.0.1", 0))
        free.bind(("127.0.0.2", 0))
        address: tuple[str, int] = free.getsockname()
        free.close()
        monkeypatch.setattr(nameserver, "_PORT", silent.getsockname()[1])
        (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        server = NameServer(address[0], ANSWERS, (), resolv_conf=tmp_path / "resolv.conf")
        running = asyncio.create_task(server.run(port=address[1]))
        await until(lambda: _is_open(address))
        try:
            yield address
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _is_open(address: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(address):
        return True
    return False


async def test_forwarded_queries_per_pod_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_names(tmp_path, monkeypatch) as address:
        with socket.socket(type=socket.SOCK_DGRAM) as pod:
            pod.setblocking(False)
            for _ in range(nameserver._FORWARDED_MAX + 1):
                pod.sendto(query("example.org"), address)
            # The query above the limit fails first: the others wait for the upstream server.
            refused = await asyncio.get_running_loop().sock_recv(pod, 512)
            assert outcome(refused) == (2, "")
            pod.sendto(query("hello.default.svc.cluster.local"), address)
            assert outcome(await asyncio.get_running_loop().sock_recv(pod, 512)) == (0, "10.138.1.2")


async def test_tcp_connections_per_pod_and_query_size_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_names(tmp_path, monkeypatch) as address, contextlib.AsyncExitStack() as at_end:
        streams = [await asyncio.open_connection(*address) for _ in range(nameserver._CONNECTIONS_MAX + 1)]
        for _, writer in streams:
            at_end.callback(writer.close)
        message = query("hello.default.svc.cluster.local")
        for _, writer in streams:
            writer.write(len(message).to_bytes(2) + message)
        sizes = [len(await _all_of(reader, 2)) for reader, _ in streams]
        assert sorted(sizes) == [0] + [2] * nameserver._CONNECTIONS_MAX
        reader, writer = streams[sizes.index(2)]
        writer.write(b"\xff\xff")
        await _all_of(reader, 1000)
        assert reader.at_eof()


async def _all_of(reader: asyncio.StreamReader, count: int) -> bytes:
    """Read up to ``count`` bytes, fewer if the connection ends."""
    try:
        return await reader.readexactly(count)
    except asyncio.IncompleteReadError as error:
        return error.partial
    except ConnectionError:
        return b""
