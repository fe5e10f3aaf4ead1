"""The app on the node: HTTP/1.1, websocket echo and gRPC echo at one port, with the images' packages only.

``/?ms=N`` waits before it answers, ``/crash`` ends the process. Each answer names the version and the pod. The program is
given to ``python -c`` as a whole, so that it imports nothing of this project.
"""

# ruff: noqa: E402 - as process 1 of a container a program ignores SIGTERM until it has a handler
import signal
import sys

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

import asyncio
import base64
import hashlib
import os
import urllib.parse

import h2.config
import h2.connection
import h2.events

VERSION = os.environ.get("VERSION", "1")
_PREFACE = b"PRI * HTTP/2.0"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CHUNK_BYTES = 65536


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(_PREFACE):
            await _serve_http2(head, reader, writer)
            return
        while True:
            lines = head.decode("latin-1").split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            if fields.get("upgrade", "").lower() == "websocket":
                await _serve_websocket(fields["sec-websocket-key"], reader, writer)
                return
            await _respond(lines[0].split(" ")[1], writer)
            head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _respond(target: str, writer: asyncio.StreamWriter) -> None:
    url = urllib.parse.urlsplit(target)
    if url.path == "/crash":
        os._exit(3)
    delay_ms = urllib.parse.parse_qs(url.query).get("ms", ["0"])[0]
    await asyncio.sleep(int(delay_ms) / 1000)
    body = f"version {VERSION} pod {os.environ.get('HOSTNAME', '-')}\n".encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await writer.drain()


async def _serve_websocket(key: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    accept = base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest())
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %s\r\n\r\n" % accept
    )
    while True:
        # A client's frame: below 126 bytes, in one piece, masked.
        first, length = await reader.readexactly(2)
        mask = await reader.readexactly(4)
        payload = await reader.readexactly(length & 0x7F)
        text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
        # Text and close frames go back as they came.
        writer.write(bytes([first, len(text)]) + text)
        await writer.drain()
        if first & 0x0F == 0x8:  # close
            return


async def _serve_http2(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """gRPC: what a call sends comes back."""
    link = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    link.initiate_connection()
    bodies: dict[int, bytes] = {}
    data = head
    while data:
        for event in link.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.data
                link.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                _echo(link, event.stream_id, bodies.pop(event.stream_id, b""))
        writer.write(link.data_to_send())
        await writer.drain()
        data = await reader.read(_CHUNK_BYTES)


def _echo(link: h2.connection.H2Connection, stream: int, body: bytes) -> None:
    link.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
    link.send_data(stream, body)
    link.send_headers(stream, [("grpc-status", "0")], end_stream=True)


async def main() -> None:
    server = await asyncio.start_server(_serve, "0.0.0.0", int(os.environ["PORT"]))  # noqa: S104 - a container's own network
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    server.close()


asyncio.run(main())
