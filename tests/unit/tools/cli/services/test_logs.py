import datetime as dt

import pytest

from serving.tools.cli.services.logs import SearchedLines, moment_s, searched_lines

NOW_S = dt.datetime.fromisoformat("2026-11-24T14:00").timestamp()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("10m", "2026-11-24T13:50"),
        ("13:05", "2026-11-24T13:05"),
        ("13:05:30", "2026-11-24T13:05:30"),
        ("2026-11-23", "2026-11-23T00:00"),
        ("2026-11-23T10:00", "2026-11-23T10:00"),
    ],
)
def test_relative_and_absolute_times_are_parsed(text: str, at: str) -> None:
    assert moment_s(text, "--since", now_s=NOW_S) == dt.datetime.fromisoformat(at).timestamp()


@pytest.mark.parametrize("text", ["99999999999h", "1000-01-01T00:00:00Z"])
def test_time_before_the_epoch_is_clamped(text: str) -> None:
    assert SearchedLines(since_s=moment_s(text, "--since", now_s=NOW_S)).since_stamp == "1970-01-01T00:00:01Z"


def test_time_with_a_zone_is_parsed() -> None:
    assert moment_s("1970-01-02T00:00:00Z", "--since", now_s=NOW_S) == 86400


@pytest.mark.parametrize("text", ["", "x", "25:00", "2026-13-01", "1:5", "tomorrow", "-5", "90", "-5m", "1001-01-01T"])
def test_invalid_time_is_rejected_with_examples(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        moment_s(text, "--since", now_s=NOW_S)
    assert raised.value.code == 2
    assert f"--since {text!r} is not a time: expected 10m (ago), 13:05" in capsys.readouterr().err


def test_log_lines_are_selected_by_time_and_pattern() -> None:
    assert not SearchedLines().is_given
    search = searched_lines(None, None, "o[nt]e")
    assert (search.is_given, search.takes("one", None), search.takes("two", 5.0)) == (True, True, False)
    search = SearchedLines(since_s=5, until_s=6)
    assert [search.takes("x", at_s) for at_s in (4.0, 5.0, 6.0, 7.0, None)] == [False, True, True, False, True]
    assert (search.since_stamp, SearchedLines().since_stamp) == ("1970-01-01T00:00:05Z", "")


@pytest.mark.parametrize(
    ("since", "until", "grep", "message"),
    [(None, None, "(", "is not a regular expression"), ("1m", "5m", None, "--since 1m is after --until 5m")],
)
def test_invalid_pattern_or_empty_interval_is_rejected(
    since: str | None, until: str | None, grep: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        searched_lines(since, until, grep)
    assert message in capsys.readouterr().err
