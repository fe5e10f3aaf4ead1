import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.home.processes import orders
from serving.home.processes.orders import (
    ForgetPod,
    Inventory,
    InventoryPod,
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
def test_order_survives_encoding(order: orders.Order) -> None:
    assert read_order(encode(order).rstrip(b"\n")) == order


@pytest.mark.parametrize(
    "report",
    [Inventory(pods=[InventoryPod(pod="1", note={}, processes=[])]), ProcessEnded(pod="1", name="app", exit_code=-9)],
)
def test_report_survives_encoding(report: orders.Report) -> None:
    assert read_report(encode(report).rstrip(b"\n")) == report


@pytest.mark.parametrize("line", [b"", b"{}", b'{"type":"Start"}', b'{"type":"Ended","pod":"1"}', b"\xff"])
def test_invalid_order_is_rejected(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_order(line)


@given(st.lists(st.binary().map(lambda data: data.replace(b"\n", b""))), st.integers(1, 7))
def test_lines_do_not_depend_on_chunk_size(texts: list[bytes], size: int) -> None:
    stream, lines = b"".join(text + b"\n" for text in texts), Lines()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [line for piece in pieces for line in lines.feed(piece)] == texts


@pytest.mark.parametrize("size", [1, 5, 100])
def test_oversized_line_is_dropped_and_neighbours_are_read(size: int) -> None:
    lines, stream = Lines(bytes_max=8), b"before\n" + b"x" * 50 + b"\n12345678\n123456789"
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [line for piece in pieces for line in lines.feed(piece)] == [b"before", b"12345678"]
    assert lines.dropped_count == 2
    assert lines.feed(b"0\nafter\n") == [b"after"]


def test_lines_are_unlimited_with_bytes_max_zero() -> None:
    assert Lines(bytes_max=0).feed(b"x" * 100 + b"\n") == [b"x" * 100]
