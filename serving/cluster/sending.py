"""A request of the kube adapter that checks, as late as possible, whether its write is still allowed.

It checks with a connection in hand, and again right before the bytes go to the transport, a turn of the loop later: until
then the head waits for the body. A refused request leaves nothing on the wire.
"""

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from serving.cluster.fenced import last_check
from serving.model.errors import NotLeading


class CheckedRequest(aiohttp.ClientRequest):
    """The request class of the session. Raises ``NotLeading`` where others raise ``aiohttp.ClientError``."""

    async def send(self, conn: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        """Start sending unless the lease is lost."""
        last_check()
        return await super().send(conn)

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: aiohttp.connector.Connection, content_length: int | None = None
    ) -> None:
        """Pass head and body to the transport unless the lease was lost meanwhile."""
        try:
            last_check()
        except NotLeading as error:
            # The caller that waits for the response gets this error and closes the connection.
            if conn.protocol is not None:
                conn.protocol.set_exception(error)
            return
        await super().write_bytes(writer, conn, content_length)
