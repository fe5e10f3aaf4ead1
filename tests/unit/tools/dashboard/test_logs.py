"""Log chunks are split into lines, and a slow reader loses the oldest lines."""

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from serving.tools.dashboard.logs import LineSplitter, LogBatch, LogQueue


@given(st.lists(st.text("ab é", max_size=30), max_size=8), st.lists(st.integers(0, 200), max_size=6))
def test_lines_are_independent_of_chunk_boundaries(lines: list[str], cuts: list[int]) -> None:
    whole = "".join(f"{line}\n" for line in lines).encode()
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    splitter = LineSplitter()
    results = [line for start, end in itertools.pairwise(places) for line in splitter.feed(whole[start:end])]
    assert results == lines
    assert splitter.finish() == []


def test_last_line_without_a_newline_is_returned_by_finish() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"a\r\n\nb") == ["a", ""]
    assert splitter.finish() == ["b"]
    assert splitter.finish() == []


def test_long_line_is_truncated_with_bounded_memory() -> None:
    splitter = LineSplitter()
    for _ in range(100):
        assert splitter.feed(b"x" * 1000) == []
        assert len(splitter._rest) <= 4096
    assert splitter.feed(b"y\nnext\n") == ["x" * 4096 + " … (cut)", "next"]
    assert splitter.feed(b"z" * 4096 + b"\n") == ["z" * 4096]


def test_invalid_utf8_is_replaced() -> None:
    assert LineSplitter().feed(b"a\xffb\n") == ["a\ufffdb"]


@given(st.lists(st.one_of(st.none(), st.integers(1, 5)), max_size=60), st.integers(1, 7))
def test_each_line_is_delivered_or_counted_as_dropped(steps: list[int | None], lines_max: int) -> None:
    # None adds a line; a number pops up to that many.
    queue, added, delivered, dropped = LogQueue(lines_max), 0, 0, 0
    for step in [*steps, lines_max]:
        if step is None:
            queue.add("p", str(added))
            added += 1
            continue
        batch = queue.pop_batch(step)
        dropped += batch.dropped
        assert len(batch.lines) <= min(step, lines_max)
        # Dropped lines are older than the remaining ones.
        assert [text for _, text in batch.lines] == [str(delivered + dropped + at) for at in range(len(batch.lines))]
        delivered += len(batch.lines)
    assert (delivered + dropped, len(queue._lines)) == (added, 0)


def test_log_batch_is_encoded_as_json() -> None:
    batch = LogBatch(lines=[("p", "<b>")], dropped=0)
    assert msgspec.json.encode(batch) == b'{"lines":[["p","<b>"]],"dropped":0}'
