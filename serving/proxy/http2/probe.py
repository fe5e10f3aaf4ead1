"""One GET over HTTP/2 with prior knowledge, for probes of apps that speak nothing else."""

import asyncio
from collections.abc import Iterable

from h2.events import ConnectionTerminated, ResponseReceived, StreamReset
from h2.exceptions import ProtocolError

from serving.proxy.http2.engine import client_engine

__all__ = ["get_status"]

_READ_BYTES = 65_536
_HEAD_BYTES_MAX = 32 * 1024


async def get_status(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    path: str,
    host: str,
    headers: Iterable[tuple[str, str]] = (),
) -> int:
    """The status of the answer; 0 when there is none. The connection is good for nothing afterwards."""
    h2 = client_engine(head_bytes_max=_HEAD_BYTES_MAX)
    named = {name.lower(): value for name, value in headers}
    pseudo = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", named.pop("host", host))]
    h2.send_headers(1, [*pseudo, *named.items()], end_stream=True)
    while True:
        writer.write(h2.data_to_send())
        data = await reader.read(_READ_BYTES)
        if not data:
            return 0
        try:
            events = h2.receive_data(data)
        except ProtocolError:
            return 0
        for event in events:
            if isinstance(event, ResponseReceived):
                status = dict(event.headers).get(b":status", b"")
                return int(status) if status.isdigit() else 0
            if isinstance(event, StreamReset | ConnectionTerminated):
                return 0
