"""The request history stays within its bounds for any requests."""

from hypothesis import given
from hypothesis import strategies as st

from serving.core.traffic.requesthistory import (
    CAUSES_MAX,
    FAILED_MAX,
    SAMPLED_MAX,
    SLOW_MAX,
    TEXT_MAX,
    RequestHistory,
    RequestRecord,
    printable,
)

_ENDS = st.lists(
    st.tuples(
        st.sampled_from("abcde"),
        st.floats(0, 3),
        st.floats(0, 1000),
        st.sampled_from(["", "client", "app"]),
        st.text(max_size=3),
    ),
    max_size=300,
)


@given(_ENDS, st.integers(0, 200))
def test_request_history_stays_within_its_bounds(
    ends: list[tuple[str, float, float, str, str]], records_max: int
) -> None:
    history, now_s = RequestHistory(records_max), 0.0
    for revision, passed_s, duration_s, failed_by, why in ends:
        now_s += passed_s
        record = RequestRecord(
            service="s",
            revision=revision,
            at_wall_s=now_s,
            method="GET",
            path="/",
            status=200,
            failed_by=failed_by,
            why=why,
            duration_s=duration_s,
        )
        history.record("n", record, now_s)
        reports = history.reports("n", "s", now_s)
        assert history.count <= records_max
        results = [
            len(request_report.failed)
            + len(request_report.slow)
            + len(request_report.sampled)
            + len(request_report.errors)
            for request_report in reports
        ]
        assert sum(results) <= history.count
        for report in reports:
            assert len(report.failed) <= FAILED_MAX
            assert len(report.slow) <= SLOW_MAX
            assert len(report.sampled) <= SAMPLED_MAX
            assert len(report.errors) <= CAUSES_MAX
            durations = [slow.duration_s for slow in report.slow]
            assert durations == sorted(durations, reverse=True)
            assert {each.revision for each in (*report.failed, *report.slow, *report.sampled)} <= {report.revision}


@given(
    st.binary(max_size=2 * TEXT_MAX) | st.text(max_size=2 * TEXT_MAX).map(lambda text: text.encode("utf-8", "replace"))
)
def test_printable_text_is_bounded_and_printable(raw: bytes) -> None:
    text = printable(raw)
    assert len(text) <= TEXT_MAX
    assert text.isprintable()
