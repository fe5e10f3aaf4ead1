"""The library's connections, configured so that an error of one stream does not end the others.

- Heads. A malformed head ends its stream only (RFC 9113, 8.1.1): ``heads.py`` reads them.
- Lengths. So does a body that is not as long as its head says: its reader counts.
- The number of streams. A client that has not seen our settings yet may open more; those are refused one by one.
"""

from typing import Any

from h2.config import H2Configuration
from h2.connection import AllowedStreamIDs, H2Connection
from h2.settings import SettingCodes
from h2.stream import H2Stream

from serving.settings.http import HttpSettings

__all__ = ["WINDOW_BYTES", "client_engine", "server_engine"]

# What one stream may send before its reader has taken it: RFC 9113's default.
WINDOW_BYTES = 65_535
# HTTP/2's largest window.
_CONNECTION_WINDOW_BYTES = 2**31 - 1
_UNBOUNDED = 2**31 - 1
# A head larger than we take is answered with 431, up to this many times as large; beyond, the connection is ended.
_LIST_RATIO = 4


class _Http2Engine(H2Connection):
    """A connection that counts no lengths."""

    # How each of so many streams ended is remembered, 100 bytes each: the library's 65,536 would be 7 MB a connection.
    MAX_CLOSED_STREAMS = 1024

    def _begin_new_stream(self, stream_id: int, allowed_ids: AllowedStreamIDs) -> H2Stream:
        stream = super()._begin_new_stream(stream_id, allowed_ids)
        stream._initialize_content_length = _nothing  # type: ignore[method-assign]  # noqa: SLF001 - it has no setting
        return stream


def server_engine(settings: HttpSettings) -> H2Connection:
    """The server's side of a connection, with its first frames ready to be sent."""
    h2 = _Http2Engine(_configuration(client_side=False))
    h2.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = settings.http2_streams_max
    h2.local_settings[SettingCodes.MAX_HEADER_LIST_SIZE] = settings.head_bytes_max
    h2.local_settings[SettingCodes.ENABLE_CONNECT_PROTOCOL] = 0
    # The library announces the settings in force: without this, the earlier ones.
    h2.local_settings.acknowledge()
    h2.initiate_connection()
    # One stream that is not read must not stop the others.
    h2.increment_flow_control_window(WINDOW_BYTES * (settings.http2_streams_max - 1))
    # The announced limit is enforced here, stream by stream, and not by the library, which would end the connection.
    h2.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = _UNBOUNDED
    h2.local_settings.acknowledge()
    h2.decoder.max_header_list_size = settings.head_bytes_max * _LIST_RATIO
    return h2


def client_engine(*, head_bytes_max: int) -> H2Connection:
    """The client's side of a connection, with its first frames ready to be sent."""
    h2 = _Http2Engine(_configuration(client_side=True))
    h2.local_settings[SettingCodes.ENABLE_PUSH] = 0
    h2.local_settings[SettingCodes.MAX_HEADER_LIST_SIZE] = head_bytes_max
    # As above.
    h2.local_settings.acknowledge()
    h2.initiate_connection()
    # All streams together: none that is held may stop the others.
    h2.increment_flow_control_window(_CONNECTION_WINDOW_BYTES - WINDOW_BYTES)
    h2.decoder.max_header_list_size = head_bytes_max * _LIST_RATIO
    return h2


def _configuration(*, client_side: bool) -> H2Configuration:
    # Heads that come are read in ``heads.py``, and those that go were written there.
    return H2Configuration(
        client_side=client_side,
        header_encoding=None,
        validate_inbound_headers=False,
        normalize_inbound_headers=False,
        validate_outbound_headers=False,
        normalize_outbound_headers=False,
    )


def _nothing(headers: Any) -> None:  # noqa: ANN401 - the library's
    """Replaces a method of the library."""
