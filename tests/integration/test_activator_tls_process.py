"""TLS of an activator in a separate process: a Secret read over the API, inherited sockets, invalid clients, shutdown."""

import asyncio
import contextlib
import json
import socket
import ssl
from pathlib import Path

import pytest

from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import SECRET
from tests.integration.activator_stage import HOST, Store
from tests.integration.api_server import served
from tests.integration.proxy.peers import Link
from tests.integration.test_activator_process import started, stopped
from tests.integration.test_activator_tls import secret_of
from tests.integration.tls_stage import RawTls, client_context, handshake

REQUEST = f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


async def send_invalid_bytes(address: tuple[str, int]) -> None:
    """Clients that send invalid bytes, as on any public port; none may cause a stack trace in the log."""
    for first in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(100), bytes(300), b"\x16"):
        link = await Link.to(address)
        link.send(first)
        link.writer.write_eof()
        with contextlib.suppress(ConnectionResetError):
            await link.rest()
        await link.closed()
    link = await Link.to(address)
    hello = RawTls(link, client_context(), "strange.example").hello()
    link.send(hello.replace(b"strange", b"str\xff\xfege"))
    # The last byte of the alert is internal_error.
    assert (await link.rest())[-1:] == b"\x50"
    await link.closed()
    with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
        await handshake(address, "nobody.example")


async def test_activator_process_serves_tls_from_a_secret_and_completes_requests(tmp_path: Path) -> None:
    store = Store(MemoryCluster())
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in ("public", "inner", "tls")}
    async with served(store.cluster, tmp_path) as api:
        await store.cluster.create(SECRET, secret_of("*.default.localhost"))
        environment = {
            "KUBECONFIG": str(api.kubeconfig),
            "SERVING_LISTEN_FDS": json.dumps({name: each_sock.fileno() for name, each_sock in sockets.items()}),
            "SERVING_ACTIVATOR_STATS_URL": "ws://127.0.0.1:1/stats",
            "SERVING_ACTIVATOR_TLS_SECRETS": "world",
            "SERVING_ACTIVATOR_TLS_RELOAD_PERIOD_S": "0.05",
        }
        process = await started(tmp_path, environment, *sockets.values())
        address = sockets["tls"].getsockname()
        await store.service(slots=0)
        pod = await store.pod("p")
        pod.gate.clear()
        client = await RawTls.to(address, HOST)
        await send_invalid_bytes(address)
        client.send(REQUEST)
        async with asyncio.timeout(60):
            while not pod.running_count:  # noqa: ASYNC110 - it is in another process
                await asyncio.sleep(0.01)
        stopping = asyncio.create_task(stopped(process))
        # The process stops accepting connections; then the request in flight ends.
        await asyncio.sleep(0.1)
        pod.gate.set()
        response = await client.rest()
        await client.closed()
        code, log = await stopping
        await pod.stop()
    for sock in sockets.values():
        sock.close()
    assert (response[:12], response[-1:], code) == (b"HTTP/1.1 200", b"p", 0)
    events = [str(line["event"]) for line in log]
    assert "certificate.loaded" in events
    assert {line["level"] for line in log if line["event"] != "link.lost"} <= {"info", "warning"}
    failed = [line["since_start"] for line in log if line["event"] == "tls.handshakes-failed"]
    assert failed
