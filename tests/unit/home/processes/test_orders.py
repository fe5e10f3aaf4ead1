import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.home.processes import orders
from serving.home.processes.orders import (
    ForgetPod,
    HeldPod,
    Inventory,
    KeepNote,
    Lines,
    ProcessEnded,
    SendSignal,
    StartProcess,
    encode,
    read_order,
    read_report,
)

START = StartProcess(pod="1", name="app", environment={"A": "b"}, log="/l", arguments=("run", "it"))


@pytest.mark.parametrize(
    "order", [START, SendSignal(pod="1", name="app", signal=15), KeepNote(pod="1", note={"x": [1]}), ForgetPod(pod="1")]
)
def test_an_order_is_read_as_it_was_written(order: orders.Order) -> None:
    assert read_order(encode(order).rstrip(b"\n")) == order


@pytest.mark.parametrize(
    "report",
    [Inventory(pods=[HeldPod(pod="1", note={}, processes=[])]), ProcessEnded(pod="1", name="app", exit_code=-9)],
)
def test_a_report_is_read_as_it_was_written(report: orders.Report) -> None:
    assert read_report(encode(report).rstrip(b"\n")) == report


@pytest.mark.parametrize("line", [b"", b"{}", b'{"type":"Start"}', b'{"type":"Ended","pod":"1"}', b"\xff"])
def test_what_is_no_order_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_order(line)


@given(st.lists(st.binary().map(lambda one: one.replace(b"\n", b""))), st.integers(1, 7))
def test_lines_are_the_same_in_whatever_pieces_they_come(texts: list[bytes], size: int) -> None:
    stream, lines = b"".join(text + b"\n" for text in texts), Lines()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [line for piece in pieces for line in lines.feed(piece)] == texts


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "_LINE_BYTES_MAX", 8)
    with pytest.raises(OverflowError):
        Lines().feed(b"123456789")
