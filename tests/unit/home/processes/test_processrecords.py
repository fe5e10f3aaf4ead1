import pytest

from serving.home.processes.processrecords import EventReader


def test_events_are_read_however_they_are_cut() -> None:
    reader = EventReader()
    assert reader.feed(b'{"pid": 7, "exit": -9}\n{"pid": 8, "re') == [{"pid": 7, "exit": -9}]
    assert reader.feed(b'ady": true}\n') == [{"pid": 8, "ready": True}]


@pytest.mark.parametrize(
    "garbage",
    [b"", b"hello", b"\xff\xfe", b"[1]", b"null", b"{}", b'{"pid": "x", "ready": 1}', b'{"pid": 7}', b"[" * 9999],
)
def test_what_is_no_event_is_skipped(garbage: bytes) -> None:
    reader = EventReader()
    assert reader.feed(garbage + b'\n{"pid": 7, "exit": 0}\n') == [{"pid": 7, "exit": 0}]


def test_an_event_behind_text_without_an_end_is_found() -> None:
    reader = EventReader()
    reader.feed(b"x" * 100_000)
    assert reader.feed(b'{"pid": 7, "exit": 0}\n') == [{"pid": 7, "exit": 0}]
