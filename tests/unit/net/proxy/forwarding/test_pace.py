"""Minimum rates of clients: deadlines by bytes, and the bytes that count as read."""

import contextlib
import socket

from hypothesis import given
from hypothesis import strategies as st

from serving.core.settings.http import HttpSettings
from serving.net.proxy.forwarding.pace import (
    BodyPace,
    MinimumRate,
    ReaderPace,
    ResponseBuffer,
    ResponseBuffers,
    body_pace,
    read_pace,
)
from serving.net.proxy.http1.requesthead import HeadMemory
from tests.eventually import until

PACE = MinimumRate(bytes_per_s=100, grace_s=10.0, silence_max_s=60.0)
CHUNKED = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked"


def due_s(pace: BodyPace, more: bytes = b"", *, is_continued: bool = False, has_response: bool = False) -> float:
    head = HeadMemory().read(CHUNKED + more, header_count_max=10)
    return pace.due_s(head, is_continued=is_continued, has_response=has_response)


def test_first_deadline_is_the_grace_period() -> None:
    assert PACE.begin(5.0) == 15.0


def test_deadline_extends_by_bytes_at_minimum_rate() -> None:
    assert PACE.extend(15.0, 200, 6.0) == 17.0


def test_deadline_extension_is_capped_at_maximum_silence() -> None:
    assert PACE.extend(15.0, 1_000_000, 6.0) == 66.0


def test_any_byte_restarts_silence_without_minimum_rate() -> None:
    pace = MinimumRate(bytes_per_s=0, grace_s=10.0, silence_max_s=60.0)
    assert (pace.begin(1.0), pace.extend(61.0, 1, 2.0), pace.extend(61.0, 0, 2.0)) == (61.0, 62.0, 61.0)


def test_body_and_read_pace_use_separate_settings() -> None:
    settings = HttpSettings(
        body_rate_min=1, read_rate_min=2, rate_grace_s=3.0, body_wait_max_s=4.0, write_wait_max_s=5.0
    )
    assert body_pace(settings) == MinimumRate(bytes_per_s=1, grace_s=3.0, silence_max_s=4.0)
    assert read_pace(settings) == MinimumRate(bytes_per_s=2, grace_s=3.0, silence_max_s=5.0)
    assert read_pace(HttpSettings(rate_grace_s=3.0)).silence_max_s == 6.0
    assert read_pace(HttpSettings(rate_grace_s=3.0, read_rate_min=0)).silence_max_s == 60.0


@given(st.lists(st.tuples(st.floats(0.01, 9.0), st.integers(0, 5)), max_size=100))
def test_slow_client_expires_within_grace_plus_time_of_sent_bytes(pieces: list[tuple[float, int]]) -> None:
    pace, now_s, sent = BodyPace(PACE, 0.0), 0.0, 0
    for wait_s, count in pieces:
        now_s += wait_s
        if due_s(pace) <= now_s:
            break
        pace.receive(count, now_s)
        sent += count
        # The grace period begins with the first byte, which may be late.
        assert due_s(pace) <= pieces[0][0] + 10.0 + sent / 100 + 1e-9


def test_resumed_body_restarts_grace_period() -> None:
    pace = BodyPace(PACE, 0.0)
    pace.receive(1, 1.0)
    pace.resume(100.0)
    assert due_s(pace) == 110.0


def test_body_has_no_deadline_before_100_continue() -> None:
    pace = BodyPace(PACE, 0.0)
    assert due_s(pace, b"\r\nExpect: 100-continue") == float("inf")
    assert due_s(pace, b"\r\nExpect: 100-continue", is_continued=True) == 10.0


def test_grpc_and_started_responses_use_silence_limit() -> None:
    pace = BodyPace(PACE, 0.0)
    assert due_s(pace, b"\r\nContent-Type: application/grpc") == 60.0
    assert due_s(pace, has_response=True) == 60.0


class SocketTransport:
    """A transport over a real socket, with ``buffered`` bytes in its write buffer."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.buffered = 0

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def get_extra_info(self, name: str) -> object:
        assert name == "socket"
        return self.end


async def test_bytes_in_socket_buffer_count_as_unread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        reader, _ = server.accept()
        sender.setblocking(False)
        total = 0
        try:
            while True:
                total += sender.send(b"x" * 65536)
        except BlockingIOError:
            pass
        transport = SocketTransport(sender)
        pace = ReaderPace(PACE, transport)  # type: ignore[arg-type]
        due_s = pace.change(0.0, written_bytes=total, full=True)
        assert (due_s, pace.check(10.0, written_bytes=total)) == (10.0, 10.0)
        with reader:
            reader.setblocking(False)

            def has_moved() -> bool:
                with contextlib.suppress(BlockingIOError):
                    reader.recv(65536)
                return pace.check(10.0, written_bytes=total) > 10.0

            await until(has_moved)


def test_transport_without_socket_uses_its_write_buffer() -> None:
    class Buffered(SocketTransport):
        def get_extra_info(self, name: str) -> object:
            del name
            return None

    transport = Buffered(socket.socket())
    transport.end.close()
    transport.buffered = 1000
    pace = ReaderPace(PACE, transport)  # type: ignore[arg-type]
    pace.change(0.0, written_bytes=5000, full=True)
    transport.buffered = 900
    # 100 bytes written meanwhile and 100 fewer in the buffer: 200 were read.
    assert pace.check(10.0, written_bytes=5100) == 12.0
    assert pace.change(11.0, written_bytes=5100, full=False) == float("inf")
    assert pace.check(1000.0, written_bytes=5100) == float("inf")


def test_response_buffer_has_room_below_its_limit() -> None:
    buffer = ResponseBuffer(ResponseBuffers(response_bytes_max=100, bytes_max=1000))
    assert (buffer.set(99), buffer.set(100), buffer.set(0)) == (True, False, True)


def test_response_buffers_share_a_total_limit() -> None:
    buffers = ResponseBuffers(response_bytes_max=100, bytes_max=150)
    first, second = ResponseBuffer(buffers), ResponseBuffer(buffers)
    assert (first.set(90), second.set(50), second.set(60)) == (True, True, False)
    first.set(0)
    assert (second.set(60), buffers.byte_count) == (True, 60)


def test_response_buffers_without_limits_have_no_room() -> None:
    assert not ResponseBuffer(ResponseBuffers()).set(0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), max_size=50))
def test_total_equals_sum_of_response_buffers(steps: list[tuple[int, int]]) -> None:
    buffers = ResponseBuffers(response_bytes_max=100, bytes_max=250)
    each = [ResponseBuffer(buffers) for _ in range(4)]
    for which, byte_count in steps:
        has_room = each[which].set(byte_count)
        assert buffers.byte_count == sum(response_buffer.byte_count for response_buffer in each)
        assert has_room == (byte_count < 100 and buffers.byte_count < 250)
