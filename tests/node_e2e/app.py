"""The app on the node: HTTP/1.1, websocket echo and gRPC echo at one port, with the images' packages only.

``/?ms=N`` waits before it answers, ``/crash`` ends the process. Each answer names the version and the pod. The program
is given to ``python -c`` as a whole, so that it imports nothing of this project.
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

VERSION = os.environ.get("VERSION", "1")
_PREFACE = b"PRI * HTTP/2.0"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_STATUS_200 = bytes([0x88])  # the entry of the static table


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(_PREFACE):
            await _serve_http2(reader, writer)
            return
        while True:
            lines = head.decode("latin-1").split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            if fields.get("upgrade", "").lower() == "websocket":
                await _serve_websocket(fields["sec-websocket-key"], reader, writer)
                return
            await reader.readexactly(int(fields.get("content-length", "0")))
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


async def _serve_http2(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo gRPC calls. Header blocks are not read: nothing here depends on them."""
    await reader.readexactly(len(b"SM\r\n\r\n"))
    writer.write(_frame(_SETTINGS, 0, 0))
    bodies: dict[int, bytes] = {}
    while True:
        head = await reader.readexactly(9)
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:]) & 0x7FFFFFFF
        payload = await reader.readexactly(int.from_bytes(head[:3]))
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            writer.write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        if kind == _DATA:
            bodies[stream] = bodies.get(stream, b"") + payload
            for number in (0, stream) if payload else ():
                writer.write(_frame(_WINDOW_UPDATE, 0, number, len(payload).to_bytes(4)))
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            writer.write(
                _frame(_HEADERS, _END_HEADERS, stream, _STATUS_200 + _field(b"content-type", b"application/grpc"))
            )
            writer.write(_frame(_DATA, 0, stream, bodies.pop(stream, b"")))
            writer.write(_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, _field(b"grpc-status", b"0")))
        await writer.drain()


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _field(name: bytes, value: bytes) -> bytes:
    """A literal header field that is not indexed (RFC 7541, 6.2.2)."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


async def main() -> None:
    server = await asyncio.start_server(_serve, "0.0.0.0", int(os.environ["PORT"]))  # noqa: S104 - a container's own network
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    server.close()


asyncio.run(main())
