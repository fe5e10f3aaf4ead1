"""Ask an app whether it takes requests: connect to it, or send one GET.

The request is written by hand: a client library would cost the sidecar more memory than itself.
"""

import asyncio

from serving.aio.netns import open_connection
from serving.queueproxy.podspec import Address, Probe

# "HTTP/1.1 200": what a probe reads of an answer.
_STATUS_BYTES = 12
_FINE = (200, 399)
_AGENT = "kube-probe/serving"


async def attempt(probe: Probe, app: Address, *, is_http2: bool = False, network: str = "") -> bool:
    """Whether the app takes a connection, or answers a GET with 200 to 399, within the probe's time.

    ``network`` is the path of the network namespace of the app, "" for our own. ``is_http2`` asks with HTTP/2, as an app must be asked whose port is named h2c.
    """
    host, port = app[0], probe.port or app[1]
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(probe.timeout_s):
            reader, writer = await open_connection(host, port, network=network)
            if probe.path is None:
                return True
            if is_http2:
                from serving.proxy.http2.probe import get_status  # noqa: PLC0415 - most apps need none of it

                headers = [("user-agent", _AGENT), *probe.headers]
                status = await get_status(reader, writer, path=probe.path, host=f"{host}:{port}", headers=headers)
                return _FINE[0] <= status <= _FINE[1]
            writer.write(_get(probe, f"{host}:{port}"))
            start = await reader.readexactly(_STATUS_BYTES)
            return start.startswith(b"HTTP/1.") and b"200" <= start[9:] <= b"399"
    except (OSError, asyncio.IncompleteReadError):
        return False
    finally:
        if writer is not None:
            writer.transport.abort()


def _get(probe: Probe, host: str) -> bytes:
    headers = {"Host": host, "User-Agent": _AGENT, "Connection": "close", **dict(probe.headers)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET {probe.path} HTTP/1.1\r\n{lines}\r\n".encode()
