"""Each request counts once, whichever source reports it, at any time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.autoscaler.io.connection import cut
from serving.core.model.stat import Stat
from serving.core.scaling.sources import Sources

amounts = st.floats(min_value=0, max_value=1000)
# Several pods and activators, each with its offset in the second, its load and its proxied share.
pods = st.lists(st.tuples(st.floats(min_value=0, max_value=0.99), amounts, st.floats(0, 1)), max_size=5)
activators = st.lists(st.tuples(st.floats(min_value=0, max_value=0.99), amounts), max_size=3)


@given(pods=pods, activators=activators, seconds=st.integers(2, 6))
def test_steady_load_is_counted_once_in_each_second(
    pods: list[tuple[float, float, float]], activators: list[tuple[float, float]], seconds: int
) -> None:
    sources, results = Sources(), []
    events: list[tuple[float, str, float, float | None]]
    events = [(offset, f"p{n}", load, load * share) for n, (offset, load, share) in enumerate(pods)]
    events += [(offset, f"a{n}", load, None) for n, (offset, load) in enumerate(activators)]
    for second in range(seconds):
        for offset, name, load, marked in sorted(events, key=lambda event: event[0]):
            at_s = second + offset
            results += sources.complete(at_s)
            stat = Stat(pod=name, at_s=at_s, concurrency=load, request_count=load, proxied_concurrency=marked or 0.0)
            (sources.record_activator if marked is None else sources.record_pod)(stat)
    results += sources.complete(float(seconds))
    truth = sum(load - (marked or 0.0) for _, _, load, marked in events)
    assert [complete_second.number for complete_second in results] == (list(range(seconds)) if events else [])
    assert [complete_second.load.concurrency for complete_second in results] == [pytest.approx(truth)] * len(results)
    assert sources.present(seconds + 0.005).concurrency >= truth * (1 - 1e-9) - 1e-9


@given(payloads=st.lists(st.binary(max_size=300), max_size=8), data=st.data())
def test_frames_are_split_equally_for_any_chunks(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(_frame(payload) for payload in payloads)
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    results, rest = [], b""
    for begin, end in zip([0, *places], [*places, len(stream)], strict=True):
        rest += stream[begin:end]
        while (new_cut := cut(rest, 0)) is not None and new_cut.end <= len(rest):
            assert new_cut.is_plain
            results.append(rest[new_cut.begin : new_cut.end])
            rest = rest[new_cut.end :]
    assert (results, rest) == (payloads, b"")


def _frame(payload: bytes) -> bytes:
    length = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2)
    return b"\x82" + length + bytes(4) + payload
