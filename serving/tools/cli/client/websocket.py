"""Opens websockets to the API server for ``serving exec`` and for forwarded ports."""

import contextlib
import json
import ssl
from collections.abc import Awaitable, Mapping, Sequence

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from serving.core.model.errors import ServingError, Unavailable

UNOPENED = (InvalidHandshake, OSError)
"""What opening raises; ``refusal`` says why."""


class WebsocketPlace(msgspec.Struct, frozen=True):
    """A URL of the API, the headers with the user's credentials, and what TLS needs."""

    url: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None

    def open(self, protocols: Sequence[str]) -> Awaitable[ClientConnection]:
        """A connection by one of these protocols. Raises as ``UNOPENED`` says."""
        return connect(
            self.url.replace("http", "ws", 1),
            ssl=self.tls,
            subprotocols=[Subprotocol(protocol) for protocol in protocols],
            additional_headers=self.headers,
            proxy=None,
            compression=None,
            max_size=None,
            # The server answers no ping while the command does not read its input.
            ping_timeout=None,
        )


def refusal(error: Exception) -> ServingError:
    """Why a websocket was not opened, in the API's words where it has some."""
    if not isinstance(error, InvalidStatus):
        return Unavailable(str(error) or type(error).__name__)
    text = (error.response.body or b"").decode("utf-8", "replace").strip()
    with contextlib.suppress(ValueError, LookupError, TypeError):
        text = str(json.loads(text)["message"])
    return ServingError(text or f"status {error.response.status_code}")
