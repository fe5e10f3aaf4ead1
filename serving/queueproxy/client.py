"""What the queue-proxy asks of others: its app whether it is ready, the autoscaler to take a statistic.

``attempt`` connects to the app, or sends one GET, by hand: a client library would cost the sidecar more memory than
itself. ``stats_link`` is the websocket for statistics.
"""

import asyncio
from collections.abc import Callable

from serving.queueproxy.podspec import Address, PodSpec, Probe
from serving.wire.link import Link, LinkSettings

__all__ = ["attempt", "stats_link"]

# "HTTP/1.1 200": what a probe reads of an answer.
_STATUS_BYTES = 12
_FINE = (200, 399)
_AGENT = "kube-probe/serving"


async def attempt(probe: Probe, app: Address, *, is_http2: bool = False) -> bool:
    """Whether the app takes a connection, or answers a GET with 200 to 399, within the probe's time.

    ``is_http2`` asks with HTTP/2, as an app must be asked whose port is named h2c.
    """
    host, port = app[0], probe.port or app[1]
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(probe.timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
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


def stats_link(spec: PodSpec, *, draw: Callable[[], float]) -> Link:
    """The link to the autoscaler that takes the statistics of this pod; ``draw`` spreads its pauses.

    One statistic waits at most: the newest.
    """
    assert spec.stats_url is not None
    query = f"namespace={spec.namespace}&revision={spec.revision}&pod={spec.pod}"
    url = f"{spec.stats_url}{'&' if '?' in spec.stats_url else '?'}{query}"
    settings = LinkSettings(
        pause_min_s=spec.settings.report_retry_min_s,
        pause_max_s=spec.settings.report_retry_max_s,
        frames_max=1,
        wait=True,
    )
    return Link(url, token=lambda: _token(spec), draw=draw, settings=settings)


def _token(spec: PodSpec) -> str:
    """The token of now: a file is written anew before the token in it is too old.

    Raises:
        OSError: when there is no such file.
    """
    if not spec.stats_token_file:
        return spec.stats_token
    with open(spec.stats_token_file, encoding="ascii") as file:  # noqa: PTH123 - as in wire.tokens
        return file.read().strip()
