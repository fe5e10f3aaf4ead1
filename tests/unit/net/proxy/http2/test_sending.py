from typing import Any, cast

from serving.net.proxy.http2.frames import PREFACE, ErrorCode
from serving.net.proxy.http2.sending import FrameSender
from tests.eventually import next_turn
from tests.unit.net.proxy.http2.recorder import Recorder


class RecordingTransport:
    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return False


class PassingSender(FrameSender):
    """Sends a reset on itself and on others for each byte it reads."""

    def __init__(self, *others: "PassingSender") -> None:
        self.engine = Recorder(is_server=False).engine
        self.engine.out.clear()
        self.transport = RecordingTransport()
        self._transport = cast("Any", self.transport)
        self._others = others
        self.class_attributes: list[dict[str, Any]] = []

    def parse(self, data: bytes) -> None:
        self.class_attributes.append(dict(vars(FrameSender)))
        for _ in data:
            for sender in (self, *self._others):
                sender.engine.send_reset(1, ErrorCode.CANCEL)
                sender.send()


def test_one_read_leads_to_one_write_per_connection() -> None:
    app = PassingSender()
    client = PassingSender(app)
    client.data_received(b"123")
    assert [len(write) for write in client.transport.writes] == [3 * 13]
    assert client.transport.writes == app.transport.writes
    client.data_received(b"1")
    assert [len(write) for write in app.transport.writes] == [39, 13]


async def test_frames_sent_outside_a_read_are_written_once_per_loop_iteration() -> None:
    sender = PassingSender()
    sender.parse(b"12")
    assert sender.transport.writes == []
    await next_turn()
    assert [len(write) for write in sender.transport.writes] == [26]


def test_read_does_not_change_class_attributes() -> None:
    sender = PassingSender()
    before = dict(vars(FrameSender))
    sender.data_received(b"1")
    assert sender.class_attributes == [before]
    assert dict(vars(FrameSender)) == before


def test_preface_is_sent_once() -> None:
    sender = PassingSender()
    sender.engine.out.append(PREFACE)
    sender.write_now()
    sender.write_now()
    assert sender.transport.writes == [PREFACE]
