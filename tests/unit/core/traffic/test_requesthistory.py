"""Lists of recorded requests, and their bounds."""

import pytest

from serving.core.traffic.requesthistory import (
    CAUSES_MAX,
    FAILED_MAX,
    SAMPLED_MAX,
    SLOW_AGE_MAX_S,
    SLOW_MAX,
    RequestHistory,
    RequestRecord,
    RequestReport,
    merged,
    printable,
    since,
)

KEY = ("shop", "cart-00001")


def record(at_s: float, *, duration_s: float = 0.1, revision: str = KEY[1], why: str = "") -> RequestRecord:
    return RequestRecord(
        service="cart",
        revision=revision,
        at_wall_s=at_s,
        method="GET",
        path="/",
        status=500 if why else 200,
        failed_by="app" if why else "",
        why=why,
        duration_s=duration_s,
    )


def report_of(history: RequestHistory, now_s: float = 0.0) -> RequestReport:
    (report,) = history.reports("shop", "cart", now_s)
    return report


def test_latest_failed_requests_are_retained() -> None:
    history = RequestHistory(1000)
    for at_s in range(FAILED_MAX + 5):
        history.record("shop", record(at_s, why="broken"), at_s)
    assert [request_record.at_wall_s for request_record in report_of(history).failed] == list(range(5, FAILED_MAX + 5))


def test_burst_of_failures_is_counted_entirely_and_recorded_partly() -> None:
    history = RequestHistory(1000)
    for number in range(500):
        history.record("shop", record(7.0 + number / 1000, why="broken"), 7.0 + number / 1000)
    report = report_of(history, 7.5)
    assert [error_cause.count for error_cause in report.errors] == [500]
    assert report.failed[-1].at_wall_s < 7.1
    history.record("shop", record(9.0, why="broken"), 9.0)
    assert report_of(history, 9.0).failed[-1].at_wall_s == 9.0


def test_slow_requests_are_sorted_by_duration_and_expire() -> None:
    history = RequestHistory(1000)
    for number in range(SLOW_MAX + 10):
        history.record("shop", record(number, duration_s=number), number / 100)
    assert [request_record.duration_s for request_record in report_of(history, 1.0).slow] == list(
        range(SLOW_MAX + 9, 9, -1)
    )
    assert report_of(history, SLOW_AGE_MAX_S + 1).slow == []
    history.record("shop", record(0, duration_s=0.5), SLOW_AGE_MAX_S + 1)
    assert [request_record.duration_s for request_record in report_of(history, SLOW_AGE_MAX_S + 1).slow] == [0.5]


def test_request_is_due_once_per_second_or_if_slow() -> None:
    history = RequestHistory(1000)
    assert history.is_due(KEY, 0.1, 0.0)
    for _ in range(SLOW_MAX):
        history.record("shop", record(0.0, duration_s=0.1), 0.0)
    assert not history.is_due(KEY, 0.1, 0.5)
    assert history.is_due(KEY, 0.2, 0.5)
    assert history.is_due(KEY, 0.1, 1.0)


def test_sample_has_one_request_per_second() -> None:
    history = RequestHistory(1000)
    for number in range(10 * (SAMPLED_MAX + 5)):
        history.record("shop", record(number / 10), number / 10)
    report = report_of(history)
    assert len(report.sampled) == SAMPLED_MAX
    assert report.sampled[-1].at_wall_s - report.sampled[-2].at_wall_s == pytest.approx(1.0)


def test_errors_are_grouped_by_cause_without_numbers() -> None:
    history = RequestHistory(1000)
    for at_s, why in enumerate(["no connection to 10.0.0.1:80", "no connection to 10.0.0.2:80", "timeout"]):
        history.record("shop", record(at_s, why=why), at_s)
    first, second = report_of(history).errors
    assert (first.count, first.first_wall_s, first.last_wall_s, first.why) == (2, 0, 1, "no connection to 10.0.0.2:80")
    assert (second.count, second.failed_by, second.status) == (1, "app", 500)


def test_least_recent_cause_is_dropped_beyond_maximum() -> None:
    history = RequestHistory(1000)
    causes = [chr(ord("a") + number) for number in range(CAUSES_MAX + 1)]
    for why in [*causes[:-1], causes[0], causes[-1]]:
        history.record("shop", record(0.0, why=why), 0.0)
    whies = {error_cause.why for error_cause in report_of(history).errors}
    assert whies == {*causes} - {causes[1]}


def test_least_recent_revision_is_dropped_beyond_maximum() -> None:
    history = RequestHistory(6)
    for revision in ("a", "b", "a", "c"):
        history.record("shop", record(0.0, revision=revision), 0.0)
    # Each revision has a sampled and a slow request; "a" has one more.
    assert history.count == 5
    assert [report.revision for report in history.reports("shop", "cart", 0.0)] == ["a", "c"]


def test_maximum_0_records_no_request() -> None:
    history = RequestHistory(0)
    history.record("shop", record(0.0), 0.0)
    assert history.reports("shop", "cart", 0.0) == []


def test_maximum_below_one_revision_records_no_request() -> None:
    history = RequestHistory(1)
    history.record("shop", record(0.0), 0.0)
    assert (history.count, history.reports("shop", "cart", 0.0)) == (0, [])


def test_reports_match_namespace_and_service_or_revision() -> None:
    history = RequestHistory(1000)
    for namespace, revision in (("shop", "cart-00002"), ("shop", "cart-00001"), ("other", "cart-00003")):
        history.record(namespace, record(0.0, revision=revision), 0.0)
    assert [report.revision for report in history.reports("shop", "cart", 0.0)] == ["cart-00001", "cart-00002"]
    assert [report.revision for report in history.reports("shop", "cart-00002", 0.0)] == ["cart-00002"]
    assert history.reports("shop", "nobody", 0.0) == []


def test_reports_of_several_activators_are_merged_per_revision() -> None:
    first, second = RequestHistory(1000), RequestHistory(1000)
    first.record("shop", record(1.0, duration_s=2.0, why="port 1"), 1.0)
    second.record("shop", record(0.0, duration_s=3.0, why="port 2"), 0.0)
    second.record("shop", record(2.0, duration_s=1.0, why="other"), 2.0)
    second.record("shop", record(2.0, revision="cart-00000"), 2.0)
    reports = merged([*first.reports("shop", "cart", 2.0), *second.reports("shop", "cart", 2.0)])
    assert [report.revision for report in reports] == ["cart-00000", "cart-00001"]
    assert (
        [request_record.at_wall_s for request_record in reports[1].failed]
        == [request_record.at_wall_s for request_record in reports[1].sampled]
        == [0.0, 1.0, 2.0]
    )
    assert [request_record.duration_s for request_record in reports[1].slow] == [3.0, 2.0, 1.0]
    cause, other = reports[1].errors
    assert (cause.count, cause.why, cause.first_wall_s, cause.last_wall_s) == (2, "port 1", 0.0, 1.0)
    assert other.why == "other"
    assert merged([]) == []
    later = since(reports[1], 2.0)
    assert [request_record.at_wall_s for request_record in (*later.failed, *later.slow, *later.sampled)] == [
        2.0,
        2.0,
        2.0,
    ]
    assert [error_cause.why for error_cause in later.errors] == ["other"]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"/a/b", "/a/b"),
        (b"/a\x1b[31m\n", "/a\\x1b[31m\\n"),
        ("/ü".encode(), "/ü"),
        (b"/\xff", "/\\xff"),
        ("/\u202egpj".encode(), "/\\u202egpj"),
        (b"/12345678", "/12345678"),
        (b"/123456789", "/12345..."),
        (b"/\x00\x00\x00", "/\\x00\\..."),
    ],
)
def test_untrusted_text_is_escaped_and_truncated(raw: bytes, text: str) -> None:
    assert printable(raw, 9 if raw.startswith((b"/12", b"/\x00")) else 200) == text
