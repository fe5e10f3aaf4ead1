"""Reads the app's metrics page on localhost, once a second, for the gauges chosen by its revision.

A reading ends after 0.8 s or 1 MiB, because the app may respond slowly or endlessly. A failed reading changes no gauge;
old gauges expire. The first of consecutive failures is logged with the expected form.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from serving.net.aio.clock import now_s
from serving.net.aio.netns import open_connection
from serving.net.aio.periodic import every
from serving.net.proxy.http1.body import BadBody, ChunkedBody, CloseBody, LengthBody
from serving.net.proxy.http1.responsehead import BadResponse, Framing, read_response_head
from serving.queueproxy.gauges import AppGauges
from serving.queueproxy.io.readiness import listener_check
from serving.queueproxy.podspec import Address, PodSpec

_LOG = logging.getLogger(__name__)

# A reading ends before the next one begins.
_PERIOD_S, _TIMEOUT_S = 1.0, 0.8
# vLLM's page has about 100 KB.
_PAGE_BYTES_MAX = 2**20
_HEADER_COUNT_MAX = 100
_PIECE_BYTES = 64 * 1024
_FINE = 200


class UnreadablePage(Exception):
    """A page that cannot be read; the text is the reason."""


async def fetch_page(address: Address, path: str, *, timeout_s: float = _TIMEOUT_S) -> bytes:
    """The response body of a GET to a local address.

    Raises:
        UnreadablePage: if the request fails, the status is not 200, or the page is too long or too slow.
    """
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await open_connection(*address)
            host = f"{address[0]}:{address[1]}"
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: serving-queue-proxy\r\n"
                "Accept: text/plain;version=0.0.4\r\nConnection: close\r\n\r\n".encode()
            )
            return await _read(reader)
    except (OSError, BadBody, BadResponse, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise UnreadablePage(str(error) or type(error).__name__) from error
    finally:
        if writer is not None:
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> bytes:
    # At most the reader's limit of 64 KiB.
    raw = await reader.readuntil(b"\r\n\r\n")
    head = read_response_head(raw[:-4], method=b"GET", header_count_max=_HEADER_COUNT_MAX)
    if head.status != _FINE:
        raise UnreadablePage(f"status {head.status}")
    if head.framing is Framing.NONE:
        return b""
    body = (
        LengthBody(head.content_length)
        if head.framing is Framing.LENGTH and head.content_length
        else ChunkedBody()
        if head.framing is Framing.CHUNKED
        else CloseBody()
    )
    page = b""
    while not body.done:
        piece = await reader.read(_PIECE_BYTES)
        if not piece:
            if isinstance(body, CloseBody):
                break
            raise UnreadablePage("the page ends early")
        page += body.feed(piece)
        if len(page) > _PAGE_BYTES_MAX:
            raise UnreadablePage(f"more than {_PAGE_BYTES_MAX} bytes")
    return page


async def watch_gauges(
    spec: PodSpec,
    gauges: AppGauges,
    *,
    stop: asyncio.Event,
    probing: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
    period_s: float = _PERIOD_S,
    timeout_s: float = _TIMEOUT_S,
) -> None:
    """Read the metrics page once per period, within the context ``probing``, until ``stop`` is set.

    A reading fails after ``timeout_s``.
    """
    address, path = (spec.app[0], spec.metrics_port or spec.app[1]), spec.metrics_path
    check = listener_check(spec)
    is_fine: bool | None = None

    async def beat() -> None:
        nonlocal is_fine
        try:
            async with probing():
                if check is not None:
                    check.require(*address)
                page = await fetch_page(address, path, timeout_s=timeout_s)
        except (UnreadablePage, OSError) as error:
            report(ok=False, reason=str(error))
            return
        gauges.record_page(page, now_s())
        missing = [name for name in gauges.names if name not in gauges.current(now_s())]
        report(ok=not missing, reason=f"no usable line of {', '.join(missing)}")

    def report(*, ok: bool, reason: str) -> None:
        nonlocal is_fine
        if not ok and is_fine is not False:
            where = f"http://{address[0]}:{address[1]}{path}"
            _LOG.warning("gauges.missing", extra={"page": where, "reason": reason})
        elif ok and is_fine is False:
            _LOG.info("gauges.found")
        is_fine = ok

    def on_error(error: Exception) -> None:
        _LOG.error("gauges.failed", extra={"error": repr(error)})

    await every(period_s, beat, stop=stop, on_error=on_error)
