from pathlib import Path

import msgspec
import pytest

from serving.core.model.errors import NewerFormat
from serving.core.model.versions import POD_RECORDS
from serving.home.processes.processrecords import EventReader, ProcessRecord, ProcessRecords


def test_events_split_across_chunks_are_read() -> None:
    reader = EventReader()
    assert reader.feed(b'{"pid": 7, "exit": -9}\n{"pid": 8, "re') == [{"pid": 7, "exit": -9}]
    assert reader.feed(b'ady": true}\n') == [{"pid": 8, "ready": True}]


@pytest.mark.parametrize(
    "garbage",
    [b"", b"hello", b"\xff\xfe", b"[1]", b"null", b"{}", b'{"pid": "x", "ready": 1}', b'{"pid": 7}', b"[" * 9999],
)
def test_invalid_event_is_skipped(garbage: bytes) -> None:
    reader = EventReader()
    assert reader.feed(garbage + b'\n{"pid": 7, "exit": 0}\n') == [{"pid": 7, "exit": 0}]


def test_event_after_oversized_text_is_read() -> None:
    reader = EventReader()
    reader.feed(b"x" * 100_000)
    assert reader.feed(b'{"pid": 7, "exit": 0}\n') == [{"pid": 7, "exit": 0}]


def test_damaged_record_is_skipped_and_newer_format_is_rejected(tmp_path: Path) -> None:
    records = ProcessRecords(tmp_path)
    records.write(ProcessRecord(pod="1", name="app", pid=7))
    records.write_note("1", {"manifest": {}})
    (tmp_path / "2.app.process").write_bytes(b'{"pod": "2", "na')
    assert records.read() == ([ProcessRecord(pod="1", name="app", pid=7)], {"1": {"manifest": {}}})
    newer = {"pod": "3", "note": "of another type", "version": POD_RECORDS + 1}
    (tmp_path / "3.note").write_bytes(msgspec.json.encode(newer))
    with pytest.raises(NewerFormat, match=r"3\.note: format .* run the newer version again, or end the pods"):
        records.read()
