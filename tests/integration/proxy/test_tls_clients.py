"""httpx, curl, websockets and grpcio as clients over TLS."""

import asyncio
from pathlib import Path

import grpc  # type: ignore[import-untyped]  # it has no types
import grpc.aio  # type: ignore[import-untyped]
import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from tests.integration.proxy.test_http2 import SERVICE, Chain
from tests.integration.tls_stage import AUTHORITY, client_context, tls_proxied


@pytest.mark.parametrize("is_http2", [True, False])
async def test_httpx_uses_http2_or_http1_over_tls(is_http2: bool) -> None:
    async with tls_proxied() as (proxy, _):
        host, port = proxy.address
        extensions = {"sni_hostname": "h"}
        async with httpx.AsyncClient(http2=is_http2, verify=client_context(), trust_env=False) as client:
            url = f"https://{host}:{port}/x"
            responses = await asyncio.gather(
                *[client.get(url, headers={"Host": "h"}, extensions=extensions) for _ in range(20)]
            )
        assert {response.status_code for response in responses} == {200}
        assert {response.http_version for response in responses} == {"HTTP/2" if is_http2 else "HTTP/1.1"}
        assert all("X-Forwarded-Proto: https" in response.text for response in responses)


@pytest.mark.parametrize("version", ["2", "1.1"])
async def test_curl_receives_response_over_tls(version: str, tmp_path: Path) -> None:
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with tls_proxied() as (proxy, _):
        host, port = proxy.address
        curl = await asyncio.create_subprocess_exec(
            *("curl", "-sS", "--max-time", "60", f"--http{version}", "--cacert", str(tmp_path / "ca.pem")),
            *("--resolve", f"h:{port}:{host}", "-w", "HTTP/%{http_version}", f"https://h:{port}/x"),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await curl.communicate()
    assert output.startswith(b"GET /x HTTP/1.1\r\n")
    assert output.endswith(f"HTTP/{version}".encode())


async def test_websocket_messages_are_forwarded_over_tls() -> None:
    async def echo(socket: ServerConnection) -> None:
        async for message in socket:
            await socket.send(message)

    async with tls_proxied() as (proxy, _), serve(echo, "127.0.0.1", 0) as upstream:
        proxy.handler.address = next(iter(upstream.sockets)).getsockname()
        host, port = proxy.address
        where = connect(f"wss://{host}:{port}/chat", ssl=client_context(), server_hostname="h", proxy=None)
        async with where as socket:
            for message in ("hello", b"\x00" * 200_000):
                await socket.send(message)
                assert await socket.recv() == message


async def test_grpc_call_is_forwarded_over_tls() -> None:
    async with Chain() as chain, tls_proxied() as (proxy, _):
        proxy.handler.address = chain.address
        host, port = proxy.address
        credentials = grpc.ssl_channel_credentials(AUTHORITY.cert_pem.bytes())
        options = (("grpc.ssl_target_name_override", "h"),)
        async with grpc.aio.secure_channel(f"{host}:{port}", credentials, options) as channel:
            assert await channel.unary_unary(f"/{SERVICE}/Unary")(b"hello", timeout=60) == b"hello"
